"""`/api/admin`: the eleven operations of a backend's administrators, in its profile's words. All need the scope admin.

It is there if the app has the profile `treadle.profiles.backend`, or `asgi(app, admin=True)` asks for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Query as FromQuery
from pydantic import Field, JsonValue

from treadle.app.profile import Profile
from treadle.app.queries import LARGEST_PAGE, MOST_READ
from treadle.app.treadle import Treadle
from treadle.app.views import schedule_view
from treadle.errors import InvalidInput, NotPossible, UnknownTask
from treadle.model import Job, State
from treadle.model.records import Schedule
from treadle.profiles import backend
from treadle.server.caller import Admin, Caller
from treadle.server.forms import Cursor, Form, Limit, Name, Query
from treadle.server.strict import StrictRoute

router = APIRouter(tags=["admin"], route_class=StrictRoute)

DEEPEST_OFFSET = 10_000  # to skip jobs, they are read
MOST_LOOKED = DEEPEST_OFFSET + MOST_READ  # jobs that one answer may read: some profile's word may fit few of them
LARGEST_ANSWER = 1000  # schedules of one answer
THEIRS = {"cron": "cron_expr", "task": "job_type", "tz": "timezone"}
"""By our name for a field, what this API calls it."""
OURS = {theirs: ours for ours, theirs in THEIRS.items()}

CronExpr = Annotated[str, Field(min_length=1, max_length=200, description="Five fields.")]
Zone = Annotated[str, Field(min_length=1, max_length=100, description="An IANA name, such as Europe/Berlin.")]
Payload = dict[str, JsonValue]


def wanted(profile: Profile) -> bool:
    """Whether an app of this profile has this API without being asked: it speaks as the backend's does."""
    return (profile.states, profile.fields) == (backend.PROFILE.states, backend.PROFILE.fields)


class AdminJobQuery(Query):
    """Which jobs are listed, and from which on."""

    state: Name | None = None
    type: Name | None = None
    limit: Limit = 50
    offset: Annotated[int, Field(ge=0, le=DEEPEST_OFFSET)] = 0


class AdminSchedule(Form):
    """A schedule to make."""

    name: Name
    job_type: Name
    cron_expr: CronExpr
    timezone: Zone = "UTC"
    payload: Payload = Field(default_factory=dict)
    enabled: bool = True


class AdminScheduleChange(Form):
    """What is to change of a schedule; what is left out stays."""

    cron_expr: CronExpr = ""
    timezone: Zone = ""
    payload: Payload = Field(default_factory=dict)
    enabled: bool = True


# ---------------------------------------------------------------------------------------------------- jobs


@router.get("/jobs")
def list_jobs(caller: Admin, query: Annotated[AdminJobQuery, FromQuery()]) -> dict[str, Any]:
    """Jobs, newest first: `limit` of them, after the first `offset`."""
    found = _jobs(caller.whole, query)
    return {"jobs": caller.whole.views(found), "limit": query.limit, "offset": query.offset}


@router.get("/jobs/stats")
def stats(caller: Admin) -> dict[str, Any]:
    """How many jobs are in each state, and for how many seconds the oldest queued one has been due.

    The numbers are exact up to 50,000 of a state; those above that are named in `estimates`.
    """
    status = caller.whole.status()
    oldest = status.total.oldest
    age = None if oldest is None else max((status.at - oldest).total_seconds(), 0.0)
    found = caller.whole.counts()
    estimates = {} if found["exact"] else {"estimates": found["estimates"]}
    return {**found["counts"], "oldest_queued_age_seconds": age, **estimates}


@router.get("/jobs/{job_id}")
def show_job(caller: Admin, job_id: str) -> dict[str, Any]:
    """One job."""
    return {"job": caller.whole.view(_job(caller, job_id))}


@router.post("/jobs/{job_id}/retry")
def retry_job(caller: Admin, job_id: str) -> dict[str, Any]:
    """Queue a failed job again, with all its attempts; any other is refused."""
    job, app = _job(caller, job_id), caller.whole
    if _word(app, job) != app.profile.word("failed"):
        raise _refused(app, job, "retried; only a failed one can be")
    return {"job": app.view(app.retry(job.id, actor=caller.actor, revision=job.revision))}


@router.post("/jobs/{job_id}/cancel")
def cancel_job(caller: Admin, job_id: str) -> dict[str, Any]:
    """Cancel a queued job; any other is refused."""
    job, app = _job(caller, job_id), caller.whole
    if job.state is not State.PENDING:
        raise _refused(app, job, "canceled; only a queued one can be")
    return {"job": app.view(app.cancel(job.id, actor=caller.actor, revision=job.revision))}


def _jobs(app: Treadle, query: AdminJobQuery) -> list[Job]:
    """The jobs of a page that is counted from the first one; pages are read until it is reached."""
    skip, found, cursor, looked = query.offset, list[Job](), None, 0
    while True:
        size = min(skip + query.limit - len(found), LARGEST_PAGE)
        page = app.find(state=query.state, task=query.type, limit=size, cursor=cursor)
        found += page.jobs[skip:]
        skip, cursor, looked = max(skip - len(page.jobs), 0), page.cursor, looked + page.looked
        if cursor is None or len(found) == query.limit or looked >= MOST_LOOKED:
            return found


def _job(caller: Caller, job_id: str) -> Job:
    return caller.whole.get(caller.whole.resolve_id(job_id))


def _refused(app: Treadle, job: Job, what: str) -> NotPossible:
    return NotPossible(f"job {job.id} is {_word(app, job)} and cannot be {what}")


def _word(app: Treadle, job: Job) -> str:
    return app.profile.word(job.label(app.engine.now()))


# ----------------------------------------------------------------------------------------------- schedules


@router.get("/schedules")
def list_schedules(caller: Admin, cursor: Annotated[Cursor | None, FromQuery()] = None) -> dict[str, Any]:
    """All schedules by name. Of more than 1,000 the answer has a `cursor`, which leads to the next ones."""
    page = caller.whole.schedules.list(limit=LARGEST_ANSWER, cursor=cursor)
    return {"schedules": [_view(caller, schedule) for schedule in page], "cursor": page.cursor}


@router.post("/schedules", status_code=201)
def create_schedule(caller: Admin, form: AdminSchedule) -> dict[str, Any]:
    """Make a schedule. Cron expression, time zone, type and payload are checked."""
    with _in_their_words():
        made = caller.whole.schedules.create(
            form.name,
            form.job_type,
            form.payload,
            cron=form.cron_expr,
            tz=form.timezone,
            enabled=form.enabled,
            checked=bool(caller.tasks.tasks),
            actor=caller.actor,
        )
    return {"schedule": _view(caller, made)}


@router.put("/schedules/{schedule_id}")
def update_schedule(caller: Admin, schedule_id: str, form: AdminScheduleChange) -> dict[str, Any]:
    """Change a schedule, by its id or name. A new time, and enabling it, count its next run from now."""
    given: dict[str, Any] = {OURS.get(name, name): getattr(form, name) for name in form.model_fields_set}
    if not given:
        raise InvalidInput("body", "nothing is to change; give cron_expr, timezone, payload or enabled")
    with _in_their_words():
        changed = caller.whole.schedules.update(
            schedule_id, **given, checked=bool(caller.tasks.tasks), actor=caller.actor
        )
    return {"schedule": _view(caller, changed)}


@router.delete("/schedules/{schedule_id}")
def delete_schedule(caller: Admin, schedule_id: str) -> dict[str, Any]:
    """Remove a schedule for good; the jobs it has made stay."""
    schedule = caller.whole.schedules.get(schedule_id)
    caller.whole.schedules.delete(schedule.id, actor=caller.actor)
    return {"schedule": _view(caller, schedule)}


@router.post("/schedules/{schedule_id}/enable")
def enable_schedule(caller: Admin, schedule_id: str) -> dict[str, Any]:
    """Let a schedule make jobs again, from now on."""
    return {"schedule": _view(caller, caller.whole.schedules.enable(schedule_id, actor=caller.actor))}


@router.post("/schedules/{schedule_id}/disable")
def disable_schedule(caller: Admin, schedule_id: str) -> dict[str, Any]:
    """Let a schedule make no more jobs."""
    return {"schedule": _view(caller, caller.whole.schedules.disable(schedule_id, actor=caller.actor))}


def _view(caller: Caller, schedule: Schedule) -> dict[str, Any]:
    profile = caller.whole.profile
    named = profile if profile.schedules is not None else backend.PROFILE
    return schedule_view(caller.whole.masked_schedule(schedule), named)


@contextmanager
def _in_their_words() -> Iterator[None]:
    """Name a wrong field as this API does."""
    try:
        yield
    except UnknownTask as error:
        raise InvalidInput("job_type", str(error)) from None
    except InvalidInput as error:
        if error.field not in THEIRS:
            raise
        raise InvalidInput(THEIRS[error.field], error.problem) from None
