"""The fields of a cron expression: what each may hold, and the values that its text stands for. Pure."""

import re
from typing import NamedTuple

from treadle.errors import InvalidTiming

LAST, LAST_WORKDAY = "L", "LW"
"""Days of the month that are counted from its end: the last one, and the last from Monday to Friday."""

LAST_OF_MONTH = -1
"""In place of a number in `Numbered`: the last one of the month."""

Numbered = tuple[int, int]
"""A weekday from Sunday = 0, and which of the month's it is: the 1st to the 5th, or LAST_OF_MONTH."""


def last_workday(length: int, weekday_of_last: int) -> int:
    """The last day from Monday to Friday of a month; weekdays count from Sunday = 0."""
    return length - {6: 1, 0: 2}.get(weekday_of_last, 0)


class Field(NamedTuple):
    """One of the five fields."""

    name: str
    low: int
    high: int
    longest_step: int
    example: str
    names: tuple[str, ...] = ()
    also: str = ""  # what else it takes, for the message

    def read(self, text: str) -> frozenset[int]:
        """The values that a field such as `1-5,*/10` stands for."""
        return frozenset(value for part in text.split(",") for value in self._part(part))

    def read_days(self, text: str) -> tuple[frozenset[int], frozenset[str]]:
        """The days of the month in a field such as `1,L`: those from its beginning, and LAST or LAST_WORKDAY."""
        parts = text.split(",")
        from_end = frozenset(part.upper() for part in parts if part.upper() in (LAST, LAST_WORKDAY))
        return self._rest([part for part in parts if part.upper() not in from_end]), from_end

    def read_weekdays(self, text: str) -> tuple[frozenset[int], frozenset[Numbered]]:
        """The weekdays in a field such as `1-3,5L,MON#2`: those of every week, and those numbered in the month."""
        parts = text.split(",")
        numbered = {part: found for part in parts if (found := _NUMBERED.fullmatch(part))}
        weekly = self._rest([part for part in parts if part not in numbered])
        monthly = {
            (self._number(found[1], part) % 7, LAST_OF_MONTH if found[2] is None else self._which(found[2], part))
            for part, found in numbered.items()
        }
        return frozenset(value % 7 for value in weekly), frozenset(monthly)

    def _rest(self, parts: list[str]) -> frozenset[int]:
        return self.read(",".join(parts)) if parts else frozenset()

    def _which(self, word: str, part: str) -> int:
        if word not in ("1", "2", "3", "4", "5"):
            raise self._refused(part, "has no number from 1 to 5 after the #")
        return int(word)

    def _part(self, part: str) -> range:
        found = _PART.fullmatch(part)
        if found is None:
            raise self._refused(part, "is empty" if not part else "cannot be read")
        first, last, step = found.groups()
        low = self.low if first == "*" else self._number(first, part)
        if first == "*" or (last is None and step is not None):
            high = self.high
        else:
            high = low if last is None else self._number(last, part)
        if low > high == 0 and self.high == 7:
            high = 7  # FRI-SUN: Sunday ends a week as well as it begins one
        if low > high:
            raise self._refused(part, f"runs backwards (as two: {low}-{self.high},{self.low}-{high})")
        return range(low, high + 1, 1 if step is None else self._step(step, part))

    def _number(self, word: str, part: str) -> int:
        if word.upper() in self.names:
            return self.names.index(word.upper()) + self.low
        if not word.isdecimal():
            raise self._refused(part, "is not a number or a name" if self.names else "is not a number")
        if len(word) > 4 or not self.low <= int(word) <= self.high:
            raise self._refused(part, "is out of range")
        return int(word)

    def _step(self, word: str, part: str) -> int:
        if not word.isdecimal() or len(word) > 4 or not 1 <= int(word) <= self.longest_step:
            instead = "" if self.longest_step > self.high else ", and an interval is the way to a longer one"
            raise self._refused(part, f"has no step from 1 to {self.longest_step}{instead}")
        return int(word)

    def _refused(self, part: str, problem: str) -> InvalidTiming:
        names = f" or {self.names[0]} to {self.names[-1]}" if self.names else ""
        return InvalidTiming(
            f"cron: {self.name}: {cut(part)} {problem}; "
            f"it takes {self.low} to {self.high}{names}, such as {self.example!r}{self.also}"
        )


_PART = re.compile(r"(\*(?!-)|\w+)(?:-(\w+))?(?:/(\w+))?", re.ASCII)
_NUMBERED = re.compile(r"(\w+?)(?:#(\w*)|L)", re.ASCII | re.IGNORECASE)
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
# `*/90` minutes would be once an hour, hardly what was meant; but `*/100,1-7 * MON` is a known way to say first Monday.
MINUTE = Field("minute", 0, 59, 59, "*/15")
HOUR = Field("hour", 0, 23, 23, "9-17")
DAY_OF_MONTH = Field("day of month", 1, 31, 999, "1,15", also=", L for the last day or LW for the last weekday")
MONTH = Field("month", 1, 12, 999, "JAN,JUL", MONTHS)
DAY_OF_WEEK = Field(
    "day of week", 0, 7, 999, "MON-FRI", WEEKDAYS, ", 5L for the last Friday or MON#2 for the second Monday"
)


def cut(value: object) -> str:
    """A value as a message shows it."""
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:59]}…"
