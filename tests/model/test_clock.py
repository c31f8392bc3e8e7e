"""Durations as people write them, and a clock that never runs backwards."""

import math
from datetime import UTC, datetime, timedelta

import pytest

from treadle.errors import ConfigError
from treadle.model import clock as clock_module
from treadle.model.clock import SystemClock, seconds
from treadle.testing import FakeClock


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (0, 0.0),
        (90, 90.0),
        (1.5, 1.5),
        ("90", 90.0),
        ("1.5", 1.5),
        ("0", 0.0),
        ("90s", 90.0),
        ("5m", 300.0),
        ("250ms", 0.25),
        ("1h30m", 5400.0),
        ("1h 30m", 5400.0),
        (" 2 h ", 7200.0),
        ("1.5h", 5400.0),
        ("7d", 604_800.0),
        ("2w", 1_209_600.0),
        ("1D", 86_400.0),
        ("1w1d1h1m1s1ms", 694_861.001),
        (timedelta(minutes=2), 120.0),
        (timedelta(0), 0.0),
        (timedelta(microseconds=1), 1e-6),
        ("36500d", 36_500 * 86_400.0),
    ],
)
def test_a_duration_is_read_as_it_is_meant(written, meant):
    assert seconds(written, "timeout") == pytest.approx(meant, abs=1e-9)


@pytest.mark.parametrize(
    "written",
    ["", " ", "soon", "5x", "m", "m5", "5m5", "5m,3s", "1h-30m", "--5m", "5 minutes", "1:30", None, True, False, [],
     b"5m", {"minutes": 5}],
    ids=repr,
)  # fmt: skip
def test_what_is_no_duration_is_refused_with_examples(written):
    with pytest.raises(ConfigError, match="is not a valid duration; write seconds, ") as caught:
        seconds(written, "lease")

    assert str(caught.value).startswith("lease: ")
    assert "'5m'" in str(caught.value)


@pytest.mark.parametrize(
    "written",
    [-1, -0.001, "-5", timedelta(seconds=-1), math.inf, -math.inf, math.nan, "inf", "nan", "1e400", 10**10, "36501d",
     "9" * 400 + "d", timedelta.max, 10**400],
    ids=lambda written: str(written)[:20],
)  # fmt: skip
def test_a_duration_out_of_range_is_refused_with_the_range(written):
    with pytest.raises(ConfigError, match=r"timeout: .* is out of range; it must be between 0 and 100 years"):
        seconds(written, "timeout")


class Machine:
    """A machine's two clocks, to be set by hand."""

    def __init__(self):
        self.wall, self.steady = 1_700_000_000.0, 50.0

    def time(self):
        return self.wall

    def monotonic(self):
        return self.steady

    def pass_time(self, by):
        self.wall += by
        self.steady += by


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(clock_module, "time", machine)
    return machine


def since(moment, clock):
    return (clock.now() - moment).total_seconds()


def test_the_system_clock_tells_the_machines_time_in_utc(machine):
    clock = SystemClock()

    assert clock.now() == datetime.fromtimestamp(1_700_000_000, UTC)
    assert clock.now().utcoffset() == timedelta(0)
    machine.pass_time(2.5)
    assert clock.now() == datetime.fromtimestamp(1_700_000_002.5, UTC)


def test_the_system_clock_stands_still_when_the_wall_clock_is_set_back_a_little(machine):
    clock = SystemClock()
    start = clock.now()

    for step in (-0.5, 0.2, -0.1):
        machine.wall += step
        assert since(start, clock) == 0
    machine.wall += 1
    assert since(start, clock) == pytest.approx(0.6)


def test_the_system_clock_follows_a_step_back_so_that_all_processes_agree(machine):
    before, after = SystemClock(), None

    machine.wall -= 3600
    after = SystemClock()

    assert before.now() == after.now() == datetime.fromtimestamp(machine.wall, UTC)


def test_the_system_clock_is_the_wall_clock_again_once_that_has_caught_up(machine):
    clock = SystemClock()
    machine.wall -= 60
    clock.now()

    machine.pass_time(30)
    machine.wall += 90

    assert clock.now() == datetime.fromtimestamp(machine.wall, UTC)


def test_the_system_clock_follows_the_wall_clock_forward(machine):
    clock = SystemClock()

    machine.wall += 86_400

    assert clock.now() == datetime.fromtimestamp(1_700_086_400, UTC)


def test_a_real_system_clock_is_close_to_the_machines():
    assert abs((SystemClock().now() - datetime.now(UTC)).total_seconds()) < 5


def test_a_fake_clock_stands_still_until_it_is_moved():
    clock = FakeClock(datetime(2026, 3, 1, tzinfo=UTC))
    assert clock.now() == clock.now() == datetime(2026, 3, 1, tzinfo=UTC)

    clock.advance(days=1, seconds=1)

    assert clock.now() == datetime(2026, 3, 2, 0, 0, 1, tzinfo=UTC)
