"""How a job lies in a row: column order, times as microseconds, the small values as JSON."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from treadle.model import Event, Job, JobError, Progress, Reason, Scope, State, What
from treadle.retry import Retry

COLUMNS = (
    "id", "task", "payload", "created_at", "due_at", "tenant", "queue", "lane", "task_version", "priority",
    "max_attempts", "retry_base", "retry_cap", "retry_jitter", "timeout", "expires_at", "key", "key_scope",
    "key_until", "state", "reason", "result", "error", "attempt", "failures", "crashes", "claimed_at",
    "started_at", "finished_at", "worker", "lease_until", "lease_token", "cancel_requested", "progress",
    "cost_micros", "revision",
)  # fmt: skip
JOB = ", ".join(COLUMNS)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Row = tuple[Any, ...]


def micros(moment: datetime | None) -> int | None:
    """A time as stored."""
    if moment is None:
        return None
    since = moment - EPOCH
    return since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds


def moment(stored: int | None) -> datetime | None:
    """A stored time as read."""
    return None if stored is None else EPOCH + timedelta(microseconds=stored)


def job_from(row: Row) -> Job:
    """The job in a row selected as JOB."""
    (
        id_, task, payload, created_at, due_at, tenant, queue, lane, task_version, priority, max_attempts, base, cap,
        jitter, timeout, expires_at, key, key_scope, key_until, state, reason, result, error, attempt, failures,
        crashes, claimed_at, started_at, finished_at, worker, lease_until, lease_token, cancel_requested, progress,
        cost_micros, revision,
    ) = row  # fmt: skip
    return Job(
        id_,
        task,
        payload,
        EPOCH + timedelta(microseconds=created_at),
        EPOCH + timedelta(microseconds=due_at),
        tenant,
        queue,
        lane,
        task_version,
        priority,
        Retry(max_attempts, base, cap, jitter),
        timeout,
        moment(expires_at),
        key,
        Scope(key_scope) if key_scope else None,
        moment(key_until),
        _STATES[state],
        Reason(reason) if reason else None,
        result,
        JobError(*json.loads(error)) if error else None,
        attempt,
        failures,
        crashes,
        moment(claimed_at),
        moment(started_at),
        moment(finished_at),
        worker,
        moment(lease_until),
        lease_token,
        cancel_requested == 1,
        Progress(*json.loads(progress)) if progress else None,
        cost_micros,
        revision,
    )


def row_from(job: Job) -> Row:
    """A job as a row, in the order of COLUMNS."""
    return (
        job.id,
        job.task,
        job.payload_json,
        micros(job.created_at),
        micros(job.due_at),
        job.tenant,
        job.queue,
        job.lane,
        job.task_version,
        job.priority,
        *job.retry,
        job.timeout,
        micros(job.expires_at),
        job.key,
        job.key_scope,
        micros(job.key_until),
        job.state,
        job.reason,
        job.result_json,
        small(job.error),
        job.attempt,
        job.failures,
        job.crashes,
        micros(job.claimed_at),
        micros(job.started_at),
        micros(job.finished_at),
        job.worker,
        micros(job.lease_until),
        job.lease_token,
        int(job.cancel_requested),
        small(job.progress),
        job.cost_micros,
        job.revision,
    )


def small(value: JobError | Progress | None) -> str | None:
    """An error or a progress as stored."""
    return None if value is None else json.dumps(value, ensure_ascii=False)


def event_from(row: Row) -> Event:
    """The event in a row (job, revision, at, what, actor, note, tenant)."""
    job_id, revision, at, what, actor, note, tenant = row
    return Event(job_id, revision, EPOCH + timedelta(microseconds=at), What(what), actor, note, tenant)


_STATES = {state.value: state for state in State}
