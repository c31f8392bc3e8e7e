"""The words of treadle as frozen values: what a job is, what a change is, what an event is.

Values are named tuples: evolved, never mutated, and cheap enough to make ten thousand times a second.
"""

import json
import math
import re
import secrets
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import Enum, StrEnum
from typing import Any, NamedTuple, Self

from treadle.errors import InvalidJob
from treadle.model.retry import Retry

PAYLOAD_CAP = 1024 * 1024  # bytes of JSON; of a result too
NAME_CAP = 200  # bytes of UTF-8 in a queue, lane, task, tenant or worker
KEY_CAP = 1000  # with tenant and task it must fit one index row on every engine
MESSAGE_CAP = 4_000
TRACEBACK_CAP = 32_000
PRIORITIES = range(-(2**31), 2**31)
ATTEMPTS = range(1, 10_001)


class State(StrEnum):
    """Where a job stands; the last three are final."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self not in (State.PENDING, State.RUNNING)


class Reason(StrEnum):
    """Why a job ended failed or cancelled."""

    EXHAUSTED = "exhausted"
    PERMANENT = "permanent"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    UNKNOWN_TASK = "unknown_task"
    INVALID_PAYLOAD = "invalid_payload"
    INVALID_RESULT = "invalid_result"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    BY_REQUEST = "by_request"


class Scope(StrEnum):
    """How long a key keeps other jobs of its tenant and task away."""

    PENDING = "pending"
    ACTIVE = "active"
    WINDOW = "window"
    EVER = "ever"

    def covers(self, state: State) -> bool:
        """Whether a job in `state` must hold its key; windows and evers outlive their job."""
        match self:
            case Scope.PENDING:
                return state is State.PENDING
            case Scope.ACTIVE:
                return not state.final
            case Scope.WINDOW | Scope.EVER:
                return True


class What(StrEnum):
    """What happened, for the audit trail."""

    ENQUEUED = "enqueued"
    CLAIMED = "claimed"
    SUCCEEDED = "succeeded"
    SNOOZED = "snoozed"
    RELEASED = "released"
    REPLACED = "replaced"
    RETRYING = "retrying"
    CRASHED = "crashed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    CANCEL_REQUESTED = "cancel_requested"
    RETRIED = "retried"
    CREATED = "created"  # from here on, of a schedule or a pause
    CHANGED = "changed"
    ENABLED = "enabled"
    DISABLED = "disabled"
    DELETED = "deleted"
    RUN_REQUESTED = "run_requested"
    PAUSED = "paused"
    RESUMED = "resumed"

    @classmethod
    def _missing_(cls, value: object) -> "What":
        """A word of a newer treadle, or somebody's own: shown as it is."""
        word = str.__new__(cls, str(value))
        word._name_ = word._value_ = str(value)
        return word

    @property
    def noteworthy(self) -> bool:
        """Failures and acts of operators: written at every audit level."""
        return self not in _ROUTINE


_ROUTINE = frozenset((What.ENQUEUED, What.CLAIMED, What.SUCCEEDED, What.SNOOZED, What.RELEASED, What.REPLACED))


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
    """What the end of a job brings about: a named line in the audit trail, a job of another task, or both."""

    event: str = ""
    task: str = ""
    queue: str = "default"
    lane: str = ""
    priority: int = 0
    version: int = 1
    retry: Retry = Retry()
    timeout: float | None = None
    wants: Sequence[str] | None = None  # which of the facts its handler names; None: all


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

    @property
    def payload(self) -> Any:
        """The payload as data; what another program stored that is no JSON, as text."""
        return _data(self.payload_json)

    @property
    def result(self) -> Any:
        return None if self.result_json is None else _data(self.result_json)

    @property
    def max_attempts(self) -> int:
        return self.retry.max_attempts

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
                return "dead" if self.reason in (Reason.EXHAUSTED, Reason.CRASHED) else "failed"
            case State.SUCCEEDED:
                return "succeeded"


def _data(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


_PLACES = {name: place for place, name in enumerate(Job._fields)}


class Fence(Enum):
    """What a change compares before it is written; every engine obeys the same four."""

    HOLDER = "holder"  # running, token and revision: settle, snooze, release by the worker that holds the job
    RECOVERY = "recovery"  # the same, and lease_until as read, and that moment past by the store's clock
    REVISION = "revision"  # state and revision: operators, expiry, replace
    RUNNING = "running"  # state running only: the cancel request, whose flag never falls


class Event(NamedTuple):
    """One audit line: who did what to which job, when and why; its key is (job_id, revision, at)."""

    job_id: str
    revision: int
    at: datetime
    what: What
    actor: str
    note: str
    tenant: str


class Change(NamedTuple):
    """One transition, decided by lifecycle and written by an engine, with its audit line, in one atom."""

    before: Job
    after: Job
    what: What
    fence: Fence
    at: datetime
    actor: str
    note: str = ""
    loud: bool = False  # its audit line is written at every level
    follow: Job | None = None  # a job to store with it

    @property
    def line(self) -> Event:
        """What the audit trail keeps of it."""
        job = self.after
        return Event(job.id, job.revision, self.at, self.what, self.actor, self.note, job.tenant)

    @property
    def takes_key(self) -> bool:
        """Whether the job must hold its key after the change, and need not before."""
        scope = self.after.key_scope
        if scope is None or scope in (Scope.WINDOW, Scope.EVER):
            return False
        return scope.covers(self.after.state) and not scope.covers(self.before.state)

    @property
    def frees_key(self) -> bool:
        """Whether the job's key is free after the change."""
        scope = self.before.key_scope
        return scope is not None and scope.covers(self.before.state) and not scope.covers(self.after.state)


def checked(job: Job) -> Job:
    """The job itself, if every engine will take it; otherwise InvalidJob naming the field and the limit."""
    for field in ("tenant", "queue", "task"):
        check_name(field, getattr(job, field))
    if job.lane != "":
        check_name("lane", job.lane)
    if job.key is not None:
        check_text("key", job.key, KEY_CAP)
        if job.key_scope is None:
            raise InvalidJob("unique", "a key needs a scope: pending, active, window or ever")
        if (job.key_scope is Scope.WINDOW) != (job.key_until is not None):
            raise InvalidJob("unique", "the window scope, and only that, needs a window such as '1d'")
    if not isinstance(job.priority, int) or job.priority not in PRIORITIES:
        raise InvalidJob("priority", f"{job.priority!r} must be a whole number that fits 32 bits")
    check_retry(job.retry)
    if job.timeout is not None and not 0 < job.timeout < math.inf:
        raise InvalidJob("timeout", f"{job.timeout} must be more than 0 seconds, or None for no limit")
    for field in ("created_at", "due_at", "expires_at", "key_until"):
        moment = getattr(job, field)
        if moment is not None and moment.tzinfo is None:
            raise InvalidJob(field, f"{moment!r} has no time zone; write datetime(..., tzinfo=UTC)")
    if not UUID.fullmatch(job.id):
        raise InvalidJob("id", f"{job.id!r} is no UUID; leave it out and treadle makes one")
    return job


def check_retry(retry: Retry) -> None:
    """Refuse a budget or backoff that cannot be meant."""
    if not isinstance(retry, Retry):
        raise InvalidJob("retry", f"{retry!r} is no policy; write Retry(max_attempts=3)")
    if not isinstance(retry.max_attempts, int) or retry.max_attempts not in ATTEMPTS:
        raise InvalidJob("max_attempts", f"{retry.max_attempts} must be from 1 to {ATTEMPTS[-1]:,}")
    for field in ("base", "cap", "jitter"):
        value = getattr(retry, field)
        if not (value is None and field == "cap") and not 0 <= value < math.inf:
            raise InvalidJob(field, f"{value} must be 0 seconds or more")


def check_name(field: str, value: object) -> None:
    """Refuse a name that is empty, too long, or holds what some engine cannot store."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidJob(field, f"{value!r} is no name; give it at least one letter")
    if value == "*":
        raise InvalidJob(field, "'*' is no name: in a pause it stands for all of them")
    check_text(field, value, NAME_CAP)


def check_text(field: str, value: object, cap: int) -> None:
    """Refuse text that is too long or that some engine cannot store."""
    if not isinstance(value, str) or not value:
        raise InvalidJob(field, f"{value!r} must be text that is not empty")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidJob(field, f"{value!r} holds half a character (a lone surrogate)") from None
    if size > cap:
        raise InvalidJob(field, f"is {size:,} bytes long; the limit is {cap:,}: shorten or hash it")
    if any(ord(c) < 32 or ord(c) == 127 for c in value):
        raise InvalidJob(field, f"{value!r} holds a control character; remove it")


def json_text(value: Any, field: str, cap: int = PAYLOAD_CAP) -> str:
    """JSON that every engine stores and gives back alike, or InvalidJob saying why this is none."""
    if value is None:
        return "null"
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
    except RecursionError:
        raise InvalidJob(field, "is nested too deeply for JSON") from None
    except (TypeError, ValueError) as error:
        raise InvalidJob(field, f"cannot be JSON: {error}; return plain data or a Pydantic model") from None
    return check_json(text, field, cap)


def check_json(text: str, field: str, cap: int = PAYLOAD_CAP) -> str:
    """The same text, if it is short enough and free of what some engine refuses."""
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise InvalidJob(field, "holds half a character (a lone surrogate), which no database stores") from None
    if size > cap:
        raise InvalidJob(field, f"is {size:,} bytes of JSON; the limit is {cap:,}: store it and pass a link")
    if "\0" in text or holds_nul(text):
        raise InvalidJob(field, "holds a NUL character, which not every database stores: remove it")
    return text


def holds_nul(json_text: str) -> bool:
    """Whether some string in this JSON holds a NUL character, written as an escape."""
    return "\\u0000" in json_text and _NUL.search(json_text) is not None


def clean(text: str, cap: int, *, keep_end: bool = False) -> str:
    """Text for people, made storable: NULs and half characters replaced, cut to `cap` characters."""
    text = text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="backslashreplace").decode()
    if len(text) <= cap:
        return text
    return f"[cut] {text[-cap:]}" if keep_end else f"{text[:cap]} [cut]"


def new_id() -> str:
    """A UUIDv7: unique, and rising within this process, so that jobs made in order sort in order."""
    global _last_stamp  # noqa: PLW0603 - the one thing two ids of a process share
    with _id_lock:
        milliseconds, rest = divmod(time.time_ns(), 1_000_000)
        stamp = max(milliseconds << 12 | rest * 4096 // 1_000_000, _last_stamp + 1)
        _last_stamp = stamp
    high = f"{stamp >> 12:012x}"
    low = f"{secrets.randbits(62) | 1 << 63:016x}"
    return f"{high[:8]}-{high[8:]}-7{stamp & 4095:03x}-{low[:4]}-{low[4:]}"


_id_lock = threading.Lock()
_last_stamp = 0
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def _plain(value: Any) -> Any:
    """What Pydantic makes of a value json does not know; bytes are refused, for nobody can say their encoding."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python  # noqa: PLC0415 - heavy, seldom needed

    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("bytes have no JSON form (base64 them)")
    try:
        plain = to_jsonable_python(value, inf_nan_mode="constants")
    except (PydanticSerializationError, UnicodeDecodeError) as error:
        raise TypeError(str(error)) from None
    if hasattr(value, "model_dump"):
        check_finite(value.model_dump())
    return plain


def check_finite(value: Any) -> None:
    """Refuse NaN and infinity anywhere in this data: JSON has none, and Pydantic would write null in their place."""
    match value:
        case float() if not math.isfinite(value):
            raise ValueError(f"{value} has no JSON form")
        case dict():
            for item in value.values():
                check_finite(item)
        case list() | tuple() | set() | frozenset():
            for item in value:
                check_finite(item)
        case _:
            pass
