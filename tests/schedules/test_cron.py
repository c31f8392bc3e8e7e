"""When a schedule fires: what expressions mean, the law where clocks are changed, and what is refused."""

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.schedules.ticks import Window, walk
from tests.support.sizes import size
from treadle.errors import ConfigError
from treadle.schedules.cron import FIRST, MOVED, NICKNAMES, ONCE, SECOND, Cron, Every, next_after, preview, time_zone

NEW_YORK, LONDON, BERLIN, CAIRO = "America/New_York", "Europe/London", "Europe/Berlin", "Africa/Cairo"
LORD_HOWE, APIA, TROLL = "Australia/Lord_Howe", "Pacific/Apia", "Antarctica/Troll"
MINUTE = timedelta(minutes=1)


def utc(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def ticks(expression, zone, after, count):
    """The next runs by the local clock, such as `11-01 01:30 -04:00`."""
    return [
        f"{tick.local:%m-%d %H:%M} {tick.local.isoformat()[-6:]}" for tick in preview(expression, zone, after, count)
    ]


def days(expression, after, count):
    return [f"{tick.at:%a %Y-%m-%d}" for tick in preview(expression, "UTC", utc(after), count)]


def hours(expression, after, count):
    return [f"{tick.at:%H:%M}" for tick in preview(expression, "UTC", utc(after), count)]


# -------------------------------------------------------------------------- what expressions mean


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("* * * * *", ["10:08", "10:09", "10:10"]),
        ("*/15 * * * *", ["10:15", "10:30", "10:45"]),
        ("7 * * * *", ["11:07", "12:07", "13:07"]),
        ("5/20 * * * *", ["10:25", "10:45", "11:05"]),
        ("10-20/5 * * * *", ["10:10", "10:15", "10:20"]),
        ("0,59,30 * * * *", ["10:30", "10:59", "11:00"]),
        ("0 9-17/4 * * *", ["13:00", "17:00", "09:00"]),
        ("0 */6 * * *", ["12:00", "18:00", "00:00"]),
        ("8-9,8,*/59 10 * * *", ["10:08", "10:09", "10:59"]),
        ("  30\t2  *  * * ", ["02:30", "02:30", "02:30"]),
        ("00 007 * * *", ["07:00", "07:00", "07:00"]),
    ],
)
def test_minutes_and_hours_may_be_lists_ranges_and_steps(expression, wanted):
    assert hours(expression, "2026-06-01 10:07", 3) == wanted


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("0 0 * * MON-FRI", ["Fri 2026-05-29", "Mon 2026-06-01", "Tue 2026-06-02"]),
        ("0 0 * * 1-5", ["Fri 2026-05-29", "Mon 2026-06-01", "Tue 2026-06-02"]),
        ("0 0 * * sun", ["Sun 2026-05-31", "Sun 2026-06-07", "Sun 2026-06-14"]),
        ("0 0 * * 0", ["Sun 2026-05-31", "Sun 2026-06-07", "Sun 2026-06-14"]),
        ("0 0 * * 7", ["Sun 2026-05-31", "Sun 2026-06-07", "Sun 2026-06-14"]),
        ("0 0 * * FRI-SUN", ["Fri 2026-05-29", "Sat 2026-05-30", "Sun 2026-05-31"]),
        ("0 0 * * 5-7", ["Fri 2026-05-29", "Sat 2026-05-30", "Sun 2026-05-31"]),
        ("0 0 * * SUN-MON", ["Sun 2026-05-31", "Mon 2026-06-01", "Sun 2026-06-07"]),
        ("0 0 31 * *", ["Sun 2026-05-31", "Fri 2026-07-31", "Mon 2026-08-31"]),
        ("0 0 1,15 JAN,Jul *", ["Wed 2026-07-01", "Wed 2026-07-15", "Fri 2027-01-01"]),
        ("0 0 1 */4 *", ["Tue 2026-09-01", "Fri 2027-01-01", "Sat 2027-05-01"]),
        ("0 0 29 2 *", ["Tue 2028-02-29", "Sun 2032-02-29", "Fri 2036-02-29"]),
        ("0 0 31 2-4 *", ["Wed 2027-03-31", "Fri 2028-03-31", "Sat 2029-03-31"]),
    ],
)
def test_days_may_be_numbers_and_names(expression, wanted):
    assert days(expression, "2026-05-28 12:00", 3) == wanted


def test_a_day_of_the_month_or_of_the_week_when_both_are_restricted():
    assert days("0 0 13 * 5", "2026-02-01", 5) == [
        "Fri 2026-02-06", "Fri 2026-02-13", "Fri 2026-02-20", "Fri 2026-02-27", "Fri 2026-03-06",
    ]  # fmt: skip
    assert days("0 0 12 * FRI", "2026-02-01", 3) == ["Fri 2026-02-06", "Thu 2026-02-12", "Fri 2026-02-13"]
    assert days("0 0 31 2 MON", "2026-02-01", 2) == ["Mon 2026-02-02", "Mon 2026-02-09"]


def test_both_must_match_when_one_of_them_holds_a_star():
    assert days("0 0 */2 * MON", "2026-06-01", 3) == ["Mon 2026-06-15", "Mon 2026-06-29", "Mon 2026-07-13"]
    assert days("0 0 1-7 * */7", "2026-06-01", 3) == ["Sun 2026-06-07", "Sun 2026-07-05", "Sun 2026-08-02"]
    for first_seven in ("*/100,1-7", "1-7,*/100"):
        wanted = ["Mon 2026-07-06", "Mon 2026-08-03", "Mon 2026-09-07"]
        assert days(f"0 0 {first_seven} * MON", "2026-06-01", 3) == wanted
    assert days("0 0 1-7 * 0,*/7", "2026-06-01", 1) == ["Sun 2026-06-07"]


def test_the_rarest_date_is_found_across_a_century_without_a_leap_day():
    assert days("0 0 29 2 */7", "2088-02-29", 1) == ["Sun 2128-02-29"]
    assert days("0 0 29 2 *", "2096-03-01", 1) == ["Fri 2104-02-29"]


@pytest.mark.parametrize(
    ("nickname", "wanted"),
    [
        ("@hourly", ["05-28 13:00", "05-28 14:00"]),
        ("@daily", ["05-29 00:00", "05-30 00:00"]),
        ("@midnight", ["05-29 00:00", "05-30 00:00"]),
        ("@weekly", ["05-31 00:00", "06-07 00:00"]),
        ("@monthly", ["06-01 00:00", "07-01 00:00"]),
        ("@yearly", ["01-01 00:00", "01-01 00:00"]),
        (" @Annually ", ["01-01 00:00", "01-01 00:00"]),
    ],
)
def test_nicknames(nickname, wanted):
    assert [tick[:11] for tick in ticks(nickname, "UTC", utc("2026-05-28 12:30"), 2)] == wanted


def test_an_answer_is_in_utc_and_strictly_later():
    answer = next_after("30 2 * * *", "Asia/Kathmandu", utc("2026-06-01 20:45"))
    assert (answer, answer.tzinfo) == (utc("2026-06-02 20:45"), UTC)
    assert next_after("30 2 * * *", "Asia/Kathmandu", utc("2026-06-01 20:44:59.999999")) == utc("2026-06-01 20:45")
    assert next_after("* * * * *", "UTC", utc("2026-12-31 23:59:00.000001")) == utc("2027-01-01 00:00")


def test_the_time_asked_from_may_be_in_any_zone():
    kathmandu = datetime(2026, 6, 1, 12, 0, tzinfo=timezone(timedelta(hours=5, minutes=45)))
    assert next_after("0 * * * *", "UTC", kathmandu) == utc("2026-06-01 07:00")
    second = datetime(2026, 11, 1, 1, 10, tzinfo=ZoneInfo(NEW_YORK), fold=1)
    assert next_after("*/30 * * * *", NEW_YORK, second) == utc("2026-11-01 06:30")


# ------------------------------------------------------------------------ where clocks are changed


def test_a_wall_clock_time_in_the_gap_runs_at_its_end():
    assert ticks("30 2 * * *", NEW_YORK, utc("2026-03-07 12:00"), 2) == ["03-08 03:00 -04:00", "03-09 02:30 -04:00"]
    assert ticks("30 1 * * *", LONDON, utc("2026-03-28 12:00"), 2) == ["03-29 02:00 +01:00", "03-30 01:30 +01:00"]
    assert ticks("15 2 * * *", LORD_HOWE, utc("2026-10-03 12:00"), 2) == ["10-04 02:30 +11:00", "10-05 02:15 +11:00"]


def test_several_times_in_one_gap_run_once_together():
    wanted = ["03-08 03:00 -04:00", "03-08 03:30 -04:00", "03-09 02:00 -04:00"]
    assert ticks("0,30 2,3 * * *", NEW_YORK, utc("2026-03-08 06:00"), 3) == wanted


def test_a_wall_clock_time_that_comes_twice_runs_once_the_first_time():
    assert ticks("30 1 * * *", NEW_YORK, utc("2026-10-31 12:00"), 2) == ["11-01 01:30 -04:00", "11-02 01:30 -05:00"]
    assert ticks("45 1 * * *", LORD_HOWE, utc("2026-04-04 00:00"), 2) == ["04-05 01:45 +11:00", "04-06 01:45 +10:30"]


def test_asked_within_the_second_hour_a_wall_clock_schedule_has_had_its_run():
    assert ticks("30 1 * * *", NEW_YORK, utc("2026-11-01 06:10"), 1) == ["11-02 01:30 -05:00"]
    assert ticks("0-59 1 * * *", NEW_YORK, utc("2026-11-01 06:10"), 1) == ["11-02 01:00 -05:00"]
    assert ticks("30 1,2 * * *", NEW_YORK, utc("2026-11-01 06:10"), 1) == ["11-01 02:30 -05:00"]


def test_real_time_goes_through_the_repeated_hour_twice():
    assert ticks("*/30 * * * *", NEW_YORK, utc("2026-11-01 04:30"), 5) == [
        "11-01 01:00 -04:00", "11-01 01:30 -04:00", "11-01 01:00 -05:00", "11-01 01:30 -05:00", "11-01 02:00 -05:00",
    ]  # fmt: skip
    assert ticks("*/30 1 * * *", NEW_YORK, utc("2026-11-01 05:40"), 2) == ["11-01 01:00 -05:00", "11-01 01:30 -05:00"]


def test_the_repeated_hour_is_seen_from_half_a_year_away():
    """Where the offset is the same as then, and was another one between."""
    assert next_after("*/30 1 1 11 *", NEW_YORK, utc("2026-02-01")) == utc("2026-11-01 05:00")
    assert next_after("30 1 1 11 *", NEW_YORK, utc("2026-02-01")) == utc("2026-11-01 05:30")


def test_real_time_leaps_over_the_gap():
    assert ticks("0 * * * *", NEW_YORK, utc("2026-03-08 05:30"), 3) == [
        "03-08 01:00 -05:00", "03-08 03:00 -04:00", "03-08 04:00 -04:00",
    ]  # fmt: skip
    assert ticks("*/30 2 * * *", NEW_YORK, utc("2026-03-08 00:00"), 1) == ["03-09 02:00 -04:00"]


def test_half_an_hour_on_lord_howe_is_not_lost():
    assert ticks("*/15 2 * * *", LORD_HOWE, utc("2026-10-03 00:00"), 3) == [
        "10-04 02:30 +11:00", "10-04 02:45 +11:00", "10-05 02:00 +11:00",
    ]  # fmt: skip
    assert ticks("*/15 2 * * *", LORD_HOWE, utc("2026-04-03 15:45"), 2) == ["04-05 02:00 +10:30", "04-05 02:15 +10:30"]
    assert ticks("*/15 1 * * *", LORD_HOWE, utc("2026-04-04 14:20"), 5) == [
        "04-05 01:30 +11:00", "04-05 01:45 +11:00", "04-05 01:30 +10:30", "04-05 01:45 +10:30", "04-06 01:00 +10:30",
    ]  # fmt: skip


def test_a_midnight_that_does_not_exist_runs_at_one():
    assert ticks("0 0 * * *", CAIRO, utc("2026-04-22 12:00"), 3) == [
        "04-23 00:00 +02:00", "04-24 01:00 +03:00", "04-25 00:00 +03:00",
    ]  # fmt: skip


def test_a_whole_day_that_does_not_exist_runs_at_the_start_of_the_next():
    assert ticks("0 9 * * *", APIA, utc("2011-12-29 12:00"), 3) == [
        "12-29 09:00 -10:00", "12-31 00:00 +14:00", "12-31 09:00 +14:00",
    ]  # fmt: skip
    assert ticks("0 9 30 12 *", APIA, utc("2011-12-30 00:00"), 1) == ["12-31 00:00 +14:00"]
    assert ticks("0 */12 * * *", APIA, utc("2011-12-29 12:00"), 3) == [
        "12-29 12:00 -10:00", "12-31 00:00 +14:00", "12-31 12:00 +14:00",
    ]  # fmt: skip


def test_two_hours_at_once_in_troll():
    assert ticks("30 1,2 * * *", TROLL, utc("2026-03-28 12:00"), 2) == ["03-29 03:00 +02:00", "03-30 01:30 +02:00"]
    assert ticks("30 1,2 * * *", TROLL, utc("2026-10-24 12:00"), 3) == [
        "10-25 01:30 +02:00", "10-25 02:30 +02:00", "10-26 01:30 +00:00",
    ]  # fmt: skip


def test_a_clock_changed_within_a_minute_is_met_to_the_second():
    """Liberia left an offset of 44:30 behind on 7 January 1972."""
    assert next_after("30 0 7 1 *", "Africa/Monrovia", utc("1972-01-01 00:00")) == utc("1972-01-07 00:44:30")
    assert next_after("* * * * *", "Africa/Monrovia", utc("1972-01-07 00:44")) == utc("1972-01-07 00:45")


@pytest.mark.parametrize("star", ["*", "*/1", "0,*", "0-59,*/30"])
def test_a_star_anywhere_in_minute_or_hour_makes_it_real_time(star):
    assert not Cron.parse(f"{star} 2 * * *").wall_clock
    assert Cron.parse("0-59 0-23 * * *").wall_clock
    assert not Cron.parse("@hourly").wall_clock
    assert Cron.parse("@daily").wall_clock


def test_a_preview_says_what_happens_to_a_run():
    def notes(expression, zone, after, count):
        return [tick.note for tick in preview(expression, zone, utc(after), count)]

    assert notes("30 2 * * *", NEW_YORK, "2026-03-07 00:00", 3) == ["", MOVED, ""]
    assert notes("30 1 * * *", NEW_YORK, "2026-10-31 00:00", 3) == ["", ONCE, ""]
    assert notes("30 * * * *", NEW_YORK, "2026-11-01 05:00", 3) == [FIRST, SECOND, ""]
    assert notes("0 3 * * *", NEW_YORK, "2026-03-08 00:00", 1) == [""]
    assert notes("0 2 * * *", NEW_YORK, "2026-11-01 00:00", 1) == [""]


def test_a_preview_has_the_instant_in_utc_and_by_the_local_clock():
    [tick] = preview("30 2 * * *", BERLIN, utc("2026-07-01 00:00"), 1)
    assert tick.at.isoformat() == "2026-07-01T00:30:00+00:00"
    assert tick.local.isoformat() == "2026-07-01T02:30:00+02:00"


# ------------------------------------------------------------------------------------- properties

ZONES = [
    NEW_YORK, LONDON, BERLIN, CAIRO, LORD_HOWE, APIA, TROLL, "Africa/Casablanca", "Asia/Gaza", "Asia/Kathmandu",
    "America/Sao_Paulo", "America/St_Johns", "America/Nuuk", "Europe/Dublin", "UTC",
]  # fmt: skip
CHANGES = [
    "2026-03-08 07:00", "2026-11-01 06:00", "2026-03-29 01:00", "2026-10-25 01:00", "2026-10-03 15:30",
    "2026-04-04 15:00", "2026-04-23 22:00", "2026-10-29 21:00", "2011-12-30 10:00", "2026-02-15 02:00",
]  # fmt: skip
BOUNDARIES = ["2024-02-29 00:00", "2025-02-28 23:59", "2026-12-31 23:59", "2100-02-28 23:00", "1999-12-31 12:00"]

anywhen = st.datetimes(datetime(1975, 1, 1), datetime(2120, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
near = st.builds(
    lambda middle, away: utc(middle) + timedelta(seconds=away),
    st.sampled_from(CHANGES + BOUNDARIES),
    st.integers(-3 * 86400, 3 * 86400),
)
moments = near | anywhen


def field(low, high):
    """A field's text and the values it stands for."""
    number = st.integers(low, high)
    bounds = st.tuples(number, number).map(sorted)
    one = number.map(lambda value: (str(value), {value}))
    between = bounds.map(lambda ends: (f"{ends[0]}-{ends[1]}", set(range(ends[0], ends[1] + 1))))
    stepped = st.builds(
        lambda ends, step: (f"{ends[0]}-{ends[1]}/{step}", set(range(ends[0], ends[1] + 1, step))),
        bounds, st.integers(1, high),
    )  # fmt: skip
    star = st.just(("*", set(range(low, high + 1))))
    every = st.integers(1, high).map(lambda step: (f"*/{step}", set(range(low, high + 1, step))))
    listed = st.lists(one | between | stepped, min_size=1, max_size=3).map(
        lambda parts: (",".join(text for text, _ in parts), set().union(*(values for _, values in parts)))
    )
    return star | every | listed


@st.composite
def expressions(draw):
    """An expression and a test of local times; days up to 28 only, so that every one of them exists."""
    parts = [draw(field(0, 59)), draw(field(0, 23)), draw(field(1, 28)), draw(field(1, 12)), draw(field(0, 7))]
    minutes, hours, days, months, weekdays = (values for _, values in parts)
    texts = [text for text, _ in parts]
    both = any("*" in texts[place] for place in (2, 4))
    if texts[2].startswith("*"):
        days |= {29, 30, 31} if texts[2] == "*" else set(range(1, 32, int(texts[2][2:])))

    def matches(local):
        of_month, of_week = local.day in days, bool({local.isoweekday(), local.isoweekday() % 7} & weekdays)
        day = (of_month and of_week) if both else (of_month or of_week)
        return local.minute in minutes and local.hour in hours and local.month in months and day

    return " ".join(texts), matches


@given(expressions(), st.sampled_from(ZONES), moments)
@settings(max_examples=size(30, long=150), deadline=None)
def test_every_answer_matches_the_fields_unless_it_was_moved_out_of_a_gap(drawn, zone, after):
    expression, matches = drawn
    for tick in preview(expression, zone, after, 4):
        local = tick.local.replace(tzinfo=None)
        if tick.note == MOVED:
            before = (tick.at - MINUTE / 60).astimezone(ZoneInfo(zone))
            leapt = [before.replace(tzinfo=None, second=0) + n * MINUTE for n in range(1, 24 * 60 + 60)]
            assert Cron.parse(expression).wall_clock
            assert before.utcoffset() < tick.local.utcoffset()
            assert any(matches(time) for time in leapt if time < local)
        else:
            assert matches(local)
            assert (local.second, local.microsecond) == (0, 0)


@given(expressions(), st.sampled_from(ZONES), moments)
@example(("30 1 * * *", None), NEW_YORK, utc("2026-11-01 06:10"))
@settings(max_examples=size(30, long=150), deadline=None)
def test_answers_are_in_utc_and_strictly_increase(drawn, zone, after):
    found = [after, *(tick.at for tick in preview(drawn[0], zone, after, 6))]
    assert all(earlier < later for earlier, later in pairwise(found))
    assert all(moment.tzinfo is UTC for moment in found[1:])


@given(expressions(), st.sampled_from(ZONES), moments, st.integers(0, 999))
@settings(max_examples=size(30, long=150), deadline=None)
def test_the_answer_does_not_depend_on_where_one_starts(drawn, zone, after, part):
    expression, _ = drawn
    first = next_after(expression, zone, after)
    second = next_after(expression, zone, first)
    assert next_after(expression, zone, after + (first - after) // 1000 * part) == first
    assert next_after(expression, zone, first - timedelta(microseconds=1)) == first
    assert next_after(expression, zone, first + (second - first) // 1000 * part) == second


@given(expressions(), st.sampled_from(ZONES), st.sampled_from(CHANGES))
@settings(max_examples=size(30, long=150), deadline=None)
def test_nothing_is_left_out_where_a_clock_is_changed(drawn, zone, change):
    """The runs of nine hours are those that a walk minute by minute finds, for any expression."""
    expression, matches = drawn
    start, end = utc(change) - timedelta(hours=6), utc(change) + timedelta(hours=3)
    every, once = walk(ZoneInfo(zone), Window(start, utc(change), end))
    by_the_wall = Cron.parse(expression).wall_clock
    wanted = sorted({at for local, at in (once.items() if by_the_wall else every) if matches(local)} - {start})
    for asked, answer in pairwise([start, *wanted]):
        assert next_after(expression, zone, asked) == answer
    assert next_after(expression, zone, wanted[-1] if wanted else start) > end


@given(st.integers(1, 10**8), anywhen, moments)
def test_an_interval_counts_from_its_anchor(seconds, anchor, after):
    answer = Every(seconds).next_after(anchor, after)
    assert answer > after
    assert (answer - anchor) % timedelta(seconds=seconds) == timedelta()
    assert answer == anchor or answer - timedelta(seconds=seconds) <= after


# --------------------------------------------------------------------------------------- intervals


def test_an_interval_takes_no_notice_of_the_clock_being_changed():
    anchor = datetime(2026, 10, 31, 12, 0, tzinfo=ZoneInfo(NEW_YORK))
    day = Every.parse("1d")
    assert day.next_after(anchor, anchor) == utc("2026-11-01 16:00")
    assert day.next_after(anchor, anchor - timedelta(days=30)) == utc("2026-10-31 16:00")
    later = datetime(2026, 11, 1, 11, 30, tzinfo=ZoneInfo(NEW_YORK))
    assert day.next_after(anchor, later) == utc("2026-11-02 16:00")


def test_an_interval_does_not_drift():
    anchor = utc("2026-01-01 00:00")
    assert Every.parse("0.1m").next_after(anchor, anchor + timedelta(days=3650)) == anchor + timedelta(
        days=3650, seconds=6
    )
    assert Every.parse("90m").next_after(anchor, utc("2026-01-01 02:59:59.999999")) == utc("2026-01-01 03:00")
    assert Every.parse(timedelta(minutes=90)) == Every(5400)


@pytest.mark.parametrize("value", [0, -5, "0.5s", "500ms", "soon", None, True, float("nan")])
def test_an_interval_that_cannot_be_is_refused(value):
    with pytest.raises(ConfigError, match=r"^every: "):
        Every.parse(value)


# ----------------------------------------------------------------------------------- what is refused

BAD = [
    # the expression, what its error says
    ("", "has 0 fields and must have 5"),
    ("* * * *", "has 4 fields and must have 5: minute hour day-of-month month day-of-week, such as"),
    ("30", "has 1 field and"),
    ("0 * * * * *", "has 6 fields and must have 5"),
    ("0 0 1 1 * 2030", "none is for seconds or years"),
    ("TZ=UTC 0 0 1 1 *", "has 6 fields"),
    ("60 * * * *", "minute: '60' is out of range; it takes 0 to 59, such as '*/15'"),
    ("1-60 * * * *", "minute: '1-60' is out of range"),
    ("* 24 * * *", "hour: '24' is out of range; it takes 0 to 23, such as '9-17'"),
    ("* * 0 * *", "day of month: '0' is out of range; it takes 1 to 31, such as '1,15'"),
    ("* * 32 * *", "day of month: '32' is out of range"),
    ("* * * 0 *", "month: '0' is out of range; it takes 1 to 12 or JAN to DEC, such as 'JAN,JUL'"),
    ("* * * 13 *", "month: '13' is out of range"),
    ("* * * * 8", "day of week: '8' is out of range; it takes 0 to 7 or SUN to SAT, such as 'MON-FRI'"),
    ("* * * JANUARY *", "month: 'JANUARY' is not a number or a name"),
    ("* * * * MONDAY", "day of week: 'MONDAY' is not a number or a name"),
    ("* * * MON *", "month: 'MON' is not a number or a name"),
    ("JAN * * * *", "minute: 'JAN' is not a number; it takes"),
    ("-1 * * * *", "minute: '-1' cannot be read"),
    ("1.5 * * * *", "minute: '1.5' cannot be read"),
    ("+5 * * * *", "minute: '+5' cannot be read"),
    ("1- * * * *", "minute: '1-' cannot be read"),
    ("*-5 * * * *", "minute: '*-5' cannot be read"),
    ("1-2-3 * * * *", "minute: '1-2-3' cannot be read"),
    ("** * * * *", "minute: '**' cannot be read"),
    ("*5 * * * *", "minute: '*5' cannot be read"),
    ("1,,2 * * * *", "minute: '' is empty"),
    (", * * * *", "minute: '' is empty"),
    ("1, * * * *", "minute: '' is empty"),
    ("*/ * * * *", "minute: '*/' cannot be read"),
    ("/5 * * * *", "minute: '/5' cannot be read"),
    ("*/0 * * * *", "minute: '*/0' has no step from 1 to 59"),
    ("*/x * * * *", "minute: '*/x' has no step from 1 to 59"),
    ("*/5/5 * * * *", "minute: '*/5/5' cannot be read"),
    ("*/90 * * * *", "an interval is the way to a longer one"),
    ("0 */36 * * *", "hour: '*/36' has no step from 1 to 23, and an interval"),
    ("0 0 */0 * *", "day of month: '*/0' has no step from 1 to 999; it takes"),
    ("50-10 * * * *", "minute: '50-10' runs backwards (as two: 50-59,0-10)"),
    ("0 22-5 * * *", "hour: '22-5' runs backwards (as two: 22-23,0-5)"),
    ("0 5-0 * * *", "hour: '5-0' runs backwards"),
    ("* * * DEC-FEB *", "month: 'DEC-FEB' runs backwards (as two: 12-12,1-2)"),
    ("* * * * FRI-MON", "day of week: 'FRI-MON' runs backwards (as two: 5-7,0-1)"),
    ("0 0 L-3 * *", "day of month: 'L-3' is not a number; it takes 1 to 31, such as '1,15', L for the last day or LW"),
    ("0 0 1L * *", "day of month: '1L' is not a number"),
    ("0 0 * L *", "month: 'L' is not a number or a name"),
    ("L 0 * * *", "minute: 'L' is not a number"),
    ("0 0 * * L", "day of week: 'L' is not a number or a name; it takes 0 to 7 or SUN to SAT, such as 'MON-FRI', 5L"),
    ("0 0 * * 8L", "day of week: '8L' is out of range"),
    ("0 0 * * LW", "day of week: 'LW' is not a number or a name"),
    ("0 0 */100 * MON#2", "'0 0 */100 * MON#2' never comes: no month has a day that is '*/100' and 'MON#2'"),
    ("0 0 15W * *", "day of month: '15W' is not a number"),
    ("0 0 * * 5#6", "day of week: '5#6' has no number from 1 to 5 after the #"),
    ("0 0 * * 5#", "day of week: '5#' has no number from 1 to 5 after the #"),
    ("0 0 * * 1-5#2", "day of week: '1-5#2' cannot be read"),
    ("0 0 1#2 * *", "day of month: '1#2' cannot be read"),
    ("0 0 ? * 5", "day of month: '?' cannot be read"),
    ("H * * * *", "minute: 'H' is not a number"),
    ("٣ * * * *", "minute: '٣' cannot be read"),
    ("0 0 31 2 *", "day of month: '31' never comes in month '2', which has 29 days at most; write a day that exists"),
    ("0 0 30,31 FEB *", "day of month: '30,31' never comes in month 'FEB'"),
    ("0 0 31 4,6,9,11 *", "which has 30 days at most"),
    ("0 0 31 2 */2", "day of month: '31' never comes"),
    ("@reboot", "'@reboot' is not a valid nickname; write @hourly, @daily"),
    ("@every 5m", "'@every 5m' is not a valid nickname"),
    ("@daily x", "'@daily x' is not a valid nickname"),
    ("9" * 5000 + " * * * *", "has 5,008 characters; the limit is 500"),
    ("9" * 400 + " * * * *", "minute: '9999"),
    ("\x1b[31m * * * *", "minute: '\\x1b[31m' cannot be read"),
    (None, "cron: None is not text"),
    (5, "cron: 5 is not text"),
]


@pytest.mark.covers("002-D3.e")
@pytest.mark.parametrize(("expression", "said"), BAD, ids=lambda value: str(value)[:30])
def test_a_bad_expression_is_refused_when_it_is_read(expression, said):
    with pytest.raises(ConfigError) as refused:
        Cron.parse(expression)
    message = str(refused.value)
    assert message.startswith("cron: ")
    assert said in message
    assert len(message) < 300


@given(st.text("0123456789*/-,@ \tJANMONx#L?", max_size=40) | st.text(max_size=20))
@settings(max_examples=size(100, long=500))
def test_any_text_is_read_or_refused_and_nothing_else(text):
    try:
        cron = Cron.parse(text)
    except ConfigError:
        return
    assert cron.next_after(ZoneInfo("UTC"), utc("2026-01-01 00:00")) > utc("2026-01-01 00:00")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Europe/Berln", "timezone: 'Europe/Berln' is not a known time zone; did you mean 'Europe/Berlin'?"),
        ("europe/berlin", "did you mean 'Europe/Berlin'?"),
        ("", "write an IANA name such as 'Europe/Berlin' or 'UTC'"),
        ("+02:00", "write an IANA name"),
        ("America", "is not a known time zone"),
        ("../../etc/passwd", "is not a known time zone"),
        ("/etc/localtime", "is not a known time zone"),
        ("right/Europe/Berlin", "is not a known time zone"),
        ("localtime", "is not a known time zone"),
        ("Europe/Berlin\0", "is not a known time zone"),
        ("x" * 10_000, "is not a known time zone"),
        (None, "timezone: None is not a known time zone"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_zone_that_is_none_is_refused(name, said):
    with pytest.raises(ConfigError) as refused:
        time_zone(name)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 200


def test_every_zone_of_the_package_can_be_used():
    for name in ("UTC", "Etc/UTC", "Asia/Kolkata", "Asia/Calcutta", "Europe/Kyiv", "America/Argentina/Buenos_Aires"):
        assert time_zone(name).key == name


def test_a_time_without_a_zone_or_out_of_range_is_refused():
    with pytest.raises(ConfigError, match=r"after: .* has no time zone; write"):
        next_after("@daily", "UTC", datetime(2026, 1, 1))  # noqa: DTZ001
    for year in (1, 1969, 3000, 9999):
        with pytest.raises(ConfigError, match=rf"the year {year} is out of range; it must be from 1970 to 2999"):
            next_after("@daily", "UTC", datetime(year, 6, 1, tzinfo=UTC))
    assert next_after("0 0 29 2 *", "UTC", utc("2999-12-31 23:59")) == utc("3004-02-29 00:00")


@pytest.mark.parametrize("count", [0, -1, 1001, 10**9])
def test_a_preview_of_no_or_too_many_runs_is_refused(count):
    with pytest.raises(ConfigError, match="it must be from 1 to 1,000"):
        preview("@daily", "UTC", utc("2026-01-01 00:00"), count)


def test_a_preview_ends_with_the_calendar_that_is_known():
    found = preview("0 0 29 2 */7", "UTC", utc("2026-01-01"), 1000)
    assert len(found) < 50
    assert 2999 < found[-1].at.year < 3040


def test_reading_the_same_text_twice_is_one_value():
    assert Cron.parse("@daily") is Cron.parse("@daily")
    assert Cron.parse("0 0 * * *")._replace(text="@daily") == Cron.parse("@daily")
    assert all(Cron.parse(nickname) for nickname in NICKNAMES)
