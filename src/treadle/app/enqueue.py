"""How new jobs reach the store, and what is done about keys that are taken."""

from collections.abc import Iterator

from treadle.engines.contract import Engine
from treadle.engines.values import Receipt, Ruling, Verdict
from treadle.errors import EngineUnavailable, InvalidJob, KeyTaken
from treadle.model import Change, Job, State, lifecycle
from treadle.model.backoff import lock_waits
from treadle.tasks.task import OnConflict
from treadle.transactions import Steps


def submission(engine: Engine, jobs: list[Job], conflict: OnConflict, *, own: bool) -> Steps[list[Receipt]]:
    """The steps that store jobs: done by the engine on its `own` connections, or its statements for the caller's."""
    receipts = yield from _store(engine, jobs, own)
    if conflict is OnConflict.REPLACE:
        for place, job, receipt in _conflicts(jobs, receipts):
            receipts[place] = yield from _replace(engine, job, receipt, own)
    return receipts


def told(jobs: list[Job], receipts: list[Receipt], conflict: OnConflict) -> list[Receipt]:
    """The receipts, or KeyTaken if the caller asked for it: in Python, so that no transaction fails of it.

    An id that a job of another task has is refused: that is no repeated enqueue.
    """
    for job, receipt in zip(jobs, receipts, strict=True):
        there = receipt.job
        if receipt.created or receipt.refused or there.id != job.id or there.tenant != job.tenant:
            continue  # of another tenant's job nothing is said here
        if there.task != job.task:
            raise InvalidJob("id", f"{job.id} is taken by a job of task {there.task!r}; give this one another")
    if conflict is OnConflict.RAISE:
        for _, job, receipt in _conflicts(jobs, receipts):
            raise KeyTaken(job.key or "", receipt.job.id)
    return receipts


def _replace(engine: Engine, job: Job, receipt: Receipt, own: bool) -> Steps[Receipt]:
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
        [receipt] = yield from _store(engine, [job], own)
    raise EngineUnavailable(f"job {receipt.job.id} is locked by somebody's open transaction; repeating is safe")


def _store(engine: Engine, jobs: list[Job], own: bool) -> Steps[list[Receipt]]:
    if own:
        return engine.enqueue(jobs)
    return (yield from engine.enqueue_script(jobs))


def _change(engine: Engine, change: Change, own: bool) -> Steps[Verdict]:
    if own:
        return engine.turn([change]).verdicts[0]
    return (yield from engine.settle_script(change))


def _conflicts(jobs: list[Job], receipts: list[Receipt]) -> Iterator[tuple[int, Job, Receipt]]:
    """The jobs whose keys others hold, each with its place and its receipt."""
    for place, (job, receipt) in enumerate(zip(jobs, receipts, strict=True)):
        if receipt.created or receipt.refused or receipt.job.id == job.id:
            continue
        yield place, job, receipt
