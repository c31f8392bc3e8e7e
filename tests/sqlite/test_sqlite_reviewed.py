"""What a review under crash and race demonstrated of one SQLite file: each test is a defect that was there once."""

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from making import a_job, current, enqueued, running
from treadle.engines.contract import Engine
from treadle.engines.values import Lease, Renewal

FORKERS = """
import faulthandler, os, sys, threading
from treadle import Treadle

app = Treadle(sys.argv[1])
task = app.register("work", lambda: None)
app.migrate()
over = threading.Event()
errors = []

def use():
    while not over.is_set():
        task.enqueue()

def look():
    while not over.is_set():
        app.count()

def fork():
    for _ in range(30):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

def safely(work):
    def run():
        try:
            work()
        except BaseException as error:
            errors.append(repr(error))
    return run

def within(seconds, *threads):
    for thread in threads:
        thread.join(seconds)
    if any(thread.is_alive() for thread in threads):
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        os._exit(3)

def threads(*works):
    started = [threading.Thread(target=safely(work), daemon=True) for work in works]
    for thread in started:
        thread.start()
    return started

users = threads(use, look)
within(40, *threads(fork, fork))
over.set()
within(10, *users)
within(10, *threads(task.enqueue))
if errors:
    sys.exit("; ".join(errors))
app.close()
print("usable")
sys.stdout.flush()
os._exit(0)
"""


def test_threads_that_fork_at_once_leave_an_engine_in_use_usable(store_url: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKERS, store_url]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"the forking process hangs: {error.stderr}")
    assert (done.returncode, done.stdout) == (0, "usable\n"), done.stderr


def test_a_transaction_that_an_interrupt_left_open_does_not_wedge_the_engine(
    engine: Engine, plain: Callable[[], sqlite3.Connection]
) -> None:
    before = enqueued(engine)
    engine.file._writer.execute("begin immediate")  # and the interrupt came here, before anything could undo it
    [receipt] = engine.enqueue([a_job(engine.now())])
    assert receipt.created
    assert current(engine, before) == before
    assert current(engine, receipt.job) == receipt.job
    assert not engine.file._writer.in_transaction
    stranger = plain()
    stranger.execute("begin immediate")
    stranger.execute("rollback")


def test_a_slow_read_does_not_hold_up_the_renewal_of_a_lease(
    engine: Engine, stopwatch: Callable[[], Callable[[], float]]
) -> None:
    job = running(engine)
    reading, enough = threading.Event(), threading.Event()

    def slow(connection: sqlite3.Connection) -> bool:
        reading.set()
        return enough.wait(20)

    answers: list[bool] = []
    reader = threading.Thread(target=lambda: answers.append(engine.file.look(slow)))
    reader.start()
    try:
        assert reading.wait(30)
        took = stopwatch()
        [held] = engine.extend([Lease(job.id, job.lease_token)], lease=30)
        spent = took()
        assert not answers  # the read still goes on
    finally:
        enough.set()
        reader.join()
    assert held.renewal is Renewal.RENEWED
    assert spent < 1
    assert answers == [True]
