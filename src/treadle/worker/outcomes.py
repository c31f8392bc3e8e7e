"""What a handler returned or raised, as the outcome that lifecycle settles."""

import traceback
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Any

from treadle.errors import Cancelled, GiveUp, RetryLater, Snooze, TreadleError
from treadle.model import MESSAGE_CAP, TRACEBACK_CAP, JobError, Reason, clean, json_text
from treadle.model.clock import seconds
from treadle.model.lifecycle import Failed, FailedForGood, Outcome, Released, Snoozed, Stopped, Succeeded, TimedOut
from treadle.tasks.context import StopReason
from treadle.worker.attempt import Attempt
from treadle.worker.executors import Call

WITHOUT_RESULT = Succeeded(None)


def arguments_of(call: Call, now: Callable[[], datetime]) -> dict[str, Any] | Outcome:
    """The handler's arguments, or the end of a job whose payload does not fit: no further attempt could help."""
    call.attempt.secrets = call.task.payload.secrets
    try:
        return call.task.arguments(call.attempt.claimed)
    except Exception as error:  # InvalidPayload, or whatever a user's own validator raises
        call.attempt.exception = error
        return FailedForGood(Reason.INVALID_PAYLOAD, error_from(error, call.attempt, now()))


def succeeded(value: Any, attempt: Attempt, now: Callable[[], datetime]) -> Outcome:
    """The outcome of a handler that returned; a value that cannot be JSON ends the job."""
    if value is None:
        return WITHOUT_RESULT
    try:
        return Succeeded(json_text(value, "result"))
    except Exception as error:  # InvalidJob, or whatever the value does when it is looked at
        return FailedForGood(Reason.INVALID_RESULT, error_from(error, attempt, now()))


def ended_by(error: BaseException, attempt: Attempt, now: datetime) -> Outcome | None:
    """The outcome of a handler that raised."""
    attempt.exception = error
    match error:
        case Snooze():
            return _delayed(lambda: Snoozed(seconds(error.delay, "Snooze")), attempt, now)
        case RetryLater():
            what = error_from(error, attempt, now)
            return _delayed(lambda: Failed(what, seconds(error.after, "RetryLater after")), attempt, now)
        case GiveUp():
            return FailedForGood(Reason.PERMANENT, error_from(error, attempt, now))
        case Cancelled() if attempt.stop_reason in (None, StopReason.CANCEL):
            return Stopped(clean(attempt.conceal(_words(error)), MESSAGE_CAP))
        case _:
            return _unasked(error, attempt, now)


def _unasked(error: BaseException, attempt: Attempt, now: datetime) -> Outcome | None:
    """The outcome of an exception that is not one of ours: what the handler was told decides how it counts."""
    match attempt.stop_reason:
        case StopReason.LOST:
            return None
        case StopReason.TIMEOUT:
            return timed_out(attempt, now, error)
        case StopReason.CANCEL:
            return Stopped("stopped on request")
        case StopReason.SHUTDOWN:
            return cut_off(attempt, now)
        case None:
            return Failed(error_from(error, attempt, now))


def timed_out(attempt: Attempt, now: datetime, error: BaseException | None = None) -> Outcome:
    """The outcome of an attempt that ran past its timeout."""
    message = f"ran longer than its timeout of {attempt.claimed.timeout:g} s"
    trace = "" if error is None else error_from(error, attempt, now).traceback
    return TimedOut(JobError("TimeoutError", message, trace, attempt.claimed.attempt, now.isoformat()))


def cut_off(attempt: Attempt, now: datetime) -> Outcome:
    """The outcome of an attempt that a stop of the worker has cut off: given back, unless it must not run twice."""
    if not attempt.begun or not attempt.claimed.suspect or attempt.job.max_attempts > 1:
        return Released()
    message = "the worker stopped before it had ended, and it is not retried"
    return Failed(JobError("Stopped", message, "", attempt.claimed.attempt, now.isoformat()))


def uncommitted(attempt: Attempt, outcome: Outcome, now: datetime) -> Outcome:
    """The outcome of a handler that settled in a transaction it did not commit."""
    if not isinstance(outcome, Succeeded):
        return outcome
    why = RuntimeError("ctx.settle(tx) was called but the transaction was not committed: this attempt has failed")
    return Failed(error_from(why, attempt, now))


def error_from(error: BaseException, attempt: Attempt, now: datetime) -> JobError:
    """An exception as it is stored: even one that cannot be printed, and without secrets of the payload."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    message = _words(error)
    try:
        alone = says_all(error)
        frames = None if alone else own_frames(error.__traceback__)
        trace = "".join(traceback.format_exception(kind, error, frames, chain=not alone))
    except Exception:
        trace = ""
    return JobError(
        clean(name, 200),
        clean(attempt.conceal(message), MESSAGE_CAP),
        clean(attempt.conceal(trace), TRACEBACK_CAP, keep_end=True),
        attempt.claimed.attempt,
        now.isoformat(),
    )


def _words(error: BaseException) -> str:
    """What an exception says, even one that cannot be printed."""
    try:
        return str(error)
    except BaseException:
        return f"<{type(error).__qualname__} that cannot be printed>"


def own_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the handler's first line on: how treadle called it helps nobody."""
    return _first_of_others(trace) or trace


def says_all(error: BaseException) -> bool:
    """Whether this is an error of treadle's own that no other code has raised, as those of built-in tasks are.

    Its words say what is wrong and what to do; the lines of treadle that it came through help nobody.
    """
    return isinstance(error, TreadleError) and _first_of_others(error.__traceback__) is None


def _first_of_others(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith("treadle."):
        trace = trace.tb_next
    return trace


def _delayed(make: Callable[[], Outcome], attempt: Attempt, now: datetime) -> Outcome:
    try:
        return make()
    except Exception as error:  # a delay that is not a duration: the attempt failed, and the error says why
        return Failed(error_from(error, attempt, now))
