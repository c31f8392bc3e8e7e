"""The SQLite engine: one file, many threads and processes, nothing to install. Each method passes on to its door."""

import os
import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeVar

from treadle.engines.batches import check_one_each
from treadle.engines.scripts import Script
from treadle.engines.sqlite import audit, queries, records, schedules, schema
from treadle.engines.sqlite.claim import LaneTurns, claim_jobs, promising
from treadle.engines.sqlite.connection import MEMORY, SHORT_LOCK_TIMEOUT, DatabaseFile
from treadle.engines.sqlite.enqueue import enqueue, enqueue_script, store_jobs
from treadle.engines.sqlite.leases import cancel_requests, read_expired, read_memos, renew
from treadle.engines.sqlite.retention import Pruner
from treadle.engines.sqlite.settle import settle_all, settle_script
from treadle.engines.sqlite.watching import FileWatch
from treadle.engines.values import (
    OVERWRITE,
    Claim,
    ClaimedJob,
    Count,
    Finding,
    JobFilter,
    Lease,
    Overwrite,
    Page,
    Receipt,
    RenewalResult,
    Retention,
    Saved,
    ScheduleFilter,
    Tally,
    Turn,
    Verdict,
)
from treadle.engines.waiting import Waiters
from treadle.model import Change, Event, Job, State
from treadle.model.clock import SystemClock
from treadle.model.lifecycle import Success
from treadle.model.memo import Memo
from treadle.model.records import Record, Schedule, Seal, WorkerInfo

R = TypeVar("R", bound=Record)

POLL_INTERVAL = 0.01  # seconds between two looks of a waiting worker at whether another process has written


class SqliteEngine:
    """An Engine on a SQLite file; engines.contract has the contract."""

    searches_payloads: Final = True

    def __init__(
        self,
        path: str,
        *,
        clock: Callable[[], datetime] | None = None,
        synchronous: str = "full",
        audit_all: bool = False,
    ) -> None:
        self.file = DatabaseFile(path, synchronous=synchronous, migrate=schema.migrate)
        self._clock = clock or SystemClock().now
        self._audit_all = audit_all
        self._waiters = Waiters()
        self._pruner = Pruner(self.file)
        self._watch: FileWatch | None = None
        self._turns = LaneTurns()

    # ------------------------------------------------------------------------------------ the schema

    def open(self) -> None:
        self.file.rows("select 1")  # opening the file migrates it

    def migrate(self) -> list[str]:
        before = len(self.file.migrated)
        self.open()
        return self.file.migrated[before:]

    def check(self, *, quick: bool = False) -> list[str]:  # noqa: ARG002 - the whole comparison is quick
        return schema.check(self.file)

    def schema_sql(self) -> str:
        return schema.schema_sql()

    def doctor(self) -> list[Finding]:
        return schema.doctor(self.file)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self.file.close()

    def now(self) -> datetime:
        return self._clock()

    # ----------------------------------------------------------------------------- the way of a job

    def enqueue(self, jobs: Sequence[Job], *, now: datetime | None = None) -> Sequence[Receipt]:
        if not jobs:
            return []
        receipts = enqueue(self.file, jobs, now, self._clock, audit_all=self._audit_all)
        self._waiters.wake()
        return receipts

    def turn(
        self, changes: Sequence[Change | Success], claim: Claim | None = None, *, now: datetime | None = None
    ) -> Turn:
        check_one_each(changes)
        if not changes and (claim is None or not self._promising(claim, now)):
            return Turn([], [], now or self._clock())
        verdicts: list[Verdict] = []
        claimed: list[ClaimedJob] = []
        more = False
        with self.file.write() as connection:
            now = now or self._clock()
            if changes:
                verdicts = settle_all(connection, changes, now, audit_all=self._audit_all)
            if claim is not None:
                self._waiters.claiming()
                claimed, more = claim_jobs(connection, claim, now, self._turns, audit_all=self._audit_all)
        if changes:
            self._waiters.wake(claimed=claim is not None)
        return Turn(verdicts, claimed, now, more)

    def _promising(self, claim: Claim, now: datetime | None) -> bool:
        self._waiters.claiming()
        return self.file.read(lambda reader: promising(reader, claim, now or self._clock(), self._turns))

    def extend(self, leases: Sequence[Lease], *, lease: float, now: datetime | None = None) -> list[RenewalResult]:
        return renew(self.file, leases, lease, lambda: now or self._clock()) if leases else []

    def memos(self, job_id: str) -> list[Memo]:
        return read_memos(self.file, job_id)

    def cancel_requests(self, job_ids: Sequence[str]) -> set[str]:
        return cancel_requests(self.file, job_ids)

    def expired(self, *, limit: int, now: datetime | None = None) -> list[Job]:
        return read_expired(self.file, limit, now or self._clock())

    def wait(self, queues: Sequence[str], timeout: float, interrupt: threading.Event | None = None) -> bool:  # noqa: ARG002
        if self.file.path == MEMORY:
            return self._waiters.wait(timeout, interrupt)
        if self._watch is not None and self._watch.pid != os.getpid():
            self._watch.close()
            self._watch = None
        if self._watch is None:
            self._watch = FileWatch(f"{self.file.path}-wal", self.file.version, self._waiters.hint)
        return self._waiters.wait(timeout, interrupt, self.file.version, POLL_INTERVAL, self._watch)

    def wake(self, *, others: bool = False) -> None:  # noqa: ARG002 - others watch the file
        self._waiters.wake()

    # ------------------------------------------------------------------------------ queries, retention

    def get(self, ids: Sequence[str]) -> list[Job | None]:
        return queries.get(self.file, ids)

    def find(self, where: JobFilter, *, limit: int, cursor: str | None = None, bare: bool = False) -> Page:
        return queries.find(self.file, where, limit, cursor, bare)

    def count(self, where: JobFilter, *, limit: int | None = None, now: datetime | None = None) -> dict[State, Count]:
        moment = now or self._clock()
        if limit is None:
            return queries.count(self.file, where, moment)
        return queries.estimate(self.file, where, limit, moment)

    def tally(
        self, *, since: datetime, limit: int, tenant: str | None = None, now: datetime | None = None
    ) -> list[Tally]:
        moment = now or self._clock()
        return self.file.read(lambda reader: queries.tally(reader, since, limit, tenant, moment))

    def costs(self, *, since: datetime, until: datetime, tenant: str | None = None) -> dict[tuple[str, str], int]:
        return queries.costs(self.file, since, until, tenant)

    def prune(self, keep: Retention, *, limit: int, now: datetime | None = None, to_the_end: bool = False) -> int:
        return self._pruner.prune(keep, limit, now or self._clock(), to_the_end=to_the_end)

    # ------------------------------------------------------------------------ the rows beside the jobs

    def records(self, kind: type[R], *, tenant: str | None = None, name: str | None = None) -> list[R]:
        return self.file.read(lambda reader: records.read(reader, kind, tenant, name))

    def find_schedules(
        self, where: ScheduleFilter, *, limit: int, after: tuple[str, str] | None = None
    ) -> list[Schedule]:
        return self.file.read(lambda reader: schedules.find(reader, where, limit, after))

    def due(self, *, limit: int, ahead: float = 0.0, now: datetime | None = None) -> list[Schedule]:
        until = (now or self._clock()) + timedelta(seconds=ahead)
        return self.file.read(lambda reader: records.due(reader, until, limit))

    def save(
        self,
        record: Record,
        *,
        before: Record | Overwrite | None,
        event: Event | None = None,
        job: Job | None = None,
        now: datetime | None = None,
    ) -> Saved:
        receipt = None
        # A record that is overwritten is written again soon: it need not wait long for the lock.
        with self.file.write(SHORT_LOCK_TIMEOUT if before is OVERWRITE else None) as connection:
            done = records.save(connection, record, before)
            if done:
                audit.add(connection, [event] if event else [])
                if job is not None:
                    [receipt] = store_jobs(connection, [job], now or self._clock(), audit_all=self._audit_all)
        if done:
            self._waiters.wake()
        return Saved(done, receipt)

    def drop(self, record: Record, *, event: Event | None = None) -> bool:
        # A worker that leaves need not wait long to say so: its row is forgotten anyway.
        with self.file.write(SHORT_LOCK_TIMEOUT if isinstance(record, WorkerInfo) else None) as connection:
            done = records.drop(connection, record)
            if done:
                audit.add(connection, [event] if event else [])
        self._waiters.wake()
        return done

    # -------------------------------------------------------------------------------- the audit trail

    def events(self, job_id: str, *, latest: int | None = None) -> list[Event]:
        return audit.events(self.file, job_id, latest)

    def unsealed(self, *, limit: int, newest: bool = False, before: audit.Place | None = None) -> list[Event]:
        if newest:
            return self.file.read(lambda reader: audit.newest_unsealed(reader, limit, before))
        return self.file.read(lambda reader: audit.unsealed(reader, limit))

    def seal(self, seal: Seal, events: Sequence[Event]) -> bool:
        with self.file.write() as connection:
            return audit.seal(connection, seal, events)

    def sealed(self, seal: Seal) -> list[Event]:
        return self.file.read(lambda reader: audit.sealed(reader, seal))

    def orphaned_events(self, *, limit: int) -> list[Event]:
        return self.file.read(lambda reader: audit.orphaned_events(reader, limit))

    def prune_events(self, seal: Seal) -> bool:
        with self.file.write() as connection:
            return audit.prune_events(connection, seal, self._clock())

    # ------------------------------------------------------------- for the caller's own transaction

    def enqueue_script(
        self,
        jobs: Sequence[Job],
        *,
        now: datetime | None = None,
        notify: bool = False,  # noqa: ARG002 - whoever waits watches the file
    ) -> Script[list[Receipt]]:
        yield from self.file.check_same()
        return (yield from enqueue_script(jobs, now or self._clock(), audit_all=self._audit_all))

    def settle_script(self, change: Change, *, now: datetime | None = None) -> Script[Verdict]:
        yield from self.file.check_same()
        return (yield from settle_script([change], now or self._clock(), audit_all=self._audit_all))[0]

    def schedule_script(self, tenant: str, name: str) -> Script[tuple[Schedule | None, int]]:
        yield from self.file.check_same()
        return (yield from schedules.schedule_script(tenant, name))

    def save_script(self, after: Schedule | None, *, before: Schedule | None, event: Event) -> Script[bool]:
        yield from self.file.check_same()
        return (yield from schedules.save_script(after, before, event))
