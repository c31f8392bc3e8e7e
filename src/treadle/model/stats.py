"""How jobs ended, how long they waited and how long they ran: counts that can be added up over workers and minutes."""

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from treadle.model.change import EventKind
from treadle.model.records import Minute

ENDS = (EventKind.SUCCEEDED, EventKind.FAILED, EventKind.CANCELLED, EventKind.RETRYING)
"""What is counted of the attempts that end; `retrying` are those that failed and will be tried again."""

SHORTEST = 1e-4  # seconds: all that is shorter counts as this
STEPS = 4  # buckets to each doubling, so that a percentile is at most a fifth too high


def bucket(seconds: float) -> int:
    """The number of the bucket that holds this time."""
    return 0 if seconds <= SHORTEST else math.ceil(STEPS * math.log2(seconds / SHORTEST))


def upper_end(number: int) -> float:
    """The longest time that this bucket holds, in seconds."""
    return SHORTEST * math.exp2(number / STEPS)


class Counts:
    """The ends of one task on one queue in some time: how many, and how long they had waited and run."""

    __slots__ = ("ends", "runs", "waits")

    def __init__(self) -> None:
        self.ends: dict[str, int] = {}
        self.waits: dict[int, int] = {}
        self.runs: dict[int, int] = {}

    def note(self, kind: str, waited: float | None, ran: float | None) -> None:
        """One more end."""
        self.ends[kind] = self.ends.get(kind, 0) + 1
        for times, seconds in ((self.waits, waited), (self.runs, ran)):
            if seconds is not None:
                place = bucket(seconds)
                times[place] = times.get(place, 0) + 1

    def add(self, other: "Counts") -> None:
        """Count these as well."""
        _add(self.ends, other.ends)
        _add(self.waits, other.waits)
        _add(self.runs, other.runs)

    def data(self) -> dict[str, Any]:
        """As it is stored."""
        return {"ends": self.ends, "waits": _text_keys(self.waits), "runs": _text_keys(self.runs)}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> "Counts":
        """As it was stored."""
        counts = cls()
        counts.ends = {str(kind): int(number) for kind, number in data["ends"].items()}
        counts.waits = {int(place): int(number) for place, number in data["waits"].items()}
        counts.runs = {int(place): int(number) for place, number in data["runs"].items()}
        return counts


class MinuteStats(NamedTuple):
    """What was settled in one minute, by queue and task."""

    at: datetime
    counts: Mapping[tuple[str, str], Counts]


def percentile(times: Mapping[int, int], share: float) -> float | None:
    """The time within which this share of them lies, in seconds; None if there is none."""
    wanted = share * sum(times.values())
    seen = 0
    for place in sorted(times):
        seen += times[place]
        if seen >= wanted:
            return upper_end(place)
    return None


def hours(since: datetime, until: datetime) -> Iterator[str]:
    """The hours of the clock between these moments, as a Minute names them."""
    hour = since.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    while hour <= until:
        yield hour_of(hour)
        hour += timedelta(hours=1)


def hour_of(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H}"


def by_minute(records: Iterable[Minute]) -> list[MinuteStats]:
    """The records of all workers added up, the oldest minute first."""
    found: dict[datetime, dict[tuple[str, str], Counts]] = {}
    for record in records:
        at = datetime.fromisoformat(f"{record.hour}:{record.minute:02}:00+00:00")
        minute = found.setdefault(at, {})
        for queue, tasks in record.counts.items():
            for task, data in tasks.items():
                minute.setdefault((queue, task), Counts()).add(Counts.read(data))
    return [MinuteStats(at, found[at]) for at in sorted(found)]


def _add(times: dict[Any, int], more: Mapping[Any, int]) -> None:
    for place, number in more.items():
        times[place] = times.get(place, 0) + number


def _text_keys(times: Mapping[int, int]) -> dict[str, int]:
    return {str(place): number for place, number in times.items()}
