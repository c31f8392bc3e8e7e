"""A cron expression in words, so that people see what they wrote."""

from collections.abc import Iterable, Sequence

from treadle.schedules.cron import Cron
from treadle.schedules.fields import LAST, LAST_OF_MONTH

MOST_TIMES = 6  # of day that are told one by one

_WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
           "November", "December")  # fmt: skip
_ORDINALS = {1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth", LAST_OF_MONTH: "last"}
_SMALL_RUN = 2  # so many in a row are named one by one


def explain(expression: str) -> str:
    """What a cron expression means, in words; ConfigError if it means nothing.

    >>> explain("0 9 * * 1#2")
    'at 09:00 on the second Monday of the month'
    >>> explain("*/15 9-17 * * MON-FRI")
    'every 15 minutes from 09:00 to 17:59, Monday to Friday'
    """
    cron = Cron.parse(expression)
    minutes = sorted({time.minute for time in cron.times})
    hours = sorted({time.hour for time in cron.times})
    when, which, months = _times(minutes, hours), _days(cron), _months(cron)
    if not which and not months and when.startswith("at ") and "every hour" not in when:
        which = " every day"
    return f"{when}{which}{months}"


# -------------------------------------------------------------------------------------- the time of day


def _times(minutes: list[int], hours: list[int]) -> str:
    if len(minutes) * len(hours) <= MOST_TIMES:
        return f"at {_list(f'{hour:02}:{minute:02}' for hour in hours for minute in minutes)}"
    if minutes == [0]:
        return _hourly(hours)
    step = _step(minutes, 60)
    if step is None:
        named = f"at minute{'s' * (len(minutes) > 1)} {_runs(minutes)} of "
        return named + ("every hour" if len(hours) == 24 else f"the hours {_runs(hours)}")
    every = "every minute" if step == 1 else f"every {step} minutes"
    if len(hours) == 24:
        return every
    if len(hours) == 1 or _in_a_row(hours):
        return f"{every} from {hours[0]:02}:00 to {hours[-1]:02}:59"
    return f"{every} of the hours {_runs(hours)}"


def _hourly(hours: list[int]) -> str:
    step = _step(hours, 24)
    if step is not None:
        return "every hour" if step == 1 else f"every {step} hours, from 00:00 on"
    if _in_a_row(hours):
        return f"every hour from {hours[0]:02}:00 to {hours[-1]:02}:00"
    return f"at the hours {_runs(hours)}"


def _step(values: list[int], whole: int) -> int | None:
    """The step with which these go evenly round the whole, from 0 on."""
    step = values[1] - values[0] if len(values) > 1 else whole
    return step if step < whole and whole % step == 0 and values == list(range(0, whole, step)) else None


# ------------------------------------------------------------------------------------- days and months


def _days(cron: Cron) -> str:
    by_month = len(cron.days) < 31 or bool(cron.from_end)
    by_week = len(cron.weekdays) < 7
    if cron.either_day:
        return f" on {_of_month(cron)}, and also {_of_week(cron)}" if by_month and by_week else ""
    if by_month and by_week:
        return f"{_joined(_of_week(cron))}, if it falls on {_of_month(cron)}"
    if by_month:
        return f" on {_of_month(cron)}"
    if not by_week:
        return ""
    return _joined(_of_week(cron))


def _joined(words: str) -> str:
    return f" {words}" if words.startswith("on ") else f", {words}"


def _of_month(cron: Cron) -> str:
    days = sorted(cron.days)
    named = [f"day{'s' * (len(days) > 1)} {_runs(days)}"] if days else []
    named += [
        "the last day" if word == LAST else "the last weekday, Monday to Friday," for word in sorted(cron.from_end)
    ]
    return f"{_list(named)} of the month"


def _of_week(cron: Cron) -> str:
    days = _from_monday(cron.weekdays)
    named = []
    if days and _in_a_row(days) and len(days) > _SMALL_RUN:
        named.append(f"{_weekday(days[0])} to {_weekday(days[-1])}")
    elif days:
        named.append(f"on {_list(_weekday(day) for day in days)}")
    ordered = sorted(cron.numbered, key=lambda one: (one[1] == LAST_OF_MONTH, one[1], one[0]))
    which = [f"the {_ORDINALS[number]} {_WEEKDAYS[weekday]}" for weekday, number in ordered]
    named += [f"on {_list(which)} of the month"] if which else []
    return " and ".join(named)


def _months(cron: Cron) -> str:
    months = sorted(cron.months)
    if len(months) == 12:
        return ""
    if _in_a_row(months) and len(months) > _SMALL_RUN:
        return f", from {_MONTHS[months[0] - 1]} to {_MONTHS[months[-1] - 1]}"
    return f" in {_list(_MONTHS[month - 1] for month in months)}"


def _from_monday(weekdays: Iterable[int]) -> list[int]:
    """Sunday as 7."""
    return sorted(day or 7 for day in weekdays)


def _weekday(day: int) -> str:
    return _WEEKDAYS[day % 7]


# ----------------------------------------------------------------------------------------------- lists


def _in_a_row(values: Sequence[int]) -> bool:
    return len(values) > 1 and values[-1] - values[0] == len(values) - 1


def _runs(values: list[int]) -> str:
    """Numbers, with those in a row as `1 to 7`."""
    found: list[list[int]] = []
    for value in values:
        if found and value == found[-1][-1] + 1:
            found[-1].append(value)
        else:
            found.append([value])
    named = []
    for run in found:
        named += [f"{run[0]} to {run[-1]}"] if len(run) > _SMALL_RUN else [str(value) for value in run]
    return _list(named)


def _list(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
