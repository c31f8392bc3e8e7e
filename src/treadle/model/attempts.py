"""The attempts of a job, put together from its audit events and from what the job itself still knows.

Every claim and every end of an attempt raises the revision by one. So the revisions between two events that were kept
tell how many claims and ends were not, and the attempts can be numbered at any audit level.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from treadle.model.change import Event, EventKind
from treadle.model.job import Job, JobError
from treadle.model.state import State

ATTEMPT_ENDS = frozenset(
    (
        EventKind.SUCCEEDED,
        EventKind.SNOOZED,
        EventKind.RELEASED,
        EventKind.RETRYING,
        EventKind.CRASHED,
        EventKind.FAILED,
        EventKind.CANCELLED,
        EventKind.SUPERSEDED,
    )
)
_FAILURES = (EventKind.RETRYING, EventKind.CRASHED, EventKind.FAILED)
_BY_HOLDER = (EventKind.RETRYING, EventKind.SUCCEEDED, EventKind.SNOOZED, EventKind.RELEASED)
# The others may be written by the worker that found a lost lease.
_BETWEEN = (EventKind.CHANGED, EventKind.REPLACED, EventKind.RETRIED, EventKind.EXPIRED)  # while no worker has it


class JobAttempt(NamedTuple):
    """One attempt as far as it is known; what is not kept is None.

    `outcome` is how it ended, in the words of the audit trail, or "running". `complete`: nothing of it is missing.
    """

    number: int | None
    claimed_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    worker: str | None = None
    outcome: str | None = None
    error: JobError | None = None
    complete: bool = False


def attempts_of(job: Job, events: Sequence[Event], *, latest: int | None = None) -> list[JobAttempt]:
    """The attempts of a job, oldest first.

    The times and the worker of earlier attempts are known where the audit level keeps all events. Of their errors the
    audit trail keeps the message; type and traceback are those of the last one.

    With `latest`, the events are the last so many, and so are the attempts.
    """
    if job.attempt == 0:
        return []
    ours = [event for event in _of_this_life(events) if event.revision <= job.revision]
    cut = latest is not None and len(ours) >= latest
    story = _Story(ours.pop(0) if cut else None)
    for event in ours:
        story.add(event)
    story.skip_to(job.revision)
    before = job.attempt - len(story.attempts)
    known = story.sound and (before >= 0 if cut else before == 0)
    found = story.attempts if known else _unnumbered(job, story)
    found = found if latest is None else found[-latest:]
    found = [_renumbered(attempt, before) for attempt in found] if known and before else found
    return [_completed(_with_job(attempt, job)) for attempt in found]


class _Story:
    """What happened to a job, revision by revision; a revision without an event is a claim, or the end of one.

    It is told from its beginning, or from what came after an event.
    """

    def __init__(self, after: Event | None = None) -> None:
        self.attempts: list[JobAttempt] = []
        self.sound = True  # every event was possible where it stood
        self._running = False
        if after is not None and after.kind in (EventKind.CLAIMED, EventKind.CANCEL_REQUESTED):
            claimed = after.kind is EventKind.CLAIMED
            begun = JobAttempt(1, claimed_at=after.at, worker=after.actor) if claimed else JobAttempt(1)
            self.attempts, self._running = [begun], True
        self._revision = 0 if after is None else after.revision

    def add(self, event: Event) -> None:
        if event.kind is EventKind.ENQUEUED:
            return
        self.skip_to(event.revision - 1)
        self._revision = event.revision
        if event.kind is EventKind.CLAIMED:
            self.sound &= not self._running
            self.attempts.append(JobAttempt(len(self.attempts) + 1, claimed_at=event.at, worker=event.actor))
            self._running = True
        elif event.kind is EventKind.CANCEL_REQUESTED:
            self.sound &= self._running
        elif event.kind in _BETWEEN:
            self.sound &= not self._running
        elif event.kind in ATTEMPT_ENDS and (self._running or event.kind is not EventKind.CANCELLED):
            self._end(event)

    def skip_to(self, revision: int) -> None:
        """Pass over the revisions that left no event: by turns claims and ends."""
        for _ in range(revision - self._revision):
            if not self._running:
                self.attempts.append(JobAttempt(len(self.attempts) + 1))
            self._running = not self._running
        self._revision = max(self._revision, revision)

    def _end(self, event: Event) -> None:
        if not self._running:
            self.sound = False
            self.attempts.append(JobAttempt(len(self.attempts) + 1))
        ended = self.attempts[-1]
        worker = event.actor if event.kind in _BY_HOLDER else None
        failed = event.kind in _FAILURES
        error = JobError("", event.note, "", ended.number or 0, event.at.isoformat()) if failed else None
        self.attempts[-1] = ended._replace(
            ended_at=event.at, worker=ended.worker or worker, outcome=event.kind.value, error=error
        )
        self._running = False


def _of_this_life(events: Sequence[Event]) -> Sequence[Event]:
    """Without those of a job that had the same id and was deleted."""
    deleted = [place for place, event in enumerate(events) if event.kind is EventKind.DELETED]
    return events[deleted[-1] + 1 :] if deleted else events


def _renumbered(attempt: JobAttempt, before: int) -> JobAttempt:
    """An attempt counted from the first one of the job, not from the first one that is told."""
    number = (attempt.number or 0) + before
    error = attempt.error and attempt.error._replace(attempt=number)
    return attempt._replace(number=number, error=error)


def _unnumbered(job: Job, story: _Story) -> list[JobAttempt]:
    """The attempts whose ends were kept, without numbers, because the revisions do not add up; and the last one."""
    ended = [attempt._replace(number=None) for attempt in story.attempts if attempt.ended_at is not None]
    last = ended[-1].ended_at if ended else None
    if last is not None and job.claimed_at is not None and last >= job.claimed_at:
        return [*ended[:-1], ended[-1]._replace(number=job.attempt)]
    return [*ended, JobAttempt(job.attempt)]


def _with_job(attempt: JobAttempt, job: Job) -> JobAttempt:
    """An attempt with what the job itself knows of its last one, and of its last error."""
    error = job.error if job.error is not None and job.error.attempt == attempt.number else attempt.error
    attempt = attempt._replace(error=error)
    if attempt.number != job.attempt:
        return attempt
    attempt = attempt._replace(
        claimed_at=job.claimed_at, started_at=job.started_at, worker=job.worker or attempt.worker
    )
    if job.state is State.RUNNING:
        return attempt._replace(outcome="running")
    if attempt.outcome is None and job.state in (State.SUCCEEDED, State.FAILED):
        return attempt._replace(outcome=job.state.value, ended_at=job.finished_at)
    return attempt


def _completed(attempt: JobAttempt) -> JobAttempt:
    ended = attempt.outcome == "running" or attempt.ended_at is not None
    kept = attempt.error is None or bool(attempt.error.type)
    known = None not in (attempt.number, attempt.claimed_at, attempt.worker, attempt.outcome)
    return attempt._replace(complete=ended and kept and known)
