"""Why is this job not running? Pure: the job, the pauses and the live workers go in, the obstacles come out."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from treadle.model import Job, Reason, State
from treadle.model.records import ANY, Pause, PauseOwner, WorkerInfo


class Obstacle(NamedTuple):
    """One thing that keeps a job from running: its kind, for programs, and a sentence, for people."""

    kind: str  # ended, superseded, leased, due, expired, paused, budget, no_worker, no_queue, unknown_task, busy, next
    text: str


def why(
    job: Job,
    now: datetime,
    pauses: Sequence[Pause],
    workers: Sequence[WorkerInfo],
    holder: Job | None = None,
    *,
    outside: bool = False,
) -> list[Obstacle]:
    """What keeps the job from running, the firmest first; `holder` is the job that has its key now.

    `outside`: a tenant asks, and learns nothing about other tenants or how busy they keep the workers.
    """
    if job.state.final:
        return [_ended(job, holder)]
    if job.state is State.RUNNING:
        return [_leased(job, now, outside=outside)]
    found = []
    if job.expires_at is not None and job.expires_at <= now:
        over = f"its time to start was over at {_clock(job.expires_at)}; a worker will end it"
        found.append(Obstacle("expired", over))
    found += [_paused(pause, outside=outside) for pause in pauses if pause.blocks(job.tenant, job.queue, job.task)]
    if job.due_at > now:
        after = f" after failure {job.failures} of {job.max_attempts}" if job.failures else ""
        found.append(Obstacle("due", f"it is due at {_clock(job.due_at)}, in {_span(job.due_at, now)}{after}"))
    if outside:
        return found or [Obstacle("next", "nothing that you could change: it waits for its turn")]
    return found + _workers(job, now, workers, blocked=bool(found))


def _ended(job: Job, holder: Job | None) -> Obstacle:
    when = f"{job.state} at {_clock(job.finished_at)}"
    if job.reason is Reason.SUPERSEDED:
        by = f" job {holder.id} ({holder.state}) has it" if holder is not None else " another job had it by then"
        return Obstacle("superseded", f"it ended {when}: it wanted its key {job.key!r} back, and{by}")
    return Obstacle("ended", f"it has ended: {when}{f' ({job.reason})' if job.reason else ''}")


def _leased(job: Job, now: datetime, *, outside: bool) -> Obstacle:
    if outside:  # the name of a worker has a host's name and a process in it
        since = f" since {_clock(job.started_at)}" if job.started_at else ""
        return Obstacle("leased", f"it runs{since}{'; it was asked to stop' if job.cancel_requested else ''}")
    begun = f"since {_clock(job.started_at)}" if job.started_at else f"claimed at {_clock(job.claimed_at)}"
    lease = job.lease_until or now
    state = f"its lease runs until {_clock(lease)}" if lease > now else f"its lease ran out at {_clock(lease)}"
    rest = "" if lease > now else "; a worker that is alive will take it up again"
    waits = "" if job.started_at or lease <= now else "; it starts when a slot is free and its start is written"
    asked = "; it was asked to stop" if job.cancel_requested else ""
    return Obstacle("leased", f"worker {job.worker} has it ({begun}), {state}{rest}{waits}{asked}")


def _paused(pause: Pause, *, outside: bool) -> Obstacle:
    since = f" since {_clock(pause.at)}" if pause.at else ""
    until = f", until {_clock(pause.until)}" if pause.until else ""
    reason = f": {pause.reason}" if pause.reason else ""
    if outside and pause.tenant == ANY:
        return Obstacle("paused", f"paused for everybody{since}{until}")
    if pause.owner is PauseOwner.BUDGET:
        return Obstacle("budget", f"the budget of {pause.scope} is spent{since}{until}{reason}")
    return Obstacle("paused", f"{pause.scope} is paused by {pause.actor}{since}{until}{reason}")


def _workers(job: Job, now: datetime, workers: Sequence[WorkerInfo], *, blocked: bool) -> list[Obstacle]:
    """What the live workers have to do with it; nothing if they could take it and something else blocks it."""
    alive = [worker for worker in workers if worker.alive(now)]
    if not alive:
        queue = "" if job.queue == "default" else f" --queue {job.queue}"
        return [Obstacle("no_worker", f"no worker is alive; start one with `treadle worker{queue}`")]
    serving = [worker for worker in alive if worker.serves(job.queue, job.lane)]
    if not serving:
        return [_not_served(job, alive)]
    knowing = [worker for worker in serving if worker.knows(job.task, job.task_version)]
    if not knowing:
        older = any(job.task in worker.tasks for worker in serving)
        unknown = f"version {job.task_version} of task {job.task!r}" if older else f"task {job.task!r}"
        return [Obstacle("unknown_task", f"no live worker of queue {job.queue!r} knows {unknown}")]
    return [] if blocked else [_next(knowing)]


def _not_served(job: Job, alive: Sequence[WorkerInfo]) -> Obstacle:
    if any(worker.stopping and job.queue in worker.queues for worker in alive):
        return Obstacle("no_worker", f"the last live worker of queue {job.queue!r} is stopping; start another")
    queues = ", ".join(sorted({queue for worker in alive if not worker.stopping for queue in worker.queues}))
    lane = f", lane {job.lane!r}" if job.lane else ""
    return Obstacle("no_queue", f"no live worker serves queue {job.queue!r}{lane}; they serve: {queues}")


def _next(knowing: Sequence[WorkerInfo]) -> Obstacle:
    slots, taken = sum(worker.concurrency for worker in knowing), sum(worker.running for worker in knowing)
    able = f"{len(knowing)} live worker{'s' * (len(knowing) > 1)} can take it"
    if taken >= slots:
        return Obstacle("busy", f"{able}, but all {slots} slots were busy when last heard of; others may be before it")
    return Obstacle("next", f"nothing: {able} ({taken} of {slots} slots busy); it should start any moment")


def _clock(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC" if moment is not None else "?"


def _span(later: datetime, now: datetime) -> str:
    seconds = int((later - now).total_seconds())
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
