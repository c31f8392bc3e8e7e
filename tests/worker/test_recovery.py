"""Recovery by a clock that moves when told: whose lease counts as lost, and when nobody's does."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.support.making import LEASE, running
from treadle.engines import connect
from treadle.engines.contract import Engine
from treadle.model import Job, State
from treadle.testing import FakeClock
from treadle.worker.config import WorkerConfig
from treadle.worker.maintenance import recovery
from treadle.worker.maintenance.recovery import Recovery


class Bench:
    """A worker's recovery, and a job whose holder is gone."""

    def __init__(self, engine: Engine, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine, self.clock, self.monotonic = engine, clock, 1000.0
        monkeypatch.setattr(recovery, "time", SimpleNamespace(monotonic=lambda: self.monotonic))
        self.ours: set[str] = set()
        config = WorkerConfig("w2", lease=LEASE)
        self.recovery = Recovery(engine, config, holds=lambda job: job.id in self.ours)
        self.recovery.recover()
        self.job: Job = running(engine)

    def pass_time(self, seconds: float) -> None:
        self.monotonic += seconds
        self.clock.advance(seconds=seconds)

    def state(self) -> State:
        [job] = self.engine.get([self.job.id])
        return job.state


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    clock = FakeClock()
    engine = connect("sqlite:///:memory:", clock=clock.now)
    yield Bench(engine, clock, monkeypatch)
    engine.close()


def test_a_lease_that_ran_out_is_recovered_and_one_that_runs_is_not(bench: Bench) -> None:
    bench.pass_time(LEASE - 1)
    assert (bench.recovery.recover(), bench.state()) == (0, State.RUNNING)
    bench.pass_time(2)
    assert (bench.recovery.recover(), bench.state()) == (1, State.PENDING)


def test_what_this_worker_itself_holds_has_not_crashed(bench: Bench) -> None:
    bench.ours.add(bench.job.id)
    bench.pass_time(LEASE + 1)
    assert (bench.recovery.recover(), bench.state()) == (0, State.RUNNING)


@pytest.mark.parametrize("silence", [float("inf"), LEASE * 0.51])
def test_after_a_silence_the_holders_get_a_renewal_period(bench: Bench, silence: float) -> None:
    bench.pass_time(LEASE + 1)
    bench.recovery.note_latency(silence)
    assert (bench.recovery.recover(), bench.state()) == (0, State.RUNNING)
    assert bench.recovery.due_at == bench.monotonic + LEASE / 2
    bench.pass_time(LEASE / 2)
    assert (bench.recovery.recover(), bench.state()) == (1, State.PENDING)


def test_a_clock_that_jumped_ahead_takes_no_lease(bench: Bench) -> None:
    bench.clock.advance(seconds=2 * LEASE)
    assert (bench.recovery.recover(), bench.state()) == (0, State.RUNNING)
    bench.pass_time(LEASE / 2)
    assert (bench.recovery.recover(), bench.state()) == (1, State.PENDING)


def test_a_store_that_is_always_slow_is_recovered_from_all_the_same(bench: Bench) -> None:
    bench.pass_time(LEASE + 1)
    found = 0
    for _ in range(3):
        bench.recovery.note_latency(LEASE * 0.4)
        found += bench.recovery.recover()
        bench.pass_time(LEASE / 2)
    assert (found, bench.state()) == (1, State.PENDING)


def test_recovery_is_due_again_soon_enough_for_a_short_lease(bench: Bench) -> None:
    bench.recovery.due_at = 0.0
    bench.recovery.run_due()
    assert bench.monotonic < bench.recovery.due_at <= bench.monotonic + 1.0
