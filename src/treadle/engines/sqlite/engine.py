"""The SQLite engine: one file, many threads and processes, nothing to install."""

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from treadle.engines.fence import in_order
from treadle.engines.retention import Place, Rule, Sweeper, Window
from treadle.engines.rows import Row, renewal_of
from treadle.engines.scripts import Script, drive
from treadle.engines.sqlite import records
from treadle.engines.sqlite import settle as scripts
from treadle.engines.sqlite.claim import pick
from treadle.engines.sqlite.connection import (
    LEDGER,
    MEMORY,
    PATIENCE,
    WAL_RESET_FIXED,
    File,
    FileLocked,
    differences,
    migrations,
)
from treadle.engines.sqlite.rows import JOB, event_from, job_from, micros
from treadle.engines.values import (
    LISTED,
    OVERWRITE,
    Claim,
    Finding,
    JobFilter,
    Lease,
    Overwrite,
    Page,
    Receipt,
    Renewal,
    RenewalResult,
    Retention,
    Ruling,
    Saved,
    Turn,
    Verdict,
)
from treadle.errors import EngineError, SchemaError
from treadle.model import UUID, Change, Event, EventKind, Job, Scope, State
from treadle.model.clock import SystemClock
from treadle.model.records import Record, Schedule, Seal

T = TypeVar("T")
R = TypeVar("R", bound=Record)

_GLANCE = 0.01  # seconds between two looks at the file by a worker that waits
_BRIEFLY = 0.25  # seconds to wait for the lock when it is not worth more
FILINGS = 20  # times that one claim may put jobs away before it takes what it has
WINDOW = 1000  # finished jobs that are looked at in one go, to see which are old
_DATA_ERRORS = (ValueError, OverflowError, sqlite3.IntegrityError, sqlite3.DataError)


class SqliteEngine:
    """An Engine on a file of SQLite; see engines.base for the contract."""

    def __init__(
        self,
        path: str,
        *,
        clock: Callable[[], datetime] | None = None,
        synchronous: str = "full",
        audit_all: bool = False,
    ) -> None:
        self.file = File(path, synchronous=synchronous)
        self._clock = clock or SystemClock().now
        self._audit_all = audit_all
        self._waiting: set[threading.Event] = set()
        self._rounds = 0
        self._sweeper = Sweeper()

    # ------------------------------------------------------------------------------------ the schema

    def open(self) -> None:
        self.file.read("select 1")  # opening the file migrates it

    def migrate(self) -> list[str]:
        before = len(self.file.migrated)
        self.open()
        return self.file.migrated[before:]

    def check(self, *, quick: bool = False) -> list[str]:  # noqa: ARG002 - the whole comparison is quick
        if self.file.path == MEMORY:
            return []
        path = Path(self.file.path)
        if not path.exists():
            return [f"{path} does not exist yet: `treadle migrate` creates it"]
        if not path.is_file():
            raise EngineError(f"{path} cannot be opened: it is no file")
        with self.file.meaning(), closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            try:
                return differences(connection)
            except SchemaError as error:
                return [str(error)]

    def schema_sql(self) -> str:
        steps = [f"-- {step.name}, checksum {step.checksum}\n{step.sql}\n{step.record};\n" for step in migrations()]
        return "\n".join([f"{LEDGER};\n", *steps])

    def doctor(self) -> list[Finding]:
        version = sqlite3.sqlite_version
        if sqlite3.sqlite_version_info < WAL_RESET_FIXED:
            library = Finding(
                "warning",
                f"SQLite {version} has the WAL-reset bug (fixed in 3.51.3): several processes writing one file can, "
                "very rarely, damage it. Upgrade SQLite, or keep to one process, and back the file up",
            )
        else:
            library = Finding("ok", f"SQLite {version}")
        found = [library]
        synchronous = self.file.synchronous.lower()
        if synchronous == "full":
            found.append(Finding("ok", "synchronous=full: an enqueued job survives a power cut"))
        else:
            found.append(
                Finding("warning", f"synchronous={synchronous}: a power cut may undo the last acknowledged writes")
            )
        path = Path(self.file.path)
        if self.file.path != MEMORY and path.exists():
            who = {"effective_ids": True} if os.access in os.supports_effective_ids else {}
            both = (path.resolve(), path.resolve().parent)
            if locked := [str(one) for one in both if not os.access(one, os.W_OK, **who)]:
                return [*found, Finding("error", f"cannot write to {' and '.join(locked)}: make it writable")]
        if drift := self.check():
            found.append(Finding("error", "schema: " + "; ".join(drift)))
        else:
            found.append(Finding("ok", "schema is up to date"))
        return found

    def close(self) -> None:
        self.file.close()

    def now(self) -> datetime:
        return self._clock()

    # ----------------------------------------------------------------------------- the way of a job

    def enqueue(self, jobs: Sequence[Job], *, now: datetime | None = None) -> list[Receipt]:
        if not jobs:
            return []
        with self.file.write() as connection:
            receipts = self._enqueue(connection, jobs, now or self._clock())
        self._stir()
        return receipts

    def _enqueue(self, connection: sqlite3.Connection, jobs: Sequence[Job], now: datetime) -> list[Receipt]:
        try:
            with _Savepoint(connection):
                return _run(connection, scripts.enqueue(jobs, now, audit_all=self._audit_all))
        except _DATA_ERRORS as error:
            if len(jobs) == 1:
                return [Receipt(jobs[0], created=False, refused=str(error))]
        half = len(jobs) // 2
        return self._enqueue(connection, jobs[:half], now) + self._enqueue(connection, jobs[half:], now)

    def turn(self, changes: Sequence[Change], claim: Claim | None = None, *, now: datetime | None = None) -> Turn:
        if len({change.before.id for change in changes}) != len(changes):
            raise ValueError("a turn takes at most one change a job")
        if not changes and (claim is None or not self.file.look(lambda reader: self._promising(reader, claim, now))):
            return Turn([], [], now or self._clock())  # an idle worker must not queue for the write lock
        with self.file.write() as connection:
            now = now or self._clock()
            verdicts = self._settle(connection, changes, now) if changes else []
            jobs = self._claim(connection, claim, now) if claim is not None else []
        if changes:
            self._stir()
        return Turn(verdicts, jobs, now)

    def _settle(self, connection: sqlite3.Connection, changes: Sequence[Change], now: datetime) -> list[Verdict]:
        """Write the changes; a value the file will not take is found by halving, so that it falls alone."""
        try:
            with _Savepoint(connection):
                return _run(connection, scripts.settle(changes, now, audit_all=self._audit_all))
        except _DATA_ERRORS as error:
            if len(changes) == 1:
                return [Verdict(Ruling.REFUSED, why=str(error))]
        half = len(changes) // 2
        return self._settle(connection, changes[:half], now) + self._settle(connection, changes[half:], now)

    def _promising(self, reader: sqlite3.Connection, claim: Claim, now: datetime | None) -> bool:
        one, now = claim._replace(limit=1), now or self._clock()
        return bool(self._under(reader, claim.token) or any(pick(reader, one, now, records.gate(reader, now))))

    @staticmethod
    def _under(connection: sqlite3.Connection, token: str) -> list[Row]:
        """The jobs claimed under this token."""
        sql = f"select {JOB} from treadle_jobs where state = 'running' and lease_token = ?"  # noqa: S608
        return connection.execute(sql, (token,)).fetchall()

    def _claim(self, connection: sqlite3.Connection, claim: Claim, now: datetime) -> list[Job]:
        held = self._under(connection, claim.token)
        if held:  # this turn was here before, its answer was lost: give the same answer, claim no more
            return in_order([job_from(row) for row in held])
        self._rounds += 1
        ids = self._pick(connection, claim, now)
        if not ids:
            return []
        # state is compared again although we hold the write lock: the update must be right on its own.
        rows = connection.execute(
            f"""
            update treadle_jobs
            set state = 'running', attempt = attempt + 1, revision = revision + 1, claimed_at = ?, started_at = null,
                progress = null, lease_until = ?, lease_token = ?, worker = ?, filed = 0
            where id in (select value from json_each(?)) and state = 'pending'
            returning {JOB}
            """,  # noqa: S608
            (micros(now), micros(now + timedelta(seconds=claim.lease)), claim.token, claim.worker, json.dumps(ids)),
        ).fetchall()
        jobs = [job_from(row) for row in rows]
        keyed = [job.id for job in jobs if job.key_scope is Scope.PENDING]
        if keyed:
            connection.execute(scripts.RELEASE_KEYS, (json.dumps(keyed),))
        if self._audit_all:
            connection.executemany(
                "insert into treadle_events values (?, ?, ?, ?, ?, '', ?, null)",
                [(job.id, job.revision, micros(now), EventKind.CLAIMED, claim.worker, job.tenant) for job in jobs],
            )
        return in_order(jobs)

    def _pick(self, connection: sqlite3.Connection, claim: Claim, now: datetime) -> list[str]:
        """Ids to claim; what this worker may not take is put away, so that it is met once."""
        gate = records.gate(connection, now)
        for _ in range(FILINGS):
            picked = pick(connection, claim, now, gate, first=self._rounds)
            for put_away, ids in ((scripts.FILE, picked.strangers), (scripts.PARK, picked.parked)):
                if ids:
                    connection.execute(put_away, (json.dumps(ids),))
            if not picked.full:
                break
        return picked.ids

    def extend(self, leases: Sequence[Lease], *, lease: float, now: datetime | None = None) -> list[RenewalResult]:
        if not leases:
            return []
        rows = [renewal_of(held, micros) for held in leases]
        version = self._version()
        try:
            with self.file.write(patience=lease / 6) as connection:
                now = now or self._clock()
                found = connection.execute(
                    """
                    with c as materialized (
                        select value ->> 0 as id, value ->> 1 as token, value ->> 2 as started_at,
                            value ->> 3 as progress, value ->> 4 as cost_micros
                        from json_each(?)
                    )
                    update treadle_jobs as j
                    set lease_until = ?, started_at = coalesce(c.started_at, j.started_at),
                        progress = coalesce(c.progress, j.progress),
                        cost_micros = coalesce(c.cost_micros, j.cost_micros)
                    from c where j.id = c.id and j.state = 'running' and j.lease_token = c.token
                    returning id, lease_token, cancel_requested
                    """,
                    (json.dumps(rows), micros(now + timedelta(seconds=lease))),
                ).fetchall()
        except FileLocked:
            if self._version() != version:
                raise  # others do write, we were only unlucky: these leases may pass on
            # The file is locked and nobody has written: nobody can have taken these jobs since.
            ours = set(self.file.watch("select id, lease_token from treadle_jobs where state = 'running'"))
            return [
                RenewalResult(held.job_id, Renewal.BUSY if (held.job_id, held.token) in ours else Renewal.LOST)
                for held in leases
            ]
        renewed = {(job_id, token): cancel_requested == 1 for job_id, token, cancel_requested in found}
        return [
            RenewalResult(held.job_id, Renewal.RENEWED, renewed[held.job_id, held.token])
            if (held.job_id, held.token) in renewed
            else RenewalResult(held.job_id, Renewal.LOST)
            for held in leases
        ]

    def expired(self, *, limit: int, now: datetime | None = None) -> list[Job]:
        now = now or self._clock()
        if not self.file.look(lambda reader: _past(reader, 1, now)):
            return []
        # Look again with the write lock in hand: while others hold it, the holders of these leases cannot renew them.
        with self.file.write(patience=_BRIEFLY) as connection:
            return _past(connection, limit, now)

    def wait(self, queues: Sequence[str], timeout: float, interrupt: threading.Event | None = None) -> bool:  # noqa: ARG002
        """Wake at once for a write of this process, within a glance for one of another process."""
        woken = interrupt or threading.Event()
        deadline = time.monotonic() + timeout
        version = self._version()
        self._waiting.add(woken)
        try:
            while (left := deadline - time.monotonic()) > 0:
                if woken.wait(min(_GLANCE, left)) or self._version() != version:
                    return True
            return False
        finally:
            self._waiting.discard(woken)

    def _version(self) -> object:
        return self.file.watch("pragma data_version") if self.file.path != MEMORY else None

    def _stir(self) -> None:
        for woken in tuple(self._waiting):
            woken.set()

    # ------------------------------------------------------------------------------------ looking

    def get(self, ids: Sequence[str]) -> list[Job | None]:
        found = {row[0]: job_from(row) for row in self.file.read(scripts.READ, json.dumps(list(ids)))}
        return [found.get(id_) for id_ in ids]

    def find(self, where: JobFilter, *, limit: int, cursor: str | None = None) -> Page:
        conditions, values = _conditions(where)
        if where.state in LISTED:
            place, order = "(finished_at, id)", "finished_at desc, id desc"
            after = [int(cursor.split(":")[0]), _id(cursor.split(":")[1])] if cursor else []
            marks = "(?, ?)"
        else:
            place, order = "id", "id desc"
            after, marks = ([_id(cursor)] if cursor else []), "?"
        if cursor:
            conditions = [*conditions, f"{place} < {marks}"]
        filters = f"where {' and '.join(conditions)}" if conditions else ""
        tables = _tables(where.state)
        parts = [
            f"select * from (select {JOB} from {table} {filters} order by {order} limit ?)"  # noqa: S608
            for table in tables
        ]
        rows = self.file.read(
            f"{' union all '.join(parts)} order by {order} limit ?",
            *([*values, *after, limit] * len(tables)),
            limit,
        )
        jobs = [job_from(row) for row in rows]
        if len(jobs) < limit:
            return Page(jobs, None)
        last = jobs[-1]
        return Page(jobs, f"{micros(last.finished_at)}:{last.id}" if place != "id" else last.id)

    def count(self, where: JobFilter) -> dict[State, int]:
        conditions, values = _conditions(where)
        filters = f"where {' and '.join(conditions)}" if conditions else ""
        counts: dict[State, int] = {}
        for table in _tables(where.state):
            sql = f"select state, count(*) from {table} {filters} group by state"  # noqa: S608
            counts.update({State(str(state)): int(str(n)) for state, n in self.file.read(sql, *values)})
        return counts

    def events(self, job_id: str) -> list[Event]:
        rows = self.file.read(
            "select job, revision, at, kind, actor, note, tenant from treadle_events where job = ?"
            " order by revision, at",
            job_id,
        )
        return [event_from(row) for row in rows]

    def prune(self, keep: Retention, *, limit: int, now: datetime | None = None, to_the_end: bool = False) -> int:
        moment = now or self._clock()
        with self.file.write() as connection:
            connection.execute("delete from treadle_keys where until <= ?", (micros(moment),))
        return self._sweeper.sweep(keep, limit, moment, self._prune, to_the_end=to_the_end)

    def _prune(self, rule: Rule, since: Place, until: datetime, limit: int) -> Window:
        """Delete what the rule wants of the next jobs; in short transactions, for everybody waits for them."""
        with self.file.write() as connection:
            rows = connection.execute(
                """
                select id, task, finished_at from treadle_finished
                where state = ? and (finished_at, id) > (?, ?) and finished_at < ?
                and not exists (select 1 from treadle_keys where job = id)
                order by finished_at, id limit ?
                """,
                (rule.state, *(since or (-(2**62), "")), micros(until), WINDOW if rule.picky else limit),
            ).fetchall()
            gone = [row for row in rows if rule.wants(row[1])][:limit]
            if gone:
                connection.execute(scripts.DELETE_FINISHED, (json.dumps([row[0] for row in gone]),))
        if len(rows) < WINDOW and len(gone) < limit:
            return Window(len(gone), None)
        last = (gone if len(gone) == limit else rows)[-1]
        return Window(len(gone), (last[2], last[0]))

    def costs(self, *, since: datetime, until: datetime, tenant: str | None = None) -> dict[tuple[str, str], int]:
        rows = self.file.read(
            """
            select tenant, task, sum(cost_micros) from treadle_finished
            where cost_micros > 0 and finished_at >= ? and finished_at < ? and (? is null or tenant = ?)
            group by tenant, task
            """,
            micros(since), micros(until), tenant, tenant,
        )  # fmt: skip
        return {(tenant, task): micros for tenant, task, micros in rows}

    # ------------------------------------------------------------------------ the rows beside the jobs

    def records(self, kind: type[R], *, tenant: str | None = None) -> list[R]:
        return self.file.look(lambda reader: records.read(reader, kind, tenant))

    def due(self, *, limit: int, ahead: float = 0.0, now: datetime | None = None) -> list[Schedule]:
        until = (now or self._clock()) + timedelta(seconds=ahead)
        return self.file.look(lambda reader: records.due(reader, until, limit))

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
        patience = _BRIEFLY if before is OVERWRITE else PATIENCE  # what is said again soon need not wait for the lock
        with self.file.write(patience) as connection:
            done = records.save(connection, record, before)
            if done:
                records.note(connection, event)
                if job is not None:
                    [receipt] = self._enqueue(connection, [job], now or self._clock())
        if done:
            self._stir()
        return Saved(done, receipt)

    def drop(self, record: Record, *, event: Event | None = None) -> bool:
        with self.file.write() as connection:
            done = records.drop(connection, record)
            if done:
                records.note(connection, event)
        self._stir()
        return done

    # -------------------------------------------------------------------------------- the audit trail

    def unsealed(self, *, limit: int) -> list[Event]:
        return self.file.look(lambda reader: records.unsealed(reader, limit))

    def seal(self, seal: Seal, events: Sequence[Event]) -> bool:
        with self.file.write() as connection:
            return records.seal(connection, seal, events)

    def sealed(self, seal: Seal) -> list[Event]:
        return self.file.look(lambda reader: records.sealed(reader, seal))

    def orphaned_events(self, *, limit: int) -> list[Event]:
        return self.file.look(lambda reader: records.orphaned_events(reader, limit))

    def prune_events(self, seal: Seal) -> bool:
        with self.file.write() as connection:
            return records.prune_events(connection, seal, self._clock())

    # ------------------------------------------------------------- for the caller's own transaction

    def enqueue_script(self, jobs: Sequence[Job], *, now: datetime | None = None) -> Script[list[Receipt]]:
        yield from self._same_file()
        return (yield from scripts.enqueue(jobs, now or self._clock(), audit_all=self._audit_all))

    def settle_script(self, change: Change, *, now: datetime | None = None) -> Script[Verdict]:
        yield from self._same_file()
        return (yield from scripts.settle([change], now or self._clock(), audit_all=self._audit_all))[0]

    def _same_file(self) -> Script[None]:
        rows = yield (
            "select file, (select count(*) from sqlite_schema where name = 'treadle_migrations')"
            " from pragma_database_list where name = 'main' and ? = ''",
            "",
        )
        file, migrated = rows[0]
        if self.file.path == MEMORY or str(file) != str(Path(self.file.path).resolve()):
            raise EngineError(
                f"tx is a connection to {file or MEMORY}, but the jobs are in {self.file.path}: "
                "open the same file to enqueue or settle in its transaction"
            )
        if not migrated:
            raise EngineError(f"{file} has no treadle tables yet: call app.migrate() before your transaction begins")


class _Savepoint:
    """Undo what happened inside if it fails, and leave the transaction usable."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("savepoint treadle")

    def __exit__(self, failed: object, *_: object) -> None:
        if failed and self._connection.in_transaction:
            self._connection.execute("rollback to treadle")
        if self._connection.in_transaction:
            self._connection.execute("release treadle")


def _run(connection: sqlite3.Connection, script: Script[T]) -> T:
    """Drive a script on a connection of ours."""
    return drive(script, lambda sql, text: connection.execute(sql, (text,)).fetchall())


def _past(connection: sqlite3.Connection, limit: int, now: datetime) -> list[Job]:
    """Jobs whose lease, or whose time to start, is over."""
    rows = connection.execute(
        f"select {JOB} from treadle_jobs where state = 'running' and lease_until <= ?"  # noqa: S608
        " order by lease_until limit ?",
        (micros(now), limit),
    ).fetchall()
    rows += connection.execute(
        f"select {JOB} from treadle_jobs where state = 'pending' and expires_at <= ?"  # noqa: S608
        " order by expires_at limit ?",
        (micros(now), limit - len(rows)),
    ).fetchall()
    return [job_from(row) for row in rows]


def _id(text: str) -> str:
    if not UUID.fullmatch(text):
        raise ValueError(f"{text!r} is no id")
    return text


def _conditions(where: JobFilter) -> tuple[list[str], list[Any]]:
    given = {name: value for name, value in where._asdict().items() if value is not None}
    return [f"{name} = ?" for name in given], list(given.values())


def _tables(state: State | None) -> tuple[str, ...]:
    if state is None:
        return ("treadle_jobs", "treadle_finished")
    return ("treadle_finished",) if state.final else ("treadle_jobs",)
