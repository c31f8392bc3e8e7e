"""What is done from outside to a job, a schedule or a pause: decided on what is there, and again if it has moved on.

Every act is one compare-and-set, with its audit event in the same transaction. Where the answer of a write was lost,
the event says whether it was done.
"""

import time
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple, Protocol, TypeVar

from treadle.engines.contract import AuditStore, JobStore, RecordStore
from treadle.engines.values import Ruling
from treadle.errors import JobNotFound, NotPossible
from treadle.model import MESSAGE_CAP, Change, Event, EventKind, Job, check_name, clean
from treadle.model.backoff import lock_waits
from treadle.model.records import Pause, Schedule, subject

Kept = TypeVar("Kept", Schedule, Pause)


class AuditedJobs(JobStore, AuditStore, Protocol):
    """Jobs, and the audit trail that tells what became of a write."""


class AuditedRecords(RecordStore, AuditStore, Protocol):
    """Records, and the audit trail that tells what became of a write."""


class Act(NamedTuple):
    """Who does what to a schedule or a pause, when and why."""

    kind: EventKind
    at: datetime
    actor: str
    reason: str

    def event(self, record: Schedule | Pause) -> Event:
        """What the audit trail keeps of it; `record` as it is afterwards."""
        about = record.scope if isinstance(record, Pause) else f"schedule {record.name}"
        note = clean(": ".join(filter(None, (about, self.reason))), MESSAGE_CAP)
        return Event(subject(record), record.revision, self.at, self.kind, self.actor, note, record.tenant)


def get_job(engine: JobStore, job_id: str, tenant: str | None = None) -> Job:
    """The job of this id, finished ones too; JobNotFound if there is none, or none of this tenant's."""
    [job] = engine.get([str(job_id).lower()])
    if job is None or tenant not in (None, job.tenant):
        raise JobNotFound(str(job_id))
    return job


def edit_job(
    engine: AuditedJobs,
    job_id: str,
    decide: Callable[[Job, datetime], Change],
    *,
    actor: str,
    tenant: str | None = None,
) -> Job:
    """Write what `decide` makes of the job and the time; the job afterwards. With `tenant`, only that tenant's."""
    check_name("actor", actor)
    for wait in lock_waits():
        change = decide(get_job(engine, job_id, tenant), engine.now())
        [verdict] = engine.turn([change]).verdicts
        if verdict.ruling is Ruling.APPLIED:
            return get_job(engine, job_id, tenant)
        if verdict.ruling is Ruling.REFUSED:
            by = f" by job {verdict.holder}; wait for it, or cancel it first" if verdict.holder else ""
            raise NotPossible(f"job {job_id}: {verdict.why}{by}")
        if verdict.ruling is Ruling.LOST and _in_trail(engine, change.event):
            return get_job(engine, job_id, tenant)  # by us: the answer was lost and the write repeated
        if verdict.ruling is Ruling.BUSY:
            time.sleep(wait)
    raise NotPossible(f"job {job_id} keeps changing, or an open transaction holds it; try again")


def put(engine: AuditedRecords, record: Kept, before: Kept | None, act: Act) -> Kept | None:
    """Save a record where there is still `before`; as it was saved, or None if somebody else was first."""
    revision = _first_revision(engine, record) if before is None else before.revision + 1
    record = record.evolve(revision=revision)
    event = act.event(record)
    return record if engine.save(record, before=before, event=event).done or _in_trail(engine, event) else None


def remove(engine: AuditedRecords, record: Schedule | Pause, act: Act) -> bool:
    """Delete a record if it is still so; False if somebody else was first."""
    event = act.event(record.evolve(revision=record.revision + 1))
    return engine.drop(record, event=event) or _in_trail(engine, event)


def _first_revision(engine: AuditedRecords, record: Schedule | Pause) -> int:
    """Where a new record begins to count: its trail may tell of an earlier one of the same name."""
    return max((event.revision for event in engine.events(subject(record))), default=-1) + 1


def _in_trail(engine: AuditStore, event: Event) -> bool:
    """Whether the audit trail has this very event: then the write was done, and its answer was lost."""
    ours = (event.revision, event.kind, event.actor, event.at)
    return any((one.revision, one.kind, one.actor, one.at) == ours for one in engine.events(event.job_id))
