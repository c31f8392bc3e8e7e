"""What a handler is given beside its arguments."""

import logging
import math
import sys
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from treadle.errors import InvalidJob, LeaseLost
from treadle.model import Job, Progress, clean
from treadle.tasks.secrets import Secrets, stand_in

if TYPE_CHECKING:
    from inspect import Parameter

    from treadle.model.memo import Memo
    from treadle.tasks.once import MemoBook

NOTE_CAP = 500

OnAmbiguous = Literal["park", "send", "skip"]
"""What to do if nobody knows whether an effect has happened: let a person decide, do it again, or take it as done."""


def check_on_ambiguous(given: object) -> None:
    """Refuse what is not one of these words."""
    if given not in get_args(OnAmbiguous):
        raise InvalidJob("on_ambiguous", f"{given!r} must be 'park', 'send' or 'skip'")


class StopReason(Enum):
    """Why a handler was asked to stop."""

    CANCEL = "its cancellation was requested"
    TIMEOUT = "it ran past its timeout"
    SHUTDOWN = "the worker is shutting down"
    LOST = "its lease was lost"


class RunningAttempt(Protocol):
    """What the context needs of the attempt behind it (worker.attempt.Attempt)."""

    stop_reason: StopReason | None
    progress: Progress | None
    cost_micros: int
    abandoned: bool
    secrets: Secrets

    @property
    def job(self) -> Job: ...

    def conceal(self, text: str) -> str: ...


class OwnWrites(Protocol):
    """What a handler reads and writes in the store itself, while it runs (worker.handler_writes)."""

    def settle(self, tx: Any, result: Any) -> None: ...

    async def asettle(self, tx: Any, result: Any) -> None: ...

    def now(self) -> datetime: ...

    def recall(self) -> "list[Memo]":
        """What the job remembers of earlier attempts."""
        ...

    def remember(self, memo: "Memo") -> None:
        """Write it, if the job is still ours; LeaseLost if not."""
        ...


running_attempt: ContextVar[RunningAttempt | None] = ContextVar("treadle_attempt", default=None)
"""The attempt that this code runs in; what a handler awaits and hands to `asyncio.to_thread` inherits it."""


class JobLog(logging.LoggerAdapter[logging.Logger]):
    """Says of each line which job it is about, beside the `extra` that the line has itself."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, {**kwargs, "extra": {**(kwargs.get("extra") or {}), **(self.extra or {})}}


class DiscreetJobLog(JobLog):
    """The same, and takes out of each line what is secret in the payload of the job."""

    def __init__(self, logger: logging.Logger, about: Mapping[str, object], conceal: Callable[[str], str]) -> None:
        super().__init__(logger, about)
        self._conceal = conceal

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if self.isEnabledFor(level):
            extra = {name: self._concealed(value) for name, value in (kwargs.get("extra") or {}).items()}
            text, more = self.process(_message(msg, args), {**kwargs, "extra": extra})
            error = _error(more.pop("exc_info", None))
            self.logger.log(
                level,
                self._conceal(text),
                exc_info=error and stand_in(error, self._conceal),
                **{**more, "stacklevel": more.get("stacklevel", 1) + 1},
            )

    def _concealed(self, value: Any) -> Any:
        """Data beside a line, as it is; only what would be printed with a secret in it becomes a text without it."""
        if isinstance(value, dict):
            return {self._concealed(key): self._concealed(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._concealed(item) for item in value]
        try:
            text = str(value)
            shown = self._conceal(text)
        except Exception:  # one that cannot be printed
            return f"<{type(value).__qualname__} that cannot be printed>"
        return value if shown == text else shown


def _message(msg: object, args: tuple[object, ...]) -> str:
    """The text of a log line; like the log itself, it never fails because of a wrong format."""
    with suppress(Exception):
        return logging.LogRecord("", logging.INFO, "", 0, msg, args, None).getMessage()
    with suppress(Exception):
        return f"{msg} {args}"
    return f"<{type(msg).__qualname__} that cannot be printed>"


def _error(exc_info: Any) -> BaseException | None:
    """The exception that a log line is to print, however that was said."""
    if isinstance(exc_info, BaseException) or not exc_info:
        return exc_info or None
    return exc_info[1] if isinstance(exc_info, tuple) else sys.exc_info()[1]


class Context:
    """The running attempt: ask for it with a parameter annotated `Context`.

    `progress`, `add_cost`, `once`, `settle` and their async faces raise LeaseLost once the lease has passed on: what
    they write is no longer wanted.
    """

    def __init__(self, attempt: RunningAttempt, writes: OwnWrites, logger: logging.Logger | None = None) -> None:
        self._attempt = attempt
        self._logger = logger or logging.getLogger("treadle.task")
        self._writes = writes

    @property
    def job(self) -> Job:
        """The job as it was claimed."""
        return self._attempt.job

    @property
    def attempt(self) -> int:
        """Which claim of the job this is, from 1."""
        return self._attempt.job.attempt

    @property
    def tick(self) -> datetime | None:
        """The nominal time that a schedule made this job for: the report of which night; None for any other job."""
        return self._attempt.job.tick

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop: cancelled on request, past its timeout, shutting down, or lease lost."""
        return self._attempt.stop_reason is not None

    @property
    def log(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger that carries the job's id and task."""
        about = {"job_id": self.job.id, "task": self.job.task}
        if self._attempt.secrets.paths:
            return DiscreetJobLog(self._logger, about, self._attempt.conceal)
        return JobLog(self._logger, about)

    def progress(self, fraction: float, note: str = "") -> None:
        """Tell how far the work is, from 0 to 1; readers see it within a second."""
        self._alive()
        if not isinstance(fraction, int | float) or not math.isfinite(fraction) or not 0 <= fraction <= 1:
            raise InvalidJob("progress", f"{fraction!r} must be from 0 to 1")
        self._attempt.progress = Progress(float(fraction), clean(self._attempt.conceal(str(note)), NOTE_CAP))

    def add_cost(self, micros: int) -> None:
        """Add to what this job has cost, in millionths of your currency; summed over its attempts."""
        self._alive()
        if not isinstance(micros, int) or micros < 0 or self._attempt.cost_micros + micros >= 2**63:
            raise InvalidJob("cost", f"{micros!r} must be a whole number of millionths, 0 or more")
        self._attempt.cost_micros += micros

    def settle(self, tx: Any, result: Any = None) -> None:
        """End this job as succeeded inside your own transaction: effect and completion commit together, or neither.

        `tx` is what `using(tx=…)` takes. Call it last: a transaction that is not committed makes this a failed attempt.
        """
        self._alive("; roll your transaction back")
        self._writes.settle(tx, result)

    async def asettle(self, tx: Any, result: Any = None) -> None:
        """`settle` for the transactions of async libraries."""
        self._alive("; roll your transaction back")
        await self._writes.asettle(tx, result)

    def once(
        self,
        name: str,
        effect: Callable[..., Any],
        /,
        *args: Any,
        on_ambiguous: OnAmbiguous = "park",
        look: Callable[[], Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call `effect(*args, **kwargs)` once, however often this job runs; later attempts are given what it returned.

        The job remembers before the call that it begins, and afterwards what it returned, as JSON. An error means that
        it did not happen, and the next attempt calls it again. After a crash, a timeout or a broken connection nobody
        knows. Then `look()` finds out: it returns what the effect would have, or None if it did not happen. Without a
        `look`, "park" ends the job as failed, for a person to decide, "send" calls it again, and "skip" takes it as
        done, with None.
        """
        from treadle.tasks.once import Effect, once  # noqa: PLC0415 - who only enqueues does not need it

        self._alive()
        return once(self._memos, Effect(name, effect, args, kwargs, on_ambiguous, look))

    async def aonce(
        self,
        name: str,
        effect: Callable[..., Any],
        /,
        *args: Any,
        on_ambiguous: OnAmbiguous = "park",
        look: Callable[[], Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """`once` for async handlers; `effect` and `look` may be async, and are called in a thread if they are not."""
        from treadle.tasks.once import Effect, aonce  # noqa: PLC0415

        self._alive()
        return await aonce(self._memos, Effect(name, effect, args, kwargs, on_ambiguous, look))

    @property
    def _memos(self) -> "MemoBook":
        """What this attempt knows of the job's memos; one for all threads of the handler."""
        from treadle.tasks.once import MemoBook  # noqa: PLC0415

        book: MemoBook = vars(self).setdefault("_shared_book", MemoBook(self.attempt, self._writes))
        return book

    def _alive(self, advice: str = "") -> None:
        if self._attempt.stop_reason is StopReason.LOST or self._attempt.abandoned:
            raise LeaseLost(
                f"job {self.job.id} is no longer yours: {(self._attempt.stop_reason or StopReason.LOST).value}{advice}"
            )


def stop_reason(ctx: Context) -> StopReason | None:
    """Why this handler should stop, for our own handlers: how long its worker waits for it depends on that."""
    return ctx._attempt.stop_reason


def is_context(parameter: "Parameter") -> bool:
    """Whether this parameter is given the Context: annotated `Context`, or `Context | None` with a default."""
    kind = parameter.annotation
    return kind is Context or (Context in get_args(kind) and set(get_args(kind)) <= {Context, type(None)})
