"""A row or a key in somebody's open transaction: the write is busy, nobody waits, and a worker asks less often."""

import threading
import time

import psycopg
import pytest

from tests.support import workbench
from tests.support.making import a_job, an_error, running, settle
from treadle import Retry
from treadle.engines.scripts import drive
from treadle.engines.values import Ruling
from treadle.model import Scope, State
from treadle.model.lifecycle import Failed


@pytest.fixture
def store_url(fresh_store_url: str) -> str:
    return fresh_store_url


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


def _rows(connection, sql, text):
    cursor = psycopg.RawCursor(connection)
    cursor.execute(sql, [text])
    return cursor.fetchall() if cursor.description else []


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
