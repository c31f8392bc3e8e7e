"""For your own tests: a clock that you move, and a worker that runs what is due, here and now.

clock = FakeClock()
app = Treadle("sqlite:///:memory:", clock=clock)
...
welcome.using(run_after="5m").enqueue(user)
clock.advance(minutes=5)
run_until_idle(app)
"""

import asyncio
import inspect
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from treadle.app.treadle import Treadle
from treadle.engines.values import Claim, Ruling
from treadle.model import Job, State, lifecycle, new_id
from treadle.schedules.firing import Scheduler
from treadle.tasks.context import Context
from treadle.worker.attempt import Attempt
from treadle.worker.executors import Call
from treadle.worker.maintenance.recovery import recover
from treadle.worker.outcomes import arguments_of, ended_by, succeeded, uncommitted
from treadle.worker.settle_in_transaction import asettle_in, committed, settle_in


class FakeClock:
    """A clock that stands still until it is moved.

    >>> clock = FakeClock()
    >>> before = clock.now()
    >>> clock.advance(minutes=5)
    >>> (clock.now() - before).total_seconds()
    300.0
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, 12, tzinfo=UTC)) -> None:
        self._now = start
        self._lock = threading.Lock()

    def now(self) -> datetime:
        return self._now

    def advance(self, **duration: float) -> None:
        """Move forward by a timedelta's keywords: `advance(minutes=5)`."""
        with self._lock:
            self._now += timedelta(**duration)


def run_until_idle(app: Treadle, *, queues: Sequence[str] | None = None, limit: int = 1000) -> list[Job]:
    """Run what is due, by schedules too, one job after the other in this thread; the jobs after each attempt.

    Without `queues`, those of the app's tasks and settings.
    More than `limit` attempts are taken for a loop that would never end, and raise.
    """
    attempts: list[Job] = []
    own = (task.options.queue for task in app.tasks.values())
    taken = tuple(dict.fromkeys([*own, *app.settings.queues])) if queues is None else tuple(queues)
    declared = app.declared()
    while Scheduler(app.engine, "testing", declared, enabled=app.settings.schedules).run_due():
        declared = []
    recover(app.engine, [job for job in app.engine.expired(limit=limit) if job.state is State.PENDING], actor="testing")
    while True:
        claim = Claim(new_id(), "testing", 1, 300.0, taken, None, tuple(app.tasks), thorough=True)
        _, claimed, _, more = app.engine.turn([], claim)
        if not claimed:
            if more:
                continue
            return attempts
        if len(attempts) == limit:
            raise AssertionError(f"still not idle after {limit} attempts; the last was of task {claimed[0].task!r}")
        attempts.append(_run(app, claimed[0]))


def assert_enqueued(app: Treadle, task: str, **fields: Any) -> Job:
    """The newest pending job of this task whose fields (and `payload`) are as given, or an AssertionError."""
    waiting = app.find(state=State.PENDING, task=task, limit=500).jobs
    for job in waiting:
        if all(getattr(job, name) == value for name, value in fields.items()):
            return job
    raise AssertionError(f"no pending job of task {task!r} with {fields}; pending: {[job.payload for job in waiting]}")


def _run(app: Treadle, job: Job) -> Job:
    now = app.engine.now
    attempt = Attempt(job, lease_ends=float("inf"), queued_at=0.0)
    settles = partial(settle_in, app.engine), partial(asettle_in, app.engine)
    call = Call(attempt, app.tasks[job.task], Context(attempt, *settles, app.logger))
    arguments = arguments_of(call, now())
    outcome: lifecycle.Outcome | None
    if isinstance(arguments, dict):
        attempt.started_at = now()
        try:
            value = call.task.run(call.context, arguments)
            outcome = succeeded(_await(value) if inspect.iscoroutine(value) else value, attempt, now())
        except Exception as error:
            outcome = ended_by(error, attempt, now())
    else:
        outcome = arguments
    if attempt.settled and outcome is not None:
        outcome = None if committed(app.engine, attempt) else uncommitted(attempt, outcome, now())
    change = lifecycle.settle(attempt.job_so_far(), outcome, now()) if outcome is not None else None
    while change is not None and outcome is not None:
        [verdict] = app.engine.turn([change]).verdicts
        if verdict.ruling is Ruling.STALE and verdict.job is not None:
            attempt.job = verdict.job
            change = lifecycle.settle(attempt.job_so_far(), outcome, now())
        elif verdict.ruling is Ruling.REFUSED:
            change = lifecycle.fallback(change, verdict.holder, verdict.why, now())
        else:
            break
    return app.get(job.id)


def _await(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The coroutine's result, on a loop of its own in a thread: the caller may be inside a loop already."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
