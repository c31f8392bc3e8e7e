"""`/jobs`: list, look at, store and act on jobs."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel

from treadle.app.bulk import BulkReport
from treadle.app.reading import past_from, soon_from
from treadle.app.views import event_view, record_view
from treadle.errors import InvalidInput, InvalidJob, NotPossible
from treadle.model import Job
from treadle.server.caller import Caller, Operator, Producer, Reader
from treadle.server.confirm import Confirmations
from treadle.server.forms import ActForm, BulkFilter, BulkForm, EditForm, JobQuery, NewJob, RetryForm
from treadle.server.problems import Refused
from treadle.server.repeats import MAX_IDEMPOTENCY_KEY, check_repeat, other_request, repeated_id
from treadle.server.strict import StrictRoute

router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=StrictRoute)

JobDocument = dict[str, Any]


@router.get("")
def list_jobs(caller: Reader, query: Annotated[JobQuery, Query()]) -> JobDocument:
    """Jobs, newest first; go on with the `cursor` of the page before."""
    page = caller.app.find(
        state=query.state,
        task=query.task,
        queue=caller.queue(query.queue),
        tenant=query.tenant,
        key=query.key,
        error=query.error,
        since=past_from(query.since, "since"),
        before=past_from(query.before, "before"),
        limit=query.limit,
        cursor=query.cursor,
    )
    return {"jobs": [caller.app.view(job) for job in page.jobs], "cursor": page.cursor}


@router.post("", status_code=201)
def enqueue(
    caller: Producer,
    form: NewJob,
    idempotency_key: Annotated[str | None, Header(max_length=MAX_IDEMPOTENCY_KEY)] = None,
) -> JobDocument:
    """Store a job; its payload is checked against the task. With an Idempotency-Key a repeat makes no second job.

    Who may not read is told the id of the job, and no more.
    """
    if "api" not in caller.tasks.settings.enqueue_allow:
        raise Refused(403, "enqueueing over the API is closed: the setting enqueue_allow leaves out api")
    has_app = bool(caller.tasks.tasks)  # a server without one knows no task: the worker checks the payload
    task = caller.tasks.tasks.named(form.task, checked=has_app)
    options = _new_job(caller, form)
    id_ = None if idempotency_key is None else repeated_id(caller, idempotency_key)
    try:
        job = caller.app.enqueue(form.task, form.payload, checked=has_app, id=id_, **options)
    except InvalidJob as error:
        if id_ is not None and error.field == "id":
            raise other_request() from None
        raise
    if job.id == id_:
        check_repeat(caller, form, task, job)
    if not caller.reaches(job.queue):
        raise _key_taken(form)
    view = caller.app.view(job)
    return {"job": view if "read" in caller.who.scopes else {name: it for name, it in view.items() if it == job.id}}


@router.post("/bulk")
def act_on_many(caller: Operator, request: Request, form: BulkForm) -> JobDocument:
    """Retry, cancel or delete all jobs that fit. Without `confirm` they are counted, and the answer has one."""
    confirmations: Confirmations = request.app.state.confirmations
    meant = f"{caller.identity} {form.model_dump_json(exclude={'confirm'})}"
    act, which = _bulk_act(caller, form), _which(caller, form.filter)
    if form.confirm is None:
        found = act(**which, dry_run=True)
        return {"dry_run": True, **_report(caller, found), "confirm": confirmations.make(meant)}
    if not confirmations.check(meant, form.confirm):
        raise Refused(409, "this `confirm` is not of the same act, or is older than 10 minutes; count again first")
    return {"dry_run": False, **_report(caller, act(**which, actor=caller.actor, reason=form.reason))}


@router.get("/{job_id}")
def show_job(caller: Reader, job_id: str) -> JobDocument:
    """Everything about one job, with its history; the first digits of its id are enough."""
    job = caller.job(job_id)
    return {"job": caller.app.view(job), "events": [event_view(event) for event in caller.app.events(job.id)]}


@router.get("/{job_id}/why")
def why(caller: Reader, job_id: str) -> JobDocument:
    """Why the job is not running, the firmest reason first."""
    job = caller.job(job_id)
    obstacles = caller.app.why(job.id, queues=caller.who.queues)
    return {"job": caller.app.view(job), "obstacles": [record_view(found) for found in obstacles]}


@router.post("/{job_id}/retry")
def retry(caller: Operator, job_id: str, form: RetryForm) -> JobDocument:
    """Run a failed or cancelled job again."""
    job = caller.job(job_id)
    try:
        retried = caller.app.retry(job.id, keep_attempts=form.keep_attempts, **_act(caller, form))
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
    """Give a waiting job another queue, lane, priority or due time."""
    fields = _given(form, "lane", "priority")
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
    return {"job": caller.app.view(job)}


def _new_job(caller: Caller, form: NewJob) -> dict[str, Any]:
    """The options of a new job, as `Task.using` takes them."""
    options = _given(form, "tenant", "lane", "priority", "key", "unique", "timeout")
    if (queue := caller.queue_for(form.task, form.queue)) is not None:
        options["queue"] = queue
    for name in ("run_after", "expires_at"):
        if (text := getattr(form, name)) is not None:
            options[name] = soon_from(text, name)
    if form.key is not None and caller.who.queues is not None:  # before it could be replaced
        tenant = form.tenant or caller.who.tenant or "default"
        for holder in caller.app.find(task=form.task, key=form.key, tenant=tenant, limit=10).jobs:
            if not holder.state.final and not caller.reaches(holder.queue):
                raise _key_taken(form)
    return options


def _key_taken(form: NewJob) -> Refused:
    return Refused(409, f"key {form.key!r} is held by a job on a queue that your token is not for", error="KeyTaken")


def _given(form: BaseModel, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(form, name)) is not None}


def _bulk_act(caller: Caller, form: BulkForm) -> Any:
    app = caller.app
    if form.action == "retry":
        return lambda **options: app.retry_many(**options, keep_attempts=form.keep_attempts)
    return app.cancel_many if form.action == "cancel" else app.delete_many


def _which(caller: Caller, given: BulkFilter) -> dict[str, Any]:
    if given.ids is not None:
        if given.model_fields_set != {"ids"}:
            raise InvalidInput("filter.ids", "name jobs by their ids, or by the other filters, not both")
        return {"ids": [caller.job(one).id for one in given.ids]}
    which = _given(given, "state", "task", "tenant", "key", "error")
    which |= {name: past_from(text, f"filter.{name}") for name, text in _given(given, "since", "before").items()}
    if (queue := caller.queue(given.queue)) is not None:
        which["queue"] = queue
    return {**which, "everything": given.everything}


def _report(caller: Caller, report: BulkReport) -> dict[str, Any]:
    problems = [problem._replace(why=_own_words(caller, problem.why)) for problem in report.problems]
    return {**record_view(report), "problems": [record_view(problem) for problem in problems]}


def _own_words(caller: Caller, why: str) -> str:
    """Why something was not possible; the job that holds a key may be on a queue that is not theirs."""
    return why if caller.who.queues is None else why.partition(" by job ")[0]
