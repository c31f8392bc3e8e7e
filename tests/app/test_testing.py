"""treadle.testing: what users get for their own tests."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.support import provision
from tests.support.marks import sql_stores
from treadle import AttemptEnd, Context, EventKind, Job, Progress, Reason, Retry, Snooze, State, Task, Treadle
from treadle.testing import FakeClock, arun_until_idle, run_until_idle


@pytest.fixture
def memory(clock: FakeClock) -> Treadle:
    """An app of the kind users test with: nothing on disk."""
    return Treadle("sqlite:///:memory:", clock=clock)


@pytest.fixture
def welcome(memory: Treadle) -> Task:
    @memory.task(queue="mail")
    def welcome(user: str) -> str:
        return f"welcome {user}"

    return welcome


def test_the_clock_stands_still_until_it_is_moved() -> None:
    clock = FakeClock()
    before = clock.now()
    assert clock.now() == before
    clock.advance(days=1, minutes=2, milliseconds=3)
    assert clock.now() - before == timedelta(days=1, minutes=2, milliseconds=3)
    assert clock.now().tzinfo is UTC


def test_the_clock_starts_where_the_test_wants_it() -> None:
    start = datetime(1999, 12, 31, 23, 59, tzinfo=UTC)
    assert FakeClock(start).now() == start


def test_what_is_due_runs_and_what_is_not_waits(memory: Treadle, welcome: Task, clock: FakeClock) -> None:
    welcome.using(run_after="5m").enqueue("Ada")
    assert run_until_idle(memory, queues=("mail",)) == []
    clock.advance(minutes=5)
    [job] = run_until_idle(memory, queues=("mail",))
    assert (job.state, job.result) == (State.SUCCEEDED, "welcome Ada")
    assert (job.started_at, job.finished_at) == (clock.now(), clock.now())


def test_what_has_expired_is_ended_and_not_run(memory: Treadle, welcome: Task, clock: FakeClock) -> None:
    job = welcome.using(expires_at="1h").enqueue("Ada")
    clock.advance(hours=2)
    assert run_until_idle(memory) == []
    assert (memory.get(job.id).state, memory.get(job.id).reason) == (State.CANCELLED, Reason.EXPIRED)


def test_only_the_queues_asked_for_are_run(memory: Treadle, welcome: Task) -> None:
    welcome.enqueue("Ada")
    assert run_until_idle(memory, queues=("default",)) == []
    assert len(run_until_idle(memory, queues=("default", "mail"))) == 1


def test_without_queues_those_of_the_tasks_are_run(memory: Treadle, welcome: Task) -> None:
    welcome.enqueue("Ada")
    assert len(run_until_idle(memory)) == 1


def test_jobs_that_jobs_enqueue_run_too(memory: Treadle) -> None:
    @memory.task
    def countdown(n: int) -> int:
        if n:
            countdown.enqueue(n - 1)
        return n

    countdown.enqueue(3)
    assert [job.result for job in run_until_idle(memory)] == [3, 2, 1, 0]


def test_backoff_can_be_walked_through_with_the_clock(memory: Treadle, clock: FakeClock) -> None:
    def fail() -> None:
        raise RuntimeError("again")

    memory.register("fail", fail, retry=Retry(max_attempts=8, base=30, cap=900, jitter=0)).enqueue()
    waits = []
    for _ in range(7):
        [job] = run_until_idle(memory)
        waits.append((job.due_at - clock.now()).total_seconds())
        clock.advance(seconds=waits[-1])
    assert waits == [30, 60, 120, 240, 480, 900, 900]
    assert run_until_idle(memory)[0].state is State.FAILED


def test_the_backoff_of_004_is_a_setting_of_the_same_function(memory: Treadle, clock: FakeClock) -> None:
    def fail() -> None:
        raise RuntimeError("again")

    memory.register("fail", fail, retry=Retry(max_attempts=5, base=10, cap=None, jitter=0)).enqueue()
    waits = []
    for failures in range(1, 5):
        [job] = run_until_idle(memory)
        assert (job.state, job.failures) == (State.PENDING, failures)
        assert (job.error.message, job.error.at) == ("again", clock.now().isoformat())
        waits.append((job.due_at - clock.now()).total_seconds())
        clock.advance(seconds=waits[-1])
    assert waits == [10, 20, 40, 80]


def test_coroutines_run_too(memory: Treadle) -> None:
    @memory.task
    async def nap() -> str:
        await asyncio.sleep(0)
        return "rested"

    nap.enqueue()
    assert [job.result for job in run_until_idle(memory)] == ["rested"]


def test_coroutines_run_from_inside_an_async_test_too(memory: Treadle) -> None:
    @memory.task
    async def nap() -> str:
        await asyncio.sleep(0)
        return "rested"

    nap.enqueue()

    async def an_async_test() -> list[object]:
        return [job.result for job in run_until_idle(memory)]

    assert asyncio.run(an_async_test()) == ["rested"]


@pytest.mark.server
def test_async_handlers_share_what_is_bound_to_a_loop_also_from_one_run_to_the_next(memory: Treadle) -> None:
    """As a web developer has it: one async engine for the module, with a pool of connections."""
    engine = create_async_engine(provision.shared_postgres().replace("postgresql://", "postgresql+asyncpg://"))

    @memory.task
    async def ask() -> int:
        async with engine.connect() as connection:
            return int((await connection.execute(text("select 1"))).scalar_one())

    for _ in range(3):
        ask.enqueue()
    assert [job.result for job in run_until_idle(memory)] == [1, 1, 1]
    ask.enqueue()
    assert [job.result for job in run_until_idle(memory)] == [1]
    memory.register("dispose", engine.dispose).enqueue()
    assert [job.state for job in run_until_idle(memory)] == [State.SUCCEEDED]


def test_in_async_code_handlers_run_on_the_loop_of_the_test_and_the_loop_goes_on_meanwhile(memory: Treadle) -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    ticks = 0

    @memory.task(retry=Retry(max_attempts=1))
    async def note(fails: bool) -> None:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        if fails:
            raise ValueError("on purpose")

    @memory.task
    def plain() -> bool:
        return threading.current_thread() is threading.main_thread()

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async def test() -> list[Job]:
        background = asyncio.create_task(tick())
        for fails in (False, True):
            await note.aenqueue(fails)
        await plain.aenqueue()
        before = ticks
        jobs = await arun_until_idle(memory)
        assert ticks > before
        background.cancel()
        assert set(loops) == {asyncio.get_running_loop()}
        return jobs

    succeeded, failed, sync = asyncio.run(test())
    assert (succeeded.state, failed.state, failed.error.message) == (State.SUCCEEDED, State.FAILED, "on purpose")
    assert sync.result is False, "a plain function does not block the loop"


def test_the_context_tells_and_costs(memory: Treadle, clock: FakeClock) -> None:
    @memory.task(retry=Retry(base=0, jitter=0))
    def work(ctx: Context) -> int:
        ctx.progress(0.5, "half way")
        ctx.add_cost(1500)
        if ctx.attempt == 1:
            raise RuntimeError("once")
        return ctx.attempt

    work.enqueue()
    _, job = run_until_idle(memory)
    assert (job.result, job.cost_micros, job.progress) == (2, 3000, Progress(0.5, "half way"))


def test_a_loop_that_never_ends_is_caught_and_named(memory: Treadle) -> None:
    @memory.task
    def again() -> None:
        again.enqueue()

    again.enqueue()
    with pytest.raises(AssertionError, match=r"not idle after 20 attempts.*'again'"):
        run_until_idle(memory, limit=20)


def test_a_snooze_of_nothing_is_a_loop_too(memory: Treadle) -> None:
    def nap() -> None:
        raise Snooze(0)

    memory.register("nap", nap).enqueue()
    with pytest.raises(AssertionError, match="not idle"):
        run_until_idle(memory, limit=5)


def test_jobs_of_tasks_that_are_not_known_here_are_left_alone(memory: Treadle) -> None:
    job = memory.enqueue("elsewhere", {}, checked=False)
    assert run_until_idle(memory) == []
    assert memory.get(job.id).state is State.PENDING


def test_a_job_cancelled_while_it_runs_ends_cancelled(memory: Treadle) -> None:
    def work(ctx: Context) -> None:
        memory.cancel(ctx.job.id)
        raise RuntimeError("stopped")

    memory.register("work", work).enqueue()
    assert [job.state for job in run_until_idle(memory)] == [State.CANCELLED]


@sql_stores
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_handler_may_settle_in_its_own_transaction(app: Treadle, store_url: str, end: str) -> None:
    app.migrate()
    with closing(own_connection(store_url)) as connection:

        def work(ctx: Context) -> None:
            ctx.settle(connection, {"sent": True})
            getattr(connection, end)()

        app.register("work", work).enqueue()
        [job] = run_until_idle(app)
    if end == "commit":
        assert (job.state, job.result) == (State.SUCCEEDED, {"sent": True})
    else:
        assert (job.state, job.failures) == (State.PENDING, 1)
        assert "not committed" in job.error.message


def own_connection(url: str) -> Any:
    """A connection of the handler's own, by the driver of that store."""
    if url.startswith("sqlite:///"):
        return sqlite3.connect(url.removeprefix("sqlite:///"))
    return psycopg.connect(url.partition("?")[0])


def ends_and_claims(app: Treadle) -> list[tuple[str, Any]]:
    """Adds a hook of each kind that is told of something, some of them async; what they are told, in order."""
    notes: list[tuple[str, Any]] = []
    app.hooks.on_claim(lambda jobs: notes.append(("claim", [job.task for job in jobs])))

    @app.hooks.on_settle
    async def settled(end: AttemptEnd) -> None:
        await asyncio.sleep(0)
        notes.append(("settle", end))

    app.hooks.on_failure(lambda end: notes.append(("failure", end)))
    return notes


@pytest.mark.parametrize("way", ["plain", "async"])
def test_hooks_are_told_of_claims_ends_and_failures_before_the_next_job_runs(memory: Treadle, way: str) -> None:
    notes = ends_and_claims(memory)

    @memory.task
    def fine(n: int) -> int:
        notes.append(("handler", n))
        return n + 1

    @memory.task(retry=Retry(2, 0, 0, 0))
    async def broken() -> None:
        raise ValueError("boom")

    fine.enqueue(1)
    broken.enqueue()
    if way == "plain":
        run_until_idle(memory)
    else:
        asyncio.run(arun_until_idle(memory))
    assert [kind for kind, _ in notes] == [
        *("claim", "handler", "settle"),
        *("claim", "settle"),
        *("claim", "settle", "failure"),
    ]
    good, again, failed, alert = (note for kind, note in notes if kind in ("settle", "failure"))
    assert (good.kind, good.job.result, good.exception) == (EventKind.SUCCEEDED, 2, None)
    assert good.duration >= 0
    assert [again.kind, failed.kind, alert.kind] == [EventKind.RETRYING, EventKind.FAILED, EventKind.FAILED]
    assert isinstance(alert.exception, ValueError)
    assert (alert.job.state, alert.job.failures) == (State.FAILED, 2)


def test_a_hook_that_fails_is_logged_and_changes_nothing(memory: Treadle, caplog: pytest.LogCaptureFixture) -> None:
    @memory.hooks.on_settle
    def fails(end: AttemptEnd) -> None:
        raise RuntimeError("of the hook")

    @memory.hooks.on_settle
    async def fails_too(end: AttemptEnd) -> None:
        raise RuntimeError("of the async hook")

    memory.register("work", lambda: 5).enqueue()
    assert [job.result for job in run_until_idle(memory)] == [5]
    errors = [str(record.exc_info[1]) for record in caplog.records if record.name == "treadle.hooks"]
    assert errors == ["of the hook", "of the async hook"]


def test_hooks_around_run_and_enqueue_are_called_too(memory: Treadle) -> None:
    seen: list[str] = []

    @memory.hooks.around_enqueue
    def enqueue(jobs: Sequence[Job]) -> Iterator[None]:
        seen.append(f"enqueue {jobs[0].task}")
        yield

    @memory.hooks.around_run
    async def run(ctx: Context) -> AsyncIterator[None]:
        seen.append(f"run {ctx.job.task}")
        yield
        seen.append("ran")

    memory.register("work", lambda: seen.append("handler")).enqueue()
    run_until_idle(memory)
    assert seen == ["enqueue work", "run work", "handler", "ran"]


def test_a_failure_is_in_the_log_with_its_traceback(memory: Treadle, caplog: pytest.LogCaptureFixture) -> None:
    """So that pytest shows the handler's error below a test that fails because of it."""

    def fail() -> None:
        raise KeyError("what was asked for")

    memory.register("fail", fail, retry=Retry(max_attempts=1)).enqueue()
    run_until_idle(memory)
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.exc_info[0] is KeyError
    assert "in fail" in caplog.text


def test_an_expired_job_is_told_of_as_a_worker_tells(memory: Treadle, clock: FakeClock) -> None:
    notes = ends_and_claims(memory)
    memory.register("work", lambda: None).using(expires_at="1m").enqueue()
    clock.advance(minutes=2)
    assert run_until_idle(memory) == []
    assert notes == [], "it is cancelled, and was never claimed"
    assert memory.count()[State.CANCELLED] == 1


def test_schedules_that_the_code_declares_stay_enabled_while_they_fire(clock: FakeClock) -> None:
    app = Treadle("sqlite:///:memory:", clock=clock)
    app.register("report", lambda: "r", every="1h")
    app.register("yearly", lambda: "y", cron="0 0 1 1 *")
    run_until_idle(app)
    clock.advance(hours=1)
    assert [job.result for job in run_until_idle(app)] == ["r"]
    assert {one.name: one.enabled for one in app.schedules.list()} == {"report": True, "yearly": True}
    assert [event.kind for event in app.schedules.events("report")] == ["created"]
    app.close()
