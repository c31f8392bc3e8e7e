"""Cron expressions of five fields, in UTC: minute, hour, day of the month, month, day of the week (0 and 7: Sunday)."""

from datetime import datetime

RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


class BadCron(ValueError):
    """An expression that is none; the message says what is wrong."""


def matches(expression: str, at: datetime) -> bool:
    """Whether it names this minute. Where both days are restricted, one of them is enough."""
    fields = expression.split()
    if len(fields) != len(RANGES):
        raise BadCron(f"{expression!r} has {len(fields)} fields; write five, such as 0 9 * * 1")
    minutes, hours, days, months, weekdays = (
        _values(field, *bounds) for field, bounds in zip(fields, RANGES, strict=True)
    )
    weekday = at.isoweekday() % 7
    on_day, on_weekday = at.day in days, weekday in weekdays or (weekday == 0 and 7 in weekdays)
    either = not fields[2].startswith("*") and not fields[4].startswith("*")
    day = on_day or on_weekday if either else on_day and on_weekday
    return at.minute in minutes and at.hour in hours and at.month in months and day


def _values(field: str, least: int, most: int) -> set[int]:
    """What a field such as */15, 1-5 or 0,30 stands for."""
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = (str(least), "", str(most)) if span == "*" else span.partition("-")
        try:
            start, by = int(first), int(step or 1)
            end = int(last) if last else most if step else start
        except ValueError:
            raise BadCron(f"{part!r} must be *, a number, a range such as 1-5, or one of these with a step") from None
        if not (least <= start <= end <= most and by > 0):
            raise BadCron(f"{part!r} must lie within {least} and {most}")
        found.update(range(start, end + 1, by))
    return found
