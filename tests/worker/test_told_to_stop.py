"""A handler that is told to stop: one that obeys, one that does not listen, one that had not begun."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.workbench import ended, until, working
from treadle import Cancelled, Context, Job, Reason, Retry, State, Treadle

ONCE = Retry(max_attempts=1)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Set when the test is over, so that no thread outlives it for long."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_handler_that_raises_cancelled_when_told_of_a_shutdown_is_released(app: Treadle, kind: str) -> None:
    job, started, told = obedient(app, kind)
    with working(app, grace=0.5):
        assert started.wait(30)
    assert told.is_set()
    back = app.get(job.id)
    assert (back.state, back.failures, back.crashes, back.error) == (State.PENDING, 0, 0, None)


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
        assert worker._host.slots.abandoned == 1
        release.set()
        until(lambda: worker._host.slots.abandoned == 0, "the slot's return")


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
