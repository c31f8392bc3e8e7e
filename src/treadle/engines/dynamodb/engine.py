"""The DynamoDB engine: one table, no index, every decision by a condition of the write that makes it.

See docs/dynamodb.md for the layout and what each operation costs. A turn is a series of atoms: each change and each
claim is one of its own, so a part of a turn may be applied when the rest was not, and repeating it is safe.
"""

import random
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import TypeVar

from treadle.engines.dynamodb import schema
from treadle.engines.dynamodb.audit import Trail
from treadle.engines.dynamodb.claim import Claims
from treadle.engines.dynamodb.client import BRIEFLY, Client
from treadle.engines.dynamodb.cursors import Cursors
from treadle.engines.dynamodb.enqueue import Storing, new_job
from treadle.engines.dynamodb.gate import Keeper
from treadle.engines.dynamodb.items import Place, due_place, id_of, place_of
from treadle.engines.dynamodb.leases import Expiry, Recovery, Renewing
from treadle.engines.dynamodb.pools import Memory, Pools
from treadle.engines.dynamodb.queries import Costs, Reader
from treadle.engines.dynamodb.ranges import Slots
from treadle.engines.dynamodb.records import Records
from treadle.engines.dynamodb.retention import Pruning
from treadle.engines.dynamodb.scripts import Scripts
from treadle.engines.dynamodb.settle import Settling
from treadle.engines.dynamodb.writes import Part, Table
from treadle.engines.fence import stamped
from treadle.engines.scripts import Script
from treadle.engines.values import (
    Claim,
    Finding,
    JobFilter,
    Lease,
    Overwrite,
    Page,
    Receipt,
    RenewalResult,
    Retention,
    Saved,
    Turn,
    Verdict,
)
from treadle.engines.waiting import Waiters
from treadle.errors import EngineError, EngineUnavailable, SchemaError
from treadle.model import Change, Event, Job, State
from treadle.model.clock import SystemClock
from treadle.model.records import Record, Schedule, Seal

R = TypeVar("R", bound=Record)

SELDOM = 1 / 1440  # of the times that a worker prunes, which it does each minute


class DynamoEngine:
    """One table of DynamoDB."""

    def __init__(
        self,
        name: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        shards: int = 1,
        spread: int = schema.SPREAD,
        skew: float = 0.5,
        gate: bool = False,
        auto_migrate: bool = False,
        clock: Callable[[], datetime] | None = None,
        audit_all: bool = False,
    ) -> None:
        self.client = Client(name, region=region, endpoint=endpoint)
        self._given = clock is not None
        self._clock = clock or SystemClock().now
        self._spread = spread
        self._gate = gate  # whether a table is made with one
        self._audit_all = audit_all
        self._auto_migrate = auto_migrate
        self._slots = Slots(self.client, shards)
        self._cursors = Cursors()
        self._places: Memory[Place] = Memory()  # where jobs were seen last
        self._waiters = Waiters()
        self._pools = Pools()
        self._recovery = Recovery(self.client, self._slots, skew, self._pools.each)
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
        self._table = Table(self.client.table, spread, self._audit_all)
        self._reader = Reader(self.client, self._slots, spread, self._pools.each)
        self._storing = Storing(self.client, self._reader, self._pools, self._new)
        self._costs = Costs(self.client, self._table, self._pools.each)
        self._settling = Settling(
            self.client, self._table, self._reader, self._costs, self._cursors, self._places, self._new, self._due_place
        )
        self._scripts = Scripts(self._reader, self._new, self._settling.parts)
        self._renewing = Renewing(self.client, self._table, self._reader, self._places)
        self._expiry = Expiry(self.client, self._reader, self._table, self._pools.each)
        self._pruning = Pruning(self.client, self._reader, self._table, self._pools.each)
        self._trail = Trail(self.client, self._table, self._pools.each)
        keeper = Keeper(self.client, self._table, self._slots, self._pools.each, patient=not self._given)
        self._records = Records(self.client, self._table, self._storing, keeper, self._new)
        self._claims = Claims(
            self.client, self._table, self._slots, self._reader, self._pools, self._cursors, self._places,
            keeper, self._settling.put_back,
        )  # fmt: skip
        self._ready = True

    def migrate(self) -> list[str]:
        return [schema.MIGRATION] if schema.create(self.client, self._spread, gate=self._gate) else []

    def check(self, *, quick: bool = False) -> list[str]:
        return schema.differences(self.client, quick=quick)

    def schema_sql(self) -> str:
        return schema.as_text(self.client.table)

    def doctor(self) -> list[Finding]:
        try:
            differences = schema.differences(self.client, quick=False)
        except EngineUnavailable:
            raise
        except EngineError as error:  # a worker may do without that right
            found = [Finding("warning", f"the table was not compared: {error}")]
        else:
            if differences:
                return [Finding("error", event) for event in differences]
            found = [Finding("ok", f"{self.client.where} is up to date")]
        drift = self.client.drift
        if drift is not None:
            level = "warning" if abs(drift) > 1.5 else "ok"  # the server tells whole seconds
            found.append(Finding(level, f"this machine's clock and the server's differ by about {abs(drift):.0f} s"))
        found.append(Finding("ok", "there are no notifications here: workers find jobs by polling"))
        return found

    def close(self) -> None:
        self._pools.close()
        self.client.close()

    def now(self) -> datetime:
        return self._clock()

    def _opened(self) -> None:
        if not self._ready:
            self.open()

    # -------------------------------------------------------------------------------------- enqueue

    def enqueue(self, jobs: Sequence[Job], *, now: datetime | None = None) -> list[Receipt]:
        self._opened()
        now = now or self._clock()
        fresh: dict[str, Job] = {}
        for job in jobs:
            fresh.setdefault(job.id, stamped(job, now))
        receipts = self._storing.store(list(fresh.values()), now)
        self._waiters.wake()
        told: list[Receipt] = []
        for job in jobs:
            told.append(receipts[job.id])
            receipts[job.id] = receipts[job.id]._replace(created=False)  # a second one of the same id finds the first
        return told

    def _new(self, job: Job, now: datetime, dead: str | None = None) -> list[Part]:
        """What a new job writes, in a slot that everybody knows."""
        if job.expires_at is not None:
            self._recovery.expect(job.expires_at)
        return new_job(self._table, job, self._due_place(job), now, dead)

    def _due_place(self, job: Job) -> Place:
        place = due_place(job, self._slots.for_job(self._table, job), self._slots.shards)
        self._cursors.back(place.pk, place.sk)
        return place

    # ----------------------------------------------------------------------------------------- turn

    def turn(self, changes: Sequence[Change], claim: Claim | None = None, *, now: datetime | None = None) -> Turn:
        if len({change.before.id for change in changes}) != len(changes):
            raise ValueError("a turn takes at most one change a job")
        self._opened()
        moment = now or self._clock()
        repeated = claim is not None and self._claims.begun(claim.token)
        free = [change for change in changes if not change.takes_key]
        deadline = time.monotonic() + BRIEFLY  # for all of them: behind a crowded partition each has one try
        verdicts = self._pools.each(lambda change: self._settling.settle(change, moment, deadline), free)
        found = {change.before.id: verdict for change, verdict in zip(free, verdicts, strict=True)}
        for change in changes:
            if change.takes_key:  # one after the other: of two that want one key the first gets it
                found[change.before.id] = self._settling.settle(change, moment, time.monotonic() + BRIEFLY)
        if changes:
            self._waiters.wake()
        moment = now or self._clock()  # a lease counts from now, whatever the changes took
        jobs: list[Job] = []
        if claim is not None:
            self._waiters.claiming()
            jobs = self._claims.claim(claim, moment, repeated=repeated)
        if claim is not None and jobs:
            self._recovery.expect(moment + timedelta(seconds=claim.lease))
        return Turn([found[change.before.id] for change in changes], jobs, moment)

    # ------------------------------------------------------------------------------------ in between

    def extend(self, leases: Sequence[Lease], *, lease: float, now: datetime | None = None) -> list[RenewalResult]:
        self._opened()
        deadline = time.monotonic() + BRIEFLY  # for all: none waits for many

        def until() -> datetime:
            return (now or self._clock()) + timedelta(seconds=lease)

        forward = now is None and not self._given
        renew = self._renewing.renew
        return self._pools.each(lambda held: renew(held, until, deadline, forward=forward), leases, pool="renewals")

    def expired(self, *, limit: int, now: datetime | None = None) -> list[Job]:
        self._opened()
        now = now or self._clock()
        if not self._given and not self._recovery.due(now):
            return []
        past = list(islice(self._recovery.past(now), limit))
        for item in past:
            self._places.put(id_of(item), place_of(item))
        jobs = self._reader.jobs(past)
        jobs += islice(self._expiry.past(limit, now), limit - len(jobs))
        if jobs:
            self._recovery.expect(now)
        return jobs

    def wait(self, queues: Sequence[str], timeout: float, interrupt: threading.Event | None = None) -> bool:  # noqa: ARG002
        """Wake at once for a write of this process; others' are found by polling."""
        return self._waiters.wait(timeout, interrupt)

    # -------------------------------------------------------------------------------------- looking

    def get(self, ids: Sequence[str]) -> list[Job | None]:
        self._opened()
        return self._reader.get(ids)

    def find(self, where: JobFilter, *, limit: int, cursor: str | None = None) -> Page:
        self._opened()
        return self._reader.find(where, limit=limit, cursor=cursor)

    def count(self, where: JobFilter) -> dict[State, int]:
        self._opened()
        return self._reader.count(where)

    def events(self, job_id: str) -> list[Event]:
        self._opened()
        return self._reader.events(job_id)

    def prune(self, keep: Retention, *, limit: int, now: datetime | None = None, to_the_end: bool = False) -> int:
        self._opened()
        moment = now or self._clock()
        # Our ids tell when they were made, and nothing ends before it is made. Ids that others made, and ids under a
        # clock for tests, do not: so once in a while we look at all of them.
        everything = self._given or now is not None or random.random() < SELDOM  # noqa: S311 - no secret
        return self._pruning.prune(keep, limit, moment, everything=everything, to_the_end=to_the_end)

    def costs(self, *, since: datetime, until: datetime, tenant: str | None = None) -> dict[tuple[str, str], int]:
        self._opened()
        return self._costs.read(since, until, tenant)

    # ------------------------------------------------------------------------ the rows beside the jobs

    def records(self, kind: type[R], *, tenant: str | None = None) -> list[R]:
        self._opened()
        return self._records.read(kind, tenant)

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

    # -------------------------------------------------------------------------------- the audit trail

    def unsealed(self, *, limit: int) -> list[Event]:
        self._opened()
        return self._trail.unsealed(limit)

    def seal(self, seal: Seal, events: Sequence[Event]) -> bool:
        self._opened()
        return self._trail.seal(seal, events)

    def sealed(self, seal: Seal) -> list[Event]:
        self._opened()
        return self._trail.sealed(seal)

    def orphaned_events(self, *, limit: int) -> list[Event]:
        return self._trail.orphaned_events(lambda: self.records(Seal), limit)

    def prune_events(self, seal: Seal) -> bool:
        self._opened()
        return self._trail.prune_events(seal, self._clock())

    # ------------------------------------------------------------- for the caller's own transaction

    def enqueue_script(self, jobs: Sequence[Job], *, now: datetime | None = None) -> Script[list[Receipt]]:
        self._opened()
        return (yield from self._scripts.enqueue(jobs, now or self._clock()))

    def settle_script(self, change: Change, *, now: datetime | None = None) -> Script[Verdict]:
        self._opened()
        place = self._settling.where(change)  # read, not remembered: nobody tries again if it is wrong
        return (yield from self._scripts.settle(change, place, now or self._clock()))
