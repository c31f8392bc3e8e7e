"""One try at a job: what the worker's threads and the handler's context share."""

import asyncio
from collections.abc import Container
from datetime import datetime

from treadle.engines.values import ClaimedJob
from treadle.model import Change, Job, Progress
from treadle.model.lifecycle import Outcome, Succeeded, Success
from treadle.model.text import json_data
from treadle.tasks.context import StopReason
from treadle.tasks.secrets import NO_SECRETS, Secrets, hide

MAX_PLAIN_RESULT = 8_000  # characters; a longer one goes the general way, by itself


class Attempt:
    """One holder's try at a job: the mutable side, shared by the worker's threads and the handler's context.

    It is made from what the claim gave. The whole job is made for whoever asks for it first.
    """

    started_at: datetime | None = None
    start_written = False  # whether the store has it
    progress: Progress | None = None
    progress_written: Progress | None = None  # what the store has of it
    stop_reason: StopReason | None = None
    task: "asyncio.Task[None] | None" = None  # where a coroutine runs: cancelling it stops the handler
    alarm: asyncio.TimerHandle | None = None  # the timer that will tell it about its timeout
    run_time: float | None = None  # seconds that the handler took
    exception: BaseException | None = None  # what it raised
    lock_wait = 0.0  # seconds waited lately for a row that somebody else has locked
    begun = False  # its handler has been called, or is about to be
    forbidden = False  # it may not be called any more: the worker stops
    settled: Change | None = None  # what the handler itself has written, in its own transaction
    ended = False  # its outcome is known, and on its way to the store
    secrets: Secrets = NO_SECRETS  # what is secret in its payload; known once it is about to run
    abandoned = False  # its job was settled or lost while the handler still runs

    def __init__(
        self, claimed: ClaimedJob, *, lease_ends: float, queued_at: float, isolated_tasks: Container[str] = ()
    ) -> None:
        self.claimed = claimed
        # Isolated jobs of a process run one at a time, so that the one that takes it down pays alone.
        self.isolated = claimed.task in isolated_tasks or (claimed.suspect and _crashed_before(claimed))
        self.id = claimed.id
        self.plain = claimed.plain  # whether its success may be written as a `lifecycle.Success`
        self.cost_micros = claimed.cost_micros
        self.lease_ends = lease_ends  # on the monotonic clock, counted from before the claim was sent
        self.queued_at = queued_at
        self._job: Job | None = None

    @property
    def job(self) -> Job:
        """The job as it was claimed, or as the store has said since that it is."""
        if self._job is None:
            self._job = self.claimed.job()
        return self._job

    @job.setter
    def job(self, job: Job) -> None:
        self._job, self.plain = job, False

    def request_stop(self, why: StopReason) -> None:
        """Ask the handler to stop; being lost is the last word."""
        if self.stop_reason is not StopReason.LOST:
            self.stop_reason = why

    def conceal(self, text: str) -> str:
        """A text that is kept or logged, without what is secret in the payload."""
        return hide(text, self.secrets.values(json_data(self.claimed.payload_json))) if self.secrets.paths else text

    def success(self, outcome: Outcome) -> Success | None:
        """This outcome as a plain success, if it is one: then nobody needs the job."""
        if (
            self.plain
            and isinstance(outcome, Succeeded)
            and self.started_at is not None
            and self.progress is None
            and self.cost_micros == self.claimed.cost_micros
            and ((result := outcome.result_json) is None or len(result) <= MAX_PLAIN_RESULT)
        ):
            claimed = self.claimed
            return Success(self.id, claimed.token, claimed.revision, self.started_at, result, self.job_so_far)
        return None

    def job_so_far(self) -> Job:
        """The job with what this attempt has told so far."""
        return self.job.evolve(
            started_at=self.started_at or self.job.started_at,
            progress=self.progress or self.job.progress,
            cost_micros=self.cost_micros,
        )


def _crashed_before(claimed: ClaimedJob) -> bool:
    try:
        return claimed.job().crashes > 0
    except Exception:  # a row that is no job: whoever runs it will say so, and no other pays
        return True
