"""Waiting for results, following a job, and a cancellation that arrives at once."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from tests.support.marks import any_store
from tests.support.workbench import ended, in_state, until, working
from treadle import Context, EventKind, InvalidJob, JobFailed, JobNotFound, Progress, Retry, State, Treadle, WaitTimeout


@any_store
def test_a_caller_waits_for_a_job_and_gets_its_result(app: Treadle) -> None:
    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    job = add.enqueue(1, 2)
    with working(app):
        assert app.result_of(job, timeout="30s") == 3
        assert app.wait_for(job.id).state is State.SUCCEEDED
        assert asyncio.run(app.aresult_of(add.enqueue(3, 4), timeout=30)) == 7
        assert asyncio.run(app.await_for(job.id)).result == 3


def test_a_job_that_failed_has_no_result(app: Treadle) -> None:
    @app.task(retry=Retry(1))
    def broken() -> None:
        raise ValueError("boom")

    job = broken.enqueue()
    with working(app):
        with pytest.raises(JobFailed, match=r"has ended as failed \(exhausted\): ValueError: boom") as caught:
            app.result_of(job, timeout=30)
        assert caught.value.job.error.message == "boom"
        with pytest.raises(JobFailed):
            asyncio.run(app.aresult_of(job))
    waiting = broken.enqueue()
    app.cancel(waiting.id)
    with pytest.raises(JobFailed, match=r"cancelled \(by_request\)"):
        app.result_of(waiting)


def test_a_caller_does_not_wait_longer_than_it_said(app: Treadle) -> None:
    @app.task
    def nobody_runs_it() -> None: ...

    job = nobody_runs_it.enqueue()
    began = time.monotonic()
    with pytest.raises(WaitTimeout, match=r"has not ended within 0\.2 s; it goes on") as caught:
        app.wait_for(job, timeout=0.2)
    assert 0.2 <= time.monotonic() - began < 5
    assert isinstance(caught.value, TimeoutError)
    with pytest.raises(WaitTimeout):
        asyncio.run(app.await_for(job, timeout=0))
    with pytest.raises(InvalidJob, match="job: 5 must be a job or its id"):
        app.wait_for(5)  # type: ignore[arg-type]
    with pytest.raises(JobNotFound):
        app.wait_for("01920000-0000-7000-8000-000000000000")


def test_a_tenant_cannot_wait_for_the_job_of_another(app: Treadle) -> None:
    @app.task
    def secret() -> None: ...

    job = secret.using(tenant="globex").enqueue()
    with pytest.raises(JobNotFound):
        app.tenant("acme").wait_for(job.id, timeout=1)


@any_store
@pytest.mark.parametrize("is_async", [False, True])
def test_progress_is_seen_while_the_job_runs(app: Treadle, is_async: bool) -> None:
    """With a lease of 30 s: the next renewal would be 10 s away."""
    seen, go_on = threading.Event(), threading.Event()

    @app.task
    def slow(ctx: Context) -> str:
        ctx.progress(0.5, "half")
        seen.set()
        go_on.wait(60)
        return "done"

    job = slow.enqueue()

    def follow() -> list[tuple[State, Progress | None]]:
        story = []
        for now in app.stream(job, timeout=60):
            story.append((now.state, now.progress))
            if now.progress is not None:
                go_on.set()
        return story

    async def afollow() -> list[tuple[State, Progress | None]]:
        story = []
        async for now in app.astream(job.id, timeout=60):
            story.append((now.state, now.progress))
            if now.progress is not None:
                go_on.set()
        return story

    with working(app, lease=30):
        story = asyncio.run(afollow()) if is_async else follow()
    assert story[-1] == (State.SUCCEEDED, Progress(0.5, "half"))
    assert (State.RUNNING, Progress(0.5, "half")) in story
    assert len(story) == len(set(story))


@any_store
def test_a_cancellation_reaches_a_handler_long_before_its_lease_is_renewed(make_app: Callable[..., Treadle]) -> None:
    app = make_app()
    began = threading.Event()

    @app.task
    async def waits() -> None:
        began.set()
        await asyncio.sleep(60)

    @app.task
    def polls(ctx: Context) -> None:
        while not ctx.cancelled:
            time.sleep(0.01)

    jobs = [waits.enqueue(), polls.enqueue()]
    other = make_app()  # another connection: nothing in this process tells the worker
    with working(app, lease=60):
        until(began.is_set, "the handler")
        in_state(app, jobs[1], state=State.RUNNING)
        asked = time.monotonic()
        for job in jobs:
            other.cancel(job.id)
        first, second = ended(app, *jobs)
        took = time.monotonic() - asked
    assert (first.state, second.state) == (State.CANCELLED, State.SUCCEEDED)
    assert took < 10, "a renewal would have come after 20 s"


@any_store
def test_a_job_that_succeeds_after_a_cancellation_says_so(app: Treadle) -> None:
    began, go_on = threading.Event(), threading.Event()

    @app.task
    def stubborn() -> int:
        began.set()
        go_on.wait(60)
        return 5

    job = stubborn.enqueue()
    with working(app):
        until(began.is_set, "the handler")
        assert app.cancel(job.id).cancel_requested
        go_on.set()
        now = app.wait_for(job, timeout=30)
    assert (now.state, now.result, now.cancel_requested) == (State.SUCCEEDED, 5, True)
    [last] = [event for event in app.events(job.id) if event.kind is EventKind.SUCCEEDED]
    assert last.note == "it was asked to stop, and succeeded first"
