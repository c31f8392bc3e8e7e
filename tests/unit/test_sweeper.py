"""How far a walk through the finished jobs has come, and when it begins anew."""

from datetime import UTC, datetime, timedelta

import pytest

from treadle.engines import retention
from treadle.engines.retention import LONGEST, Sweeper, Window
from treadle.engines.values import Retention
from treadle.model import State

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEEP = Retention({State.SUCCEEDED: timedelta(days=1)}, only=frozenset(("mine",)))


def test_a_walk_begins_anew_only_after_it_has_reached_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    time = 0.0
    monkeypatch.setattr(retention.time, "monotonic", lambda: time)
    sweeper, begun, last = Sweeper(), [], 4 * LONGEST

    def window(_: object, since: int | None, __: datetime, ___: int) -> Window:
        place = (since or 0) + 1
        begun.append(since)
        return Window(0, place if place < last else None)

    for _ in range(4):  # hours go by, and the end is not reached yet
        sweeper.sweep(KEEP, 100, NOW, window, to_the_end=False)
        time += retention.AGAIN + 1
    assert begun == [None, *range(1, last)]
    begun.clear()
    sweeper.sweep(KEEP, 100, NOW, window, to_the_end=False)
    assert begun[0] is None


def test_a_walk_to_the_end_does_not_stop_for_finding_nothing() -> None:
    def window(_: object, since: int | None, __: datetime, ___: int) -> Window:
        place = (since or 0) + 1
        return Window(place == 500, place if place < 500 else None)

    assert Sweeper().sweep(KEEP, 100, NOW, window, to_the_end=True) == 1
