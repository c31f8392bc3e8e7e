"""The audit trail as it grows: every event that is meant, once, in the order in which it can be seen.

An event has the time of its act, not of its commit, so one may turn up below others that were given already. A cursor
by time would lose it. So each look asks for all events that are not sealed, and for the events of seals that are new;
what was given is known by its key.

A look sees the newest 100,000 events that are not sealed. Where there are more, what lies before them has been given or
is too old to be news; it is not given when sealing makes room for it.
"""

import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import NamedTuple, Protocol

from treadle.app.audit import MOST_UNSEALED, EventFilter, EventPage, latest_events
from treadle.edits import AuditedJobs, AuditedRecords
from treadle.model import Event, Job
from treadle.model.records import Seal
from treadle.model.seals import in_order

LOOK_AT_SEALS = 10.0  # seconds after which they are read, though no event has vanished into one
FORGET = 120.0  # seconds after which an event is forgotten that no look has found again: its seal is known by now
MOST_JOBS = 10_000  # of which task and queue are remembered
READ_AT_ONCE = 500  # jobs


class FollowedStore(AuditedJobs, AuditedRecords, Protocol):
    """What following needs of a store."""


class FollowedEvent(NamedTuple):
    """An event, and the task and queue of its job; None where it is of no job, or the job is gone."""

    event: Event
    task: str | None
    queue: str | None


class _Look(NamedTuple):
    """What one look at the trail has found; it counts once the answer is made of it."""

    events: list[Event]
    seals: set[tuple[str, int]]  # whose events were read
    seals_read: float
    floor: tuple[datetime, str, int] | None  # what lies before this event is not news


class Following:
    """A reader of the audit trail that goes on where it was."""

    def __init__(
        self,
        store: FollowedStore,
        wanted: EventFilter,
        *,
        task: str | None = None,
        queue: str | None = None,
        masked: Callable[[Job, list[Event]], list[Event]] = lambda _, events: events,
    ) -> None:
        """`masked` takes out of events what is secret in the payload of their job."""
        self._masked = masked
        self._store = store
        self._wanted = wanted
        self._task, self._queue = task, queue
        self._seen: dict[tuple[datetime, str, int], float] = {}  # by their keys, when a look last found them
        self._seals: set[tuple[str, int]] = set()
        self._seals_read = 0.0
        self._floor: tuple[datetime, str, int] | None = None
        self._jobs: dict[str, tuple[str, str]] = {}

    def latest(self, limit: int) -> tuple[list[FollowedEvent], bool]:
        """The latest events up to now, oldest first, and whether there are more; `news` goes on from here.

        Those of one task or queue are looked for among the latest 20 times as many.
        """
        now = time.monotonic()
        look = _Look([], set(), 0.0, None)
        if self._wanted.job is None:
            unsealed, floor = self._unsealed()  # before the seals: what vanishes is in both
            seals = {_number(seal) for seal in self._store.records(Seal, tenant=self._wanted.tenant)}
            look = _Look(unsealed, seals, now, floor)
        of_jobs = (self._task, self._queue) != (None, None)
        page: EventPage = latest_events(self._store, self._wanted, limit=limit * 20 if of_jobs else limit)
        found = self._of_jobs(reversed(page.events))
        self._note(look._replace(events=[*look.events, *page.events]), now)
        return found[-limit:], page.cursor is not None or len(found) > limit

    def news(self) -> list[FollowedEvent]:
        """The events that have come since, oldest first. If the store does not answer, the next call gives them."""
        now = time.monotonic()
        look = self._look(now)
        fresh = {in_order(event): event for event in look.events if in_order(event) not in self._seen}
        found = self._of_jobs(fresh[key] for key in sorted(fresh) if self._wanted.fits(fresh[key]))
        self._note(look, now)
        self._seen = {key: at for key, at in self._seen.items() if now - at < FORGET}
        return found

    def _look(self, now: float) -> _Look:
        if self._wanted.job is not None:
            return _Look(list(self._store.events(self._wanted.job)), self._seals, self._seals_read, None)
        found, floor = self._unsealed()
        there = {in_order(event) for event in found}
        seals, seals_read = set(self._seals), self._seals_read
        expected = (key for key, at in self._seen.items() if at >= seals_read and (floor is None or key >= floor))
        if any(key not in there for key in expected) or now - seals_read >= LOOK_AT_SEALS:
            for seal in self._store.records(Seal, tenant=self._wanted.tenant):
                if _number(seal) not in seals:
                    found += self._store.sealed(seal)
                    seals.add(_number(seal))
            seals_read = now
        news = [event for event in found if floor is None or in_order(event) >= floor]
        return _Look(news, seals, seals_read, floor)

    def _unsealed(self) -> tuple[list[Event], tuple[datetime, str, int] | None]:
        """The newest events that are not sealed, and the event before which nothing is news."""
        found = self._store.unsealed(limit=MOST_UNSEALED, newest=True)
        if len(found) < MOST_UNSEALED:
            return found, self._floor
        lowest = in_order(found[-1])
        return found, lowest if self._floor is None else max(lowest, self._floor)

    def _note(self, look: _Look, now: float) -> None:
        self._seen.update((in_order(event), now) for event in look.events)
        self._seals, self._seals_read, self._floor = look.seals, look.seals_read, look.floor

    def _of_jobs(self, events: Iterable[Event]) -> list[FollowedEvent]:
        """With the task and queue that their jobs have now; those of others are left out."""
        events = list(events)
        jobs: dict[str, Job] = {}
        ids = list(dict.fromkeys(event.job_id for event in events))
        for start in range(0, len(ids), READ_AT_ONCE):
            for job in self._store.get(ids[start : start + READ_AT_ONCE]):
                if job is not None:
                    self._jobs.pop(job.id, None)
                    self._jobs[job.id] = (job.task, job.queue)
                    jobs[job.id] = job
        events = [self._shown(event, jobs.get(event.job_id)) for event in events]
        found = [FollowedEvent(event, *self._jobs.get(event.job_id, (None, None))) for event in events]
        while len(self._jobs) > MOST_JOBS:
            del self._jobs[next(iter(self._jobs))]
        return [one for one in found if self._task in (None, one.task) and self._queue in (None, one.queue)]

    def _shown(self, event: Event, job: Job | None) -> Event:
        return event if job is None or not event.note else self._masked(job, [event])[0]


def _number(seal: Seal) -> tuple[str, int]:
    return seal.tenant, seal.number
