"""From a task and a payload to a stored job: built, stored, in the caller's transaction if there is one.

A key that is taken is answered as the task's `unique` says: with the job that has it, with KeyTaken, or by editing
that job in place.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from treadle.app.store import Store
from treadle.engines.contract import JobStore
from treadle.engines.values import Receipt, Ruling, Verdict
from treadle.errors import EngineUnavailable, InvalidJob, KeyTaken
from treadle.model import Change, Job, State, lifecycle, new_id
from treadle.model.backoff import lock_waits
from treadle.model.checks import bound_tenant
from treadle.tasks.definition import Definition, on_end
from treadle.tasks.options import UNSTAMPED, OnConflict, times
from treadle.tasks.task import Task
from treadle.transactions import Steps, arun_in, run, run_in

DUE_AT_ONCE: Mapping[str, Any] = {"created_at": UNSTAMPED, "due_at": UNSTAMPED}


class Enqueuer:
    """Builds jobs and stores them: everybody's, or one tenant's if the store is."""

    def __init__(self, store: Store, known: Mapping[str, Definition]) -> None:
        """`known` are the tasks whose options their jobs get when they follow another job."""
        self._store = store
        self._known = known

    def enqueue(self, task: Task[..., Any], payloads: Sequence[str]) -> list[Receipt]:
        """Store a job for each payload; a receipt each."""
        jobs, conflict, tx = self._jobs(task, payloads), task.blueprint.conflict, task.options.tx
        if tx is not None:
            return self._receipts_or_raise(
                jobs, run_in(tx, in_transaction(self._store.engine, jobs, conflict)), conflict
            )
        receipts = self._store.engine.enqueue(jobs)
        if conflict is OnConflict.REPLACE:
            receipts = run(_replaced(self._store.engine, jobs, receipts, own=True))
        return self._receipts_or_raise(jobs, receipts, conflict)

    async def aenqueue(self, task: Task[..., Any], encode: Callable[[], Sequence[str]]) -> list[Receipt]:
        """`enqueue` in a thread, so that the event loop goes on; with `tx`, the statements run on the loop."""
        tx = task.options.tx
        if tx is None:
            return await asyncio.to_thread(lambda: self.enqueue(task, encode()))
        jobs, conflict = await asyncio.to_thread(lambda: self._jobs(task, encode())), task.blueprint.conflict
        return self._receipts_or_raise(
            jobs, await arun_in(tx, in_transaction(self._store.engine, jobs, conflict)), conflict
        )

    def store(self, jobs: list[Job]) -> list[Receipt]:
        """Store jobs that are made already; the first one of an id or a key stays."""
        return self._receipts_or_raise(jobs, self._store.engine.enqueue(jobs), OnConflict.FIRST)

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

    def _jobs(self, task: Task[..., Any], payloads: Sequence[str]) -> list[Job]:
        """The jobs, not stored. The store's time is asked for only where it counts: the store stamps every job."""
        options, blueprint = task.options, task.blueprint
        fields = {
            **blueprint.fields,
            **(times(options, self.now()) if blueprint.timed else DUE_AT_ONCE),
            "tenant": self.tenant_of(options.tenant),
            "on_end": None if options.on_end is None else on_end(options.on_end, self._known),
        }
        return [Job(id=options.id or new_id(), payload_json=payload, **fields) for payload in payloads]

    def _receipts_or_raise(self, jobs: list[Job], receipts: list[Receipt], conflict: OnConflict) -> list[Receipt]:
        """The receipts; KeyTaken if the caller asked for it: in Python, so that no transaction fails of it.

        An id that a job of another task has is refused: that is not a repeated enqueue.
        """
        own = self._store.tenant
        for job, receipt in zip(jobs, receipts, strict=True):
            if receipt.created or receipt.refused:
                continue
            there = receipt.job
            if own is not None and there.tenant != own:
                raise InvalidJob("id", "this id cannot be used; leave it out and treadle makes one")
            if there.id == job.id and there.tenant == job.tenant and there.task != job.task:
                raise InvalidJob("id", f"{job.id} is taken by a job of task {there.task!r}; give this one another")
        if conflict is OnConflict.RAISE:
            for _, job, receipt in _conflicts(jobs, receipts):
                raise KeyTaken(job.key or "", receipt.job.id)
        return receipts


def in_transaction(engine: JobStore, jobs: list[Job], conflict: OnConflict) -> Steps[list[Receipt]]:
    """The statements that store jobs on the caller's connection."""
    receipts = yield from engine.enqueue_script(jobs)
    if conflict is OnConflict.REPLACE:
        receipts = yield from _replaced(engine, jobs, receipts, own=False)
    return receipts


def _replaced(engine: JobStore, jobs: list[Job], receipts: list[Receipt], *, own: bool) -> Steps[list[Receipt]]:
    """Edit the jobs that hold the keys: on the engine's `own` connections, or by statements for the caller's."""
    for place, job, receipt in _conflicts(jobs, receipts):
        receipts[place] = yield from _replace(engine, job, receipt, own)
    return receipts


def _replace(engine: JobStore, job: Job, receipt: Receipt, own: bool) -> Steps[Receipt]:
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


def _change(engine: JobStore, change: Change, own: bool) -> Steps[Verdict]:
    if own:
        return engine.turn([change]).verdicts[0]
    return (yield from engine.settle_script(change))


def _conflicts(jobs: list[Job], receipts: list[Receipt]) -> Iterator[tuple[int, Job, Receipt]]:
    """The jobs whose keys others hold, each with its place and its receipt."""
    for place, (job, receipt) in enumerate(zip(jobs, receipts, strict=True)):
        if receipt.created or receipt.refused or receipt.job.id == job.id:
            continue
        yield place, job, receipt
