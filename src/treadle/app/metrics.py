"""The numbers of a store as Prometheus reads them. Each is of the store as a whole: ask one server, not every one.

It reads a bounded part of the waiting and running jobs, and the records that workers write each minute. So it costs the
same beside a million finished jobs.
"""

import threading
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from treadle.app.exposition import Labels, Metric, exposition
from treadle.app.stats import Stats, Times, counted
from treadle.app.status import Status
from treadle.model.records import Minute
from treadle.model.stats import ENDS, Counts, hours

if TYPE_CHECKING:
    from treadle.app.oversight import Oversight

SPAN = timedelta(minutes=5)  # of waits and run times
LATE = timedelta(minutes=15)  # how much later than a minute its counts may be written and still be seen
OVERDUE = 60.0  # seconds after which a schedule that has not fired is overdue
MAX_OVERDUE = 1_000  # schedules that are counted
QUANTILES = {"0.5": 0, "0.95": 1, "0.99": 2}


class StoreMetrics:
    """What is measured of a store. It keeps the totals of ends since it was made, because a counter must only grow."""

    def __init__(self) -> None:
        self._ends = EndTotals()
        self._lock = threading.Lock()

    def exposition(self, app: "Oversight") -> str:
        """All metrics, in Prometheus' text format."""
        return exposition(self.metrics(app))

    def metrics(self, app: "Oversight") -> list[Metric]:
        """What is measured, each with its values now."""
        status = app.status()
        engine, now = app.engine, status.at
        with self._lock:
            since = self._ends.since(now)
            records = [record for hour in hours(since, now) for record in engine.records(Minute, tenant=hour)]
            ends = self._ends.add(records, now)
        recent = counted(records, (now - SPAN).replace(second=0, microsecond=0), now)
        late = [one for one in engine.due(limit=MAX_OVERDUE, ahead=-OVERDUE) if one.next_at is not None]
        return [
            Metric("treadle_up", "Whether the store answers.", [({}, 1.0)]),
            Metric("treadle_problems", "What needs an operator now.", [({}, float(len(status.problems)))]),
            *_jobs(status),
            Metric("treadle_jobs_ended_total", "Attempts that ended, since this server started.", ends, "counter"),
            _times("treadle_wait_seconds", "From due to started, in the last 5 minutes.", recent, "wait"),
            _times("treadle_run_seconds", "How long attempts ran, in the last 5 minutes.", recent, "run"),
            Metric("treadle_paused", "Pauses that hold.", [({}, float(len(status.pauses)))]),
            Metric("treadle_schedules_overdue", "Schedules that should have fired a minute ago.", [({}, len(late))]),
            *_workers(status),
        ]


def _jobs(status: Status) -> list[Metric]:
    groups = [({"queue": group.queue, "task": group.task}, group) for group in status.tasks]
    queues = [({"queue": group.queue}, group) for group in status.queues]
    ages = [(labels, (status.at - one.oldest).total_seconds() if one.oldest else 0.0) for labels, one in queues]
    return [
        Metric("treadle_jobs_waiting", "Pending jobs.", [(labels, one.waiting) for labels, one in groups]),
        Metric("treadle_jobs_due", "Pending jobs that are due.", [(labels, one.due) for labels, one in groups]),
        Metric("treadle_jobs_running", "Running jobs.", [(labels, one.running) for labels, one in groups]),
        Metric(
            "treadle_queue_capped",
            "Whether a queue holds more waiting jobs than were counted.",
            [(labels, float(one.more)) for labels, one in queues],
        ),
        Metric("treadle_oldest_due_seconds", "How long the oldest due job of a queue has waited.", ages),
        Metric("treadle_jobs_failing", "Jobs that wait for a retry, by the type of their error.", _retrying(status)),
    ]


def _retrying(status: Status) -> list[tuple[Labels, float]]:
    return [({"error": one.type}, one.retrying) for one in status.errors if one.retrying]


def _workers(status: Status) -> list[Metric]:
    workers = [({"worker": worker.name}, worker) for worker in status.workers]
    ages = [(labels, (status.at - one.seen_at).total_seconds()) for labels, one in workers]
    return [
        Metric("treadle_workers", "Live workers.", [({}, len(workers))]),
        Metric("treadle_worker_slots", "Slots of a worker.", [(labels, one.concurrency) for labels, one in workers]),
        Metric("treadle_worker_busy", "Busy slots of a worker.", [(labels, one.busy) for labels, one in workers]),
        Metric("treadle_worker_seen_seconds", "How long ago a worker was heard of.", ages),
    ]


def _times(name: str, text: str, recent: Stats, kind: str) -> Metric:
    values = []
    for one in recent.tasks:
        times: Times = getattr(one, kind)
        for quantile, place in QUANTILES.items():
            if (seconds := times[place]) is not None:
                values.append(({"queue": one.queue, "task": one.task, "quantile": quantile}, seconds))
    return Metric(name, text, values)


class EndTotals:
    """Adds up what is new in the minutes' records. What was there at its first look counts as 0, and is listed."""

    def __init__(self) -> None:
        self._looked_at: datetime | None = None
        self._seen: dict[tuple[str, int, str], dict[tuple[str, str, str], int]] = {}
        self._totals: dict[tuple[str, str, str], int] = {}

    def since(self, now: datetime) -> datetime:
        """From when on records are to be read."""
        return min(self._looked_at or now, now) - LATE

    def add(self, records: Iterable[Minute], now: datetime) -> Sequence[tuple[Labels, float]]:
        """The totals, with these records."""
        first, self._looked_at = self._looked_at is None, now
        seen: dict[tuple[str, int, str], dict[tuple[str, str, str], int]] = {}
        for record in records:
            key = (record.hour, record.minute, record.worker)
            seen[key] = numbers = _numbers(record)
            before = numbers if first else self._seen.get(key, {})
            for place, number in numbers.items():
                self._totals[place] = self._totals.get(place, 0) + max(0, number - before.get(place, 0))
        self._seen = seen
        return [
            ({"queue": queue, "task": task, "outcome": outcome}, number)
            for (queue, task, outcome), number in sorted(self._totals.items())
        ]


def _numbers(record: Minute) -> dict[tuple[str, str, str], int]:
    found = {}
    for queue, tasks in record.counts.items():
        for task, data in tasks.items():
            ends = Counts.read(data).ends
            found.update({(queue, task, kind.value): ends.get(kind, 0) for kind in ENDS})
    return found
