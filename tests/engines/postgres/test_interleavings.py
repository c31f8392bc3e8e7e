"""Every pair of writing operations on the same jobs, one of them left open at each of its statements.

Operation A runs in a transaction that stands still after a statement; B runs to its end meanwhile; then A goes on and
commits. What is left must be what one of the two serial orders leaves, or B must have passed over what A had locked.
B does not wait for A; what may be excepted is said in `may_wait`.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple

import psycopg
import pytest

from tests.support import stores
from tests.support.making import a_job, an_error
from tests.support.sizes import size
from tests.support.workbench import until
from treadle.engines import connect
from treadle.engines.postgres import schema
from treadle.engines.postgres.connection import conninfo
from treadle.engines.postgres.engine import PostgresEngine
from treadle.engines.postgres.session import Session
from treadle.engines.postgres.wire import Connection
from treadle.engines.scripts import drive
from treadle.engines.values import Claim, JobFilter, Lease, Retention
from treadle.model import Job, Reason, Scope, State, lifecycle, new_id
from treadle.model.lifecycle import Failed, FailedForGood, Succeeded
from treadle.model.retry import Retry

pytestmark = pytest.mark.server

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
LEASE = 30.0
TABLES = ("jobs", "finished", "keys", "events")
LOCKABLE = {"jobs": "id::text", "finished": "id::text", "keys": "key"}
DEADLOCK = "40P01"
BRIEF = 3.0  # seconds that a busy machine may take for what does not wait

# J is the job both work on; the others make sure that statements over several jobs have several.
J, R, N1, N2, F, FOLLOW = (new_id() for _ in range(6))
TOKEN = "token of w1"
PROMPT = Retry(max_attempts=5, base=0, cap=0, jitter=0)
NEW = {(what, side): new_id() for what in ("plain", "keyed") for side in "AB"}
TOKENS = {side: new_id() for side in "AB"}

Jobs = dict[str, Job]
Act = Callable[[PostgresEngine, str, Jobs], Any]


# ------------------------------------------------------------------------------------------------ the operations


def enqueue_plain(engine: PostgresEngine, side: str, jobs: Jobs) -> Any:
    return receipts(engine, a_job(NOW, id=NEW["plain", side]))


def enqueue_same_id(engine: PostgresEngine, side: str, jobs: Jobs) -> Any:
    return receipts(engine, a_job(NOW, id=J))


def enqueue_same_key(engine: PostgresEngine, side: str, jobs: Jobs) -> Any:
    return receipts(engine, a_job(NOW, id=NEW["keyed", side], key="k", key_scope=jobs[J].key_scope))


def receipts(engine: PostgresEngine, *new: Job) -> Any:
    return [(receipt.job.id, receipt.created, receipt.refused) for receipt in engine.enqueue(new)]


def claim(engine: PostgresEngine, side: str, jobs: Jobs) -> Any:
    return [job.id for job in engine.turn([], Claim(TOKENS[side], f"w{side}", 10, LEASE)).jobs]


def settle_success(engine: PostgresEngine, side: str, jobs: Jobs) -> Any:
    return rulings(engine, *(lifecycle.settle(jobs[id_], Succeeded(f'"{side}"'), NOW) for id_ in (J, R)))


def settle_and_claim(engine: PostgresEngine, side: str, jobs: Jobs) -> Any:
    changes = [lifecycle.settle(jobs[id_], Succeeded(f'"{side}"'), NOW) for id_ in (J, R)]
    turn = engine.turn(changes, Claim(TOKENS[side], f"w{side}", 10, LEASE))
    return [verdict.ruling.value for verdict in turn.verdicts], [job.id for job in turn.jobs]


def settle_retry(engine: PostgresEngine, side: str, jobs: Jobs) -> Any:
    return rulings(engine, lifecycle.settle(jobs[J], Failed(an_error(NOW)), NOW))


def settle_with_follow_up(engine: PostgresEngine, side: str, jobs: Jobs) -> Any:
    change = lifecycle.settle(jobs[J], Succeeded(f'"{side}"'), NOW)
    return rulings(engine, change._replace(follow=a_job(NOW, id=FOLLOW, task="thank")))


def settle_in_transaction(engine: PostgresEngine, side: str, jobs: Jobs) -> Any:
    """What ctx.settle(tx) does in a handler's own transaction."""
    script = engine.settle_script(lifecycle.settle(jobs[J], Succeeded(f'"{side}"'), NOW))

    def inside(connection: Connection) -> Any:
        return engine.session.drive(connection, script).ruling.value

    return engine.session.transact(inside)


def recovery(engine: PostgresEngine, side: str, jobs: Jobs) -> Any:
    return rulings(engine, *(lifecycle.crash(jobs[id_], NOW, actor=f"reaper {side}") for id_ in (J, R)))


def cancel(engine: PostgresEngine, side: str, jobs: Jobs) -> Any:
    return rulings(engine, lifecycle.cancel(jobs[J], NOW, actor=side))


def replace(engine: PostgresEngine, side: str, jobs: Jobs) -> Any:
    new = a_job(NOW, payload_json=f'{{"by":"{side}"}}', priority=7)
    return rulings(engine, lifecycle.replace(jobs[J], new, NOW, actor=side))


def retry(engine: PostgresEngine, side: str, jobs: Jobs) -> Any:
    return rulings(engine, lifecycle.retry(jobs[J], NOW, actor=side))


def rulings(engine: PostgresEngine, *changes: Any) -> Any:
    return [verdict.ruling.value for verdict in engine.turn(changes).verdicts]


def extend(engine: PostgresEngine, side: str, jobs: Jobs) -> Any:
    answers = engine.extend([Lease(J, TOKEN), Lease(R, TOKEN)], lease=LEASE * 2)
    return [(answer.renewal.value, answer.cancel_requested) for answer in answers]


def prune(engine: PostgresEngine, side: str, jobs: Jobs) -> Any:
    return engine.prune(Retention(dict.fromkeys((State.SUCCEEDED, State.FAILED), timedelta(days=1))), limit=10)


# Where J stands when they meet, and who may come.
MEETINGS: dict[str, tuple[Act, ...]] = {
    "pending": (enqueue_plain, enqueue_same_id, enqueue_same_key, claim, cancel, replace, extend, prune),
    "running": (
        enqueue_same_id, enqueue_same_key, claim, settle_success, settle_and_claim, settle_retry,
        settle_with_follow_up, settle_in_transaction, cancel, extend, prune,
    ),
    "past its lease": (
        enqueue_same_key, claim, recovery, settle_success, settle_retry, settle_in_transaction, cancel, extend,
    ),
    "ended": (enqueue_same_id, enqueue_same_key, claim, retry, settle_success, prune),
    "behind a window that is over": (enqueue_same_key, claim, retry, prune),
}  # fmt: skip


def may_wait(place: str, scope: Scope, a: Act, b: Act) -> bool:
    """Whether B cannot but wait: its caller asked for an id or a key that A is just taking, or a dead one A removes.

    A worker's own calls are not among them: whatever one open transaction holds up, it must not be a worker.
    """
    takers = {enqueue_same_key, retry, *((settle_retry, recovery) if scope is Scope.PENDING else ())}
    removes = "window" in place and a is prune
    return (b in (enqueue_same_key, retry) and (a in takers or removes)) or a is b is enqueue_same_id


# ------------------------------------------------------------------------------------------------ the stage


class Stepped(Session):
    """Runs all its work in one transaction, which stands still after a given statement."""

    @classmethod
    def of(cls, engine: PostgresEngine) -> PostgresEngine:
        """The same engine with such a session."""
        store = engine._store._replace(session=cls(engine.server, engine._schema))
        return PostgresEngine(engine.server, engine._schema, store)

    def begin(self, stop_after: int) -> None:
        self.connection.execute("begin")
        self.stop_after, self.statements = stop_after, 0
        self.stands, self.goes = threading.Event(), threading.Event()

    def run(self, work: Any, **_: Any) -> Any:
        return work(self.connection)

    transact = run_read_committed = run

    def call(self, connection: Connection, sql: str, values: Any) -> Any:
        return self._stop_after(super().call(connection, sql, values))

    def execute(self, connection: Connection, sql: str, text: str) -> Any:
        return self._stop_after(super().execute(connection, sql, text))

    def _stop_after(self, rows: Any) -> Any:
        self.statements += 1
        if self.statements == self.stop_after:
            self.stands.set()
            assert self.goes.wait(30), "nobody lets it go on"
        return rows

    def commit(self) -> None:
        self.connection.execute("commit")

    @cached_property
    def connection(self) -> Connection:
        return self._server.connect()


class Outcome(NamedTuple):
    left: Any
    a: Any
    b: Any


class Stage:
    """One store, set up anew for each run."""

    def __init__(self, url: str) -> None:
        self.engine: PostgresEngine = connect(url, clock=lambda: NOW)
        self.stepped_engine = Stepped.of(connect(url, clock=lambda: NOW))
        self.stepped: Stepped = self.stepped_engine.session  # type: ignore[assignment]
        self.watcher = psycopg.connect(conninfo(url.partition("?")[0]), autocommit=True)
        self.locker = psycopg.connect(conninfo(url.partition("?")[0]))
        self.errors: list[str] = []
        explained = self.engine.server._explained
        self.engine.server._explained = self._noted(explained)  # type: ignore[method-assign]
        self.pool = ThreadPoolExecutor(4)
        for table in TABLES:
            self._tell(f"create table @.saved_{table} as table @.{table} with no data")

    def close(self) -> None:
        self.pool.shutdown()
        self.watcher.close()
        self.locker.close()
        self.stepped.connection.close()
        self.stepped_engine.close()
        self.engine.close()

    def save(self, place: str, scope: Scope) -> None:
        """Set up and keep what every run starts from."""
        engine = self.engine
        self._tell("; ".join(f"delete from @.{table}; delete from @.saved_{table}" for table in TABLES))
        window, long_ago = "window" in place, NOW - timedelta(days=3)
        kept = {"key_scope": Scope.WINDOW, "key_until": NOW - timedelta(hours=1)} if window else {"key_scope": scope}
        mine, other = a_job(NOW, id=J, key="k", retry=PROMPT, **kept), a_job(NOW, id=R)
        past = NOW - timedelta(seconds=LEASE * 2)
        then = {"pending": NOW, "running": NOW, "past its lease": past}.get(place, long_ago)
        engine.enqueue([other] if place == "pending" else [mine, other], now=then)
        engine.turn([], Claim(TOKEN, "w1", 2, LEASE), now=then)
        if place == "pending":
            engine.enqueue([mine], now=then)
        if place == "ended" or window:
            [held] = engine.get([J])
            engine.turn([lifecycle.settle(held, FailedForGood(Reason.PERMANENT, an_error(then)), then)], now=then)
        engine.enqueue([a_job(NOW, id=F, task="old")], now=long_ago)
        [old] = engine.turn([], Claim(new_id(), "w0", 1, LEASE, tasks=["old"]), now=long_ago).jobs
        engine.turn([lifecycle.settle(old, Succeeded(), long_ago)], now=long_ago)
        engine.enqueue([a_job(NOW, id=N1), a_job(NOW, id=N2)], now=NOW)
        self.jobs = {job.id: job for job in engine.find(JobFilter(), limit=10).jobs}
        self._tell("; ".join(f"insert into @.saved_{table} table @.{table}" for table in TABLES))

    def set_up(self) -> None:
        renew = (f"delete from @.{table}; insert into @.{table} table @.saved_{table}" for table in reversed(TABLES))
        self._tell("begin; set local session_replication_role = replica; " + "; ".join(renew) + "; commit")
        self.errors.clear()

    def serially(self, *acts: tuple[str, Act], locked: frozenset[str] = frozenset()) -> Outcome:
        """One after the other; the first finds these jobs and keys locked."""
        self.set_up()
        answers: dict[str, Any] = {}
        for place, (side, act) in enumerate(acts):
            if place == 0 and locked:
                self._lock(locked)
            answers[side] = act(self.engine, side, self.jobs)
            self.locker.rollback()
        return Outcome(self.left(), answers["A"], answers["B"])

    def meet(self, a: Act, b: Act, stop_after: int, brief: float) -> tuple[Outcome, bool, frozenset[str]] | None:
        """A stands still after so many statements while B runs; None if A has fewer.

        Whether B had to wait for A, longer than briefly, and which jobs and keys A held locked.
        """
        self.set_up()
        self.stepped.begin(stop_after)
        first: Future[Any] = self.pool.submit(a, self.stepped_engine, "A", self.jobs)
        until(lambda: self.stepped.stands.is_set() or first.done(), "A's statement")
        if not self.stepped.stands.is_set():
            first.result()
            self.stepped.commit()
            return None
        locked = self._held()
        second: Future[Any] = self.pool.submit(b, self.engine, "B", self.jobs)
        until(lambda: self._is_blocked() or second.done(), "B")
        wait([second], timeout=brief)
        waited = not second.done()
        self.stepped.goes.set()
        answer = first.result(20)
        self.stepped.commit()
        other = second.result(20)
        return Outcome(self.left(), answer, other), waited, locked

    def left(self) -> Any:
        """Every row of the store."""
        sql = " union all ".join(f"select '{table}', t::text from @.{table} t" for table in TABLES)
        return sorted(self._tell(sql).fetchall())

    def _tell(self, sql: str) -> Any:
        return self.watcher.execute(schema.named(sql, self.engine.schema))

    def _lock(self, ids: frozenset[str]) -> None:
        for table, id_ in LOCKABLE.items():
            sql = schema.named(f"select 1 from @.{table} where {id_} = any (%s) for update", self.engine.schema)
            self.locker.execute(sql, [list(ids)])

    def _held(self) -> frozenset[str]:
        """The jobs and keys that A has locked."""
        there, free = set(), set()
        for table, id_ in LOCKABLE.items():
            sql = schema.named(f"select {id_} from @.{table}", self.engine.schema)
            there |= {row[0] for row in self.locker.execute(sql)}
            free |= {row[0] for row in self.locker.execute(f"{sql} for update skip locked")}
        self.locker.rollback()
        return frozenset(there - free)

    def _is_blocked(self) -> bool:
        sql = "select 1 from pg_stat_activity where %s = any (pg_blocking_pids(pid))"
        return bool(self.watcher.execute(sql, [self.stepped.connection.info.backend_pid]).fetchall())

    def _noted(self, explained: Any) -> Any:
        def note(error: psycopg.Error) -> Any:
            self.errors.append(error.sqlstate or type(error).__name__)
            return explained(error)

        return note


@pytest.fixture(scope="module")
def stage_url() -> Iterator[str]:
    with stores.fresh_store("postgres", None) as url:  # type: ignore[arg-type]
        yield url


@pytest.fixture(scope="module")
def stage(stage_url: str) -> Iterator[Stage]:
    stage = Stage(stage_url)
    yield stage
    stage.close()


SCOPES = (Scope.PENDING, Scope.ACTIVE)
CASES = [
    pytest.param(place, scope, a, id=f"{place}-{scope.value}-{a.__name__}")
    for place, acts in MEETINGS.items()
    for number, a in enumerate(acts)
    for scope in ((Scope.WINDOW,) if "window" in place else SCOPES[number % size(2, long=1) :: size(2, long=1)])
]
"""Each act is left open under both scopes of a key, or, in the usual run, the acts take turns."""


@pytest.mark.parametrize(("place", "scope", "a"), CASES)
def test_an_operation_left_open_at_any_statement_disturbs_nobody(
    stage: Stage, place: str, scope: Scope, a: Act
) -> None:
    stage.save(place, scope)
    met, wrong = 0, []
    for b in MEETINGS[place]:
        orders = {
            "A, B": stage.serially(("A", a), ("B", b)),
            "B, A": stage.serially(("B", b), ("A", a)),
        }
        for stop_after in range(1, 20):
            allowed = may_wait(place, scope, a, b)
            meeting = stage.meet(a, b, stop_after, 0.0 if allowed else BRIEF)
            if meeting is None:
                break
            met += 1
            outcome, waited, locked = meeting
            if locked and not waited and (order := f"B past {sorted(locked)}, A") not in orders:
                orders[order] = stage.serially(("B", b), ("A", a), locked=locked)
            told = f"{a.__name__} open after statement {stop_after}, {b.__name__}"
            if waited and not allowed:
                wrong.append(f"{told}: waited")
            if DEADLOCK in stage.errors:
                wrong.append(f"{told}: deadlock")
            if "busy" in str(outcome.b):  # of a key rather than of a row
                orders["B past it, A"] = stage.serially(("B", b), ("A", a), locked=locked | {J})
            if outcome not in orders.values():
                wrong.append(f"{told}: {outcome.a} and {outcome.b} is neither order: {described(outcome, orders)}")
    assert not wrong, "\n".join(wrong)
    assert met >= len(MEETINGS[place])


def described(outcome: Outcome, orders: dict[str, Outcome]) -> str:
    lines = []
    for name, order in orders.items():
        rows = [f"  + {row}" for row in outcome.left if row not in order.left]
        rows += [f"  - {row}" for row in order.left if row not in outcome.left]
        lines.append("\n".join([f"{name} would say {order.a} and {order.b}", *rows]))
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------ within a statement

BULKS: dict[str, Callable[[str], Job]] = {
    "ids": lambda n: a_job(NOW, id=f"018b0000-0000-7000-8000-00000000000{n}"),
    "keys": lambda n: a_job(NOW, key=f"k{n}", key_scope=Scope.EVER),
    "tasks": lambda n: a_job(NOW, task=f"t{n}", key="k", key_scope=Scope.EVER),
    "tenants": lambda n: a_job(NOW, tenant=f"t{n}", key="k", key_scope=Scope.EVER),
}


@pytest.mark.parametrize("differing", BULKS)
def test_two_bulks_that_ask_for_the_same_in_another_order_do_not_deadlock(
    engine: PostgresEngine, store_url: str, differing: str
) -> None:
    """A has taken the first and waits for a stranger's second; B comes from the other end."""
    make = BULKS[differing]
    server = store_url.partition("?")[0]
    engine.open()
    with psycopg.connect(server) as a, psycopg.connect(server) as b, psycopg.connect(server) as stranger:
        run(engine, stranger, [make("2")])
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(run, engine, a, [make("1"), make("2"), make("3")])
            until(lambda: blocks(stranger, stranger, a), "A waits for the stranger")
            second = pool.submit(run, engine, b, [make("3"), make("1")])
            until(lambda: blocks(stranger, a, b) or second.done(), "B waits for A, or is done")
            stranger.rollback()
            first.result(20)
            a.commit()
            second.result(20)
            b.commit()


def run(engine: PostgresEngine, connection: psycopg.Connection[Any], jobs: list[Job]) -> Any:
    """Enqueue in the caller's own transaction."""

    def execute(sql: str, text: str) -> Any:
        cursor = psycopg.RawCursor(connection)
        cursor.execute(sql, [text])
        return cursor.fetchall() if cursor.description else []

    return drive(engine.enqueue_script(jobs), execute)


def blocks(through: psycopg.Connection[Any], one: psycopg.Connection[Any], other: psycopg.Connection[Any]) -> bool:
    """Whether the other waits for the one."""
    [[pids]] = through.execute("select pg_blocking_pids(%s)", [other.info.backend_pid]).fetchall()
    return one.info.backend_pid in pids
