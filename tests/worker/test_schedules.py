"""What a worker does about schedules, pauses, budgets and its own place among the live ones."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.support.marks import any_store
from tests.support.workbench import ended, until, working
from treadle import Context, Job, State, Treadle
from treadle.model.records import Misfire, Schedule
from treadle.schedules.rules import next_tick

PROMPT = 1.0  # seconds after its time, at most, on an idle worker


def lateness(app: Treadle, job: Job) -> float:
    """Seconds from the nominal time of a job to its start."""
    assert job.tick is not None
    assert job.claimed_at is not None
    return (job.claimed_at - job.tick).total_seconds()


@any_store
def test_a_schedule_fires_within_a_second_of_its_time_on_an_idle_worker(make_app: Callable[..., Treadle]) -> None:
    app = make_app()

    @app.task(every="1s")
    def tick() -> None: ...

    with working(app, poll=30):
        until(lambda: len(app.find(state="succeeded", limit=10).jobs) >= 4, "four runs")
    jobs = [job for job in app.find(limit=50).jobs if job.claimed_at]
    ticks = sorted(job.tick for job in jobs if job.tick)
    assert len(set(ticks)) == len(ticks)
    late = sorted(lateness(app, job) for job in jobs)
    assert late[len(late) // 2] < PROMPT
    assert late[0] >= -0.001


def test_a_handler_knows_the_nominal_time_it_runs_for(make_app: Callable[..., Treadle]) -> None:
    app = make_app()
    seen: list[Any] = []

    @app.task(every="1s")
    def tick(ctx: Context) -> None:
        seen.append((ctx.tick, ctx.job.schedule))

    @app.task
    def other(ctx: Context) -> None:
        seen.append(ctx.tick)

    other.enqueue()
    with working(app):
        until(lambda: len(seen) >= 2, "a run of each")
    ours = next(entry for entry in seen if entry is not None)
    schedule = app.schedules.get("tick")
    assert None in seen
    assert ours[1] == "tick"
    after = (ours[0] - schedule.created_at).total_seconds()
    assert abs(after - round(after)) < 0.002
    assert round(after) >= 1


def test_a_worker_that_runs_until_idle_runs_what_is_due_by_a_schedule(make_app: Callable[..., Treadle]) -> None:
    app = make_app()
    ran: list[str] = []
    app.register("nightly", lambda: ran.append("nightly"))
    now = app.engine.now()
    schedule = Schedule("nightly", "nightly", now - timedelta(days=2), cron="0 2 * * *")
    due = schedule.evolve(next_at=next_tick(schedule, now - timedelta(days=1, hours=1)))
    assert app.engine.save(due, before=None).done
    app.run_worker(until_idle=True)
    assert ran == ["nightly"]


@pytest.mark.covers("002-Q13.a")
def test_a_worker_that_stops_makes_no_more_jobs_of_schedules_while_it_drains(make_app: Callable[..., Treadle]) -> None:
    app = make_app()
    began, release = threading.Event(), threading.Event()

    @app.task
    def slow() -> None:
        began.set()
        release.wait(30)

    app.register("tick", lambda: None)
    slow.enqueue()
    with working(app, grace=30, concurrency=1) as worker:
        began.wait(30)
        worker.stop()
        until(lambda: [member.stopping for member in app.workers()] == [True], "a worker that says it stops")
        now = app.engine.now()
        due = Schedule("tick", "tick", now - timedelta(hours=1), every=60.0, next_at=now, misfire=Misfire.ALL)
        assert app.engine.save(due, before=None).done
        time.sleep(0.5)  # several of its rounds: the time in which a bug would show
        assert app.find(task="tick").jobs == []
        release.set()
    assert app.schedules.get("tick").last_at is None


def test_a_worker_without_schedules_makes_no_jobs_of_them(make_app: Callable[..., Treadle]) -> None:
    app = make_app(schedules=False)

    @app.task(every="1s")
    def tick() -> None: ...

    @app.task
    def other() -> None: ...

    job = other.enqueue()
    with working(app):
        ended(app, job)
    assert list(app.schedules.list()) == []


@any_store
def test_workers_are_listed_while_they_live_and_gone_when_they_have_stopped(make_app: Callable[..., Treadle]) -> None:
    app = make_app(heartbeat=0.1)

    @app.task(version=3)
    def greet() -> None: ...

    with working(app, name="w1", queues=["default", "mail"], concurrency=2):
        [member] = until(app.workers, "a live worker")
        assert (member.name, member.queues, member.concurrency) == ("w1", ["default", "mail"], 2)
        assert {name: member.tasks[name] for name in member.task_names} == {"greet": 3}
        seen = member.seen_at
        until(lambda: [one.seen_at > seen for one in app.workers()] == [True], "another beat")
    assert app.workers() == []


def test_a_job_is_failed_as_unknown_only_if_no_live_worker_knows_its_task(make_app: Callable[..., Treadle]) -> None:
    knowing, other = make_app(heartbeat=0.1), make_app(heartbeat=0.1, unknown_tasks="fail")
    ran = threading.Event()
    knowing.register("known", ran.set)
    other.register("own", lambda: None)
    with working(knowing, name="knowing", concurrency=1):
        until(knowing.workers, "the worker that knows it")
        with working(other, name="other"):
            lost = knowing.enqueue("nobodys", checked=False)
            jobs = [knowing.enqueue("known") for _ in range(20)]
            assert ended(knowing, lost)[0].reason == "unknown_task"
            assert {job.state for job in ended(knowing, *jobs)} == {State.SUCCEEDED}


def test_a_spent_budget_pauses_its_tenant_until_the_day_is_over(make_app: Callable[..., Treadle]) -> None:
    app = make_app(budgets={"acme": 100}, keep_failed="2d")

    @app.task
    def ask(ctx: Context) -> None:
        ctx.add_cost(60)

    first = [ask.using(tenant="acme").enqueue() for _ in range(2)]
    with working(app) as worker:
        ended(app, *first)
        worker._maintenance._chores["budgets"]()
        [pause] = app.pauses()
        assert (pause.tenant, pause.actor) == ("acme", "budget")
        stopped, free = ask.using(tenant="acme").enqueue(), ask.using(tenant="other").enqueue()
        ended(app, free)
        assert app.get(stopped.id).state is State.PENDING
        assert app.why(stopped.id)[0].kind == "budget"
    assert [(spent.tenant, spent.micros) for spent in app.costs()] == [("acme", 120), ("other", 60)]


@any_store
def test_a_worker_takes_nothing_behind_a_pause_and_goes_on_when_it_is_lifted(make_app: Callable[..., Treadle]) -> None:
    app = make_app()
    app.register("greet", lambda: None)
    with working(app):
        app.pause(task="greet", reason="a look", actor="ann")
        held = app.enqueue("greet")
        app.register("other", lambda: None)
        time.sleep(0.3)  # several of its rounds
        assert app.get(held.id).state is State.PENDING
        app.resume(task="greet", actor="ann")
        assert ended(app, held)[0].state is State.SUCCEEDED


def test_a_schedule_that_cannot_be_read_harms_neither_its_neighbours_nor_the_worker(
    make_app: Callable[..., Treadle],
) -> None:
    app = make_app()
    app.register("tick", lambda: None)
    now = app.engine.now()
    for name, bad in {"cron": "nonsense", "none": "99 * * * *"}.items():
        app.engine.save(Schedule(f"bad-{name}", "tick", now, cron=bad, next_at=now), before=None)
    app.engine.save(Schedule("huge", "tick", now, every=60.0, jitter=1e300, next_at=now), before=None)
    app.schedules.create("good", "tick", every="1s")
    with working(app):
        until(lambda: app.find(state="succeeded", task="tick").jobs, "a run of the good one")
        until(lambda: len([one for one in app.schedules.list() if not one.enabled]) == 3, "three disabled ones")
    assert "cannot be read" in app.schedules.events("bad-cron")[-1].note
