"""The slots of a worker on an event loop of their own: what starts, what goes back, what waits."""

import asyncio
import threading
import time
from typing import Any

import pytest

from tests.support.making import LEASE, a_job
from tests.support.workbench import Crowd
from treadle import Treadle
from treadle.engines.values import ClaimedJob
from treadle.model import Job, lifecycle
from treadle.model.lifecycle import Failed, Outcome, Released, Stopped, Succeeded, TimedOut
from treadle.model.retry import Retry
from treadle.tasks.context import StopReason
from treadle.testing import FakeClock
from treadle.worker.attempt import Attempt
from treadle.worker.config import WorkerConfig
from treadle.worker.executors import coroutines
from treadle.worker.outcomes import WITHOUT_RESULT
from treadle.worker.slots import Slots

NOW = FakeClock().now()


class Bench:
    """Slots for two jobs, and what they reported."""

    def __init__(self, **config: Any) -> None:
        self.app = Treadle("sqlite:///:memory:")
        self.gate = asyncio.Event()
        self.reports: list[tuple[Job, Outcome | None]] = []
        self.requests: list[Attempt] = []

        async def wait() -> str:
            await self.gate.wait()
            return "done"

        self.app.register("greet", wait)
        self.slots = Slots(
            self.app.engine,
            self.app.tasks,
            config=WorkerConfig("w1", **{"concurrency": 2, "lease": LEASE, **config}),
            loop=asyncio.get_running_loop(),
            report=lambda attempt, outcome: self.reports.append((attempt.job, outcome)),
            request_start=self.requests.append,
            stop_exhausted=lambda: None,
        )

    def attempt(self, left: float = LEASE, **fields: Any) -> Attempt:
        job = lifecycle.claim(a_job(NOW, **fields), NOW, worker="w1", token="t", lease=LEASE).after
        return Attempt(ClaimedJob.of(job), lease_ends=time.monotonic() + left, queued_at=time.monotonic())

    async def settled(self, number: int) -> None:
        async with asyncio.timeout(30):
            while len(self.reports) < number:
                await asyncio.sleep(0.001)

    async def free(self) -> None:
        async with asyncio.timeout(30):
            while self.slots.running:
                await asyncio.sleep(0.001)


@pytest.mark.parametrize(("left", "starts"), [(LEASE * 0.6, True), (LEASE * 0.4, False)])
def test_a_job_starts_only_with_half_its_lease_left(left: float, starts: bool) -> None:
    async def main() -> Outcome | None:
        bench = Bench()
        bench.slots.add([bench.attempt(left)])
        bench.gate.set()
        await bench.settled(1)
        bench.app.close()
        return bench.reports[0][1]

    outcome = asyncio.run(main())
    assert isinstance(outcome, Succeeded if starts else Released)


def test_one_isolated_job_at_a_time_and_its_start_is_asked_for_first() -> None:
    async def main() -> None:
        bench = Bench()
        suspects = [bench.attempt(crashes=1) for _ in range(2)]
        bench.slots.add(suspects)
        assert bench.requests == suspects[:1]
        assert bench.slots.has_backlog
        bench.gate.set()
        bench.slots.launch(suspects[0])
        await bench.settled(1)
        await asyncio.sleep(0)
        assert bench.requests == suspects
        bench.app.close()

    asyncio.run(main())


def test_the_slot_of_a_start_whose_lease_was_lost_goes_to_the_next_one() -> None:
    async def main() -> None:
        bench = Bench()
        suspects = [bench.attempt(crashes=1) for _ in range(2)]
        bench.slots.add(suspects)
        suspects[0].request_stop(StopReason.LOST)
        bench.slots.free_lost(suspects[0])
        assert bench.reports == [(suspects[0].job, None)]
        await asyncio.sleep(0)
        assert bench.slots.running == {suspects[1]}
        assert bench.requests == suspects
        bench.app.close()

    asyncio.run(main())


def test_what_waits_goes_back_when_the_slots_close() -> None:
    async def main() -> None:
        bench = Bench()
        attempts = [bench.attempt() for _ in range(3)]
        bench.slots.add(attempts)
        assert len(bench.slots.running) == 2
        bench.slots.close()
        assert bench.reports == [(attempts[2].job, Released())]
        bench.gate.set()
        await bench.settled(3)
        bench.app.close()

    asyncio.run(main())


# ----------------------------------------------------------------------------- cancelled before the first step


@pytest.mark.parametrize("by", ["the worker", "somebody else"])
def test_a_coroutine_that_is_cancelled_before_its_first_step_is_told_of_once_and_gives_its_slot_back(
    monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(coroutines, "_EAGER", {})  # as on Pythons whose tasks do not start at once

    async def main() -> list[Outcome | None]:
        bench = Bench()
        bench.gate.set()
        first, second = bench.attempt(), bench.attempt()
        bench.slots.add([first, second])
        assert first.task is not None
        if by == "the worker":
            first.request_stop(StopReason.CANCEL)
            bench.slots.interrupt(first)
        else:
            first.task.cancel()
        await bench.free()
        assert {job.id for job, _ in bench.reports} == {first.id, second.id}
        assert not first.begun
        bench.app.close()
        return [outcome for job, outcome in bench.reports if job.id == first.id]

    [outcome] = asyncio.run(main())
    assert isinstance(outcome, Stopped if by == "the worker" else Failed)


def test_five_hundred_that_end_at_once_free_their_slots_in_one_round_of_the_loop() -> None:
    async def main() -> int:
        bench = Bench(concurrency=500)
        bench.slots.add([bench.attempt() for _ in range(500)])
        await asyncio.sleep(0.01)
        rounds, free = [], bench.slots._free_ended
        bench.slots._free_ended = lambda: (rounds.append(1), free())  # type: ignore[method-assign]
        bench.gate.set()
        await bench.free()
        bench.app.close()
        return len(rounds)

    assert asyncio.run(main()) <= 3


# ------------------------------------------------------------------- threads that go on with the next job themselves


class Threads(Bench):
    """The same with plain functions: `greet` notes where it ran, and what `hangs` does is up to the test."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.ran: list[tuple[str, int]] = []
        self.hung, self.release = threading.Event(), threading.Event()

        def note(job: dict[str, Any]) -> None:
            self.ran.append((job["id"], threading.get_ident()))

        def hang() -> None:
            self.hung.set()
            self.release.wait(30)

        self.app.register("note", note)
        self.app.register("hang", hang)

    async def run(self, *attempts: Attempt) -> None:
        self.slots.add(list(attempts))
        await self.settled(len(attempts))
        await self.free()


def test_a_thread_goes_on_with_the_next_job_and_keeps_the_order() -> None:
    async def main() -> None:
        bench = Threads(concurrency=1)
        attempts = [bench.attempt(task="note") for _ in range(50)]
        await bench.run(*attempts)
        assert [name for name, _ in bench.ran] == [attempt.id for attempt in attempts]
        assert len({thread for _, thread in bench.ran}) == 1
        bench.app.close()

    asyncio.run(main())


def test_no_more_jobs_run_at_once_than_there_are_slots() -> None:
    crowd = Crowd()

    def work() -> None:
        with crowd:
            time.sleep(0.0005)

    async def main() -> None:
        bench = Threads(concurrency=3)
        bench.app.register("work", work)
        await bench.run(*(bench.attempt(task="work") for _ in range(100)))
        bench.app.close()

    asyncio.run(main())
    assert crowd.most <= 3


def test_a_thread_leaves_its_slot_to_a_coroutine_that_waits_and_passes_none_by() -> None:
    async def main() -> None:
        bench, threads = Threads(concurrency=1), set[int]()

        async def on_the_loop() -> None:
            threads.add(threading.get_ident())

        bench.app.register("coroutine", on_the_loop)
        order = [bench.attempt(task=task) for task in ("note", "coroutine", "note", "coroutine", "note")]
        await bench.run(*order)
        assert [job.id for job, _ in bench.reports] == [attempt.id for attempt in order]
        assert threads == {threading.get_ident()}
        bench.app.close()

    asyncio.run(main())


def test_a_thread_leaves_its_slot_to_an_isolated_job_that_waits() -> None:
    async def main() -> None:
        bench = Threads(concurrency=1)
        hangs, plain = (bench.attempt(task=task) for task in ("hang", "note"))
        isolated = bench.attempt(task="note", crashes=1)
        bench.slots.add([hangs, plain])
        assert await asyncio.to_thread(bench.hung.wait, 30)
        bench.slots.add([isolated])
        bench.release.set()
        async with asyncio.timeout(30):
            while not bench.requests:
                await asyncio.sleep(0.001)
        assert (bench.requests, list(bench.slots.waiting), bench.ran) == ([isolated], [plain], [])
        bench.app.close()

    asyncio.run(main())


def test_a_thread_does_not_go_on_with_a_job_whose_start_must_be_written_first() -> None:
    async def main() -> None:
        bench = Threads(concurrency=1)
        first, once = bench.attempt(task="note"), bench.attempt(task="note", retry=Retry(1))
        bench.slots.add([first, once])
        async with asyncio.timeout(30):
            while not bench.requests:
                await asyncio.sleep(0.001)
        assert (bench.requests, len(bench.reports)) == ([once], 1)
        bench.app.close()

    asyncio.run(main())


def test_jobs_that_are_not_retried_ask_for_their_starts_together() -> None:
    async def main() -> None:
        bench = Bench(concurrency=3)
        once = [bench.attempt(retry=Retry(1)) for _ in range(4)]
        bench.slots.add(once)
        assert bench.requests == once[:3]
        bench.app.close()

    asyncio.run(main())


def test_a_handler_that_never_ends_keeps_no_other_from_a_thread() -> None:
    async def main() -> None:
        bench = Threads(concurrency=2)
        hangs = bench.attempt(task="hang")
        bench.slots.add([hangs, *(bench.attempt(task="note") for _ in range(50))])
        await bench.settled(50)
        assert bench.hung.is_set()
        assert bench.slots.running >= {hangs}
        bench.release.set()
        await bench.free()
        bench.app.close()

    asyncio.run(main())


def test_a_job_that_a_thread_took_by_itself_has_its_timeout() -> None:
    async def main() -> None:
        bench = Threads(concurrency=1, grace=0.05)
        first, late = bench.attempt(task="note"), bench.attempt(task="hang", timeout=0.05)
        bench.slots.add([first, late])
        await bench.settled(2)
        assert isinstance(bench.reports[1][1], TimedOut)
        assert (late.abandoned, bench.slots.abandoned) == (True, 1)
        bench.release.set()
        await bench.free()
        assert bench.slots.abandoned == 0
        bench.app.close()

    asyncio.run(main())


@pytest.mark.parametrize("why", ["little lease left", "told to stop"])
def test_a_thread_does_not_start_what_may_not_start(why: str) -> None:
    async def main() -> None:
        bench = Threads(concurrency=1)
        first, hangs = bench.attempt(task="note"), bench.attempt(task="hang")
        second = bench.attempt(LEASE * 0.4 if why == "little lease left" else LEASE, task="note")
        if why == "told to stop":
            second.request_stop(StopReason.CANCEL)
        bench.release.set()
        await bench.run(hangs, first, second)
        assert bench.reports[2] == (second.job, Released())
        assert [name for name, _ in bench.ran] == [first.id]
        bench.app.close()

    asyncio.run(main())


def test_no_thread_goes_on_by_itself_once_the_slots_are_closed() -> None:
    async def main() -> None:
        bench = Threads(concurrency=1)
        hangs, waits = bench.attempt(task="hang"), bench.attempt(task="note")
        bench.slots.add([hangs, waits])
        assert await asyncio.to_thread(bench.hung.wait, 30)
        bench.slots.close()
        bench.release.set()
        await bench.free()
        assert bench.reports == [(waits.job, Released()), (hangs.job, WITHOUT_RESULT)]
        assert bench.ran == []
        bench.app.close()

    asyncio.run(main())


def test_where_starts_are_written_first_no_thread_goes_on_by_itself() -> None:
    async def main() -> None:
        bench = Threads(concurrency=1, start_first=True)
        attempts = [bench.attempt(task="note") for _ in range(2)]
        bench.slots.add(attempts)
        bench.slots.launch(attempts[0])
        await bench.settled(1)
        async with asyncio.timeout(30):
            while len(bench.requests) < 2:
                await asyncio.sleep(0.001)
        assert (bench.requests, len(bench.ran)) == (attempts, 1)
        bench.app.close()

    asyncio.run(main())


def test_an_attempt_whose_end_is_known_is_not_abandoned_before_its_slot_is_freed() -> None:
    """Its outcome is on its way: a release beside it could undo a success."""

    async def main() -> None:
        bench = Bench()
        attempt = bench.attempt()
        bench.slots.add([attempt])
        attempt.ended = True
        bench.slots.abandon_all()
        assert (bench.reports, bench.slots.abandoned) == ([], 0)
        bench.gate.set()
        await bench.free()
        bench.app.close()

    asyncio.run(main())


def test_a_handler_that_cannot_be_called_costs_no_thread_its_slot() -> None:
    class Broken:
        """Has no `handle`."""

    async def main() -> None:
        bench = Threads(concurrency=2)
        bench.app.register("broken", Broken)
        hangs, first, broken = (bench.attempt(task=task) for task in ("hang", "note", "broken"))
        bench.slots.add([hangs, first])
        assert await asyncio.to_thread(bench.hung.wait, 30)
        bench.slots.waiting.append(broken)
        bench.release.set()
        async with asyncio.timeout(30):
            while hangs in bench.slots.running or first in bench.slots.running:
                await asyncio.sleep(0.001)
        bench.app.close()

    asyncio.run(main())
