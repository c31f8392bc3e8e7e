"""A handler past its timeout is stopped or told; one that never ends costs a slot, too many of them the worker."""

import asyncio
import contextlib
import gc
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.support.workbench import Crowd, ended, in_state, until, working
from treadle import Context, Job, LeaseLost, Reason, Retry, State, Treadle

TWICE = Retry(max_attempts=2, base=0, cap=0, jitter=0)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Set when the test is over, so that no thread outlives it for long."""
    event = threading.Event()
    yield event
    event.set()


def test_a_coroutine_is_cancelled_at_its_timeout_and_ends_failed_when_its_budget_is_spent(app: Treadle) -> None:
    cancelled: list[int] = []

    @app.task(timeout=0.2, retry=TWICE)
    async def forever(ctx: Context) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(ctx.attempt)
            raise

    with working(app):
        [job] = ended(app, forever.enqueue())
    assert cancelled == [1, 2]
    assert (job.state, job.reason, job.attempt, job.failures) == (State.FAILED, Reason.TIMEOUT, 2, 2)
    assert (job.error.type, job.error.message) == ("TimeoutError", "ran longer than its timeout of 0.2 s")
    assert (job.finished_at - job.started_at).total_seconds() >= 0.2


def test_a_thread_is_told_of_its_timeout_and_ends_timed_out(app: Treadle) -> None:
    told: list[int] = []

    @app.task(timeout=0.2, retry=TWICE)
    def patient(ctx: Context) -> None:
        until(lambda: ctx.cancelled, "word of the timeout")
        told.append(ctx.attempt)
        ctx.progress(0.5)  # the lease is still ours
        raise RuntimeError("stopping, as told")

    with working(app, grace=20):
        [job] = ended(app, patient.enqueue())
    assert told == [1, 2]
    assert (job.state, job.reason, job.failures) == (State.FAILED, Reason.TIMEOUT, 2)
    assert job.error.type == "TimeoutError"
    assert "stopping, as told" in job.error.traceback


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_work_that_was_finished_a_little_late_is_still_done(app: Treadle, kind: str) -> None:
    """The effect has happened: to run it again because it took too long would do it twice."""

    @app.task(name="plain", timeout=0.1)
    def plain(ctx: Context) -> str:
        until(lambda: ctx.cancelled, "word of the timeout")
        return "done, but late"

    @app.task(name="async", timeout=0.1)
    async def shielded() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "done, but late"
        return ""

    with working(app, grace=20):
        [job] = ended(app, app.enqueue(kind))
    assert (job.state, job.result, job.failures) == (State.SUCCEEDED, "done, but late", 0)


def test_a_job_within_its_timeout_is_left_alone_and_its_timer_touches_no_later_one(app: Treadle) -> None:
    @app.task(timeout=0.3)
    async def quick() -> None:
        await asyncio.sleep(0.01)

    @app.task
    async def slow() -> str:
        await asyncio.sleep(0.6)
        return "untouched"

    with working(app, concurrency=1):
        done = ended(app, *(quick.enqueue() for _ in range(3)), slow.enqueue())
    assert [job.state for job in done] == [State.SUCCEEDED] * 4


# ------------------------------------------------------------------------------------ those that never end


def never_ending(app: Treadle, kind: str, release: threading.Event, seen: list[object]) -> Job:
    """A job whose handler ignores every word; what its context says after it was given up goes to `seen`."""

    def after(ctx: Context) -> None:
        try:
            ctx.progress(1)
        except LeaseLost as error:
            seen.append(error)

    def plain(ctx: Context) -> str:
        release.wait(60)
        after(ctx)
        return "too late"

    async def swallowing(ctx: Context) -> str:
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        after(ctx)
        return "too late"

    task = app.register("forever", plain if kind == "plain" else swallowing)
    return task.using(timeout=0.2, retry=Retry(max_attempts=2, base=3600)).enqueue()


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_handler_that_never_ends_settles_as_timed_out_after_the_grace_and_costs_one_slot(
    app: Treadle, release: threading.Event, kind: str
) -> None:
    seen: list[object] = []
    crowd = Crowd()
    both = threading.Barrier(2)

    @app.task
    def visit() -> None:
        with crowd:
            until(lambda: crowd.most >= 1, "a visitor")

    @app.task
    def pair() -> str:
        both.wait(30)
        return "two at once"

    job = never_ending(app, kind, release, seen)
    with working(app, concurrency=2, grace=0.3, lease=3):
        job = in_state(app, job, state=State.PENDING, failures=1)
        assert job.error.type == "TimeoutError"
        ended(app, *(visit.enqueue() for _ in range(6)))
        assert crowd.most == 1  # one slot of two is lost
        release.set()
        until(lambda: seen, "what its context says")
        done = ended(app, pair.enqueue(), pair.enqueue())  # the slot has come back
    assert [each.result for each in done] == ["two at once"] * 2
    assert isinstance(seen[0], LeaseLost)
    after = app.get(job.id)
    assert (after.state, after.failures, after.result, after.attempt) == (State.PENDING, 1, None, 1)


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_worker_with_too_many_lost_slots_stops_by_itself(
    app: Treadle, release: threading.Event, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = never_ending(app, kind, release, [])
    with working(app, concurrency=1, grace=0.3) as worker:
        worker.thread.join(20)
        assert not worker.thread.is_alive()
        assert worker.exhausted
    release.set()
    del worker
    gc.collect()  # what still stood on its loop, closed by now, goes without a word
    job = app.get(job.id)
    assert (job.state, job.failures, job.error.type) == (State.PENDING, 1, "TimeoutError")
    assert any(record.levelname == "CRITICAL" for record in caplog.records)


def test_a_worker_that_was_asked_to_stop_is_not_exhausted(app: Treadle) -> None:
    with working(app) as worker:
        pass
    assert not worker.exhausted


def test_a_timeout_may_be_given_for_one_call(app: Treadle, make_app: Callable[..., Treadle]) -> None:
    @app.task(timeout="1h")
    async def forever() -> None:
        await asyncio.sleep(60)

    with working(app):
        [job] = ended(app, forever.using(timeout=0.1, retry=Retry(max_attempts=1)).enqueue())
    assert (job.state, job.reason) == (State.FAILED, Reason.TIMEOUT)
