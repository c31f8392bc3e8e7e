"""How a job lies in a row of a table: the same columns, in the same order, in every SQL engine."""

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from treadle.engines.values import Count, Lease
from treadle.model import Change, Fence, FollowUp, Job, JobError, OnEnd, Progress, Reason, Scope, State, holds_nul
from treadle.model.memo import Memo, MemoState
from treadle.model.retry import Retry

COLUMNS = (
    "id", "task", "payload", "created_at", "due_at", "tenant", "queue", "lane", "task_version", "priority",
    "max_attempts", "retry_base", "retry_cap", "retry_jitter", "timeout", "expires_at", "key", "key_scope",
    "key_until", "schedule", "on_end", "state", "reason", "result", "error", "attempt", "failures", "crashes",
    "claimed_at", "started_at", "finished_at", "worker", "lease_until", "lease_token", "cancel_requested", "progress",
    "cost_micros", "revision", "trace",
)  # fmt: skip
_LEFT_OUT = {"payload": "'null' as payload", "result": "null as result"}
BARE_COLUMNS = tuple(_LEFT_OUT.get(name, name) for name in COLUMNS)
"""What to select of a job for whoever reads neither its payload nor its result."""
EDITED = (
    "payload", "task_version", "queue", "lane", "priority", "due_at", "expires_at", "timeout", "max_attempts",
    "retry_base", "retry_cap", "retry_jitter", "trace", "revision",
)  # fmt: skip
"""What replacing a pending job writes."""
NEW = (*COLUMNS[: COLUMNS.index("state")], "trace")  # what an enqueue says; the rest follows from the state

Row = tuple[Any, ...]


def counts_from(rows: Iterable[Row], limit: int | None = None) -> dict[State, Count]:
    """The counts in rows of state, number, scheduled and retrying; with a limit, of a look at one more than that."""
    counts: dict[State, Count] = {}
    for state, number, scheduled, retrying in rows:
        parts = {"pending": number - scheduled - retrying, "scheduled": scheduled, "retrying": retrying}
        labels = parts if state == State.PENDING else {}
        most = number if limit is None else limit
        if number:
            counts[State(state)] = Count.up_to(most, number, exact=number <= most, labels=labels)
    return counts


def job_from(row: Row, moment: Callable[[Any], datetime | None]) -> Job:
    """The job in a row of COLUMNS; `moment` reads a stored time."""
    (
        id_, task, payload, created_at, due_at, tenant, queue, lane, task_version, priority, max_attempts, base, cap,
        jitter, timeout, expires_at, key, key_scope, key_until, schedule, on_end, state, reason, result, error, attempt,
        failures, crashes, claimed_at, started_at, finished_at, worker, lease_until, lease_token, cancel_requested,
        progress, cost_micros, revision, trace,
    ) = row  # fmt: skip
    return Job(
        id_,
        task,
        payload,
        moment(created_at),  # type: ignore[arg-type] # never null
        moment(due_at),  # type: ignore[arg-type] # never null
        tenant,
        queue,
        lane,
        task_version,
        priority,
        Retry._make((max_attempts, base, cap, jitter)),
        timeout,
        moment(expires_at),
        key,
        Scope(key_scope) if key_scope else None,
        moment(key_until),
        schedule,
        on_end_from(on_end),
        trace,
        _STATES[state],
        Reason(reason) if reason else None,
        result,
        JobError(**json.loads(error)) if error else None,
        attempt,
        failures,
        crashes,
        moment(claimed_at),
        moment(started_at),
        moment(finished_at),
        worker,
        moment(lease_until),
        lease_token,
        bool(cancel_requested),
        Progress(**json.loads(progress)) if progress else None,
        cost_micros,
        revision,
    )


def row_from(job: Job, stored: Callable[[datetime | None], Any]) -> Row:
    """A job as a row of COLUMNS; `stored` writes a time."""
    return (
        job.id,
        job.task,
        job.payload_json,
        stored(job.created_at),
        stored(job.due_at),
        job.tenant,
        job.queue,
        job.lane,
        job.task_version,
        job.priority,
        *job.retry,
        job.timeout,
        stored(job.expires_at),
        job.key,
        job.key_scope,
        stored(job.key_until),
        job.schedule,
        on_end_text(job.on_end),
        job.state,
        job.reason,
        job.result_json,
        small(job.error),
        job.attempt,
        job.failures,
        job.crashes,
        stored(job.claimed_at),
        stored(job.started_at),
        stored(job.finished_at),
        job.worker,
        stored(job.lease_until),
        job.lease_token,
        job.cancel_requested,
        small(job.progress),
        job.cost_micros,
        job.revision,
        job.trace,
    )


def fence_of(change: Change, stored: Callable[[datetime | None], Any]) -> Row:
    """What the change compares: id, state, revision, and where its fence says so, token and lease."""
    before, state, token, lease = change.before, change.before.state, None, None
    if change.fence in (Fence.HOLDER, Fence.RECOVERY):
        state = State.RUNNING  # a settled row keeps its token: holding is running
        token = before.lease_token or ""  # a change without a token must match nothing
    if change.fence is Fence.RECOVERY:
        lease = stored(before.lease_until or datetime.min.replace(tzinfo=UTC))  # without a lease it matches nothing
    return before.id, state, before.revision, token, lease


def renewal_of(held: Lease, stored: Callable[[datetime | None], Any]) -> Row:
    """A renewal: id, token, started_at, progress, cost. What cannot be stored is left out: it costs no lease."""
    progress, cost = small(held.progress), held.cost_micros
    try:
        fits = progress is None or (bool(progress.encode()) and not holds_nul(progress))
    except UnicodeEncodeError:
        fits = False
    return (
        held.job_id,
        held.token,
        stored(held.started_at),
        progress if fits else None,
        cost if cost is not None and -(2**63) <= cost < 2**63 else None,
    )


MEMO_COLUMNS = ("name", "kind", "state", "attempt", "began_at", "at", "value")


def memo_row(memo: Memo, stored: Callable[[datetime], Any]) -> Row:
    """A memo as a row of MEMO_COLUMNS."""
    return (memo.name, memo.kind, memo.state, memo.attempt, stored(memo.began_at), stored(memo.at), memo.value_json)


def memo_from(row: Row, moment: Callable[[Any], datetime]) -> Memo:
    """The memo in a row of MEMO_COLUMNS."""
    name, kind, state, attempt, began_at, at, value = row
    return Memo(name, kind, MemoState(state), attempt, moment(began_at), moment(at), value)


def small(value: JobError | Progress | None) -> str | None:
    """An error or a progress as stored: an object, so that people can read it with SQL."""
    return None if value is None else json.dumps(value._asdict(), ensure_ascii=False)


def on_end_text(on_end: OnEnd | None) -> str | None:
    """What follows a job's end, as stored."""
    if on_end is None:
        return None
    return json.dumps(_on_end_fields(on_end))


def _on_end_fields(on_end: OnEnd) -> dict[str, Any]:
    return {name: follow and _follow_up_fields(follow) for name, follow in on_end._asdict().items()}


def _follow_up_fields(follow: FollowUp) -> dict[str, Any]:
    return {**follow._asdict(), "on_end": follow.on_end and _on_end_fields(follow.on_end)}


def on_end_from(text: str | None) -> OnEnd | None:
    """What a stored text says is to follow; what cannot be read, for somebody else has written it, is left out."""
    if text is None:
        return None
    try:
        return _on_end_from_fields(json.loads(text))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _on_end_from_fields(fields: Any) -> OnEnd:
    return OnEnd(**{name: _follow_up_from(fields.get(name)) for name in OnEnd._fields})


def _follow_up_from(fields: Any) -> FollowUp | None:
    if not isinstance(fields, dict):
        return None
    known = {name: value for name, value in fields.items() if name in FollowUp._fields}
    if "retry" in known:
        known["retry"] = Retry._make(known["retry"])
    if known.get("on_end") is not None:
        known["on_end"] = _on_end_from_fields(known["on_end"])
    follow = FollowUp(**known)
    texts = (follow.event, follow.exhausted, follow.task, follow.queue, follow.lane, *(follow.wants or ()))
    numbers = (follow.priority, follow.version, follow.timeout or 0.0, *(number or 0.0 for number in follow.retry))
    fits = all(isinstance(text, str) for text in texts) and all(isinstance(number, int | float) for number in numbers)
    return follow if fits else None


_STATES = {state.value: state for state in State}
