"""What an engine remembers from one claim to the next, to make the next one cheap."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from treadle.engines.values import Claim
from treadle.model import Job


class Place(NamedTuple):
    """Where a claim goes on: what comes before in this lane and priority was taken."""

    queue: str
    lane: str
    priority: int
    due_at: datetime
    id: str


class Places:
    """The places where claims go on, while that is worth it.

    A long transaction keeps the index entries of all that was claimed since it began, and every claim walks over them
    to the first job that is still there. So after a claim that was slow, the next ones go on where it ended; what they
    cannot see (an earlier or more urgent job) is seen by the full scan that follows within a second.
    """

    SLOW = 0.05  # seconds
    FULL_SCAN = 1.0  # seconds

    def __init__(self) -> None:
        self._shape: object = None
        self._until = 0.0
        self._places: dict[tuple[str, str, int], Place] = {}

    def of(self, claim: Claim, now: float) -> list[Place]:
        """Where this claim goes on; nothing: it must look everywhere. `now` is monotonic."""
        return list(self._places.values()) if self._shape == _shape(claim) and now < self._until else []

    def learn(self, claim: Claim, jobs: Sequence[Job], *, took: float, known: bool, now: float) -> None:
        """A claim gave these jobs; `known`: it went on from a known place."""
        if not known:
            if took < self.SLOW or len(jobs) < claim.limit:
                self._until = 0.0
                return
            self._shape, self._until, self._places = _shape(claim), now + self.FULL_SCAN, {}
        places = dict(self._places)  # another thread may be reading the old ones
        for job in jobs:
            place = Place(job.queue, job.lane, job.priority, job.due_at, job.id)
            key = (job.queue, job.lane, job.priority)
            places[key] = max(place, places.get(key, place))
        self._places = places


def _shape(claim: Claim) -> object:
    return tuple(claim.queues), claim.lanes, claim.tasks, claim.unless
