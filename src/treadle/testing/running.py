"""A worker for tests: it runs what is due, one job after the other, here and now."""

import asyncio
import atexit
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from functools import cache, partial
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from treadle.app.treadle import Treadle
from treadle.engines.values import Claim, ClaimedJob, Ruling
from treadle.model import Change, Job, State, lifecycle, new_id
from treadle.model.records import Schedule
from treadle.schedules.firing import Scheduler
from treadle.tasks.context import Context, running_attempt
from treadle.worker.attempt import Attempt
from treadle.worker.executors import Call
from treadle.worker.handler_writes import HandlerWrites
from treadle.worker.maintenance.recovery import recover
from treadle.worker.observers import Observers
from treadle.worker.outcomes import arguments_of, ended_by, succeeded, uncommitted
from treadle.worker.settle_in_transaction import committed
from treadle.worker.steps import Settling

T = TypeVar("T")
log = logging.getLogger("treadle.worker")  # what a worker would say

LEASE = 300.0


def run_until_idle(
    app: Treadle,
    *,
    queues: Sequence[str] | None = None,
    limit: int = 1000,
    run_coroutine: Callable[[Coroutine[Any, Any, Any]], Any] | None = None,
) -> list[Job]:
    """Run what is due, by schedules too, one job after the other in this thread; the jobs after each attempt.

    Without `queues`, those of the app's tasks and settings.
    More than `limit` attempts are taken for a loop that would never end, and raise.

    Hooks are called and ends are logged as in a worker, but before the next job runs.

    Async handlers run on one event loop, the same for every call in this process: what is bound to a loop, such as a
    pool of connections, can be shared by all of them. In async code await `arun_until_idle`. With `run_coroutine`, they
    run as it runs them.
    """
    run_here = run_coroutine or (lambda step: asyncio.run_coroutine_threadsafe(step, _handler_loop()).result())
    run = _until_idle(app, queues, limit)
    step = _advance(run)
    while not isinstance(step, _Ended):
        step = _advance(run, _result_of(partial(run_here, step)))
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
    declared: Sequence[Schedule] | None = app.declared()
    calls = HookCalls(app.logger)
    observers = Observers(app.hooks, calls, app.logger or log, log_jobs=app.settings.log_jobs)
    keep = app.settings.gone_schedules == "keep"
    while Scheduler(app.engine, "testing", declared, enabled=app.settings.schedules, disable_gone=not keep).run_due():
        declared = None  # it is in the store by now; and who declared nothing would retire it all
    expired = [job for job in app.engine.expired(limit=limit) if job.state is State.PENDING]
    recover(app.engine, expired, actor="testing", recovered=observers.recovered)
    yield from calls.made()
    thorough = False
    while True:
        claim = Claim(new_id(), "testing", 1, LEASE, taken, None, tuple(app.tasks), thorough=thorough)
        _, claimed, _, more = app.engine.turn([], claim)
        if claimed:
            if len(attempts) == limit:
                raise AssertionError(f"still not idle after {limit} attempts; the last was of task {claimed[0].task!r}")
            observers.claimed(claimed)
            yield from calls.made()
            attempts.append((yield from _attempt(app, claimed[0], observers)))
            yield from calls.made()
        elif thorough and not more:
            return attempts
        thorough = not claimed  # to look everywhere costs much: only when there seems to be nothing


class HookCalls:
    """The calls of hooks for claims and ends: made between two steps of a run, one after the other."""

    def __init__(self, logger: logging.Logger | None) -> None:
        self._log = logger or logging.getLogger("treadle.hooks")
        self._calls: list[tuple[Callable[[Any], object], Any]] = []

    def call(self, hooks: Sequence[Callable[[Any], object]], values: Callable[[], Sequence[Any]]) -> None:
        """Keep in mind to call these hooks with each of the values."""
        self._calls += [(hook, value) for value in values() for hook in hooks]

    def made(self) -> "Run[None]":
        """Make the calls; those of async hooks are coroutines. As in a worker, an error of a hook is only logged."""
        calls, self._calls = self._calls, []
        for hook, value in calls:
            try:
                answer = hook(value)
                if inspect.iscoroutine(answer):
                    yield answer
            except Exception:
                self._log.exception("hook %s failed", getattr(hook, "__qualname__", hook))


def _run(call: Call, arguments: dict[str, Any]) -> "Run[Any]":
    """Run the handler inside its hooks; async hooks around a plain function take their steps on the handlers' loop."""
    value = call.arun(arguments) if call.task.is_async else call.run(arguments, _handler_loop())
    return (yield value) if inspect.iscoroutine(value) else value


def _attempt(app: Treadle, claimed: ClaimedJob, observers: Observers) -> "Run[Job]":
    """Run one job and settle it; the job afterwards."""
    now = app.engine.now
    attempt = Attempt(claimed, lease_ends=float("inf"), queued_at=0.0)
    context = Context(attempt, HandlerWrites(app.engine, attempt, LEASE), app.logger)
    call = Call(attempt, app.tasks[claimed.task].definition, context, app.hooks.run)
    arguments = arguments_of(call, now)
    outcome: lifecycle.Outcome | None
    if isinstance(arguments, dict):
        attempt.started_at, began = now(), monotonic()
        running_attempt.set(attempt)
        try:
            outcome = succeeded((yield from _run(call, arguments)), attempt, now)
        except Exception as error:
            outcome = ended_by(error, attempt, now())
        finally:
            running_attempt.set(None)
        attempt.run_time = monotonic() - began
    else:
        outcome = arguments
    if attempt.settled is not None and outcome is not None:
        end = committed(app.engine, attempt, attempt.settled)
        if end.by_us:
            observers.settled([Settling(attempt, outcome, attempt.settled)], now())
        outcome = None if end.over else uncommitted(attempt, outcome, now())
    if outcome is not None:
        _settle(app, attempt, outcome, observers)
    return app.get(claimed.id)


def _settle(app: Treadle, attempt: Attempt, outcome: lifecycle.Outcome, observers: Observers) -> None:
    """Write how the attempt ended."""
    now = app.engine.now
    change: Change | None = lifecycle.settle(attempt.job_so_far(), outcome, now())
    while change is not None:
        [verdict] = app.engine.turn([change]).verdicts
        if verdict.ruling is Ruling.STALE and verdict.job is not None:
            attempt.job = verdict.job
            change = lifecycle.settle(attempt.job_so_far(), outcome, now())
        elif verdict.ruling is Ruling.REFUSED:
            change = lifecycle.fallback(change, verdict.holder, verdict.why, now())
        else:
            if verdict.ruling in (Ruling.APPLIED, Ruling.ALREADY):
                observers.settled([Settling(attempt, outcome, change)], now())
            return
