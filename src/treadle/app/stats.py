"""How many jobs ended, by the minute, and how long they waited and ran: what workers have counted.

It reads a record a worker and minute, so it costs the same beside a million finished jobs.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from treadle.engines.contract import RecordStore
from treadle.errors import InvalidInput
from treadle.model.clock import Duration, seconds
from treadle.model.records import Minute
from treadle.model.stats import Counts, by_minute, hours, percentile

LONGEST_SPAN = 7 * 86_400.0  # seconds: minutes are kept for so long


class Times(NamedTuple):
    """How long something took, in seconds: within which time a half, 95 and 99 of a hundred were done."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class Throughput(NamedTuple):
    """The ends of some time. `retrying` are attempts that failed and are tried again; `wait` is from due to started."""

    queue: str = "*"
    task: str = "*"
    at: datetime | None = None  # of a minute: when it began
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    retrying: int = 0
    wait: Times = Times()
    run: Times = Times()


class Stats(NamedTuple):
    """What the workers have settled since a moment: in all, by queue and task, and by the minute."""

    at: datetime
    since: datetime
    total: Throughput
    tasks: Sequence[Throughput]
    minutes: Sequence[Throughput]


def stats(engine: RecordStore, span: Duration, *, queue: str | None = None, task: str | None = None) -> Stats:
    """What was settled in this time up to now, maybe only of one queue or task."""
    length = seconds(span, "span")
    if not 60 <= length <= LONGEST_SPAN:
        raise InvalidInput("span", f"{span!r} must be from 1 minute to 7 days, such as '1h'")
    now = engine.now()
    since = (now - timedelta(seconds=length)).replace(second=0, microsecond=0)
    records = [record for hour in hours(since, now) for record in engine.records(Minute, tenant=hour)]
    return counted(records, since, now, _wanted(queue, task))


def counted(
    records: Iterable[Minute],
    since: datetime,
    now: datetime,
    wanted: Callable[[str, str], bool] = lambda queue, task: True,  # noqa: ARG005
) -> Stats:
    """What these records have since then, maybe only of some queues and tasks."""
    total, tasks, minutes = Counts(), dict[tuple[str, str], Counts](), list[Throughput]()
    for minute in by_minute(records):
        if minute.at < since:
            continue
        whole = Counts()
        for place, counts in minute.counts.items():
            if wanted(*place):
                tasks.setdefault(place, Counts()).add(counts)
                whole.add(counts)
        total.add(whole)
        minutes.append(_throughput(whole)._replace(at=minute.at))
    by_task = [_throughput(tasks[place])._replace(queue=place[0], task=place[1]) for place in sorted(tasks)]
    return Stats(now, since, _throughput(total), by_task, minutes)


def _wanted(queue: str | None, task: str | None) -> Callable[[str, str], bool]:
    return lambda on, of: queue in (None, on) and task in (None, of)


def _throughput(counts: Counts) -> Throughput:
    return Throughput(
        succeeded=counts.ends.get("succeeded", 0),
        failed=counts.ends.get("failed", 0),
        cancelled=counts.ends.get("cancelled", 0),
        retrying=counts.ends.get("retrying", 0),
        wait=Times(*(percentile(counts.waits, share) for share in (0.5, 0.95, 0.99))),
        run=Times(*(percentile(counts.runs, share) for share in (0.5, 0.95, 0.99))),
    )
