"""Time: the clock that is passed in, and durations and moments as people write them."""

import math
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol, overload

from treadle.errors import InvalidJob, InvalidTiming

Duration = float | int | str | timedelta

_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")
_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
LONGEST_DURATION = 100 * 365 * 86400.0
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """Where the time comes from when the store has no clock of its own."""

    def now(self) -> datetime:
        """The time in UTC."""
        ...


class SystemClock:
    """The machine's clock, except that it stands still rather than go back a little.

    Set back by more than SLIGHT it is followed: processes that share a file must agree on the time, or the one that
    does not would take every lease of the others for past.
    """

    SLIGHT = 1.0  # seconds

    def __init__(self) -> None:
        self._wall = time.time()

    def now(self) -> datetime:
        wall = time.time()
        if self._wall - self.SLIGHT < wall < self._wall:
            wall = self._wall
        self._wall = wall
        return datetime.fromtimestamp(wall, UTC)


@overload
def micros(moment: datetime) -> int: ...
@overload
def micros(moment: datetime | None) -> int | None: ...
def micros(moment: datetime | None) -> int | None:
    """A moment in microseconds since 1970, as stores have it."""
    if moment is None:
        return None
    since = moment - EPOCH
    return since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds


@overload
def from_micros(number: int) -> datetime: ...
@overload
def from_micros(number: int | None) -> datetime | None: ...
def from_micros(number: int | None) -> datetime | None:
    """The moment that is so many microseconds after the beginning of 1970."""
    return None if number is None else EPOCH + timedelta(microseconds=number)


def seconds(value: Duration, what: str) -> float:
    """A duration in seconds: a number, a timedelta, or text such as `90s`, `5m`, `1h30m`, `7d`.

    >>> seconds("1h30m", "timeout")
    5400.0
    """
    result = unbounded_seconds(value, what)
    if not math.isfinite(result) or not 0 <= result <= LONGEST_DURATION:
        raise InvalidTiming(f"{what}: {value!r} is out of range; it must be between 0 and 100 years")
    return result


def unbounded_seconds(value: Duration, what: str) -> float:
    """`seconds` for a caller that has a range of its own: it may be negative, infinite or no number."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InvalidTiming(f"{what}: {value!r} is not a valid duration; write seconds, '5m', '1h30m' or a timedelta")
    if isinstance(value, str):
        return _parse(value, what)
    return float(max(min(value, 2 * LONGEST_DURATION), -1))  # an int may be too large for a float


def span(seconds: float) -> str:
    """A duration as people write it: `15m`, `1h30m`, `1.5s`."""
    words, rest = "", seconds
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        number, rest = divmod(rest, size)
        words += f"{number:g}{unit}" if number else ""
    return f"{words}{rest:g}s" if rest or not words else words


def moment(value: Duration | datetime | None, now: datetime, field: str) -> datetime | None:
    """A moment in UTC that may be given as a duration from `now` on; InvalidJob for one without a time zone."""
    if value is None:
        return None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidJob(field, f"{value!r} has no time zone; write datetime(..., tzinfo=UTC) or a time from now")
        try:
            return value.astimezone(UTC)
        except OverflowError:
            raise InvalidJob(
                field, f"{value!r} is out of range in UTC; it must be between the years 1 and 9999"
            ) from None
    return now + timedelta(seconds=seconds(value, field))


def past_moment(value: Duration | datetime | None, now: datetime, field: str) -> datetime | None:
    """A moment in UTC that may be given as a duration before `now`: `1h` is an hour ago."""
    if value is None or isinstance(value, datetime):
        return moment(value, now, field)
    try:
        return now - timedelta(seconds=seconds(value, field))
    except OverflowError:  # before the year 1
        return datetime.min.replace(tzinfo=UTC)


def _parse(text: str, what: str) -> float:
    compact = text.strip().lower()
    try:
        return float(compact)
    except ValueError:
        pass
    parts = _PART.findall(compact)
    if not parts or "".join(_PART.sub("", compact).split()):
        raise InvalidTiming(f"{what}: {text!r} is not a valid duration; write seconds, '90s', '5m', '1h30m' or '7d'")
    return sum(float(number) * _UNIT[unit] for number, unit in parts)
