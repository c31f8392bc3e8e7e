"""What a review under crash and race has shown once, so that it stays mended."""

import asyncio
import threading
import time
from datetime import timedelta

import psycopg
import pytest
import workbench
from workbench import until

from making import a_job, an_error, claimed, current, enqueued, running, settle
from treadle import Context, Retry
from treadle.engines.scripts import drive
from treadle.engines.values import Claim, JobFilter, Ruling
from treadle.errors import EngineUnavailable
from treadle.model import Scope, State, new_id
from treadle.model.lifecycle import Failed, Succeeded


@pytest.fixture
def connection(store_url):
    """The application's own connection, with a transaction that stays open."""
    with psycopg.connect(store_url.partition("?")[0]) as connection:
        yield connection
        connection.rollback()


def steps(script, connection):
    """A script on the application's connection, statement by statement."""
    sql, text = next(script)
    while True:
        cursor = psycopg.RawCursor(connection)
        cursor.execute(sql, [text])
        yield
        try:
            sql, text = script.send(cursor.fetchall() if cursor.description else [])
        except StopIteration:
            return


def test_a_key_taken_for_a_job_that_ended_meanwhile_is_let_go(near, connection):
    job = a_job(near.now(), key="k", key_scope=Scope.ACTIVE)
    replay = steps(near.enqueue_script([job]), connection)
    next(replay)  # it has looked for the id, and found none
    near.enqueue([job])
    settle(near, claimed(near, job), Succeeded())

    with pytest.raises(EngineUnavailable, match="repeating is safe"):
        list(replay)
    connection.rollback()

    [receipt] = near.enqueue([a_job(near.now(), key="k", key_scope=Scope.ACTIVE)])
    assert receipt.created


def test_the_sql_function_lets_go_of_such_a_key_too(near, connection):
    connection.execute("set transaction isolation level repeatable read")
    connection.execute("select 1")
    job = enqueued(near, key="k", key_scope=Scope.ACTIVE)
    settle(near, claimed(near, job), Succeeded())

    with pytest.raises(psycopg.errors.SerializationFailure):
        connection.execute(f"select {near.schema}.enqueue('greet', key => 'k', id => %s)", [job.id])


def test_a_job_that_came_and_went_while_a_bulk_waited_does_not_run_again(near, open_engine, store_url, connection):
    """The bulk's snapshot is older than the job, and its unique check younger: only the guard sees it."""
    first, victim = a_job(near.now()), a_job(near.now())
    drive(near.enqueue_script([first]), lambda sql, text: _rows(connection, sql, text))  # stays open
    bulk, receipts = open_engine(store_url), []
    thread = threading.Thread(target=lambda: receipts.extend(bulk.enqueue([first, victim])))
    thread.start()
    blocked = "select count(*) from pg_stat_activity where %s = any (pg_blocking_pids(pid))"
    until(lambda: near._read(blocked, [connection.info.backend_pid])[0][0], "the bulk waits at the first of its jobs")
    near.enqueue([victim])
    settle(near, claimed(near, victim), Succeeded())

    connection.commit()
    thread.join(30)

    assert [receipt.created for receipt in receipts] == [False, False]
    assert near.count(JobFilter()) == {State.PENDING: 1, State.SUCCEEDED: 1}


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_transaction_with_an_old_snapshot_cannot_bring_back_a_finished_job(near, connection, level):
    connection.execute(f"set transaction isolation level {level}")
    connection.execute("select count(*) from pg_class")
    job = enqueued(near)
    settle(near, claimed(near, job), Succeeded())

    with pytest.raises(psycopg.errors.SerializationFailure):
        drive(near.enqueue_script([job]), lambda sql, text: _rows(connection, sql, text))
    connection.rollback()

    assert near.count(JobFilter()) == {State.SUCCEEDED: 1}


def test_such_a_transaction_enqueues_new_jobs_and_leaves_nothing_else(near, connection):
    connection.execute("set transaction isolation level repeatable read")
    job = a_job(near.now())

    [receipt] = drive(near.enqueue_script([job]), lambda sql, text: _rows(connection, sql, text))
    connection.commit()

    assert receipt.created
    assert near.count(JobFilter()) == {State.PENDING: 1}


def _rows(connection, sql, text):
    cursor = psycopg.RawCursor(connection)
    cursor.execute(sql, [text])
    return cursor.fetchall() if cursor.description else []


def test_a_key_in_somebodys_open_transaction_makes_a_retry_busy_and_holds_nobody_up(near, connection):
    job = running(near, key="k", key_scope=Scope.PENDING, retry=Retry(max_attempts=3))
    other = a_job(near.now(), key="k", key_scope=Scope.PENDING)
    drive(near.enqueue_script([other]), lambda sql, text: _rows(connection, sql, text))

    began = time.monotonic()
    verdict = settle(near, job, Failed(an_error(near.now())))

    assert verdict.ruling is Ruling.BUSY
    assert time.monotonic() - began < 5
    connection.rollback()
    assert settle(near, job, Failed(an_error(near.now()))).ruling is Ruling.APPLIED


def test_a_claim_is_not_repeated_while_its_first_sending_is_under_way(near, far, proxy, connection):
    for _ in range(4):
        enqueued(near, key=new_id(), key_scope=Scope.PENDING)
    connection.execute(f"lock table {near.schema}.keys in access exclusive mode")  # claims wait at their end
    wish = Claim(token=new_id(), worker="w1", limit=2, lease=30.0)
    answers = []

    def take():
        while not answers:
            try:
                answers.append(far.turn([], wish).jobs)
            except EngineUnavailable:
                time.sleep(0.05)

    thread = threading.Thread(target=take)
    thread.start()
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and application_name = 'treadle'"
    until(lambda: near._read(waiting)[0][0], "a claim that waits")
    proxy.reset()  # its answer is lost, but not the claim
    time.sleep(0.5)
    connection.rollback()
    thread.join(30)

    assert len(answers[0]) == 2
    assert near.count(JobFilter())[State.RUNNING] == 2


def test_looking_for_past_leases_hears_the_servers_time(near, monkeypatch):
    near.now()
    monkeypatch.setattr(near, "_known", (near.now() - timedelta(hours=1), near._known[1]))

    near.expired(limit=1)

    with psycopg.connect(near.server._conninfo) as connection:
        [[now]] = connection.execute("select clock_timestamp()").fetchall()
    assert abs(near.now() - now) < timedelta(seconds=5)


def test_a_connection_that_became_read_only_is_not_used_again(near, store_url):
    enqueued(near)
    [connection] = near.server._idle
    connection.execute("set default_transaction_read_only = on")

    job = enqueued(near)  # the second try has a connection of its own

    assert current(near, job) == job


def test_a_worker_whose_row_is_locked_asks_less_and_less_often(store_url, make_app, connection):
    app = make_app(store_url)

    @app.task
    def quick() -> None:
        go.wait(10)

    go = threading.Event()
    watched = workbench.watched(app)
    job = quick.enqueue()
    with workbench.working(app, lease=30.0, poll=5.0):
        workbench.in_state(app, job, state=State.RUNNING)
        connection.execute(f"select 1 from {app.engine.schema}.jobs where id = %s for update", [job.id])
        go.set()
        before = len(watched.turns)
        time.sleep(2.0)
        asked = len(watched.turns) - before
        connection.rollback()
        workbench.ended(app, job)

    assert asked < 30


def test_a_handler_that_settled_its_job_is_not_stopped_for_it(store_url, make_app):
    app = make_app(store_url)
    ended = []

    @app.task
    async def slow(ctx: Context) -> None:
        async with await psycopg.AsyncConnection.connect(store_url.partition("?")[0]) as connection:
            await ctx.asettle(connection)
        try:
            await asyncio.sleep(1.5)
            ended.append("by itself")
        except asyncio.CancelledError:
            ended.append("stopped")
            raise

    job = slow.enqueue()
    with workbench.working(app, lease=1.0):
        until(lambda: ended, "its end")

    assert ended == ["by itself"]
    assert app.get(job.id).state is State.SUCCEEDED
