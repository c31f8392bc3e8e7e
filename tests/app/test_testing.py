"""treadle.testing: what users get for their own tests."""

import asyncio
import sqlite3
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.support import provision
from tests.support.marks import sql_stores
from treadle import Context, Job, Progress, Reason, Retry, Snooze, State, Task, Treadle
from treadle.testing import FakeClock, arun_until_idle, assert_enqueued, run_until_idle


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


def test_an_enqueued_job_can_be_asserted_by_any_of_its_fields(memory: Treadle, welcome: Task) -> None:
    first = welcome.enqueue("Ada")
    second = welcome.using(priority=5).enqueue("Bob")
    assert assert_enqueued(memory, "welcome").id == second.id  # the newest
    assert assert_enqueued(memory, "welcome", payload={"user": "Ada"}).id == first.id
    assert assert_enqueued(memory, "welcome", priority=5, queue="mail").id == second.id


def test_a_missing_job_fails_the_test_and_shows_what_is_there(memory: Treadle, welcome: Task) -> None:
    welcome.enqueue("Ada")
    with pytest.raises(AssertionError, match=r"'welcome'.*Bob.*Ada"):
        assert_enqueued(memory, "welcome", payload={"user": "Bob"})
    with pytest.raises(AssertionError, match="'goodbye'"):
        assert_enqueued(memory, "goodbye")


def test_a_job_that_has_run_is_no_longer_enqueued(memory: Treadle, welcome: Task) -> None:
    welcome.enqueue("Ada")
    run_until_idle(memory, queues=("mail",))
    with pytest.raises(AssertionError):
        assert_enqueued(memory, "welcome")


def test_a_field_that_jobs_do_not_have_is_no_match_but_a_mistake(memory: Treadle, welcome: Task) -> None:
    welcome.enqueue("Ada")
    with pytest.raises(AttributeError, match="prio"):
        assert_enqueued(memory, "welcome", prio=5)
