"""A worker takes what it may take, in order, as many at once as it has slots, and waits when there is nothing."""

import asyncio
import functools
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.marks import any_store, sql_stores
from tests.support.workbench import Crowd, all_in, ended, until, watched, working
from treadle import Context, EngineError, Reason, Retry, State, Treadle


@any_store
@pytest.mark.covers("000-R01.a", "000-R21.b", "000-R21.d", "001-R24.a", "003-S09.b", "003-S10.a", "000-AC-14.a")
def test_plain_and_async_handlers_run_side_by_side(app: Treadle) -> None:
    @app.task
    def plain(n: int) -> str:
        return f"{n} in {threading.current_thread().name}"

    @app.task
    async def on_the_loop(n: int) -> str:
        await asyncio.sleep(0)
        return f"{n} in {threading.current_thread().name}"

    jobs = [plain.enqueue(1), on_the_loop.enqueue(2), plain.enqueue(3)]
    with working(app, name="w1"):
        one, two, three = ended(app, *jobs)
    assert {job.state for job in (one, two, three)} == {State.SUCCEEDED}
    assert one.result.startswith("1 in treadle")
    assert two.result == "2 in run-w1"
    for job in (one, two, three):
        assert (job.attempt, job.failures, job.error, job.worker, job.lease_until) == (1, 0, None, "w1", None)
        # Of a server's time a worker knows by its answers: a start that it stamps may come out late by one of them.
        assert job.created_at <= job.claimed_at <= job.started_at <= job.finished_at + timedelta(seconds=1)


@any_store
@pytest.mark.covers("002-D6.a", "002-D4.a", "000-AC-15.c")
def test_attempts_last_error_and_last_start_are_read_from_the_job_itself(app: Treadle) -> None:
    @app.task(retry=Retry(3, 0, 0, 0))
    def flaky(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise RuntimeError(f"attempt {ctx.attempt}")
        raise ValueError("for good")

    job = flaky.enqueue()
    assert job.state is State.PENDING
    with working(app):
        [job] = ended(app, job)
    assert (job.state, job.reason, job.attempt, job.failures) == (State.FAILED, Reason.EXHAUSTED, 3, 3)
    assert (job.error.message, job.error.attempt) == ("for good", 3)
    assert job.started_at is not None


# ---------------------------------------------------------------------------------------------- concurrency


@pytest.mark.parametrize(("kind", "slots"), [("plain", 3), ("async", 4), ("mixed", 4)])
def test_as_many_jobs_run_at_once_as_there_are_slots_and_no_more(
    make_app: Callable[..., Treadle], kind: str, slots: int
) -> None:
    app, crowd = make_app(concurrency=slots), Crowd()

    @app.task
    def plain() -> None:
        with crowd:
            until(lambda: crowd.most >= slots, "a full house")
            time.sleep(0.01)  # should a slot too many be filled, it is now

    @app.task
    async def on_the_loop() -> None:
        with crowd:
            while crowd.most < slots:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.01)

    tasks = {"plain": [plain], "async": [on_the_loop], "mixed": [plain, on_the_loop]}[kind]
    jobs = [tasks[n % len(tasks)].enqueue() for n in range(12)]
    with working(app, concurrency=None):  # as the settings say
        done = ended(app, *jobs)
    assert {job.state for job in done} == {State.SUCCEEDED}
    assert crowd.most == slots


@pytest.mark.covers("001-R28.a")
def test_a_plain_handler_that_blocks_stops_neither_the_loop_nor_async_jobs(app: Treadle) -> None:
    blocked, release = threading.Event(), threading.Event()

    @app.task
    def block() -> None:
        blocked.set()
        assert release.wait(30)

    @app.task
    async def greet() -> str:
        await asyncio.sleep(0.01)
        return "hello"

    async def main() -> None:
        blocker = block.enqueue()
        async with app.worker(poll=0.05, grace=5):
            while not blocked.is_set():
                await asyncio.sleep(0.005)
            job = await greet.aenqueue()
            while app.get(job.id).state is not State.SUCCEEDED:  # this coroutine goes on as well
                await asyncio.sleep(0.005)
            assert app.get(blocker.id).state is State.RUNNING
            release.set()
        assert app.get(blocker.id).state is State.SUCCEEDED

    asyncio.run(asyncio.wait_for(main(), 30))


@any_store
@pytest.mark.covers("002-Q10.a")
def test_hundreds_of_small_jobs_all_run_once(app: Treadle) -> None:
    counted: list[int] = []

    @app.task
    async def count(n: int) -> None:
        counted.append(n)

    count.enqueue_many([(n,) for n in range(400)])
    with working(
        app, concurrency=10, lease=10
    ):  # an emulator is slow, and a job is given back that cannot start in time
        until(lambda: app.count()[State.SUCCEEDED] == 400, "400 successes")
    assert sorted(counted) == list(range(400))
    assert {(job.failures, job.crashes) for job in all_in(app, State.SUCCEEDED)} == {(0, 0)}


# ------------------------------------------------------------------------------------- what may be taken


@any_store
def test_only_the_queues_asked_for_are_served(app: Treadle) -> None:
    tick = app.register("tick", lambda: None)
    other = tick.using(queue="other", priority=9).enqueue()
    mail = [tick.using(queue=queue).enqueue() for queue in ("mail", "news", "mail")]
    with working(app, queues=["mail", "news"]):
        ended(app, *mail)
        ended(app, tick.using(queue="mail").enqueue())
    assert (app.get(other.id).state, app.get(other.id).attempt) == (State.PENDING, 0)


@any_store
def test_only_the_lanes_asked_for_are_served(app: Treadle) -> None:
    tick = app.register("tick", lambda: None)
    other = tick.using(lane="b", priority=9).enqueue()
    mine = [tick.using(lane="a").enqueue(), tick.using(lane="c").enqueue()]
    with working(app, lanes=["a", "c"]):
        ended(app, *mine)
        ended(app, tick.using(lane="a").enqueue())
    assert (app.get(other.id).state, app.get(other.id).attempt) == (State.PENDING, 0)


@any_store
def test_lanes_take_turns_so_that_a_full_one_starves_no_other(app: Treadle) -> None:
    order: list[str] = []

    @app.task
    def tick(lane: str) -> None:
        order.append(lane)

    tick.using(lane="busy").enqueue_many([("busy",)] * 40)
    tick.using(lane="quiet").enqueue("quiet")
    with working(app, concurrency=1):
        until(lambda: len(order) == 41, "all jobs")
    assert order.index("quiet") < 20


@any_store
@pytest.mark.covers("000-R07.a", "000-AC-15.e")
def test_jobs_of_tasks_it_does_not_know_are_left_to_others(make_app: Callable[..., Treadle]) -> None:
    here, there = make_app(), make_app()
    known = here.register("known", lambda: "here")
    unknown = there.register("unknown", lambda: "there").using(priority=9).enqueue()
    with working(here, name="here"):
        ended(here, known.enqueue(), known.enqueue())
        assert (here.get(unknown.id).state, here.get(unknown.id).attempt) == (State.PENDING, 0)
        with working(there, name="there"):
            [job] = ended(here, unknown)
    assert (job.result, job.worker) == ("there", "there")


@any_store
@pytest.mark.covers("000-R08.a", "000-AC-15.d", "000-AC-27.c")
def test_an_unknown_task_fails_without_a_retry_where_that_is_the_policy(make_app: Callable[..., Treadle]) -> None:
    app = make_app(unknown_tasks="fail")
    known = app.register("send_email", lambda: None)
    job = app.enqueue("send_emial", {"to": "Ada"}, checked=False)
    with working(app):
        [job] = ended(app, job)
        [after] = ended(app, known.enqueue())
    assert (job.state, job.reason, job.attempt) == (State.FAILED, Reason.UNKNOWN_TASK, 1)
    assert job.error.message.startswith("No handler registered for job_type: send_emial")
    assert "send_email" in job.error.message
    assert after.state is State.SUCCEEDED


@any_store
@pytest.mark.covers("004-T03.a")
def test_higher_priority_first_then_the_older(app: Treadle) -> None:
    order: list[str] = []

    @app.task
    def note(name: str) -> None:
        order.append(name)

    given = {"low": -5, "first": 0, "high": 7, "second": 0, "highest": 2**31 - 1}
    jobs = [note.using(priority=priority).enqueue(name) for name, priority in given.items()]
    with working(app, concurrency=1):
        ended(app, *jobs)
    assert order == ["highest", "high", "first", "second", "low"]


@any_store
@pytest.mark.covers("004-T09.a")
def test_a_delayed_job_runs_soon_after_its_time_and_never_before(app: Treadle) -> None:
    tick = app.register("tick", lambda: None)
    with working(app):
        late, now = tick.using(run_after=0.6).enqueue(), tick.enqueue()
        ended(app, now)
        assert app.get(late.id).attempt == 0
        [late] = ended(app, late)
    assert late.started_at >= late.due_at
    assert late.claimed_at >= late.due_at


@any_store
def test_a_job_past_its_expiry_ends_expired_and_never_runs(app: Treadle) -> None:
    ran: list[int] = []
    tick = app.register("tick", lambda: ran.append(1))
    job = tick.using(queue="of nobody", expires_at=0.3).enqueue()
    with working(app):
        [job] = ended(app, job)
    assert (job.state, job.reason, job.attempt) == (State.CANCELLED, Reason.EXPIRED, 0)
    assert not ran


@any_store
@pytest.mark.covers("004-T13.c")
def test_follow_ups_of_a_handler_run_at_once(app: Treadle) -> None:
    @app.task
    def second() -> str:
        return "done"

    @app.task
    async def first() -> str:
        return (await second.aenqueue()).id

    with working(app, poll=30):  # the poll is only a safety net
        [one] = ended(app, first.enqueue())
        [two] = ended(app, app.get(one.result), within=15)
    assert two.result == "done"


@any_store
@pytest.mark.covers("004-T13.c")
def test_follow_ups_run_at_once_also_if_the_worker_was_not_waiting_for_a_hint_then(app: Treadle) -> None:
    engine, workers = watched(app), []
    second = app.register("second", lambda: "done")
    first = app.register("first", lambda: second.enqueue().id)

    def busy(**named: Any) -> Any:
        """The look at the leases that follows the claim takes until the handler has enqueued and ended."""
        until(lambda: workers and (workers[0]._turns._outcomes or engine.looked), "the end of the first")
        engine.looked = True
        return engine._engine.expired(**named)

    engine.expired, engine.looked = busy, False
    job = first.enqueue()
    with working(app, poll=30) as worker:
        workers.append(worker)
        [one] = ended(app, job)
        [two] = ended(app, app.get(one.result), within=15)
    assert two.result == "done"


@sql_stores
def test_a_job_from_another_process_is_seen_long_before_the_poll(make_app: Callable[..., Treadle]) -> None:
    here, there = make_app(), make_app()
    here.register("tick", lambda: None)
    with working(here, poll=30):
        ended(here, here.enqueue("tick"))  # it is idle now
        ended(here, there.enqueue("tick", checked=False), within=15)


def test_a_worker_may_stop_by_itself_when_nothing_is_due(app: Treadle) -> None:
    @app.task
    def countdown(n: int) -> None:
        if n:
            countdown.enqueue(n - 1)

    later = countdown.using(run_after="1h").enqueue(0)
    countdown.enqueue(5)
    app.worker(poll=0.05).run(until_idle=True)
    assert app.count()[State.SUCCEEDED] == 6
    assert app.get(later.id).state is State.PENDING


@any_store
def test_a_worker_that_shall_end_does_not_wait_for_rights_that_it_lacks(app: Treadle) -> None:
    engine = watched(app)
    engine.turn = refused_turn
    app.register("tick", lambda: None)

    with pytest.raises(EngineError, match="permission denied"):
        app.worker(poll=0.05).run(until_idle=True)


def refused_turn(*_: Any, **__: Any) -> Any:
    raise EngineError("permission denied for table jobs")


# ------------------------------------------------------------------------------------------- when idle


@any_store
@pytest.mark.covers("000-R07.b", "000-R17.b", "002-Q10.a")
@pytest.mark.parametrize(("poll", "looks"), [(0.2, 6), (1.0, 3)])
def test_an_idle_worker_asks_once_a_poll_and_not_in_a_tight_loop(
    make_app: Callable[..., Treadle], poll: float, looks: int
) -> None:
    app = make_app(poll=poll)
    app.register("tick", lambda: None)
    engine = watched(app)
    with working(app, poll=None):  # as the settings say
        until(lambda: len(engine.turns) >= looks, "looks at an empty queue")
    gaps = [after[0] - before[1] for before, after in zip(engine.turns, engine.turns[1:], strict=False)]
    assert min(gaps[1:]) > poll * 0.75
    assert len(engine.turns) < 2 * looks


def test_an_error_of_the_loop_itself_is_logged_with_its_traceback_and_the_loop_goes_on(
    app: Treadle, caplog: pytest.LogCaptureFixture
) -> None:
    tick = app.register("tick", lambda: "still here")
    engine = watched(app)
    with working(app):
        ended(app, tick.enqueue())
        engine.failing.append(ZeroDivisionError("a bug of ours"))
        [job] = ended(app, tick.enqueue())
    assert job.result == "still here"
    [record] = [record for record in caplog.records if record.exc_info]
    assert record.levelno >= logging.ERROR
    assert "ZeroDivisionError: a bug of ours" in caplog.text
    assert "in turn" in caplog.text


def test_an_outcome_is_not_lost_when_the_store_does_not_answer_for_a_while(app: Treadle) -> None:
    from treadle import EngineUnavailable

    ran: list[int] = []
    tick = app.register("tick", lambda: ran.append(1))
    engine = watched(app)

    @app.task
    def fails_the_store() -> str:
        engine.failing += [EngineUnavailable("no answer")] * 3
        return "written in the end"

    with working(app, lease=10):
        [job, _] = ended(app, fails_the_store.enqueue(), tick.enqueue())
    assert (job.state, job.result, job.attempt) == (State.SUCCEEDED, "written in the end", 1)
    assert ran == [1]


@any_store
@pytest.mark.covers("000-R17.a", "002-Q11.b", "003-S09.a", "000-AC-29.a", "002-O2.b")
def test_two_workers_share_the_jobs_without_an_error_and_run_none_twice(
    make_app: Callable[..., Treadle], caplog: pytest.LogCaptureFixture
) -> None:
    counted: list[int] = []
    seen: set[str | None] = set()

    def counting(ctx: Context, n: int) -> None:
        if ctx.job.queue == "all":  # however slow one of them is, the other does not do it all
            seen.add(ctx.job.worker)
            until(lambda: len(seen) == 2, "a job in the other worker")
        counted.append(n)

    apps = [make_app(), make_app()]
    for each in apps:
        each.register("count", counting)
    count = apps[0].tasks["count"]
    with working(apps[0], name="w1", queues=["one", "all"]), working(apps[1], name="w2", queues=["two", "all"]):
        ended(apps[0], count.using(queue="one").enqueue(-1), count.using(queue="two").enqueue(-2))  # both are up
        count.using(queue="all").enqueue_many([(n,) for n in range(100)])
        until(lambda: apps[0].count()[State.SUCCEEDED] == 102, "the end of all")
    assert sorted(counted) == list(range(-2, 100))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    jobs = [job for job in all_in(apps[0], State.SUCCEEDED) if job.queue == "all"]
    assert {job.worker for job in jobs} == {"w1", "w2"}
    assert {(job.failures, job.crashes) for job in jobs} == {(0, 0)}  # one that was given back has a second attempt


def test_a_handler_that_cannot_be_called_stops_the_worker_before_its_first_job(app: Treadle) -> None:
    from treadle import ConfigError

    app.register("broken", functools.partial(lambda *anything: None))
    with pytest.raises(ConfigError, match="'broken'"):
        app.worker().run()


@any_store
def test_the_times_of_a_job_are_those_of_its_store(app: Treadle) -> None:
    before = datetime.now(UTC)
    with working(app):
        [job] = ended(app, app.register("tick", lambda: None).enqueue())
    assert before <= job.created_at <= job.finished_at <= datetime.now(UTC)


def test_a_worker_says_at_its_start_what_follows_its_tasks_and_is_not_known_here(
    app: Treadle, caplog: pytest.LogCaptureFixture
) -> None:
    app.register("alarm", lambda job_id: None)
    app.register("work", lambda: None, on_failed="alarm", on_succeeded="thank")
    app.run_worker(until_idle=True)
    said = [record.getMessage() for record in caplog.records if "is followed by" in record.getMessage()]
    assert said == ["task work is followed by task thank, which is not known here"]
