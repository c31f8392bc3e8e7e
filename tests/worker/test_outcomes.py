"""How attempts end in a real worker: results, every kind of exception, what a handler may say, retries and budgets."""

import asyncio
import functools
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest
from pydantic import BaseModel

from tests.support.workbench import ended, until, working
from treadle import Cancelled, Context, GiveUp, Job, Progress, Reason, Retry, RetryLater, Snooze, State, Treadle

AT_ONCE = Retry(max_attempts=2, base=0, cap=0, jitter=0)
KINDS = ["plain", "async"]


def handler(kind: str, body: Callable[..., Any]) -> Callable[..., Any]:
    """The body as a plain or as an async handler with a Context."""
    if kind == "plain":

        def plain(ctx: Context) -> Any:
            return body(ctx)

        return plain

    async def on_the_loop(ctx: Context) -> Any:
        await asyncio.sleep(0)
        return body(ctx)

    return on_the_loop


def run(app: Treadle, kind: str, body: Callable[..., Any], **options: Any) -> Job:
    """The job of this handler, run to its end by a real worker."""
    job = app.register("work", handler(kind, body), **options).enqueue()
    with working(app):
        [job] = ended(app, job)
    return job


class Odd(BaseException):
    pass


def recurse() -> None:
    recurse()


def throw(error: BaseException) -> Callable[[Context], None]:
    def body(ctx: Context) -> None:
        raise error

    return body


KINDS_OF_TROUBLE: dict[str, Callable[[Context], object]] = {
    "ValueError": throw(ValueError("x")),
    "SystemExit": throw(SystemExit(3)),
    "KeyboardInterrupt": throw(KeyboardInterrupt()),
    "GeneratorExit": throw(GeneratorExit()),
    "Odd": throw(Odd("not even an Exception")),
    "RecursionError": lambda ctx: recurse(),
    "MemoryError": throw(MemoryError()),
    "CancelledError": throw(asyncio.CancelledError("mine")),
    "StopAsyncIteration": throw(StopAsyncIteration()),
    "TimeoutError": throw(TimeoutError("the socket's")),
    "ExceptionGroup": throw(ExceptionGroup("many", [ValueError("a"), KeyError("b")])),
}


@pytest.mark.covers("001-R24.b")
@pytest.mark.parametrize("kind", KINDS)
def test_no_exception_of_a_handler_whatever_its_kind_stops_the_worker(app: Treadle, kind: str) -> None:
    jobs = {
        name: app.register(name, handler(kind, body), retry=AT_ONCE).enqueue()
        for name, body in KINDS_OF_TROUBLE.items()
    }
    fine = app.register("fine", handler(kind, lambda ctx: "fine"))
    with working(app) as worker:
        done = dict(zip(jobs, ended(app, *jobs.values()), strict=True))
        assert worker.thread.is_alive()
        [after] = ended(app, fine.enqueue())
    assert after.result == "fine"
    for name, job in done.items():
        assert (job.state, job.reason) == (State.FAILED, Reason.EXHAUSTED), name
        assert (job.attempt, job.failures) == (2, 2), name
        assert name in job.error.type


@pytest.mark.covers("001-R36.b")
@pytest.mark.parametrize("kind", KINDS)
def test_a_handlers_exception_is_logged_with_the_jobs_id(
    app: Treadle, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    job = run(app, kind, throw(RuntimeError("no tea left")), retry=AT_ONCE)
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [job.id in line and "no tea left" in line for line in told] == [True, True]


@pytest.mark.parametrize("kind", KINDS)
def test_a_traceback_begins_in_the_handler_and_not_in_treadle(app: Treadle, kind: str) -> None:
    def brew() -> None:
        raise RuntimeError("no tea left")

    trace = run(app, kind, lambda ctx: brew(), retry=AT_ONCE).error.traceback
    assert "/treadle/" not in trace
    assert "in brew" in trace


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_that_cannot_be_printed_costs_the_worker_nothing(app: Treadle, kind: str) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    job = run(app, kind, throw(Unspeakable()), retry=AT_ONCE)
    assert (job.state, job.attempt) == (State.FAILED, 2)
    assert "Unspeakable" in job.error.type


# --------------------------------------------------------------------------------- what a handler may say


@pytest.mark.parametrize("kind", KINDS)
def test_give_up_ends_the_job_at_its_first_attempt(app: Treadle, kind: str) -> None:
    job = run(app, kind, throw(GiveUp("no such user")))
    assert (job.state, job.reason, job.attempt, job.error.message) == (
        State.FAILED, Reason.PERMANENT, 1, "no such user",
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_cancelled_ends_the_job_cancelled(app: Treadle, kind: str) -> None:
    job = run(app, kind, throw(Cancelled("not wanted")))
    assert (job.state, job.reason, job.attempt) == (State.CANCELLED, Reason.BY_REQUEST, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_snooze_spends_nothing_however_often(app: Treadle, kind: str) -> None:
    def work(ctx: Context) -> int:
        if ctx.attempt < 4:
            raise Snooze(0.05)
        return ctx.attempt

    job = run(app, kind, work, retry=Retry(max_attempts=1))
    assert (job.state, job.result, job.failures, job.error) == (State.SUCCEEDED, 4, 0, None)


@pytest.mark.parametrize("kind", KINDS)
def test_retry_later_spends_one_and_comes_back_when_it_says(app: Treadle, kind: str) -> None:
    def work(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise RetryLater("rate limited", after=0.1)
        return ctx.attempt

    job = run(app, kind, work, retry=Retry(max_attempts=3, base=3600))
    assert (job.state, job.result, job.failures) == (State.SUCCEEDED, 2, 1)


@pytest.mark.covers("003-S08.a", "004-T01.b")
@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_job_waits_its_backoff_and_runs_again(app: Treadle, kind: str) -> None:
    waits: list[float] = []
    last: list[Job] = []

    def work(ctx: Context) -> int:
        if last:
            waits.append((ctx.job.claimed_at - last[-1].claimed_at).total_seconds())
        last.append(ctx.job)
        if ctx.attempt < 3:
            raise RuntimeError("again")
        return ctx.job.failures

    job = app.register("work", handler(kind, work), retry=Retry(max_attempts=5, base=0.2, jitter=0)).enqueue()
    with working(app):
        until(lambda: app.get(job.id).failures, "the first failure")
        waiting = app.get(job.id)
        if waiting.attempt == 1:
            assert (waiting.state, waiting.error.message) == (State.PENDING, "again")
        [job] = ended(app, job)
    assert (job.state, job.result, job.failures, job.attempt, job.error) == (State.SUCCEEDED, 2, 2, 3, None)
    assert waits[0] >= 0.2
    assert waits[1] >= 0.4


def test_a_handler_that_returns_nothing_succeeds_with_no_result(app: Treadle) -> None:
    job = run(app, "plain", lambda ctx: None)
    assert (job.state, job.result, job.result_json) == (State.SUCCEEDED, None, None)


# ----------------------------------------------------------------------------------- values and neighbours


def test_a_result_that_cannot_be_stored_ends_its_job_and_no_neighbours(app: Treadle) -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    bad = [float("nan"), b"bytes", cycle, "a\0b", "half \ud800", "x" * (1024 * 1024), object()]
    values = [value for pair in zip(bad, range(len(bad)), strict=True) for value in pair]

    @app.task
    def plain(n: int) -> object:
        return values[n]

    @app.task
    async def on_the_loop(n: int) -> object:
        return values[n]

    jobs = [task.enqueue(n) for n in range(len(values)) for task in (plain, on_the_loop)]
    with working(app, concurrency=10):
        done = ended(app, *jobs)
    for job in done:
        n = job.payload["n"]
        if n % 2:
            assert (job.state, job.result) == (State.SUCCEEDED, n // 2)
        else:
            assert (job.state, job.reason, job.attempt) == (State.FAILED, Reason.INVALID_RESULT, 1)


@pytest.mark.covers("003-S16.b")
@pytest.mark.parametrize("attempts", [5, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_payload_that_does_not_fit_ends_the_job_before_its_handler(app: Treadle, kind: str, attempts: int) -> None:
    ran: list[object] = []

    class User(BaseModel):
        name: str

    def plain(user: User) -> None:
        ran.append(user)

    async def on_the_loop(user: User) -> None:
        ran.append(user)

    job = app.enqueue("greet", {"nam": "Ada"}, checked=False, retry=Retry(max_attempts=attempts))
    app.register("greet", plain if kind == "plain" else on_the_loop)
    with working(app):
        [job] = ended(app, job)
        [after] = ended(app, app.tasks["greet"].enqueue(User(name="Bob")))
    assert (job.state, job.reason, job.attempt) == (State.FAILED, Reason.INVALID_PAYLOAD, 1)
    assert "name" in job.error.message
    assert after.state is State.SUCCEEDED
    assert ran == [User(name="Bob")]


def test_a_wrapped_coroutine_function_is_awaited_as_in_run_until_idle(app: Treadle) -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @app.task
    @logged
    async def greet(name: str) -> str:
        await asyncio.sleep(0)
        return f"hello {name}"

    with working(app):
        [job] = ended(app, greet.enqueue("Ada"))
    assert (job.state, job.result) == (State.SUCCEEDED, "hello Ada")


# ------------------------------------------------------------------------------- what jobs leave behind

WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_context_variable_set_in_one_job_is_not_seen_in_the_next(app: Treadle, kind: str, slots: int) -> None:
    seen: list[str] = []

    def work(ctx: Context) -> None:
        seen.append(WHO.get())
        WHO.set(ctx.job.id)

    app.register("work", handler(kind, work)).enqueue_many([()] * 60)
    with working(app, concurrency=slots):
        until(lambda: len(seen) == 60, "60 jobs")
    assert set(seen) == {"nobody"}


@pytest.mark.covers("001-R36.c")
@pytest.mark.parametrize("kind", KINDS)
def test_progress_and_cost_are_seen_while_the_job_runs_and_kept_when_it_has_ended(app: Treadle, kind: str) -> None:
    go = asyncio.Event() if kind == "async" else None
    done: list[bool] = []

    def tell(ctx: Context) -> None:
        ctx.progress(0.25, "a quarter\0")
        ctx.add_cost(1500)
        ctx.add_cost(0)

    def plain(ctx: Context) -> None:
        tell(ctx)
        until(lambda: done, "permission to end")
        ctx.progress(1)
        ctx.add_cost(2**40)

    async def on_the_loop(ctx: Context) -> None:
        tell(ctx)
        while not done:
            await asyncio.sleep(0.005)
        ctx.progress(1)
        ctx.add_cost(2**40)

    job = app.register("work", plain if go is None else on_the_loop).enqueue()
    with working(app, lease=3):
        seen = until(lambda: (now := app.get(job.id)).progress and now, "a renewal")
        assert seen.progress == Progress(0.25, "a quarter\N{REPLACEMENT CHARACTER}")
        assert (seen.cost_micros, seen.state) == (1500, State.RUNNING)
        assert seen.started_at is not None
        done.append(True)
        [job] = ended(app, job)
    assert (job.progress, job.cost_micros) == (Progress(1.0), 1500 + 2**40)


def test_cost_is_summed_over_attempts_and_progress_starts_anew(app: Treadle) -> None:
    begins: list[object] = []

    def work(ctx: Context) -> None:
        begins.append(ctx.job.progress)
        ctx.add_cost(100)
        if ctx.attempt == 1:
            ctx.progress(0.9)
            raise RuntimeError("again")
        if ctx.attempt == 2:
            raise Snooze(0)

    job = run(app, "plain", work, retry=AT_ONCE)
    assert (job.state, job.cost_micros) == (State.SUCCEEDED, 300)
    assert begins == [None, None, None]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda ctx: ctx.progress(1.5), "progress"),
        (lambda ctx: ctx.progress(-0.1), "progress"),
        (lambda ctx: ctx.progress(float("nan")), "progress"),
        (lambda ctx: ctx.progress("half"), "progress"),
        (lambda ctx: ctx.add_cost(-1), "cost"),
        (lambda ctx: ctx.add_cost(0.5), "cost"),
        (lambda ctx: ctx.add_cost(2**63), "cost"),
    ],
)
def test_a_context_refuses_what_no_store_would_take(app: Treadle, call: Callable[..., Any], named: str) -> None:
    from treadle.testing import run_until_idle

    app.register("work", handler("plain", call)).enqueue()
    [job] = run_until_idle(app)
    assert job.error.message.startswith(named)


def test_the_context_knows_its_job_and_logs_with_its_id(app: Treadle, caplog: pytest.LogCaptureFixture) -> None:
    def work(ctx: Context) -> list[object]:
        ctx.log.warning("tea is served")
        return [ctx.job.id, ctx.attempt, ctx.cancelled]

    job = run(app, "plain", work)
    assert job.result == [job.id, 1, False]
    [record] = [record for record in caplog.records if record.message == "tea is served"]
    assert (record.job_id, record.task) == (job.id, "work")
