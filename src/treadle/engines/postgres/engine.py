"""The PostgreSQL engine: many workers on many machines, and the caller's own transactions."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import TypeVar

import psycopg

from treadle.engines.fence import in_order
from treadle.engines.postgres import queries as looking
from treadle.engines.postgres import records, schema
from treadle.engines.postgres import settle as scripts
from treadle.engines.postgres.connection import CALL, DATA_ERRORS, Connection, Connections, conninfo
from treadle.engines.postgres.cursors import Places
from treadle.engines.postgres.doctor import FACTS, examine
from treadle.engines.postgres.notify import ECHO, Listener
from treadle.engines.postgres.records import Values
from treadle.engines.postgres.retention import COSTS, EXTEND, OLD_KEYS, PAST, STILL, pruning, renewal
from treadle.engines.postgres.rls import SETTING, rls_sql, stand
from treadle.engines.postgres.rls import examine as examine_walls
from treadle.engines.postgres.rows import JOB, change_record, event_from, job_from, packed, storable
from treadle.engines.postgres.turn import SPARE, Answer, parameter, statement
from treadle.engines.retention import Place, Rule, Sweeper, Window
from treadle.engines.rows import Row
from treadle.engines.scripts import Script, drive
from treadle.engines.values import (
    Claim,
    Finding,
    Half,
    JobFilter,
    Lease,
    Overwrite,
    Page,
    Receipt,
    Renewal,
    RenewalResult,
    Retention,
    RowSecurity,
    Ruling,
    Saved,
    Turn,
    Verdict,
)
from treadle.errors import EngineError, SchemaError
from treadle.model import UUID, Change, Event, Job, State
from treadle.model.records import Pause, Record, Schedule, Seal

T = TypeVar("T")
R = TypeVar("R", bound=Record)

PERSISTENCE = 5.0  # seconds for which a caller's own calls are tried again while the server does not answer
FILLING = 1.0  # seconds that one claim may take to fill up from many lanes, or past jobs it does not know
RENEWED_AT_ONCE = 500
_WHOSE = f"select coalesce(current_setting('{SETTING}', true), '') where $1::text is not null"
_SET = f"select set_config('{SETTING}', $1::text, true)"
BRIEFLY = "100ms"  # to wait for a key that is in somebody's open transaction
REMEMBERED = 600.0  # seconds after which the server is asked for its time again


class PostgresEngine:
    """An Engine on PostgreSQL 15 or newer; see engines.base for the contract."""

    def __init__(
        self,
        url: str,
        *,
        schema_name: str = "treadle",
        prepare: bool = False,
        listen_url: str | None = None,
        auto_migrate: bool = False,
        clock: Callable[[], datetime] | None = None,
        audit_all: bool = False,
    ) -> None:
        self.schema = schema.schema_name(schema_name)
        self.server = direct = Connections(conninfo(url), prepare=prepare)
        if listen_url is not None:
            direct = Connections(conninfo(listen_url, "listen_url"), prepare=False)
        self._channel = f"treadle_{self.schema}"
        self._listener = Listener(direct.connect, self._channel)
        self._auto_migrate = auto_migrate
        self._clock = clock
        self._audit_all = audit_all
        self._known: tuple[datetime, float] | None = None  # the server's time, and ours when it said so
        self._asked = float("-inf")  # when we last had to ask for it
        self._notified = 0.0
        self._ready = False
        self._opening = threading.Lock()
        self._rounds = 0
        self._places = Places()
        self._aside: set[tuple[str, ...]] = set()  # queues whose last claim met a pause, or something put away
        self._sweeper = Sweeper()
        self._own_isolation = False  # whether each claim must say that it is read committed
        self._tenant: str | None = None  # whose rows alone are seen, where there are walls

    # ------------------------------------------------------------------------------------ the schema

    def open(self) -> None:
        with self._opening:
            if self._ready:
                return
            if self._auto_migrate:
                self.migrate_half("pre")
            if lacking := self._lacking():
                raise SchemaError(f"{self.server.where}: {lacking[0]}: run `treadle migrate`, or set auto_migrate")
            isolation = self.server.run(lambda c: c.execute("show default_transaction_isolation").fetchall())
            self._own_isolation = isolation != [("read committed",)]  # behind a pooler we have no say in it
            self._ready = True

    def _lacking(self) -> list[str]:
        done = self.server.run(lambda connection: schema.ledger(connection, self.schema), persist=PERSISTENCE)
        schema.refuse_strangers(done)
        missing = schema.missing(done)
        return [f"schema {self.schema} lacks {', '.join(missing)}"] if missing else []

    def migrate(self) -> list[str]:
        return self._migrate(None)

    def migrate_half(self, half: Half) -> list[str]:
        return self._migrate(half)

    def _migrate(self, half: Half | None) -> list[str]:
        return self.server.transaction(lambda connection: schema.migrate(connection, self.schema, half), patience=300.0)

    def check(self, *, quick: bool = False) -> list[str]:
        try:
            if quick:
                return self._lacking()
            return self.server.transaction(lambda connection: schema.differences(connection, self.schema))
        except SchemaError as error:
            return [str(error)]

    def schema_sql(self) -> str:
        return schema.script(self.schema)

    def half_sql(self, half: Half) -> str:
        return schema.script(self.schema, half)

    def doctor(self) -> list[Finding]:
        facts = self.server.run(lambda c: c.execute(FACTS).fetchall(), persist=PERSISTENCE)[0]
        standby = facts[-1]
        try:
            drift = self.check(quick=standby)
        except EngineError as error:
            if not isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
                raise
            drift = None

        def notify(connection: Connection) -> object:
            return connection.execute("select pg_notify(%s, 'doctor')", [self._channel])

        hears = not standby and self._listener.hears(lambda: self.server.run(notify))
        walls = self.server.run(lambda connection: examine_walls(connection, self.schema))
        return [*examine(facts, drift, hears=hears), *walls]

    def close(self) -> None:
        self._listener.close()
        self.server.close()

    def rls(self, roles: RowSecurity, *, only_sql: bool = False) -> str:
        sql = rls_sql(self.schema, roles)
        if not only_sql:
            self._transact(lambda connection: connection.execute(sql))
        return sql

    def for_tenant(self, tenant: str) -> "PostgresEngine":
        """The same connections; each transaction names the tenant, if there are walls."""
        bound = copy(self)
        bound._tenant = tenant
        bound.__dict__.pop("_walled", None)
        return bound

    def now(self) -> datetime:
        if self._clock is not None:
            return self._clock()
        known = self._known
        if known is None:
            known = self._ask()
        elif _elapsed() - max(known[1], self._asked) > REMEMBERED:
            self._asked = _elapsed()  # not again at once: while the server is away, what we know has to do
            with suppress(EngineError):
                known = self._ask()
        return known[0] + timedelta(seconds=_elapsed() - known[1])

    def _ask(self) -> tuple[datetime, float]:
        """Hear the server's time."""
        [[now]] = self.server.run(lambda c: c.execute("select statement_timestamp()").fetchall(), persist=PERSISTENCE)
        self._known = known = (now.astimezone(UTC), _elapsed())
        return known

    def _heard(self, now: datetime) -> None:
        """The server has just told its time."""
        if self._clock is None:
            self._known = (now.astimezone(UTC), _elapsed())

    # ----------------------------------------------------------------------------- the way of a job

    def enqueue(self, jobs: Sequence[Job], *, now: datetime | None = None) -> list[Receipt]:
        if not jobs:
            return []
        receipts = self._enqueue(jobs, self._time(now))
        if any(receipt.created for receipt in receipts):
            self._listener.stir()
        return receipts

    def _enqueue(self, jobs: Sequence[Job], now: datetime | None) -> list[Receipt]:
        """Store jobs; a value the server will not take is found by halving, so that it falls alone."""
        channel = self._loud()

        def store(connection: Connection) -> list[Receipt]:
            return self._drive(connection, self._enqueuing(jobs, now, channel))

        # Without keys and audit events the insert is one statement, and that is its own transaction.
        plain = not self._audit_all and all(job.key is None for job in jobs)
        try:
            receipts = (self._run if plain else self._transact)(store, persist=PERSISTENCE)
        except (EngineError, *DATA_ERRORS) as error:
            why = _refusal(error)
            if len(jobs) == 1:
                return [Receipt(jobs[0], created=False, refused=why)]
            half = len(jobs) // 2
            return self._enqueue(jobs[:half], now) + self._enqueue(jobs[half:], now)
        for receipt in receipts:
            if receipt.created:
                self._heard(receipt.job.created_at)
                break
        return receipts

    def _enqueuing(self, jobs: Sequence[Job], now: datetime | None, notify: str | None = None) -> Script[list[Receipt]]:
        return scripts.enqueue(jobs, now, audit_all=self._audit_all, notify=notify, walled=self._walled)

    def _loud(self) -> str | None:
        """Where to say that there are new jobs, unless we did so just now."""
        if time.monotonic() - self._notified <= ECHO / 2:
            return None
        self._notified = time.monotonic()
        return self._channel

    def turn(self, changes: Sequence[Change], claim: Claim | None = None, *, now: datetime | None = None) -> Turn:
        if len({change.before.id for change in changes}) != len(changes):
            raise ValueError("a turn takes at most one change a job")
        now = self._time(now)
        plain = [change for change in changes if scripts.plain(change)]
        verdicts: dict[str, Verdict] = {}
        if claim is None or len(plain) < len(changes) or any(self._makes_due(change, now) for change in plain):
            verdicts = self._settle(plain, now)
            verdicts |= {c.before.id: self._settle_alone(c, now) for c in changes if not scripts.plain(c)}
            plain = []
        answer = Answer()
        if claim is not None:
            try:
                self._take(plain, claim, now, answer)
            except (EngineError, *DATA_ERRORS) as error:
                _refusal(error)
                if not plain:
                    raise
                verdicts |= self._settle(plain, now)
                plain = []
                self._take([], claim, now, answer)
            verdicts |= self._judged(plain, answer, now)
            if not answer.held:
                self._fill(claim, now, answer)
        jobs: list[Job] = []
        if claim is not None:
            jobs = self._held(claim.token) if answer.claimed or answer.held else []
            self._places.learn(claim, jobs, took=answer.took, known=answer.knew, now=time.monotonic())
        return Turn([verdicts[change.before.id] for change in changes], jobs, answer.now or now or self.now())

    def _makes_due(self, change: Change, now: datetime | None) -> bool:
        """Whether the change makes a job due at once: one statement sees one snapshot, and could not claim it."""
        put_back = change.after.state is State.PENDING and change.after.due_at <= (now or self.now())
        return put_back or change.follow is not None

    def _settle(self, changes: Sequence[Change], now: datetime | None) -> dict[str, Verdict]:
        """Write the changes; a value the server will not take is found by halving, so that it falls alone."""
        if not changes:
            return {}
        answer = Answer()
        try:
            if any(change.follow is not None for change in changes):
                answer.settled = self._settle_and_follow(changes, now)
            else:
                self._take(changes, None, now, answer)
        except (EngineError, *DATA_ERRORS) as error:
            why = _refusal(error)
            if len(changes) == 1:
                return {changes[0].before.id: Verdict(Ruling.REFUSED, why=why)}
            half = len(changes) // 2
            return self._settle(changes[:half], now) | self._settle(changes[half:], now)
        return self._judged(changes, answer, now)

    def _settle_and_follow(self, changes: Sequence[Change], now: datetime | None) -> set[str]:
        """Write the changes and the jobs that follow them; the ids of those that were written."""
        script = partial(scripts.settle_all, changes, now, audit_all=self._audit_all, notify=self._loud())
        settled = self._transact(lambda connection: self._drive(connection, script()), waits=BRIEFLY)
        self._listener.stir()
        return settled

    def _take(self, changes: Sequence[Change], claim: Claim | None, now: datetime | None, answer: Answer) -> None:
        """Send the one statement of a turn, and understand its answer."""
        places = [] if claim is None or self._clock is not None else self._places.of(claim, time.monotonic())
        queues = tuple(claim.queues) if claim is not None else ()
        aside = queues in self._aside
        self._rounds += 1
        text = parameter(
            [change_record(change, audit_all=self._audit_all) for change in changes],
            claim,
            now,
            audit_all=self._audit_all,
            places=places,
            spare=SPARE if answer.put_away else 0,
            again=bool(answer.claimed),
            first=self._rounds,
        )
        sql, sent = statement(claim, settles=bool(changes), places=places, aside=aside), time.monotonic()
        send = self._transact if self._own_isolation else self._run
        answer.understand(send(lambda connection: self._execute(connection, sql, text)))
        if answer.aside or answer.put_away:
            self._aside.add(queues)
            answer.more = answer.more or not aside
        else:
            self._aside.discard(queues)
        if answer.now is not None:
            self._heard(answer.now)
        answer.took, answer.knew = time.monotonic() - sent, bool(places)

    def _fill(self, claim: Claim, now: datetime | None, answer: Answer) -> None:
        """Claim on, while there may be more: in lanes that gave their share, or behind jobs that we may not take."""
        deadline = time.monotonic() + FILLING
        while len(answer.claimed) < claim.limit and answer.more and time.monotonic() < deadline:
            self._take([], claim, now, answer)

    def _settle_alone(self, change: Change, now: datetime | None) -> Verdict:
        """Write one change that takes several statements, in a transaction of its own."""

        def write(connection: Connection) -> Verdict:
            return self._drive(connection, scripts.settle(change, now, audit_all=self._audit_all))

        try:
            return self._transact(write, waits=BRIEFLY)
        except (EngineError, *DATA_ERRORS) as error:
            if _is_locked(error):
                return Verdict(Ruling.BUSY)  # somebody's open transaction has the key, or lets go of it
            return Verdict(Ruling.REFUSED, why=_refusal(error))

    def _judged(self, changes: Sequence[Change], answer: Answer, now: datetime | None) -> dict[str, Verdict]:
        """A verdict a change; of jobs that the same statement claimed, judged as they were before."""
        verdicts = dict.fromkeys(answer.settled, Verdict(Ruling.APPLIED))
        unwritten = [change for change in changes if change.before.id not in answer.settled]
        if unwritten:
            found = self.get([change.before.id for change in unwritten])
            for change, job in zip(unwritten, found, strict=True):
                if job is not None and job.id in answer.claimed:  # by this very statement: it was pending before
                    token, put_back = answer.before.get(job.id), change.after.state is State.PENDING
                    ours = put_back and token == change.before.lease_token and change.after.revision + 1 == job.revision
                    verdicts[job.id] = Verdict(Ruling.ALREADY if token and ours else Ruling.LOST, job)
                else:
                    verdicts[change.before.id] = scripts.verdict(change, job, now)
        return verdicts

    def _held(self, token: str) -> list[Job]:
        """The jobs claimed under this token, in order."""
        sql = f"select {JOB} from @.jobs where state = 'running' and lease_token = %s"
        return in_order(job_from(row) for row in self._read(sql, [token]))

    def extend(self, leases: Sequence[Lease], *, lease: float, now: datetime | None = None) -> list[RenewalResult]:
        now, patience = self._time(now), max(1.0, lease / 6)
        answers: list[RenewalResult] = []
        for start in range(0, len(leases), RENEWED_AT_ONCE):
            answers += self._extend(leases[start : start + RENEWED_AT_ONCE], lease, now, patience)
        return answers

    def _extend(
        self, leases: Sequence[Lease], lease: float, now: datetime | None, patience: float
    ) -> list[RenewalResult]:
        text = packed([renewal(held) for held in leases], now, lease=lease)
        rows = self._run(lambda connection: self._execute(connection, EXTEND, text), patience=patience)
        renewed = {(id_, token): asked for id_, token, asked, _ in rows}
        for row in rows:
            self._heard(row[3])
            break
        missing = [held.job_id for held in leases if (held.job_id, held.token) not in renewed]
        ours: set[Row] = set()
        if missing:  # still ours, but locked by somebody's open transaction: nobody can take it while that lasts
            text = json.dumps(missing)
            ours = set(self._run(lambda connection: self._execute(connection, STILL, text), patience=patience))
        return [
            RenewalResult(held.job_id, Renewal.RENEWED, renewed[held.job_id, held.token])
            if (held.job_id, held.token) in renewed
            else RenewalResult(held.job_id, Renewal.BUSY if (held.job_id, held.token) in ours else Renewal.LOST)
            for held in leases
        ]

    def expired(self, *, limit: int, now: datetime | None = None) -> list[Job]:
        rows = self._read(PAST, {"now": self._time(now), "limit": limit})
        self._heard(rows[0][0])  # a clock that was set ahead must be seen before its leases are believed
        return [job_from(row[1:]) for row in rows if row[1] is not None]

    def wait(self, queues: Sequence[str], timeout: float, interrupt: threading.Event | None = None) -> bool:  # noqa: ARG002
        """Wake at once for a write of this process, and, where LISTEN works, for an enqueue of another."""
        return self._listener.wait(timeout, interrupt or threading.Event())

    # ------------------------------------------------------------------------------------ looking

    def get(self, ids: Sequence[str]) -> list[Job | None]:
        wanted = [id_ for id_ in ids if _is_id(id_)]
        text = json.dumps(wanted)
        rows = self._run(lambda connection: self._execute(connection, scripts.READ, text), persist=PERSISTENCE)
        found = {row[0]: job_from(row) for row in rows}
        return [found.get(id_) for id_ in ids]

    def find(self, where: JobFilter, *, limit: int, cursor: str | None = None) -> Page:
        if any(isinstance(value, str) and not storable(value) for value in where):
            return Page([], None)  # what cannot be stored cannot be found
        sql, values = looking.find(where, limit, cursor)
        return looking.page(self._read(sql, values), where, limit)

    def count(self, where: JobFilter) -> dict[State, int]:
        if any(isinstance(value, str) and not storable(value) for value in where):
            return {}
        return {State(state): number for state, number in self._read(*looking.count(where))}

    def events(self, job_id: str) -> list[Event]:
        return [event_from(row) for row in self._read(looking.EVENTS, [job_id])] if _is_id(job_id) else []

    def prune(self, keep: Retention, *, limit: int, now: datetime | None = None, to_the_end: bool = False) -> int:
        moment = self._time(now)
        self._run(lambda connection: self._execute(connection, OLD_KEYS, packed([], moment)))
        return self._sweeper.sweep(keep, limit, moment or self.now(), self._prune, to_the_end=to_the_end)

    def _prune(self, rule: Rule, since: Place, until: datetime, limit: int) -> Window:
        sql, text = pruning(rule, since, until, limit)
        [[gone, *end]] = self._run(lambda connection: self._execute(connection, sql, text))
        return Window(gone, end if end[0] is not None else None)

    def costs(self, *, since: datetime, until: datetime, tenant: str | None = None) -> dict[tuple[str, str], int]:
        rows = self._read(COSTS, {"since": since, "until": until, "tenant": tenant})
        return {(tenant, task): int(micros) for tenant, task, micros in rows}

    # ------------------------------------------------------------------------ the rows beside the jobs

    def records(self, kind: type[R], *, tenant: str | None = None) -> list[R]:
        return records.read(self._read, kind, tenant) if tenant is None or storable(tenant) else []

    def due(self, *, limit: int, ahead: float = 0.0, now: datetime | None = None) -> list[Schedule]:
        return records.due(self._read, limit, ahead, self._time(now))

    def save(
        self,
        record: Record,
        *,
        before: Record | Overwrite | None,
        event: Event | None = None,
        job: Job | None = None,
        now: datetime | None = None,
    ) -> Saved:
        saved = self._save(record, before, event, job, self._time(now))
        if isinstance(record, Pause):  # also if it was there already: who stored it may not have waited to the end
            records.await_claims(self._read)
        if saved.receipt is not None and saved.receipt.created:
            self._listener.stir()
        return saved

    def _save(
        self,
        record: Record,
        before: Record | Overwrite | None,
        event: Event | None,
        job: Job | None,
        now: datetime | None,
    ) -> Saved:
        def write(connection: Connection) -> Saved:
            done = records.save(partial(self._query, connection), record, before, event)
            if not done or job is None:
                return Saved(done)
            script = self._enqueuing([job], now, self._loud())
            return Saved(True, self._drive(connection, script)[0])

        try:
            return self._transact(write, waits=BRIEFLY)
        except (EngineError, *DATA_ERRORS) as error:
            if _is_locked(error):
                return Saved(done=False)  # somebody's open transaction changes it, or has the job's key
            if job is None:
                raise
            why = _refusal(error)
            saved = self._save(record, before, event, None, now)
            return saved._replace(receipt=Receipt(job, created=False, refused=why)) if saved.done else saved

    def drop(self, record: Record, *, event: Event | None = None) -> bool:
        def write(connection: Connection) -> bool:
            done = records.drop(partial(self._query, connection), record, event)
            if done and isinstance(record, Pause):
                self._query(connection, "select pg_notify(%s, 'resumed')", [self._channel])
            return done

        try:
            done = self._transact(write, waits=BRIEFLY)
        except EngineError as error:
            if not _is_locked(error):
                raise
            return False
        self._listener.stir()
        return done

    # -------------------------------------------------------------------------------- the audit trail

    def unsealed(self, *, limit: int) -> list[Event]:
        return records.unsealed(self._read, limit)

    def seal(self, seal: Seal, events: Sequence[Event]) -> bool:
        return records.seal(self._read, seal, events)

    def sealed(self, seal: Seal) -> list[Event]:
        return records.sealed(self._read, seal)

    def orphaned_events(self, *, limit: int) -> list[Event]:
        return records.orphaned_events(self._read, limit)

    def prune_events(self, seal: Seal) -> bool:
        return records.prune_events(self._read, seal, self._time(None))

    # ------------------------------------------------------------- for the caller's own transaction

    def enqueue_script(self, jobs: Sequence[Job], *, now: datetime | None = None) -> Script[list[Receipt]]:
        return self._named(self._enqueuing(jobs, self._time(now)))

    def settle_script(self, change: Change, *, now: datetime | None = None) -> Script[Verdict]:
        return self._named(scripts.settle(change, self._time(now), audit_all=self._audit_all))

    def _named(self, script: Script[T]) -> Script[T]:
        """The script with our schema's name in it; in the caller's transaction the walls are as before afterwards."""
        if not self._walled:
            return (yield from self._with_schema(script))
        # Settings of its own come and go within the caller's transaction; if that fails, they go with it.
        [[before]] = yield _WHOSE, ""
        yield _SET, self._tenant or ""
        result = yield from self._with_schema(script)
        yield _SET, before
        return result

    def _with_schema(self, script: Script[T]) -> Script[T]:
        try:
            sql, text = next(script)
            while True:
                rows = yield schema.named(sql, self.schema), text
                sql, text = script.send(rows)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    # ---------------------------------------------------------------------------- running statements

    def _time(self, now: datetime | None) -> datetime | None:
        """The time to write, where the server's own clock does not count."""
        return now if now is not None or self._clock is None else self._clock()

    def _run(self, work: Callable[[Connection], T], *, patience: float = CALL, persist: float = 0.0) -> T:
        if not self._ready:
            self.open()
        if self._walled:
            return self.server.transaction(self._inside(work), patience=patience, persist=persist)
        return self.server.run(work, patience=patience, persist=persist)

    def _transact(self, work: Callable[[Connection], T], *, persist: float = 0.0, waits: str = "0") -> T:
        if not self._ready:
            self.open()
        return self.server.transaction(self._inside(work), persist=persist, waits=waits)

    @cached_property
    def _walled(self) -> bool:
        """Whether this is one tenant's engine, and the server has walls."""
        return self._tenant is not None and self.server.run(lambda connection: stand(connection, self.schema))

    def _inside(self, work: Callable[[Connection], T]) -> Callable[[Connection], T]:
        """The same work within the tenant's walls; what it sets ends with its transaction."""
        if not self._walled:
            return work

        def inside(connection: Connection) -> T:
            connection.execute("select set_config(%s, %s, true)", [SETTING, self._tenant])
            return work(connection)

        return inside

    def _read(self, sql: str, values: Values = ()) -> list[Row]:
        return self._run(lambda connection: self._query(connection, sql, values), persist=PERSISTENCE)

    def _query(self, connection: Connection, sql: str, values: Values) -> list[Row]:
        cursor = connection.execute(schema.named(sql, self.schema), values or None, binary=True)
        return cursor.fetchall() if cursor.description else []

    def _drive(self, connection: Connection, script: Script[T]) -> T:
        return drive(script, lambda sql, text: self._execute(connection, sql, text))

    def _execute(self, connection: Connection, sql: str, text: str) -> list[Row]:
        """Run a statement with its one parameter."""
        cursor = psycopg.RawCursor(connection)
        cursor.execute(schema.named(sql, self.schema), [text], binary=True)
        return cursor.fetchall() if cursor.description else []


def _refusal(error: Exception) -> str:
    """Why a value was refused; any other error is raised again."""
    cause = error.__cause__ if isinstance(error, EngineError) else error
    if not isinstance(cause, DATA_ERRORS):
        raise error
    return str(cause).partition("\n")[0]


def _is_locked(error: Exception) -> bool:
    """Whether somebody's open transaction kept us waiting too long."""
    return isinstance(error.__cause__, psycopg.errors.LockNotAvailable)


def _is_id(id_: str) -> bool:
    return UUID.fullmatch(id_) is not None


def _elapsed() -> float:
    """Seconds on a clock that also runs while the machine sleeps, where there is one."""
    return time.clock_gettime(_CLOCK) if _CLOCK is not None else time.monotonic()


_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)
