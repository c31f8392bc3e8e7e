"""A task: a function and its payload under a name, and the ways to ask for it to be run."""

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

from treadle.engines.values import Receipt
from treadle.errors import ConfigError, InvalidJob
from treadle.model import FollowUp, Job, OnEnd, Scope, check_name, check_retry, checked, new_id
from treadle.model.clock import Duration, seconds
from treadle.model.retry import Retry
from treadle.tasks.context import Context
from treadle.tasks.payload import Payload

P = ParamSpec("P")
R = TypeVar("R")


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
    """Everything an enqueue may say about a job beside its payload."""

    queue: str = "default"
    lane: str = ""
    tenant: str | None = None
    priority: int = 0
    retry: Retry = Retry()
    timeout: float | None = None
    version: int = 1
    unique: Unique = Unique()
    on_end: OnEnd | None = None
    key: str | None = None
    run_after: Duration | datetime | None = None
    expires_at: Duration | datetime | None = None
    id: str | None = None
    tx: Any = None


class Enqueuer(Protocol):
    """Who stores the jobs a task makes: the app."""

    def store_now(self) -> datetime: ...

    def tenant_of(self, named: str | None) -> str: ...

    def follow_up(self, wanted: FollowUp | None) -> FollowUp | None: ...

    def submit(self, jobs: list[Job], conflict: OnConflict, tx: Any) -> list[Receipt]: ...

    async def asubmit(self, jobs: list[Job], conflict: OnConflict, tx: Any) -> list[Receipt]: ...


class Task(Generic[P, R]):
    """A handler under a name. Call it like the function it wraps, or enqueue it."""

    def __init__(self, enqueuer: Enqueuer, name: str, handler: Callable[..., Any], options: Options) -> None:
        check_name("task", name)
        check_retry(options.retry)
        self.name = name
        self.handler = handler
        self.options = options
        self._enqueuer = enqueuer
        self.__name__ = getattr(handler, "__name__", name)
        self.__doc__ = handler.__doc__
        self.__wrapped__ = handler

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the handler here and now, as the plain function it is."""
        return self.handler(*args, **kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Store a job that will run this task with these arguments; the job, or the one that holds its key."""
        return _stored(self._submit([self.job(*args, **kwargs)]))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """`enqueue` for async code: the loop goes on while the store works."""
        return _stored(await self._asubmit(lambda: [self.job(*args, **kwargs)]))

    def enqueue_many(self, calls: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> list[Receipt]:
        """Store many jobs in one go; each call is a tuple of arguments or a dict of named ones. A Receipt each.

        Arguments are checked before anything is stored; then each job stands for itself. With `on_conflict="raise"` the
        first taken key raises KeyTaken after the others have been stored.
        """
        return self._submit(self._jobs(calls))

    async def aenqueue_many(self, calls: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> list[Receipt]:
        """`enqueue_many` for async code."""
        return await self._asubmit(lambda: self._jobs(calls))

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
        id: str | None = None,
        tx: Any = None,
    ) -> "Task[P, R]":
        """The same task with other options for the jobs it enqueues.

        `run_after` and `expires_at` take a moment (a datetime with a zone) or a time from now ("5m"). With `tx`, a
        connection or session that is in a transaction of yours, the jobs commit or roll back with it.
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
            "unique": _unique(unique),
            "id": None if id is None else str(id).lower(),
            "tx": tx,
        }
        options = self.options._replace(**{name: value for name, value in given.items() if value is not None})
        return Task(self._enqueuer, self.name, self.handler, options)

    def job(self, *args: Any, **kwargs: Any) -> Job:
        """The job that `enqueue` would store, not stored."""
        return self._job(self.payload.encode(args, kwargs))

    def job_from_payload(self, payload: Any) -> Job:
        """A job from its whole payload as data, as the CLI and other services give it."""
        return self._job(self.payload.encode_value(payload))

    @cached_property
    def payload(self) -> Payload:
        """How arguments become JSON and back; made on first use, so that importing tasks stays quick."""
        if inspect.isclass(self.handler):
            declared = getattr(self.handler, "payload_model", None)
            model = declared() if callable(declared) and not isinstance(declared, type) else declared
            return Payload(self._instance_method, self.name, model)
        return Payload(self.handler, self.name)

    @cached_property
    def is_async(self) -> bool:
        """Whether the handler runs on the event loop rather than in a thread."""
        target = self._class_method if inspect.isclass(self.handler) else self.handler
        called = getattr(type(target), "__call__", None)  # noqa: B004 - of an object with `async def __call__`
        return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(called)

    def run(self, context: Context, arguments: dict[str, Any]) -> Any:
        """Call the handler with decoded arguments; a coroutine if it is async."""
        if self.payload.context_parameter:
            arguments = {**arguments, self.payload.context_parameter: context}
        target: Any = self.handler
        return target().handle(**arguments) if inspect.isclass(self.handler) else target(**arguments)

    @property
    def _class_method(self) -> Any:
        method = getattr(self.handler, "handle", None)
        if method is None:
            raise ConfigError(f"task {self.name!r}: class {self.handler.__name__} needs a method handle(self, payload)")
        return method

    @property
    def _instance_method(self) -> Any:
        """`handle` as seen on an instance, without making one."""
        handler: Any = self.handler
        self._class_method  # noqa: B018 - says clearly if there is none
        return object.__new__(handler).handle

    def enqueue_payload(self, payload: Any) -> Job:
        """`enqueue` with the whole payload as data."""
        return _stored(self._submit([self.job_from_payload({} if payload is None else payload)]))

    def _submit(self, jobs: list[Job]) -> list[Receipt]:
        return self._enqueuer.submit(jobs, on_conflict(self.options.unique), self.options.tx)

    async def _asubmit(self, make: Callable[[], list[Job]]) -> list[Receipt]:
        """Make the jobs in a thread, for that may ask the store for its time; store them there, or in `tx` here."""
        if self.options.tx is None:
            return await asyncio.to_thread(lambda: self._submit(make()))
        jobs = await asyncio.to_thread(make)
        return await self._enqueuer.asubmit(jobs, on_conflict(self.options.unique), self.options.tx)

    def _jobs(self, calls: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> list[Job]:
        jobs = []
        for place, call in enumerate(calls):
            try:
                jobs.append(self.job(**call) if isinstance(call, Mapping) else self.job(*call))
            except InvalidJob as error:
                raise type(error)(f"call {place}: {error.field}", error.problem) from None
        return jobs

    def on_end(self) -> OnEnd | None:
        """What is to follow the end of a job, with the options of the tasks that follow."""
        wanted = self.options.on_end
        if wanted is None:
            return None
        return OnEnd(self._enqueuer.follow_up(wanted.succeeded), self._enqueuer.follow_up(wanted.failed))

    def _job(self, payload_json: str) -> Job:
        options, now = self.options, self._enqueuer.store_now()
        scope, until = _scope(options, now)
        due_at = _moment(options.run_after, now, "run_after") or now
        expires_at = _moment(options.expires_at, now, "expires_at")
        new = options.id is None and options.key is None  # a repeated enqueue is answered with the job it made before
        if new and expires_at is not None and expires_at <= max(due_at, now):
            what = "is past" if expires_at <= now else f"comes before it is due, at {due_at:%Y-%m-%d %H:%M:%S} UTC"
            raise InvalidJob("expires_at", f"{expires_at:%Y-%m-%d %H:%M:%S} UTC {what}: it would never run")
        return checked(
            Job(
                id=new_id() if options.id is None else options.id,
                task=self.name,
                payload_json=payload_json,
                created_at=now,
                due_at=due_at,
                tenant=self._enqueuer.tenant_of(options.tenant),
                queue=options.queue,
                lane=options.lane,
                task_version=options.version,
                priority=options.priority,
                retry=options.retry,
                timeout=options.timeout,
                expires_at=expires_at,
                key=options.key,
                key_scope=scope,
                key_until=until,
                on_end=self.on_end(),
            )
        )


def name_of(task: "str | Task[..., Any]", field: str = "task") -> str:
    """The name of a task that is given itself, or by name."""
    if isinstance(task, Task):
        return task.name
    if not isinstance(task, str):
        raise InvalidJob(field, f"{task!r} is no task; give one made by @app.task, or its name")
    return task


def _stored(receipts: list[Receipt]) -> Job:
    """The job of a single enqueue."""
    [receipt] = receipts
    if receipt.refused:
        raise InvalidJob("payload", receipt.refused)
    return receipt.job


def _unique(given: Unique | str | None) -> Unique | None:
    if given is None or isinstance(given, Unique):
        return given
    if isinstance(given, str):
        return Unique(given)
    raise InvalidJob("unique", f"{given!r} must be a scope such as 'active', or Unique(...)")


def on_conflict(unique: Unique) -> OnConflict:
    """What to do about a taken key, as an enum; InvalidJob for a word that is none of ours."""
    try:
        return OnConflict(unique.on_conflict)
    except ValueError:
        raise InvalidJob("on_conflict", f"{unique.on_conflict!r} must be first, raise or replace") from None


def _scope(options: Options, now: datetime) -> tuple[Scope | None, datetime | None]:
    if options.key is None:
        return None, None
    try:
        scope = Scope(options.unique.scope)
    except ValueError:
        raise InvalidJob("unique", f"{options.unique.scope!r} must be pending, active, window or ever") from None
    if options.unique.window is None:
        return scope, None
    window = seconds(options.unique.window, "window")
    if window == 0:
        raise InvalidJob("window", "0 seconds keep nobody away; write a time such as '1d'")
    return scope, now + timedelta(seconds=window)


def _moment(value: Duration | datetime | None, now: datetime, field: str) -> datetime | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidJob(field, f"{value!r} has no time zone; write datetime(..., tzinfo=UTC) or a time from now")
        return value.astimezone(UTC)
    return now + timedelta(seconds=seconds(value, field))
