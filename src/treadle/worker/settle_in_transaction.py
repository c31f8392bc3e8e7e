"""ctx.settle: the success of an attempt, written in the handler's own transaction."""

from typing import Any

from treadle.engines.contract import JobStore
from treadle.engines.values import Ruling
from treadle.errors import EngineUnavailable, LeaseLost
from treadle.model import State, json_text, lifecycle
from treadle.model.backoff import lock_waits
from treadle.transactions import arun_in, run_in
from treadle.transactions.joined import Steps
from treadle.worker.attempt import Attempt


def settle_in(engine: JobStore, attempt: Attempt, tx: Any, result: Any) -> None:
    """ctx.settle: write the attempt's success in the handler's own transaction."""
    run_in(tx, _settling(engine, attempt, result))
    attempt.settled = True


async def asettle_in(engine: JobStore, attempt: Attempt, tx: Any, result: Any) -> None:
    """ctx.asettle: the same in a transaction of an async library."""
    await arun_in(tx, _settling(engine, attempt, result))
    attempt.settled = True


def committed(engine: JobStore, attempt: Attempt) -> bool:
    """Whether what `settle_in` wrote was committed."""
    [job] = engine.get([attempt.id])
    return job is None or job.state is not State.RUNNING or job.lease_token != attempt.claimed.token


def _settling(engine: JobStore, attempt: Attempt, result: Any) -> Steps[None]:
    outcome = lifecycle.Succeeded(None if result is None else json_text(result, "result"))
    now, id_ = engine.now(), attempt.id
    for wait in lock_waits():
        verdict = yield from engine.settle_script(lifecycle.settle(attempt.job_so_far(), outcome, now))
        match verdict.ruling:
            case Ruling.APPLIED:
                return
            case Ruling.STALE:  # a cancel request came meanwhile: a success still stands
                attempt.job = verdict.job or attempt.job
            case Ruling.BUSY:  # most likely our own lease renewal
                yield wait
            case Ruling.ALREADY:  # its commit was not heard of, and the handler tries again
                raise LeaseLost(f"job {id_} was settled before, by this same attempt: roll your transaction back")
            case Ruling.LOST | Ruling.REFUSED:
                raise LeaseLost(f"job {id_} is no longer yours: roll your transaction back")
    raise EngineUnavailable(f"job {id_} is locked by another open transaction: roll yours back and repeat it")
