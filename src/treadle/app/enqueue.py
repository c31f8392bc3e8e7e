"""From a task and a payload to a stored job: built, stored, in the caller's transaction if there is one.

A key that is taken is answered as the task's `unique` says: with the job that has it, with KeyTaken, or by editing
that job in place.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from treadle.app.receipts import StoredReceipts
from treadle.app.store import Store
from treadle.engines.contract import JobStore
from treadle.engines.values import Receipt, Ruling, Verdict
from treadle.errors import EngineUnavailable, InvalidInput, InvalidJob, KeyTaken, TreadleError
from treadle.model import AlikeJobs, Change, Job, State, lifecycle, new_ids
from treadle.model.backoff import lock_waits
from treadle.model.checks import bound_tenant
from treadle.tasks.definition import Definition
from treadle.tasks.options import OnConflict, Options, times
from treadle.tasks.task import Task

if TYPE_CHECKING:
    from treadle.transactions import Steps


class Enqueuer:
    """Builds jobs and stores them: everybody's, or one tenant's if the store is."""

    def __init__(self, store: Store, known: Mapping[str, Definition]) -> None:
        """`known` are the tasks whose options their jobs get when they follow another job."""
        self._store = store
        self._known = known

    def enqueue(self, task: Task[..., Any], payloads: Sequence[str]) -> Sequence[Receipt]:
        """Store a job for each payload; a receipt each."""
        jobs = self._jobs(task, payloads)
        return self._receipts_or_raise(task, jobs, self._stored(task, jobs))

    def enqueue_chunks(self, task: Task[..., Any], chunks: Iterable[Sequence[str]]) -> Sequence[Receipt]:
        """The same, one chunk after the other. A conflict is raised when all of them are stored."""
        every, blueprint = StoredReceipts(self._store), task.blueprint
        conflict: TreadleError | None = None
        for payloads in chunks:
            jobs = self._jobs(task, payloads)
            receipts = self._stored(task, jobs)
            every.add(jobs, receipts)
            if conflict is None and not blueprint.new:
                conflict = self._conflict(jobs, receipts, blueprint.conflict)
        if conflict is not None:
            raise conflict
        return every

    async def aenqueue(self, task: Task[..., Any], encode: Callable[[], Sequence[str]]) -> Sequence[Receipt]:
        """`enqueue` in a thread, so that the event loop goes on; with `tx`, the statements run on the loop."""
        from asyncio import to_thread  # noqa: PLC0415 - a process that only enqueues does not need it

        tx = task.options.tx
        if tx is None:
            return await to_thread(lambda: self.enqueue(task, encode()))
        from treadle.transactions import arun_in  # noqa: PLC0415

        jobs = await to_thread(lambda: self._jobs(task, encode()))

        def written(jobs: Sequence[Job]) -> Awaitable[Sequence[Receipt]]:
            return arun_in(tx, self._in_transaction(task, jobs), self._committed)

        hooks = self._store.hooks
        receipts = await (written(jobs) if hooks is None else hooks.aenqueuing(jobs, written))
        return self._receipts_or_raise(task, jobs, receipts)

    def store(self, jobs: list[Job]) -> list[Receipt]:
        """Store jobs that are made already; the first one of an id or a key stays."""
        receipts = self._store.engine.enqueue(jobs)
        if conflict := self._conflict(jobs, receipts, OnConflict.FIRST):
            raise conflict
        return list(receipts)

    def now(self) -> datetime:
        """The store's time."""
        return self._store.engine.now()

    def tenant_of(self, named: str | None) -> str:
        """Whose a new job or schedule is; InvalidJob if that must be named and is not, or is another's."""
        if self._store.tenant is not None:
            return bound_tenant(self._store.tenant, named)
        if named is None and self._store.settings.tenant_required:
            raise InvalidJob(
                "tenant", "is required (the setting tenant_required); name the job's tenant: using(tenant=…)"
            )
        return "default" if named is None else named

    def _jobs(self, task: Task[..., Any], payloads: Sequence[str]) -> Sequence[Job]:
        """The jobs, not stored. The store's time is asked for only where it counts: the store stamps every job."""
        options, blueprint = task.options, task.blueprint
        like, tenant = blueprint.job, self.tenant_of(options.tenant)
        if blueprint.timed:
            like = like.evolve(**times(options, self.now()))
        if options.on_end is not None:
            from treadle.tasks.follow_ups import on_end  # noqa: PLC0415 - few tasks have any

            like = like.evolve(on_end=on_end(task.name, options.on_end, self._known))
        if tenant != like.tenant:
            like = like.evolve(tenant=tenant)
        ids = new_ids(len(payloads)) if options.id is None else [options.id] * len(payloads)
        if len(payloads) == 1:
            return [Job._make((ids[0], like.task, payloads[0], *like[3:]))]
        return AlikeJobs(like, ids, payloads)

    def _stored(self, task: Task[..., Any], jobs: Sequence[Job]) -> Sequence[Receipt]:
        """Store these jobs, inside the hooks of the app if there are any; a receipt each."""
        if self._store.hooks is None:
            return self._written(task, jobs)
        return self._store.hooks.enqueuing(jobs, partial(self._written, task))

    def _written(self, task: Task[..., Any], jobs: Sequence[Job]) -> Sequence[Receipt]:
        """Store these jobs: in the caller's transaction, or on the engine's own connections."""
        if task.options.tx is not None:
            from treadle.transactions import run_in  # noqa: PLC0415 - only those with a transaction of their own need it

            return run_in(task.options.tx, self._in_transaction(task, jobs), self._committed)
        receipts = self._store.engine.enqueue(jobs)
        if task.blueprint.conflict is OnConflict.REPLACE:
            from treadle.transactions import run  # noqa: PLC0415

            return run(_replaced(self._store.engine, jobs, receipts, own=True))
        return receipts

    def _in_transaction(self, task: Task[..., Any], jobs: Sequence[Job]) -> "Steps[Sequence[Receipt]]":
        """The statements that store jobs on the caller's connection."""
        engine = self._store.engine
        receipts = yield from engine.enqueue_script(jobs, notify=task.options.notify)
        if task.blueprint.conflict is OnConflict.REPLACE:
            receipts = yield from _replaced(engine, jobs, receipts, own=False)
        return receipts

    def _committed(self, *_: object) -> None:
        """The caller has committed its transaction: a worker of this process need not wait for its next poll."""
        self._store.engine.wake()

    def _receipts_or_raise(
        self, task: Task[..., Any], jobs: Sequence[Job], receipts: Sequence[Receipt]
    ) -> Sequence[Receipt]:
        """The receipts, if no conflict forbids it: in Python, so that no transaction fails of it."""
        blueprint = task.blueprint
        if not blueprint.new and (conflict := self._conflict(jobs, receipts, blueprint.conflict)):
            raise conflict
        return receipts

    def _conflict(self, jobs: Sequence[Job], receipts: Sequence[Receipt], rule: OnConflict) -> TreadleError | None:
        """KeyTaken if the rule asks for it. An id that a job of another task has is no repeated enqueue: InvalidJob."""
        own = self._store.tenant
        for job, receipt in zip(jobs, receipts, strict=True):
            if receipt.created or receipt.refused:
                continue
            there = receipt.job
            if own is not None and there.tenant != own:
                return InvalidJob("id", "this id cannot be used; leave it out and treadle makes one")
            if there.id == job.id and there.tenant == job.tenant and there.task != job.task:
                return InvalidJob("id", f"{job.id} is taken by a job of task {there.task!r}; give this one another")
        if rule is OnConflict.RAISE:
            for _, job, receipt in _conflicts(jobs, receipts):
                return KeyTaken(job.key or "", receipt.job.id)
        return None


class Enqueued(NamedTuple):
    """A job that was stored. A token that may not read is told nothing but its id."""

    id: str
    outcome: str | None = None  # created, existed or replaced
    job: Job | None = None


def enqueue_outcome(job: Job, id: str, before: datetime, on_conflict: str) -> str:
    """created, existed or replaced. An enqueue has an id of its own, so another id means that a key was taken."""
    if job.id != id.lower():
        return "replaced" if on_conflict == OnConflict.REPLACE and job.state is State.PENDING else "existed"
    return "created" if job.created_at >= before else "existed"


def policies(
    own: Options,
    *,
    key: str | None,
    max_attempts: int | None,
    unique: str | None,
    window: str | None,
    on_conflict: str | None,
) -> dict[str, Any]:
    """The options `retry` and `unique` of a job, where what is named differs from its task's `own`."""
    found: dict[str, Any] = {}
    if max_attempts is not None:
        found["retry"] = own.retry._replace(max_attempts=max_attempts)
    named = {"window": window, "on_conflict": on_conflict}
    changes: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    if unique is not None:
        changes = {"window": None, **changes, "scope": unique}
    if changes:
        if key is None:
            raise InvalidInput("key", "unique, window and on_conflict are about a key: give one too")
        found["unique"] = own.unique._replace(**changes)
    return found


def _replaced(
    engine: JobStore, jobs: Sequence[Job], receipts: Sequence[Receipt], *, own: bool
) -> "Steps[list[Receipt]]":
    """Edit the jobs that hold the keys: on the engine's `own` connections, or by statements for the caller's."""
    answers = list(receipts)
    for place, job, receipt in _conflicts(jobs, answers):
        answers[place] = yield from _replace(engine, job, receipt, own)
    return answers


def _replace(engine: JobStore, job: Job, receipt: Receipt, own: bool) -> "Steps[Receipt]":
    """Edit the pending holder of the key in place; if it was taken meanwhile, look again."""
    for wait in lock_waits():
        if receipt.created or receipt.job.state is not State.PENDING:
            return receipt
        change = lifecycle.replace(receipt.job, job, engine.now(), actor="enqueue")
        verdict = yield from _change(engine, change, own)
        if verdict.ruling is Ruling.APPLIED:
            return Receipt(change.after, created=False)
        if verdict.ruling is Ruling.BUSY:
            yield wait
        [receipt] = engine.enqueue([job]) if own else (yield from engine.enqueue_script([job]))
    raise EngineUnavailable(f"job {receipt.job.id} is locked by somebody's open transaction; repeating is safe")


def _change(engine: JobStore, change: Change, own: bool) -> "Steps[Verdict]":
    if own:
        return engine.turn([change]).verdicts[0]
    return (yield from engine.settle_script(change))


def _conflicts(jobs: Sequence[Job], receipts: Sequence[Receipt]) -> Iterator[tuple[int, Job, Receipt]]:
    """The jobs whose keys others hold, each with its place and its receipt."""
    for place, (job, receipt) in enumerate(zip(jobs, receipts, strict=True)):
        if receipt.created or receipt.refused or receipt.job.id == job.id:
            continue
        yield place, job, receipt
