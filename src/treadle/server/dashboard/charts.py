"""Charts as figures for SVG: x in per cent and y in pixels, so that no text is ever scaled."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from treadle.server.dashboard.words import moment

MOST_BARS = 120


class Bar(NamedTuple):
    """One step of time: from where to where it reaches, and how many ended in it."""

    at: datetime
    x: float
    width: float
    done: int
    failed: int
    up: float  # heights in pixels
    down: float
    wait: float | None  # seconds, 95th percentile: the worst of its minutes
    run: float | None


class Chart(NamedTuple):
    """Bars over a span, and the scale of each side."""

    bars: Sequence[Bar]
    since: datetime
    until: datetime
    most_done: int
    most_failed: int
    step: float  # seconds

    @property
    def quarters(self) -> list[tuple[float, datetime]]:
        """The moments that are written below it, between its ends: where, and which."""
        return [(25.0 * part, self.since + (self.until - self.since) * part / 4) for part in (1, 2, 3)]

    def place(self, when: datetime | str | None) -> float | None:
        """Where a moment is, in per cent; None if it is outside."""
        at = moment(when)
        if at is None or not self.since < at < self.until:
            return None
        return round(100 * (at - self.since) / (self.until - self.since), 2)


def throughput(stats: Mapping[str, Any], *, up: int = 120, down: int = 48) -> Chart:
    """What ended by the minute, in at most 120 bars: done goes up, failed goes down."""
    since, until = moment(stats["since"]), moment(stats["at"])
    assert since is not None  # noqa: S101 - the API always says them
    assert until is not None  # noqa: S101
    minutes = max(1, round((until - since).total_seconds() / 60))
    each = -(-minutes // MOST_BARS)
    count = -(-minutes // each)
    steps: list[list[Mapping[str, Any]]] = [[] for _ in range(count)]
    for minute in stats["minutes"]:
        at = moment(minute["at"])
        place = int((at - since).total_seconds() // (60 * each)) if at is not None else 0
        steps[min(max(place, 0), count - 1)].append(minute)
    done = [sum(minute["succeeded"] for minute in step) for step in steps]
    failed = [sum(minute["failed"] + minute["retrying"] for minute in step) for step in steps]
    most_done, most_failed = max([1, *done]), max([1, *failed])
    bars = [
        Bar(
            since + timedelta(minutes=each * place),
            round(100 * place / count, 3),
            round(100 / count, 3),
            done[place],
            failed[place],
            round(up * done[place] / most_done, 1),
            round(down * failed[place] / most_failed, 1),
            _worst(step, "wait"),
            _worst(step, "run"),
        )
        for place, step in enumerate(steps)
    ]
    return Chart(bars, since, until, most_done, most_failed, 60.0 * each)


def line(values: Sequence[float | None], height: int = 72) -> str:
    """The points of a line through these values, one a step; it is drawn straight over a step without a value."""
    most = max([value for value in values if value is not None], default=0) or 1
    return " ".join(
        f"{place},{round(height - (height - 2) * value / most, 1)}"
        for place, value in enumerate(values)
        if value is not None
    )


def spark(numbers: Sequence[int], height: int = 20) -> list[tuple[float, float, float]]:
    """Small bars: where each begins in per cent, how wide it is, and its height in pixels."""
    most, count = max([1, *numbers]), max(1, len(numbers))
    return [
        (round(100 * place / count, 2), round(80 / count, 2), round(max(1.5, height * one / most), 1))
        for place, one in enumerate(numbers)
        if one
    ]


def _worst(step: Sequence[Mapping[str, Any]], what: str) -> float | None:
    found = [minute[what]["p95"] for minute in step if minute[what]["p95"] is not None]
    return max(found, default=None)


GLOBALS = {"throughput": throughput, "line": line, "spark": spark}
