"""Recovery by a clock that moves when told: whose lease counts as lost, and when nobody's does."""

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace

import pytest

from tests.support.making import LEASE, a_job, running, settle
from treadle.engines import connect
from treadle.engines.contract import Engine
from treadle.engines.values import Lease, Ruling, Turn, Verdict
from treadle.model import Change, EventKind, Job, Scope, State
from treadle.model.lifecycle import Succeeded
from treadle.testing import FakeClock
from treadle.worker.config import WorkerConfig
from treadle.worker.maintenance import recovery
from treadle.worker.maintenance.recovery import Recovery, recover_leases


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


@pytest.fixture
def keyless(bench: Bench) -> Bench:
    """The bench, with a job whose lease ran out and whose key somebody else has taken: it can only be ended."""
    settle(bench.engine, bench.job, Succeeded())
    bench.job = running(bench.engine, key="k", key_scope=Scope.PENDING)
    bench.engine.enqueue([a_job(bench.engine.now(), key="k", key_scope=Scope.PENDING)])
    bench.pass_time(LEASE + 1)
    return bench


def before_it_is_ended(bench: Bench, monkeypatch: pytest.MonkeyPatch, act: Callable[[], Turn | None]) -> None:
    """Let something happen between the turn that is refused and the one that ends the job, or answer for the store."""
    turn, turns = bench.engine.turn, []

    def watched(changes: Sequence[Change]) -> Turn:
        turns.append(changes)
        assert len(turns) < 10, "the recovery comes to no end"
        return (changes[0].kind is EventKind.SUPERSEDED and act()) or turn(changes)

    monkeypatch.setattr(bench.engine, "turn", watched)


def test_a_job_whose_key_is_anothers_is_recovered_by_ending_it(
    keyless: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    assert (keyless.recovery.recover(), keyless.state()) == (1, State.CANCELLED)
    assert f"job {keyless.job.id} (greet): superseded" in caplog.messages


def test_an_end_that_is_refused_because_the_holder_has_renewed_is_not_counted(
    keyless: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def renew() -> None:
        keyless.engine.extend([Lease(keyless.job.id, keyless.job.lease_token or "")], lease=LEASE)

    before_it_is_ended(keyless, monkeypatch, renew)
    assert (keyless.recovery.recover(), keyless.state()) == (0, State.RUNNING)


def test_a_job_that_is_locked_before_it_is_ended_is_left_for_the_next_time(
    keyless: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_it_is_ended(keyless, monkeypatch, lambda: Turn([Verdict(Ruling.BUSY)], [], keyless.engine.now()))
    assert (recover_leases(keyless.engine, actor="ada"), keyless.state()) == (0, State.RUNNING)


def test_the_holder_of_a_job_that_is_locked_before_it_is_ended_gets_time_to_renew(
    keyless: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        before_it_is_ended(keyless, patched, lambda: Turn([Verdict(Ruling.BUSY)], [], keyless.engine.now()))
        assert keyless.recovery.recover() == 0
    assert (keyless.recovery.recover(), keyless.state()) == (0, State.RUNNING)
    keyless.pass_time(LEASE / 2 + 1)
    assert (keyless.recovery.recover(), keyless.state()) == (1, State.CANCELLED)


def test_a_job_that_the_store_will_not_even_end_is_told_of(
    keyless: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = Verdict(Ruling.REFUSED, why="it is too large")
    before_it_is_ended(keyless, monkeypatch, lambda: Turn([refusal], [], keyless.engine.now()))
    assert (recover_leases(keyless.engine, actor="ada"), keyless.state()) == (0, State.RUNNING)
    assert caplog.messages == [f"job {keyless.job.id} (greet) cannot be recovered: it is too large"]


def test_recovery_is_due_again_soon_enough_for_a_short_lease(bench: Bench) -> None:
    bench.recovery.due_at = 0.0
    bench.recovery.run_due()
    assert bench.monotonic < bench.recovery.due_at <= bench.monotonic + 1.0
