"""A worker that stops in the middle of things: a claim in flight, steady traffic, a host that is cancelled."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.marks import any_store
from tests.support.workbench import Noted, all_in, noted, until, working
from treadle import Retry, State, Treadle


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Set when the test is over, so that no thread outlives it for long."""
    event = threading.Event()
    yield event
    event.set()


@any_store
def test_a_claim_in_flight_when_the_worker_is_asked_to_stop_leaves_no_job_running(app: Treadle) -> None:
    ran: list[int] = []
    work = app.register("work", lambda: ran.append(1))
    jobs = [work.enqueue() for _ in range(3)]
    engine = noted(app)
    engine.answering.clear()
    with working(app, lease=30) as worker:
        assert engine.claiming.wait(30)
        worker.stop()
        until(
            lambda: worker._host.drained_at < float("inf"), "the end of the drain"
        )  # it waits for the claim's answer alone
        engine.answering.set()
    after = [app.get(job.id) for job in jobs]
    assert {(job.state, job.failures, job.crashes) for job in after} == {(State.PENDING, 0, 0)}
    assert not ran


@any_store
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
    app._store.engine = Slow(app.engine)  # type: ignore[misc, assignment]
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
        await until_so(lambda: worker._host.stopping)  # and so it drains: it says so and waits in one step of the loop
        hosting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await hosting
        if loop == "lives on":
            await until_so(lambda: app.get(job.id).state is State.PENDING)

    asyncio.run(asyncio.wait_for(main(), 60))
    release.set()
    back = until(lambda: (now := app.get(job.id)).state is State.PENDING and now, "the job's release", within=10)
    assert (back.failures, back.crashes, back.error, back.worker) == (0, 0, None, None)
