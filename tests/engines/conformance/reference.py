"""The engine contract once more, over plain dicts: the second opinion that walks compare an engine with.

Written from the prose of engines.contract and model.Fence, on purpose without sharing a line with any engine: two
independent readings of the contract that agree on a million answers are probably both right. One thread, no
clock of its own, no speed to speak of. Where the contract leaves something open, a comment says how we read it.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from treadle.engines.values import (
    LISTED,
    OVERWRITE,
    Claim,
    ClaimedJob,
    JobFilter,
    Lease,
    Overwrite,
    Receipt,
    Renewal,
    RenewalResult,
    Retention,
    Ruling,
    Saved,
    Turn,
    Verdict,
)
from treadle.model import Change, Event, EventKind, Fence, Job, Scope, State
from treadle.model.records import ANY, Pause, Record, Schedule

Key = tuple[str, str, str]  # tenant, task, key


class ReferenceEngine:
    """What a right engine would answer; see engines.contract for the contract."""

    def __init__(self, *, audit_all: bool = False) -> None:
        self.jobs: dict[str, Job] = {}
        self.keys: dict[Key, tuple[str, datetime | None]] = {}  # who holds it, until when
        self.trail: dict[str, list[Event]] = {}
        self.beside: dict[object, Record] = {}  # the schedules and pauses, by what tells them apart
        self._audit_all = audit_all

    # ----------------------------------------------------------------------------------- enqueue

    def enqueue(self, jobs: Sequence[Job], *, now: datetime) -> list[Receipt]:
        return [self._enqueue(job, now) for job in jobs]

    def _enqueue(self, job: Job, now: datetime) -> Receipt:
        if not storable(job):
            return Receipt(job, created=False, refused="half a character")
        if job.id in self.jobs:
            return Receipt(self.jobs[job.id], created=False)
        if first := self.holder_of_key(job, now):
            return Receipt(self.jobs[first], created=False)
        stored = job.evolve(created_at=now, due_at=job.due_at if job.due_at > job.created_at else now)
        self._store(stored, now)
        self._note(Event(job.id, 0, now, EventKind.ENQUEUED, "enqueue", "", job.tenant))
        return Receipt(stored, created=True)

    # -------------------------------------------------------------------------------------- turn

    def turn(
        self, changes: Sequence[Change], claim: Claim | None = None, *, now: datetime, prefer: Collection[str] = ()
    ) -> Turn:
        """`prefer` names the jobs another engine picked: taken over if the promised order allows that choice."""
        # The order of a turn's changes is open; we free keys before we take them, so none stands in its own way.
        ordered = sorted(changes, key=_takes_key)
        verdicts = {change.before.id: self._write(change, now) for change in ordered}
        jobs = self._claim(claim, now, prefer) if claim else []
        claimed = [ClaimedJob.of(job) for job in jobs]
        return Turn([verdicts[change.before.id] for change in changes], claimed, now)

    def _write(self, change: Change, now: datetime) -> Verdict:
        current = self.jobs.get(change.before.id)
        if not writable(change):
            return Verdict(Ruling.REFUSED, why="half a character")
        if current is None:
            return Verdict(Ruling.LOST)
        if not self._passes(change, current, now):
            return Verdict(self._why_not(change, current), current)
        after = change.after
        if change.fence is Fence.RUNNING:
            # The flag alone is the change: it may be decided on an old reading, and must not bring that back.
            after = current.evolve(cancel_requested=True, revision=current.revision + 1)
        if _takes_key(change) and (other := self.holder_of_key(after, now)) not in (None, after.id):
            return Verdict(Ruling.REFUSED, holder=other)
        self._store(after, now)
        event = Event(after.id, after.revision, change.at, change.kind, change.actor, change.note, after.tenant)
        self._note(event, always_audited=change.always_audited)
        if change.follow is not None:
            self._enqueue(change.follow, now)
        return Verdict(Ruling.APPLIED)

    def _passes(self, change: Change, current: Job, now: datetime) -> bool:
        before = change.before
        running = current.state is State.RUNNING
        unchanged = current.revision == before.revision
        ours = running and unchanged and current.lease_token == before.lease_token
        match change.fence:
            case Fence.HOLDER:
                return ours
            case Fence.RECOVERY:
                return ours and current.lease_until == before.lease_until and current.lease_until <= now
            case Fence.REVISION:
                return unchanged and current.state is before.state
            case Fence.RUNNING:
                return running

    def _why_not(self, change: Change, current: Job) -> Ruling:
        """Only a holder can have written before, or be told to decide again: its token says that it was there."""
        if change.fence is not Fence.HOLDER or current.lease_token != change.before.lease_token:
            return Ruling.LOST
        if current.state is State.RUNNING:
            return Ruling.STALE if current.revision > change.before.revision else Ruling.LOST
        as_written = (current.state, current.revision) == (change.after.state, change.after.revision)
        return Ruling.ALREADY if as_written else Ruling.LOST

    # ------------------------------------------------------------------------------------- claim

    def _claim(self, claim: Claim, now: datetime, prefer: Collection[str]) -> list[Job]:
        # A token that holds nothing any more may claim again: what it once held is in other hands or done.
        held = [job for job in self._in(State.RUNNING) if job.lease_token == claim.token]
        if held:
            return sorted(held, key=_claim_order)
        return [self._give(job, claim, now) for job in self._pick(claim, now, prefer)]

    def _pick(self, claim: Claim, now: datetime, prefer: Collection[str]) -> list[Job]:
        free = (job for job in self._in(State.PENDING) if not self._shut(job, now))
        due = sorted((job for job in free if _wanted(job, claim, now)), key=_claim_order)
        lanes: dict[tuple[str, str], list[Job]] = {}
        for job in due:
            lanes.setdefault((job.queue, job.lane), []).append(job)
        preferred = [job for job in due if job.id in prefer]
        as_many = len(preferred) == min(claim.limit, len(due))
        in_order = all(
            [job for job in lane if job.id in prefer] == lane[: sum(job.id in prefer for job in lane)]
            for lane in lanes.values()
        )
        return preferred if as_many and in_order else due[: claim.limit]

    def stopped(self, claim: Claim, now: datetime) -> int:
        """How many jobs the claim would take, were they not paused."""
        return sum(_wanted(job, claim, now) and self._shut(job, now) for job in self._in(State.PENDING))

    def _shut(self, job: Job, now: datetime) -> bool:
        """Whether some pause that is not over stops this job."""
        pauses = (one for one in self.beside.values() if isinstance(one, Pause))
        return any(_stopped(job, one) for one in pauses if one.until is None or one.until > now)

    def _give(self, job: Job, claim: Claim, now: datetime) -> Job:
        given = job.evolve(
            state=State.RUNNING,
            attempt=job.attempt + 1,
            revision=job.revision + 1,
            claimed_at=now,
            started_at=None,
            progress=None,
            worker=claim.worker,
            lease_token=claim.token,
            lease_until=now + timedelta(seconds=claim.lease),
        )
        self._store(given, now)
        self._note(Event(job.id, given.revision, now, EventKind.CLAIMED, claim.worker, "", job.tenant))
        return given

    # ----------------------------------------------------------------------- leases and upkeep

    def extend(self, holds: Sequence[Lease], *, lease: float, now: datetime) -> list[RenewalResult]:
        return [self._extend(hold, now + timedelta(seconds=lease)) for hold in holds]

    def _extend(self, hold: Lease, until: datetime) -> RenewalResult:
        job = self.jobs.get(hold.job_id)
        if job is None or job.state is not State.RUNNING or job.lease_token != hold.token:
            return RenewalResult(hold.job_id, Renewal.LOST)
        said = {name: value for name, value in hold._asdict().items() if name in Job._fields and value is not None}
        self.jobs[job.id] = job.evolve(lease_until=until, **said)
        return RenewalResult(hold.job_id, Renewal.RENEWED, job.cancel_requested)

    def expired(self, *, limit: int, now: datetime) -> list[Job]:
        crashed = [job for job in self._in(State.RUNNING) if job.lease_until <= now]
        late = [job for job in self._in(State.PENDING) if _too_late(job, now)]
        return (crashed + late)[:limit]

    def prune(self, keep: Retention, *, limit: int, now: datetime, prefer: Collection[str] = ()) -> int:
        """Which jobs go first is left open, so `prefer` names those another engine deleted."""
        gone = sorted(self.old(keep, now=now), key=lambda job: job.id not in prefer)[:limit]
        for job in gone:
            del self.jobs[job.id]
        return len(gone)

    def old(self, keep: Retention, *, now: datetime) -> list[Job]:
        """The jobs that may go."""
        ended = [job for job in self.jobs.values() if job.state.final]
        ages = {job.id: _age(keep, job) for job in ended}
        old = [job for job in ended if (age := ages[job.id]) is not None and job.finished_at < now - age]
        return [job for job in old if self.holder_of_key(job, now) != job.id]

    # ------------------------------------------------------------------------ the rows beside the jobs

    def records(self, kind: type[Record]) -> list[Record]:
        return [record for _, record in sorted(self.beside.items()) if isinstance(record, kind)]

    def save(
        self, record: Record, *, before: Record | Overwrite | None, event: Event | None, job: Job | None, now: datetime
    ) -> Saved:
        there = self.beside.get(_name(record))
        if before is not OVERWRITE and _compared(there) != _compared(before):
            return Saved(done=False)
        self.beside[_name(record)] = record
        if event is not None:
            self._note(event, always_audited=True)
        return Saved(True, None if job is None else self._enqueue(job, now))

    def drop(self, record: Record, *, event: Event | None) -> bool:
        there = self.beside.get(_name(record))
        if there is None or there.revision != record.revision:
            return False
        del self.beside[_name(record)]
        if event is not None:
            self._note(event, always_audited=True)
        return True

    # ----------------------------------------------------------------------------------- looking

    def get(self, ids: Sequence[str]) -> list[Job | None]:
        return [self.jobs.get(id_) for id_ in ids]

    def find(self, where: JobFilter) -> list[Job]:
        """All that match, newest first: by id, which is made to rise, or by the time they ended."""
        found = [job for job in self.jobs.values() if _matches(job, where)]
        if where.state in LISTED:
            return sorted(found, key=lambda job: (job.finished_at, job.id), reverse=True)
        return sorted(found, key=lambda job: job.id, reverse=True)

    def count(self, where: JobFilter) -> dict[State, int]:
        states = [job.state for job in self.find(where)]
        return {state: states.count(state) for state in set(states)}

    def events(self, job_id: str) -> list[Event]:
        return sorted(self.trail.get(job_id, ()), key=lambda event: (event.revision, event.at))

    def holder_of_key(self, job: Job, now: datetime) -> str | None:
        """The id of the job that has this job's key now; a key whose window is over is nobody's."""
        if job.key is None:
            return None
        holder, until = self.keys.get(_key(job), (None, None))
        return holder if until is None or until > now else None

    # ----------------------------------------------------------------------------------- writing

    def _store(self, job: Job, now: datetime) -> None:
        """Write a job, and take or free its key as its new state asks."""
        self.jobs[job.id] = job
        if job.key is None:
            return
        if job.key_scope.covers(job.state):
            if self.holder_of_key(job, now) is None:
                self.keys[_key(job)] = (job.id, job.key_until)
        elif self.holder_of_key(job, now) == job.id:
            del self.keys[_key(job)]

    def _note(self, event: Event, *, always_audited: bool = False) -> None:
        if self._audit_all or always_audited or event.kind.noteworthy:
            self.trail.setdefault(event.job_id, []).append(event)

    def _in(self, state: State) -> list[Job]:
        return [job for job in self.jobs.values() if job.state is state]


def storable(job: Job) -> bool:
    """Half a character (a lone surrogate) is a value that no store takes."""
    texts = [job.payload_json, job.result_json or "", job.error.message if job.error else ""]
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True


def writable(change: Change) -> bool:
    """A change and what follows it are stored together, or not at all."""
    return storable(change.after) and (change.follow is None or storable(change.follow))


def _takes_key(change: Change) -> bool:
    """Windows and evers do not come back for their key: while they last it never leaves them."""
    scope, was, becomes = change.after.key_scope, change.before.state, change.after.state
    return scope in (Scope.PENDING, Scope.ACTIVE) and scope.covers(becomes) and not scope.covers(was)


def _wanted(job: Job, claim: Claim, now: datetime) -> bool:
    return (
        job.due_at <= now
        and not _too_late(job, now)
        and job.queue in claim.queues
        and (claim.lanes is None or job.lane in claim.lanes)
        and (claim.tasks is None or job.task in claim.tasks)
        and job.task not in claim.unless
        and job.task_version <= claim.versions.get(job.task, job.task_version)
    )


def _stopped(job: Job, pause: Pause) -> bool:
    named = ((pause.tenant, job.tenant), (pause.queue, job.queue), (pause.task, job.task))
    return all(name in (ANY, own) for name, own in named)


def _age(keep: Retention, job: Job) -> timedelta | None:
    """What is said of a task goes before what is said of all."""
    own = keep.tasks.get(job.task, {})
    return own[job.state] if job.state in own else keep.states.get(job.state)


def _name(record: Record) -> tuple[str, ...]:
    if isinstance(record, Schedule):
        return ("schedule", record.tenant, record.name)
    return ("pause", record.tenant, record.queue, record.task)


def _compared(record: Record | None) -> object:
    """What a save looks at: people change a schedule's row without a new revision."""
    if isinstance(record, Schedule):
        return (record.revision, record.enabled, record.next_at)
    return record and record.revision


def _too_late(job: Job, now: datetime) -> bool:
    return job.expires_at is not None and job.expires_at <= now


def _claim_order(job: Job) -> tuple[int, datetime, str]:
    return (-job.priority, job.due_at, job.id)


def _matches(job: Job, where: JobFilter) -> bool:
    return all(wanted is None or getattr(job, name) == wanted for name, wanted in where._asdict().items())


def _key(job: Job) -> Key:
    return (job.tenant, job.task, job.key)
