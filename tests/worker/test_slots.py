"""The slots of a worker on an event loop of their own: what starts, what goes back, what waits."""

import asyncio
import time
from typing import Any

import pytest

from tests.support.making import LEASE, a_job
from treadle import Treadle
from treadle.model import Job, lifecycle
from treadle.model.lifecycle import Outcome, Released, Succeeded
from treadle.tasks.context import StopReason
from treadle.testing import FakeClock
from treadle.worker.attempt import Attempt
from treadle.worker.config import WorkerConfig
from treadle.worker.slots import Slots

NOW = FakeClock().now()


class Bench:
    """Slots for two jobs, and what they reported."""

    def __init__(self) -> None:
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
            config=WorkerConfig("w1", concurrency=2, lease=LEASE),
            loop=asyncio.get_running_loop(),
            report=lambda attempt, outcome: self.reports.append((attempt.job, outcome)),
            request_start=self.requests.append,
            stop_exhausted=lambda: None,
        )

    def attempt(self, left: float = LEASE, **fields: Any) -> Attempt:
        job = lifecycle.claim(a_job(NOW, **fields), NOW, worker="w1", token="t", lease=LEASE).after
        return Attempt(job, lease_ends=time.monotonic() + left, queued_at=time.monotonic())

    async def settled(self, number: int) -> None:
        async with asyncio.timeout(30):
            while len(self.reports) < number:
                await asyncio.sleep(0)


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


def test_one_suspect_at_a_time_and_its_start_is_asked_for_first() -> None:
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
