"""How attempts ended, in the worker's log: failures as warnings, the rest for whoever debugs."""

import logging
from collections.abc import Sequence

from treadle.model import Change, EventKind, Reason, State
from treadle.model.lifecycle import Success
from treadle.worker.steps import Settling


def log_ends(log: logging.Logger, settled: Sequence[Settling]) -> None:
    """Log these ends. Nobody makes the job of a plain success for a log."""
    debug = log.isEnabledFor(logging.DEBUG)
    for attempt, _, change in settled:
        if not isinstance(change, Success) and change.kind.noteworthy:
            _warn(log, change)
        elif debug:
            kind = EventKind.SUCCEEDED if isinstance(change, Success) else change.kind
            claimed = attempt.claimed
            log.debug("job %s (%s) %s on attempt %d", claimed.id, claimed.task, kind, claimed.attempt)


def _warn(log: logging.Logger, change: Change) -> None:
    job, error = change.after, change.after.error
    if job.reason is Reason.PERMANENT:
        message = error.message if error is not None else ""
        log.warning("job %s (%s) gave up on attempt %d: %s", job.id, job.task, job.attempt, message)
        return
    why = f"{error.type}: {error.message}" if error is not None else change.note
    again = f"; due again at {job.due_at:%H:%M:%S} UTC" if job.state is State.PENDING else ""
    spent = f"{job.failures} of {job.max_attempts} attempts spent"
    log.warning("job %s (%s) %s, %s: %s%s", job.id, job.task, change.kind, spent, why, again)
