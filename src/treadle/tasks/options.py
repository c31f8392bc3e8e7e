"""What an enqueue may ask for beside the payload, and what that makes of a job."""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from treadle.errors import InvalidJob
from treadle.model import Job, OnEnd, Scope, check_name, checked
from treadle.model.clock import Duration, moment, seconds
from treadle.model.retry import Retry
from treadle.tasks.secrets import Path

UNSTAMPED = datetime.fromtimestamp(0, UTC)
"""The times of a new job that is due at once: the store writes its own in their place."""

_ANY_ID = "00000000-0000-7000-8000-000000000000"


class OnConflict(StrEnum):
    """What an enqueue does when another job holds its key."""

    FIRST = "first"
    RAISE = "raise"
    REPLACE = "replace"


class Unique(NamedTuple):
    """How a key keeps jobs apart: for how long, and what happens to the second one.

    `scope`: "pending", "active", "window" (with `window="1d"`) or "ever". `on_conflict`: "first" returns the job that
    holds the key, "raise" raises KeyTaken, "replace" edits it in place while it is pending.
    """

    scope: str = "active"
    on_conflict: str = "first"
    window: Duration | None = None


class Options(NamedTuple):
    """Everything an enqueue may ask for beside the payload."""

    queue: str = "default"
    lane: str = ""
    tenant: str | None = None
    priority: int = 0
    retry: Retry = Retry()
    timeout: float | None = None
    version: int = 1
    isolated: bool = False  # of a process, one job at a time of all isolated tasks
    unique: Unique = Unique()
    on_end: OnEnd | None = None
    secret: tuple[Path, ...] = ()  # paths in the payload that nobody is shown
    key: str | None = None
    run_after: Duration | datetime | None = None
    expires_at: Duration | datetime | None = None
    schedule: str | None = None
    trace: str | None = None
    id: str | None = None
    tx: Any = None
    notify: bool = False  # with tx: its commit tells the workers of other processes


class Blueprint(NamedTuple):
    """What all jobs of the same task and options have in common, checked once for all of them."""

    job: Job  # a job that is due at once; its id and its payload stand for any
    conflict: OnConflict
    timed: bool  # whether some of its times are counted from the store's
    new: bool  # whether each job has an id that treadle makes, and no key: then no other job is in its way


def blueprint(task: str, options: Options) -> Blueprint:
    """What these options make of every job of a task; InvalidJob names the option that cannot be."""
    window = _window(options)
    if options.schedule is not None:
        check_name("schedule", options.schedule)
    job = Job(
        id=_ANY_ID if options.id is None else options.id,
        task=task,
        payload_json="null",
        created_at=UNSTAMPED,
        due_at=UNSTAMPED,
        tenant="default" if options.tenant is None else options.tenant,
        queue=options.queue,
        lane=options.lane,
        task_version=options.version,
        priority=options.priority,
        retry=options.retry,
        timeout=options.timeout,
        key=options.key,
        key_scope=_scope(options),
        key_until=None if window is None else UNSTAMPED,
        schedule=options.schedule,
        trace=options.trace,
    )
    checked(job)
    timed = window is not None or options.run_after is not None or options.expires_at is not None
    return Blueprint(job, _conflict(options.unique), timed, options.id is None and options.key is None)


def times(options: Options, now: datetime) -> dict[str, Any]:
    """The times of a job that is enqueued now, by the store's clock."""
    due_at = moment(options.run_after, now, "run_after") or now
    expires_at = moment(options.expires_at, now, "expires_at")
    new = options.id is None and options.key is None  # a repeated enqueue is answered with the job it made before
    if new and expires_at is not None and expires_at <= max(due_at, now):
        what = "is past" if expires_at <= now else f"comes before it is due, at {due_at:%Y-%m-%d %H:%M:%S} UTC"
        raise InvalidJob("expires_at", f"{expires_at:%Y-%m-%d %H:%M:%S} UTC {what}: it would never run")
    window = _window(options)
    key_until = None if window is None else now + timedelta(seconds=window)
    return {"created_at": now, "due_at": due_at, "expires_at": expires_at, "key_until": key_until}


def unique_of(given: Unique | str | None) -> Unique | None:
    """A key's rule as it may be given: whole, or by its scope alone."""
    if given is None or isinstance(given, Unique):
        return given
    if isinstance(given, str):
        return Unique(given)
    raise InvalidJob("unique", f"{given!r} must be a scope such as 'active', or Unique(...)")


def _conflict(unique: Unique) -> OnConflict:
    try:
        return OnConflict(unique.on_conflict)
    except ValueError:
        raise InvalidJob("on_conflict", f"{unique.on_conflict!r} must be first, raise or replace") from None


def _scope(options: Options) -> Scope | None:
    if options.key is None:
        return None
    try:
        return Scope(options.unique.scope)
    except ValueError:
        raise InvalidJob("unique", f"{options.unique.scope!r} must be pending, active, window or ever") from None


def _window(options: Options) -> float | None:
    """How long the key is held, in seconds, if that is asked for."""
    if options.key is None or options.unique.window is None:
        return None
    window = seconds(options.unique.window, "window")
    if window == 0:
        raise InvalidJob("window", "0 seconds keep nobody away; write a time such as '1d'")
    return window
