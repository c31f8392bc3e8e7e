"""Stopping: no new claims, running jobs finish within the grace time, the rest is given back unspent."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.marks import any_store
from tests.support.workbench import Process, ended, in_state, until, working
from treadle import Context, Reason, Retry, State, Treadle


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Set when the test is over, so that no thread outlives it for long."""
    event = threading.Event()
    yield event
    event.set()


@any_store
@pytest.mark.covers("001-R29.b", "002-Q10.b")
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_running_job_is_waited_for_and_what_comes_later_is_left_alone(
    app: Treadle, release: threading.Event, kind: str
) -> None:
    started = threading.Event()

    def plain() -> str:
        started.set()
        assert release.wait(30)
        return "finished in time"

    async def on_the_loop() -> str:
        started.set()
        while not release.is_set():
            await asyncio.sleep(0.005)
        return "finished in time"

    task = app.register("work", plain if kind == "plain" else on_the_loop)
    running = task.enqueue()
    with working(app, grace=30) as worker:
        assert started.wait(30)
        worker.stop()
        until(lambda: worker._host.slots._closed, "the worker has heard of it")
        later = [task.enqueue() for _ in range(5)]  # there are free slots, but no more claims
        worker.thread.join(0.3)
        assert worker.thread.is_alive()
        release.set()
        worker.thread.join(30)
        assert not worker.thread.is_alive()
    job = app.get(running.id)
    assert (job.state, job.result, job.attempt) == (State.SUCCEEDED, "finished in time", 1)
    assert {(app.get(each.id).state, app.get(each.id).failures) for each in later} == {(State.PENDING, 0)}


@any_store
@pytest.mark.covers("002-Q13.b")
def test_the_store_is_open_to_jobs_that_finish_while_the_worker_stops(app: Treadle) -> None:
    started = threading.Event()
    later = app.register("later", lambda: None)

    @app.task
    def work(ctx: Context) -> str:
        started.set()
        until(lambda: worker._host.stopping, "the drain")
        ctx.progress(0.5)
        return later.enqueue().id

    job = work.enqueue()
    with working(app, grace=30) as worker:
        assert started.wait(30)
        worker.stop()
        worker.thread.join(30)
        assert not worker.thread.is_alive()
    job = app.get(job.id)
    assert job.state is State.SUCCEEDED
    assert app.get(job.result).state is State.PENDING  # stored, and left to the next worker


@any_store
@pytest.mark.covers("001-R29.b")
def test_claimed_jobs_that_have_not_started_are_given_back_unspent(app: Treadle, release: threading.Event) -> None:
    started = threading.Event()

    @app.task(retry=Retry(max_attempts=1), isolated=True)
    def suspicious() -> None:
        started.set()
        assert release.wait(30)

    jobs = [suspicious.enqueue() for _ in range(3)]
    with working(app, concurrency=3, grace=30) as worker:
        assert started.wait(30)
        worker.stop()
        for job in jobs[1:]:  # although the first still runs
            back = in_state(app, job, state=State.PENDING)
            assert (back.failures, back.crashes, back.worker, back.lease_until) == (0, 0, None, None)
        release.set()
        ended(app, jobs[0])
    assert app.get(jobs[0].id).state is State.SUCCEEDED


@any_store
@pytest.mark.parametrize("kind", ["plain", "async", "swallowing"])
def test_a_job_that_still_runs_after_the_grace_is_given_back_unspent_and_its_end_is_ignored(
    app: Treadle, release: threading.Event, kind: str
) -> None:
    started, told, over = threading.Event(), threading.Event(), threading.Event()

    def plain(ctx: Context) -> str:
        started.set()
        until(lambda: ctx.cancelled, "word of the shutdown")
        told.set()
        assert release.wait(30)
        over.set()
        return "too late"

    async def on_the_loop() -> str:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            told.set()
            over.set()
            raise
        return "too late"

    async def swallowing() -> str:
        started.set()
        while not release.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                told.set()
        over.set()
        return "too late"

    task = app.register("work", {"plain": plain, "async": on_the_loop, "swallowing": swallowing}[kind])
    job = task.enqueue()

    async def main() -> None:
        async with app.worker(grace=0.3, poll=0.05, lease=30):
            while not started.is_set():
                await asyncio.sleep(0.005)
            stopping = time.monotonic()
        assert 0.25 < time.monotonic() - stopping < 15
        assert told.is_set()
        back = app.get(job.id)
        assert (back.state, back.failures, back.crashes, back.attempt) == (State.PENDING, 0, 0, 1)
        assert (back.worker, back.lease_until, back.error) == (None, None, None)
        release.set()
        while not over.is_set():
            await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert (app.get(job.id).state, app.get(job.id).result) == (State.PENDING, None)


@any_store
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_job_that_is_not_retried_and_still_runs_after_the_grace_fails_and_never_runs_twice(
    app: Treadle, release: threading.Event, kind: str
) -> None:
    started = threading.Event()

    def plain() -> None:
        started.set()
        release.wait(60)

    async def on_the_loop() -> None:
        started.set()
        await asyncio.sleep(60)

    task = app.register("pay", plain if kind == "plain" else on_the_loop, retry=Retry(max_attempts=1))
    job = task.enqueue()
    with working(app, grace=0.2) as worker:
        assert started.wait(30)
        worker.stop()
    release.set()
    [job] = ended(app, job)
    assert (job.state, job.reason, job.attempt, job.failures) == (State.FAILED, Reason.EXHAUSTED, 1, 1)
    assert (job.error.type, job.error.message) == (
        "Stopped",
        "the worker stopped before it had ended, and it is not retried",
    )


def test_a_coroutine_may_clean_up_when_it_is_told_to_stop(app: Treadle) -> None:
    cleaned: list[bool] = []
    started = threading.Event()

    @app.task
    async def tidy() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            cleaned.append(True)

    with working(app, grace=0.3):
        tidy.enqueue()
        assert started.wait(30)
    assert cleaned == [True]


def test_a_job_that_finishes_when_told_to_stop_is_succeeded(app: Treadle) -> None:
    started = threading.Event()

    @app.task
    def tidy(ctx: Context) -> str:
        started.set()
        until(lambda: ctx.cancelled, "word of the shutdown")
        return "saved what there was"

    job = tidy.enqueue()
    with working(app, grace=0.5):
        assert started.wait(30)
    assert (app.get(job.id).state, app.get(job.id).result) == (State.SUCCEEDED, "saved what there was")


# ---------------------------------------------------------------------------------------------- the words


@pytest.mark.parametrize("times", [1, 3])
def test_stopping_before_the_start_during_and_after_the_end_is_harmless(app: Treadle, times: int) -> None:
    early = app.worker(poll=0.05)
    early.stop()
    early.run()  # ends at once
    with working(app) as worker:
        ended(app, app.register("tick", lambda: None).enqueue())
        for _ in range(times):
            worker.stop()
        worker.thread.join(30)
        assert not worker.thread.is_alive()
        for _ in range(times):
            worker.stop()


@any_store
@pytest.mark.covers("000-R07.d")
def test_cancelling_the_task_around_a_worker_stops_it_cleanly(app: Treadle, release: threading.Event) -> None:
    started = threading.Event()

    @app.task
    def work() -> str:
        started.set()
        assert release.wait(30)
        return "finished all the same"

    async def serve() -> None:
        async with app.worker(grace=30, poll=0.05):
            await asyncio.sleep(3600)

    async def main() -> None:
        job = work.enqueue()
        server = asyncio.create_task(serve())
        while not started.is_set():
            await asyncio.sleep(0.005)
        server.cancel()
        await asyncio.sleep(0.05)
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await server
        assert app.get(job.id).state is State.SUCCEEDED

    before = set(threading.enumerate())
    asyncio.run(asyncio.wait_for(main(), 60))
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert not left & {"treadle-engine", "treadle-renewal"}


def test_an_error_inside_the_block_leaves_it_after_the_drain(app: Treadle) -> None:
    async def main() -> None:
        async with app.worker(poll=0.05):
            job = app.register("tick", lambda: None).enqueue()
            while not app.get(job.id).state.final:
                await asyncio.sleep(0.005)
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        asyncio.run(main())


# --------------------------------------------------------------------------------------- signals, processes


@any_store
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_drains_the_process_and_it_exits_with_0(
    app: Treadle, process: Callable[..., Process], number: int
) -> None:
    worker = process(grace=60)
    job = app.enqueue("hold", checked=False)
    worker.marked("started-1")
    worker.signal(number)
    later = app.enqueue("hold", checked=False)
    (worker.folder / "go").touch()
    assert worker.exit_code() == 0
    assert (worker.folder / "stopped").exists()
    job = app.get(job.id)
    assert (job.state, job.result, job.attempt) == (State.SUCCEEDED, worker.process.pid, 1)
    assert app.get(later.id).failures == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_that_comes_twice_at_once_lets_the_job_finish(
    app: Treadle, process: Callable[..., Process], number: int
) -> None:
    worker = process(grace=60)
    job = app.enqueue("nap_on_the_loop", {"seconds": 1}, checked=False)  # a hurried worker cancels it at once
    worker.marked("started-1")
    worker.signal(number)  # `timeout` signals its child,
    until(lambda: not _pending(worker.process.pid, number), "the first signal is taken")
    worker.signal(number)  # and then its process group, to which the child belongs
    assert worker.exit_code() == 0
    job = app.get(job.id)
    assert (job.state, job.result, job.attempt) == (State.SUCCEEDED, "rested", 1)


def _pending(pid: int, number: int) -> bool:
    """Whether a signal waits to be taken; a second one of the same number would then be dropped."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("ShdPnd:")]
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize("task", ["nap", "nap_on_the_loop"])
def test_a_second_signal_releases_at_once_what_still_runs(
    app: Treadle, process: Callable[..., Process], task: str
) -> None:
    worker = process(grace=60)
    job = app.enqueue(task, {"seconds": 30}, checked=False)
    worker.marked("started-1")
    worker.signal(signal.SIGTERM)
    with pytest.raises(AssertionError):
        worker.exit_code(within=1)  # the first signal waits for the job; one that comes at once is the same
    worker.signal(signal.SIGTERM)
    assert worker.exit_code(within=15) == 0
    job = app.get(job.id)
    assert (job.state, job.attempt, job.failures, job.crashes) == (State.PENDING, 1, 0, 0)
