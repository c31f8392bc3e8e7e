"""What a review under crash and race demonstrated: each test is a defect that was there once."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from workbench import all_in, any_engine, ended, in_state, until, working

from making import claim
from treadle import Cancelled, Context, Job, Reason, Retry, State, Treadle
from treadle.engines.contract import Engine
from treadle.model import clock as clocks
from treadle.model.clock import SystemClock
from treadle.model.lifecycle import Stopped
from treadle.tasks.context import Context as HandlerContext
from treadle.tasks.context import StopReason
from treadle.worker.attempt import Attempt
from treadle.worker.executors import Call
from treadle.worker.executors import loop as on_loop

ONCE = Retry(max_attempts=1)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Set when the test is over, so that no thread outlives it for long."""
    event = threading.Event()
    yield event
    event.set()


class Noted:
    """An engine that notes when a claim is sent and how often leases were looked over; else the engine's own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.claiming = threading.Event()
        self.answering = threading.Event()  # cleared, the store lets those who claim wait
        self.answering.set()
        self.looks = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def turn(self, changes: Any, claim: Any = None, **named: Any) -> Any:
        if claim is not None:
            self.claiming.set()
            assert self.answering.wait(60)
        return self._engine.turn(changes, claim, **named)

    def expired(self, **named: Any) -> Any:
        found = self._engine.expired(**named)
        self.looks += 1
        return found

    def looked_over(self, times: int) -> None:
        """Wait until the leases were looked over so many times more."""
        goal = self.looks + times
        until(lambda: self.looks >= goal, f"{times} more looks at the leases")


def noted(app: Treadle) -> Noted:
    """The app's engine, noted from now on."""
    app.engine = engine = Noted(app.engine)  # type: ignore[misc, assignment]
    return engine


class Steps(SystemClock):
    """The machine's clock, and what a test adds to it."""

    step = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.step


# ------------------------------------------------------------------------------------------ stopping


def test_a_claim_in_flight_when_the_worker_is_asked_to_stop_leaves_no_job_running(app: Treadle) -> None:
    ran: list[int] = []
    work = app.register("work", lambda: ran.append(1))
    jobs = [work.enqueue() for _ in range(3)]
    engine = noted(app)
    engine.answering.clear()
    with working(app, lease=30) as worker:
        assert engine.claiming.wait(30)
        worker.stop()
        until(lambda: worker._drained, "the end of the drain")  # it waits for the claim's answer alone
        engine.answering.set()
    after = [app.get(job.id) for job in jobs]
    assert {(job.state, job.failures, job.crashes) for job in after} == {(State.PENDING, 0, 0)}
    assert not ran


def test_workers_that_start_and_stop_under_traffic_leave_no_job_running(make_app: Callable[..., Treadle]) -> None:
    app, feeder = make_app(), make_app()
    ran = threading.Event()
    app.register("work", ran.set)
    task = feeder.register("work", lambda: None)
    over = threading.Event()

    def feed() -> None:
        while not over.wait(0.003):
            task.enqueue()

    feeding = threading.Thread(target=feed)
    feeding.start()
    try:
        for _ in range(10):
            ran.clear()
            with working(app, lease=30, grace=10):
                assert ran.wait(30)
            assert all_in(app, State.RUNNING) == []
    finally:
        over.set()
        feeding.join()
    assert {(job.failures, job.crashes) for job in app.find(limit=500).jobs} == {(0, 0)}


@any_engine
@pytest.mark.parametrize("loop", ["lives on", "ends at once"])
def test_a_host_that_is_cancelled_while_the_worker_drains_releases_what_runs(
    app: Treadle, release: threading.Event, loop: str
) -> None:
    started, slow_turn, ending = threading.Event(), threading.Event(), threading.Event()

    class Slow(Noted):
        def wait(self, *arguments: Any, **named: Any) -> bool:
            """As long as a store may take to answer: here, until the host's loop is gone."""
            hinted = self._engine.wait(*arguments, **named)
            if slow_turn.is_set():
                ending.set()
                release.wait(30)
            return hinted

    @app.task(retry=Retry(max_attempts=2, base=0, jitter=0))
    async def slow() -> None:
        started.set()
        await asyncio.sleep(1000)

    job = slow.enqueue()
    app.engine = Slow(app.engine)  # type: ignore[misc, assignment]
    worker = app.worker(lease=5.0, grace=30, poll=60)

    async def until_so(condition: Callable[[], Any]) -> None:
        while not condition():
            await asyncio.sleep(0.005)

    async def host() -> None:
        async with worker:
            await until_so(started.is_set)
            if loop == "ends at once":
                slow_turn.set()
                await until_so(ending.is_set)

    async def main() -> None:
        hosting = asyncio.create_task(host())
        await until_so(lambda: worker._stopping)  # and so it drains: it says so and waits in one step of the loop
        hosting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await hosting
        if loop == "lives on":
            await until_so(lambda: app.get(job.id).state is State.PENDING)

    asyncio.run(asyncio.wait_for(main(), 60))
    release.set()
    back = until(lambda: (now := app.get(job.id)).state is State.PENDING and now, "the job's release", within=10)
    assert (back.failures, back.crashes, back.error, back.worker) == (0, 0, None, None)


@any_engine
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_handler_that_raises_cancelled_when_told_of_a_shutdown_is_released(app: Treadle, kind: str) -> None:
    job, started, told = obedient(app, kind)
    with working(app, grace=0.5):
        assert started.wait(30)
    assert told.is_set()
    back = app.get(job.id)
    assert (back.state, back.failures, back.crashes, back.error) == (State.PENDING, 0, 0, None)


@any_engine
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_handler_that_raises_cancelled_when_told_of_its_timeout_is_timed_out(app: Treadle, kind: str) -> None:
    job, _, told = obedient(app, kind, timeout=0.2, retry=ONCE)
    with working(app, grace=20):
        [job] = ended(app, job)
    assert told.is_set()
    assert (job.state, job.reason, job.failures) == (State.FAILED, Reason.TIMEOUT, 1)


def obedient(app: Treadle, kind: str, **options: Any) -> tuple[Job, threading.Event, threading.Event]:
    """A job that raises Cancelled as soon as it is told to stop; when it has started, and when it was told."""
    started, told = threading.Event(), threading.Event()

    def plain(ctx: Context) -> None:
        started.set()
        until(lambda: ctx.cancelled, "a word to stop")
        told.set()
        raise Cancelled("stopping, as told")

    async def coroutine() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            told.set()
            raise Cancelled("stopping, as told") from None

    return app.register("work", plain if kind == "plain" else coroutine, **options).enqueue(), started, told


# -------------------------------------------------------------------------- handlers that do not listen


@any_engine
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_cancelled_job_whose_handler_ignores_it_ends_after_timeout_and_grace_and_costs_a_slot(
    app: Treadle, release: threading.Event, kind: str
) -> None:
    started, told = threading.Event(), threading.Event()

    def plain(ctx: Context) -> None:
        started.set()
        until(lambda: ctx.cancelled, "word of the cancellation")
        told.set()
        release.wait(60)

    async def swallowing() -> None:
        started.set()
        while not release.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                told.set()

    task = app.register("deaf", plain if kind == "plain" else swallowing, timeout=1.0)
    job = task.enqueue()
    with working(app, lease=3, grace=0.3) as worker:
        assert started.wait(30)
        app.cancel(job.id)
        assert told.wait(30)
        [job] = ended(app, job)
        assert job.state is State.CANCELLED
        assert (job.finished_at - job.started_at).total_seconds() >= 1.2
        assert worker._slots.lost == 1
        release.set()
        until(lambda: worker._slots.lost == 0, "the slot's return")


@any_engine
def test_a_hung_job_of_one_attempt_does_not_keep_the_next_ones_from_running(
    app: Treadle, release: threading.Event
) -> None:
    @app.task(timeout=0.3, retry=ONCE)
    def hangs() -> None:
        release.wait(60)

    @app.task(retry=ONCE)
    def fine(n: int) -> int:
        return n

    hung = hangs.enqueue()
    with working(app, concurrency=4, grace=0.3):
        [hung] = ended(app, hung)
        assert (hung.state, hung.reason) == (State.FAILED, Reason.TIMEOUT)
        assert not release.is_set()
        done = ended(app, *(fine.enqueue(n) for n in range(6)), within=15)
    assert [(job.state, job.result) for job in done] == [(State.SUCCEEDED, n) for n in range(6)]


def test_four_hundred_jobs_of_an_unknown_task_all_end_failed(make_app: Callable[..., Treadle]) -> None:
    app, other = make_app(unknown_tasks="fail"), make_app()
    app.register("known", lambda: None)
    other.register("gone", lambda: None).enqueue_many([()] * 400)
    with working(app, concurrency=400, lease=10):
        until(lambda: app.count()[State.FAILED] == 400, lambda: f"400 failed, but {app.count()}")
    assert {(job.state, job.reason) for job in app.find(limit=500).jobs} == {(State.FAILED, Reason.UNKNOWN_TASK)}


@any_engine
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_cancelled_that_cannot_be_printed_ends_its_job(app: Treadle, kind: str) -> None:
    class Odd(Cancelled):
        def __str__(self) -> str:
            raise IndexError("no words")

    def plain() -> None:
        raise Odd

    async def coroutine() -> None:
        raise Odd

    job = app.register("work", plain if kind == "plain" else coroutine).enqueue()
    with working(app):
        [job] = ended(app, job)
    assert (job.state, job.failures) == (State.CANCELLED, 0)


@any_engine
def test_a_coroutine_that_is_stopped_before_its_first_step_is_told_of_once(
    app: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_loop, "_EAGER", {})  # as on Pythons whose tasks do not start at once
    entered: list[int] = []

    @app.task
    async def work() -> None:
        entered.append(1)

    done: list[tuple[Attempt, object]] = []

    async def main() -> Attempt:
        executor = on_loop.LoopExecutor(asyncio.get_running_loop(), lambda *words: done.append(words), app.engine.now)
        attempt = Attempt(work.job(), lease_ends=time.monotonic() + 60, queued_at=time.monotonic())
        executor.start(Call(attempt, work, HandlerContext(attempt, lambda *_: None)))
        attempt.request_stop(StopReason.CANCEL)
        assert attempt.stop is not None
        attempt.stop()
        while not done:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0)
        return attempt

    attempt = asyncio.run(asyncio.wait_for(main(), 10))
    assert done == [(attempt, Stopped("stopped on request"))]
    assert not entered


# ------------------------------------------------------------------------------------- clocks and crashes


def test_a_clock_that_jumps_an_hour_ahead_does_not_make_a_worker_recover_its_own_job(
    make_app: Callable[..., Treadle], release: threading.Event
) -> None:
    clock = Steps()
    app = make_app(clock=clock)
    engine = noted(app)
    runs: list[int] = []

    @app.task(retry=Retry(max_attempts=5, base=0, jitter=0))
    def work(ctx: Context) -> str:
        runs.append(ctx.attempt)
        release.wait(60)
        return "undisturbed"

    job = work.enqueue()
    with working(app, lease=3):
        until(lambda: runs, "the handler's start")
        clock.step = timedelta(hours=1)  # the first renewal is due in 1 s, the next look at the leases before that
        engine.looked_over(3)
        assert app.get(job.id).crashes == 0
        release.set()
        [job] = ended(app, job)
        later = work.enqueue()  # and the worker goes on
        ended(app, later)
    assert (job.state, job.result, job.attempt, job.crashes) == (State.SUCCEEDED, "undisturbed", 1, 0)
    assert runs == [1, 1]


def test_a_worker_whose_clock_was_set_back_takes_nothing_from_one_that_started_later(
    make_app: Callable[..., Treadle], release: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as ahead:
        ahead.setattr(clocks, "time", SimpleNamespace(time=lambda: time.time() + 3600, monotonic=time.monotonic))
        old = make_app(clock=SystemClock())
        old.register("other", lambda: None)
        old.engine.now()
    engine = noted(old)
    new = make_app()
    runs: list[int] = []

    @new.task
    def work(ctx: Context) -> str:
        runs.append(ctx.attempt)
        release.wait(60)
        return "undisturbed"

    job = work.enqueue()
    with working(old, lease=1), working(new, lease=3):
        until(lambda: runs, "the handler's start")
        engine.looked_over(6)
        release.set()
        [job] = ended(new, job)
    assert (job.state, job.result, job.attempt, job.crashes) == (State.SUCCEEDED, "undisturbed", 1, 0)
    assert runs == [1]


def test_a_crashed_job_is_recovered_in_time_by_a_worker_that_polls_seldom(app: Treadle) -> None:
    job = app.register("work", lambda: None).enqueue()
    engine = noted(app)
    with working(app, poll=15, lease=1, queues=["elsewhere"]):
        engine.looked_over(1)
        [held] = claim(app.engine, lease=1.0, worker="dead")
        assert held.id == job.id
        began = time.monotonic()
        back = in_state(app, job, state=State.PENDING)
        took = time.monotonic() - began
    assert back.crashes == 1
    assert took < 6  # lease and look are 2 s together, and a poll is 15
