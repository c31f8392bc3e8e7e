"""`/schedules`: list, look at, make, change, switch, run and preview schedules."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import AwareDatetime

from treadle.app.lasts import last_jobs, last_switch
from treadle.app.profile import Profile
from treadle.app.queries import LARGEST_PAGE
from treadle.app.views import event_view, schedule_view, tick_view
from treadle.errors import (
    ConfigError,
    InvalidInput,
    InvalidPayload,
    InvalidTiming,
    KeyTaken,
    NotPossible,
    ScheduleNotFound,
    UnknownTask,
)
from treadle.model import Job
from treadle.model.clock import span
from treadle.model.records import Schedule
from treadle.schedules.cron import MOST_TICKS, Cron, Every, Tick, time_zone
from treadle.schedules.cron import preview as next_ticks
from treadle.schedules.pages import cursor_of
from treadle.schedules.rules import preview as runs_of
from treadle.schedules.words import explain
from treadle.server.caller import Caller, Operator, Reader
from treadle.server.forms import Name, NewSchedule, ReasonForm, ScheduleCheck, ScheduleForm, ScheduleQuery
from treadle.server.strict import StrictRoute

router = APIRouter(prefix="/schedules", tags=["schedules"], route_class=StrictRoute)
cron_router = APIRouter(tags=["schedules"], route_class=StrictRoute)

RUNS_CHECKED = 5
MOST_LAST = 100  # schedules that are told with how their last jobs did
LAST = ("id", "state", "label", "reason", "created_at", "started_at", "finished_at")  # what is told of such a job
SOME_TASK, SOME_NAME = "task", "schedule"  # in place of what is not written yet

OfTenant = Annotated[Name | None, Query(description="Whose schedule it is; default if left out.")]


@router.get("")
def list_schedules(caller: Reader, query: Annotated[ScheduleQuery, Query()]) -> dict[str, Any]:
    """Schedules by name.

    With `last` each has its `last` job, as far as it is known. One that is off has the event by which it came to be so,
    as `switched`. Both are in treadle's own words, and a page has up to 100 schedules.
    """
    given = query.model_dump(exclude_none=True, exclude={"last"})
    if query.last and query.limit > MOST_LAST:
        raise InvalidInput("limit", f"must be at most {MOST_LAST} with last")
    if caller.who.queues is None:
        page = caller.app.schedules.list(**given)
        shown, cursor = [*page], page.cursor
    else:
        shown, cursor = _own_page(caller, given, query.limit)
    more = _lasts(caller, shown) if query.last else [{}] * len(shown)
    views = [{**_view(caller, schedule), **one} for schedule, one in zip(shown, more, strict=True)]
    return {"schedules": views, "cursor": cursor}


@router.post("", status_code=201)
def create(caller: Operator, form: NewSchedule) -> dict[str, Any]:
    """Make a schedule; its payload is checked against the task."""
    options = form.options()
    name, task, payload = options.pop("name"), options.pop("task"), options.pop("payload", None)
    if (queue := caller.queue_for(task, form.queue)) is not None:
        options["queue"] = queue
    made = caller.app.schedules.create(
        name, task, payload, **options, checked=bool(caller.tasks.tasks), actor=caller.actor, reason=form.reason
    )
    return {"schedule": _view(caller, made)}


@router.post("/check")
def check(caller: Reader, form: ScheduleCheck) -> dict[str, Any]:
    """What a schedule would do: its time in words, its next runs, and all that is wrong with it. Nothing is made.

    Name, task and time may be left out, so that a form can ask while somebody fills it in.
    """
    schedule = None if form.id is None else _found(caller, form.id, form.tenant)
    problems, words, ticks = _mistimed(form), None, list[Tick]()
    if not problems:
        words, ticks = _outlook(schedule, form, caller.tasks.engine.now())
    problems += _problems(caller, form)
    return {"words": words, "ticks": [tick_view(tick) for tick in ticks], "problems": problems}


@router.get("/{name}")
def show(caller: Reader, name: str, tenant: OfTenant = None) -> dict[str, Any]:
    """One schedule, with what was done to it."""
    schedule = _found(caller, name, tenant)
    events = caller.app.schedules.events(name, tenant=tenant)
    return {"schedule": _view(caller, schedule), "events": [event_view(event) for event in events]}


@router.patch("/{name}")
def update(caller: Operator, name: str, form: ScheduleForm, tenant: OfTenant = None) -> dict[str, Any]:
    """Change what is said of a schedule, and leave the rest. A new time, or enabling it, counts from now."""
    _found(caller, name, tenant)
    options = form.options()
    if form.queue is not None:
        options["queue"] = caller.queue(form.queue)
    checked = bool(caller.tasks.tasks)
    changed = caller.app.schedules.update(
        name, tenant=tenant, **options, checked=checked, actor=caller.actor, reason=form.reason
    )
    return {"schedule": _view(caller, changed)}


@router.delete("/{name}")
def delete(
    caller: Operator, name: str, tenant: OfTenant = None, reason: Annotated[str, Query(max_length=2000)] = ""
) -> dict[str, Any]:
    """Remove a schedule; the jobs it has made stay."""
    schedule = _found(caller, name, tenant)
    caller.app.schedules.delete(name, tenant=tenant, actor=caller.actor, reason=reason)
    return {"schedule": _view(caller, schedule)}


@router.post("/{name}/enable")
def enable(caller: Operator, name: str, form: ReasonForm, tenant: OfTenant = None) -> dict[str, Any]:
    """Let a schedule make jobs again, from now on."""
    _found(caller, name, tenant)
    schedule = caller.app.schedules.enable(name, tenant=tenant, actor=caller.actor, reason=form.reason)
    return {"schedule": _view(caller, schedule)}


@router.post("/{name}/disable")
def disable(caller: Operator, name: str, form: ReasonForm, tenant: OfTenant = None) -> dict[str, Any]:
    """Let a schedule make no more jobs until it is enabled."""
    _found(caller, name, tenant)
    schedule = caller.app.schedules.disable(name, tenant=tenant, actor=caller.actor, reason=form.reason)
    return {"schedule": _view(caller, schedule)}


@router.post("/{name}/run", status_code=201)
def run(caller: Operator, name: str, form: ReasonForm, tenant: OfTenant = None) -> dict[str, Any]:
    """Make a job of a schedule now, beside its own runs."""
    caller.check_open()
    _found(caller, name, tenant)
    try:
        job = caller.app.schedules.run(name, tenant=tenant, actor=caller.actor, reason=form.reason)
    except KeyTaken as error:
        raise caller.key_taken(error) from None
    return {"job": caller.view(job)}


@router.get("/{name}/preview")
def preview(
    caller: Reader,
    name: str,
    tenant: OfTenant = None,
    n: Annotated[int, Query(ge=1, le=MOST_TICKS)] = 5,
    after: Annotated[AwareDatetime | None, Query()] = None,
) -> dict[str, Any]:
    """Its next runs, from now on or after a moment."""
    _found(caller, name, tenant)
    ticks = caller.app.schedules.preview(name, n, after=after, tenant=tenant)
    return {"ticks": [tick_view(tick) for tick in ticks]}


@cron_router.get("/cron")
def explain_cron(
    caller: Reader,
    cron: Annotated[str, Query(max_length=200)],
    tz: Annotated[str, Query(max_length=100)] = "UTC",
    n: Annotated[int, Query(ge=1, le=MOST_TICKS)] = 5,
    after: Annotated[AwareDatetime | None, Query()] = None,
) -> dict[str, Any]:
    """What a cron expression means in words, and its next runs in a time zone; no schedule is made."""
    ticks = next_ticks(cron, tz, after or caller.tasks.engine.now(), n)
    return {"cron": cron, "tz": tz, "words": explain(cron), "ticks": [tick_view(tick) for tick in ticks]}


def _view(caller: Caller, schedule: Schedule) -> dict[str, Any]:
    return schedule_view(caller.app.masked_schedule(schedule), caller.profile)


def _lasts(caller: Caller, schedules: Sequence[Schedule]) -> list[dict[str, Any]]:
    """Of each its last job, all read at once, and if it is off, the event by which it came to be so."""
    names, now = Profile(), caller.tasks.engine.now()
    jobs = {id_: job for id_, job in last_jobs(caller.tasks, schedules).items() if _is_theirs(caller, job)}
    found = []
    for schedule in schedules:
        job, last = jobs.get(schedule.last_job or ""), None
        if job is not None:  # without what may be large, or have a secret in it
            view = names.view(job.evolve(payload_json="{}", result_json=None, error=None, progress=None), now, None)
            last = {name: view[name] for name in LAST}
        switch = None if schedule.enabled else last_switch(caller.tasks, schedule)
        found.append({"last": last, "switched": switch and event_view(switch)})
    return found


def _is_theirs(caller: Caller, job: Job) -> bool:
    return caller.reaches(job.queue) and caller.who.tenant in (None, job.tenant)


def _found(caller: Caller, name: str, tenant: str | None) -> Schedule:
    if caller.who.queues is None:
        return caller.app.schedules.get(name, tenant=tenant)
    try:
        schedule = caller.app.schedules.get(name, tenant=tenant)
    except ScheduleNotFound:
        schedule = None  # its hint may be a name on another queue
    if schedule is None or not caller.reaches(schedule.queue):
        raise ScheduleNotFound(name, [])
    return schedule


def _own_page(caller: Caller, given: dict[str, Any], limit: int) -> tuple[list[Schedule], str | None]:
    """The next schedules on the caller's queues; the cursor names one of them, and none that is another's."""
    found: list[Schedule] = []
    while True:
        page = caller.app.schedules.list(**{**given, "limit": LARGEST_PAGE})
        found += [schedule for schedule in page if caller.reaches(schedule.queue)]
        if len(found) > limit:
            return found[:limit], cursor_of(found[limit - 1])
        if page.cursor is None:
            return found, None
        given["cursor"] = page.cursor


# ------------------------------------------------------------------------------------------ checking


def _mistimed(form: ScheduleCheck) -> list[dict[str, str]]:
    """What is wrong with its time."""
    found = []
    ways: list[tuple[Callable[[str], object], str | None]] = [
        (time_zone, form.tz), (Cron.parse, form.cron), (Every.parse, form.every),
    ]  # fmt: skip
    for read, text in ways:
        try:
            if text is not None:
                read(text)
        except InvalidTiming as error:
            found.append(_problem(error))
    if form.cron is not None and form.every is not None:
        found.append({"field": "schedule", "problem": "give it either cron='30 2 * * *' or every='15m'"})
    return found


def _outlook(schedule: Schedule | None, form: ScheduleCheck, now: datetime) -> tuple[str | None, list[Tick]]:
    """Its time in words, and its next runs; neither if it has no time yet."""
    if form.cron is None and form.every is None:
        return None, []
    every = None if form.every is None else Every.parse(form.every).seconds
    words = explain(form.cron) if form.cron is not None else f"every {span(every or 0)}"
    timed = schedule or Schedule(SOME_NAME, SOME_TASK, now)
    return words, runs_of(timed.evolve(cron=form.cron, every=every, timezone=form.tz or "UTC"), now, RUNS_CHECKED)


def _problems(caller: Caller, form: ScheduleCheck) -> list[dict[str, str]]:
    """What is wrong with it beside its time; what was refused is left out, to see the rest."""
    given, found = form.options(), list[dict[str, str]]()
    for name in ("cron", "every", "tz"):
        given.pop(name, None)
    while True:
        try:
            _plan(caller, **given)
        except (ConfigError, InvalidInput, NotPossible, UnknownTask) as error:
            parts = error.parts if isinstance(error, InvalidPayload) else ()
            found += [{"field": field, "problem": problem} for field, problem in parts] or [_problem(error)]
            if given.pop(found[-1]["field"].partition(".")[0], None) is None:
                return found
        else:
            return found


def _plan(caller: Caller, *, id: str | None = None, **given: Any) -> None:
    """Make it as far as it goes without writing it; at some time, since its own was looked at already."""
    name, task = given.pop("name", SOME_NAME), given.pop("task", None)
    queue, payload = given.pop("queue", None), given.pop("payload", None)
    if task is not None or queue is not None:
        queue = caller.queue_for(task or SOME_TASK, queue)
    checked = bool(caller.tasks.tasks) and task is not None
    plan = caller.app.schedules.plan
    plan(name, task or SOME_TASK, payload, of=id, queue=queue, every="1d", checked=checked, **given)


def _problem(error: Exception) -> dict[str, str]:
    """One thing that is wrong, and the field it is about."""
    match error:
        case InvalidInput():
            return {"field": error.field, "problem": error.problem}
        case UnknownTask():
            return {"field": "task", "problem": str(error)}
        case NotPossible():
            return {"field": "name", "problem": str(error)}
        case _:
            field, _, problem = str(error).partition(": ")
            return {"field": field, "problem": problem}
