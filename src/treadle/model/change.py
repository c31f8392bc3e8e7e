"""What a transition is, what it compares before it is written, and the audit event it leaves."""

from datetime import datetime
from enum import Enum, StrEnum
from typing import NamedTuple

from treadle.model.job import Job
from treadle.model.keys import Scope


class EventKind(StrEnum):
    """What happened, for the audit trail."""

    ENQUEUED = "enqueued"
    CLAIMED = "claimed"
    SUCCEEDED = "succeeded"
    SNOOZED = "snoozed"
    RELEASED = "released"
    REPLACED = "replaced"
    RETRYING = "retrying"
    CRASHED = "crashed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    CANCEL_REQUESTED = "cancel_requested"
    RETRIED = "retried"
    CHANGED = "changed"  # of a waiting job, or of a schedule
    DELETED = "deleted"  # a job, or a schedule
    CREATED = "created"  # from here on, of a schedule, a pause or a token
    ENABLED = "enabled"
    DISABLED = "disabled"
    RUN_REQUESTED = "run_requested"
    PAUSED = "paused"
    RESUMED = "resumed"
    REVOKED = "revoked"  # a token of the API
    IMPORTED = "imported"  # a job of another table, with its past

    @classmethod
    def _missing_(cls, value: object) -> "EventKind":
        """A word of a newer treadle, or somebody's own: shown as it is."""
        word = str.__new__(cls, str(value))
        word._name_ = word._value_ = str(value)
        return word

    @property
    def noteworthy(self) -> bool:
        """Failures and acts of operators: written at every audit level."""
        return self not in _ROUTINE

    @property
    def by_hand(self) -> bool:
        """What people and programs do to jobs and records, not what workers make of jobs."""
        return self in _BY_HAND


_ROUTINE = frozenset(
    (
        EventKind.ENQUEUED,
        EventKind.CLAIMED,
        EventKind.SUCCEEDED,
        EventKind.SNOOZED,
        EventKind.RELEASED,
        EventKind.REPLACED,
    )
)
_BY_HAND = frozenset(
    (
        EventKind.CANCELLED,
        EventKind.CANCEL_REQUESTED,
        EventKind.RETRIED,
        EventKind.CHANGED,
        EventKind.DELETED,
        EventKind.CREATED,
        EventKind.ENABLED,
        EventKind.DISABLED,
        EventKind.RUN_REQUESTED,
        EventKind.PAUSED,
        EventKind.RESUMED,
        EventKind.REVOKED,
        EventKind.IMPORTED,
    )
)


class Fence(Enum):
    """What a change compares before it is written; every engine obeys the same five."""

    HOLDER = "holder"  # running, token and revision: settle, snooze, release by the worker that holds the job
    RECOVERY = "recovery"  # the same, and lease_until as read, and that moment past by the store's clock
    REVISION = "revision"  # state and revision: operators, expiry, replace
    RUNNING = "running"  # state running only: the cancel request, whose flag never falls
    UNKNOWN = "unknown"  # no job has this id, and no event is about one that had it


class Write(Enum):
    """Which write a change is; engines have a statement for each."""

    FINISH = "finish"  # the job leaves for the finished ones
    REQUEUE = "requeue"  # it is pending again
    REVIVE = "revive"  # it comes back from the finished ones
    REPLACE = "replace"  # a pending job is edited in place
    REQUEST_CANCEL = "request_cancel"  # a running job is asked to stop
    DELETE = "delete"  # a job that waits or has ended goes, and its key with it; its events stay
    ADOPT = "adopt"  # a job comes from elsewhere, in the state that it has there


class Event(NamedTuple):
    """One audit event: who did what to which job, when and why; its key is (job_id, revision, at)."""

    job_id: str  # or the subject of a schedule or a pause (records.subject)
    revision: int
    at: datetime
    kind: EventKind
    actor: str
    note: str
    tenant: str


class Change(NamedTuple):
    """One transition, decided by lifecycle and written by an engine, with its audit event, in one atom."""

    before: Job
    after: Job
    kind: EventKind
    fence: Fence
    at: datetime
    actor: str
    note: str = ""
    always_audited: bool = False  # its audit event is written at every level
    follow: Job | None = None  # a job to store with it

    @property
    def id(self) -> str:
        """Of the job."""
        return self.before.id

    @property
    def event(self) -> Event:
        """What the audit trail keeps of it."""
        job = self.after
        return Event(job.id, job.revision, self.at, self.kind, self.actor, self.note, job.tenant)

    @property
    def write(self) -> Write:
        """Which write it is."""
        if self.fence is Fence.RUNNING:
            return Write.REQUEST_CANCEL
        if self.fence is Fence.UNKNOWN:
            return Write.ADOPT
        if self.kind is EventKind.DELETED:
            return Write.DELETE
        if self.after.state.final:
            return Write.FINISH
        if self.before.state.final:
            return Write.REVIVE
        return Write.REPLACE if self.kind in (EventKind.REPLACED, EventKind.CHANGED) else Write.REQUEUE

    def audited(self, audit_all: bool) -> bool:
        """Whether its event is written; with `audit_all`, every event is."""
        return audit_all or self.always_audited or self.kind.noteworthy

    @property
    def takes_key(self) -> bool:
        """Whether the job must hold its key after the change, and need not before."""
        scope = self.after.key_scope
        if self.fence is Fence.UNKNOWN:
            return scope is not None and scope.covers(self.after.state)
        if scope is None or scope in (Scope.WINDOW, Scope.EVER):
            return False
        return scope.covers(self.after.state) and not scope.covers(self.before.state)

    @property
    def frees_key(self) -> bool:
        """Whether the job's key is free after the change."""
        scope = self.before.key_scope
        if self.kind is EventKind.DELETED:
            return scope is not None and scope.covers(self.before.state)
        return scope is not None and scope.covers(self.before.state) and not scope.covers(self.after.state)
