"""A sample of the oracle in ticks.py; `python3 dev.py ticks` asks it about every zone to 2037."""

from calendar import monthcalendar
from datetime import UTC, datetime, timedelta

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


def _weekdays(day, which):
    """By month, these of the days that are a weekday (0 and 7 are Sunday), as the calendar module lists them."""
    place = (day - 1) % 7
    return lambda year, month: [week[place] for week in monthcalendar(year, month) if week[place]][which]


def _last_of_all(year, month):
    return [max(max(week) for week in monthcalendar(year, month))]


def _last_workday(year, month):
    return [max(day for week in monthcalendar(year, month) for day in week[:5])]


BY_CALENDAR = {
    "0 12 L * *": _last_of_all,
    "0 12 LW * *": _last_workday,
    **{f"0 12 * * {day}L": _weekdays(day, slice(-1, None)) for day in range(8)},
    **{
        f"0 12 * * {day}#{number}": _weekdays(day, slice(number - 1, number))
        for day in range(8)
        for number in range(1, 6)
    },
}


@pytest.mark.parametrize("expression", BY_CALENDAR)
def test_days_counted_in_the_month_are_those_of_the_calendar_for_twelve_years(expression):
    wanted = [
        datetime(year, month, day, 12, tzinfo=UTC)
        for year in range(2020, 2032)
        for month in range(1, 13)
        for day in BY_CALENDAR[expression](year, month)
    ]
    found = [tick.at for tick in cron.preview(expression, "UTC", datetime(2020, 1, 1, tzinfo=UTC), len(wanted))]
    assert found == wanted
