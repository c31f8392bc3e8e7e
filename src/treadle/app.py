"""Treadle: the object an application holds. It registers tasks, stores jobs, looks at them and runs workers."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from treadle.clock import Clock, Duration, seconds
from treadle.context import Context
from treadle.engines import connect
from treadle.engines.base import Engine, Finding, Half, Receipt, Walls
from treadle.errors import ConfigError, InvalidJob, TreadleError, UnknownTask
from treadle.handle import Handle, note
from treadle.model import FollowUp, Job, OnEnd, check_name
from treadle.profile import Profile, checked
from treadle.records import Member, Schedule
from treadle.retry import Retry
from treadle.submitting import submission, told
from treadle.task import OnConflict, Options, Task, Unique
from treadle.tenant import Tenant
from treadle.tx import arun_in, run, run_in

if TYPE_CHECKING:
    from treadle.settings import Settings
    from treadle.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")


OPTIONS = ("queue", "lane", "priority", "retry", "timeout", "unique", "version", "on_succeeded", "on_failed", "audit")
SCHEDULING = (
    "cron", "every", "tz", "payload", "misfire", "misfire_limit", "misfire_age", "overlap", "jitter", "for_each",
)  # fmt: skip
"""What `@app.task(...)` may say beside OPTIONS, to be run by itself."""


class Decorator(Protocol):
    """What `app.task(...)` returns: it wraps a function, whose Context parameter callers do not pass."""

    @overload
    def __call__(self, handler: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, handler: Callable[P, R], /) -> Task[P, R]: ...


class Treadle(Handle):
    """A job queue in the database you already have.

    >>> app = Treadle("sqlite:///:memory:")
    >>> @app.task
    ... def greet(name: str) -> str:
    ...     return f"hello {name}"
    >>> greet.enqueue("Ada").state.value
    'pending'
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        profile: Profile | None = None,
        logger: logging.Logger | None = None,
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        """`url` and `settings` win over TREADLE_* variables, treadle.toml and [tool.treadle], these over the `profile`.

        Workers log to `logger` instead of to our own, `treadle.*`. Nothing is opened yet.
        """
        self.tasks: dict[str, Task[..., Any]] = {}
        self.profile = checked(profile or Profile())
        self.logger = logger
        self._declared: dict[tuple[str | None, str], tuple[str, Any, Mapping[str, Any]]] = {}
        self._clock = clock
        self._given = {"url": url, **settings}

    @cached_property
    def settings(self) -> "Settings":
        """The settings in force, read once, on first use."""
        from treadle.settings import load  # noqa: PLC0415 - Pydantic is loaded on first use, not on import

        return load(self.profile.settings, **self._given)

    @cached_property
    def engine(self) -> Engine:  # type: ignore[override] # opened on first use
        """The store; opened on first use."""
        settings = self.settings
        return connect(
            settings.url,
            clock=self._clock.now if self._clock is not None else None,
            everything=settings.audit == "everything",
            auto_migrate=settings.auto_migrate,
            listen_url=settings.listen_url,
        )

    # ---------------------------------------------------------------------------------------- tasks

    @overload
    def task(self, handler: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
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
        on_succeeded: "str | Task[..., Any] | None" = None,
        on_failed: "str | Task[..., Any] | None" = None,
        audit: Mapping[str, str] = ...,
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
        if not callable(handler):
            raise ConfigError(f"task {name!r}: {handler!r} cannot be called")
        if name in self.tasks and self.tasks[name].handler is not handler:
            raise ConfigError(f"task {name!r} is registered twice; give one of them another name")
        said = {option: options.pop(option) for option in SCHEDULING if option in options}
        task: Task[..., Any] = Task(self, name, handler, self._options(name, options))
        if said and (None, name) not in self._declared:
            self.declare(name, name, said.pop("payload", None), **said)
        self.tasks[name] = task
        return task

    def _options(self, name: str, given: Mapping[str, Any]) -> Options:
        """What a task takes for granted of its jobs: what it was given, else what the profile says of all tasks."""
        options = {**self.profile.task, **given}
        unknown = options.keys() - set(OPTIONS)
        if unknown:
            known = f"known: {', '.join((*OPTIONS, *SCHEDULING))}"
            raise ConfigError(f"task {name!r}: unknown option {', '.join(sorted(unknown))}; {known}")
        follow = {state: _follow_up(name, state, options) for state in ("succeeded", "failed")}
        for option in ("on_succeeded", "on_failed", "audit"):
            options.pop(option, None)
        if any(follow.values()):
            options["on_end"] = OnEnd(**follow)
        if isinstance(options.get("unique"), str):
            options["unique"] = Unique(options["unique"])
        if not isinstance(options.get("unique", Unique()), Unique):
            raise ConfigError(f"task {name!r}: unique: {options['unique']!r} must be a scope, or Unique(scope=…)")
        if options.get("timeout") is not None:
            options["timeout"] = seconds(options["timeout"], "timeout")
        return Options(**options)

    # -------------------------------------------------------------------------------------- enqueue

    def enqueue(self, name: str, payload: Any = None, *, checked: bool = True, **using: Any) -> Job:
        """Store a job by task name, its payload given as data; `using` as in `Task.using`.

        With `checked=False` the task need not be known here: the payload is checked when the job runs.
        """
        return self.stored(self.task_named(name, checked=checked).using(**using), payload)

    def task_named(self, name: str, *, checked: bool) -> Task[..., Any]:
        """The task of this name; one that is not known here only if it need not be `checked`."""
        task = self.tasks.get(name)
        if task is None:
            if checked:
                raise UnknownTask(name, self.tasks)
            task = Task(self, name, _raw, self._options(name, {}))
        return task

    def stored(self, task: Task[..., Any], payload: Any) -> Job:
        """Store a job of this task with its whole payload as data."""
        job = task.job_from_payload({} if payload is None else payload)
        return task.store(job)

    def store_now(self) -> datetime:
        """The store's time."""
        return self.engine.now()

    def follow_up(self, wanted: FollowUp | None) -> FollowUp | None:
        """What is to follow, with the options of the task that follows, if that is known here."""
        task = self.tasks.get(wanted.task) if wanted is not None and wanted.task else None
        if wanted is None or task is None:
            return wanted
        options = task.options
        return wanted._replace(
            queue=options.queue,
            lane=options.lane,
            priority=options.priority,
            version=options.version,
            retry=options.retry,
            timeout=options.timeout,
            wants=task.payload.names,
        )

    def tenant_of(self, named: str | None) -> str:
        """The tenant of a new job; InvalidJob if it must be named and is not."""
        if named is None and self.settings.tenant_required:
            raise InvalidJob(
                "tenant", "is required (the setting tenant_required); say whose job it is: using(tenant=…)"
            )
        return "default" if named is None else named

    def submit(
        self, jobs: list[Job], conflict: OnConflict, tx: Any = None, *, engine: Engine | None = None
    ) -> list[Receipt]:
        """Store jobs; a receipt each. What `conflict` says is done about keys that are taken."""
        engine = engine or self.engine
        if tx is None:
            return told(jobs, run(submission(engine, jobs, conflict, own=True)), conflict)
        return told(jobs, run_in(tx, submission(engine, jobs, conflict, own=False)), conflict)

    async def asubmit(
        self, jobs: list[Job], conflict: OnConflict, tx: Any, *, engine: Engine | None = None
    ) -> list[Receipt]:
        """The same in a transaction of an async library."""
        return told(jobs, await arun_in(tx, submission(engine or self.engine, jobs, conflict, own=False)), conflict)

    # ------------------------------------------------------------------------------ tenants and schedules

    def tenant(self, name: str) -> Tenant:
        """A view of one tenant, which can neither see, change nor infer what is another's."""
        return Tenant(self, name)

    @property
    def scheduled_tasks(self) -> "Treadle":
        return self

    def scheduled_task(
        self, name: str, payload: Any, *, rows: str | None, checked: bool
    ) -> tuple[Mapping[str, Any], Any]:
        """What a schedule of this task takes for granted of its jobs; and the payload, as the task wants it.

        Without `rows` to add to it, the payload must fit the task as it is.
        """
        from treadle.schedule import EXPANSION  # noqa: PLC0415

        task = self.task_named(name, checked=checked)
        payload = {} if payload is None else payload
        if rows is None:
            payload = json.loads(task.payload.encode_value(payload))
        elif checked and f"{EXPANSION}{rows}" not in self.tasks:
            raise ConfigError(f"for_each: no rows are registered as {rows!r}; register them: app.for_each(function)")
        options = task.options
        retry = dict(zip(("max_attempts", "retry_base", "retry_cap", "retry_jitter"), options.retry, strict=True))
        taken = {name: getattr(options, name) for name in ("queue", "lane", "priority", "timeout")}
        return {**taken, **retry, "task_version": options.version, "on_end": task.on_end()}, payload

    def scheduled_row(self, task: str, payload: object) -> tuple[str, OnEnd | None]:
        """The payload of one row as its task wants it, as JSON, and what follows its jobs."""
        named = self.task_named(task, checked=False)
        return named.payload.encode_value(payload), named.on_end()

    def declare(self, name: str, task: str | Task[..., Any], payload: Any = None, **said: Any) -> None:
        """Declare a schedule in code, as `@app.task(cron=…)` does: a worker brings it into the store when it starts.

        It says what `app.schedules.create` says. What an operator disables stays disabled.
        """
        from treadle.timetable import declaration  # noqa: PLC0415 - calendars are loaded by who uses them

        tenant = said.pop("tenant", None)
        if (tenant, name) in self._declared:
            raise ConfigError(f"schedule {name!r} is declared twice; give one of them another name")
        rows = said.get("for_each")
        if callable(rows):
            said = {**said, "for_each": self.for_each(rows)}
        named = str(getattr(task, "name", task))
        declaration(name, named, {}, {}, said, tenant or "default")  # what is wrong with it is an error here and now
        self._declared[tenant, name] = (named, payload, said)

    def declared(self) -> list[Schedule]:
        """The schedules that this code declares."""
        if not self._declared:
            return []
        from treadle.timetable import declaration  # noqa: PLC0415

        found = []
        for (tenant, name), (task, given, said) in self._declared.items():
            try:
                taken, payload = self.scheduled_task(task, given, rows=said.get("for_each"), checked=True)
            except TreadleError as error:
                raise ConfigError(f"schedule {name!r}: {error}") from error
            found.append(declaration(name, task, payload, taken, said, self.tenant_of(tenant)))
        return found

    def for_each(self, rows: Callable[..., Any], name: str | None = None) -> str:
        """Register a function that yields rows, for schedules that make a job of each (`for_each=`); its name."""
        from treadle.expansion import expansion  # noqa: PLC0415 - only who has rows needs it
        from treadle.schedule import EXPANSION  # noqa: PLC0415

        name = name or str(getattr(rows, "__name__", ""))
        task = f"{EXPANSION}{name}"
        known = self.tasks.get(task)
        if known is not None and getattr(known.handler, "rows", None) is not rows:
            raise ConfigError(f"for_each: {name!r} is registered twice; give one of them another name")
        if known is None:
            self.register(task, expansion(rows, self))
        return name

    def workers(self) -> list[Member]:
        """The workers that are alive, as they last said."""
        now = self.engine.now()
        return [member for member in self.engine.records(Member) if member.alive(now)]

    # ------------------------------------------------------------------------------------ keeping order

    def recover(self, *, message: str | None = None, actor: str = "api") -> int:
        """Requeue or end every job whose lease has run out; workers do this by themselves. How many it was.

        `message` is kept as the error, instead of our own words. A job that is locked is left for the next time.
        """
        from treadle.upkeep import recover_leases  # noqa: PLC0415 - a process that only enqueues does not need it

        check_name("actor", actor)
        return recover_leases(self.engine, actor=actor, message=note(message or ""), logger=self.logger)

    def prune(self) -> int:
        """Delete finished jobs and audit lines older than their retention, as workers do by themselves.

        How many jobs were deleted.
        """
        from treadle.housekeeping import forget_old_lines  # noqa: PLC0415

        total = 0
        while batch := self.engine.prune(self.settings.keep, limit=1000):
            total += batch
        forget_old_lines(self.engine, self.settings.keep_lines)
        return total

    def seal_audit(self) -> int:
        """Seal every audit line there is, as workers do by themselves within a minute or two; how many lines it was."""
        from treadle.housekeeping import seal_lines  # noqa: PLC0415

        return seal_lines(self.engine)

    def open(self) -> None:
        """See that the store is there and its schema fits; otherwise done on first use."""
        self.engine.open()

    def migrate(self, half: Half | None = None) -> list[str]:
        """Create or upgrade the schema; the names of the migrations applied now.

        To upgrade without a pause: "pre" before the new code starts, "post" when no old code runs any more.
        """
        return self.engine.migrate(half)

    def check_schema(self, *, quick: bool = False) -> list[str]:
        """Every difference between the live schema and the expected one; `quick`: what keeps it from being used."""
        return self.engine.check(quick=quick)

    def schema_sql(self, half: Half | None = None) -> str:
        """The schema as SQL, for your own migration tool."""
        return self.engine.schema_sql(half)

    def walls(self, *, worker_role: str, app_role: str, owner: str = "", only_sql: bool = False) -> str:
        """Keep tenants apart in the database itself (PostgreSQL's row-level security); the statements.

        Workers connect as `worker_role`, which sees all rows; the application as `app_role`, whose `app.tenant(name)`
        sees that tenant's. `owner` is a condition in SQL that also lets a row be seen, over its column `tenant`. Run it
        as the tables' owner, after each migration.
        """
        return self.engine.walls(Walls(worker_role, app_role, owner), only_sql=only_sql)

    def doctor(self) -> list[Finding]:
        """What an operator should know about this store."""
        return self.engine.doctor()

    def close(self) -> None:
        """Close the store's connections."""
        if "engine" in self.__dict__:
            self.engine.close()

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
    ) -> "Worker":
        """A worker for this app's tasks, not started: `async with app.worker():` in a web app's lifespan."""
        from treadle.plan import plan_from  # noqa: PLC0415 - a process that only enqueues does not need them
        from treadle.worker import Worker  # noqa: PLC0415

        given = {
            "queues": queues,
            "lanes": lanes,
            "concurrency": concurrency,
            "lease": lease,
            "grace": grace,
            "poll": poll,
            "name": name,
        }
        plan = plan_from(self.settings, given)
        return Worker(self.engine, self.tasks, plan, self.logger, declared=self.declared())

    def run_worker(self, *, until_idle: bool = False, **options: Any) -> None:
        """Run a worker in this thread until it is stopped (SIGTERM, SIGINT); options as in `worker`."""
        self.worker(**options).run(until_idle=until_idle)


def _raw(payload: Any) -> None:
    """Stands for the handler of a task that is not known here."""


def _follow_up(task: str, state: str, options: Mapping[str, Any]) -> FollowUp | None:
    """What a task says is to follow a job that ends so."""
    then, names = options.get(f"on_{state}"), options.get("audit") or {}
    if not isinstance(names, Mapping):
        raise ConfigError(f"task {task!r}: audit: {names!r} must be names by state, such as {{'failed': 'LOST'}}")
    if unknown := names.keys() - {"succeeded", "failed"}:
        raise ConfigError(f"task {task!r}: audit: {', '.join(sorted(unknown))} must be succeeded or failed")
    if state in names:
        check_name("audit", names[state])
    if then is None and state not in names:
        return None
    name = then.name if isinstance(then, Task) else then or ""
    if name:
        check_name(f"on_{state}", name)
    return FollowUp(names.get(state, ""), name)
