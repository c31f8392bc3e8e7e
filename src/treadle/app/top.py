"""What an operator watches: what needs attention first, then queues and their rates, running jobs, workers, schedules.

It reads a bounded part of the store, so it costs the same beside a million finished jobs.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from treadle.app.headline import Headline, headline
from treadle.app.profile import Profile
from treadle.app.rates import RATES_OVER, Rate, Rates, rates
from treadle.app.status import SPAN, Group, Status
from treadle.app.tenant import Tenant
from treadle.app.treadle import Treadle
from treadle.app.views import pause_view, record_view, schedule_view, worker_view
from treadle.model import Job, State
from treadle.model.clock import span
from treadle.model.records import Schedule

MOST_RUNNING = 50
MOST_UPCOMING = 10
LONG_DUE = timedelta(minutes=1)  # a job that waits so long while all slots are busy is worth a word
MOST_ERRORS = 3


class Overview(NamedTuple):
    """One look at everything. `problems` are errors and `warnings` what may become one, as sentences."""

    at: datetime
    headline: Headline
    problems: Sequence[str]
    warnings: Sequence[str]
    status: Status
    rate: Rate
    rates: Sequence[Rate]  # by queue
    minutes: Sequence[int]  # how many ended in each of the last 10 minutes, the oldest first
    running: Sequence[Job]  # the longest running first, of the 50 newest
    schedules: Sequence[Schedule]  # that run next


class OverviewViewer(Protocol):
    """Whoever tells of jobs and schedules: an app, one caller of the server, a server elsewhere."""

    @property
    def profile(self) -> Profile: ...

    def view(self, job: Job) -> dict[str, Any]: ...

    def masked_schedule(self, schedule: Schedule) -> Schedule: ...


def overview(app: Treadle | Tenant) -> Overview:
    """Look at the store once. Rates are of the whole store: a tenant is told none."""
    found = app.status()
    speed = rates(app.engine, found.at) if isinstance(app, Treadle) else Rates(Rate("*"), (), [0] * RATES_OVER)
    running = sorted(app.find(state=State.RUNNING, limit=MOST_RUNNING).jobs, key=_since)
    late = [*_busy(found), *_lost(running, found.at)]
    failing = app.failures(since=SPAN).groups if found.errors else ()
    return Overview(
        found.at,
        headline(found, failing, late, speed.queues),
        found.problems,
        [*late, *_paused(found), *_failing(found)],
        found,
        speed.total,
        speed.queues,
        speed.minutes,
        running,
        app.schedules.upcoming(MOST_UPCOMING),
    )


def overview_view(found: Overview, app: OverviewViewer) -> dict[str, Any]:
    """The same as plain data, whose keys are stable."""
    status = found.status
    return {
        "ok": not found.problems,
        "at": found.at.isoformat(),
        "headline": record_view(found.headline),
        "problems": list(found.problems),
        "warnings": list(found.warnings),
        "total": record_view(status.total),
        "queues": [record_view(group) for group in status.queues],
        "rate": record_view(found.rate),
        "rates": [record_view(rate) for rate in found.rates],
        "minutes": list(found.minutes),
        "running": [app.view(job) for job in found.running],
        "workers": [worker_view(worker) for worker in status.workers],
        "pauses": [pause_view(pause) for pause in status.pauses],
        "schedules": [schedule_view(app.masked_schedule(schedule), app.profile) for schedule in found.schedules],
        "errors": [record_view(error) for error in status.errors],
    }


def _since(job: Job) -> datetime:
    return job.started_at or job.claimed_at or job.created_at


def _busy(found: Status) -> Iterator[str]:
    """Queues whose jobs wait though somebody serves them."""
    for group in found.queues:
        late = _late(group, found.at)
        serving = [worker for worker in found.workers if group.queue in worker.queues and not worker.stopping]
        paused = any(pause.queue in (group.queue, "*") for pause in found.pauses)
        if late is None or not serving or paused:
            continue
        slots, busy = sum(worker.concurrency for worker in serving), sum(worker.busy for worker in serving)
        if busy >= slots:
            yield f"jobs wait for {late} on queue {group.queue}: all {slots:,} slots of its workers are busy"


def _late(group: Group, now: datetime) -> str | None:
    if group.oldest is None or now - group.oldest < LONG_DUE:
        return None
    return span(int((now - group.oldest).total_seconds()))


def _lost(running: Sequence[Job], now: datetime) -> Iterator[str]:
    """Jobs whose worker has not been heard of for a lease."""
    lost = [job for job in running if job.lease_until is not None and job.lease_until < now]
    if lost:
        which = f"{lost[0].task} {lost[0].id}" + (f" and {len(lost) - 1:,} more" if len(lost) > 1 else "")
        yield f"the lease has run out of {which}: the worker {lost[0].worker} may be gone; another one takes over"


def _paused(found: Status) -> Iterator[str]:
    for pause in found.pauses:
        why = f": {pause.reason}" if pause.reason else ""
        yield f"{pause.scope} is paused by {pause.actor}{why}"


def _failing(found: Status) -> Iterator[str]:
    for error in found.errors[:MOST_ERRORS]:
        if error.failed:
            jobs = "1 job" if error.failed == 1 else f"{error.failed:,} jobs"
            yield f"{jobs} failed in the last hour with {error.type or 'an error that was not kept'}"
