"""Hooks: what a program does around the enqueue and the run of jobs, and when they are claimed, settled or have failed.

>>> from collections.abc import Iterator
>>> from treadle import Context, Treadle
>>> app = Treadle("sqlite:///:memory:")
>>> @app.hooks.around_run
... def timed(ctx: Context) -> Iterator[None]:
...     print("begin", ctx.job.task)
...     yield
...     print("end")

A hook around something is a generator function with one `yield`. The hooks that were added first are the outermost.
"""

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from treadle.errors import ConfigError, InvalidJob
from treadle.model import EventKind, Job
from treadle.model.alike import with_trace
from treadle.model.checks import check_trace
from treadle.tasks.context import Context

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

EnqueueHook = Callable[[Sequence[Job]], Iterator[str | None]] | Callable[[Sequence[Job]], Iterator[None]]
RunHook = Callable[[Context], Iterator[None]] | Callable[[Context], AsyncIterator[None]]
ClaimHook = Callable[[Sequence[Job]], object] | Callable[[Sequence[Job]], Awaitable[object]]
SettleHook = Callable[["AttemptEnd"], object] | Callable[["AttemptEnd"], Awaitable[object]]

_log = logging.getLogger("treadle.hooks")

E = TypeVar("E", bound=EnqueueHook)
R = TypeVar("R", bound=RunHook)
C = TypeVar("C", bound=ClaimHook)
S = TypeVar("S", bound=SettleHook)
T = TypeVar("T")


class AttemptEnd(NamedTuple):
    """How an attempt ended, as the store has it now."""

    job: Job  # with its state, result or error
    kind: EventKind
    duration: float | None  # seconds that the handler ran; None: it was not called, or its process has died
    exception: BaseException | None = None  # what the handler raised; of a job whose process has died there is none


class Hooks:
    """The hooks of an app: `app.hooks`. Each method is a decorator, and returns the function as it is."""

    def __init__(self) -> None:
        self.enqueue: list[EnqueueHook] = []
        self.run: list[RunHook] = []
        self.claim: list[ClaimHook] = []
        self.settle: list[SettleHook] = []
        self.failure: list[SettleHook] = []
        self._has_warned = False  # of what is yielded and is not a trace

    def around_enqueue(self, hook: E) -> E:
        """Call it around each enqueue, in the thread of the caller, with the jobs as they are to be stored.

        What it raises before its `yield` keeps them from being stored. An error of the store is raised at the `yield`.
        It may yield a trace: those jobs that belong to none then belong to that one. All else it yields is ignored.
        """
        if not inspect.isgeneratorfunction(hook):
            raise ConfigError(
                f"around_enqueue: {_name(hook)} must be a generator function: `def` with one `yield`. "
                "It cannot be async, for jobs are enqueued without an event loop too"
            )
        self.enqueue.append(hook)
        return hook  # type: ignore[return-value] # the check has narrowed it

    def enqueuing(self, jobs: Sequence[Job], store: Callable[[Sequence[Job]], T]) -> T:
        """Store these jobs inside the hooks, with the trace that a hook gives them."""
        return inside(self.enqueue, jobs, store, passed_on=self._traced)

    async def aenqueuing(self, jobs: Sequence[Job], store: Callable[[Sequence[Job]], Awaitable[T]]) -> T:
        """The same for async code."""
        return await ainside(self.enqueue, jobs, store, passed_on=self._traced)

    def _traced(self, jobs: Sequence[Job], trace: object) -> Sequence[Job]:
        """The jobs with what a hook around their enqueue has yielded, if that is a trace."""
        if trace is None:
            return jobs
        try:
            check_trace(trace)
        except InvalidJob:
            if not self._has_warned:
                _log.warning("a hook around_enqueue yields a %s that is not a trace: ignored", type(trace).__name__)
                self._has_warned = True
            return jobs
        return with_trace(jobs, str(trace))

    def around_run(self, hook: R) -> R:
        """Call it around each handler, where the handler runs; what the handler raises is raised at the `yield`.

        An error of the hook is one of the attempt. To swallow the handler's error changes nothing. A generator of `def`
        must not block around an async handler. One of `async def` runs on the event loop, around any handler.
        """
        if not inspect.isgeneratorfunction(hook) and not inspect.isasyncgenfunction(hook):
            raise ConfigError(
                f"around_run: {_name(hook)} must be a generator function: `def` or `async def` with one `yield`"
            )
        self.run.append(hook)
        return hook

    def on_claim(self, hook: C) -> C:
        """Call it with the jobs that a worker has just claimed. An error of the hook is logged, and changes nothing."""
        self.claim.append(_checked("on_claim", hook))
        return hook

    def on_settle(self, hook: S) -> S:
        """Call it with the end of each attempt, once that is stored: success, failure, retry, cancellation, release."""
        self.settle.append(_checked("on_settle", hook))
        return hook

    def on_failure(self, hook: S) -> S:
        """Call it with the end of each job that has failed for good, crashed ones too: to alert, to report."""
        self.failure.append(_checked("on_failure", hook))
        return hook


def _checked(kind: str, hook: Any) -> Any:
    if not callable(hook) or inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook):
        raise ConfigError(f"{kind}: {_name(hook)} must be a function, `def` or `async def`, without a `yield`")
    return hook


def _name(hook: object) -> str:
    return str(getattr(hook, "__qualname__", repr(hook)))


# --------------------------------------------------------------------------------------- inside the hooks


def _as_given(given: Any, _: object) -> Any:
    return given


def inside(
    hooks: Sequence[Callable[[Any], Any]],
    given: Any,
    call: Callable[[Any], T],
    loop: "AbstractEventLoop | None" = None,
    passed_on: Callable[[Any, object], Any] = _as_given,
) -> T:
    """Call it inside these hooks; async ones take their steps on the `loop` of another thread.

    What the next hook and `call` are given is `passed_on`, from what the hook was given and what it has yielded.
    """
    failure: BaseException | None = None
    with ExitStack() as stack:
        for hook in hooks:
            if inspect.isasyncgenfunction(hook):
                stack.enter_context(_on_loop(asynccontextmanager(hook)(given), loop))
            else:
                given = passed_on(given, stack.enter_context(contextmanager(hook)(given)))
        try:
            return call(given)
        except BaseException as error:
            failure = error
            raise
    raise failure  # a hook has swallowed it


async def ainside(
    hooks: Sequence[Callable[[Any], Any]],
    given: Any,
    call: Callable[[Any], Awaitable[T]],
    passed_on: Callable[[Any, object], Any] = _as_given,
) -> T:
    """Await it inside these hooks."""
    failure: BaseException | None = None
    async with AsyncExitStack() as stack:
        for hook in hooks:
            if inspect.isasyncgenfunction(hook):
                await stack.enter_async_context(asynccontextmanager(hook)(given))
            else:
                given = passed_on(given, stack.enter_context(contextmanager(hook)(given)))
        try:
            return await call(given)
        except BaseException as error:
            failure = error
            raise
    raise failure


@contextmanager
def _on_loop(manager: AbstractAsyncContextManager[None], loop: "AbstractEventLoop | None") -> Iterator[None]:
    """An async context manager whose steps are taken on the loop of another thread."""

    from asyncio import run_coroutine_threadsafe  # noqa: PLC0415 - a process that only enqueues does not need it

    async def outcome(step: Coroutine[Any, Any, T]) -> tuple[T | None, BaseException | None]:
        try:
            return await step, None
        except BaseException as error:  # as a value: raised in a task, SystemExit would end the worker's event loop
            return None, error

    def wait(step: Coroutine[Any, Any, T]) -> T | None:
        if loop is None:
            raise RuntimeError("an async hook needs the event loop of a worker")
        value, error = run_coroutine_threadsafe(outcome(step), loop).result()
        if error is not None:
            raise error
        return value

    wait(manager.__aenter__())
    try:
        yield
    except BaseException as error:
        if not wait(manager.__aexit__(type(error), error, error.__traceback__)):
            raise
    else:
        wait(manager.__aexit__(None, None, None))
