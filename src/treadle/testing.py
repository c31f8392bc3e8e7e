"""For your own tests: a clock that you move, and a worker that runs what is due, here and now.

clock = FakeClock()
app = Treadle("sqlite:///:memory:", clock=clock)
...
welcome.using(run_after="5m").enqueue(user)
clock.advance(minutes=5)
run_until_idle(app)
"""

import asyncio
import atexit
import inspect
import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

from treadle.app.treadle import Treadle
from treadle.engines.values import Claim, Claimed, Ruling
from treadle.model import Job, State, lifecycle, new_id
from treadle.schedules.firing import Scheduler
from treadle.tasks.context import Context
from treadle.worker.attempt import Attempt
from treadle.worker.executors import Call
from treadle.worker.maintenance.recovery import recover
from treadle.worker.outcomes import arguments_of, ended_by, succeeded, uncommitted
from treadle.worker.settle_in_transaction import asettle_in, committed, settle_in

T = TypeVar("T")


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

    Async handlers run on one event loop, the same for every call in this process: what is bound to a loop, such as a
    pool of connections, can be shared by all of them. In async code await `arun_until_idle`.
    """
    run = _until_idle(app, queues, limit)
    step = _advance(run)
    while not isinstance(step, _Ended):
        step = _advance(run, _result_of(asyncio.run_coroutine_threadsafe(step, _handler_loop()).result))
    return step.attempts


async def arun_until_idle(app: Treadle, *, queues: Sequence[str] | None = None, limit: int = 1000) -> list[Job]:
    """`run_until_idle` for async code: async handlers run on this event loop, everything else in a thread."""
    run = _until_idle(app, queues, limit)
    step = await asyncio.to_thread(_advance, run)
    while not isinstance(step, _Ended):
        try:
            result = _Result(await step)
        except Exception as error:
            result = _Result(error=error)
        step = await asyncio.to_thread(_advance, run, result)
    return step.attempts


def assert_enqueued(app: Treadle, task: str, **fields: Any) -> Job:
    """The newest pending job of this task whose fields (and `payload`) are as given, or an AssertionError."""
    waiting = app.find(state=State.PENDING, task=task, limit=500).jobs
    for job in waiting:
        if all(getattr(job, name) == value for name, value in fields.items()):
            return job
    raise AssertionError(f"no pending job of task {task!r} with {fields}; pending: {[job.payload for job in waiting]}")


# The run is a generator, so that both ways share it: it yields coroutines of async handlers, and is sent their results.

Handler = Coroutine[Any, Any, Any]
Run = Generator[Handler, Any, T]


class _Result(NamedTuple):
    """How a coroutine ended."""

    value: Any = None
    error: Exception | None = None


class _Ended(NamedTuple):
    """Nothing is due any more."""

    attempts: list[Job]


_BEGIN = _Result()


def _advance(run: Run[list[Job]], result: _Result = _BEGIN) -> Handler | _Ended:
    """Go on until the next coroutine of an async handler, or until the end."""
    try:
        return run.send(result.value) if result.error is None else run.throw(result.error)
    except StopIteration as end:
        return _Ended(end.value)


def _result_of(call: Callable[[], Any]) -> _Result:
    try:
        return _Result(call())
    except Exception as error:
        return _Result(error=error)


@cache
def _handler_loop() -> asyncio.AbstractEventLoop:
    """A loop that runs in a thread: whoever calls `run_until_idle` may be inside another one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="treadle-testing", daemon=True)
    thread.start()

    def end() -> None:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        if not loop.is_running():
            loop.close()

    atexit.register(end)
    return loop


def _until_idle(app: Treadle, queues: Sequence[str] | None, limit: int) -> Run[list[Job]]:
    attempts: list[Job] = []
    own = (task.options.queue for task in app.tasks.values())
    taken = tuple(dict.fromkeys([*own, *app.settings.queues])) if queues is None else tuple(queues)
    declared = app.declared()
    while Scheduler(app.engine, "testing", declared, enabled=app.settings.schedules).run_due():
        declared = []
    recover(app.engine, [job for job in app.engine.expired(limit=limit) if job.state is State.PENDING], actor="testing")
    thorough = False
    while True:
        claim = Claim(new_id(), "testing", 1, 300.0, taken, None, tuple(app.tasks), thorough=thorough)
        _, claimed, _, more = app.engine.turn([], claim)
        if claimed:
            if len(attempts) == limit:
                raise AssertionError(f"still not idle after {limit} attempts; the last was of task {claimed[0].task!r}")
            attempts.append((yield from _attempt(app, claimed[0])))
        elif thorough and not more:
            return attempts
        thorough = not claimed  # to look everywhere costs much: only when there seems to be nothing


def _attempt(app: Treadle, claimed: Claimed) -> "Run[Job]":
    """Run one job and settle it; the job afterwards."""
    now = app.engine.now
    attempt = Attempt(claimed, lease_ends=float("inf"), queued_at=0.0)
    settles = partial(settle_in, app.engine), partial(asettle_in, app.engine)
    call = Call(attempt, app.tasks[claimed.task].definition, Context(attempt, *settles, app.logger))
    arguments = arguments_of(call, now)
    outcome: lifecycle.Outcome | None
    if isinstance(arguments, dict):
        attempt.started_at = now()
        try:
            value = call.task.run(call.context, arguments)
            outcome = succeeded((yield value) if inspect.iscoroutine(value) else value, attempt, now)
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
    return app.get(claimed.id)
