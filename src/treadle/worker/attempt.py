"""One try at a job: what the worker's threads and the handler's context share."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from treadle.model import Job, Progress
from treadle.tasks.context import StopReason


class Attempt:
    """One holder's try at a job: the mutable side, shared by the worker's threads and the handler's context."""

    __slots__ = ("abandoned", "alarm", "cost_micros", "ended", "job", "lease_ends", "lock_wait", "progress",
                 "queued_at", "settled", "started_at", "stop", "stop_reason")  # fmt: skip

    def __init__(self, job: Job, *, lease_ends: float, queued_at: float) -> None:
        self.job = job
        self.lease_ends = lease_ends  # on the monotonic clock, counted from before the claim was sent
        self.queued_at = queued_at
        self.started_at: datetime | None = None
        self.progress: Progress | None = None
        self.cost_micros = job.cost_micros
        self.stop_reason: StopReason | None = None
        self.stop: Callable[[], object] | None = None  # how to interrupt the handler, if there is a way
        self.alarm: Any = None  # the timer that will tell it about its timeout
        self.lock_wait = 0.0  # seconds waited lately for a row that somebody else has locked
        self.settled = False  # written by the handler itself, in its own transaction
        self.ended = False  # its outcome is known, and on its way to the store
        self.abandoned = False  # its job was settled or lost while the handler still runs

    def request_stop(self, why: StopReason) -> None:
        """Ask the handler to stop; being lost is the last word."""
        if self.stop_reason is not StopReason.LOST:
            self.stop_reason = why

    def job_so_far(self) -> Job:
        """The job with what this attempt has told so far."""
        return self.job.evolve(
            started_at=self.started_at or self.job.started_at,
            progress=self.progress or self.job.progress,
            cost_micros=self.cost_micros,
        )
