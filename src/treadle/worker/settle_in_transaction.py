"""ctx.settle: the success of an attempt, written in the handler's own transaction."""

from typing import Any, NamedTuple

from treadle.engines.contract import JobStore
from treadle.engines.values import Ruling
from treadle.errors import EngineUnavailable, LeaseLost
from treadle.model import Change, State, json_text, lifecycle
from treadle.model.backoff import lock_waits
from treadle.transactions import arun_in, run_in
from treadle.transactions.joined import Steps
from treadle.worker.attempt import Attempt


def settle_in(engine: JobStore, attempt: Attempt, tx: Any, result: Any) -> None:
    """ctx.settle: write the attempt's success in the handler's own transaction."""
    attempt.settled = run_in(tx, _settling(engine, attempt, result))


async def asettle_in(engine: JobStore, attempt: Attempt, tx: Any, result: Any) -> None:
    """ctx.asettle: the same in a transaction of an async library."""
    attempt.settled = await arun_in(tx, _settling(engine, attempt, result))


class Committed(NamedTuple):
    """Whether the job is ours no longer, and whether that is what `settle_in` wrote: else it has another holder."""

    over: bool
    by_us: bool


def committed(engine: JobStore, attempt: Attempt, settled: Change) -> Committed:
    """What became of what `settle_in` wrote; a job that is gone has ended so, and was deleted since."""
    [job] = engine.get([attempt.id])
    if job is None:
        return Committed(over=True, by_us=True)
    over = job.state is not State.RUNNING or job.lease_token != attempt.claimed.token
    return Committed(over, by_us=(job.state, job.revision) == (settled.after.state, settled.after.revision))


def _settling(engine: JobStore, attempt: Attempt, result: Any) -> Steps[Change]:
    outcome = lifecycle.Succeeded(None if result is None else json_text(result, "result"))
    now, id_ = engine.now(), attempt.id
    for wait in lock_waits():
        change = lifecycle.settle(attempt.job_so_far(), outcome, now)
        verdict = yield from engine.settle_script(change)
        match verdict.ruling:
            case Ruling.APPLIED:
                return change
            case Ruling.STALE:  # a cancel request came meanwhile: a success still stands
                attempt.job = verdict.job or attempt.job
            case Ruling.BUSY:  # most likely our own lease renewal
                yield wait
            case Ruling.ALREADY:  # its commit was not heard of, and the handler tries again
                raise LeaseLost(f"job {id_} was settled before, by this same attempt: roll your transaction back")
            case Ruling.LOST | Ruling.REFUSED:
                raise LeaseLost(f"job {id_} is no longer yours: roll your transaction back")
    raise EngineUnavailable(f"job {id_} is locked by another open transaction: roll yours back and repeat it")
