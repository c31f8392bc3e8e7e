"""An oracle for schedules: walk the clock minute by minute, decide by the law which minutes fire, and compare.

It shares no code with treadle.cron. Local times come from zoneinfo alone; what an expression means is written beside it
by hand. Around every change of a zone's clock, every turn of the year and every end of February the chain of answers
must be exactly what the walk finds, and so must the answer to a question asked at any instant between.

python3 dev.py ticks                     every IANA zone, 2020 to 2037
python3 dev.py ticks --zones 40          only so many, spread over the alphabet
python3 dev.py ticks --from 2026 --to 2026
"""

import argparse
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from itertools import pairwise
from random import Random
from typing import NamedTuple
from zoneinfo import ZoneInfo

from treadle.schedules import cron

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
AROUND = 2 * DAY  # walked before and after each change
PROBES = 12  # questions at random instants, for each expression and each window

Subject = Callable[[str, str, datetime], datetime]


class Rule(NamedTuple):
    """An expression and, by hand, what it means; `wall`: the law of the wall clock rules it, not real time."""

    text: str
    wall: bool
    hours: Sequence[int]
    minutes: Sequence[int]
    day: Callable[[datetime], bool] = lambda local: True

    def matches(self, local: datetime) -> bool:
        return local.minute in self.minutes and local.hour in self.hours and self.day(local)


MONDAY, FRIDAY, SUNDAY = 0, 4, 6


def ends_month(local: datetime, days: int = 1) -> bool:
    """Whether the month is over so many days later."""
    return (local + days * DAY).month != local.month


def last_workday(local: datetime) -> bool:
    """From Monday to Friday, and no such day of the month comes after it."""
    later = [local + number * DAY for number in range(1, 5)]
    return local.weekday() <= FRIDAY and not any(day.month == local.month and day.weekday() <= FRIDAY for day in later)


ANY, WHOLE = range(24), range(60)
RULES = (
    Rule("* * * * *", False, ANY, WHOLE),
    Rule("*/15 * * * *", False, ANY, [0, 15, 30, 45]),
    Rule("*/30 0-4 * * *", False, range(5), [0, 30]),
    Rule("@hourly", False, ANY, [0]),
    Rule("45 */2 * * *", False, range(0, 24, 2), [45]),
    Rule("* 2 * * *", False, [2], WHOLE),
    Rule("*/15 2 * * *", False, [2], [0, 15, 30, 45]),
    Rule("30 * * * SUN", False, ANY, [30], lambda local: local.weekday() == SUNDAY),
    Rule("*/20 0,1 * MAR,APR,SEP-NOV *", False, [0, 1], [0, 20, 40], lambda local: local.month in (3, 4, 9, 10, 11)),
    Rule("*/10 23 31 12 *", False, [23], range(0, 60, 10), lambda local: (local.month, local.day) == (12, 31)),
    Rule("@daily", True, [0], [0]),
    Rule("30 0 * * *", True, [0], [30]),
    Rule("15 1 * * *", True, [1], [15]),
    Rule("30 1 * * *", True, [1], [30]),
    Rule("0 2 * * *", True, [2], [0]),
    Rule("30 2 * * *", True, [2], [30]),
    Rule("0 3 * * *", True, [3], [0]),
    Rule("59 23 * * *", True, [23], [59]),
    Rule("0,30 2 * * *", True, [2], [0, 30]),
    Rule("0-59 1 * * *", True, [1], WHOLE),
    Rule("0-59/15 0-23 * * *", True, ANY, [0, 15, 30, 45]),
    Rule("5-55/10 0-3,22,23 * * *", True, [0, 1, 2, 3, 22, 23], [5, 15, 25, 35, 45, 55]),
    Rule("30 2 * * SUN", True, [2], [30], lambda local: local.weekday() == SUNDAY),
    Rule("@weekly", True, [0], [0], lambda local: local.weekday() == SUNDAY),
    Rule("@monthly", True, [0], [0], lambda local: local.day == 1),
    Rule("30 1 13,25-31 * 5", True, [1], [30], lambda local: local.day in {13, *range(25, 32)} or local.weekday() == 4),
    Rule("0 0 */2 * 1-5", True, [0], [0], lambda local: local.day % 2 == 1 and local.weekday() <= FRIDAY),
    Rule("30 0,2 */100,1-7 * MON", True, [0, 2], [30], lambda local: local.day <= 7 and local.weekday() == MONDAY),
    Rule("0 12 29 2 *", True, [12], [0], lambda local: (local.month, local.day) == (2, 29)),
    Rule("30 2 L * *", True, [2], [30], ends_month),
    Rule("*/30 1,2 L * *", False, [1, 2], [0, 30], ends_month),
    Rule("0 3 LW * *", True, [3], [0], last_workday),
    Rule("0 2 * * 5L", True, [2], [0], lambda local: local.weekday() == FRIDAY and ends_month(local, 7)),
    Rule("30 1 * * SUNL", True, [1], [30], lambda local: local.weekday() == SUNDAY and ends_month(local, 7)),
    Rule("15 2 * * 7#2", True, [2], [15], lambda local: local.weekday() == SUNDAY and 8 <= local.day <= 14),
    Rule(
        "0 * * * SUN#5,0#1",
        False,
        ANY,
        [0],
        lambda local: local.weekday() == SUNDAY and (local.day <= 7 or local.day > 28),
    ),
    Rule(
        "59 23 1,L 2,12 MON#4",
        True,
        [23],
        [59],
        lambda local: (
            local.month in (2, 12)
            and (local.day == 1 or ends_month(local) or (local.weekday() == MONDAY and 22 <= local.day <= 28))
        ),
    ),
    Rule("@yearly", True, [0], [0], lambda local: (local.month, local.day) == (1, 1)),
)


class Difference(NamedTuple):
    """An answer that the walk contradicts; `wanted` is None when the run lies past the window."""

    zone: str
    expression: str
    asked: datetime
    wanted: datetime | None
    answered: datetime

    def __str__(self) -> str:
        return f"{self.zone}, {self.expression!r}, after {self.asked}: {self.answered}, not {self.wanted or 'later'}"


class Window(NamedTuple):
    """A stretch of time; `middle` is what makes it telling."""

    start: datetime
    middle: datetime
    end: datetime


class Tally(NamedTuple):
    windows: int
    answers: int
    differences: list[Difference]


def zone_names() -> list[str]:
    return sorted(files("tzdata").joinpath("zones").read_text("utf-8").split())


def changes(zone: ZoneInfo, first: int, last: int) -> list[datetime]:
    """Every instant of those years at which the zone's offset changes, found by halving days."""
    found = []
    here = datetime(first, 1, 1, tzinfo=UTC)
    while here.year <= last:
        low, high = here, here + DAY
        if low.astimezone(zone).utcoffset() != high.astimezone(zone).utcoffset():
            while high - low > MINUTE:
                middle = low + (high - low) // 2 // MINUTE * MINUTE
                same = middle.astimezone(zone).utcoffset() == low.astimezone(zone).utcoffset()
                low, high = (middle, high) if same else (low, middle)
            found.append(high)
        here += DAY
    return found


def windows(zone: ZoneInfo, first: int, last: int) -> Iterator[Window]:
    turns = [datetime(year, *day, tzinfo=UTC) for year in range(first, last + 1) for day in ((2, 28), (12, 31))]
    for middle in changes(zone, first, last) + turns:
        yield Window(middle - AROUND, middle, middle + AROUND)


def walk(zone: ZoneInfo, window: Window) -> tuple[list[tuple[datetime, datetime]], dict[datetime, datetime]]:
    """Every minute as (local, UTC); and for every local minute the instant at which a wall-clock schedule runs it."""
    minutes = int((window.end - window.start) / MINUTE)
    every = []
    for number in range(minutes + 1):
        instant = window.start + number * MINUTE
        every.append((instant.astimezone(zone).replace(tzinfo=None), instant))
    once: dict[datetime, datetime] = {every[0][0]: every[0][1]}
    for (before, _), (local, instant) in pairwise(every):
        missing = before + MINUTE
        while missing < local:
            once.setdefault(missing, instant)
            missing += MINUTE
        once.setdefault(local, instant)
    return every, once


def firings(rule: Rule, every: list[tuple[datetime, datetime]], once: dict[datetime, datetime]) -> list[datetime]:
    if rule.wall:
        return sorted({instant for local, instant in once.items() if rule.matches(local)})
    return [instant for local, instant in every if rule.matches(local)]


def compare(name: str, first: int, last: int, subject: Subject = cron.next_after) -> Tally:
    """Every answer of one zone against the walk."""
    zone = ZoneInfo(name)
    stretches = list(windows(zone, first, last))
    answers = 0
    differences = []
    for window in stretches:
        every, once = walk(zone, window)
        for rule in RULES:
            wanted = firings(rule, every, once)
            for asked, expected in questions(window, wanted, Random(f"{window.middle} {rule.text}")):
                answers += 1
                answered = subject(rule.text, name, asked)
                right = answered > window.end if expected is None else answered == expected
                if not right or answered.utcoffset() != timedelta():
                    differences.append(Difference(name, rule.text, asked, expected, answered))
    return Tally(len(stretches), answers, differences)


def questions(window: Window, wanted: list[datetime], random: Random) -> Iterator[tuple[datetime, datetime | None]]:
    """Instants to ask from, and the run that must be answered; None is one past the window.

    The start, then every run in turn (a chain), then any instants near the middle.
    """
    wanted = [instant for instant in wanted if instant > window.start]
    starts = [window.start, *wanted]
    near = [window.middle + random.uniform(-4, 4) * HOUR for _ in range(PROBES)]
    for asked in starts + near:
        place = bisect_right(wanted, asked)
        yield asked, wanted[place] if place < len(wanted) else None


def alike(names: Sequence[str], first: int, last: int) -> dict[tuple[object, ...], list[str]]:
    """The zones by what their clocks do in those years: many names share one history."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for name in names:
        zone = ZoneInfo(name)
        instants = [datetime(first, 1, 1, tzinfo=UTC) - AROUND, *changes(zone, first, last)]
        history = tuple((instant, instant.astimezone(zone).utcoffset()) for instant in instants)
        groups.setdefault(history, []).append(name)
    return groups


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zones", type=int, metavar="N", help="only so many zones, spread over the alphabet")
    parser.add_argument("--from", dest="first", type=int, default=2020, metavar="YEAR")
    parser.add_argument("--to", dest="last", type=int, default=2037, metavar="YEAR")
    given = parser.parse_args(arguments)
    names, started = zone_names(), time.monotonic()
    if given.zones is not None:
        names = names[:: max(1, len(names) // max(1, given.zones))][: given.zones]
    groups = list(alike(names, given.first, given.last).values())
    print(f"{len(names)} zones with {len(groups)} histories, {given.first} to {given.last}; {len(RULES)} expressions")
    stretches = answers = failed = 0
    for number, group in enumerate(groups, 1):
        tally = compare(group[0], given.first, given.last)
        stretches, answers = stretches + tally.windows, answers + tally.answers
        failed += len(tally.differences)
        for difference in tally.differences[:5]:
            print(f"  DIFFERENT {difference}")
        if number % 10 == 0 or number == len(groups) or tally.differences:
            spent = time.monotonic() - started
            print(f"{number:>5} histories, {group[0]}: {answers:,} answers, {failed} wrong, {spent:.0f} s", flush=True)
    verdict = "PASS" if answers and not failed else "FAIL"
    print(f"{verdict}: {answers:,} answers in {stretches:,} windows, {failed:,} wrong")
    return int(verdict == "FAIL")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
