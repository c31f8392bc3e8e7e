"""When a schedule fires: cron expressions in a time zone, and plain intervals. Pure: the time is always an argument.

Where clocks are changed, the law is Debian cron's, and the syntax decides:

- no `*` in the minute and hour fields: a **wall-clock** schedule, which runs when the clock on the wall first shows its
  time, or a later one. So a time that comes twice counts once, and one that is leapt over runs at the end of the gap.
- any other follows **real time**: it runs at every real instant whose local time matches.
"""

from bisect import bisect_left
from calendar import monthrange
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib.resources import files
from itertools import islice, product
from typing import NamedTuple
from zoneinfo import ZoneInfo

from treadle.errors import InvalidTiming
from treadle.model.clock import Duration
from treadle.model.clock import seconds as in_seconds
from treadle.schedules.fields import (
    DAY_OF_MONTH,
    DAY_OF_WEEK,
    HOUR,
    LAST,
    LAST_OF_MONTH,
    MINUTE,
    MONTH,
    Numbered,
    cut,
    last_workday,
)

YEARS = range(1970, 3000)  # of the time asked about; the rarest date, a weekday's 29 February, comes within 40 years
LONGEST_EXPRESSION = 500  # characters
MOST_TICKS = 1000  # of one preview
SHORTEST_INTERVAL = 1.0  # seconds

MOVED = "moved to the end of the gap"
ONCE = "the first of two"
FIRST, SECOND = "the first of two, both run", "the second of two, both run"

NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

_TICK = timedelta(microseconds=1)
_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
_LEAP_YEAR = 2024


class Tick(NamedTuple):
    """One run to come: the instant in UTC, the same in local time with its offset, and what a reader should know."""

    at: datetime
    local: datetime
    note: str


class Cron(NamedTuple):
    """A cron expression, read. `weekdays` count from Sunday = 0; `either_day`: a day of the month *or* of the week.

    `from_end` are the days counted from the end of the month, `numbered` the weekdays numbered within it.
    """

    text: str
    times: tuple[time, ...]
    days: frozenset[int]
    months: frozenset[int]
    from_end: frozenset[str]
    weekdays: frozenset[int]
    numbered: frozenset[Numbered]
    either_day: bool
    wall_clock: bool

    @classmethod
    def parse(cls, text: str) -> "Cron":
        """Read `minute hour day-of-month month day-of-week`, or a nickname such as `@daily`; else a InvalidTiming.

        >>> Cron.parse("30 2 * * MON-FRI").wall_clock
        True
        """
        if not isinstance(text, str):
            raise InvalidTiming(f"cron: {text!r} is not text; write an expression such as '30 2 * * *'")
        return _parse(text)

    def next_after(self, zone: ZoneInfo, after: datetime) -> datetime:
        """The first run strictly later than `after`, in UTC; wherever one asks from, the runs are the same."""
        return self._next(zone, _in_utc(after))[0]

    def ticks(self, zone: ZoneInfo, after: datetime) -> Iterator[Tick]:
        """The runs later than `after` up to the end of YEARS, each with a note if it falls where clocks are changed."""
        at = _in_utc(after)
        while at.year in YEARS:
            at, wanted = self._next(zone, at)
            local = at.astimezone(zone)
            if local.replace(tzinfo=None) != wanted:
                note = MOVED
            elif local.utcoffset() == local.replace(fold=1 - local.fold).utcoffset():
                note = ""
            elif self.wall_clock:
                note = ONCE
            else:
                note = SECOND if local.fold else FIRST
            yield Tick(at, local, note)

    def _next(self, zone: ZoneInfo, after: datetime) -> tuple[datetime, datetime]:
        """The next run, and the local time it is for."""
        return self._next_on_the_wall(zone, after) if self.wall_clock else self._next_in_real_time(zone, after)

    def _next_on_the_wall(self, zone: ZoneInfo, after: datetime) -> tuple[datetime, datetime]:
        wanted = after.astimezone(zone).replace(tzinfo=None)
        while True:
            wanted = self._first_from(wanted + _TICK)
            at = _reached(zone, wanted)
            if at > after:  # else it comes a second time, and had its run
                return at, wanted

    def _next_in_real_time(self, zone: ZoneInfo, after: datetime) -> tuple[datetime, datetime]:
        since = after + _TICK
        while True:
            offset = _offset(zone, since)
            wanted = self._first_from(since.replace(tzinfo=None) + offset)
            at = (wanted - offset).replace(tzinfo=UTC)
            change = _change(zone, since, at)
            if change is None:
                return at, wanted
            since = change  # the clock is changed before it gets there: look again by the new one

    def _first_from(self, start: datetime) -> datetime:
        """The first local time that matches, `start` or later."""
        day, place = start.date(), bisect_left(self.times, start.time())
        while place == len(self.times) or not self._runs_on(day):
            day, place = self._day_after(day), 0
        return datetime.combine(day, self.times[place])

    def _runs_on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        length = monthrange(day.year, day.month)[1] if self.from_end or self.numbered else 0
        return self.matches(day.day, day.isoweekday() % 7, length)

    def matches(self, day: int, weekday: int, length: int) -> bool:
        """Whether it runs on this day of a month of its own that has `length` days; weekdays count from Sunday = 0."""
        by_month = day in self.days or any(day == _from_end(word, day, weekday, length) for word in self.from_end)
        by_week = weekday in self.weekdays or any(
            weekday == wanted and (day > length - 7 if number == LAST_OF_MONTH else (day - 1) // 7 + 1 == number)
            for wanted, number in self.numbered
        )
        return by_month or by_week if self.either_day else by_month and by_week

    def _day_after(self, day: date) -> date:
        day += _DAY
        while day.month not in self.months:
            day = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
        return day


class Every(NamedTuple):
    """An interval in seconds of real time: changes of the clock do not concern it."""

    seconds: float

    @classmethod
    def parse(cls, value: Duration) -> "Every":
        """Read a duration such as `90s`, `5m` or a timedelta; at least a second."""
        found = in_seconds(value, "every")
        if found < SHORTEST_INTERVAL:
            raise InvalidTiming(f"every: {value!r} is too short; the shortest interval is a second, such as '1s'")
        return cls(found)

    def next_after(self, anchor: datetime, after: datetime) -> datetime:
        """The first of anchor, anchor + 1 interval, anchor + 2 intervals ... strictly later than `after`, in UTC."""
        after, anchor = _in_utc(after), _in_utc(anchor)
        if after < anchor:
            return anchor
        step = timedelta(seconds=self.seconds)
        return anchor + ((after - anchor) // step + 1) * step


def next_after(expression: str, zone: str, after: datetime) -> datetime:
    """The first run of a cron expression in a time zone, strictly later than `after`, in UTC.

    >>> next_after("30 2 * * *", "America/New_York", datetime(2026, 3, 8, tzinfo=UTC)).isoformat()
    '2026-03-08T07:00:00+00:00'
    """
    return Cron.parse(expression).next_after(time_zone(zone), after)


def preview(expression: str, zone: str, after: datetime, n: int = 5) -> list[Tick]:
    """The next `n` runs later than `after`, with notes where clocks are changed."""
    if not 1 <= n <= MOST_TICKS:
        raise InvalidTiming(f"n: {n} runs cannot be shown; it must be from 1 to {MOST_TICKS:,}")
    ticks = Cron.parse(expression).ticks(time_zone(zone), after)
    return list(islice(ticks, n))


def time_zone(name: str) -> ZoneInfo:
    """The IANA time zone of that name; InvalidTiming if there is none.

    Names are those of the tzdata package, so that a schedule stored on one machine can be read on every other.
    """
    if isinstance(name, str) and name in _zone_names():
        return ZoneInfo(name)
    near = get_close_matches(str(name)[:100], _zone_names(), 1)
    hint = f"did you mean {near[0]!r}?" if near else "write an IANA name such as 'Europe/Berlin' or 'UTC'"
    raise InvalidTiming(f"timezone: {cut(name)} is not a known time zone; {hint}")


# ------------------------------------------------------------------------------------------ clocks


def _in_utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise InvalidTiming(f"after: {moment!r} has no time zone; write datetime(..., tzinfo=UTC)")
    if moment.year not in YEARS:
        raise InvalidTiming(f"after: the year {moment.year} is out of range; it must be from {YEARS[0]} to {YEARS[-1]}")
    return moment.astimezone(UTC)


def _reached(zone: ZoneInfo, wanted: datetime) -> datetime:
    """The instant at which the local clock first shows `wanted` or, where it leaps over it, a later time."""
    at = wanted.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if at.astimezone(zone).replace(tzinfo=None) == wanted:
        return at
    # In a gap fold=0 is read by the old clock, which gives a time after the change, and fold=1 by the new, one before.
    return _change(zone, wanted.replace(tzinfo=zone, fold=1).astimezone(UTC), at) or at


def _change(zone: ZoneInfo, since: datetime, until: datetime) -> datetime | None:
    """The first instant later than `since` and no later than `until` at which the clock is changed, if it is."""
    offset = _offset(zone, since)
    while since < until:
        later = min(since + _DAY, until)  # no zone has changed its clock twice in three days since 1970
        if _offset(zone, later) != offset:
            while later - since > _SECOND:
                middle = since + (later - since) / 2
                since, later = (middle, later) if _offset(zone, middle) == offset else (since, middle)
            return later.replace(microsecond=0)
        since = later
    return None


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


@cache
def _zone_names() -> frozenset[str]:
    return frozenset(files("tzdata").joinpath("zones").read_text("utf-8").split())


# ----------------------------------------------------------------------------------------- reading


@lru_cache(maxsize=256)
def _parse(text: str) -> Cron:
    words = _expression(text).split()
    if len(words) != 5:
        raise InvalidTiming(
            f"cron: {cut(text)} has {len(words)} field{'s' * (len(words) != 1)} and must have 5: "
            "minute hour day-of-month month day-of-week, such as '30 2 * * MON-FRI'; none is for seconds or years"
        )
    minute, hour, day, month, weekday = words
    days, from_end = DAY_OF_MONTH.read_days(day)
    weekdays, numbered = DAY_OF_WEEK.read_weekdays(weekday)
    cron = Cron(
        text=text,
        times=tuple(time(h, m) for h in sorted(HOUR.read(hour)) for m in sorted(MINUTE.read(minute))),
        days=days,
        months=MONTH.read(month),
        from_end=from_end,
        weekdays=weekdays,
        numbered=numbered,
        either_day="*" not in day and "*" not in weekday,
        wall_clock="*" not in minute and "*" not in hour,
    )
    longest = max(monthrange(_LEAP_YEAR, month)[1] for month in cron.months)
    if not cron.either_day and not from_end and min(days) > longest:
        raise InvalidTiming(
            f"cron: day of month: {cut(day)} never comes in month {cut(month)}, which has {longest} days at most; "
            f"write a day that exists, such as '0 0 28 2 *'"
        )
    if not _comes(cron):
        raise InvalidTiming(
            f"cron: {cut(text)} never comes: no month has a day that is {cut(day)} and {cut(weekday)}; "
            "write only one of the two, such as '0 9 * * MON#2'"
        )
    return cron


def _comes(cron: Cron) -> bool:
    """Whether there is a day on which it runs, in a month that begins with any weekday."""
    if not cron.from_end and not cron.numbered:
        return True
    lengths = {monthrange(year, month)[1] for year in (_LEAP_YEAR, _LEAP_YEAR + 1) for month in cron.months}
    months = product(sorted(lengths), range(7))
    return any(
        cron.matches(day, (first + day - 1) % 7, length) for length, first in months for day in range(1, length + 1)
    )


def _from_end(word: str, day: int, weekday: int, length: int) -> int:
    """The day of the month that LAST or LAST_WORKDAY is, seen from a day of it."""
    return length if word == LAST else last_workday(length, (weekday + length - day) % 7)


def _expression(text: str) -> str:
    """The five fields, spelled out."""
    if len(text) > LONGEST_EXPRESSION:
        raise InvalidTiming(
            f"cron: {cut(text)} has {len(text):,} characters; the limit is {LONGEST_EXPRESSION}, "
            "use ranges such as '9-17' and steps such as '*/15'"
        )
    word = text.strip().lower()
    if word.startswith("@") and word not in NICKNAMES:
        raise InvalidTiming(f"cron: {cut(text)} is not a valid nickname; write {', '.join(NICKNAMES)} or five fields")
    return NICKNAMES.get(word, text)
