"""Counts of a minute: buckets of time, percentiles, and sums over workers."""

from datetime import UTC, datetime

import pytest

from treadle.model.records import Minute
from treadle.model.stats import SHORTEST, Counts, bucket, by_minute, hours, percentile, upper_end


@pytest.mark.parametrize("seconds", [0.0001, 0.00012, 0.001, 0.0173, 1.0, 59.0, 86_400.0])
def test_a_bucket_holds_times_up_to_a_fifth_longer(seconds: float) -> None:
    end = upper_end(bucket(seconds))
    assert seconds <= end * (1 + 1e-9)
    assert end <= max(seconds, SHORTEST) * 1.19


@pytest.mark.parametrize("seconds", [-5.0, 0.0, 1e-9])
def test_what_is_shorter_than_the_shortest_time_counts_as_it(seconds: float) -> None:
    assert upper_end(bucket(seconds)) == SHORTEST


def test_a_percentile_is_the_time_within_which_that_share_lies() -> None:
    counts = Counts()
    for milliseconds in range(1, 101):
        counts.note("succeeded", milliseconds / 1000, None)
    assert percentile(counts.waits, 0.5) == pytest.approx(0.050, rel=0.2)
    assert percentile(counts.waits, 0.99) == pytest.approx(0.099, rel=0.2)
    assert percentile(counts.runs, 0.5) is None


def test_the_counts_of_all_workers_are_added_up_by_minute_queue_and_task() -> None:
    one, other = Counts(), Counts()
    one.note("succeeded", 0.1, 0.2)
    other.note("succeeded", 0.1, None)
    other.note("failed", 3.0, 0.2)
    records = [
        Minute("2026-11-18T02", 59, "w1", {"mail": {"send": one.data()}}),
        Minute("2026-11-18T02", 59, "w2", {"mail": {"send": other.data()}}),
        Minute("2026-11-18T03", 0, "w2", {"mail": {"send": one.data()}, "default": {"send": one.data()}}),
    ]
    first, second = by_minute(reversed(records))
    assert first.at == datetime(2026, 11, 18, 2, 59, tzinfo=UTC)
    assert first.counts["mail", "send"].ends == {"succeeded": 2, "failed": 1}
    assert sum(first.counts["mail", "send"].waits.values()) == 3
    assert set(second.counts) == {("mail", "send"), ("default", "send")}


def test_the_hours_between_two_moments_are_those_of_the_clock() -> None:
    since = datetime(2026, 11, 17, 23, 30, tzinfo=UTC)
    until = datetime(2026, 11, 18, 1, 0, tzinfo=UTC)
    assert list(hours(since, until)) == ["2026-11-17T23", "2026-11-18T00", "2026-11-18T01"]
