"""The life of a job as figures for an SVG: when it waited, when it ran, and how each attempt ended."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from treadle.server.dashboard.words import duration, moment

MOST_SHOWN = 40  # attempts that are drawn
LEAST = 0.7  # per cent: a shorter attempt is drawn so wide
ROOM = 3.0  # per cent that the number of an attempt needs
STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
MINUTE, DAY = 60, 86400
CSS = {"running": "go", "crashed": "gone", "failed": "no", "retrying": "no"}
OUTCOMES = {"retrying": "failed", "succeeded": "succeeded", "released": "was handed back", "snoozed": "snoozed"}

Attempt = Mapping[str, Any]


class Run(NamedTuple):
    """An attempt: its bar, and what its number stands beside."""

    number: int | None
    x: float
    width: float
    css: str
    label: bool
    title: str


class Wait(NamedTuple):
    """A time between two attempts; what is said of it, if there is room."""

    x1: float
    x2: float
    middle: float
    text: str


class AxisMark(NamedTuple):
    x: float
    text: str


class Timeline(NamedTuple):
    runs: Sequence[Run]
    waits: Sequence[Wait]
    ticks: Sequence[AxisMark]
    now: float | None
    sentence: str  # what is drawn, in words
    summary: str
    more: int  # attempts that are not drawn


def timeline(job: Mapping[str, Any], attempts: Sequence[Attempt], at: str) -> Timeline | None:
    """What is drawn of a job; None if nothing has happened to it yet."""
    first, now = moment(job["created_at"]), moment(at)
    assert first is not None  # noqa: S101 - the API always says them
    assert now is not None  # noqa: S101
    spans = [span for one in attempts[-MOST_SHOWN:] if (span := _span(one, now)) is not None]
    if not spans:
        return None
    ends = [*(end for _, _, end in spans), moment(job["finished_at"]) or now]
    due = moment(job["due_at"]) if job["state"] == "pending" else None
    last = max([*ends, *([due] if due and due - now < timedelta(days=2) else [])])
    scale = _Scale(first, max(last, first + timedelta(milliseconds=10)))
    runs, waits = _drawn(spans, scale, first)
    if job["state"] == "pending":
        waits.append(_wait(spans[-1][2], last, scale))
    ran = sum((end - begin).total_seconds() for _, begin, end in spans if begin is not None)
    over = job["finished_at"] is not None
    whole_story = len(spans) == len(attempts) and attempts[0]["number"] in (None, 1)
    known = all(begin is not None for _, begin, _ in spans) and whole_story
    whole = duration(((ends[-1] if over else now) - first).total_seconds())
    since, ran_for = f"created {whole} ago", f"{'ran' if known else 'ran at least'} {duration(ran)} of it"
    summary = f"{f'created to end {whole}' if over else since}; {ran_for}"
    inside = not over and now < scale.last + timedelta(seconds=1)
    shown = round(scale.at(now), 2) if inside else None
    return Timeline(
        runs, waits, scale.ticks(), shown, _sentence(attempts, first, now), summary, len(attempts) - len(spans)
    )


class _Scale:
    """Where a moment lies, in per cent."""

    def __init__(self, first: datetime, last: datetime) -> None:
        self.first, self.last = first, last
        self._whole = (last - first).total_seconds()

    def at(self, when: datetime) -> float:
        return min(100.0, max(0.0, 100 * (when - self.first).total_seconds() / self._whole))

    def ticks(self) -> list[AxisMark]:
        """Round moments, at most five between the two ends."""
        step = next((step for step in STEPS if self._whole / step <= 5), None)
        step = step or DAY * max(1, round(self._whole / DAY / 4))
        words = (
            "%H:%M:%S" if step < 60 else "%H:%M" if self._whole < DAY else "%-d %b %H:%M" if step < DAY else "%-d %b"
        )
        begin = self.first.timestamp() // step * step + step
        found = []
        for place in range(6):
            when = datetime.fromtimestamp(begin + place * step, self.first.tzinfo)
            if when <= self.last:
                found.append(AxisMark(round(self.at(when), 2), f"{when:{words}}"))
        return found


def _span(one: Attempt, now: datetime) -> tuple[Attempt, datetime | None, datetime] | None:
    """An attempt, when it began if that was kept, and its end; None if nothing of it was kept."""
    begin, end = moment(one["started_at"]) or moment(one["claimed_at"]), moment(one["ended_at"])
    if end is None and one["outcome"] == "running":
        end = max(now, begin) if begin else now
    if end is None:
        return None
    return one, begin, end


def _drawn(
    spans: Sequence[tuple[Attempt, datetime | None, datetime]], scale: _Scale, first: datetime
) -> tuple[list[Run], list[Wait]]:
    runs: list[Run] = []
    waits: list[Wait] = []
    before, taken = first, -ROOM
    for one, begin, end in spans:
        began = begin or end
        waits.append(_wait(before, began, scale))
        x, width = scale.at(began), max(LEAST, scale.at(end) - scale.at(began))
        x = min(x, 100 - width)
        label = one["number"] is not None and x + width / 2 - ROOM / 2 >= taken
        if label:
            taken = x + width / 2 + ROOM / 2
        runs.append(
            Run(one["number"], round(x, 2), round(width, 2), CSS.get(one["outcome"], "ok"), label, account(one))
        )
        before = end
    return runs, [wait for wait in waits if wait.x2 - wait.x1 > LEAST]


def _wait(begin: datetime, end: datetime, scale: _Scale) -> Wait:
    x1, x2 = scale.at(begin), scale.at(end)
    text = f"waits {duration((end - begin).total_seconds())}" if x2 - x1 > 18 else ""
    return Wait(round(x1, 2), round(x2, 2), round((x1 + x2) / 2, 2), text)


def took(one: Attempt) -> float | None:
    """How long an attempt ran, in seconds, if that was kept."""
    begin, end = moment(one["started_at"]) or moment(one["claimed_at"]), moment(one["ended_at"])
    return (end - begin).total_seconds() if begin and end else None


def account(one: Attempt) -> str:
    """What became of an attempt, as a sentence."""
    number = "An attempt" if one["number"] is None else f"Attempt {one['number']}"
    begin, end, lasted = moment(one["started_at"]), moment(one["ended_at"]), took(one)
    if one["outcome"] == "running":
        return f"{number} runs" + (f" since {begin:%H:%M:%S} UTC" if begin else "")
    if one["outcome"] is None:
        return f"{number} was not kept"
    when = f" at {end:%H:%M:%S} UTC" if end else ""
    return f"{number} {OUTCOMES.get(one['outcome'], one['outcome'])}{when}" + (
        "" if lasted is None else f" after {duration(lasted)}"
    )


def _sentence(attempts: Sequence[Attempt], first: datetime, now: datetime) -> str:
    shown = [account(one) for one in attempts[-8:]]
    number = attempts[-len(shown)]["number"]
    earlier = len(attempts) - len(shown) if number is None else number - 1
    more = f"{earlier} earlier attempts. " if earlier else ""
    day = "" if first.date() == now.date() else f" on {first:%-d %B %Y}"
    return f"Created at {first:%H:%M:%S} UTC{day}. {more}{'. '.join(shown)}."
