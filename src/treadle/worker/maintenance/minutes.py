"""What this worker has settled, by the minute, for the operators' rates and percentiles."""

import secrets
import threading
from datetime import datetime, timedelta

from treadle.engines.contract import RecordStore
from treadle.engines.values import OVERWRITE
from treadle.model.records import Minute
from treadle.model.stats import Counts, hour_of, hours
from treadle.worker.attempt import Attempt
from treadle.worker.config import WorkerConfig

MINUTES_INTERVAL = 10.0  # seconds between two writes, if there is something to write
PRUNE_MINUTES_INTERVAL = 3600.0
KEPT = timedelta(days=7)
LOOKED_AT = timedelta(days=2)  # older hours that are looked at for what nobody has deleted

Open = dict[tuple[str, str], Counts]


class Minutes:
    """Counts the ends of this worker's attempts, and keeps what a crash would cost to seconds.

    The engine thread calls all of it. A minute is written anew while it lasts: the last write has all of it.
    """

    def __init__(self, engine: RecordStore, config: WorkerConfig) -> None:
        self._engine = engine
        self._worker = f"{config.name} {secrets.token_hex(4)}"  # two workers of one name count apart
        self._open: dict[datetime, Open] = {}
        self._written: set[datetime] = set()
        self._past: Open = {}  # what minutes that are over have counted
        self._folding = threading.Lock()

    def note(self, attempt: Attempt, kind: str, at: datetime) -> None:
        """An attempt of this worker has ended so."""
        claimed = attempt.claimed
        began = attempt.started_at
        waited = None if began is None else began.timestamp() - claimed.due
        place = at.replace(second=0, microsecond=0)
        minute = self._open.get(place)
        if minute is None:
            minute = self._open[place] = {}
        counts = minute.get((claimed.queue, claimed.task))
        if counts is None:
            counts = minute[claimed.queue, claimed.task] = Counts()
        counts.note(kind, waited, attempt.run_time)
        self._written.discard(place)

    def write(self) -> float:
        """Write what is new; in how many seconds to do it again."""
        for at, counted in list(self._open.items()):
            if at not in self._written:
                self._engine.save(self._record(at, counted), before=OVERWRITE)
                self._written.add(at)
        newest = max(self._open, default=None)
        kept = {at: counted for at, counted in self._open.items() if at == newest or at not in self._written}
        with self._folding:
            for at in self._open.keys() - kept.keys():
                _add(self._past, self._open[at])
            self._open = kept
        self._written &= kept.keys()
        return MINUTES_INTERVAL

    def totals(self) -> Open:
        """All that was counted since the start, by queue and task; for any thread."""
        found: Open = {}
        with self._folding:  # a minute is either open or past, or a total would fall
            for counted in (self._past, *list(self._open.values())):
                _add(found, counted)
        return found

    def prune(self) -> float:
        """Delete the minutes that are older than they are kept."""
        until = self._engine.now() - KEPT
        for hour in hours(until - LOOKED_AT, until - timedelta(hours=1)):
            for record in self._engine.records(Minute, tenant=hour):
                self._engine.drop(record)
        return PRUNE_MINUTES_INTERVAL

    def _record(self, at: datetime, counted: Open) -> Minute:
        queues: dict[str, dict[str, object]] = {}
        for (queue, task), counts in counted.items():
            queues.setdefault(queue, {})[task] = counts.data()
        return Minute(hour_of(at), at.minute, self._worker, queues)


def _add(found: Open, counted: Open) -> None:
    """Copies are taken first: the engine thread may be counting."""
    for place, counts in counted.copy().items():
        copy = Counts()
        copy.ends, copy.waits, copy.runs = counts.ends.copy(), counts.waits.copy(), counts.runs.copy()
        found.setdefault(place, Counts()).add(copy)
