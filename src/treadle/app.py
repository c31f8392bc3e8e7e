"""Treadle: the object an application holds. It registers tasks, stores jobs, looks at them and runs workers."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from treadle import lifecycle, looking
from treadle.clock import Clock, Duration, seconds
from treadle.context import Context
from treadle.engines import connect
from treadle.engines.base import Engine, Finding, Half, Page, Receipt, Ruling, Verdict, Where
from treadle.errors import ConfigError, EngineUnavailable, InvalidJob, KeyTaken, UnknownTask
from treadle.model import MESSAGE_CAP, Change, Event, Job, State, check_name, clean
from treadle.operating import operate
from treadle.profile import LABELS, Profile, checked
from treadle.retry import Retry
from treadle.task import OnConflict, Options, Task, Unique, on_conflict
from treadle.tx import Steps, arun_in, pauses, run, run_in
from treadle.upkeep import recover_leases

if TYPE_CHECKING:
    from treadle.settings import Settings
    from treadle.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")


class Decorator(Protocol):
    """What `app.task(...)` returns: it wraps a function, whose Context parameter callers do not pass."""

    @overload
    def __call__(self, handler: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, handler: Callable[P, R], /) -> Task[P, R]: ...


class Treadle:
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
        self._clock = clock
        self._given = {"url": url, **settings}

    @cached_property
    def settings(self) -> "Settings":
        """The settings in force, read once, on first use."""
        from treadle.settings import load  # noqa: PLC0415 - Pydantic is loaded on first use, not on import

        return load(self.profile.settings, **self._given)

    @cached_property
    def engine(self) -> Engine:
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
        task: Task[..., Any] = Task(self, name, handler, self._options(name, options))
        self.tasks[name] = task
        return task

    def _options(self, name: str, given: Mapping[str, Any]) -> Options:
        """What a task takes for granted of its jobs: what it was given, else what the profile says of all tasks."""
        options = {**self.profile.task, **given}
        unknown = options.keys() - {"queue", "lane", "priority", "retry", "timeout", "unique", "version"}
        if unknown:
            raise ConfigError(f"task {name!r}: unknown option {', '.join(sorted(unknown))}")
        if isinstance(options.get("unique"), str):
            options["unique"] = Unique(options["unique"])
        if options.get("timeout") is not None:
            options["timeout"] = seconds(options["timeout"], "timeout")
        return Options(**options)

    # -------------------------------------------------------------------------------------- enqueue

    def enqueue(self, name: str, payload: Any = None, *, checked: bool = True, **using: Any) -> Job:
        """Store a job by task name, its payload given as data; `using` as in `Task.using`.

        With `checked=False` the task need not be known here: the payload is checked when the job runs.
        """
        task = self.tasks.get(name)
        if task is None:
            if checked:
                raise UnknownTask(name, self.tasks)
            task = Task(self, name, _raw, self._options(name, {}))
        bound = task.using(**using)
        job = bound.job_from_payload({} if payload is None else payload)
        [receipt] = self.submit([job], on_conflict(bound.options.unique), bound.options.tx)
        if receipt.refused:
            raise InvalidJob("payload", receipt.refused)
        return receipt.job

    def store_now(self) -> datetime:
        """The store's time."""
        return self.engine.now()

    def tenant_of(self, named: str | None) -> str:
        """The tenant of a new job; InvalidJob if it must be named and is not."""
        if named is None and self.settings.tenant_required:
            raise InvalidJob(
                "tenant", "is required (the setting tenant_required); say whose job it is: using(tenant=…)"
            )
        return "default" if named is None else named

    def submit(self, jobs: list[Job], conflict: OnConflict, tx: Any = None) -> list[Receipt]:
        """Store jobs; a receipt each. What `conflict` says is done about keys that are taken."""
        if tx is None:
            return _told(jobs, run(self._submission(jobs, conflict, own=True)), conflict)
        return _told(jobs, run_in(tx, self._submission(jobs, conflict, own=False)), conflict)

    async def asubmit(self, jobs: list[Job], conflict: OnConflict, tx: Any) -> list[Receipt]:
        """The same in a transaction of an async library."""
        return _told(jobs, await arun_in(tx, self._submission(jobs, conflict, own=False)), conflict)

    def _submission(self, jobs: list[Job], conflict: OnConflict, *, own: bool) -> Steps[list[Receipt]]:
        """The steps of `submit`: done by the engine on its `own` connections, or its statements for the caller's."""
        receipts = yield from self._store(jobs, own)
        if conflict is OnConflict.REPLACE:
            for place, job, receipt in _conflicts(jobs, receipts):
                receipts[place] = yield from self._replace(job, receipt, own)
        return receipts

    def _replace(self, job: Job, receipt: Receipt, own: bool) -> Steps[Receipt]:
        """Edit the pending holder of the key in place; if it was taken meanwhile, look again."""
        for pause in pauses():
            if receipt.created or receipt.job.state is not State.PENDING:
                return receipt
            change = lifecycle.replace(receipt.job, job, self.engine.now(), actor="enqueue")
            verdict = yield from self._change(change, own)
            if verdict.ruling is Ruling.APPLIED:
                return Receipt(change.after, created=False)
            if verdict.ruling is Ruling.BUSY:
                yield pause
            [receipt] = yield from self._store([job], own)
        raise EngineUnavailable(f"job {receipt.job.id} is locked by somebody's open transaction; repeating is safe")

    def _store(self, jobs: list[Job], own: bool) -> Steps[list[Receipt]]:
        if own:
            return self.engine.enqueue(jobs)
        return (yield from self.engine.enqueue_script(jobs))

    def _change(self, change: Change, own: bool) -> Steps[Verdict]:
        if own:
            return self.engine.turn([change]).verdicts[0]
        return (yield from self.engine.settle_script(change))

    # ---------------------------------------------------------------------------------------- looking

    def get(self, job_id: str) -> Job:
        """The job of this id, finished ones too."""
        return looking.get(self.engine, job_id)

    def find(
        self,
        *,
        state: State | str | None = None,
        task: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        key: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        """Jobs, newest first, up to 500 a page; go on with the page's cursor.

        `state` is a State, or a word of the profile. A page of a word that means only some jobs of a state may be
        shorter than `limit`, and the jobs of that state are read until one fits; of a word that means several states,
        one state comes after the other.
        """
        if not 1 <= limit <= looking.PAGE:
            raise InvalidJob("limit", f"{limit} must be from 1 to {looking.PAGE}; go on with the cursor")
        where = Where(None, task, queue, tenant, key)
        meaning = None if state is None else self.profile.meaning(state)
        try:
            if meaning is None:
                return self.engine.find(where, limit=limit, cursor=cursor)
            return looking.find(self.engine, where, meaning, limit=limit, cursor=cursor)
        except (ValueError, IndexError, OverflowError):
            if cursor is None:
                raise
            raise InvalidJob("cursor", f"{cursor!r} is none of ours; take it from the page before") from None

    def count(
        self,
        *,
        state: State | str | None = None,
        task: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
    ) -> dict[State, int]:
        """How many jobs there are, by stored state; every state is named.

        `state` as in `find`; what a word means only a part of is counted by reading it.
        """
        meaning = LABELS if state is None else self.profile.meaning(state)
        counts = looking.count(self.engine, Where(None, task, queue, tenant), meaning)
        return {state: counts.get(state, 0) for state in State}

    def view(self, job: Job) -> dict[str, Any]:
        """The job as the profile prints it, or under our own names; plain data."""
        return self.profile.view(job, self.engine.now())

    def events(self, job_id: str) -> list[Event]:
        """The audit trail of a job, oldest first."""
        return self.engine.events(self.get(job_id).id)

    # ------------------------------------------------------------------------------------- operating

    def cancel(self, job_id: str, *, actor: str = "api", reason: str = "") -> Job:
        """Cancel a pending job, or ask a running one to stop; NotPossible once it has ended.

        With the setting `cancel = "pending"` a running one cannot be cancelled either.
        """
        only_pending = self.settings.cancel == "pending"

        def decide(job: Job, now: datetime) -> Change:
            return lifecycle.cancel(job, now, actor=actor, note=_note(reason), only_pending=only_pending)

        return operate(self.engine, job_id, decide, actor=actor)

    def retry(self, job_id: str, *, keep_attempts: bool = False, actor: str = "api", reason: str = "") -> Job:
        """Run a failed or cancelled job again, with a fresh budget, or with `keep_attempts` just once more."""

        def decide(job: Job, now: datetime) -> Change:
            return lifecycle.retry(job, now, actor=actor, note=_note(reason), keep_attempts=keep_attempts)

        return operate(self.engine, job_id, decide, actor=actor)

    def recover(self, *, message: str | None = None, actor: str = "api") -> int:
        """Requeue or end every job whose lease has run out; workers do this by themselves. How many it was.

        `message` is kept as the error, instead of our own words. A job that is locked is left for the next time.
        """
        check_name("actor", actor)
        return recover_leases(self.engine, actor=actor, message=_note(message or ""), logger=self.logger)

    def prune(self) -> int:
        """Delete finished jobs older than their retention; workers do this by themselves. How many were deleted."""
        total = 0
        while batch := self.engine.prune(self.settings.keep, limit=1000):
            total += batch
        return total

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
        return Worker(self.engine, self.tasks, plan_from(self.settings, given), self.logger)

    def run_worker(self, *, until_idle: bool = False, **options: Any) -> None:
        """Run a worker in this thread until it is stopped (SIGTERM, SIGINT); options as in `worker`."""
        self.worker(**options).run(until_idle=until_idle)


def _conflicts(jobs: list[Job], receipts: list[Receipt]) -> Iterator[tuple[int, Job, Receipt]]:
    """The jobs whose keys others hold, each with its place and its receipt."""
    for place, (job, receipt) in enumerate(zip(jobs, receipts, strict=True)):
        if receipt.created or receipt.refused or receipt.job.id == job.id:
            continue
        yield place, job, receipt


def _told(jobs: list[Job], receipts: list[Receipt], conflict: OnConflict) -> list[Receipt]:
    """The receipts, or KeyTaken if the caller asked for it: in Python, so that no transaction fails of it."""
    if conflict is OnConflict.RAISE:
        for _, job, receipt in _conflicts(jobs, receipts):
            raise KeyTaken(job.key or "", receipt.job.id)
    return receipts


def _raw(payload: Any) -> None:
    """Stands for the handler of a task that is not known here."""


def _note(reason: str) -> str:
    return clean(reason, MESSAGE_CAP)
