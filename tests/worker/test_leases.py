"""One lease, kept while the handler runs, given up before it can pass on when it cannot be renewed."""

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from tests.support.marks import any_store
from tests.support.workbench import ended, until, watched, working
from treadle import Context, EngineUnavailable, Job, LeaseLost, State, Treadle
from treadle.engines.values import Ruling
from treadle.model import lifecycle


@any_store
@pytest.mark.covers("003-S12.a", "002-Q12.a")
@pytest.mark.parametrize("kind", ["blocking the loop", "in a thread"])
def test_a_handler_that_runs_for_three_leases_keeps_its_job(make_app: Callable[..., Treadle], kind: str) -> None:
    lease, started = 2.0, threading.Event()
    runs: list[int] = []

    async def block_the_loop(ctx: Context) -> str:
        runs.append(ctx.attempt)
        started.set()
        time.sleep(3 * lease)
        return "first"

    def in_a_thread(ctx: Context) -> str:
        runs.append(ctx.attempt)
        started.set()
        time.sleep(3 * lease)
        return "first"

    work = {"blocking the loop": block_the_loop, "in a thread": in_a_thread}[kind]
    first, second = make_app(), make_app()
    for each in (first, second):
        each.register("work", work)
        each.register("tick", lambda: None)
    job = first.tasks["work"].enqueue()
    with working(first, lease=lease, concurrency=1, name="first"):
        assert started.wait(30)
        with working(second, lease=lease, name="second"):
            done: list[Job] = []
            while not app_ended(first, job):  # the second worker is alive and takes all it can get
                done += ended(first, first.tasks["tick"].enqueue())
                time.sleep(0.05)
            [job] = ended(first, job)
    assert runs == [1]
    assert (job.state, job.result, job.worker) == (State.SUCCEEDED, "first", "first")
    assert (job.attempt, job.crashes, job.failures) == (1, 0, 0)
    assert "second" in {tick.worker for tick in done}


def app_ended(app: Treadle, job: Job) -> bool:
    return app.get(job.id).state.final


@any_store
def test_a_lease_is_renewed_well_before_it_ends(app: Treadle) -> None:
    lease, seen = 3.0, []
    done = threading.Event()

    def work() -> None:
        assert done.wait(30)

    job = app.register("work", work).enqueue()
    with working(app, lease=lease):
        for _ in range(4):
            before = app.get(job.id).lease_until
            now = until(lambda before=before: (j := app.get(job.id)).lease_until != before and j, "a renewal")
            seen.append(now.lease_until)
            assert now.lease_until > datetime.now(UTC)
        done.set()
        ended(app, job)
    gaps = [(after - before).total_seconds() for before, after in pairwise(seen)]
    assert max(gaps[1:]) < lease


@any_store
@pytest.mark.covers("002-Q12.a")
def test_a_lease_is_renewed_before_half_of_it_has_passed(app: Treadle) -> None:
    lease, done = 4.5, threading.Event()

    def work() -> None:
        assert done.wait(30)

    job = app.register("work", work).enqueue()
    with working(app, lease=lease):
        first = until(lambda: (j := app.get(job.id)).lease_until and j, "its claim")
        renewed = until(lambda: (j := app.get(job.id)).lease_until > first.lease_until and j, "a renewal")
        done.set()
        ended(app, job)
    assert (renewed.lease_until - first.lease_until).total_seconds() < lease / 2
    assert renewed.lease_token == first.lease_token


# --------------------------------------------------------------------------------------- fencing oneself


@any_store
def test_a_coroutine_whose_lease_cannot_be_renewed_is_cancelled_before_it_ends_and_writes_nothing(
    app: Treadle,
) -> None:
    engine, cancelled_at = watched(app), []

    async def work(ctx: Context) -> str:
        if ctx.attempt > 1:
            return "second"
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled_at.append(datetime.now(UTC))
        return "first"

    job = app.register("work", work).enqueue()
    with working(app, lease=3):
        first = until(lambda: (j := app.get(job.id)).lease_until and engine.extends and j, "a renewed lease")
        engine.cut.set()
        until(lambda: cancelled_at, "its cancellation")
        left = app.get(job.id)
        assert (left.state, left.lease_token, left.attempt) == (State.RUNNING, first.lease_token, 1)
        assert cancelled_at[0] < left.lease_until
        engine.cut.clear()
        [job] = ended(app, job)
    assert (job.result, job.attempt, job.failures, job.crashes) == ("second", 2, 0, 1)


def test_a_thread_whose_lease_cannot_be_renewed_is_told_and_its_words_are_refused(app: Treadle) -> None:
    engine, refused, told_at = watched(app), [], []

    def work(ctx: Context) -> str:
        if ctx.attempt > 1:
            return "second"
        until(lambda: ctx.cancelled, "word of the loss")
        told_at.append(datetime.now(UTC))
        for call in (lambda: ctx.progress(1), lambda: ctx.add_cost(1), lambda: ctx.settle(None)):
            try:
                call()
            except LeaseLost as error:
                refused.append(str(error))
        return "first"

    job = app.register("work", work).enqueue()
    with working(app, lease=2):
        until(lambda: engine.extends, "a renewed lease")
        engine.cut.set()
        until(lambda: told_at, "word of the loss")
        engine.cut.clear()
        [job] = ended(app, job)
    assert (job.result, job.attempt, job.failures, job.cost_micros) == ("second", 2, 0, 0)
    assert len(refused) == 3
    assert all(job.id in text and "lease was lost" in text for text in refused)


def test_the_end_of_a_lost_attempt_does_not_touch_the_next_one_in_the_same_worker(app: Treadle) -> None:
    """The worker loses a job, recovers it and runs it again while the old thread still runs: two attempts, one id."""
    engine, lease = watched(app), 2.0
    told, second_runs = threading.Event(), threading.Event()
    first_may_end, first_ended, second_may_end = threading.Event(), threading.Event(), threading.Event()
    runs: list[int] = []

    def work(ctx: Context) -> str:
        runs.append(ctx.attempt)
        if ctx.attempt == 1:
            until(lambda: ctx.cancelled, "word of the loss")
            told.set()
            assert first_may_end.wait(60)
            first_ended.set()
            return "first"
        second_runs.set()
        assert second_may_end.wait(60)
        return f"attempt {ctx.attempt}"

    job = app.register("work", work).enqueue()
    with working(app, lease=lease):
        until(lambda: engine.extends, "a renewed lease")
        engine.cut.set()
        assert told.wait(30)
        engine.cut.clear()
        assert second_runs.wait(30)
        first_may_end.set()
        assert first_ended.wait(30)
        over = datetime.now(UTC)
        try:
            until(
                lambda: (now := app.get(job.id).lease_until) and (now - over).total_seconds() > 2 * lease,
                "the second attempt's lease to be renewed on and on",
                within=10 * lease,
            )
        finally:
            second_may_end.set()
        [job] = ended(app, job)
    assert runs == [1, 2]
    assert (job.result, job.attempt, job.crashes) == ("attempt 2", 2, 1)


@any_store
def test_two_attempts_at_one_job_that_end_together_in_one_worker_do_not_jam_it(app: Treadle) -> None:
    """A reaper elsewhere took the job, this worker claimed it again, and neither attempt knows of the other."""
    engine, release = watched(app), threading.Event()
    runs: list[int] = []

    def work(ctx: Context) -> str:
        runs.append(ctx.attempt)
        assert release.wait(60)
        engine.failing += [EngineUnavailable("a moment, please")]  # so that both outcomes wait for the same turn
        return f"attempt {ctx.attempt}"

    job = app.register("work", work).enqueue()
    tick = app.register("tick", lambda: "goes on")
    with working(app, lease=30):
        until(lambda: runs == [1], "the first attempt")
        later = datetime.now(UTC) + timedelta(hours=1)
        crash = lifecycle.crash(app.get(job.id), later, actor="a reaper with a fast clock")
        [verdict] = app.engine.turn([crash], now=later).verdicts
        assert verdict.ruling is Ruling.APPLIED
        until(lambda: runs == [1, 2], "the second attempt")
        release.set()
        job, after = ended(app, job, tick.enqueue(), within=15)
    assert (job.result, job.attempt, job.crashes) == ("attempt 2", 2, 1)
    assert after.result == "goes on"


def test_a_job_that_waited_too_long_behind_a_blocked_loop_is_not_started_with_a_spent_lease(app: Treadle) -> None:
    """A claimed job starts only with half its lease left; the loop is blocked while the store is silent."""
    engine, lease = watched(app), 3.0
    blocked = threading.Event()
    starts: list[float] = []

    async def block() -> None:
        engine.cut.set()
        blocked.set()
        time.sleep(0.8 * lease)
        engine.cut.clear()

    async def quick(ctx: Context) -> None:
        left = app.get(ctx.job.id).lease_until - datetime.now(UTC)
        starts.append(left.total_seconds())

    first = app.register("block", block).enqueue()
    app.register("quick", quick)
    with working(app, lease=lease, concurrency=3):
        assert blocked.wait(30)
        job = app.tasks["quick"].enqueue()
        _, job = ended(app, first, job)
    assert job.state is State.SUCCEEDED
    assert starts[-1] > lease * 0.3
    assert len(starts) == 1
