"""The engine's statements inside a transaction of the caller: they live and die with it."""

import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from making import a_job, an_error, claim, current, enqueued, settle
from treadle.engines import connect
from treadle.engines.contract import Engine
from treadle.engines.scripts import Script
from treadle.engines.values import JobFilter, Ruling
from treadle.errors import EngineError
from treadle.model import EventKind, Scope, State, lifecycle
from treadle.model.lifecycle import Failed, Succeeded
from treadle.model.retry import Retry
from treadle.testing import FakeClock

T = TypeVar("T")


@pytest.fixture
def engine(make_engine: Callable[..., Engine]) -> Engine:
    return make_engine(audit_all=True)


@pytest.fixture
def mine(engine: Engine, plain: Callable[[], sqlite3.Connection]) -> sqlite3.Connection:
    """The caller's own connection, with a table of its own, inside a transaction."""
    engine.migrate()
    connection = plain()
    connection.execute("create table orders (id integer)")
    connection.execute("begin immediate")
    connection.execute("insert into orders values (1)")
    return connection


def orders(connection: sqlite3.Connection) -> int:
    return connection.execute("select count(*) from orders").fetchone()[0]


def test_an_enqueue_is_seen_by_nobody_before_the_commit_and_by_all_after_it(
    engine: Engine, mine: sqlite3.Connection
) -> None:
    [receipt] = drive(mine, engine.enqueue_script([a_job(engine.now())], now=engine.now()))
    assert receipt.created
    assert engine.get([receipt.job.id]) == [None]
    mine.execute("commit")
    assert current(engine, receipt.job) == receipt.job
    assert [event.kind for event in engine.events(receipt.job.id)] == [EventKind.ENQUEUED]
    assert [job.id for job in claim(engine)] == [receipt.job.id]


def test_a_rollback_undoes_the_job_its_key_and_its_event(engine: Engine, mine: sqlite3.Connection) -> None:
    job = a_job(engine.now(), key="k", key_scope=Scope.EVER)
    drive(mine, engine.enqueue_script([job], now=engine.now()))
    mine.execute("rollback")
    assert orders(mine) == 0
    assert engine.get([job.id]) == [None]
    assert engine.events(job.id) == []
    [again] = engine.enqueue([a_job(engine.now(), key="k", key_scope=Scope.EVER)])
    assert again.created


def test_a_taken_key_answers_with_the_first_job_and_leaves_the_transaction_usable(
    engine: Engine, plain: Callable[[], sqlite3.Connection]
) -> None:
    first = enqueued(engine, key="k", key_scope=Scope.ACTIVE)
    connection = plain()
    connection.execute("begin immediate")
    late, other = a_job(engine.now(), key="k", key_scope=Scope.ACTIVE), a_job(engine.now())
    receipts = drive(connection, engine.enqueue_script([late, other], now=engine.now()))
    assert [(receipt.job.id, receipt.created) for receipt in receipts] == [(first.id, False), (other.id, True)]
    connection.execute("create table orders (id integer)")
    connection.execute("commit")
    assert orders(connection) == 0
    assert engine.get([late.id, other.id])[0] is None
    assert current(engine, other).state is State.PENDING


def test_a_key_taken_earlier_in_the_same_transaction_counts(engine: Engine, mine: sqlite3.Connection) -> None:
    one, two = (a_job(engine.now(), key="k", key_scope=Scope.PENDING) for _ in range(2))
    drive(mine, engine.enqueue_script([one], now=engine.now()))
    [receipt] = drive(mine, engine.enqueue_script([two], now=engine.now()))
    mine.execute("commit")
    assert (receipt.job.id, receipt.created) == (one.id, False)
    assert engine.count(JobFilter()) == {State.PENDING: 1}


def test_the_same_job_enqueued_again_after_the_answer_was_lost_is_one_job(
    engine: Engine, mine: sqlite3.Connection
) -> None:
    job = a_job(engine.now())
    for created in (True, False):
        [receipt] = drive(mine, engine.enqueue_script([job], now=engine.now()))
        assert receipt.created is created
    mine.execute("commit")
    assert engine.count(JobFilter()) == {State.PENDING: 1}


def test_a_settle_commits_with_the_writes_of_its_caller(
    engine: Engine, plain: Callable[[], sqlite3.Connection]
) -> None:
    enqueued(engine, key="k", key_scope=Scope.ACTIVE)
    [job] = claim(engine)
    connection = plain()
    connection.execute("begin immediate")
    connection.execute("create table orders (id integer)")
    change = lifecycle.settle(job, Succeeded("1"), engine.now())
    assert drive(connection, engine.settle_script(change, now=engine.now())).ruling is Ruling.APPLIED
    assert current(engine, job).state is State.RUNNING
    connection.execute("commit")
    assert current(engine, job) == change.after
    assert engine.events(job.id)[-1].kind is EventKind.SUCCEEDED
    [freed] = engine.enqueue([a_job(engine.now(), key="k", key_scope=Scope.ACTIVE)])
    assert freed.created
    assert settle(engine, job, Succeeded("1")).ruling is Ruling.ALREADY


def test_a_settle_rolled_back_leaves_the_job_running_with_its_key_and_can_be_repeated(
    engine: Engine, plain: Callable[[], sqlite3.Connection]
) -> None:
    enqueued(engine, key="k", key_scope=Scope.ACTIVE)
    [job] = claim(engine)
    events = engine.events(job.id)
    connection = plain()
    connection.execute("begin immediate")
    change = lifecycle.settle(job, Succeeded(), engine.now())
    assert drive(connection, engine.settle_script(change, now=engine.now())).ruling is Ruling.APPLIED
    connection.execute("rollback")
    assert current(engine, job) == job
    assert engine.events(job.id) == events
    [kept] = engine.enqueue([a_job(engine.now(), key="k", key_scope=Scope.ACTIVE)])
    assert kept.job.id == job.id
    assert settle(engine, job, Succeeded()).ruling is Ruling.APPLIED


def test_a_failure_settled_in_a_transaction_goes_back_to_pending_with_it(
    engine: Engine, plain: Callable[[], sqlite3.Connection]
) -> None:
    enqueued(engine, retry=Retry(max_attempts=3, base=5))
    [job] = claim(engine)
    connection = plain()
    connection.execute("begin immediate")
    change = lifecycle.settle(job, Failed(an_error(engine.now())), engine.now())
    drive(connection, engine.settle_script(change, now=engine.now()))
    connection.execute("commit")
    assert current(engine, job).state is State.PENDING
    assert current(engine, job).failures == 1


def test_a_zombie_is_refused_in_its_own_transaction_which_stays_usable(
    engine: Engine, mine: sqlite3.Connection, clock: FakeClock
) -> None:
    mine.execute("rollback")
    enqueued(engine)
    [zombie] = claim(engine)
    clock.advance(seconds=60)
    [gone] = engine.expired(limit=10)
    engine.turn([lifecycle.crash(gone, clock.now(), actor="reaper")])
    [again] = claim(engine, worker="w2")
    mine.execute("begin immediate")
    mine.execute("insert into orders values (1)")
    change = lifecycle.settle(zombie, Succeeded(), clock.now())
    assert drive(mine, engine.settle_script(change, now=clock.now())).ruling is Ruling.LOST
    mine.execute("commit")
    assert orders(mine) == 1
    assert current(engine, again) == again


@pytest.mark.parametrize("where", ["another file", "memory"])
def test_a_connection_to_another_database_is_refused_by_name(
    engine: Engine, tmp_path: Path, path: Path, where: str
) -> None:
    other = tmp_path / "other.db" if where == "another file" else ":memory:"
    enqueued(engine)
    [job] = claim(engine)
    change = lifecycle.settle(job, Succeeded(), engine.now())
    connection = sqlite3.connect(other, isolation_level=None)
    connection.execute("begin immediate")
    for script in (
        engine.enqueue_script([a_job(engine.now())], now=engine.now()),
        engine.settle_script(change, now=engine.now()),
    ):
        with pytest.raises(EngineError, match="open the same file") as told:
            drive(connection, script)
        assert str(other) in str(told.value)
        assert str(path) in str(told.value)
    connection.execute("rollback")
    assert connection.execute("select * from sqlite_schema").fetchall() == []
    connection.close()
    assert current(engine, job) == job


def test_another_copy_of_jobs_in_memory_is_another_database(clock: FakeClock) -> None:
    engine = connect("sqlite://", clock=clock.now)
    connection = sqlite3.connect(":memory:")
    with pytest.raises(EngineError, match="open the same file"):
        drive(connection, engine.enqueue_script([a_job(engine.now())], now=engine.now()))
    connection.close()
    engine.close()


def test_the_same_file_by_another_name_is_the_same_file(engine: Engine, tmp_path: Path, path: Path) -> None:
    engine.migrate()
    (tmp_path / "link.db").symlink_to(path)
    (tmp_path / "folder").symlink_to(tmp_path)
    for name in (tmp_path / "link.db", tmp_path / "folder" / "treadle.db"):
        connection = sqlite3.connect(name, isolation_level=None)
        [receipt] = drive(connection, engine.enqueue_script([a_job(engine.now())], now=engine.now()))
        connection.close()
        assert current(engine, receipt.job) == receipt.job


def test_an_engine_that_came_by_a_link_takes_a_connection_that_did_not(
    engine: Engine, clock: FakeClock, tmp_path: Path, plain: Callable[[], sqlite3.Connection]
) -> None:
    engine.migrate()
    (tmp_path / "folder").symlink_to(tmp_path)
    linked = connect(f"sqlite:///{tmp_path}/folder/treadle.db", clock=clock.now)
    [receipt] = drive(plain(), linked.enqueue_script([a_job(clock.now())], now=clock.now()))
    assert current(engine, receipt.job) == receipt.job
    linked.close()


@pytest.mark.usefixtures("impatient")
def test_a_transaction_begun_before_the_tables_exist_is_told_and_stays_usable(
    engine: Engine, plain: Callable[[], sqlite3.Connection]
) -> None:
    connection = plain()
    connection.execute("create table orders (id integer)")
    connection.execute("begin immediate")
    connection.execute("insert into orders values (1)")
    with pytest.raises(EngineError, match=r"app\.migrate\(\)"):
        drive(connection, engine.enqueue_script([a_job(engine.now())], now=engine.now()))
    connection.execute("commit")
    assert orders(connection) == 1
    engine.migrate()
    assert drive(connection, engine.enqueue_script([a_job(engine.now())], now=engine.now()))[0].created


def test_a_due_time_in_the_future_is_kept_in_a_transaction_too(engine: Engine, mine: sqlite3.Connection) -> None:
    later = engine.now() + timedelta(hours=1)
    [receipt] = drive(mine, engine.enqueue_script([a_job(engine.now(), due_at=later)], now=engine.now()))
    mine.execute("commit")
    assert current(engine, receipt.job).due_at == later
    assert claim(engine) == []


def drive(connection: sqlite3.Connection, script: Script[T]) -> T:
    """Run a script's statements, as the adapter of a caller's driver does."""
    try:
        sql, text = next(script)
        while True:
            sql, text = script.send(connection.execute(sql, (text,)).fetchall())
    except StopIteration as end:
        return end.value
