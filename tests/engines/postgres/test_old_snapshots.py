"""An enqueue whose snapshot is older than its job: the job may have run and ended meanwhile, and never runs twice."""

import threading

import psycopg
import pytest

from tests.support.making import a_job, claimed, enqueued, settle
from tests.support.workbench import until
from treadle.engines.scripts import drive
from treadle.engines.values import JobFilter
from treadle.model import Scope, State
from treadle.model.lifecycle import Succeeded


@pytest.fixture
def store_url(fresh_store_url: str) -> str:
    return fresh_store_url


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
    """The transaction's snapshot is older than the job, so it looks for the id in vain and takes the key for it."""
    connection.execute("set transaction isolation level repeatable read")
    connection.execute("select 1")
    job = a_job(near.now(), key="k", key_scope=Scope.ACTIVE)
    near.enqueue([job])
    settle(near, claimed(near, job), Succeeded())

    with pytest.raises(psycopg.errors.SerializationFailure):
        list(steps(near.enqueue_script([job]), connection))
    connection.rollback()

    [receipt] = near.enqueue([a_job(near.now(), key="k", key_scope=Scope.ACTIVE)])
    assert receipt.created


def test_a_key_taken_for_a_job_that_was_there_after_all_is_let_go(near, open_engine, store_url, connection):
    """The other enqueue of the same id has no key. So nobody would ever free this one."""
    job = a_job(near.now())
    drive(near.enqueue_script([job]), lambda sql, text: _rows(connection, sql, text))  # stays open
    other, receipts = open_engine(store_url), []
    with_key = job.evolve(key="k", key_scope=Scope.ACTIVE)
    thread = threading.Thread(target=lambda: receipts.extend(other.enqueue([with_key])))
    thread.start()
    until(lambda: _waiting(near, connection), "it has the key, and waits for the row")

    connection.commit()
    thread.join(30)

    assert [(receipt.created, receipt.job.key) for receipt in receipts] == [(False, None)]
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
    until(lambda: _waiting(near, connection), "the bulk waits at the first of its jobs")
    near.enqueue([victim])
    settle(near, claimed(near, victim), Succeeded())

    connection.commit()
    thread.join(30)

    assert [receipt.created for receipt in receipts] == [False, False]
    assert near.count(JobFilter()) == {State.PENDING: 1, State.SUCCEEDED: 1}


def test_a_job_that_came_and_went_while_the_same_job_waited_alone_does_not_run_again(
    near, open_engine, store_url, connection
):
    """It looked for the id in vain, and then waits for a transaction that stores the job and ends it."""
    job = a_job(near.now())
    drive(near.enqueue_script([job]), lambda sql, text: _rows(connection, sql, text))  # stays open
    other, receipts = open_engine(store_url), []
    thread = threading.Thread(target=lambda: receipts.extend(other.enqueue([job])))
    thread.start()
    until(lambda: _waiting(near, connection), "it waits for the row")
    kept = """id, task, payload, created_at, due_at, tenant, queue, lane, task_version, priority, max_attempts,
        retry_base, retry_jitter, attempt, failures, crashes, cancel_requested, cost_micros, revision"""
    connection.execute(
        f"""with gone as (delete from {near.schema}.jobs returning {kept})
        insert into {near.schema}.finished ({kept}, state, finished_at) select {kept}, 'succeeded', now() from gone"""
    )

    connection.commit()
    thread.join(30)

    assert [receipt.created for receipt in receipts] == [False]
    assert near.count(JobFilter()) == {State.SUCCEEDED: 1}


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


def _waiting(engine, connection):
    """How many others wait for this connection."""
    blocked = "select count(*) from pg_stat_activity where %s = any (pg_blocking_pids(pid))"
    return engine.session.read(blocked, [connection.info.backend_pid])[0][0]


def _rows(connection, sql, text):
    cursor = psycopg.RawCursor(connection)
    cursor.execute(sql, [text])
    return cursor.fetchall() if cursor.description else []
