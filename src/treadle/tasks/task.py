"""A task: a handler under a name, and the ways to ask for it to be run."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from datetime import datetime
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

from treadle.engines.values import Receipt
from treadle.errors import InvalidJob, InvalidPayload
from treadle.model import Job
from treadle.model.clock import Duration, seconds
from treadle.model.retry import Retry
from treadle.tasks.context import Context
from treadle.tasks.definition import Definition
from treadle.tasks.options import Blueprint, Options, Unique, blueprint, unique_of
from treadle.tasks.payload import Payload

P = ParamSpec("P")
R = TypeVar("R")
Call = tuple[Any, ...] | Mapping[str, Any]
"""A tuple of arguments, or a dict of named ones."""

ELSEWHERE = {
    "delay": "enqueue(…)",
    "apply_async": "using(run_after='5m', …).enqueue(…)",
    "send": "enqueue(…)",
    "send_with_options": "using(…).enqueue(…)",
    "defer": "enqueue(…)",
    "defer_async": "aenqueue(…)",
    "configure": "using(…)",
    "schedule": "using(run_after='5m').enqueue(…)",
    "enqueue_in": "using(run_after='5m').enqueue(…)",
    "enqueue_at": "using(run_after=…).enqueue(…)",
    "map": "enqueue_many([…])",
    "s": "enqueue(…)",
}
"""What somebody who comes from another library writes, and what to write instead."""

CHUNK = 1000  # calls of an iterator that are checked, then stored, before the next are asked for


class TaskEnqueuer(Protocol):
    """What a task needs to enqueue itself (app.enqueue.Enqueuer): a job for each payload, a receipt for each job."""

    def enqueue(self, task: "Task[..., Any]", payloads: Sequence[str]) -> Sequence[Receipt]: ...

    def enqueue_chunks(self, task: "Task[..., Any]", chunks: Iterable[Sequence[str]]) -> Sequence[Receipt]: ...

    async def aenqueue(self, task: "Task[..., Any]", encode: Callable[[], Sequence[str]]) -> Sequence[Receipt]: ...


class Task(Generic[P, R]):
    """A handler under a name. Call it like the function it wraps, or enqueue it."""

    def __init__(self, enqueuer: TaskEnqueuer, definition: Definition, options: Options | None = None) -> None:
        self.definition = definition
        self.name = definition.name
        self.handler = handler = definition.handler
        self.options = definition.options if options is None else options
        self._enqueuer = enqueuer
        self.__name__ = getattr(handler, "__name__", definition.name)
        self.__doc__ = handler.__doc__
        self.__wrapped__ = handler

    if not TYPE_CHECKING:  # a type checker finds what is missing by itself

        def __getattr__(self, name: str) -> Any:
            """What other libraries call it, with the word that we have for it."""
            hint = f"; write {self.name}.{ELSEWHERE[name]}" if name in ELSEWHERE else ""
            raise AttributeError(f"task {self.name!r} has no attribute {name!r}{hint}")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the handler here and now, as the plain function it is; one that takes a Context is given it."""
        try:
            result: R = self.handler(*args, **kwargs)
        except TypeError as error:
            given = any(isinstance(value, Context) for value in (*args, *kwargs.values()))
            if given or not self.definition.takes_context:
                raise
            raise TypeError(
                f"task {self.name!r} takes a Context; in a test, pass treadle.testing.FakeContext() ({error})"
            ) from error
        return result

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Store a job that will run this task with these arguments; the job, or the one that holds its key."""
        return _stored(self._enqueuer.enqueue(self, [self.definition.payload.encode(args, kwargs)]))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """`enqueue` for async code: the loop goes on while the store works."""
        return _stored(await self._enqueuer.aenqueue(self, lambda: [self.payload.encode(args, kwargs)]))

    def enqueue_many(self, calls: Iterable[Call]) -> Sequence[Receipt]:
        """Store many jobs in one go; each call is a tuple of arguments or a dict of named ones. A Receipt each.

        Arguments are checked before anything is stored; then each job stands for itself. With `on_conflict="raise"` the
        first taken key raises KeyTaken after the others have been stored.

        An iterator of any length is read, checked and stored in chunks of 1,000 calls, so that memory stays small. An
        error ends it, and the chunks before it stay stored. Its receipts keep no jobs: each is read from the store when
        you look at it. With `tx`, an iterator is checked as a whole.
        """
        _check_calls(calls)
        if self._whole(calls):
            return self._enqueuer.enqueue(self, self._encoded(calls))
        return self._enqueuer.enqueue_chunks(self, self._chunks(iter(calls)))

    async def aenqueue_many(self, calls: Iterable[Call]) -> Sequence[Receipt]:
        """`enqueue_many` for async code."""
        _check_calls(calls)
        if self._whole(calls):
            return await self._enqueuer.aenqueue(self, lambda: self._encoded(calls))
        from asyncio import to_thread  # noqa: PLC0415 - a process that only enqueues does not need it

        return await to_thread(self.enqueue_many, calls)

    def enqueue_payload(self, payload: Any) -> Job:
        """`enqueue` with the whole payload as data, as the CLI and other services give it."""
        return _stored(self._enqueuer.enqueue(self, [self.payload.encode_value({} if payload is None else payload)]))

    async def aenqueue_payload(self, payload: Any) -> Job:
        """`enqueue_payload` for async code."""
        given = {} if payload is None else payload
        return _stored(await self._enqueuer.aenqueue(self, lambda: [self.payload.encode_value(given)]))

    def using(
        self,
        *,
        queue: str | None = None,
        lane: str | None = None,
        tenant: str | None = None,
        priority: int | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        run_after: Duration | datetime | None = None,
        expires_at: Duration | datetime | None = None,
        key: str | None = None,
        unique: Unique | str | None = None,
        schedule: str | None = None,
        trace: str | None = None,
        id: str | None = None,
        tx: Any = None,
        notify: bool | None = None,
    ) -> "Task[P, R]":
        """The same task with other options for the jobs it enqueues.

        `run_after` and `expires_at` take a moment (a datetime with a zone) or a time from now ("5m"). With `tx`, a
        connection or session that is in a transaction of yours, the jobs commit or roll back with it; on PostgreSQL,
        `notify` lets that commit wake the workers of other processes. `schedule` is the name of the schedule that a job
        is made for, beside the runs that the schedule makes itself. `trace` is the W3C traceparent of the work that the
        job belongs to, and behind a space its tracestate.
        """
        given = {
            "queue": queue,
            "lane": lane,
            "tenant": tenant,
            "priority": priority,
            "retry": retry,
            "timeout": None if timeout is None else seconds(timeout, "timeout"),
            "run_after": run_after,
            "expires_at": expires_at,
            "key": key,
            "unique": unique_of(unique),
            "schedule": schedule,
            "trace": trace,
            "id": None if id is None else str(id).lower(),
            "tx": tx,
            "notify": notify,
        }
        options = self.options._replace(**{name: value for name, value in given.items() if value is not None})
        return Task(self._enqueuer, self.definition, options)

    @cached_property
    def blueprint(self) -> Blueprint:
        """What all its jobs have in common; checked when the first one is enqueued."""
        if self.options.key is None and self.options.unique != self.definition.options.unique:
            raise InvalidJob("unique", f"{self.options.unique.scope!r} means nothing without a key; add key=… to using")
        return blueprint(self.name, self.options)

    @property
    def payload(self) -> Payload:
        """How arguments become JSON and back."""
        return self.definition.payload

    @property
    def is_async(self) -> bool:
        """Whether the handler runs on the event loop rather than in a thread."""
        return self.definition.is_async

    def run(self, context: Context, arguments: dict[str, Any]) -> Any:
        """Call the handler with decoded arguments; a coroutine if it is async."""
        return self.definition.run(context, arguments)

    def _whole(self, calls: Iterable[Call]) -> bool:
        """Whether these calls are checked as a whole before the first is stored: they are there, or commit as one."""
        return isinstance(calls, Sized) or self.options.tx is not None

    def _chunks(self, calls: Iterator[Call]) -> Iterator[list[str]]:
        first = 0
        while payloads := self._encoded(islice(calls, CHUNK), first):
            yield payloads
            first += len(payloads)

    def _encoded(self, calls: Iterable[Call], first: int = 0) -> list[str]:
        """The payloads of these calls; a refusal names the place of the call, counted from `first`."""
        payloads: list[str] = []
        encode, encode_named = self.definition.payload.encode, self.definition.payload.encode_named
        for call in calls:
            named = type(call) is dict or (type(call) is not tuple and isinstance(call, Mapping))
            try:
                payloads.append(encode_named(call) if named else encode(call, {}))  # type: ignore[arg-type] # as just seen
            except InvalidJob as error:
                raise type(error)(f"call {first + len(payloads)}: {error.field}", error.problem) from None
        return payloads


if TYPE_CHECKING:

    class ContextTask(Task[P, R]):
        """How type checkers see a task whose first parameter is its Context: a direct call gives it, an enqueue not."""

        def __call__(self, ctx: Context, /, *args: P.args, **kwargs: P.kwargs) -> R: ...  # type: ignore[override]

else:
    ContextTask = Task


def _check_calls(calls: object) -> None:
    if isinstance(calls, str | bytes | Mapping) or not isinstance(calls, Iterable):
        raise InvalidPayload(
            "calls",
            f"{type(calls).__name__}: it must be a list of calls, each a tuple of arguments or a dict of named ones",
        )


def name_of(task: "str | Task[..., Any]", field: str = "task") -> str:
    """The name of a task that is given itself, or by name."""
    if isinstance(task, Task):
        return task.name
    if not isinstance(task, str):
        raise InvalidJob(field, f"{task!r} is not a valid task; give one made by @app.task, or its name")
    return task


def versions_of(tasks: Mapping[str, Task[..., Any]]) -> dict[str, int]:
    """The newest version of each task that runs here, by name."""
    return {task.name: task.options.version for task in tasks.values()}


def _stored(receipts: Sequence[Receipt]) -> Job:
    """The job of a single enqueue."""
    [receipt] = receipts
    if receipt.refused:
        raise InvalidJob("payload", receipt.refused)
    return receipt.job
