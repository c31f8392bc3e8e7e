"""How fast queues go: what ended by the minute in the last ten, and how that changed over the last thirty.

It reads the records that workers write each minute, of two hours at most.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from treadle.engines.contract import RecordStore
from treadle.model.records import Minute
from treadle.model.stats import Counts, by_minute, hours, percentile

RATES_OVER, MINUTES_SHOWN, MINUTES_READ = 10, 30, 60


class Rate(NamedTuple):
    """How many jobs ended in a minute, on average over the last 10: in all ("*"), or of one queue.

    `wait` is within how many seconds 95 of 100 had started. `done` and `bad` are how many jobs were done and how many
    attempts failed in each of the last 30 minutes, the oldest first. `failing_since` is the minute since which no fewer
    attempts failed than jobs were done, within the last hour; None if it does not fail now.
    """

    queue: str
    ended: float = 0.0
    failed: float = 0.0
    retrying: float = 0.0
    wait: float | None = None
    done: Sequence[int] = ()
    bad: Sequence[int] = ()
    failing_since: datetime | None = None

    @property
    def failing(self) -> bool:
        """Whether lately no fewer attempts failed than jobs were done."""
        return 0 < self.failed + self.retrying >= self.ended - self.failed


class Rates(NamedTuple):
    """The rates of all queues together, and of each; `minutes` is how many jobs ended in each of the last 10."""

    total: Rate
    queues: Sequence[Rate]
    minutes: Sequence[int]


class _Tally:
    def __init__(self) -> None:
        self.lately = Counts()  # of the last 10 minutes
        self.done, self.bad, self.ended = ([0] * MINUTES_READ for _ in range(3))

    def add(self, counts: Counts, place: int, *, lately: bool) -> None:
        if lately:
            self.lately.add(counts)
        if 0 <= place < MINUTES_READ:
            done, failed = counts.ends.get("succeeded", 0), counts.ends.get("failed", 0)
            self.done[place] += done
            self.bad[place] += failed + counts.ends.get("retrying", 0)
            self.ended[place] += done + failed + counts.ends.get("cancelled", 0)

    def rate(self, queue: str, this: datetime) -> Rate:
        ends = self.lately.ends
        failed, retrying = ends.get("failed", 0), ends.get("retrying", 0)
        ended = failed + ends.get("succeeded", 0) + ends.get("cancelled", 0)
        wait = percentile(self.lately.waits, 0.95)
        done, bad = self.done[-MINUTES_SHOWN:], self.bad[-MINUTES_SHOWN:]
        found = Rate(queue, ended / RATES_OVER, failed / RATES_OVER, retrying / RATES_OVER, wait, done, bad)
        return found._replace(failing_since=self._failing_since(this)) if found.failing else found

    def _failing_since(self, this: datetime) -> datetime | None:
        """The first minute of those in which no fewer attempts failed than jobs were done, up to the last `this`."""
        since = None
        for ago, (done, bad) in enumerate(zip(reversed(self.done), reversed(self.bad), strict=True)):
            if done > bad:
                break
            if bad:
                since = this - timedelta(minutes=ago)
        return since


def rates(engine: RecordStore, now: datetime) -> Rates:
    """How fast each queue goes; of one in which nothing ended there is none."""
    this = now.replace(second=0, microsecond=0)
    since, recent = this - timedelta(minutes=MINUTES_READ), this - timedelta(minutes=RATES_OVER)
    records = [record for hour in hours(since, now) for record in engine.records(Minute, tenant=hour)]
    total, queues = _Tally(), dict[str, _Tally]()
    for minute in by_minute(records):
        if minute.at < since:
            continue
        place = MINUTES_READ - 1 - round((this - minute.at).total_seconds() / 60)
        for (queue, _), counts in minute.counts.items():
            for tally in (total, queues.setdefault(queue, _Tally())):
                tally.add(counts, place, lately=minute.at >= recent)
    found = [queues[queue].rate(queue, this) for queue in sorted(queues)]
    return Rates(total.rate("*", this), found, total.ended[-RATES_OVER:])
