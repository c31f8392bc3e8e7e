"""A sample of the oracle in ticks.py; `python3 dev.py ticks` asks it about every zone to 2037."""

from datetime import timedelta

import pytest

from tests.schedules import ticks
from treadle.schedules import cron

SAMPLE = [
    ("America/New_York", 2026),
    ("Europe/London", 2026),
    ("Europe/Berlin", 2027),
    ("Australia/Lord_Howe", 2026),  # half an hour
    ("Africa/Cairo", 2026),  # at midnight
    ("Pacific/Apia", 2011),  # a day lost
    ("Africa/Casablanca", 2026),  # back for Ramadan
    ("Antarctica/Troll", 2026),  # two hours
    ("Asia/Gaza", 2026),
    ("America/Sao_Paulo", 2018),  # at midnight, both ways
    ("Asia/Kathmandu", 2028),  # 45 minutes, never changed
    ("UTC", 2028),
]


@pytest.mark.parametrize(("zone", "year"), SAMPLE, ids=str)
def test_the_runs_are_those_a_clock_walked_minute_by_minute_would_fire(zone, year):
    tally = ticks.compare(zone, year, year)
    assert tally.answers > 10_000
    assert [str(difference) for difference in tally.differences] == []


def test_the_oracle_sees_an_answer_that_is_wrong():
    def an_hour_late(expression, zone, after):
        answer = cron.next_after(expression, zone, after)
        return answer + timedelta(hours=answer.month == 3 and answer.day == 8)

    differences = ticks.compare("America/New_York", 2026, 2026, an_hour_late).differences
    assert {difference.expression for difference in differences} >= {"30 2 * * *", "@hourly"}


def test_the_oracle_finds_the_changes_of_a_zone():
    [spring, autumn] = ticks.changes(cron.time_zone("Europe/Berlin"), 2026, 2026)
    assert (spring.isoformat(), autumn.isoformat()) == ("2026-03-29T01:00:00+00:00", "2026-10-25T01:00:00+00:00")
