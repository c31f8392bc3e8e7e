"""What a job is: a frozen value.

Values are named tuples: evolved, never mutated, and cheap enough to make ten thousand times a second.
"""

import math
import os
import re
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

from treadle.errors import InvalidJob
from treadle.model.checks import KEY_CAP, check_name, check_priority, check_retry, check_text, check_trace
from treadle.model.keys import Scope
from treadle.model.retry import Retry
from treadle.model.state import Reason, State
from treadle.model.text import json_data


class JobError(NamedTuple):
    """What went wrong in an attempt."""

    type: str
    message: str
    traceback: str
    attempt: int
    at: str  # ISO 8601, UTC


class Progress(NamedTuple):
    """How far a handler says it is: a fraction from 0 to 1 and a note."""

    fraction: float
    note: str = ""


class FollowUp(NamedTuple):
    """What the end of a job brings about: a named event in the audit trail, a job of another task, or both."""

    event: str = ""
    task: str = ""
    queue: str = "default"
    lane: str = ""
    priority: int = 0
    version: int = 1
    retry: Retry = Retry()
    timeout: float | None = None
    wants: Sequence[str] | None = None  # which of the facts its handler names; None: all, without the result
    exhausted: str = ""  # the name of the event instead, of a job that has spent its attempts
    alone: bool = False  # whether the payload is the result itself
    on_end: "OnEnd | None" = None  # what follows in turn


class OnEnd(NamedTuple):
    """What is to follow when a job has ended."""

    succeeded: FollowUp | None = None
    failed: FollowUp | None = None


class Job(NamedTuple):
    """One request to run a task. Times are UTC; `payload_json` and `result_json` are JSON text as stored."""

    id: str
    task: str
    payload_json: str
    created_at: datetime
    due_at: datetime
    tenant: str = "default"
    queue: str = "default"
    lane: str = ""
    task_version: int = 1
    priority: int = 0
    retry: Retry = Retry()
    timeout: float | None = None
    expires_at: datetime | None = None
    key: str | None = None
    key_scope: Scope | None = None
    key_until: datetime | None = None
    schedule: str | None = None
    on_end: OnEnd | None = None
    trace: str | None = None  # W3C traceparent and, behind a space, tracestate
    state: State = State.PENDING
    reason: Reason | None = None
    result_json: str | None = None
    error: JobError | None = None
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    claimed_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    worker: str | None = None
    lease_until: datetime | None = None
    lease_token: str | None = None
    cancel_requested: bool = False
    progress: Progress | None = None
    cost_micros: int = 0
    revision: int = 0

    def evolve(self, **changes: Any) -> Self:
        """This job with some fields changed; faster than _replace, for every job passes here."""
        values: list[Any] = list(self)
        for name, value in changes.items():
            values[_PLACES[name]] = value
        return type(self)._make(values)

    def stored_at(self, now: datetime) -> Self:
        """A new job as it is stored: made now by the store's clock, and due no earlier."""
        due = self.due_at if self.due_at > self.created_at else now
        return type(self)._make((*self[:3], now, due, *self[5:]))

    @property
    def payload(self) -> Any:
        """The payload as data; what another program stored and is not JSON, as text."""
        return json_data(self.payload_json)

    @property
    def result(self) -> Any:
        return None if self.result_json is None else json_data(self.result_json)

    @property
    def max_attempts(self) -> int:
        return self.retry.max_attempts

    @property
    def attempts_made(self) -> int:
        """How many attempts of `max_attempts` it has made, the one that runs included; snoozes do not count."""
        match self.state:
            case State.PENDING:
                return self.failures
            case State.RUNNING | State.SUCCEEDED:
                return self.failures + 1
            case State.FAILED if self.reason is not None and self.reason.spent:
                return self.failures
            case State.FAILED | State.CANCELLED:  # in an attempt that was not a failure, unless it never started
                return self.failures if self.started_at is None else min(self.attempt, self.failures + 1)

    @property
    def tick(self) -> datetime | None:
        """The nominal time that a schedule made this job for, to the millisecond; None if no schedule made it.

        Of a run between the ticks, when that was asked for.
        """
        if self.schedule is None or self.id[14] != "7":
            return None
        return datetime.fromtimestamp(int(self.id[:8] + self.id[9:13], 16) / 1000, tz=UTC)

    @property
    def suspect(self) -> bool:
        """Whether a crash of this job would be held against it: it crashed before, or has one attempt only."""
        return self.crashes > 0 or self.retry.max_attempts == 1

    def label(self, now: datetime) -> str:
        """The state as people read it: also scheduled, retrying, claimed, expired and dead."""
        match self.state:
            case State.PENDING:
                if self.failures:
                    return "retrying"
                return "scheduled" if self.due_at > now else "pending"
            case State.RUNNING:
                return "running" if self.started_at else "claimed"
            case State.CANCELLED:
                return "expired" if self.reason is Reason.EXPIRED else "cancelled"
            case State.FAILED:
                return "dead" if self.reason is not None and self.reason.spent else "failed"
            case State.SUCCEEDED:
                return "succeeded"


_PLACES = {name: place for place, name in enumerate(Job._fields)}


def checked(job: Job) -> Job:
    """The job itself, if every engine will take it; otherwise InvalidJob naming the field and the limit."""
    for field in ("tenant", "queue", "task"):
        check_name(field, getattr(job, field))
    if job.lane != "":
        check_name("lane", job.lane)
    if job.key is not None:
        _check_key(job)
    check_priority(job.priority)
    check_retry(job.retry)
    if job.timeout is not None and not 0 < job.timeout < math.inf:
        raise InvalidJob("timeout", f"{job.timeout} must be more than 0 seconds, or None for no limit")
    if job.trace is not None:
        check_trace(job.trace)
    _check_times(job)
    if not UUID.fullmatch(job.id):
        raise InvalidJob("id", f"{job.id!r} is not a valid UUID; leave it out and treadle makes one")
    return job


def _check_key(job: Job) -> None:
    check_text("key", job.key, KEY_CAP)
    if job.key_scope is None:
        raise InvalidJob("unique", "a key needs a scope: pending, active, window or ever")
    if (job.key_scope is Scope.WINDOW) != (job.key_until is not None):
        raise InvalidJob("unique", "the window scope, and only that, needs a window such as '1d'")


def _check_times(job: Job) -> None:
    for field in ("created_at", "due_at", "expires_at", "key_until"):
        moment = getattr(job, field)
        if moment is not None and moment.tzinfo is None:
            raise InvalidJob(field, f"{moment!r} has no time zone; write datetime(..., tzinfo=UTC)")


# ---------------------------------------------------------------------------------------------------- ids


def new_id() -> str:
    """A UUIDv7: unique, and rising within this process, so that jobs made in order sort in order."""
    return new_ids(1)[0]


def new_ids(count: int) -> list[str]:
    """So many of them, each greater than the one before: one look at the clock and one call for randomness."""
    global _last_stamp  # noqa: PLW0603 - the one thing two ids of a process share
    with _id_lock:
        milliseconds, rest = divmod(time.time_ns(), 1_000_000)
        first = max(milliseconds << 12 | rest * 4096 // 1_000_000, _last_stamp + 1)
        _last_stamp = first + count - 1
    noise = bytearray(os.urandom(8 * count))
    noise[::8] = noise[::8].translate(_VARIANT)
    tail, high, head, ids = noise.hex(), -1, "", []
    for place in range(count):
        stamp, start = first + place, 16 * place
        if stamp >> 12 != high:
            high = stamp >> 12
            text = f"{high:012x}"
            head = f"{text[:8]}-{text[8:]}-7"
        ids.append(f"{head}{stamp & 0xFFF:03x}-{tail[start : start + 4]}-{tail[start + 4 : start + 16]}")
    return ids


_VARIANT = bytes(byte & 0x3F | 0x80 for byte in range(256))  # RFC 9562: the two high bits are 10
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_id_lock = threading.Lock()
_last_stamp = 0


def _free_id_lock() -> None:
    global _id_lock  # noqa: PLW0603 - the thread that held it is not in the child, and would never let it go
    _id_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_id_lock)
