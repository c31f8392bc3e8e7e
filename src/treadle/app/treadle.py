"""Treadle: the object an application holds. It registers tasks, stores jobs, looks at them and runs workers."""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, Unpack, overload
from weakref import WeakSet

from treadle.app.enqueue import Enqueuer
from treadle.app.oversight import Oversight
from treadle.app.profile import Profile, check_profile
from treadle.app.store import Store
from treadle.app.tenant import Tenant
from treadle.errors import ConfigError, NotPossible
from treadle.model import Job, check_name
from treadle.model.clock import Clock, Duration
from treadle.model.records import Schedule
from treadle.model.retry import Retry
from treadle.tasks.context import Context
from treadle.tasks.decorator import Decorator, HandlerClass, Untyped
from treadle.tasks.definition import Definition
from treadle.tasks.faces import async_face
from treadle.tasks.options import Unique
from treadle.tasks.registry import OPTIONS, TaskRegistry, unknown_option
from treadle.tasks.task import ContextTask, Task, name_of

if TYPE_CHECKING:
    from treadle.app.claimed import Claimed
    from treadle.app.masking import Masking
    from treadle.app.override import Override
    from treadle.app.settings import Settings
    from treadle.schedules.api import Schedules
    from treadle.schedules.declared import Declarations
    from treadle.schedules.options import ScheduleOptions
    from treadle.tasks.hooks import Hooks
    from treadle.worker.worker import Worker

SCHEDULING = (
    "cron", "every", "tz", "payload", "misfire", "misfire_limit", "misfire_age", "overlap", "jitter", "for_each",
)  # fmt: skip
"""What `@app.task(...)` takes beside a task's OPTIONS, for a task that runs on a schedule."""

P = ParamSpec("P")
R = TypeVar("R")


class UrlObject(Protocol):
    """A URL of SQLAlchemy, such as `engine.url`; as text it would show no password."""

    def render_as_string(self, hide_password: bool = ...) -> str: ...


class Treadle(Oversight):
    """A job queue in the database you already have.

    >>> app = Treadle("sqlite:///:memory:")
    >>> @app.task
    ... def greet(name: str) -> str:
    ...     return f"hello {name}"
    >>> greet.enqueue("Ada").state.value
    'pending'
    """

    _store_class: type[Store] = Store

    def __init__(
        self,
        url: "str | UrlObject | None" = None,
        *,
        profile: Profile | None = None,
        logger: logging.Logger | None = None,
        clock: Clock | None = None,
        lend: "Callable[[], AbstractContextManager[Any]] | None" = None,
        **settings: Any,
    ) -> None:
        """`url` is text, or a URL object of SQLAlchemy.

        `url` and `settings` win over TREADLE_* variables, treadle.toml and [tool.treadle], these over the `profile`.

        Workers log to `logger` instead of to our own, `treadle.*`. Nothing is opened yet.

        With `lend` each call works on a connection that you lend it for one transaction, which you begin and commit;
        the `url` only says which store that is. See docs/transactions.md.
        """
        profile = check_profile(profile or Profile())
        if lend is not None and not callable(lend):
            raise ConfigError(
                f"lend: it must be a function that returns a context manager, not {type(lend).__name__}; write a "
                "generator function with @contextmanager that yields the connection"
            )
        super().__init__(self._store_class(profile.settings, {"url": url, **settings}, clock, lend), profile)
        self._known = known = dict[str, Definition]()
        self._enqueuer = Enqueuer(self._store, known)
        self.tasks = TaskRegistry(self._enqueuer, known, profile.task)
        self.logger = logger
        self._workers: WeakSet[Worker] = WeakSet()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def settings(self) -> "Settings":
        """The settings in force, read once, on first use. Others may be put in their place until the store is open."""
        return self._store.settings

    @settings.setter
    def settings(self, settings: "Settings") -> None:
        if self._store.opened and settings.url != self._store.settings.url:
            raise NotPossible("settings: the store is open already; give the app its settings before it is used")
        self._store.replace_settings(settings)

    # ---------------------------------------------------------------------------------------- tasks

    @overload
    def task(self, handler: type[HandlerClass], /) -> Task[..., Any]: ...  # type: ignore[overload-overlap] # as meant
    @overload
    def task(self, handler: Callable[Concatenate[Untyped, P], R], /) -> Task[..., R]: ...
    @overload
    def task(self, handler: Callable[Concatenate[Context, P], R], /) -> ContextTask[P, R]: ...
    @overload
    def task(self, handler: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        lane: str = "",
        priority: int = 0,
        retry: Retry = Retry(),  # noqa: B008 - frozen
        timeout: Duration | None = None,
        unique: Unique | str = Unique(),  # noqa: B008 - frozen
        version: int = 1,
        isolated: bool = False,
        on_succeeded: "str | Task[..., Any] | None" = None,
        on_failed: "str | Task[..., Any] | None" = None,
        audit: Mapping[str, str] = ...,
        secret: Sequence[str] = (),
        cron: str | None = None,
        every: Duration | None = None,
        tz: str = "UTC",
        payload: Any = None,
        misfire: str = "once",
        misfire_limit: int = 100,
        misfire_age: Duration = "1d",
        overlap: str = "allow",
        jitter: Duration = 0,
        for_each: Callable[..., Any] | str | None = None,
    ) -> Decorator: ...
    def task(self, handler: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Any) -> Any:
        """Make a function (or a class with `handle`) a task: `@app.task` or `@app.task(queue="mail", ...)`."""

        def decorate(target: Callable[..., Any]) -> Task[..., Any]:
            return self.register(name or str(getattr(target, "__name__", "")), target, **options)

        return decorate if handler is None else decorate(handler)

    def register(self, name: str, handler: Callable[..., Any], **options: Any) -> Task[..., Any]:
        """Register a handler under a name: a function, a class with `handle`, or any `f(job: dict)`."""
        if unknown := options.keys() - {*OPTIONS, *SCHEDULING}:
            raise unknown_option(name, sorted(unknown), (*OPTIONS, *SCHEDULING))
        scheduling = {option: options.pop(option) for option in SCHEDULING if option in options}
        task = self.tasks.make(name, handler, options)
        if scheduling:
            self._declarations.declare_task(task, scheduling)
        self.tasks.add(task)
        return task

    @cached_property
    def hooks(self) -> "Hooks":
        """What your program does around enqueue and run, and when jobs are claimed, settled or have failed."""
        from treadle.tasks.hooks import Hooks  # noqa: PLC0415 - loaded where there are any

        self._store.hooks = hooks = Hooks()
        return hooks

    # -------------------------------------------------------------------------------------- enqueue

    def enqueue(self, name: str, /, payload: Any = None, *, checked: bool = True, **using: Any) -> Job:
        """Store a job by task name, its payload given as data; `using` as in `Task.using`.

        With `checked=False` the task need not be known here: the payload is checked when the job runs.
        """
        return self.tasks.named(name_of(name), checked=checked).using(**using).enqueue_payload(payload)

    async def aenqueue(self, name: str, /, payload: Any = None, *, checked: bool = True, **using: Any) -> Job:
        """`enqueue` for async code."""
        return await self.tasks.named(name_of(name), checked=checked).using(**using).aenqueue_payload(payload)

    def wake(self, *queues: str) -> None:
        """Let waiting workers look for jobs now: after a commit of jobs that were enqueued with `tx`.

        On PostgreSQL it reaches every process, on SQLite and DynamoDB this one: there others see the file change, or
        poll. Naming `queues` says which ones you mean; every waiting worker looks.
        """
        for queue in queues:
            check_name("queue", queue)
        self.engine.wake(others=True)

    awake = async_face(wake)

    # ------------------------------------------------------------------------------ tenants and schedules

    def tenant(self, name: str) -> Tenant:
        """A view of one tenant, which can neither see, change nor infer what is another's."""
        return Tenant(self, name)

    @property
    def schedules(self) -> "Schedules":
        """The schedules: make, list, change, enable, disable, delete, preview, run."""
        return self._schedules_in(self._store)

    def declare(
        self,
        name: str,
        task: str | Task[..., Any],
        payload: Any = None,
        *,
        tenant: str | None = None,
        **options: "Unpack[ScheduleOptions]",
    ) -> None:
        """Declare a schedule in code, as `@app.task(cron=…)` does: a worker brings it into the store when it starts.

        It takes the options of `app.schedules.create`. What an operator disables stays disabled.
        """
        module = sys._getframe(1).f_globals.get("__name__", "")
        self._declarations.declare(name, task, payload, options, tenant=tenant, module=module)

    def declared(self) -> list[Schedule]:
        """The schedules that this code declares."""
        return self._declarations.declared()

    def for_each(self, rows: Callable[..., Any], name: str | None = None) -> str:
        """Register a function that yields rows, for schedules that make a job of each (`for_each=`); its name."""
        return self._declarations.for_each(rows, name)

    @cached_property
    def _masking(self) -> "Masking":
        """What hides secrets from those who look at jobs."""
        from treadle.app.masking import Masking  # noqa: PLC0415 - a process that only enqueues does not need it

        return Masking(self.tasks.known, self._store)

    @cached_property
    def _declarations(self) -> "Declarations":
        from treadle.schedules.declared import Declarations  # noqa: PLC0415 - calendars are loaded where they are used

        return Declarations(self.tasks, self._enqueuer)

    def _schedules_in(self, store: Store) -> "Schedules":
        from treadle.schedules.api import Schedules  # noqa: PLC0415 - calendars are loaded where they are used

        return Schedules(store.engine, self._declarations, store.tenant)

    # ------------------------------------------------------------------------------------ open and closed

    def close(self) -> None:
        """Close the store's connections; the next call opens them again.

        `with Treadle(...) as app:` closes them at the end of the block. An app that nobody closes is closed when
        nothing refers to it, its tasks or its tenants any more.
        """
        self._store.close()

    def override(
        self, url: "str | UrlObject | None" = None, *, clock: Clock | None = None, **settings: Any
    ) -> "Override[Self]":
        """Another store for a while, for tests: `with app.override("sqlite:///:memory:"):`, or as a decorator.

        Tasks, tenants, schedules and hooks stay, and work on the store of this `url`, with this `clock` and these
        `settings`. What is left out stays as it is. It holds for every thread of the process, and may be nested. At the
        end that store is closed, and the one before is back. NotPossible while a worker of this app runs.
        """
        from treadle.app.override import Override  # noqa: PLC0415 - for tests

        return Override(self, self._store, self._running_workers, {"url": url, **settings}, clock)

    # ---------------------------------------------------------------------------------------- workers

    def worker(
        self,
        *,
        queues: Sequence[str] | None = None,
        lanes: Sequence[str] | None = None,
        concurrency: int | None = None,
        lease: Duration | None = None,
        grace: Duration | None = None,
        poll: Duration | None = None,
        name: str | None = None,
        schedules: bool | None = None,
    ) -> "Worker":
        """A worker for this app's tasks, not started: `async with app.worker():` in a web app's lifespan.

        What is None is as the settings say; with `schedules=False` it runs jobs and fires no schedules.
        """
        from treadle.app.worker_config import worker_config  # noqa: PLC0415 - a process that only enqueues does not need them
        from treadle.worker.worker import Worker  # noqa: PLC0415

        given = {
            "queues": queues,
            "lanes": lanes,
            "concurrency": concurrency,
            "lease": lease,
            "grace": grace,
            "poll": poll,
            "name": name,
            "schedules": schedules,
        }
        if self._store.lent:
            raise NotPossible(
                "lend: a worker listens and renews leases on connections of its own; give it an app without `lend`"
            )
        config = worker_config(self.settings, given)
        self.tasks.check_follow_ups()
        worker = Worker(self.engine, self.tasks, config, self.logger, hooks=self.hooks, declared=self.declared())
        self._workers.add(worker)
        return worker

    def claim(
        self,
        *,
        queues: Sequence[str] | None = None,
        tasks: Sequence[str | Task[..., Any]] | None = None,
        limit: int = 1,
        lease: Duration | None = None,
        worker: str | None = None,
    ) -> "list[Claimed]":
        """Claim up to `limit` jobs for your own code, without a worker; none if nothing is due.

        They are yours for `lease` (the setting, unless it is given), until you extend or settle them. Without `tasks`,
        jobs of any task on these queues, those of the settings. `worker` is the name that others see as their holder.
        """
        from treadle.app.claiming import claim  # noqa: PLC0415 - a process that only enqueues does not need it

        return claim(self, queues=queues, tasks=tasks, limit=limit, lease=lease, worker=worker)

    aclaim = async_face(claim)

    def _running_workers(self) -> list[str]:
        """The names of the workers of this object that run."""
        return [worker.config.name for worker in self._workers if worker.running]

    def run_worker(self, *, until_idle: bool = False, **options: Any) -> None:
        """Run a worker in this thread until it is stopped (SIGTERM, SIGINT); options as in `worker`."""
        self.worker(**options).run(until_idle=until_idle)
