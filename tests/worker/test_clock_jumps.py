"""A worker whose machine's clock is wrong or is set: no job is taken from a worker that holds it."""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest

from tests.support.marks import any_store
from tests.support.workbench import ended, noted, until, working
from treadle import Context, Retry, State, Treadle
from treadle.model import clock as clocks
from treadle.model.clock import SystemClock


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Set when the test is over, so that no thread outlives it for long."""
    event = threading.Event()
    yield event
    event.set()


class Steps(SystemClock):
    """The machine's clock, and what a test adds to it."""

    step = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.step


@any_store
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


@any_store
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
