"""What is done from outside to a job, a schedule or a pause: decided on what is there, and again if it has moved on.

Every act is one compare-and-set, with its audit event in the same transaction. Where the answer of a write was lost,
the event says whether it was done.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol, TypeVar
from uuid import UUID

from treadle.engines.contract import AuditStore, JobStore, RecordStore
from treadle.engines.values import Ruling, Verdict
from treadle.errors import InvalidJob, JobNotFound, NotPossible
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


class Edited(NamedTuple):
    """What became of one edit: the job's id, and why nothing was written, if so; `asked`: it runs, and shall stop."""

    job_id: str
    problem: NotPossible | JobNotFound | None = None
    asked: bool = False


def id_of(job: Job | str) -> str:
    """The id of a job that is given itself, or by its id."""
    if isinstance(job, Job):
        return job.id
    if not isinstance(job, str | UUID):
        raise InvalidJob("job", f"{job!r:.100} must be a job or its id")
    return str(job).lower()


def get_job(engine: JobStore, job_id: Job | str, tenant: str | None = None) -> Job:
    """The job of this id, finished ones too; JobNotFound if there is none, or none of this tenant's."""
    [job] = engine.get([id_of(job_id)])
    if job is None or tenant not in (None, job.tenant):
        raise JobNotFound(job_id.id if isinstance(job_id, Job) else str(job_id))
    return job


def edit_job(
    engine: AuditedJobs,
    job_id: Job | str,
    decide: Callable[[Job, datetime], Change],
    *,
    actor: str,
    tenant: str | None = None,
) -> Job:
    """Write what `decide` makes of the job and the time; the job afterwards. With `tenant`, only that tenant's."""
    check_name("actor", actor)
    job = get_job(engine, job_id, tenant)
    [edited] = edit_jobs(engine, [job], decide)
    if edited.problem is not None:
        raise edited.problem
    return engine.get([job.id])[0] or job  # one that was deleted, as it was


def edit_jobs(
    engine: AuditedJobs,
    jobs: Sequence[Job],
    decide: Callable[[Job, datetime], Change],
    still_meant: Callable[[Job, datetime], bool] = lambda *_: True,
) -> Iterator["Edited"]:
    """Write what `decide` makes of each of these jobs, all in one turn; what became of each, as soon as it is known.

    A job that has moved on since it was read is decided again, if it is `still_meant`.
    """
    for wait in lock_waits():
        now, changes = engine.now(), dict[str, Change]()
        for job in jobs:
            try:
                changes[job.id] = decide(job, now)
            except NotPossible as problem:
                yield Edited(job.id, problem)
        if not changes:
            return
        verdicts = engine.turn(list(changes.values())).verdicts
        left = []
        for change, verdict in zip(changes.values(), verdicts, strict=True):
            edited = _outcome(engine, change, verdict)
            if edited is not None:
                yield edited
            else:
                left.append(change.id)
        if not left:
            return
        if any(verdict.ruling is Ruling.BUSY for verdict in verdicts):
            time.sleep(wait)
        jobs = []
        for id_, found in zip(left, engine.get(left), strict=True):
            why = _no_longer(id_, found, still_meant, engine.now())
            if why is not None:
                yield Edited(id_, why)
            elif found is not None:
                jobs.append(found)
    for job in jobs:
        yield Edited(job.id, NotPossible(f"job {job.id} keeps changing, or an open transaction holds it; try again"))


def _outcome(engine: AuditedJobs, change: Change, verdict: Verdict) -> Edited | None:
    """What became of one change; None if it must be decided again."""
    if verdict.ruling is Ruling.REFUSED:
        by = f" by job {verdict.holder}; wait for it, or cancel it first" if verdict.holder else ""
        return Edited(change.id, NotPossible(f"job {change.id}: {verdict.why}{by}"))
    ours = verdict.ruling is Ruling.LOST and _in_trail(engine, change.event)  # by us, and the answer was lost
    if ours or verdict.ruling is Ruling.APPLIED:
        return Edited(change.id, asked=change.kind is EventKind.CANCEL_REQUESTED)
    return None


def _no_longer(
    id_: str, job: Job | None, still_meant: Callable[[Job, datetime], bool], now: datetime
) -> NotPossible | JobNotFound | None:
    """Why a job that has moved on is not to be edited any more; None if it is."""
    if job is None:
        return JobNotFound(id_)
    if still_meant(job, now):
        return None
    return NotPossible(f"job {id_} has changed since, and is no longer one of those meant")


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
