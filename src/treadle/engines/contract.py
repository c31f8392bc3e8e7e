"""The engine contract: what a store must do, in types and in prose.

An engine speaks jobs, never queries. It is synchronous and may be called from many threads. Of the store's errors
only `EngineUnavailable` (it did not answer; repeating is safe) and `EngineError` leave it, cause kept; a caller's
mistake (two changes for one job, a cursor that is not ours) is a ValueError.
In production the store supplies the time; `now=` is for tests and simulators.

The rules every engine keeps, each with a conformance case of its own:

- A change is one atom with its audit event and its key. Engines decide nothing: they compare what the change's fence
  names (model.Fence) and write the change whole, or not at all. Only model.lifecycle makes changes.
- A claim gives a job to one holder, marks it with the token its caller minted, and repeats itself: a turn
  repeated with the same token returns the jobs already claimed under it and claims no more.
- Order: priority, due time, id within a lane, among jobs due when the claim began.
- One bad value never takes its batch along: its verdict is REFUSED, its neighbours' are not touched.
- A job that comes from another table (lifecycle.adopt) is written as it is, with its event and its key, and with all
  that is kept beside a job in its state; but not if a job has its id, or an event is about one that had it: LOST.
- Once `save` of a pause has returned, no claim that it blocks commits, and no claim has waited for it. What a claim
  finds and may not take, because it is paused or unknown to the claimer, is parked where claims step over it; a job
  whose pause is over is claimed from there in its turn.

`Engine` is four small protocols. A consumer is typed by the smallest one it needs. What only one store can do stands at
the end, in protocols of its own: the app asks whether an engine has them.
"""

from collections.abc import Sequence
from datetime import datetime
from threading import Event
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, runtime_checkable

from treadle import model
from treadle.engines.scripts import ItemScript, Script
from treadle.engines.values import (
    Claim,
    Count,
    Finding,
    Half,
    JobFilter,
    Lease,
    Overwrite,
    Page,
    Receipt,
    RenewalResult,
    Retention,
    RowSecurity,
    Saved,
    ScheduleFilter,
    Tally,
    Turn,
    Verdict,
)
from treadle.model import Change, Job, State
from treadle.model.lifecycle import Success
from treadle.model.records import Record, Schedule, Seal

if TYPE_CHECKING:
    from treadle.model.memo import Memo

R = TypeVar("R", bound=Record)


class StoreClock(Protocol):
    """Whoever only needs the time needs this much of an engine."""

    def now(self) -> datetime:
        """The store's time, as far as this process knows it; it asks at the first call, and after a long silence."""
        ...


class LeaseStore(StoreClock, Protocol):
    """What the lease renewal of a worker needs."""

    def extend(self, leases: Sequence[Lease], *, lease: float, now: datetime | None = None) -> list[RenewalResult]:
        """Renew these leases for `lease` seconds and write what the attempts report; an answer each, in order.

        The memos of a lease are written in the atom of its renewal, or not at all. One that is done stays as it is.
        """
        ...

    def memos(self, job_id: str) -> "list[Memo]":
        """What this job remembers, by name; it is deleted with the job."""
        ...

    def cancel_requests(self, job_ids: Sequence[str]) -> set[str]:
        """Which of these running jobs somebody has asked to stop; a read, as small as the store allows."""
        ...


class JobStore(LeaseStore, Protocol):
    """The way of a job: enqueued, claimed, settled; looked at, and deleted when it is old."""

    def enqueue(self, jobs: Sequence[Job], *, now: datetime | None = None) -> Sequence[Receipt]:
        """Store new jobs; a receipt each, in order. A known id or a taken key answers with the job that was first.

        `created_at` becomes the store's time, and so does a `due_at` that was not later than it.
        """
        ...

    def turn(
        self, changes: Sequence[Change | Success], claim: Claim | None = None, *, now: datetime | None = None
    ) -> Turn:
        """Write these changes (at most one a job), then claim; one commit where the store can.

        A `Success` is written like the change it stands for. The verdict of one that was not written is that change's.
        """
        ...

    def expired(self, *, limit: int, now: datetime | None = None) -> list[Job]:
        """Running jobs whose lease is past and pending jobs whose expires_at is; no job is written.

        EngineUnavailable while the store takes no writes: then nobody can renew, and no lease counts as lost.
        """
        ...

    def wait(self, queues: Sequence[str], timeout: float, interrupt: Event | None = None) -> bool:
        """Return True when there may be something to claim or `interrupt` is set, False after `timeout` seconds.

        A hint, never needed: polling finds every job.
        """
        ...

    def get(self, ids: Sequence[str]) -> list[Job | None]:
        """These jobs, in order, finished ones too."""
        ...

    def find(self, where: JobFilter, *, limit: int, cursor: str | None = None, bare: bool = False) -> Page:
        """Jobs that match, newest first; of failed and of cancelled ones, the latest to end first.

        A store without indexes looks at some thousands of jobs a page: a LookedPage may come short, or empty, with a
        cursor. There the first page may be the one job that holds a key.

        `bare`: whoever asks reads neither payloads nor results, and the store may leave them out.
        """
        ...

    def count(self, where: JobFilter, *, limit: int | None = None, now: datetime | None = None) -> dict[State, Count]:
        """How many jobs match, by state; what is not named there is not there.

        With a `limit` it counts up to so many jobs of a state that match. It is exact where no more do; else there are
        so many at least, or as many as the store's statistics say, which no tenant hears. A store where each read is
        paid for looks at so many jobs, whether they match or not: then there are as many as it saw at least.

        The count of pending jobs has `labels` (Job.label), from the same look: exact if it is, else at least so many.
        """
        ...

    def tally(
        self, *, since: datetime, limit: int, tenant: str | None = None, now: datetime | None = None
    ) -> list[Tally]:
        """How many jobs wait, run, and have ended since then, in groups; bounded, so that it is quick beside millions.

        It reads up to `limit` waiting jobs of each of the first 200 queues, `limit` running ones, and the `limit`
        latest ends of each state. Numbers that add up to `limit` mean that there may be more.
        """
        ...

    def costs(self, *, since: datetime, until: datetime, tenant: str | None = None) -> dict[tuple[str, str], int]:
        """What the jobs that ended in this time have cost, in millionths, by tenant and task; free ones left out."""
        ...

    def prune(self, keep: Retention, *, limit: int, now: datetime | None = None, to_the_end: bool = False) -> int:
        """Delete up to `limit` jobs that finished longer ago than `keep` says; how many it deleted.

        One call passes over some thousands of jobs that stay, and the next call goes on from there; with `to_the_end`,
        over all of them. A job whose key is still held is kept. The audit trail stays: `prune_events` deletes from it.
        """
        ...

    def enqueue_script(
        self, jobs: Sequence[Job], *, now: datetime | None = None, notify: bool = False
    ) -> Script[Sequence[Receipt]] | ItemScript[Sequence[Receipt]]:
        """The statements or items of `enqueue`, for the caller's own transaction.

        With `notify` their commit tells waiting workers, where the store can.
        """
        ...

    def settle_script(self, change: Change, *, now: datetime | None = None) -> Script[Verdict] | ItemScript[Verdict]:
        """The statements or items that write one change, for the caller's own transaction."""
        ...


class RecordStore(StoreClock, Protocol):
    """The rows beside the jobs: schedules, pauses, workers and the like (model.records)."""

    def records(self, kind: type[R], *, tenant: str | None = None, name: str | None = None) -> list[R]:
        """All records of a kind, in the order of their keys; maybe only one tenant's, or of minutes one hour's.

        With a `name`, the one record of that tenant and name: it costs the same beside any number of others.
        """
        ...

    def find_schedules(
        self, where: ScheduleFilter, *, limit: int, after: tuple[str, str] | None = None
    ) -> list[Schedule]:
        """The first schedules that match, in the order of their keys; those after this tenant and name."""
        ...

    def due(self, *, limit: int, ahead: float = 0.0, now: datetime | None = None) -> list[Schedule]:
        """Enabled schedules whose `next_at` is None, or comes within `ahead` seconds; the longest due first."""
        ...

    def save(
        self,
        record: Record,
        *,
        before: Record | Overwrite | None,
        event: model.Event | None = None,
        job: Job | None = None,
        now: datetime | None = None,
    ) -> Saved:
        """Write a record, its audit event and the job it makes, in one atom.

        It is done if the stored record is still `before` (its revision, and of a schedule `enabled` and `next_at`), or
        there is none and `before` is None. A job whose id or key is taken stops nothing: its receipt says so.
        """
        ...

    def drop(self, record: Record, *, event: model.Event | None = None) -> bool:
        """Delete a record, if it still has this revision; whether this call did it."""
        ...

    def schedule_script(
        self, tenant: str, name: str
    ) -> Script[tuple[Schedule | None, int]] | ItemScript[tuple[Schedule | None, int]]:
        """The statements that read a schedule in the caller's own transaction, and the revision that a new one has."""
        ...

    def save_script(
        self, after: Schedule | None, *, before: Schedule | None, event: model.Event
    ) -> Script[bool] | ItemScript[bool]:
        """The statements or items of `save`, or without an `after` of `drop`, for the caller's own transaction."""
        ...


class AuditStore(StoreClock, Protocol):
    """The audit trail: events, and the seals that show whether one was changed."""

    def events(self, job_id: str, *, latest: int | None = None) -> list[model.Event]:
        """The audit events of one job, or of a record by its `subject`, oldest first.

        With `latest`, the last so many: the store reads no others.
        """
        ...

    def unsealed(
        self, *, limit: int, newest: bool = False, before: tuple[datetime, str, int] | None = None
    ) -> list[model.Event]:
        """Events that are in no seal yet, by tenant, time, job and revision.

        With `newest`: the latest of all tenants, newest first; with `before`, of those before this time, job and
        revision. The store reads up to `limit` of each tenant.
        """
        ...

    def seal(self, seal: Seal, events: Sequence[model.Event]) -> bool:
        """Write a seal over these events; False if its number is taken or one of them is sealed already."""
        ...

    def sealed(self, seal: Seal) -> list[model.Event]:
        """The events in a seal, by time, job and revision."""
        ...

    def orphaned_events(self, *, limit: int) -> list[model.Event]:
        """Events that were sealed and whose seal is not there any more: somebody has removed it."""
        ...

    def prune_events(self, seal: Seal) -> bool:
        """Delete the events of a seal, which stays and says when; False if somebody else did."""
        ...


class Schema(Protocol):
    """The store itself: its schema and its connections."""

    def open(self) -> None:
        """See that the store is there and its schema fits; SchemaError says what to do if it does not.

        A SQLite file is created and migrated by it, a PostgreSQL schema only with auto_migrate.
        """
        ...

    def migrate(self) -> list[str]:
        """Bring the schema up to date, safely beside other processes doing the same; the names applied now."""
        ...

    def check(self, *, quick: bool = False) -> list[str]:
        """Every difference between the live schema and the expected one; empty when they agree.

        With `quick`, only what would keep this process from using it. Nothing stays behind.
        """
        ...

    def schema_sql(self) -> str:
        """The migrations as text, for the user's own migration tool."""
        ...

    def doctor(self) -> list[Finding]:
        """What an operator should know about this store."""
        ...

    def close(self) -> None:
        """Close every connection; the next call opens them again."""
        ...


class Engine(JobStore, RecordStore, AuditStore, Schema, Protocol):
    """A store. See the module docstring for what holds for all of them."""

    def wake(self, *, others: bool = False) -> None:
        """Wake the threads of this process that wait for jobs; with `others`, those of other processes, if it can."""
        ...


# ------------------------------------------------------------------------------- what only one store has


@runtime_checkable
class StagedSchema(Protocol):
    """A schema that can be upgraded while old code runs (PostgreSQL)."""

    def migrate_half(self, half: Half) -> list[str]:
        """Apply one half: `pre` is what new code needs and old code can live with, `post` what only new code can."""
        ...

    def half_sql(self, half: Half) -> str:
        """One half of the migrations as text."""
        ...


@runtime_checkable
class PayloadSearch(Protocol):
    """A store in which thousands of payloads can be looked through for a text: one read, not one a job (SQL)."""

    searches_payloads: Literal[True]


@runtime_checkable
class TenantIsolation(Protocol):
    """A store that itself keeps tenants apart: row-level security (PostgreSQL)."""

    def rls(self, roles: RowSecurity, *, only_sql: bool = False) -> str:
        """Set up row-level security for these roles; the statements."""
        ...

    def for_tenant(self, tenant: str) -> Engine:
        """This store as one tenant may see it."""
        ...
