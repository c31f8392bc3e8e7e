"""`/jobs`: list, look at, store and act on jobs."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel

from treadle.app.bulk import BulkReport
from treadle.app.enqueue import enqueue_outcome, policies
from treadle.app.reading import past_from, soon_from
from treadle.app.views import (
    attempts_view,
    event_view,
    page_view,
    record_view,
)
from treadle.errors import InvalidInput, InvalidJob, KeyTaken, NotPossible, UnknownTask
from treadle.model import Job, new_id
from treadle.model.checks import trace_from
from treadle.server.caller import Caller, Operator, Producer, Reader, key_taken_elsewhere
from treadle.server.confirm import Confirmations
from treadle.server.forms import ActForm, BulkFilter, BulkForm, CountQuery, EditForm, JobQuery, Limit, NewJob, RetryForm
from treadle.server.problems import Refused
from treadle.server.repeats import MAX_IDEMPOTENCY_KEY, check_repeat, other_request, repeated_id
from treadle.server.strict import StrictRoute
from treadle.tasks.options import Unique
from treadle.tasks.task import Task

router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=StrictRoute)

JobDocument = dict[str, Any]


@router.get("")
def list_jobs(caller: Reader, query: Annotated[JobQuery, Query()]) -> JobDocument:
    """Jobs, newest first; go on with the `cursor` of the page before.

    What is looked for job by job, such as a `text` in the payload, may give a short or an empty page with a cursor;
    `looked` and `back_to` say how far it has looked.
    """
    page = caller.app.find(
        state=query.state,
        task=query.task,
        queue=caller.queue(query.queue),
        tenant=query.tenant,
        key=query.key,
        lane=query.lane,
        error=query.error,
        fingerprint=query.fingerprint,
        text=query.text,
        since=past_from(query.since, "since"),
        before=past_from(query.before, "before"),
        limit=query.limit,
        cursor=query.cursor,
    )
    return page_view(caller, page)


@router.get("/count")
def count(caller: Reader, query: Annotated[CountQuery, Query()]) -> JobDocument:
    """How many jobs there are by state: exact up to 50,000 of a state, those of `estimates` above that.

    `labels` say how many of the pending jobs are scheduled and retrying: at least so many, if `pending` is an estimate.
    """
    return caller.app.counts(task=query.task, queue=caller.queue(query.queue), tenant=query.tenant, lane=query.lane)


@router.post("", status_code=201)
def enqueue(
    caller: Producer,
    form: NewJob,
    idempotency_key: Annotated[str | None, Header(max_length=MAX_IDEMPOTENCY_KEY)] = None,
    traceparent: Annotated[str | None, Header()] = None,
    tracestate: Annotated[str | None, Header()] = None,
) -> JobDocument:
    """Store a job; its payload is checked against the task. With an Idempotency-Key a repeat makes no second job.

    The job belongs to the trace that the W3C headers name. A caller who may not read is told the id of the job only.
    """
    caller.check_open()
    has_app = bool(caller.tasks.tasks)  # a server without one knows no task: the worker checks the payload
    task = _task(caller, form.task, checked=has_app)
    options = {**_new_job(caller, form), "trace": trace_from(traceparent, tracestate)}
    if idempotency_key is not None and form.id is not None:
        raise InvalidInput("id", "an id of yours makes repeats safe already: leave out either it or Idempotency-Key")
    id_ = None if idempotency_key is None else repeated_id(caller, idempotency_key)
    options |= policies(
        task.options,
        key=form.key,
        max_attempts=form.max_attempts,
        unique=form.unique,
        window=form.window,
        on_conflict=form.on_conflict,
    )
    own_id, before = id_ or form.id or new_id(), caller.tasks.engine.now()
    try:
        job = caller.app.enqueue(form.task, form.payload, checked=has_app, id=own_id, **options)
    except KeyTaken as error:
        raise caller.key_taken(error) from None
    except InvalidJob as error:
        if error.field != "id":
            raise
        if id_ is not None:
            raise other_request() from None
        raise _id_taken() if caller.who.queues is not None else error from None
    if job.id == id_:
        check_repeat(caller, form, task, job)
    if not caller.reaches(job.queue):
        raise _id_taken() if job.id == form.id else key_taken_elsewhere(form.key)
    view = caller.view(job)
    if "read" not in caller.who.scopes:
        return {"job": {name: it for name, it in view.items() if it == job.id}}
    policy: Unique = options.get("unique", task.options.unique)
    return {"job": view, "outcome": enqueue_outcome(job, own_id, before, policy.on_conflict)}


@router.post("/bulk")
def act_on_many(caller: Operator, request: Request, form: BulkForm) -> JobDocument:
    """Retry, cancel or delete all jobs that fit. Without `confirm` they are counted, and the answer has one.

    The `reason` may come with the `confirm`. With `expect` nothing is done if another number of jobs fits by then.
    """
    confirmations: Confirmations = request.app.state.confirmations
    meant = f"{caller.identity} {form.model_dump_json(exclude={'confirm', 'expect', 'reason'})}"
    act, which = _bulk_act(caller, form), _which(caller, form.filter)
    if form.confirm is None or form.expect is not None:
        found = act(**which, dry_run=True)
        if form.expect not in (None, found.found):
            changed = f"{found.found:,} fit now, not {form.expect:,}: look at them, and confirm that number"
            raise Refused(409, changed, field="expect", found=found.found)
    if form.confirm is None:
        return {"dry_run": True, **_report(caller, found), "confirm": confirmations.make(meant)}
    if not confirmations.check(meant, form.confirm):
        raise Refused(409, "this `confirm` is not of the same act, or is older than 10 minutes; count again first")
    return {"dry_run": False, **_report(caller, act(**which, actor=caller.actor, reason=form.reason))}


@router.get("/{job_id}")
def show_job(caller: Reader, job_id: str, events: Annotated[Limit | None, Query()] = None) -> JobDocument:
    """Everything about one job, with its history and attempts; the first digits of its id are enough.

    With `events`, the last so many of both: a job that is put off again and again has thousands.
    """
    job = caller.job(job_id)
    found = caller.app.masked_events(job, caller.app.events(job.id, latest=events))
    shown = {"job": caller.view(job), "events": [event_view(event) for event in found]}
    return {**shown, "attempts": attempts_view(caller.app.masked(job), found, latest=events)}


@router.get("/{job_id}/why")
def why(caller: Reader, job_id: str) -> JobDocument:
    """Why the job is not running, the firmest reason first."""
    job = caller.job(job_id)
    obstacles = caller.app.why(job.id, queues=caller.who.queues)
    return {"job": caller.view(job), "obstacles": [record_view(found) for found in obstacles]}


@router.post("/{job_id}/retry")
def retry(caller: Operator, job_id: str, form: RetryForm) -> JobDocument:
    """Run a failed or cancelled job again, maybe with another payload, which is checked against the task."""
    job = caller.job(job_id)
    payload = _payload(form)
    try:
        retried = caller.app.retry(job.id, keep_attempts=form.keep_attempts, payload=payload, **_act(caller, form))
    except NotPossible as error:
        raise NotPossible(_own_words(caller, str(error))) from None
    return _done(caller, retried)


@router.post("/{job_id}/cancel")
def cancel(caller: Operator, job_id: str, form: ActForm) -> JobDocument:
    """Cancel a waiting job, or ask a running one to stop."""
    return _done(caller, caller.app.cancel(caller.job(job_id).id, **_act(caller, form)))


@router.post("/{job_id}/run-now")
def run_now(caller: Operator, job_id: str, form: ActForm) -> JobDocument:
    """Let a job run now that is due later."""
    return _done(caller, caller.app.run_now(caller.job(job_id).id, **_act(caller, form)))


@router.patch("/{job_id}")
def edit(caller: Operator, job_id: str, form: EditForm) -> JobDocument:
    """Give a waiting job another queue, lane, priority, due time or payload."""
    fields = {**_given(form, "lane", "priority"), "payload": _payload(form)}
    if form.queue is not None:
        fields["queue"] = caller.queue(form.queue)
    if form.run_after is not None:
        fields["run_after"] = soon_from(form.run_after, "run_after")
    return _done(caller, caller.app.edit(caller.job(job_id).id, **fields, **_act(caller, form)))


@router.delete("/{job_id}")
def delete(
    caller: Operator,
    job_id: str,
    reason: Annotated[str, Query(max_length=2000)] = "",
    revision: Annotated[int | None, Query()] = None,
) -> JobDocument:
    """Delete a job that waits or has ended, with its payload; the audit trail keeps who did it."""
    deleted = caller.app.delete(caller.job(job_id).id, actor=caller.actor, reason=reason, revision=revision)
    return _done(caller, deleted)


# ------------------------------------------------------------------------------------------------ helpers


def _act(caller: Caller, form: ActForm) -> dict[str, Any]:
    """Who acts, why, and on which revision of the job."""
    return {"actor": caller.actor, "reason": form.reason, "revision": form.revision}


def _done(caller: Caller, job: Job) -> JobDocument:
    return {"job": caller.view(job)}


def _task(caller: Caller, name: str, *, checked: bool) -> Task[..., Any]:
    """The task of this name; who may not read is not told what others there are."""
    try:
        return caller.tasks.tasks.named(name, checked=checked)
    except UnknownTask:
        if "read" in caller.who.scopes:
            raise
    raise Refused(422, f"no task {name!r} is registered here", field="task", error="UnknownTask")


def _new_job(caller: Caller, form: NewJob) -> dict[str, Any]:
    """The options of a new job, as `Task.using` takes them."""
    options = _given(form, "tenant", "lane", "priority", "key", "timeout")
    if (queue := caller.queue_for(form.task, form.queue)) is not None:
        options["queue"] = queue
    for name in ("run_after", "expires_at"):
        if (text := getattr(form, name)) is not None:
            options[name] = soon_from(text, name)
    if form.key is not None and caller.who.queues is not None:  # before it could be replaced
        tenant = form.tenant or caller.who.tenant or "default"
        for holder in caller.app.find(task=form.task, key=form.key, tenant=tenant, limit=10).jobs:
            if not holder.state.final and not caller.reaches(holder.queue):
                raise key_taken_elsewhere(form.key)
    return options


def _id_taken() -> InvalidInput:
    return InvalidInput("id", "is that of another job; choose a new one, or leave it out")


def _given(form: BaseModel, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(form, name)) is not None}


def _payload(form: RetryForm | EditForm) -> Any:
    """The payload that takes the place of another; None if there is none."""
    if form.payload is None and "payload" in form.model_fields_set:
        raise InvalidInput("payload", "null is not a payload; leave it out to keep the one that is there")
    return form.payload


def _bulk_act(caller: Caller, form: BulkForm) -> Any:
    app = caller.app
    if form.action == "retry":
        return lambda **options: app.retry_many(**options, keep_attempts=form.keep_attempts)
    return app.cancel_many if form.action == "cancel" else app.delete_many


def _which(caller: Caller, given: BulkFilter) -> dict[str, Any]:
    if given.ids is not None:
        if given.model_fields_set != {"ids"}:
            raise InvalidInput("filter.ids", "name jobs by their ids, or by the other filters, not both")
        return {"ids": _ids(caller, given.ids)}
    which = _given(given, "state", "task", "tenant", "key", "lane", "error", "fingerprint")
    which |= {name: past_from(text, f"filter.{name}") for name, text in _given(given, "since", "before").items()}
    if (queue := caller.queue(given.queue)) is not None:
        which["queue"] = queue
    return {**which, "everything": given.everything}


def _ids(caller: Caller, given: Sequence[str]) -> list[str]:
    """Whole ids. That a job is not there is told by the report; who is bound must name their own."""
    if not caller.who.whole:
        return [caller.job(one).id for one in given]
    return [caller.app.resolve_id(one) for one in given]


def _report(caller: Caller, report: BulkReport) -> dict[str, Any]:
    problems = [problem._replace(why=_own_words(caller, problem.why)) for problem in report.problems]
    return record_view(report._replace(problems=problems))


def _own_words(caller: Caller, why: str) -> str:
    """Why something was not possible; the job that holds a key may be on a queue that is not theirs."""
    return why if caller.who.queues is None else why.partition(" by job ")[0]
