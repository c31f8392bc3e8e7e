"""THE state machine: pure functions from a job, what happened and the time, to a Change.

        enqueue            claim                            settle
    ───────────► pending ───────────────────────► running ───────────► succeeded | failed | cancelled
                 ▲  ▲  │ cancel, expire                │                         │
                 │  │  └─────────────► cancelled       │                         │
                 │  └── snooze, release, retry, crash ─┘                         │
                 └────────────────────── retry by an operator ───────────────────┘

    An operator may also edit a pending job, and delete one that is not running.

Nothing here reads a clock, draws a number or touches a store.
"""

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from treadle.errors import NotPossible
from treadle.model import MESSAGE_CAP, PAYLOAD_CAP, Change, EventKind, Fence, FollowUp, Job, JobError, Reason, State
from treadle.model.edit import PAYLOAD_EDITED, Edit, NewPayload, new_payload
from treadle.model.job import checked
from treadle.model.records import derived_id

TOO_LATE = "it was asked to stop, and succeeded first"
FACTS = ("job_id", "task", "state", "reason", "error")
"""What a job that follows is told of the end of the one before, as its handler's parameters are called."""
RESULT = "result"
"""The parameter that is given the result, if there is one of this name."""


class Succeeded(NamedTuple):
    """The handler returned."""

    result_json: str | None = None


class Failed(NamedTuple):
    """The handler raised; `delay` overrides the backoff (RetryLater)."""

    error: JobError
    delay: float | None = None


class TimedOut(NamedTuple):
    """The attempt ran past its timeout: a failure with its own reason."""

    error: JobError


class FailedForGood(NamedTuple):
    """No further attempt can help: GiveUp, an unknown task, a payload or result that does not fit."""

    reason: Reason
    error: JobError


class Snoozed(NamedTuple):
    """Come back after `delay` seconds; spends nothing."""

    delay: float


class Released(NamedTuple):
    """Given back unrun or unfinished by a worker that stops; spends nothing."""


class Stopped(NamedTuple):
    """The handler ended itself with Cancelled, or was cancelled on request."""

    why: str


Outcome = Succeeded | Failed | TimedOut | FailedForGood | Snoozed | Released | Stopped


class Success(NamedTuple):
    """The end of a plain job that has succeeded: a change whose two halves are made only for whoever asks.

    Plain: it holds no key, nothing follows its end, nobody has asked it to stop, and the attempt has told neither
    progress nor cost. Then an engine can write the end from these values alone, behind the fence of the holder:
    running, token and revision. It writes what `change` says, at the store's time, or nothing.
    """

    id: str
    token: str
    revision: int
    started_at: datetime
    result_json: str | None
    job: Callable[[], Job]  # the job as the attempt leaves it

    def change(self, now: datetime) -> Change:
        """The same end as any other change."""
        return settle(self.job(), Succeeded(self.result_json), now)


def claim(job: Job, now: datetime, *, worker: str, token: str, lease: float) -> Change:
    """A worker takes a pending job for `lease` seconds. The specification of what every engine writes at a claim."""
    after = job.evolve(
        state=State.RUNNING,
        attempt=job.attempt + 1,
        revision=job.revision + 1,
        claimed_at=now,
        started_at=None,
        progress=None,
        worker=worker,
        lease_until=now + timedelta(seconds=lease),
        lease_token=token,
    )
    return Change(job, after, EventKind.CLAIMED, Fence.REVISION, now, worker)


def settle(job: Job, outcome: Outcome, now: datetime, *, noise: float = 0.0) -> Change:
    """How the holder's attempt ends. After a cancel request a success stays, any other way out ends cancelled."""
    actor = job.worker or "worker"
    match outcome:
        case Succeeded(result_json):
            note = TOO_LATE if job.cancel_requested else ""
            change = _finish(
                job, State.SUCCEEDED, None, EventKind.SUCCEEDED, now, actor, note, result_json=result_json, error=None
            )
            return change._replace(always_audited=True) if job.cancel_requested else change
        case Stopped(why):
            return _finish(job, State.CANCELLED, Reason.BY_REQUEST, EventKind.CANCELLED, now, actor, note=why)
        case _ if job.cancel_requested:
            error = getattr(outcome, "error", job.error)
            return _finish(job, State.CANCELLED, Reason.BY_REQUEST, EventKind.CANCELLED, now, actor, error=error)
        case FailedForGood(reason, error):
            return _finish(job, State.FAILED, reason, EventKind.FAILED, now, actor, error.message, error=error)
        case Failed(error, delay):
            return _fail(job, Reason.EXHAUSTED, error, delay, now, actor, noise)
        case TimedOut(error):
            return _fail(job, Reason.TIMEOUT, error, None, now, actor, noise)
        case Snoozed(delay):
            return _requeue(job, EventKind.SNOOZED, now, actor, due_at=now + timedelta(seconds=delay))
        case Released():
            return _requeue(job, EventKind.RELEASED, now, actor)


def whole(changes: Sequence[Change | Success], now: datetime) -> list[Change]:
    """These changes as values that have both halves."""
    return [change.change(now) if isinstance(change, Success) else change for change in changes]


def crash(job: Job, now: datetime, *, actor: str, message: str = "", count_claims: bool = False) -> Change:
    """The lease ran out. This costs an attempt only if the job had started and is a suspect.

    So a job that kills its worker ends, and the jobs beside it pay nothing. After a cancel request it ends cancelled.
    With `count_claims` every claim is an attempt: whoever loses it has spent one.
    """
    spent = 1 if count_claims or (job.suspect and job.started_at is not None) else 0
    failures = job.failures + spent
    message = message or f"the lease of worker {job.worker} ran out on attempt {job.attempt}"
    error = JobError("Crashed", message, "", job.attempt, now.isoformat())
    counted: dict[str, Any] = {"crashes": job.crashes + 1, "failures": failures, "error": error, "lease_token": None}
    if job.cancel_requested:
        change = _finish(job, State.CANCELLED, Reason.BY_REQUEST, EventKind.CANCELLED, now, actor, **counted)
    elif spent and failures >= job.max_attempts:
        change = _finish(job, State.FAILED, Reason.CRASHED, EventKind.FAILED, now, actor, message, **counted)
    else:
        change = _requeue(job, EventKind.CRASHED, now, actor, message, **counted)
    return change._replace(fence=Fence.RECOVERY)


def expire(job: Job, now: datetime, *, actor: str) -> Change:
    """A pending job whose `expires_at` has passed will not run."""
    return _finish(job, State.CANCELLED, Reason.EXPIRED, EventKind.EXPIRED, now, actor)._replace(fence=Fence.REVISION)


def cancel(job: Job, now: datetime, *, actor: str, note: str = "", only_pending: bool = False) -> Change:
    """Pending: cancelled at once. Running: asked to stop, if that is allowed. Final: not possible."""
    match job.state:
        case State.PENDING:
            change = _finish(job, State.CANCELLED, Reason.BY_REQUEST, EventKind.CANCELLED, now, actor, note)
            return change._replace(fence=Fence.REVISION)
        case State.RUNNING if only_pending:
            raise NotPossible(
                f"job {job.id} is running, and only pending jobs can be cancelled here (the setting cancel); it will "
                "finish or time out"
            )
        case State.RUNNING:
            after = job.evolve(cancel_requested=True, revision=job.revision + 1)
            return Change(job, after, EventKind.CANCEL_REQUESTED, Fence.RUNNING, now, actor, note)
        case State.SUCCEEDED | State.FAILED | State.CANCELLED:
            raise NotPossible(f"job {job.id} has already ended {job.state}; there is nothing to cancel")


def retry(
    job: Job,
    now: datetime,
    *,
    actor: str,
    note: str = "",
    keep_attempts: bool = False,
    payload: NewPayload | None = None,
) -> Change:
    """An operator's retry of a failed or cancelled job: a fresh budget, or with `keep_attempts` one more run.

    With a `payload` it runs with that one.
    """
    match job.state:
        case State.PENDING | State.RUNNING:
            raise NotPossible(f"job {job.id} is {job.state}; only a failed or cancelled job can be retried")
        case State.SUCCEEDED:
            raise NotPossible(f"job {job.id} succeeded; enqueue a new one to run it again")
        case State.FAILED | State.CANCELLED:
            after = job.evolve(
                state=State.PENDING,
                reason=None,
                due_at=now,
                expires_at=None,
                finished_at=None,
                worker=None,
                lease_token=None,
                cancel_requested=False,
                failures=max(job.failures, job.max_attempts - 1) if keep_attempts else 0,
                crashes=job.crashes if keep_attempts else 0,
                revision=job.revision + 1,
                **(edited := new_payload(job, payload)),
            )
            text = ": ".join(filter(None, (PAYLOAD_EDITED if edited else "", note)))[:MESSAGE_CAP]
            return Change(job, after, EventKind.RETRIED, Fence.REVISION, now, actor, text)


def replace(job: Job, new: Job, now: datetime, *, actor: str) -> Change:
    """A pending job takes over what a newer request of the same key asks for, keeping its id and history."""
    if job.state is not State.PENDING:
        raise NotPossible(f"job {job.id} is {job.state}; only a pending job can be replaced")
    after = job.evolve(
        payload_json=new.payload_json,
        task_version=new.task_version,
        queue=new.queue,
        lane=new.lane,
        priority=new.priority,
        due_at=max(new.due_at, now) if new.due_at > new.created_at else now,
        expires_at=new.expires_at,
        timeout=new.timeout,
        retry=new.retry,
        trace=new.trace,
        revision=job.revision + 1,
    )
    return Change(job, after, EventKind.REPLACED, Fence.REVISION, now, actor)


def edit(job: Job, wanted: Edit, now: datetime, *, actor: str, note: str = "") -> Change:
    """An operator gives a pending job another queue, lane, priority, due time or payload; NotPossible for any other."""
    if job.state is not State.PENDING:
        also = "; retry it with the new payload" if wanted.payload is not None and job.state.final else ""
        raise NotPossible(f"job {job.id} is {job.state}; only a pending job can be edited{also}")
    if wanted.due_at is not None:  # as at an enqueue: nothing is due before it was asked for
        wanted = wanted._replace(due_at=max(wanted.due_at, now))
    given = zip(Edit._fields[:-1], wanted[:-1], strict=True)
    fields = {field: value for field, value in given if value not in (None, getattr(job, field))}
    edited = new_payload(job, wanted.payload)
    if not fields and not edited:
        raise NotPossible(f"job {job.id} is so already; there is nothing to change")
    after = checked(job.evolve(**fields, **edited, revision=job.revision + 1))
    what = [f"{field} {_words(getattr(job, field))} to {_words(value)}" for field, value in fields.items()]
    what += [PAYLOAD_EDITED] if edited else []
    text = ": ".join(filter(None, (", ".join(what), note)))[:MESSAGE_CAP]
    return Change(job, after, EventKind.CHANGED, Fence.REVISION, now, actor, text)


def run_now(job: Job, now: datetime, *, actor: str, note: str = "") -> Change:
    """An operator lets a pending job that is due later run now; one that waits for its next attempt, too."""
    if job.state is State.PENDING and job.due_at <= now:
        raise NotPossible(f"job {job.id} is due already; `treadle why {job.id}` says what it waits for")
    return edit(job, Edit(due_at=now), now, actor=actor, note=note)


def delete(job: Job, now: datetime, *, actor: str, note: str = "") -> Change:
    """An operator removes a job that waits or has ended; its key is free then. The audit trail keeps its events."""
    if job.state is State.RUNNING:
        raise NotPossible(f"job {job.id} is running; cancel it, and delete it when it has ended")
    after = job.evolve(payload_json="null", result_json=None, error=None, progress=None, revision=job.revision + 1)
    text = ": ".join(filter(None, (f"task {job.task}", note)))[:MESSAGE_CAP]
    return Change(job, after, EventKind.DELETED, Fence.REVISION, now, actor, text)


def adopt(job: Job, at: datetime, *, actor: str, note: str = "") -> Change:
    """A job of another table comes with its past; `at` is when something happened to it last, there."""
    return Change(job, job.evolve(revision=1), EventKind.IMPORTED, Fence.UNKNOWN, at, actor, note[:MESSAGE_CAP])


def fallback(refused: Change, holder: str | None, why: str, now: datetime) -> Change | None:
    """What to write when the store has refused a change, for its key is another's or for `why`; None: nothing else."""
    if holder:
        return supersede(refused, now)
    return _unfollowed(refused, why) if refused.follow is not None else None


def supersede(refused: Change, now: datetime) -> Change:
    """The job wanted to wait again but another one took its key meanwhile: it ends, the other one runs."""
    before = refused.before
    change = _finish(
        refused.after.evolve(revision=before.revision, worker=before.worker, due_at=before.due_at),
        State.CANCELLED,
        Reason.SUPERSEDED,
        EventKind.SUPERSEDED,
        now,
        refused.actor,
    )
    return change._replace(before=before, fence=refused.fence)


def _fail(
    job: Job, reason: Reason, error: JobError, delay: float | None, now: datetime, actor: str, noise: float
) -> Change:
    failures = job.failures + 1
    if failures >= job.max_attempts:
        return _finish(
            job, State.FAILED, reason, EventKind.FAILED, now, actor, error.message, failures=failures, error=error
        )
    due_at = now + timedelta(seconds=job.retry.delay(failures, noise) if delay is None else delay)
    return _requeue(job, EventKind.RETRYING, now, actor, error.message, due_at=due_at, failures=failures, error=error)


def _requeue(job: Job, kind: EventKind, now: datetime, actor: str, note: str = "", **fields: Any) -> Change:
    """Back to pending; the holder's token stays, so that a repeated write is known as the same one."""
    revision = job.revision + 1
    after = job.evolve(state=State.PENDING, worker=None, lease_until=None, revision=revision, **fields)
    return Change(job, after, kind, Fence.HOLDER, now, actor, note)


def _finish(
    job: Job,
    state: State,
    reason: Reason | None,
    kind: EventKind,
    now: datetime,
    actor: str,
    note: str = "",
    **fields: Any,
) -> Change:
    revision = job.revision + 1
    end = max(now, job.started_at or now)  # a worker's clock may be ahead of the store's: no end is before its start
    after = job.evolve(state=state, reason=reason, finished_at=end, lease_until=None, revision=revision, **fields)
    return _followed(Change(job, after, kind, Fence.HOLDER, now, actor, note))


def _followed(change: Change) -> Change:
    """The change with what the job says is to follow its end."""
    job = change.after
    wanted = job.on_end and (job.on_end.succeeded if job.state is State.SUCCEEDED else job.on_end.failed)
    if wanted is None or job.state is State.CANCELLED:
        return change
    event = (wanted.exhausted if job.reason is not None and job.reason.spent else "") or wanted.event
    note = ": ".join(filter(None, (event, change.note)))
    change = change._replace(note=note, always_audited=bool(event))
    if not wanted.task:
        return change
    follow = _follow_up(job, wanted, change.at)
    if job.result_json is not None and (size := len(follow.payload_json.encode())) > PAYLOAD_CAP:
        return _unfollowed(change, f"with the result its payload is {size:,} bytes; the limit is {PAYLOAD_CAP:,}")
    return change._replace(follow=follow)


def _unfollowed(change: Change, why: str) -> Change:
    """The change without the job that was to follow: the store will not take that one, and this one must end."""
    note = f"{change.note} (what was to follow cannot be stored: {why})".strip()
    return change._replace(follow=None, note=note[:MESSAGE_CAP], always_audited=True)


def _follow_up(job: Job, wanted: FollowUp, now: datetime) -> Job:
    """The job that tells another task how this one ended; made from it, so that a repeated write is the same one."""
    facts = {
        "job_id": job.id,
        "task": job.task,
        "state": job.state.value,
        "reason": job.reason and job.reason.value,
        "error": job.error and job.error.message,
    }
    wants = facts if wanted.wants is None else wanted.wants
    payload = json.dumps({name: facts[name] for name in wants if name in facts}, ensure_ascii=False)
    if wanted.alone:
        payload = job.result_json or "null"
    elif RESULT in wants:  # its text as it is
        payload = f'{payload[:-1]}{", " if len(payload) > 2 else ""}"{RESULT}": {job.result_json or "null"}}}'
    return Job(
        derived_id(f"follow-up\x1f{job.id}\x1f{job.revision}", now),
        wanted.task,
        payload,
        now,
        now,
        tenant=job.tenant,
        queue=wanted.queue,
        lane=wanted.lane,
        priority=wanted.priority,
        task_version=wanted.version,
        retry=wanted.retry,
        timeout=wanted.timeout,
        on_end=wanted.on_end,
        trace=job.trace,
    )


def _words(value: object) -> str:
    """A field's value in an audit event."""
    return f"{value:%Y-%m-%d %H:%M:%S} UTC" if isinstance(value, datetime) else str(value) or "none"
