"""The gate on PostgreSQL: claims hold their lock before they look, a pause waits for those that may not have seen it.

No claim waits for anybody.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from tests.support import forks
from tests.support.making import LEASE, a_job, claim, enqueued
from tests.support.sizes import size
from tests.support.workbench import until
from treadle.engines.postgres import records, settle, turn
from treadle.engines.postgres.cursors import SLOW_LOOKS, ClaimCursors
from treadle.engines.postgres.engine import PostgresEngine
from treadle.engines.postgres.rows import packed
from treadle.engines.postgres.schema import named
from treadle.engines.values import OVERWRITE, Claim, JobFilter
from treadle.errors import EngineUnavailable
from treadle.model import Job, State, new_id
from treadle.model.records import ANY, Pause

Session = Callable[[], psycopg.Connection[Any]]
Aside = Callable[..., Future[Any]]


@pytest.fixture(autouse=True)
def _short_timeout(answer_timeout: Callable[[float], None]) -> None:
    answer_timeout(10.0)  # who waits for a lock is told so in time


@pytest.fixture
def session(store_url: str) -> Iterator[Session]:
    """Opens connections of people who are not treadle, each in a transaction that ends with the test."""
    opened: list[psycopg.Connection[Any]] = []

    def open_one() -> psycopg.Connection[Any]:
        opened.append(psycopg.connect(store_url.partition("?")[0]))
        return opened[-1]

    yield open_one
    for connection in opened:
        connection.close()


@pytest.fixture
def aside() -> Iterator[Aside]:
    """`aside(act, ...)`: in a thread of its own; the answer to come."""
    with ThreadPoolExecutor() as pool:
        yield pool.submit


def a_wish(**fields: Any) -> Claim:
    given = {"token": new_id(), "worker": "w1", "limit": 10, "lease": LEASE}
    return Claim(**{**given, **fields})


def open_claim(engine: PostgresEngine, connection: psycopg.Connection[Any], **fields: Any) -> None:
    """A claim that has been made, and is not over: its transaction is open."""
    values = turn.parameters([], [], turn.request(a_wish(**fields), audit_all=False), engine.now())
    psycopg.RawCursor(connection).execute(named(turn.TURN, engine.schema), values)


def gate_locks(engine: PostgresEngine, connection: psycopg.Connection[Any]) -> set[str]:
    """The locks that this connection has on the table of pauses."""
    sql = "select mode from pg_locks where pid = pg_backend_pid() and relation = %s::regclass and granted"
    return {mode for (mode,) in connection.execute(sql, [f"{engine.schema}.pauses"])}


def waits(engine: PostgresEngine, connection: psycopg.Connection[Any]) -> bool:
    """Whether somebody waits for a lock of this connection."""
    pid = connection.info.backend_pid
    return bool(engine.session.read("select 1 from pg_stat_activity where %s = any (pg_blocking_pids(pid))", [pid]))


# ------------------------------------------------------------------------------------------- the claim's lock


@pytest.mark.parametrize("lanes", [None, ["", "a"]], ids=["all lanes", "named lanes"])
@pytest.mark.parametrize("prepared", [False, True])
def test_every_claim_holds_a_lock_on_the_gate_until_it_is_over(
    engine: PostgresEngine, session: Session, lanes: list[str] | None, prepared: bool
) -> None:
    enqueued(engine)
    connection = session()
    connection.prepare_threshold = 0 if prepared else None
    for _ in range(3):  # a plan that is kept must take the lock each time
        open_claim(engine, connection, lanes=lanes)
        assert "RowShareLock" in gate_locks(engine, connection)
        connection.rollback()
        assert gate_locks(engine, connection) == set()


def test_a_claim_does_not_read_a_queue_that_is_paused_as_a_whole(engine: PostgresEngine) -> None:
    """It would park what it finds there, a thousand jobs at a time."""
    for lane in ("", "a"):
        enqueued(engine, queue="mail", lane=lane)
    assert engine.save(Pause(queue="mail", at=engine.now()), before=None).done

    assert claim(engine, queues=["default", "mail"]) == []

    parked = "select count(*) from @.jobs where parked"
    assert engine.session.read(named(parked, engine.schema), []) == [(0,)]


def test_settling_alone_does_not_touch_the_gate(engine: PostgresEngine, session: Session) -> None:
    connection = session()
    psycopg.RawCursor(connection).execute(named(settle.SETTLE, engine.schema), [packed([], engine.now())])
    assert gate_locks(engine, connection) == set()


@pytest.mark.parametrize("known", [False, True], ids=["nothing parked", "something parked"])
def test_a_claim_has_its_lock_before_it_looks(
    engine: PostgresEngine, session: Session, aside: Aside, known: bool
) -> None:
    """The lock is kept from it for a moment, in which a pause is committed: it must see that one."""
    enqueued(engine)
    if known:
        assert claim(engine, tasks=["another"]) == []  # now it is parked
    stranger = session()
    stranger.execute(f"lock table {engine.schema}.pauses in exclusive mode")  # readers may pass
    got = aside(claim, engine)
    until(lambda: waits(engine, stranger) or got.done(), "the claim waits for its lock")
    stranger.execute(f"insert into {engine.schema}.pauses default values")
    stranger.commit()

    assert got.result(10) == []


# ------------------------------------------------------------------------------------------- the pause's wait


def test_a_pause_returns_when_the_claims_that_began_before_it_are_over(
    engine: PostgresEngine, session: Session, aside: Aside, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueued(engine)
    early, later = session(), session()
    open_claim(engine, early)
    looked = threading.Event()
    monkeypatch.setattr(records, "_CLAIMS_POLL", SimpleNamespace(delay=lambda _: looked.set() or 0.005))
    pausing = aside(engine.save, Pause(), before=None)
    assert looked.wait(30), "the pause is committed, and it has seen which claims are under way"
    open_claim(engine, later)  # sees it: nobody need wait for that one

    assert not pausing.done()
    early.commit()
    assert pausing.result(10).done
    assert engine.count(JobFilter(state=State.RUNNING)) == {State.RUNNING: 1}
    assert "RowShareLock" in gate_locks(engine, later)


@pytest.mark.parametrize("how", ["committed", "rolled back", "cut off"])
def test_a_pause_does_not_mind_how_a_claim_ends(
    engine: PostgresEngine, session: Session, aside: Aside, how: str
) -> None:
    early = session()
    open_claim(engine, early)
    pausing = aside(engine.save, Pause(), before=None)
    until(lambda: engine.records(Pause), "the pause is committed")
    if how == "committed":
        early.commit()
    elif how == "rolled back":
        early.rollback()
    else:
        engine.session.read("select pg_terminate_backend(%s)", [early.info.backend_pid])

    assert pausing.result(10).done


def test_a_pause_waits_for_no_reader_and_for_no_claim_of_another_schema(
    engine: PostgresEngine, session: Session, aside: Aside
) -> None:
    reader, other = session(), session()
    reader.execute(f"select * from {engine.schema}.pauses")
    reader.execute(f"select * from {engine.schema}.jobs for update")
    other.execute("create temporary table pauses (tenant text) on commit drop")
    other.execute("select 1 from pauses where false for key share")

    assert aside(engine.save, Pause(), before=None).result(5).done


def test_a_pause_that_waited_in_vain_is_stored_says_so_and_may_be_repeated(
    engine: PostgresEngine, session: Session, aside: Aside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "CLAIMS_TIMEOUT", 0.1)
    early = session()
    open_claim(engine, early)
    pause = Pause(at=engine.now())

    with pytest.raises(EngineUnavailable, match=r"pause is stored.*repeating is safe"):
        engine.save(pause, before=None)
    assert engine.records(Pause) == [pause]
    with pytest.raises(EngineUnavailable):
        engine.save(pause, before=None)  # still there, still not to be relied upon
    early.commit()
    assert not engine.save(pause, before=None).done
    assert engine.save(pause, before=OVERWRITE).done


# ------------------------------------------------------------------------------------ no claim waits for a pause


@pytest.mark.parametrize(
    "act",
    [
        "insert into @.pauses default values",
        "update @.pauses set reason = 'another'",
        "delete from @.pauses",
        "select * from @.pauses for update",
        "lock table @.pauses in row exclusive mode",
    ],
)
def test_no_claim_waits_for_a_pause_that_is_not_committed(engine: PostgresEngine, session: Session, act: str) -> None:
    engine.save(Pause(tenant="another"), before=None)
    job = enqueued(engine)
    stranger = session()
    stranger.execute(act.replace("@", engine.schema))

    assert [got.id for got in claim(engine)] == [job.id]
    assert not waits(engine, stranger)


def test_no_claim_waits_for_a_pause_that_waits_for_another_claim(
    engine: PostgresEngine, session: Session, aside: Aside
) -> None:
    early = session()
    open_claim(engine, early)
    pausing = aside(engine.save, Pause(tenant="another"), before=None)
    until(lambda: engine.records(Pause), "the pause is committed")
    job = enqueued(engine)

    assert [got.id for got in claim(engine)] == [job.id]
    assert not pausing.done()
    early.rollback()
    assert pausing.result(10).done


def test_a_pause_written_with_plain_sql_stops_claims(engine: PostgresEngine, session: Session) -> None:
    job = enqueued(engine, tenant="acme")
    other = enqueued(engine)
    stranger = session()
    stranger.execute(f"insert into {engine.schema}.pauses (tenant, reason) values ('acme', 'not paid')")
    stranger.commit()

    assert [got.id for got in claim(engine)] == [other.id]
    [pause] = engine.records(Pause)
    assert (pause.scope, pause.reason, pause.until, pause.revision) == ("tenant acme", "not paid", None, 0)
    assert engine.drop(pause)
    assert [got.id for got in claim(engine)] == [job.id]


def test_an_end_of_a_pause_wakes_workers_elsewhere(near: PostgresEngine, open_engine: Any, store_url: str) -> None:
    far = open_engine(store_url)
    pause = Pause(at=near.now())
    near.save(pause, before=None)
    assert far._store.notifications.receives(lambda: near.drop(pause))


SCOPES = [{}, {"queue": "default"}, {"task": "greet"}, {"tenant": "acme"}, {"tenant": "acme", "task": "greet"}]


@pytest.mark.parametrize("scope", SCOPES, ids=lambda scope: Pause(**scope).scope)
def test_a_claim_that_continues_from_a_cursor_is_blocked_too(near: PostgresEngine, scope: dict[str, str]) -> None:
    jobs = [enqueued(near, tenant="acme") for _ in range(6)]
    wish = a_wish(limit=2)
    taken = near.turn([], a_wish(limit=2)).claimed
    for _ in range(SLOW_LOOKS):
        near.turns.cursors.learn(wish, taken, search_time=1.0, take_time=0.0, resumed=False, now=time.monotonic())
    assert near.turns.cursors.of(wish, time.monotonic())
    pause = Pause(**scope)
    near.save(pause, before=None)

    assert near.turn([], wish).jobs == []
    near.turns.cursors = ClaimCursors()
    near.drop(pause)
    assert [job.id for job in claim(near, 4)] == [job.id for job in jobs[2:]]


# -------------------------------------------------------------------------------------------- what was parked


def parked(engine: PostgresEngine, tenants: int, jobs: int, queue: str = "default") -> list[str]:
    """Jobs of many tenants, met by a claim while they were paused, and free again."""
    pauses = [Pause(tenant=f"t{number}") for number in range(tenants)]
    for pause in pauses:
        engine.save(pause, before=None)
    made = [a_job(engine.now(), tenant=f"t{number % tenants}", queue=queue) for number in range(jobs)]
    engine.enqueue(made)
    assert claim(engine, 500, queues=[queue]) == []
    assert engine.session.read("select count(*) from @.jobs where parked_by_tenant") == [(jobs,)]
    for pause in pauses:
        engine.drop(pause)
    return [job.id for job in made]


def test_jobs_of_many_tenants_come_back_in_order_however_few_are_claimed_at_once(engine: PostgresEngine) -> None:
    ids = parked(engine, 30, 120)

    got = [job.id for limit in (1, 2, 3, 14, 50, 50) for job in claim(engine, limit)]

    assert got == ids


def test_a_claim_of_parked_jobs_steps_over_what_others_have_locked(engine: PostgresEngine, session: Session) -> None:
    ids = parked(engine, 3, 30)
    stranger = session()
    stranger.execute(f"select 1 from {engine.schema}.jobs where id = any (%s::uuid[]) for update", [ids[:5]])

    assert [job.id for job in claim(engine, 10)] == ids[5:15]
    assert not waits(engine, stranger)
    stranger.rollback()
    assert [job.id for job in claim(engine, 10)] == [*ids[:5], *ids[15:20]]


def test_a_claim_of_parked_jobs_locks_no_more_than_it_takes(engine: PostgresEngine, session: Session) -> None:
    ids = parked(engine, 20, 200)
    open_claim(engine, session())

    free = engine.session.read("select id::text from @.jobs where state = 'pending' order by id for update skip locked")

    assert [id_ for (id_,) in free] == ids[10:]


@pytest.mark.parametrize(
    "scope", [None, {"task": "greet"}, {"tenant": "acme"}], ids=["unknown", "task paused", "tenant paused"]
)
def test_what_one_process_parked_another_finds_with_its_next_claim(
    make_engine: Callable[..., PostgresEngine], scope: dict[str, str] | None
) -> None:
    one, other = make_engine(), make_engine()
    assert claim(one) == claim(other) == []  # both have seen that nothing is parked
    job = enqueued(one, tenant="acme", priority=1)
    if scope is None:
        assert claim(one, tasks=["another"]) == []
    else:
        one.save(Pause(**scope), before=None)
        assert claim(one) == []
        one.drop(Pause(**scope))
    later = enqueued(one)

    assert one.session.read("select parked, parked_by_tenant from @.jobs where id = %s", [job.id]) == [
        (True, scope == {"tenant": "acme"})
    ]
    assert [claim(other, 1)[0].id for _ in range(2)] == [job.id, later.id]


def test_a_parked_job_that_an_older_treadle_has_run_is_an_ordinary_one_again(
    engine: PostgresEngine, session: Session
) -> None:
    """It takes what is parked by task, and knows nothing of what is parked by tenant."""
    [id_, *_] = parked(engine, 1, 2)
    stranger = session()
    claimed = f"update {engine.schema}.jobs set state = 'running', lease_until = now(), parked = false where id = %s"
    stranger.execute(claimed, [id_])
    stranger.execute(f"update {engine.schema}.jobs set state = 'pending', lease_until = null where id = %s", [id_])
    stranger.commit()
    engine.save(Pause(tenant="t0"), before=None)

    assert claim(engine) == []
    engine.drop(Pause(tenant="t0"))
    assert [job.id for job in claim(engine, 1)] == [id_]


# ------------------------------------------------------------------------------------------------- the race

ROUNDS = size(30, long=100)
CLAIMERS = 3
JOBS = 40

CLAIMER = """
import json, sys, time
from treadle.engines import connect
from treadle.engines.values import Claim
from treadle.model import new_id

engine = connect(sys.argv[1])
while True:
    jobs = engine.turn([], Claim(new_id(), "w", 5, 600.0)).jobs
    print(json.dumps([time.time(), [job.id for job in jobs]]), flush=True)
"""


class Claimers:
    """Processes that claim, one claim after the other, and tell of each when its reply came and what it gave."""

    def __init__(self, url: str, number: int) -> None:
        command = [sys.executable, "-c", CLAIMER, url]
        self.said: list[list[tuple[float, list[str]]]] = [[] for _ in range(number)]
        self.processes = [forks.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(number)]
        self.threads = [threading.Thread(target=self._hear, args=(place,)) for place in range(number)]
        for thread in self.threads:
            thread.start()

    def _hear(self, place: int) -> None:
        for line in self.processes[place].stdout or ():
            moment, ids = json.loads(line)
            self.said[place].append((moment, ids))

    def go_on(self, claims: int) -> None:
        """Wait until each has made so many more."""
        goals = [len(said) + claims for said in self.said]
        until(lambda: all(len(said) >= goal for said, goal in zip(self.said, goals, strict=True)), "claims are made")

    def given(self) -> dict[str, float]:
        """What was claimed, and when the reply came."""
        return {id_: moment for said in self.said for moment, ids in tuple(said) for id_ in ids}

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        for thread in self.threads:
            thread.join()
        for process in self.processes:
            if process.stdout is not None:
                process.stdout.close()


@contextmanager
def claimers(url: str, number: int) -> Iterator[Claimers]:
    started = Claimers(url, number)
    try:
        yield started
    finally:
        started.stop()


def late_rounds(url: str, engine: PostgresEngine, rounds: int) -> tuple[list[str], list[float]]:
    """Rounds in which a job was claimed after its pause had returned, and how long each pause took.

    When it has returned, those jobs run that will. Later claims, each of which has told what it got, add none.
    """
    late, took = [], []
    with claimers(url, CLAIMERS) as claiming:
        claiming.go_on(1)
        for number, scope in zip(range(rounds), cycle(SCOPES), strict=False):
            jobs = {receipt.job.id for receipt in engine.enqueue(some_jobs(engine))}
            until(
                lambda: engine.session.read("select 1 from @.jobs where state = 'running' limit 1"), "claims are made"
            )
            began = time.monotonic()
            pause = Pause(**{"tenant": ANY, **scope}, reason=f"round {number}")
            assert engine.save(pause, before=None).done
            took.append(time.monotonic() - began)
            before, returned = held(engine), time.time()
            claiming.go_on(3)
            told = {id_ for id_, moment in claiming.given().items() if moment > returned} & jobs
            if more := (held(engine) | told) - before:
                late.append(f"round {number}, {pause.scope}: {len(before)} ran, and then {len(more)} more")
            assert engine.drop(pause)
            until(lambda: len(held(engine)) == JOBS, "all the others are claimed")
            engine.session.read("delete from @.jobs returning 1")
    return late, took


def some_jobs(engine: PostgresEngine) -> list[Job]:
    return [a_job(engine.now(), tenant="acme") for _ in range(JOBS)]


def held(engine: PostgresEngine) -> set[str]:
    return {id_ for (id_,) in engine.session.read("select id::text from @.jobs where state = 'running'")}


@pytest.mark.slow
def test_of_a_hundred_pauses_among_busy_claimers_none_is_followed_by_a_claim(
    near: PostgresEngine, store_url: str
) -> None:
    late, took = late_rounds(store_url, near, ROUNDS)

    assert late == []
    assert max(took) < 10


@pytest.mark.slow
def test_without_the_lock_the_same_race_is_lost_now_and_then(near: PostgresEngine, store_url: str) -> None:
    """So the test above can tell the difference."""
    near.open()
    [[text]] = near.session.read(
        "select pg_get_functiondef(%s::regprocedure)", [f"{near.schema}.claim(text, timestamptz)"]
    )
    lock = f"lock table {near.schema}.pauses in row share mode;"
    assert lock in text
    near.session.read(text.replace(lock, ""))
    try:
        assert any(late_rounds(store_url, near, 50)[0] for _ in range(20))
    finally:
        near.session.read(text)  # another test gets this schema
