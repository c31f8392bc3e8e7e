"""Who hears of claims and of ends: the worker's log, the hooks of the app, and the counts of the minute."""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Protocol

from treadle.engines.values import ClaimedJob
from treadle.model import Change, EventKind, Reason, State, lifecycle
from treadle.model.lifecycle import Success
from treadle.model.stats import ENDS
from treadle.model.text import printable
from treadle.tasks.hooks import AttemptEnd, Hooks
from treadle.tasks.secrets import stand_in
from treadle.worker.attempt import Attempt
from treadle.worker.outcomes import own_frames, says_all
from treadle.worker.steps import Settling


class HookCaller(Protocol):
    """Who calls the hooks (HookThread): each of them, with each of the values."""

    def call(self, hooks: Sequence[Callable[[Any], object]], values: Callable[[], Sequence[Any]]) -> None: ...


class Observers:
    """Tells the log and the hooks. A hook is called in a thread of its own, so that a slow one keeps no job waiting."""

    def __init__(
        self,
        hooks: Hooks,
        caller: HookCaller,
        log: logging.Logger,
        *,
        log_jobs: bool,
        note_end: Callable[[Attempt, str, datetime], None] | None = None,
    ) -> None:
        """`note_end` counts the ends."""
        self._hooks, self._caller, self._log = hooks, caller, log
        self._note_end = note_end or (lambda *_: None)
        self.claims = 0  # jobs claimed so far
        self._level = logging.INFO if log_jobs else logging.DEBUG  # of a job that ended well

    def claimed(self, claimed: Sequence[ClaimedJob]) -> None:
        """These jobs were claimed."""
        self.claims += len(claimed)
        if self._hooks.claim:
            self._caller.call(self._hooks.claim, lambda: [[one.job() for one in claimed]])

    def settled(self, settled: Sequence[Settling], at: datetime) -> None:
        """These ends are stored. Nobody makes the job of a plain success for a log that is off."""
        if self._hooks.settle or self._hooks.failure:
            self._caller.call(self._hooks.settle, lambda: [_end(one, at) for one in settled])
            failed = [one for one in settled if not isinstance(one.change, Success) and _is_failure(one.change)]
            if failed:
                self._caller.call(self._hooks.failure, lambda: [_end(one, at) for one in failed])
        logs_all = self._log.isEnabledFor(self._level)
        for settling in settled:
            change, attempt = settling.change, settling.attempt
            if isinstance(change, Success):
                self._note_end(attempt, EventKind.SUCCEEDED, at)
                if logs_all:
                    self._log_end(attempt, change.change(at))
                continue
            if change.kind in ENDS:
                self._note_end(attempt, change.kind, at)
            if logs_all or change.kind.noteworthy:
                self._log_end(attempt, change)

    def recovered(self, change: Change) -> None:
        """The lease of this job had run out, or its time to live: now it is requeued or has ended."""
        job, failed = change.after, _is_failure(change)
        self._log.log(
            logging.ERROR if failed else logging.WARNING,
            "job %s (%s): %s",
            job.id,
            job.task,
            printable(change.note or change.kind),
            extra=_facts(change, None),
        )
        if failed and self._hooks.failure:
            self._caller.call(self._hooks.failure, lambda: [AttemptEnd(job, change.kind, None)])

    def _log_end(self, attempt: Attempt, change: Change) -> None:
        job, kind = change.after, change.kind
        extra = _facts(change, attempt.run_time)
        if _is_failure(change):
            error, trace = attempt.exception, None
            if error is not None and not says_all(error):
                trace = (type(error), error, own_frames(error.__traceback__))
                if attempt.secrets.paths:
                    made = stand_in(error, attempt.conceal, job.error and job.error.traceback)
                    trace = (type(made), made, None)
            self._log.error("job %s (%s) %s", job.id, job.task, _words(change), extra=extra, exc_info=trace)
        elif kind.noteworthy and kind is not EventKind.CANCELLED:
            self._log.warning("job %s (%s) %s", job.id, job.task, _words(change), extra=extra)
        else:
            level = self._level if kind in (EventKind.SUCCEEDED, EventKind.CANCELLED) else logging.DEBUG
            took = "" if attempt.run_time is None else f" in {_span(attempt.run_time)}"
            note = f": {printable(change.note)}" if change.note else ""
            self._log.log(level, "job %s (%s) %s%s%s", job.id, job.task, kind, took, note, extra=extra)


def _is_failure(change: Change) -> bool:
    """Whether the job has failed for good with it."""
    return change.after.state is State.FAILED


def _words(change: Change) -> str:
    """What a log line says of a noteworthy end."""
    job, error = change.after, change.after.error
    if job.reason is Reason.PERMANENT:
        return f"gave up on attempt {job.attempt}: {printable(error.message) if error is not None else ''}"
    why = f"{error.type}: {error.message}" if error is not None else change.note
    again = f"; due again at {job.due_at:%H:%M:%S} UTC" if job.state is State.PENDING else ""
    return f"{change.kind}, failure {job.failures} of {job.max_attempts}: {printable(why)}{again}"


def _span(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _facts(change: Change, run_time: float | None) -> dict[str, Any]:
    """What a log record carries beside its message."""
    job = change.after
    facts = {"queue": job.queue, "tenant": job.tenant, "attempt": job.attempt, "duration": run_time}
    if job.error is not None and change.kind is not EventKind.SUCCEEDED:
        facts["error_type"] = job.error.type
    return {"job_id": job.id, "task": job.task, "facts": facts}


def _end(settling: Settling, at: datetime) -> AttemptEnd:
    attempt = settling.attempt
    [change] = lifecycle.whole([settling.change], at)
    return AttemptEnd(change.after, change.kind, attempt.run_time, attempt.exception)
