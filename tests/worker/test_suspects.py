"""Jobs whose crash counts: started in writing. Isolated ones run one at a time, while the others go on beside them."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.support.making import claim
from tests.support.marks import any_store
from tests.support.workbench import Crowd, Process, ended, in_state, until, working
from treadle import ConfigError, Context, Job, Reason, Retry, State, Task, Treadle
from treadle.engines.values import Turn
from treadle.model import Change, lifecycle
from treadle.model.lifecycle import Success
from treadle.worker.worker import Worker

ONCE = Retry(max_attempts=1)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Set when the test is over, so that no thread outlives it for long."""
    event = threading.Event()
    yield event
    event.set()


def crashed_before(app: Treadle, task: Task, count: int = 1) -> list[Job]:
    """Jobs of this task whose worker died once, due again."""
    jobs = [task.enqueue() for _ in range(count)]
    held = claim(app.engine, count, lease=0.001)
    assert {job.id for job in held} == {job.id for job in jobs}
    until(lambda: app.engine.now() > held[0].lease_until, "the end of their leases")
    app.engine.turn([lifecycle.crash(app.get(job.id), app.engine.now(), actor="reaper") for job in jobs])
    jobs = [app.get(job.id) for job in jobs]
    assert {(job.state, job.crashes, job.failures) for job in jobs} == {(State.PENDING, 1, 0)}
    return jobs


@any_store
@pytest.mark.parametrize("kind", ["crashed before", "one attempt only"])
@pytest.mark.parametrize("colour", ["plain", "async"])
def test_the_start_of_a_suspect_is_written_before_its_handler_begins(app: Treadle, kind: str, colour: str) -> None:
    seen: list[Job] = []

    def plain(ctx: Context) -> None:
        seen.append(app.get(ctx.job.id))

    async def on_the_loop(ctx: Context) -> None:
        seen.append(app.get(ctx.job.id))

    task = app.register("work", plain if colour == "plain" else on_the_loop)
    job = crashed_before(app, task)[0] if kind == "crashed before" else task.using(retry=ONCE).enqueue()
    with working(app, lease=60):  # no renewal will do it
        [job] = ended(app, job)
    assert seen[0].state is State.RUNNING
    assert seen[0].started_at is not None
    assert job.state is State.SUCCEEDED


@any_store
def test_jobs_that_crashed_before_and_isolated_tasks_run_one_at_a_time(app: Treadle) -> None:
    crowd = Crowd()

    def work() -> None:
        with crowd:
            time.sleep(0.02)  # so that a second one would be seen beside it

    task = app.register("work", work)
    jobs = crashed_before(app, task, 4)
    jobs += [app.register("apart", work, isolated=True).using(retry=ONCE).enqueue() for _ in range(4)]
    with working(app, concurrency=4):
        done = ended(app, *jobs)
    assert {job.state for job in done} == {State.SUCCEEDED}
    assert crowd.most == 1


@any_store
@pytest.mark.parametrize("colour", ["plain", "async"])
def test_jobs_that_are_not_retried_run_at_full_concurrency(app: Treadle, colour: str) -> None:
    """Users met a worker that ran one of them at a time, with nine idle slots."""
    together, waiting = threading.Barrier(4), [0]

    def plain() -> None:
        together.wait(60)

    async def on_the_loop() -> None:
        waiting[0] += 1
        async with asyncio.timeout(60):
            while waiting[0] < 4:
                await asyncio.sleep(0.001)

    task = app.register("work", plain if colour == "plain" else on_the_loop, retry=ONCE)
    jobs = [task.enqueue() for _ in range(4)]
    with working(app, concurrency=4):
        done = ended(app, *jobs, within=90)
    assert {job.state for job in done} == {State.SUCCEEDED}


def test_the_starts_of_many_are_written_together(app: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    extend, starts = app.engine.extend, []

    def counted(leases: Any, **options: Any) -> Any:
        starts.append(len(leases))
        return extend(leases, **options)

    monkeypatch.setattr(app.engine, "extend", counted)
    together = threading.Barrier(8)
    task = app.register("work", lambda: together.wait(60) and None, retry=ONCE)
    jobs = [task.enqueue() for _ in range(8)]
    with working(app, concurrency=8, lease=60):
        ended(app, *jobs)
    assert sum(starts) == 8
    assert len(starts) <= 4


@any_store
def test_a_crash_ends_what_had_started_and_is_not_retried_the_innocent_with_the_guilty(
    app: Treadle, process: Callable[..., Process]
) -> None:
    innocent = app.enqueue("nap", {"seconds": 60}, checked=False, retry=ONCE)
    first = process(lease=0.6)
    in_state(app, innocent, state=State.RUNNING)
    until(lambda: app.get(innocent.id).started_at, "the start of the innocent one")
    guilty = app.enqueue("die", {}, checked=False, retry=ONCE)
    assert first.exit_code() == 9
    with working(app, lease=0.6, queues=["other"]):
        done = ended(app, innocent, guilty)
    assert {(job.state, job.reason, job.attempt) for job in done} == {(State.FAILED, Reason.CRASHED, 1)}


def test_while_an_isolated_job_runs_the_next_ones_are_not_claimed(app: Treadle, release: threading.Event) -> None:
    began = threading.Event()

    def hold() -> None:
        began.set()
        assert release.wait(60)

    task = app.register("apart", hold, isolated=True)
    first = task.enqueue()
    with working(app, concurrency=4):
        assert began.wait(30)
        second = task.enqueue()
        ordinary = app.register("tick", lambda: "ordinary").enqueue()
        ended(app, ordinary)  # a claim that saw them both
        assert (app.get(first.id).state, app.get(second.id).state) == (State.RUNNING, State.PENDING)
        release.set()
        ended(app, first, second)


def test_a_worker_says_at_its_start_what_a_crash_will_cost(app: Treadle, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    app.register("pay", lambda: None, retry=ONCE)
    app.register("apart", lambda: None, isolated=True)
    with working(app):
        pass
    assert "not retried: pay; if this process dies, their jobs that have started fail" in caplog.messages
    assert "isolated: apart; one job of them runs here at a time" in caplog.messages


def test_isolated_is_a_yes_or_a_no(app: Treadle) -> None:
    with pytest.raises(ConfigError, match="task 'work': isolated: 'yes' must be True or False"):
        app.register("work", lambda: None, isolated="yes")


def test_a_suspect_starts_when_the_end_of_the_one_before_is_written(
    app: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take the process down, and with it an end that is known to this process alone."""
    turn, claiming, begun, seen = app.engine.turn, threading.Event(), threading.Event(), []
    workers: list[Worker] = []

    def slow_turn(changes: Sequence[Change | Success], *claim: Any, **options: Any) -> Turn:
        if len(seen) == 1 and not changes and not claiming.is_set():
            claiming.set()  # so that the first ends, and the second is to start, before anything can be written
            until(
                lambda: workers and (workers[0]._turns._requests or not workers[0]._host.slots.has_backlog),
                "the second",
            )
        if any(isinstance(change, Success) or change.after.state.final for change in changes):
            begun.wait(0.5)  # the second's start, should it not wait
        return turn(changes, *claim, **options)

    def work(ctx: Context) -> None:
        seen.append({app.get(job.id).state for job in jobs if job.id != ctx.job.id})
        if len(seen) == 1:
            assert claiming.wait(30)
        else:
            begun.set()

    jobs = crashed_before(app, app.register("work", work), 2)
    monkeypatch.setattr(app.engine, "turn", slow_turn)
    with working(app, concurrency=4) as worker:
        workers.append(worker)
        ended(app, *jobs)
    assert seen[1] == {State.SUCCEEDED}


@pytest.mark.parametrize("order", ["ordinary jobs first", "suspects first"])
def test_ordinary_jobs_run_beside_a_suspect(app: Treadle, release: threading.Event, order: str) -> None:
    started = threading.Event()

    def suspicious() -> None:
        started.set()
        assert release.wait(60)

    tick = app.register("tick", lambda: "ordinary")
    task = app.register("suspicious", suspicious, retry=ONCE, isolated=True)
    if order == "suspects first":
        suspects = [task.enqueue() for _ in range(6)]
    ordinary = [tick.enqueue() for _ in range(6)]
    if order == "ordinary jobs first":
        suspects = [task.enqueue()]
    with working(app, concurrency=3):
        assert started.wait(30)
        done = ended(app, *ordinary, tick.enqueue(), within=10)
        assert any(app.get(job.id).state is State.RUNNING for job in suspects)
        release.set()
        ended(app, *suspects)
    assert {job.result for job in done} == {"ordinary"}


def test_waiting_suspects_are_given_to_a_worker_that_is_free(
    make_app: Callable[..., Treadle], release: threading.Event
) -> None:
    ran: list[str] = []

    def suspicious() -> None:
        ran.append(threading.current_thread().name)
        assert release.wait(60)

    first, second = make_app(), make_app()
    for each in (first, second):
        each.register("suspicious", suspicious, retry=ONCE, isolated=True)
    jobs = [first.tasks["suspicious"].enqueue() for _ in range(3)]
    with working(first, concurrency=3, name="first"):
        until(lambda: len(ran) == 1, "the first suspect")
        with working(second, concurrency=3, name="second"):
            until(lambda: len(ran) == 2, "another suspect in the free worker", within=40)
            release.set()
            done = ended(first, *jobs)
    assert {job.worker for job in done} == {"first", "second"}


@any_store
@pytest.mark.covers("000-R18.b")
def test_poison_with_one_attempt_ends_with_the_process_it_took_along(
    app: Treadle, process: Callable[..., Process]
) -> None:
    poison = app.enqueue("die", {}, checked=False, retry=ONCE)
    dying = process(lease=0.6)
    assert dying.exit_code() == 9
    with working(app, lease=0.6):
        [job] = ended(app, poison)
    assert (job.state, job.reason) == (State.FAILED, Reason.CRASHED)
    assert (job.attempt, job.crashes, job.failures) == (1, 1, 1)
    assert "ran out" in job.error.message


@any_store
@pytest.mark.covers("002-D4.c")
def test_poison_with_a_budget_ends_after_one_free_crash_and_its_neighbours_do_not_pay(
    app: Treadle, process: Callable[..., Process]
) -> None:
    poison = app.enqueue("die", {}, checked=False, retry=Retry(max_attempts=2, base=0, jitter=0))
    # It naps for so short a time because its lease may end a moment before the poison's: then it goes first, alone.
    neighbour = app.enqueue("nap", {"seconds": 1}, checked=False, retry=Retry(max_attempts=2, base=0, jitter=0))
    for _ in range(3):
        dying = process(lease=2, grace=0)
        until(lambda dying=dying: dying.process.poll() is not None or app.get(poison.id).state.final, "the next death")
        if app.get(poison.id).state.final:
            break
    watcher = process(lease=2, grace=0)
    [job] = ended(app, poison)
    assert (job.state, job.reason) == (State.FAILED, Reason.CRASHED)
    assert (job.crashes, job.failures) == (3, 2)
    watcher.signal(signal.SIGTERM)
    watcher.exit_code()
    # The neighbour was in the first process that died, by no fault of its own; later ones ran the poison alone
    # or beside it, and a suspect neighbour that had not started paid nothing.
    assert (app.get(neighbour.id).failures, app.get(neighbour.id).state is State.FAILED) == (0, False)


def test_a_single_attempt_whose_handler_was_never_called_is_given_back_at_a_stop(app: Treadle) -> None:
    """Its start is written, and the worker stops before the event loop could launch it."""
    ran: list[int] = []
    once = app.register("once", lambda: ran.append(1), retry=Retry(max_attempts=1))

    async def main() -> Job:
        async with app.worker(grace=0, poll=0.05) as worker:
            job = await asyncio.to_thread(once.enqueue)
            slots = worker._host.slots
            while not slots.running:
                await asyncio.sleep(0)
            until(lambda: any(attempt.start_written for attempt in slots.running), "its start, while the loop stands")
        return job

    job = app.get(asyncio.run(main()).id)
    assert ran == []
    assert (job.state, job.failures, job.error) == (State.PENDING, 0, None)
