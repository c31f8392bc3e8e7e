"""What stands beside the jobs: pauses, queues, workers, tasks, rates, audit, costs, tokens."""

from datetime import date
from typing import Annotated, Any

from fastapi import APIRouter, Query

from treadle.app.operations import MOST_DAYS
from treadle.app.reading import past_from, soon_from
from treadle.app.top import overview, overview_view
from treadle.app.views import (
    about_view,
    budgets_view,
    crew_view,
    failures_view,
    pause_view,
    record_view,
    report_view,
    status_view,
    task_view,
    token_view,
    trail_view,
    worker_view,
)
from treadle.errors import NotPossible
from treadle.model.records import ANY, Pause
from treadle.server.caller import Admin, Anybody, Caller, Operator, Reader
from treadle.server.forms import AuditQuery, FailureQuery, Name, PauseForm, ReasonForm, Span, TokenForm
from treadle.server.strict import StrictRoute

router = APIRouter(route_class=StrictRoute)


@router.get("/about", tags=["overview"])
def about(caller: Anybody) -> dict[str, Any]:
    """Which treadle this is, what time it has, and the words of its profile: what a client needs to speak with it."""
    return about_view(caller.tasks)


@router.get("/status", tags=["overview"])
def status(caller: Reader) -> dict[str, Any]:
    """What waits, runs and has ended in the last hour, by queue and task; `problems` are sentences."""
    return status_view(caller.every_queue.status())


@router.get("/overview", tags=["overview"])
def look(caller: Reader) -> dict[str, Any]:
    """What `treadle top` shows: the `headline` first, then queues, rates, running jobs, workers, what comes next."""
    return overview_view(overview(caller.every_queue), caller)


@router.get("/doctor", tags=["overview"])
def doctor(caller: Reader) -> dict[str, Any]:
    """What an operator should know about this store: errors, warnings and remarks, each a sentence."""
    findings = caller.whole.doctor()
    return {"ok": all(found.level != "error" for found in findings), "findings": [record_view(it) for it in findings]}


@router.get("/stats", tags=["overview"])
def stats(
    caller: Reader,
    span: Annotated[Span, Query()] = "1h",
    queue: Annotated[Name | None, Query()] = None,
    task: Annotated[Name | None, Query()] = None,
) -> dict[str, Any]:
    """How many jobs ended, by the minute, and how long they waited and ran."""
    return record_view(caller.whole.stats(span, queue=queue, task=task))


@router.get("/queues", tags=["overview"])
def queues(caller: Reader) -> dict[str, Any]:
    """The queues that hold jobs or had ends in the last hour, with how many are due and since when."""
    return {"queues": [record_view(group) for group in caller.app.status().queues if caller.reaches(group.queue)]}


@router.get("/failures", tags=["overview"])
def failures(caller: Reader, query: Annotated[FailureQuery, Query()]) -> dict[str, Any]:
    """What went wrong, by kind: jobs that failed for good, and jobs that will be tried again, the latest of each.

    `GET /jobs` and `POST /jobs/bulk` take the `fingerprint` of a group.
    """
    found = caller.app.failures(
        task=query.task,
        queue=caller.queue(query.queue),
        tenant=query.tenant,
        since=past_from(query.since, "since"),
        before=past_from(query.before, "before"),
        cursor=query.cursor,
    )
    return failures_view(found)


@router.get("/tasks", tags=["overview"])
def tasks(caller: Reader, name: Annotated[Name | None, Query()] = None) -> dict[str, Any]:
    """The tasks that the server's app has, or the one of this name, each with the JSON Schema of its payload."""
    known = caller.tasks.tasks
    return {"tasks": [task_view(known[one]) for one in sorted(known) if name in (None, one)]}


@router.get("/workers", tags=["workers"])
def workers(caller: Reader, silent: Annotated[bool, Query()] = False) -> dict[str, Any]:
    """The workers that are alive, as they last reported; `drain` says who has asked one to stop.

    With `silent` also those that were not heard of lately and did not say good-bye: they are kept for a day.
    """
    app = caller.whole
    return {"workers": crew_view(app.workers(silent=silent), app.drains(), app.engine.now())}


@router.post("/workers/{name}/drain", tags=["workers"], status_code=202)
def drain(caller: Operator, name: str, form: ReasonForm) -> dict[str, Any]:
    """Ask a worker to finish what it runs and to take no more; it hears of it with its next heartbeat."""
    return {"worker": worker_view(caller.whole.drain(name, actor=caller.actor, reason=form.reason))}


@router.get("/pauses", tags=["pauses"])
def pauses(caller: Reader) -> dict[str, Any]:
    """What is paused."""
    return {"pauses": [pause_view(pause) for pause in _pauses(caller)]}


@router.post("/pauses", tags=["pauses"], status_code=201)
def pause(caller: Operator, form: PauseForm) -> dict[str, Any]:
    """Let no such job be claimed; when this is answered, none will be."""
    made = caller.app.pause(
        **_scope(caller, form),
        until=soon_from(form.until, "until"),
        actor=caller.actor,
        reason=form.reason,
        revision=form.revision,
    )
    return {"pause": pause_view(made)}


@router.post("/pauses/resume", tags=["pauses"])
def resume(caller: Operator, form: PauseForm) -> dict[str, Any]:
    """Lift the pause of exactly this scope."""
    scope = _scope(caller, form)
    if caller.who.queues is not None:
        _check_paused(caller, scope)
    lifted = caller.app.resume(**scope, actor=caller.actor, reason=form.reason, revision=form.revision)
    return {"pause": pause_view(lifted)}


@router.get("/audit", tags=["audit"])
def audit(caller: Reader, query: Annotated[AuditQuery, Query()]) -> dict[str, Any]:
    """What was done to jobs, schedules, pauses and tokens, newest first."""
    page = caller.every_queue.audit_page(
        limit=query.limit,
        cursor=query.cursor,
        tenant=query.tenant,
        actor=query.actor,
        kind=query.kind,
        job_id=query.job,
        since=past_from(query.since, "since"),
        until=past_from(query.until, "until"),
        by_hand=query.by_hand,
    )
    return {"events": trail_view(page.events), "cursor": page.cursor}


@router.get("/audit/verify", tags=["audit"])
def verify_audit(caller: Reader, tenant: Annotated[Name | None, Query()] = None) -> dict[str, Any]:
    """Whether the sealed events are as they were, and how many are not sealed yet. It reads all of them."""
    return report_view(caller.every_queue.verify_audit(tenant=tenant))


@router.get("/costs", tags=["overview"])
def costs(
    caller: Reader,
    day: Annotated[date | None, Query()] = None,
    days: Annotated[int, Query(ge=1, le=MOST_DAYS)] = 1,
    tenant: Annotated[Name | None, Query()] = None,
) -> dict[str, Any]:
    """What the jobs that ended on these days have cost, by tenant and task."""
    return {"costs": [record_view(cost) for cost in caller.every_queue.costs(day, days=days, tenant=tenant)]}


@router.get("/budgets", tags=["overview"])
def budgets(caller: Reader, tenant: Annotated[Name | None, Query()] = None) -> dict[str, Any]:
    """What each tenant that has a budget has spent of it today, in millionths, and whether that has paused it.

    `state` is `within`, `near` (80 per cent and more) or `spent`; `others` is the budget of each tenant that is
    not named. The budgets are those of the server's settings: give it the same as the workers.
    """
    return budgets_view(caller.every_queue.budgets(tenant=tenant))


@router.get("/tokens", tags=["tokens"])
def tokens(caller: Admin) -> dict[str, Any]:
    """All tokens, without their secrets, which nobody has but their owners."""
    return {"tokens": [token_view(token) for token in caller.whole.tokens.list()]}


@router.post("/tokens", tags=["tokens"], status_code=201)
def create_token(caller: Admin, form: TokenForm) -> dict[str, Any]:
    """Make a token. `secret` is what a client sends; it is shown this once."""
    made = caller.whole.tokens.create(
        form.label,
        scopes=form.scopes,
        tenant=form.tenant,
        queues=form.queues,
        expires=soon_from(form.expires, "expires"),
        actor=caller.actor,
    )
    return {"token": token_view(made.token), "secret": made.secret}


@router.post("/tokens/{name}/revoke", tags=["tokens"])
def revoke_token(caller: Admin, name: str, form: ReasonForm) -> dict[str, Any]:
    """Let a token be used no more."""
    return {"token": token_view(caller.whole.tokens.revoke(name, actor=caller.actor, reason=form.reason))}


def _pauses(caller: Caller) -> list[Pause]:
    return [pause for pause in caller.app.pauses() if pause.queue == ANY or caller.reaches(pause.queue)]


def _check_paused(caller: Caller, scope: dict[str, Any]) -> None:
    """NotPossible if there is no such pause; in the app's own words, it would name the pauses of all queues."""
    wanted = (scope.get("tenant", caller.who.tenant or ANY), scope["queue"], scope.get("task", ANY))
    there = _pauses(caller)
    if not any(pause[:3] == wanted for pause in there):
        scopes = "; ".join(pause.scope for pause in there) or "nothing"
        raise NotPossible(f"{Pause(*wanted).scope} is not paused by itself; paused: {scopes}")


def _scope(caller: Caller, form: PauseForm) -> dict[str, Any]:
    scope = {name: value for name in ("tenant", "queue", "task") if (value := getattr(form, name)) is not None}
    if (queue := caller.queue(form.queue)) is not None:
        scope["queue"] = queue
    return {**scope, "everything": form.everything}
