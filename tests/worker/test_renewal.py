"""Lease renewal by a clock that moves when told: how long a lease counts, and when an attempt is given up."""

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.making import LEASE, running
from treadle.engines import connect
from treadle.engines.contract import Engine
from treadle.engines.values import ClaimedJob, Lease, RenewalResult
from treadle.model import Job, lifecycle
from treadle.tasks.context import StopReason
from treadle.testing import FakeClock
from treadle.worker import renewal
from treadle.worker.attempt import Attempt
from treadle.worker.renewal import MARGIN, LeaseRenewal


class Slow:
    """A store whose answers take their time; by the monotonic clock of the renewal."""

    def __init__(self, engine: Engine, move: Callable[[float], None]) -> None:
        self._engine, self._move = engine, move
        self.takes = 0.0
        self.now = engine.now

    def extend(self, leases: Sequence[Lease], *, lease: float, now: Any = None) -> list[RenewalResult]:
        answers = self._engine.extend(leases, lease=lease, now=now)
        self._move(self.takes)
        return answers


class Bench:
    """A renewal whose threads are not started, an attempt that it keeps, and what it said."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monotonic = 1000.0
        monkeypatch.setattr(renewal, "time", SimpleNamespace(monotonic=lambda: self.monotonic))
        self.engine, self.store = engine, Slow(engine, self.pass_time)
        self.job: Job = running(engine)
        self.attempt = Attempt(ClaimedJob.of(self.job), lease_ends=self.monotonic + LEASE, queued_at=self.monotonic)
        self.stopped: list[StopReason] = []
        self.latencies: list[float] = []
        self.renewal = LeaseRenewal(
            self.store,
            LEASE,
            held=lambda: [self.attempt],
            request_stop=lambda _, why: self.stopped.append(why),
            note_latency=self.latencies.append,
        )

    def pass_time(self, seconds: float) -> None:
        self.monotonic += seconds


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    engine = connect("sqlite:///:memory:", clock=FakeClock().now)
    yield Bench(engine, monkeypatch)
    engine.close()


def test_a_renewed_lease_counts_from_before_the_call_was_sent(bench: Bench) -> None:
    bench.store.takes = 4.0
    assert bench.renewal.renew([bench.attempt])
    assert bench.attempt.lease_ends == 1000.0 + LEASE
    assert bench.latencies == [4.0]


def test_an_attempt_whose_job_is_somebody_elses_is_lost(bench: Bench) -> None:
    bench.attempt.claimed = bench.attempt.claimed._replace(token="another")
    bench.renewal.renew([bench.attempt])
    assert bench.stopped == [StopReason.LOST]


def test_a_cancel_request_comes_with_the_renewal(bench: Bench) -> None:
    bench.engine.turn([lifecycle.cancel(bench.job, bench.engine.now(), actor="ann")])
    bench.renewal.renew([bench.attempt])
    assert bench.stopped == [StopReason.CANCEL]


@pytest.mark.parametrize(("left", "stopped"), [(MARGIN * 1.01, []), (MARGIN * 0.99, [StopReason.LOST])])
def test_what_could_not_be_renewed_is_given_up_a_margin_before_its_lease_ends(
    bench: Bench, left: float, stopped: list[StopReason]
) -> None:
    bench.attempt.lease_ends = bench.monotonic + LEASE * left
    bench.renewal.give_up_unrenewed([bench.attempt])
    assert bench.stopped == stopped


def test_an_attempt_that_has_ended_is_not_given_up_its_write_is_fenced(bench: Bench) -> None:
    bench.attempt.lease_ends, bench.attempt.ended = bench.monotonic, True
    bench.renewal.give_up_unrenewed([bench.attempt])
    assert bench.stopped == []
