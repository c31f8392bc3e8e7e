"""The PostgreSQL engine: many workers on many machines, and the caller's own transactions."""

import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, TypeVar

from treadle.engines.postgres import audit, queries, records, retention, rls, schedules
from treadle.engines.postgres.claim import PostgresTurns
from treadle.engines.postgres.clock import ServerClock
from treadle.engines.postgres.connection import Connections, conninfo
from treadle.engines.postgres.doctor import doctor
from treadle.engines.postgres.enqueue import enqueue, enqueue_script
from treadle.engines.postgres.leases import cancel_requests, expired, extend, memos
from treadle.engines.postgres.notify import Notifications
from treadle.engines.postgres.schema import PostgresSchema
from treadle.engines.postgres.session import PostgresStore, Session
from treadle.engines.postgres.settle import settle_script
from treadle.engines.retention import Sweeper
from treadle.engines.scripts import Script
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
from treadle.model import Change, Event, Job, State
from treadle.model.lifecycle import Success
from treadle.model.memo import Memo
from treadle.model.records import Record, Schedule, Seal

R = TypeVar("R", bound=Record)


class PostgresEngine:
    """An Engine on PostgreSQL 15 or newer; engines/contract.py says what each method does."""

    searches_payloads: Final = True

    def __init__(self, server: Connections, schema: PostgresSchema, store: PostgresStore) -> None:
        self.server = server
        self.schema = schema.name
        self.session = store.session
        self.turns = PostgresTurns(store)
        self._schema = schema
        self._store = store
        self._sweeper = Sweeper()

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        schema_name: str = "treadle",
        prepare: str = "auto",
        listen_url: str | None = None,
        auto_migrate: bool = False,
        plain_sql: bool | None = None,
        clock: Callable[[], datetime] | None = None,
        audit_all: bool = False,
    ) -> "PostgresEngine":
        """The engine at this URL; nothing is opened until it is used. LISTEN goes to `listen_url`, if there is one.

        `prepare`: whether calls of our functions are prepared on the server: on, off, or auto.

        `plain_sql`: whether `migrate` lets jobs be enqueued with it, or not; None: as it is.
        """
        server = listen = Connections(conninfo(url), prepare=prepare)
        if listen_url is not None:
            listen = Connections(conninfo(listen_url, "listen_url"), prepare="off")
        schema = PostgresSchema(server, schema_name, auto_migrate=auto_migrate, plain_sql=plain_sql)
        notifications = Notifications(listen.connect, f"treadle_{schema.name}")
        store = PostgresStore(Session(server, schema), ServerClock(server, clock), notifications, audit_all)
        return cls(server, schema, store)

    # ------------------------------------------------------------------------------------ the schema

    def open(self) -> None:
        self._schema.open()

    def migrate(self) -> list[str]:
        return self._schema.migrate()

    def migrate_half(self, half: Half) -> list[str]:
        return self._schema.migrate(half)

    def check(self, *, quick: bool = False) -> list[str]:
        return self._schema.check(quick=quick)

    def schema_sql(self) -> str:
        return self._schema.script()

    def half_sql(self, half: Half) -> str:
        return self._schema.script(half)

    def doctor(self) -> list[Finding]:
        return doctor(self.server, self._schema, self._store.notifications)

    def close(self) -> None:
        self._store.notifications.close()
        self.server.close()

    # --------------------------------------------------------------------------------------- tenants

    def rls(self, roles: RowSecurity, *, only_sql: bool = False) -> str:
        sql = rls.rls_sql(self.schema, roles)
        if not only_sql:
            self.session.transact(lambda connection: connection.execute(sql))
        return sql

    def for_tenant(self, tenant: str) -> "PostgresEngine":
        return PostgresEngine(self.server, self._schema, self._store.for_tenant(tenant))

    # ----------------------------------------------------------------------------- the way of a job

    def now(self) -> datetime:
        return self._store.clock.now()

    def enqueue(self, jobs: Sequence[Job], *, now: datetime | None = None) -> Sequence[Receipt]:
        return enqueue(self._store, jobs, now)

    def turn(
        self, changes: Sequence[Change | Success], claim: Claim | None = None, *, now: datetime | None = None
    ) -> Turn:
        return self.turns.turn(changes, claim, now)

    def extend(self, leases: Sequence[Lease], *, lease: float, now: datetime | None = None) -> list[RenewalResult]:
        return extend(self._store, leases, lease, now)

    def memos(self, job_id: str) -> list[Memo]:
        return memos(self._store, job_id)

    def cancel_requests(self, job_ids: Sequence[str]) -> set[str]:
        return cancel_requests(self._store, job_ids)

    def expired(self, *, limit: int, now: datetime | None = None) -> list[Job]:
        return expired(self._store, limit, now)

    def wait(self, queues: Sequence[str], timeout: float, interrupt: threading.Event | None = None) -> bool:  # noqa: ARG002
        """Wake at once for a write of this process, and, where LISTEN works, for an enqueue of another."""
        return self._store.notifications.wait(timeout, interrupt)

    def wake(self, *, others: bool = False) -> None:
        self._store.notifications.wake()
        if others:
            self.session.send("select pg_notify($1, '')", self._store.notifications.channel)

    def get(self, ids: Sequence[str]) -> list[Job | None]:
        return queries.get(self.session, ids)

    def find(self, where: JobFilter, *, limit: int, cursor: str | None = None, bare: bool = False) -> Page:
        return queries.find(self.session, where, limit, cursor, bare)

    def count(self, where: JobFilter, *, limit: int | None = None, now: datetime | None = None) -> dict[State, Count]:
        moment = self._store.clock.written(now)
        if limit is None:
            return queries.count(self.session, where, moment)
        return queries.estimate(self.session, where, limit, moment)

    def tally(
        self, *, since: datetime, limit: int, tenant: str | None = None, now: datetime | None = None
    ) -> list[Tally]:
        return queries.tally(self.session, since, limit, tenant, self._store.clock.written(now))

    def costs(self, *, since: datetime, until: datetime, tenant: str | None = None) -> dict[tuple[str, str], int]:
        return queries.costs(self.session, since, until, tenant)

    def prune(self, keep: Retention, *, limit: int, now: datetime | None = None, to_the_end: bool = False) -> int:
        return retention.prune(self._store, self._sweeper, keep, limit, now, to_the_end=to_the_end)

    def enqueue_script(
        self, jobs: Sequence[Job], *, now: datetime | None = None, notify: bool = False
    ) -> Script[Sequence[Receipt]]:
        channel = self._store.notifications.channel if notify else None
        return self.session.for_caller(enqueue_script(self._store, jobs, self._store.clock.written(now), channel))

    def settle_script(self, change: Change, *, now: datetime | None = None) -> Script[Verdict]:
        script = settle_script(change, self._store.clock.written(now), audit_all=self._store.audit_all)
        return self.session.for_caller(script)

    # ------------------------------------------------------------------------ the rows beside the jobs

    def records(self, kind: type[R], *, tenant: str | None = None, name: str | None = None) -> list[R]:
        return records.read(self.session.read, kind, tenant, name)

    def find_schedules(
        self, where: ScheduleFilter, *, limit: int, after: tuple[str, str] | None = None
    ) -> list[Schedule]:
        return schedules.find(self.session.read, where, limit, after)

    def due(self, *, limit: int, ahead: float = 0.0, now: datetime | None = None) -> list[Schedule]:
        return records.due(self.session.read, limit, ahead, self._store.clock.written(now))

    def save(
        self,
        record: Record,
        *,
        before: Record | Overwrite | None,
        event: Event | None = None,
        job: Job | None = None,
        now: datetime | None = None,
    ) -> Saved:
        return records.save(self._store, record, before, event, job, now)

    def drop(self, record: Record, *, event: Event | None = None) -> bool:
        return records.drop(self._store, record, event)

    def schedule_script(self, tenant: str, name: str) -> Script[tuple[Schedule | None, int]]:
        return self.session.for_caller(schedules.schedule_script(tenant, name))

    def save_script(self, after: Schedule | None, *, before: Schedule | None, event: Event) -> Script[bool]:
        return self.session.for_caller(schedules.save_script(after, before, event))

    # -------------------------------------------------------------------------------- the audit trail

    def events(self, job_id: str, *, latest: int | None = None) -> list[Event]:
        return audit.events(self.session.read, job_id, latest)

    def unsealed(self, *, limit: int, newest: bool = False, before: audit.Place | None = None) -> list[Event]:
        if newest:
            return audit.newest_unsealed(self.session.read, limit, before)
        return audit.unsealed(self.session.read, limit)

    def seal(self, seal: Seal, events: Sequence[Event]) -> bool:
        return audit.seal(self.session.read, seal, events)

    def sealed(self, seal: Seal) -> list[Event]:
        return audit.sealed(self.session.read, seal)

    def orphaned_events(self, *, limit: int) -> list[Event]:
        return audit.orphaned_events(self.session.read, limit)

    def prune_events(self, seal: Seal) -> bool:
        return audit.prune_events(self.session.read, seal, self._store.clock.written(None))
