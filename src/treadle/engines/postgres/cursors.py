"""Where claims continue after a slow one, so that they do not walk over the same index entries again."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from treadle.engines.values import Claim, ClaimedJob

SLOW_LOOK = 0.0005  # seconds; jobs that took so much longer to find than to take are worth a cursor
SLOW_LOOKS = 2  # of them in a row: one may have waited for a CPU
MAX_CURSORS = 8
FULL_SCAN_INTERVAL = 1.0  # seconds after which a claim scans everything again


class ClaimCursor(NamedTuple):
    """Where a claim continues: the jobs before it, in this lane and priority, were taken."""

    queue: str
    lane: str
    priority: int
    due_at: datetime
    id: str


class ClaimCursors:
    """The cursors of one shape of claim, while they are worth it.

    A long transaction keeps the index entries of all jobs that were claimed since it began, and each claim walks over
    them to the first job that is still there. So after slow looks the next claims continue where the last one ended.
    They do not see an earlier or more urgent job; the full scan that follows within a second does.
    """

    def __init__(self) -> None:
        self._shape: object = None
        self._until = 0.0
        self._slow_looks = 0
        self._cursors: dict[tuple[str, str, int], ClaimCursor] = {}

    def of(self, claim: Claim, now: float) -> list[ClaimCursor]:
        """Where this claim continues; if nowhere, it must scan everything. `now` is monotonic."""
        return list(self._cursors.values()) if self._shape == _shape(claim) and now < self._until else []

    def learn(
        self,
        claim: Claim,
        claimed: Sequence[ClaimedJob],
        *,
        search_time: float,
        take_time: float,
        resumed: bool,
        now: float,
    ) -> None:
        """Note the jobs of a claim, the seconds to find and to take them, and whether it continued from cursors."""
        if not resumed:
            self._slow_looks = self._slow_looks + 1 if search_time > take_time + SLOW_LOOK else 0
        if len(claimed) < claim.limit or (not resumed and self._slow_looks < SLOW_LOOKS):
            self.forget()
            return
        if not resumed:
            self._shape, self._until, self._cursors = _shape(claim), now + FULL_SCAN_INTERVAL, {}
        cursors = dict(self._cursors)  # another thread may be reading the old ones
        for job in (one.job() for one in claimed):
            cursor = ClaimCursor(job.queue, job.lane, job.priority, job.due_at, job.id)
            key = (job.queue, job.lane, job.priority)
            cursors[key] = max(cursor, cursors.get(key, cursor))
        self._cursors = cursors
        if len(cursors) > MAX_CURSORS:  # each is a range to look at: so many cost more than they spare
            self.forget()

    def forget(self) -> None:
        """Let the next claim scan everything."""
        self._until = 0.0


def _shape(claim: Claim) -> object:
    return tuple(claim.queues), claim.lanes, claim.tasks, claim.unless
