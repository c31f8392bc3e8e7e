"""One writer at a time: everybody else waits, is told so in time, and loses nothing."""

import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.making import a_job, claim, current, enqueued, running, settle
from tests.support.sizes import size
from treadle.engines import connect
from treadle.engines.contract import Engine
from treadle.engines.values import Claim, JobFilter, Lease, Renewal, Retention, Ruling
from treadle.errors import EngineUnavailable
from treadle.model import Job, State
from treadle.model.lifecycle import Succeeded
from treadle.testing import FakeClock

Locked = Callable[[], AbstractContextManager[sqlite3.Connection]]


@pytest.fixture
def aside() -> Any:
    """Runs one call at a time beside the test."""
    with ThreadPoolExecutor(4) as pool:
        yield pool.submit


def test_writes_wait_for_a_file_that_is_locked_and_then_succeed(engine: Engine, locked: Locked, aside: Any) -> None:
    running = first_claimed(engine)
    with locked():
        late = aside(enqueued, engine)
        settled = aside(settle, engine, running, Succeeded())
        with pytest.raises(TimeoutError):
            late.result(timeout=1.0)  # a second is nothing to whom waits thirty
        assert not settled.done()
    assert current(engine, late.result()).state is State.PENDING
    assert settled.result().ruling is Ruling.APPLIED


def test_an_engine_that_opens_a_locked_file_waits_too(
    engine: Engine, make_engine: Callable[[], Engine], locked: Locked, aside: Any
) -> None:
    enqueued(engine)
    with locked():
        late = aside(enqueued, make_engine())
        with pytest.raises(TimeoutError):
            late.result(timeout=0.5)
    assert late.result().state is State.PENDING


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "write",
    [
        lambda engine, job: enqueued(engine),
        lambda engine, job: engine.turn([], Claim("token", "w2", 10, 30.0)),
        lambda engine, job: settle(engine, job, Succeeded()),
        lambda engine, job: engine.prune(Retention({State.SUCCEEDED: timedelta(0)}), limit=10),
    ],
    ids=["enqueue", "claim", "settle", "prune"],
)
def test_a_file_locked_beyond_patience_says_that_repeating_is_safe_and_writes_nothing(
    engine: Engine, locked: Locked, path: Path, write: Callable[[Engine, Job], object]
) -> None:
    running = first_claimed(engine)
    enqueued(engine)
    before = audit_all(engine)
    with locked(), pytest.raises(EngineUnavailable, match="repeating is safe") as told:
        write(engine, running)
    assert str(path) in str(told.value)
    assert isinstance(told.value.__cause__, sqlite3.OperationalError)
    assert audit_all(engine) == before
    write(engine, running)


@pytest.mark.usefixtures("impatient")
def test_a_thread_kept_waiting_by_its_own_process_is_told_the_same(engine: Engine) -> None:
    enqueued(engine)
    with engine.file.write(), pytest.raises(EngineUnavailable, match="repeating is safe"):
        enqueued(engine)
    assert engine.count(JobFilter()) == {State.PENDING: 1}


def test_renewals_of_a_locked_file_are_busy_within_a_sixth_of_the_lease(
    engine: Engine, locked: Locked, stopwatch: Callable[[], Callable[[], float]]
) -> None:
    enqueued(engine)
    enqueued(engine)
    jobs = claim(engine, lease=3.0)
    holds = [Lease(job.id, job.lease_token or "") for job in jobs]
    with locked():
        took = stopwatch()
        held = engine.extend(holds, lease=3.0)
        assert 0.4 < took() < 2.5
    assert [(each.job_id, each.renewal) for each in held] == [(job.id, Renewal.BUSY) for job in jobs]
    assert [current(engine, job).lease_until for job in jobs] == [job.lease_until for job in jobs]
    assert {each.renewal for each in engine.extend(holds, lease=3.0)} == {Renewal.RENEWED}


def test_renewals_are_busy_in_time_although_their_own_process_waits_for_the_lock(
    engine: Engine, locked: Locked, aside: Any, stopwatch: Callable[[], Callable[[], float]]
) -> None:
    job = first_claimed(engine)
    with locked():
        waiting = aside(enqueued, engine)
        until_it_waits(engine)
        took = stopwatch()
        [held] = engine.extend([Lease(job.id, job.lease_token or "")], lease=3.0)
        assert took() < 2.5
        assert not waiting.done()
    assert held.renewal is Renewal.BUSY
    waiting.result()


READS: dict[str, Callable[[Engine, Job], object]] = {
    "get": lambda engine, job: engine.get([job.id]),
    "find": lambda engine, job: engine.find(JobFilter(), limit=10).jobs,
    "count": lambda engine, job: engine.count(JobFilter()),
    "expired": lambda engine, job: engine.expired(limit=10),
    "events": lambda engine, job: engine.events(job.id),
    "check": lambda engine, job: engine.check(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reads_do_not_wait_for_a_writer_and_see_what_was_committed(
    make_engine: Callable[[], Engine],
    locked: Locked,
    read: Callable[[Engine, Job], object],
    stopwatch: Callable[[], Callable[[], float]],
) -> None:
    job = first_claimed(make_engine())
    expected = read(make_engine(), job)
    for engine in (make_engine(), make_engine()):
        with locked() as stranger:
            stranger.execute("delete from treadle_jobs")
            took = stopwatch()
            assert read(engine, job) == expected
            assert took() < 4.0


def test_no_lease_counts_as_past_while_the_file_is_locked_for_its_holder_cannot_renew(
    make_engine: Callable[[], Engine], locked: Locked
) -> None:
    job = first_claimed(make_engine())
    later = job.due_at + timedelta(days=1)
    with locked(), pytest.raises(EngineUnavailable):
        make_engine().expired(limit=10, now=later)
    assert [found.id for found in make_engine().expired(limit=10, now=later)] == [job.id]


def test_reads_do_not_wait_for_a_writer_of_their_own_process(
    make_engine: Callable[[], Engine], locked: Locked, aside: Any, stopwatch: Callable[[], Callable[[], float]]
) -> None:
    engine = make_engine()
    job = enqueued(engine)
    with locked():
        waiting = aside(enqueued, engine)
        until_it_waits(engine)
        reading = aside(engine.get, [job.id])  # the first read of this engine, which opens the reader
        try:
            assert reading.result(timeout=2.0) == [job]
        finally:
            assert not waiting.done()


def test_many_threads_may_use_a_fresh_engine_at_once(clock: FakeClock, lock_timeout: Callable[[float], None]) -> None:
    lock_timeout(5.0)
    threads = 8
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # let threads meet where they seldom do
    try:
        with ThreadPoolExecutor(threads) as pool:
            for _ in range(size(120, long=600)):
                engine = connect("sqlite://", clock=clock.now)
                barrier = threading.Barrier(threads, timeout=60)
                started = [pool.submit(after, barrier, enqueued, engine) for _ in range(threads)]
                jobs = [each.result(timeout=60) for each in started]
                assert engine.get([job.id for job in jobs]) == jobs
                engine.close()
    finally:
        sys.setswitchinterval(usual)


def test_eight_processes_on_one_file_meet_no_error_and_settle_every_job_once(
    together: Callable[..., Sequence[list[str]]], in_ram: Path, clock: FakeClock
) -> None:
    cycles = size(40, long=150)
    url = f"sqlite:///{in_ram}/treadle.db"

    def work(number: int, barrier: Any) -> list[str]:
        engine = connect(url, clock=clock.now)
        settled = []
        barrier.wait()
        for _ in range(cycles):
            enqueued(engine)
            for job in claim(engine, 1, worker=f"w{number}"):
                assert settle(engine, job, Succeeded()).ruling is Ruling.APPLIED
                settled.append(job.id)
        engine.close()
        return settled

    settled = [id for ids in together(8, work) for id in ids]
    # Each claims after it enqueued, so there is always one left for it.
    assert len(settled) == len(set(settled)) == 8 * cycles
    engine = connect(url, clock=clock.now)
    assert engine.count(JobFilter()) == {State.SUCCEEDED: 8 * cycles}
    engine.close()


def test_a_process_stopped_with_the_lock_in_its_hands_costs_nobody_anything(
    neighbour: Callable[..., Any], store_url: str, engine: Engine, clock: FakeClock, aside: Any
) -> None:
    job = first_claimed(engine)
    assert current(engine, job) == job
    his = a_job(clock.now())
    holder, lock_is_held, go_on = hold_the_lock(neighbour, store_url, clock, his)
    os.read(lock_is_held, 1)
    os.kill(holder.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, holder.pid, os.WSTOPPED)

    waiting = aside(enqueued, engine)
    [held] = engine.extend([Lease(job.id, job.lease_token or "")], lease=3.0)
    assert held.renewal is Renewal.BUSY
    assert current(engine, job) == job
    assert not waiting.done()

    os.kill(holder.pid, signal.SIGCONT)
    os.write(go_on, b"!")
    holder.answer()
    assert current(engine, his).state is State.PENDING
    assert current(engine, waiting.result()).state is State.PENDING
    assert settle(engine, job, Succeeded()).ruling is Ruling.APPLIED


def test_a_process_killed_with_the_lock_in_its_hands_leaves_neither_lock_nor_half_a_write(
    neighbour: Callable[..., Any], store_url: str, engine: Engine, clock: FakeClock, aside: Any
) -> None:
    enqueued(engine)
    his = a_job(clock.now())
    holder, lock_is_held, _ = hold_the_lock(neighbour, store_url, clock, his)
    os.read(lock_is_held, 1)
    waiting = aside(enqueued, engine)
    os.kill(holder.pid, signal.SIGKILL)
    assert current(engine, waiting.result()).state is State.PENDING
    assert engine.get([his.id]) == [None]


@pytest.mark.covers("001-R22.a")
def test_of_eight_processes_racing_for_one_job_exactly_one_gets_it(
    together: Callable[..., Sequence[list[list[str]]]], store_url: str, engine: Engine, clock: FakeClock
) -> None:
    rounds = 50
    jobs = [enqueued(engine, queue=f"q{number}") for number in range(rounds)]

    def work(number: int, barrier: Any) -> list[list[str]]:
        engine = connect(store_url, clock=clock.now)
        engine.get(["none"])
        got = []
        for round in range(rounds):
            barrier.wait()
            got.append([job.id for job in claim(engine, queues=[f"q{round}"], worker=f"w{number}")])
        engine.close()
        return got

    by_round = zip(*together(8, work), strict=True)
    assert [sorted(got) for got in by_round] == [[[]] * 7 + [[job.id]] for job in jobs]
    assert {current(engine, job).attempt for job in jobs} == {1}


def after(barrier: threading.Barrier, work: Callable[..., Job], engine: Engine) -> Job:
    barrier.wait()
    return work(engine)


def first_claimed(engine: Engine) -> Job:
    enqueued(engine)
    [job] = claim(engine, 1)
    return job


def audit_all(engine: Engine) -> list[Job]:
    return engine.find(JobFilter(), limit=100).jobs


def until_it_waits(engine: Engine) -> None:
    """Return once another thread is inside a write of this engine: it is then our own, not SQLite, that says no."""
    while True:
        try:
            with engine.file.write(timeout=0.001):
                pass
        except EngineUnavailable as told:
            if told.__cause__ is None:
                return


def hold_the_lock(neighbour: Callable[..., Any], store_url: str, clock: FakeClock, job: Job) -> tuple[Any, int, int]:
    """A process that has written `job`, says so, and commits when told: itself, and the two ends to talk by."""
    lock_is_held, say_held = os.pipe()
    told, go_on = os.pipe()

    def work() -> None:
        engine = connect(store_url, clock=clock.now)
        with engine.file.write() as connection:
            drive(connection, engine.enqueue_script([job], now=clock.now()))
            os.write(say_held, b"!")
            os.read(told, 1)
        engine.close()

    return neighbour(work), lock_is_held, go_on


def drive(connection: sqlite3.Connection, script: Any) -> None:
    try:
        statement = next(script)
        while True:
            statement = script.send(connection.execute(statement[0], statement[1:]).fetchall())
    except StopIteration:
        pass


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
    reader = threading.Thread(target=lambda: answers.append(engine.file.read(slow)))
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
