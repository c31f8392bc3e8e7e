"""The DynamoDB engine: one table, no index, every decision by a condition of the write that makes it.

docs/dynamodb.md has the layout of the table and what each operation costs. A turn is a series of atoms: each change and
each claim is one. So a part of a turn may be applied when the rest was not, and repeating the turn is safe.
"""

import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from treadle.engines.batches import check_one_each
from treadle.engines.dynamodb import schema
from treadle.engines.dynamodb.adopt import Adopter
from treadle.engines.dynamodb.audit import AuditTrail, Place
from treadle.engines.dynamodb.claim import Claimer
from treadle.engines.dynamodb.client import Client
from treadle.engines.dynamodb.cursors import Cursors
from treadle.engines.dynamodb.enqueue import EnqueueWriter
from treadle.engines.dynamodb.gate import PauseGate
from treadle.engines.dynamodb.items import ItemKey
from treadle.engines.dynamodb.leases import Leases
from treadle.engines.dynamodb.lists import Lists
from treadle.engines.dynamodb.pools import Memory, Pools
from treadle.engines.dynamodb.queries import Reader
from treadle.engines.dynamodb.ranges import Ranges
from treadle.engines.dynamodb.records import Records
from treadle.engines.dynamodb.retention import Pruner
from treadle.engines.dynamodb.schedules import ScheduleItems
from treadle.engines.dynamodb.settle import CostDays, Settler
from treadle.engines.dynamodb.writes import TableInfo
from treadle.engines.scripts import ItemScript
from treadle.engines.values import (
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
from treadle.errors import SchemaError
from treadle.model import Change, Event, Job, State
from treadle.model.change import Write
from treadle.model.clock import SystemClock
from treadle.model.lifecycle import Success, whole
from treadle.model.memo import Memo
from treadle.model.records import Record, Schedule, Seal

R = TypeVar("R", bound=Record)


class DynamoEngine:
    """One table of DynamoDB."""

    def __init__(
        self,
        name: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        shards: int = 1,
        spread: int = schema.DEFAULT_SPREAD,
        skew: float = 0.5,
        gate: bool = False,
        auto_migrate: bool = False,
        clock: Callable[[], datetime] | None = None,
        audit_all: bool = False,
    ) -> None:
        self.client = Client(name, region=region, endpoint=endpoint)
        self._clock = clock or SystemClock().now
        self._real_time = clock is None  # a clock that is given is a test's: it stands still, goes back and jumps
        self._spread = spread
        self._skew = skew
        self._gate = gate  # whether a new table gets one
        self._audit_all = audit_all
        self._auto_migrate = auto_migrate
        self._cursors = Cursors()
        self._ranges = Ranges(self.client, self._cursors, shards)
        self._waiters = Waiters()
        self._pools = Pools()
        self._ready = False

    # ------------------------------------------------------------------------------------ the table

    def open(self) -> None:
        if self._ready:
            return
        try:
            spread = schema.spread_of(self.client)
        except SchemaError:
            if not self._auto_migrate:
                raise
            self.migrate()
            spread = schema.spread_of(self.client)
        self._compose(TableInfo(self.client.table, spread, self._audit_all))
        self._ready = True

    def _compose(self, table: TableInfo) -> None:
        client, ranges, cursors, pools, real_time = (
            self.client, self._ranges, self._cursors, self._pools, self._real_time,
        )  # fmt: skip
        last_keys: Memory[ItemKey] = Memory()  # by job: where its due item was seen last
        gate = PauseGate(client, table, ranges, pools.each, real_time=real_time)
        self._reader = reader = Reader(client, ranges, table.spread, pools.each)
        self._lists = Lists(client, reader, table.spread, pools.each)
        self._leases = Leases(client, table, reader, ranges, pools, last_keys, self._skew, real_time=real_time)
        self._enqueuer = EnqueueWriter(client, table, reader, ranges, pools, self._leases.expect)
        days, expect = CostDays(client, table), self._leases.expect
        self._settler = Settler(client, table, reader, ranges, cursors, pools, last_keys, self._enqueuer, days)
        self._adopter = Adopter(client, table, reader, ranges, pools, days, expect)
        put_back = self._settler.put_back
        self._claimer = Claimer(client, table, ranges, reader, pools, cursors, last_keys, gate, put_back)
        self._pruner = Pruner(client, reader, table, pools.each, real_time=real_time)
        self._records = Records(client, table, self._enqueuer, gate)
        self._audit = AuditTrail(client, table, pools.each)
        self._schedules = ScheduleItems(client, self._records, self._audit.events)

    def migrate(self) -> list[str]:
        return [schema.MIGRATION_NAME] if schema.create(self.client, self._spread, gate=self._gate) else []

    def check(self, *, quick: bool = False) -> list[str]:
        return schema.differences(self.client, quick=quick)

    def schema_sql(self) -> str:
        return schema.as_text(self.client.table)

    def doctor(self) -> list[Finding]:
        return schema.doctor(self.client)

    def close(self) -> None:
        self._pools.close()
        self.client.close()

    def now(self) -> datetime:
        return self._clock()

    def _opened(self) -> None:
        if not self._ready:
            self.open()

    # --------------------------------------------------------------------------- the way of a job

    def enqueue(self, jobs: Sequence[Job], *, now: datetime | None = None) -> list[Receipt]:
        self._opened()
        receipts = self._enqueuer.enqueue(jobs, now or self._clock())
        self._waiters.wake()
        return receipts

    def turn(
        self, changes: Sequence[Change | Success], claim: Claim | None = None, *, now: datetime | None = None
    ) -> Turn:
        changes = whole(changes, now or self._clock())
        check_one_each(changes)
        self._opened()
        repeated = claim is not None and self._claimer.may_be_repeat(claim.token)
        verdicts = self._write(changes, now or self._clock())
        if changes:
            self._waiters.wake()
        moment = now or self._clock()  # a lease counts from now, however long the changes took
        jobs: list[Job] = []
        more = False
        if claim is not None:
            self._waiters.claiming()
            jobs, more = self._claimer.claim(claim, moment, repeated=repeated)
        if claim is not None and jobs:
            self._leases.expect(moment + timedelta(seconds=claim.lease))
        return Turn(verdicts, [ClaimedJob.of(job) for job in jobs], moment, more)

    def _write(self, changes: Sequence[Change], now: datetime) -> list[Verdict]:
        adopted = [change for change in changes if change.write is Write.ADOPT]
        if not adopted:
            return self._settler.settle_all(changes, now)
        rest = [change for change in changes if change.write is not Write.ADOPT]
        verdicts = [*self._adopter.adopt(adopted, now), *self._settler.settle_all(rest, now)]
        found = dict(zip((change.id for change in (*adopted, *rest)), verdicts, strict=True))
        return [found[change.id] for change in changes]

    def extend(self, leases: Sequence[Lease], *, lease: float, now: datetime | None = None) -> list[RenewalResult]:
        self._opened()

        def until() -> datetime:
            return (now or self._clock()) + timedelta(seconds=lease)

        return self._leases.extend(leases, until, forward=now is None)

    def memos(self, job_id: str) -> list[Memo]:
        self._opened()
        return self._leases.memos(job_id)

    def cancel_requests(self, job_ids: Sequence[str]) -> set[str]:
        self._opened()
        return self._leases.cancel_requests(job_ids)

    def expired(self, *, limit: int, now: datetime | None = None) -> list[Job]:
        self._opened()
        return self._leases.expired(limit, now or self._clock())

    def wait(self, queues: Sequence[str], timeout: float, interrupt: threading.Event | None = None) -> bool:  # noqa: ARG002
        """A write of this process wakes at once; the writes of others are found by polling."""
        return self._waiters.wait(timeout, interrupt)

    def wake(self, *, others: bool = False) -> None:  # noqa: ARG002 - they find it when they poll
        self._waiters.wake()

    def enqueue_script(
        self,
        jobs: Sequence[Job],
        *,
        now: datetime | None = None,
        notify: bool = False,  # noqa: ARG002 - others find it when they poll
    ) -> ItemScript[list[Receipt]]:
        self._opened()
        return (yield from self._enqueuer.script(jobs, now or self._clock()))

    def settle_script(self, change: Change, *, now: datetime | None = None) -> ItemScript[Verdict]:
        self._opened()
        return (yield from self._settler.script(change, now or self._clock()))

    # ---------------------------------------------------------------------- queries and retention

    def get(self, ids: Sequence[str]) -> list[Job | None]:
        self._opened()
        return self._reader.get(ids)

    def find(self, where: JobFilter, *, limit: int, cursor: str | None = None, bare: bool = False) -> Page:
        self._opened()
        return self._lists.find(where, limit=limit, cursor=cursor, bare=bare)

    def count(self, where: JobFilter, *, limit: int | None = None, now: datetime | None = None) -> dict[State, Count]:
        self._opened()
        moment = now or self._clock()
        return self._reader.count(where, moment) if limit is None else self._reader.estimate(where, limit, moment)

    def tally(
        self, *, since: datetime, limit: int, tenant: str | None = None, now: datetime | None = None
    ) -> list[Tally]:
        self._opened()
        return self._reader.tally(since, limit, tenant, now or self._clock())

    def costs(self, *, since: datetime, until: datetime, tenant: str | None = None) -> dict[tuple[str, str], int]:
        self._opened()
        return self._reader.costs(since, until, tenant)

    def prune(self, keep: Retention, *, limit: int, now: datetime | None = None, to_the_end: bool = False) -> int:
        self._opened()
        moment = now or self._clock()
        return self._pruner.prune(keep, limit, moment, trust_ids=now is None, to_the_end=to_the_end)

    # ------------------------------------------------------------------------------------- records

    def records(self, kind: type[R], *, tenant: str | None = None, name: str | None = None) -> list[R]:
        self._opened()
        return self._records.read(kind, tenant, name)

    def find_schedules(
        self, where: ScheduleFilter, *, limit: int, after: tuple[str, str] | None = None
    ) -> list[Schedule]:
        self._opened()
        return self._schedules.find(where, limit, after)

    def due(self, *, limit: int, ahead: float = 0.0, now: datetime | None = None) -> list[Schedule]:
        self._opened()
        return self._records.due(limit, (now or self._clock()) + timedelta(seconds=ahead))

    def save(
        self,
        record: Record,
        *,
        before: Record | Overwrite | None,
        event: Event | None = None,
        job: Job | None = None,
        now: datetime | None = None,
    ) -> Saved:
        self._opened()
        saved = self._records.save(record, before, event, job, now or self._clock())
        self._waiters.wake()
        return saved

    def drop(self, record: Record, *, event: Event | None = None) -> bool:
        self._opened()
        dropped = self._records.drop(record, event)
        self._waiters.wake()
        return dropped

    def schedule_script(self, tenant: str, name: str) -> ItemScript[tuple[Schedule | None, int]]:
        self._opened()
        return (yield from self._schedules.schedule_script(tenant, name))

    def save_script(self, after: Schedule | None, *, before: Schedule | None, event: Event) -> ItemScript[bool]:
        self._opened()
        return (yield from self._schedules.save_script(after, before, event))

    # ----------------------------------------------------------------------------- the audit trail

    def events(self, job_id: str, *, latest: int | None = None) -> list[Event]:
        self._opened()
        return self._audit.events(job_id, latest)

    def unsealed(self, *, limit: int, newest: bool = False, before: Place | None = None) -> list[Event]:
        self._opened()
        return self._audit.newest_unsealed(limit, before) if newest else self._audit.unsealed(limit)

    def seal(self, seal: Seal, events: Sequence[Event]) -> bool:
        self._opened()
        return self._audit.seal(seal, events)

    def sealed(self, seal: Seal) -> list[Event]:
        self._opened()
        return self._audit.sealed(seal)

    def orphaned_events(self, *, limit: int) -> list[Event]:
        self._opened()
        return self._audit.orphaned_events(lambda: self.records(Seal), limit)

    def prune_events(self, seal: Seal) -> bool:
        self._opened()
        return self._audit.prune_events(seal, self._clock())
