"""One job: why it does not run or what went wrong, what happened when, who did what; and every act on it."""

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import APIRouter, Query, Request, Response

from treadle.errors import InvalidInput, InvalidPayload, JobNotFound
from treadle.server import jobs as api
from treadle.server import overview as overview_api
from treadle.server import schedules as schedules_api
from treadle.server.caller import Caller
from treadle.server.dashboard import job_story as story
from treadle.server.dashboard.page import ERRORS, PageOperator, PageReader, PageRoute, go, now, refusal, render
from treadle.server.dashboard.posted import Posted, PostedFields, read_into
from treadle.server.dashboard.schedule_rows import schedule_path
from treadle.server.dashboard.schema_form import ABSENT, FormField, at_fields, form_of, read
from treadle.server.dashboard.timeline import timeline
from treadle.server.dashboard.tree import tree_of
from treadle.server.dashboard.words import Row
from treadle.server.forms import ActForm, AuditQuery, EditForm, RetryForm, ScheduleQuery
from treadle.server.problems import Refused

router = APIRouter(route_class=PageRoute)

ActName = Literal["retry", "edit", "cancel", "run-now", "delete"]
LARGEST_FORM = 40_000  # characters of a payload that a page has room for
STALE = 409


@router.get("/jobs/{job_id}")
def show(caller: PageReader, request: Request, job_id: str, act: Annotated[ActName | None, Query()] = None) -> Response:
    """Everything about one job; the first digits of its id are enough."""
    try:
        return _page(caller, request, job_id, act)
    except JobNotFound as error:
        return _deleted(caller, request, error)


@router.post("/jobs/{job_id}/retry")
def retry(caller: PageOperator, request: Request, job_id: str, posted: Posted) -> Response:
    """Run a job again."""

    def act(caller: Caller) -> Row:
        return api.retry(caller, job_id, read_into(RetryForm, **_budget(posted), **_given(posted)))

    return _do(caller, request, job_id, "retry", posted, act)


@router.post("/jobs/{job_id}/cancel")
def cancel(caller: PageOperator, request: Request, job_id: str, posted: Posted) -> Response:
    """Cancel a job that waits, or ask one that runs to stop."""

    def act(caller: Caller) -> Row:
        return api.cancel(caller, job_id, read_into(ActForm, **_given(posted)))

    return _do(caller, request, job_id, "cancel", posted, act)


@router.post("/jobs/{job_id}/run-now")
def run_now(caller: PageOperator, request: Request, job_id: str, posted: Posted) -> Response:
    """Let a job run now that is due later."""

    def act(caller: Caller) -> Row:
        return api.run_now(caller, job_id, read_into(ActForm, **_given(posted)))

    return _do(caller, request, job_id, "run-now", posted, act)


@router.post("/jobs/{job_id}/delete")
def delete(caller: PageOperator, request: Request, job_id: str, posted: Posted) -> Response:
    """Delete a job; this page wants to know why, since nothing brings it back."""

    def act(caller: Caller) -> Row:
        given = read_into(ActForm, **_given(posted))
        posted.demand_reason("say why, for those who look for it later; nothing brings it back")
        return api.delete(caller, job_id, given.reason, given.revision)

    return _do(caller, request, job_id, "delete", posted, act)


@router.post("/jobs/{job_id}/edit")
def edit(caller: PageOperator, request: Request, job_id: str, posted: Posted) -> Response:
    """Change a job that waits: payload, queue, lane, priority, time. Or retry one that ended with another payload."""

    def act(caller: Caller) -> Row:
        if posted.get("revision") is None:
            raise InvalidInput("revision", "is not there; load the page again")
        job = api.show_job(caller, job_id, 1)["job"]
        payload = _typed_payload(_edited(caller, job).form, posted)
        given = _given(posted) if payload is ABSENT else {**_given(posted), "payload": payload}
        if job["state"] == "pending":
            return api.edit(caller, job_id, read_into(EditForm, **given, **_changed(job, posted)))
        return api.retry(caller, job_id, read_into(RetryForm, **_budget(posted), **given))

    return _do(caller, request, job_id, "edit", posted, act)


# ---------------------------------------------------------------------------------------------- acting


def _do(
    caller: Caller,
    request: Request,
    job_id: str,
    act: ActName,
    posted: PostedFields,
    do: Callable[[Caller], Row],
) -> Response:
    """Act, and lead to the job; or show the form again, with what was typed and why it was refused."""
    try:
        job = do(caller)["job"]
    except JobNotFound:
        raise
    except ERRORS as error:
        return _page(caller, request, job_id, act, refusal(request, error), posted)
    has_page = act != "delete" or caller.who.queues is None
    return go(request, f"/jobs/{job['id']}" if has_page else "/jobs")


def _budget(posted: PostedFields) -> dict[str, Any]:
    """Whether it is run once more only, not with a fresh budget of attempts."""
    return {"keep_attempts": True if posted.get("attempts") == "one" else None}


def _given(posted: PostedFields) -> dict[str, Any]:
    """What every act takes: why, and the revision that was looked at, or the one that it is meant for all the same."""
    over = "over" in posted
    return {"reason": posted.get("reason"), "revision": posted.number("over" if over else "revision")}


def _typed_payload(form: FormField | None, posted: PostedFields) -> Any:
    """The payload that was typed; ABSENT if it is as it was."""
    if form is None:
        return ABSENT
    payload, problems = read(form, posted.lists)
    if problems:
        first = problems[0]
        raise InvalidPayload(first.field, first.problem, [(one.field, one.problem) for one in problems])
    return ABSENT if payload == form.original and _same(payload, form.original) else payload


def _same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON: 1, 1.0 and true are not."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _changed(job: Row, posted: PostedFields) -> dict[str, Any]:
    """What is to be changed of a job that waits, beside its payload."""
    changed: dict[str, Any] = {"run_after": posted.get("run_after")}
    for name in ("queue", "lane"):
        typed = posted.lists.get(name)
        if typed and typed[-1] != job[name]:
            changed[name] = typed[-1]
    priority = posted.number("priority")
    if priority != job["priority"]:
        changed["priority"] = priority
    return changed


# --------------------------------------------------------------------------------------------- looking


class PayloadForm(NamedTuple):
    """The form of a payload; without one, `why_not` says why there is none."""

    form: FormField | None
    schema: Row | None
    why_not: str = ""
    checked: bool = True


def _page(
    caller: Caller,
    request: Request,
    job_id: str,
    act: ActName | None = None,
    problem: Row | None = None,
    posted: PostedFields | None = None,
) -> Response:
    found = api.show_job(caller, job_id, story.MOST_EVENTS + 1)
    job, events, attempts = found["job"], found["events"], found["attempts"]
    at = now(caller)
    edited = _edited(caller, job)
    pauses = overview_api.pauses(caller)["pauses"]
    obstacles = api.why(caller, job["id"])["obstacles"]
    acts = story.acts(job, at, edited.why_not)
    return render(
        request,
        "job.html",
        caller,
        status=problem["status"] if problem else 200,
        at=at,
        job=job,
        schedule=_schedule(caller, job),
        attempts=attempts[-story.MOST_ATTEMPTS :],
        attempts_before=story.before(attempts, story.MOST_ATTEMPTS),
        events=events[-story.MOST_EVENTS :],
        events_before=len(events) > story.MOST_EVENTS,
        why=story.why(job, obstacles, pauses, events),
        line=timeline(job, attempts, at),
        payload=tree_of(job["payload"], edited.schema),
        result=None if job["result"] is None else tree_of(job["result"]),
        acts=acts,
        refusals=story.refusals(acts),
        act=next((one for one in acts if one.name == act), None),
        edited=edited,
        problem=problem,
        wrong=_wrong(edited, act, problem),
        stale=_stale(job, events, posted) if problem and problem["status"] == STALE else None,
        typed=_typed(posted),
    )


def _schedule(caller: Caller, job: Row) -> str | None:
    """The page of the schedule that has made it, if that is still there."""
    if job["schedule"] is None:
        return None
    query = read_into(ScheduleQuery, name=job["schedule"], tenant=job["tenant"], limit=1)
    found = schedules_api.list_schedules(caller, query)["schedules"]
    return schedule_path(caller, job["schedule"], job["tenant"], found[0]["id"]) if found else None


def _edited(caller: Caller, job: Row) -> PayloadForm:
    """How its payload can be edited here: by the schema of its task, or as JSON where no code is at hand."""
    of_task = overview_api.tasks(caller, job["task"])["tasks"]
    schema = of_task[0]["payload_schema"] if of_task else None
    if len(json.dumps(job["payload"])) > LARGEST_FORM:
        return PayloadForm(None, schema, "its payload is too large for a form: give another one on the command line")
    if not of_task and overview_api.tasks(caller)["tasks"]:
        return PayloadForm(None, None, f"the server's app has no task {job['task']}, which could check another payload")
    return PayloadForm(form_of(schema, job["payload"]), schema, checked=bool(of_task))


def _wrong(edited: PayloadForm, act: str | None, problem: Row | None) -> dict[str, list[str]]:
    """What is wrong, by the name of the field that it is about; under "" what is about none of them."""
    if problem is None:
        return {}
    problems = problem.get("problems") or [{"field": str(problem.get("field", "")), "problem": problem["detail"]}]
    own = [one for one in problems if one["field"] in ("reason", "queue", "lane", "priority", "run_after")]
    wrong = {one["field"]: [one["problem"].removeprefix(f"{one['field']}: ")] for one in own}
    rest = [one for one in problems if one not in own]
    if act == "edit" and edited.form is not None and problem.get("error") == "InvalidPayload":
        return {**at_fields(edited.form, rest), **wrong}
    return {**wrong, **({"": [str(problem["detail"])]} if rest else {})}


def _stale(job: Row, events: list[Row], posted: PostedFields | None) -> dict[str, Any] | None:
    """Who has changed the job since it was looked at; None if nobody has."""
    try:
        seen = posted.number("revision") if posted is not None else None
    except InvalidInput:
        return None
    if seen is None or seen == job["revision"]:
        return None
    return {"seen": seen, "events": [event for event in events if event["revision"] > seen][-5:]}


def _typed(posted: PostedFields | None) -> dict[str, str]:
    """What was typed, by the name of its field."""
    return {} if posted is None else {name: values[-1] for name, values in posted.lists.items()}


def _deleted(caller: Caller, request: Request, error: JobNotFound) -> Response:
    """What became of a job that is no longer there, as far as the audit trail tells; else the error itself."""
    try:
        events = overview_api.audit(caller, read_into(AuditQuery, job=error.job_id, limit=20))["events"]
    except Refused:  # who is bound to queues is not told of jobs that they could not look at
        raise error from None
    if not events or events[0]["kind"] != "deleted":
        raise error
    return render(request, "job_deleted.html", caller, at=now(caller), id=error.job_id, events=events)
