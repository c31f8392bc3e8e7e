"""Everything treadle raises, in one tree.

TreadleError
├── InvalidInput          a value that the caller gave cannot be accepted: names the field, the limit and the way out
│   ├── InvalidJob        a field of a job
│   │   └── InvalidPayload    the arguments do not fit the task
│   └── InvalidTiming     a cron expression, a time zone, a duration (a ConfigError too)
├── UnknownTask           no task of that name is registered
├── JobNotFound           no job of that id
├── ScheduleNotFound      no schedule of that name
├── KeyTaken              another job holds this key, and the caller asked to be told
├── NotPossible           the job's state does not allow what an operator asked for
├── WaitTimeout           the job has not ended in the time that somebody would wait for it
├── JobFailed             the job whose result was asked for has failed or was cancelled
├── LeaseLost             this worker no longer holds the job
├── NotDelivered          another system did not take what it was sent; a later attempt may do better
│   └── Unreachable           it was not sent: the name, the connection or the certificate failed
├── Ambiguous             raised by an effect of `ctx.once`: nobody knows whether it happened
├── ConfigError           a setting, a URL or an --app that cannot be used
└── EngineError           the store said no: look at it before repeating
    ├── EngineUnavailable the store did not answer: repeating is safe
    └── SchemaError       the tables are newer than this treadle, or not as it left them

Said by handlers, not errors (each ends an attempt in its own way):

HandlerOutcome
├── Snooze                come back later, spends nothing
├── RetryLater            failed, come back after a delay of my choosing, spends one attempt
├── GiveUp                failed for good, no further attempt
│   └── Parked            said by `ctx.once`: nobody knows whether an effect has happened, a person decides
└── Cancelled             stop here, the job ends cancelled
"""

from collections.abc import Iterable
from datetime import timedelta
from difflib import get_close_matches
from typing import Any


class TreadleError(Exception):
    """The base of every error treadle raises."""


class InvalidInput(TreadleError, ValueError):
    """A value that cannot be accepted, whoever gave it; nothing was written. A web app answers 422."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        self.problem = problem
        super().__init__(f"{field}: {problem}")


class InvalidJob(InvalidInput):
    """A value that no engine would accept; nothing was written."""


class InvalidPayload(InvalidJob):
    """The arguments do not fit the task's signature or model; `parts` says it of each of them, if it is known."""

    def __init__(self, field: str, problem: str, parts: Iterable[tuple[str, str]] = ()) -> None:
        self.parts = tuple(parts)
        super().__init__(field, problem)


class UnknownTask(TreadleError, LookupError):
    """No task of that name is registered with this app."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = sorted(known)
        near = get_close_matches(name, self.known, 1)
        self.hint = f"did you mean {near[0]!r}?" if near else f"known tasks: {', '.join(self.known) or 'none'}"
        super().__init__(f"no task {name!r} is registered here ({self.hint})")


class JobNotFound(TreadleError, LookupError):
    """No job of that id (it may have been pruned)."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"there is no job {job_id}; finished jobs are pruned after their retention time")


class ScheduleNotFound(TreadleError, LookupError):
    """No schedule of that name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        near = get_close_matches(name, list(known), 1)
        hint = f"did you mean {near[0]!r}?" if near else "`treadle schedules list` shows those there are"
        super().__init__(f"there is no schedule {name!r}; {hint}")


class KeyTaken(TreadleError):
    """Another job holds the key; `holder` is its id."""

    def __init__(self, key: str, holder: str) -> None:
        self.key = key
        self.holder = holder
        super().__init__(f"key {key!r} is held by job {holder}")


class NotPossible(TreadleError):
    """The job is in a state that does not allow this."""


class WaitTimeout(TreadleError, TimeoutError):
    """The job has not ended in the time that somebody would wait for it. It goes on."""

    def __init__(self, job_id: str, waited: float) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id} has not ended within {waited:g} s; it goes on, and can be waited for again")


class JobFailed(TreadleError):
    """The job whose result was asked for has failed or was cancelled; `job` says why."""

    def __init__(self, job: Any) -> None:
        self.job = job
        why = f": {job.error.type}: {job.error.message}" if job.error is not None else ""
        super().__init__(f"job {job.id} ({job.task}) has ended as {job.state} ({job.reason}){why}")


class LeaseLost(TreadleError):
    """The lease has passed on, or the job was stopped: no write of this attempt is accepted any more."""


class Ambiguous(TreadleError):
    """Raise it in an effect of `ctx.once` that may have happened, or not: `on_ambiguous` says what follows."""


class NotDelivered(TreadleError):
    """The other system did not take it: this attempt has failed, and a later one may do better."""


class Unreachable(NotDelivered):
    """It was not sent: the name, the connection or the certificate failed."""


class ConfigError(TreadleError):
    """A setting that cannot be used; the message names it and says what to write instead."""


class InvalidTiming(InvalidInput, ConfigError):
    """A cron expression, a time zone, an interval or a duration that cannot be used: `field: problem`."""

    def __init__(self, message: str) -> None:
        field, _, problem = message.partition(": ")
        super().__init__(field, problem)


class EngineError(TreadleError):
    """The store refused; the driver's own error is the cause."""


class EngineUnavailable(EngineError):
    """The store did not answer in time; it is safe to repeat the call."""


class SchemaError(EngineError):
    """The tables are not the ones this version of treadle knows."""


class HandlerOutcome(Exception):
    """The base of what a handler may raise to say how its attempt ended."""


class Snooze(HandlerOutcome):
    """Put the job back for a while; spends no attempt: `raise Snooze("10m")`."""

    def __init__(self, delay: float | str | timedelta) -> None:
        self.delay = delay
        super().__init__(f"snoozed for {delay}")


class RetryLater(HandlerOutcome):
    """This attempt failed; try again after `after` instead of the task's own backoff."""

    def __init__(self, why: str = "retry later", *, after: float | str | timedelta) -> None:
        self.after = after
        super().__init__(why)


class GiveUp(HandlerOutcome):
    """This job cannot succeed: end it failed(permanent) without another attempt."""

    def __init__(self, why: str) -> None:
        super().__init__(why)


class Parked(GiveUp):
    """Nobody knows whether an effect has happened, and its job waits, failed, for a person: a retry does it again."""


class Cancelled(HandlerOutcome):
    """Stop here: the job ends cancelled."""

    def __init__(self, why: str = "cancelled by its handler") -> None:
        super().__init__(why)
