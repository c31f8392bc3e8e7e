"""Jobs that failed, grouped by what went wrong: computed when somebody asks, over a bounded look at the latest ones."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from treadle.app.queries import Selection
from treadle.engines.contract import JobStore
from treadle.engines.values import Page
from treadle.model import Job, JobError, State
from treadle.model.fingerprint import fingerprint, user_frame

LOOK = 2_000  # jobs that failed, and jobs that wait, that are read
MOST_BUCKETS = 120
WHOLE_JOBS = 20  # that are read at a time with their payloads
SPANS = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}
NO_ERROR = JobError("", "", "", 0, "")  # of a job that another program has ended


class Bucket(NamedTuple):
    """How many jobs of a group went wrong in the minute, hour or day that began then."""

    at: datetime
    number: int


class FailureGroup(NamedTuple):
    """Jobs whose last error is of one kind: those that failed for good, and those that will be tried again.

    `message` and `job_id` are of the latest one, `frame` is the file and function of your code where it rose.
    """

    fingerprint: str
    type: str
    message: str
    frame: str
    failed: int
    retrying: int
    first_seen: datetime
    last_seen: datetime
    job_id: str
    tasks: Sequence[str]
    queues: Sequence[str]
    over_time: Sequence[Bucket]


class Failures(NamedTuple):
    """The groups, most jobs first, of `looked` jobs. `back_to` is when the oldest of these failures happened.

    With a `cursor` there are jobs that failed earlier: it goes on with them, without those that wait. `more`: more jobs
    wait than were looked at.
    """

    at: datetime
    groups: Sequence[FailureGroup]
    bucket: str  # minute, hour or day
    looked: int
    back_to: datetime | None
    cursor: str | None
    more: bool


class _Failure(NamedTuple):
    job: Job
    error: JobError
    at: datetime


def failures(
    engine: JobStore, wanted: Selection, masked: Callable[[Job], Job], *, cursor: str | None = None
) -> Failures:
    """What went wrong with the latest jobs that failed or will be tried again; with a cursor, with earlier ones."""
    now = engine.now()
    ended = engine.find(wanted.of(State.FAILED), limit=LOOK, cursor=cursor, bare=True)
    waiting = Page([], None) if cursor else engine.find(wanted.of(State.PENDING), limit=LOOK, bare=True)
    retrying = [job for job in waiting.jobs if job.failures > 0]
    found = [one for job in (*ended.jobs, *retrying) if _between(wanted, one := _failure(job))]
    found.sort(key=lambda one: one.at)
    bucket = _bucket([one.at for one in found])
    groups: dict[str, list[_Failure]] = {}
    for one in found:
        groups.setdefault(fingerprint(one.error), []).append(one)
    shown = _shown(engine, [members[-1].job.id for members in groups.values()], masked)
    grouped = [
        _group(name, members, SPANS[bucket], shown.get(members[-1].job.id, NO_ERROR))
        for name, members in groups.items()
    ]
    grouped.sort(key=lambda group: (-group.failed - group.retrying, group.fingerprint))
    looked, back_to = len(ended.jobs) + len(waiting.jobs), found[0].at if found else None
    earlier = None if wanted.passed(State.FAILED, ended.jobs) else ended.cursor
    return Failures(now, grouped, bucket, looked, back_to, earlier, waiting.cursor is not None)


def _failure(job: Job) -> _Failure:
    error = job.error or NO_ERROR
    at = job.finished_at or (datetime.fromisoformat(error.at) if error.at else job.created_at)
    return _Failure(job, error, at)


def _between(wanted: Selection, one: _Failure) -> bool:
    return (wanted.since is None or one.at >= wanted.since) and (wanted.before is None or one.at < wanted.before)


def _bucket(times: Sequence[datetime]) -> str:
    """The smallest span of which few enough cover all of these times, which are in order."""
    whole = times[-1] - times[0] if times else timedelta(0)
    return next((name for name, span in SPANS.items() if whole <= MOST_BUCKETS * span), "day")


def _shown(engine: JobStore, ids: Sequence[str], masked: Callable[[Job], Job]) -> dict[str, JobError]:
    """The errors of these jobs as people may see them: what is secret in them, their payloads tell. A few at a time."""
    found: dict[str, JobError] = {}
    for start in range(0, len(ids), WHOLE_JOBS):
        for job in engine.get(ids[start : start + WHOLE_JOBS]):
            if job is not None:
                found[job.id] = masked(job).error or NO_ERROR
    return found


def _group(name: str, members: Sequence[_Failure], span: timedelta, error: JobError) -> FailureGroup:
    latest = members[-1]
    failed = sum(one.job.state is State.FAILED for one in members)
    return FailureGroup(
        name,
        error.type,
        error.message,
        user_frame(error.traceback),
        failed,
        len(members) - failed,
        members[0].at,
        latest.at,
        latest.job.id,
        _names(one.job.task for one in members),
        _names(one.job.queue for one in members),
        [Bucket(at, number) for at, number in sorted(Counter(_start(one.at, span) for one in members).items())],
    )


def _names(found: Iterable[str]) -> list[str]:
    """Each name once, the most frequent first."""
    return [name for name, _ in Counter(found).most_common()]


def _start(moment: datetime, span: timedelta) -> datetime:
    """When the span of this moment began."""
    return moment - (moment - datetime.min.replace(tzinfo=moment.tzinfo)) % span
