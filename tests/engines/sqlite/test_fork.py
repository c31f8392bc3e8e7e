"""Forked children: a prefork server, a process pool, a daemon. Each opens connections of its own."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.making import claim, current, enqueued, settle
from treadle.engines import connect
from treadle.engines.contract import Engine
from treadle.engines.values import JobFilter, Ruling
from treadle.model import Job, State
from treadle.model.lifecycle import Succeeded
from treadle.testing import FakeClock

Fork = Callable[[Callable[[], Any]], Any]

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


def test_an_engine_used_before_a_fork_works_in_the_child_and_in_the_parent(engine: Engine, neighbour: Fork) -> None:
    before = enqueued(engine)

    def child() -> tuple[Job, Job]:
        [mine] = claim(engine, worker="child")
        assert settle(engine, mine, Succeeded()).ruling is Ruling.APPLIED
        return mine, enqueued(engine)

    settled, made = neighbour(child).answer()
    assert settled.id == before.id
    assert current(engine, before).state is State.SUCCEEDED
    assert current(engine, made).state is State.PENDING
    assert [job.id for job in claim(engine)] == [made.id]


def test_parent_and_children_may_write_at_the_same_time(engine: Engine, together: Any, path: Path, plain: Any) -> None:
    enqueued(engine)

    def child(number: int, barrier: Any) -> None:
        barrier.wait()
        for _ in range(50):
            enqueued(engine)

    together(3, child)
    for _ in range(50):
        enqueued(engine)
    assert engine.count(JobFilter()) == {State.PENDING: 1 + 3 * 50 + 50}
    assert plain().execute("pragma integrity_check").fetchall() == [("ok",)]


def test_a_child_goes_on_after_its_parent_has_closed(engine: Engine, neighbour: Fork) -> None:
    # The last one to close deletes the write-ahead log: a child must count as one that has it open.
    before = enqueued(engine)
    assert current(engine, before) == before
    used_by_child, say_used = os.pipe()
    parent_closed, say_closed = os.pipe()

    def child() -> list[Job]:
        first = enqueued(engine)
        os.write(say_used, b"!")
        os.read(parent_closed, 1)
        return [first, enqueued(engine), enqueued(engine)]

    process = neighbour(child)
    os.read(used_by_child, 1)
    engine.close()
    os.write(say_closed, b"!")
    made = process.answer()
    assert engine.get([job.id for job in made]) == made


def test_a_child_that_uses_one_of_two_engines_goes_on_after_its_parent_has_closed_both(
    make_engine: Callable[[], Engine], neighbour: Fork
) -> None:
    one, other = make_engine(), make_engine()
    enqueued(one)
    enqueued(other)
    used_by_child, say_used = os.pipe()
    parent_closed, say_closed = os.pipe()

    def child() -> list[Job]:
        first = enqueued(one)
        os.write(say_used, b"!")
        os.read(parent_closed, 1)
        return [first, enqueued(one)]

    process = neighbour(child)
    os.read(used_by_child, 1)
    one.close()
    other.close()
    os.write(say_closed, b"!")
    made = process.answer()
    assert one.get([job.id for job in made]) == made


def test_a_child_of_a_process_that_has_just_closed_its_engine_starts_anew(engine: Engine, neighbour: Fork) -> None:
    before = enqueued(engine)
    engine.close()
    made = neighbour(lambda: enqueued(engine)).answer()
    assert engine.get([before.id, made.id]) == [before, made]


@pytest.mark.usefixtures("impatient")
def test_a_child_forked_while_another_thread_writes_is_not_locked_out_for_ever(engine: Engine, neighbour: Fork) -> None:
    enqueued(engine)
    writing, go_on = threading.Event(), threading.Event()
    parent_wrote, say_wrote = os.pipe()

    def write() -> None:
        with engine.file.write() as connection:
            connection.execute("update treadle_jobs set worker = null")
            writing.set()
            go_on.wait()

    def child() -> Job:
        os.read(parent_wrote, 1)
        return enqueued(engine)

    writer = threading.Thread(target=write)
    writer.start()
    writing.wait()
    threading.Timer(0.2, go_on.set).start()  # so that an engine may hold the fork back until the write is done
    process = neighbour(child)
    writer.join()
    os.write(say_wrote, b"!")
    made = process.answer()
    assert current(engine, made).state is State.PENDING


def test_jobs_in_memory_survive_a_fork_in_their_own_process(clock: FakeClock, neighbour: Fork) -> None:
    engine = connect("sqlite://", clock=clock.now)
    before = enqueued(engine)
    neighbour(lambda: enqueued(engine)).answer()
    after = enqueued(engine)
    assert [job.id for job in claim(engine)] == [before.id, after.id]
    engine.close()


def test_children_forked_beside_a_busy_writer_all_work_and_the_file_stays_whole(
    engine: Engine, neighbour: Fork, plain: Any, lock_timeout: Callable[[float], None]
) -> None:
    lock_timeout(5.0)
    enqueued(engine)
    enough = threading.Event()
    written: list[Job] = []

    def keep_writing() -> None:
        while not enough.is_set():
            written.append(enqueued(engine))

    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        made = [neighbour(lambda: enqueued(engine)).answer() for _ in range(10)]
    finally:
        enough.set()
        writer.join()
    assert plain().execute("pragma integrity_check").fetchall() == [("ok",)]
    assert engine.get([job.id for job in made + written]) == made + written


def test_a_signal_that_comes_while_a_fork_waits_for_a_writer_leaves_the_engine_usable(engine: Engine) -> None:
    before = enqueued(engine)
    file = engine.file  # type: ignore[attr-defined]
    usual = signal.signal(signal.SIGUSR1, lambda *_: (_ for _ in ()).throw(InterruptedError))
    try:
        with file.write():
            threading.Timer(0.05, signal.pthread_kill, [threading.get_ident(), signal.SIGUSR1]).start()
            with pytest.raises(InterruptedError):
                file.before_fork()
            file.after_fork()
    finally:
        signal.signal(signal.SIGUSR1, usual)
    assert engine.get([before.id]) == [before]
    assert [job.id for job in claim(engine)] == [before.id]


def test_threads_that_fork_at_once_leave_an_engine_in_use_usable(store_url: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKERS, store_url]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"the forking process hangs: {error.stderr}")
    assert (done.returncode, done.stdout) == (0, "usable\n"), done.stderr
