"""Cancelling a job that runs: its handler is stopped or told, and however it ends it is not run again."""

import asyncio
import threading

import pytest

from tests.support.marks import any_store
from tests.support.workbench import ended, until, working
from treadle import Context, Job, Reason, Retry, RetryLater, Snooze, State, Treadle


@pytest.fixture
def started() -> threading.Event:
    return threading.Event()


def cancelled_while_running(app: Treadle, job: Job, started: threading.Event) -> Job:
    """The job, cancelled once its handler runs, and run to its end."""
    with working(app, lease=2.4):
        assert started.wait(30)
        asked = app.cancel(job.id, actor="ada", reason="changed my mind")
        assert (asked.state, asked.cancel_requested) == (State.RUNNING, True)
        [job] = ended(app, job)
    return job


@any_store
def test_a_running_coroutine_is_stopped_and_ends_cancelled(app: Treadle, started: threading.Event) -> None:
    cleaned: list[bool] = []

    @app.task
    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append(True)

    job = cancelled_while_running(app, work.enqueue(), started)
    assert (job.state, job.reason, job.attempt, job.failures) == (State.CANCELLED, Reason.BY_REQUEST, 1, 0)
    assert cleaned == [True]
    events = app.events(job.id)
    assert [event.kind for event in events] == ["cancel_requested", "cancelled"]
    assert (events[0].actor, events[0].note) == ("ada", "changed my mind")


@any_store
@pytest.mark.covers("002-Q6.b")
def test_a_running_thread_is_told_and_ends_cancelled_when_it_stops(app: Treadle, started: threading.Event) -> None:
    @app.task
    def work(ctx: Context) -> None:
        started.set()
        until(lambda: ctx.cancelled, "word of the cancellation")
        raise RuntimeError("stopping")

    job = cancelled_while_running(app, work.enqueue(), started)
    assert (job.state, job.reason, job.attempt) == (State.CANCELLED, Reason.BY_REQUEST, 1)


@any_store
def test_a_handler_that_finishes_anyway_stays_succeeded(app: Treadle, started: threading.Event) -> None:
    @app.task
    def work(ctx: Context) -> str:
        started.set()
        until(lambda: ctx.cancelled, "word of the cancellation")
        return "it was too late to stop"

    job = cancelled_while_running(app, work.enqueue(), started)
    assert (job.state, job.reason, job.result) == (State.SUCCEEDED, None, "it was too late to stop")
    assert job.cancel_requested


@any_store
@pytest.mark.parametrize(
    "error",
    [RuntimeError("boom"), Snooze(0), RetryLater(after=0), TimeoutError("mine")],
    ids=lambda e: type(e).__name__,
)
def test_no_other_way_out_leads_to_another_attempt(app: Treadle, started: threading.Event, error: Exception) -> None:
    asked = threading.Event()

    @app.task(retry=Retry(max_attempts=5, base=0, jitter=0))
    def work() -> None:
        started.set()
        assert asked.wait(30)
        raise error  # it has not even heard of the request

    job = work.enqueue()
    with working(app, lease=60):  # nobody will tell it in time
        assert started.wait(30)
        app.cancel(job.id)
        asked.set()
        [job] = ended(app, job)
    assert (job.state, job.reason, job.attempt) == (State.CANCELLED, Reason.BY_REQUEST, 1)
    if isinstance(error, RuntimeError):
        assert job.error.message == "boom"


@any_store
def test_a_claimed_job_that_has_not_started_is_cancelled_without_running(app: Treadle) -> None:
    """An isolated job waits for its turn behind another; the request reaches it there."""
    release, ran = threading.Event(), []

    @app.task(retry=Retry(max_attempts=1), isolated=True)
    def work(name: str) -> None:
        ran.append(name)
        assert release.wait(30)

    first, second = work.enqueue("first"), work.enqueue("second")
    with working(app, lease=2.4):
        until(lambda: ran, "the first")
        seen = {app.cancel(second.id).lease_until}

        def heard() -> bool:  # with a renewal it hears of the request; given back meanwhile, it is cancelled at once
            now = app.get(second.id)
            seen.add(now.lease_until)
            return now.state.final or len(seen) > 2

        until(heard, "two renewals")
        release.set()
        first, second = ended(app, first, second)
    assert first.state is State.SUCCEEDED
    assert (second.state, second.reason) == (State.CANCELLED, Reason.BY_REQUEST)
    assert ran == ["first"]
