"""Schedules that fire: once per run over any number of schedulers, any crash, any clock and any row."""

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import psycopg
import pytest

from tests.support.making import claim, race, several, start
from tests.support.marks import any_store, postgres_only
from tests.support.scheduling import fire, hourly, made, register
from treadle import (
    ConfigError,
    Retry,
    State,
    Task,
    Treadle,
)
from treadle.engines.contract import Engine
from treadle.errors import EngineUnavailable, TreadleError
from treadle.model import EventKind
from treadle.model.lifecycle import Succeeded
from treadle.model.records import Misfire, Schedule
from treadle.profiles import backend, chat_server
from treadle.schedules.firing import Scheduler
from treadle.testing import FakeClock, run_until_idle

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.fixture
def greet(app: Treadle) -> Task:
    return register(app)


@any_store
@pytest.mark.covers("002-C1.a", "002-D5.a", "002-M1.c", "002-T1.h", "004-T13.b")
def test_a_schedule_whose_time_has_come_makes_its_job_and_goes_on(app: Treadle, greet: Task, clock: FakeClock) -> None:
    hourly(app, payload={"name": "Bob"})
    hourly(app, "off", enabled=False)
    hourly(app, "later", cron="@daily")
    clock.advance(minutes=59, seconds=59)
    fire(app)
    assert made(app) == []
    clock.advance(seconds=1)
    fire(app)
    fire(app)
    [job] = app.find().jobs
    assert (job.schedule, job.task, job.payload, job.state) == ("hourly", "greet", {"name": "Bob"}, State.PENDING)
    assert (job.due_at, job.tick, job.queue, job.priority, job.timeout) == (clock.now(), clock.now(), "mail", 3, 300.0)
    assert (job.retry, job.task_version) == (greet.options.retry, 2)
    after = app.schedules.get("hourly")
    assert (after.next_at, after.last_at, after.last_job) == (clock.now() + HOUR, clock.now(), job.id)
    assert [done.result for done in run_until_idle(app)] == ["hello Bob"]


def test_a_job_whose_schedule_has_jitter_is_due_a_little_later(app: Treadle, greet: Task, clock: FakeClock) -> None:
    hourly(app, jitter="30m")
    clock.advance(hours=1)
    fire(app)
    [job] = app.find().jobs
    assert clock.now() < job.due_at <= clock.now() + timedelta(minutes=30)
    assert app.schedules.get("hourly").last_at == clock.now()
    assert run_until_idle(app) == []
    clock.advance(minutes=30)
    assert len(run_until_idle(app)) == 1


@any_store
def test_how_often_schedules_are_looked_at_is_a_setting_and_15_seconds_for_the_backend(
    make_app: Callable[..., Treadle],
) -> None:
    assert make_app().worker().config.schedule_interval == 1.0
    assert make_app(profile=backend.PROFILE).worker().config.schedule_interval == 15.0
    assert make_app(profile=backend.PROFILE, schedule_interval="1m").worker().config.schedule_interval == 60.0


@any_store
@pytest.mark.covers("000-R22.d")
def test_an_application_that_keeps_its_own_loops_leaves_schedules_off(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    app = make_app(profile=chat_server.PROFILE)
    register(app)
    hourly(app, tenant="ada")
    app.declare("declared", "greet", tenant="ada", cron="@hourly")
    clock.advance(hours=1)
    plan = app.worker().config
    Scheduler(app.engine, plan.name, app.declared(), enabled=plan.schedules).run_due()
    assert not plan.schedules
    assert made(app) == []
    assert [schedule.name for schedule in app.schedules.list()] == ["hourly"]
    app.tasks["greet"].using(tenant="ada").enqueue()  # as its own cron evaluator does
    assert len(claim(app.engine, 5, queues=["mail"])) == 1


@any_store
@pytest.mark.covers("002-C2.a", "002-D5.a", "002-T1.i")
def test_any_number_of_schedulers_make_each_run_once(
    make_app: Callable[..., Treadle], make_engine: Callable[..., Engine], clock: FakeClock
) -> None:
    app = make_app()
    register(app)
    hourly(app)
    hourly(app, "quarterly", cron="*/15 * * * *")
    engines = several(make_engine, 5)
    for _ in range(4):
        clock.advance(minutes=15)
        race(5, lambda place: fire(engines[place], f"s{place}"))
    assert made(app, "quarterly") == ["01 12:15", "01 12:30", "01 12:45", "01 13:00"]
    assert made(app, "hourly") == ["01 13:00"]


@any_store
@pytest.mark.covers("002-C2.a")
def test_a_scheduler_that_comes_second_is_told_that_the_tick_was_not_its_own(
    app: Treadle, greet: Task, make_engine: Callable[..., Engine], clock: FakeClock
) -> None:
    hourly(app)
    clock.advance(hours=1)
    [one], other = app.engine.due(limit=10), make_engine()
    [same] = other.due(limit=10)
    assert Scheduler(app.engine, "s1").fire(one) == clock.now() + HOUR
    assert Scheduler(other, "s2").fire(same) is None
    assert made(app) == ["01 13:00"]


@any_store
@pytest.mark.covers("002-C3.b")
@pytest.mark.parametrize("gone", ["disabled", "deleted", "moved"])
def test_a_schedule_that_is_changed_after_it_was_read_as_due_does_not_fire(
    app: Treadle, greet: Task, make_engine: Callable[..., Engine], clock: FakeClock, gone: str
) -> None:
    hourly(app)
    clock.advance(hours=1)
    [read] = make_engine().due(limit=10)
    match gone:
        case "disabled":
            app.schedules.disable("hourly")
        case "deleted":
            app.schedules.delete("hourly")
        case "moved":
            app.schedules.update("hourly", cron="@daily")
    assert Scheduler(app.engine, "s1").fire(read) is None
    assert made(app) == []


@pytest.fixture
def database(store_url: str) -> Iterator[Callable[[str], list[tuple]]]:
    """Runs SQL in the schema of the store."""
    server, _, schema = store_url.partition("?schema=")
    with psycopg.connect(server, autocommit=True, options=f"-c search_path={schema},public") as connection:

        def run(sql: str) -> list[tuple]:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

        yield run


@postgres_only
@pytest.mark.covers("002-C3.a")
@pytest.mark.parametrize("table", ["schedules", "jobs"])
def test_a_scheduler_that_is_killed_between_advance_and_enqueue_leaves_neither(
    app: Treadle, greet: Task, clock: FakeClock, database: Callable[[str], list[tuple]], table: str
) -> None:
    before = hourly(app)
    database(f"""
        create function killed() returns trigger language plpgsql as
            $$ begin perform pg_terminate_backend(pg_backend_pid()); return new; end $$;
        create trigger killed after insert or update on {table} for each row execute function killed();
    """)
    clock.advance(hours=1)
    with pytest.raises(EngineUnavailable):
        fire(app)
    assert database("select count(*) from jobs") == [(0,)]
    assert app.schedules.get("hourly") == before
    database("drop function killed cascade")
    fire(app)
    assert made(app) == ["01 13:00"]
    assert app.schedules.get("hourly").last_at == clock.now()


@postgres_only
@pytest.mark.covers("002-C2.b")
def test_no_advisory_lock_is_taken_to_fire(
    app: Treadle, greet: Task, clock: FakeClock, database: Callable[[str], list[tuple]]
) -> None:
    hourly(app)
    database("""
        create table seen (locks bigint);
        create function look() returns trigger language plpgsql set search_path from current as $$ begin
            insert into seen select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid();
            return null;
        end $$;
        create trigger look after update on schedules for each row execute function look();
    """)
    clock.advance(hours=1)
    fire(app)
    assert made(app) == ["01 13:00"]
    assert database("select locks from seen") == [(0,)]


@any_store
@pytest.mark.parametrize("answer", ["lost", "never sent"])
def test_a_store_that_does_not_answer_costs_no_run_and_doubles_none(
    app: Treadle, greet: Task, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    hourly(app)
    clock.advance(hours=1)
    save = app.engine.save

    def silent(*arguments: object, **named: object) -> None:
        if answer == "lost":
            save(*arguments, **named)
        raise EngineUnavailable("no answer")

    monkeypatch.setattr(app.engine, "save", silent)
    with pytest.raises(EngineUnavailable):
        fire(app)
    monkeypatch.undo()
    fire(app)
    assert made(app) == ["01 13:00"]
    [job] = app.find().jobs
    assert app.schedules.get("hourly").last_job == job.id


# ---------------------------------------------------------------------------------------- what was missed


@pytest.mark.parametrize(
    ("misfire", "wanted"),
    [
        ("skip", []),
        ("once", ["01 17:00"]),
        ("all", ["01 13:00", "01 14:00", "01 15:00", "01 16:00", "01 17:00"]),
    ],
)
def test_runs_that_were_missed_are_made_as_the_policy_says(
    app: Treadle, greet: Task, clock: FakeClock, misfire: str, wanted: list[str]
) -> None:
    hourly(app, misfire=misfire)
    clock.advance(hours=5, minutes=30)
    fire(app)
    fire(app)
    assert sorted(f"{job.tick:%d %H:%M}" for job in app.find().jobs) == wanted
    assert {job.due_at for job in app.find().jobs} <= {clock.now()}  # a job is due no earlier than it is made
    assert app.schedules.get("hourly").next_at == clock.now() + timedelta(minutes=30)
    clock.advance(minutes=30)
    fire(app)
    assert len(app.find().jobs) == len(wanted) + 1


@any_store
def test_all_is_bounded_and_comes_in_portions_that_let_the_jobs_come_first(
    app: Treadle, greet: Task, clock: FakeClock
) -> None:
    hourly(app, cron="* * * * *", misfire="all", misfire_limit=450, misfire_age="8h")
    clock.advance(days=9, seconds=30)
    scheduler = Scheduler(app.engine, "s1")
    portions = []
    while scheduler.run_due():
        portions.append(sum(app.count().values()))
    assert portions[-1] == 450
    assert max(later - earlier for earlier, later in pairwise([0, *portions])) <= 200
    ticks = sorted(job.tick for job in app.find(limit=500).jobs)
    assert ticks[-1] == clock.now() - timedelta(seconds=30)
    assert ticks[-1] - ticks[0] == timedelta(minutes=449)


def test_how_late_counts_as_missed_grows_with_the_tick(app: Treadle, greet: Task, clock: FakeClock) -> None:
    hourly(app, misfire="skip")
    clock.advance(hours=1, seconds=119)
    fire(app, interval=60.0)
    assert app.schedules.get("hourly").last_at is not None


# -------------------------------------------------------------------------------------------- overlap


@any_store
def test_with_overlap_skip_no_run_is_made_while_one_waits_or_runs(app: Treadle, greet: Task, clock: FakeClock) -> None:
    hourly(app, overlap="skip")
    clock.advance(hours=1)
    fire(app)
    first = app.schedules.get("hourly")
    clock.advance(hours=1)
    fire(app)  # the first one waits
    [held] = claim(app.engine, 1, queues=["mail"], lease=86_400.0)
    start(app.engine, held, 86_400.0)
    clock.advance(hours=1)
    fire(app)  # the first one runs
    after = app.schedules.get("hourly")
    assert (after.last_at, after.last_job) == (first.last_at, first.last_job) == (held.tick, held.id)
    assert after.next_at == clock.now() + HOUR
    app.engine.turn([settled(held, clock)])
    fire(app)  # what was skipped is over
    clock.advance(hours=1)
    fire(app)
    assert sorted(f"{job.tick:%H:%M}" for job in app.find().jobs) == ["13:00", "16:00"]


@any_store
def test_with_overlap_queue_one_one_may_wait_while_another_runs(app: Treadle, greet: Task, clock: FakeClock) -> None:
    hourly(app, overlap="queue_one")
    clock.advance(hours=1)
    fire(app)
    [held] = claim(app.engine, 1, queues=["mail"], lease=86_400.0)
    for _ in range(3):
        clock.advance(hours=1)
        fire(app)
    assert sorted(f"{job.tick:%H:%M}" for job in app.find().jobs) == ["13:00", "14:00"]
    app.engine.turn([settled(held, clock)])
    assert len(run_until_idle(app, queues=["mail"])) == 1
    clock.advance(hours=1)
    fire(app)
    assert sorted(f"{job.tick:%H:%M}" for job in app.find().jobs) == ["13:00", "14:00", "17:00"]


def settled(job: object, clock: FakeClock) -> object:
    from treadle.model import lifecycle

    return lifecycle.settle(job, Succeeded("1"), clock.now())


def test_with_overlap_allow_runs_pile_up(app: Treadle, greet: Task, clock: FakeClock) -> None:
    hourly(app)
    for _ in range(3):
        clock.advance(hours=1)
        fire(app)
    assert made(app) == ["01 13:00", "01 14:00", "01 15:00"]


def test_schedules_of_one_task_do_not_stand_in_each_others_way(app: Treadle, greet: Task, clock: FakeClock) -> None:
    for name in ("a", "b"):
        hourly(app, name, overlap="skip")
    hourly(app, "a", overlap="skip", tenant="acme")
    clock.advance(hours=1)
    fire(app)
    assert {(job.tenant, job.schedule) for job in app.find().jobs} == {
        ("default", "a"), ("default", "b"), ("acme", "a"),
    }  # fmt: skip


# -------------------------------------------------------------------------------------- clocks and bad rows


@any_store
@pytest.mark.parametrize("misfire", Misfire)
def test_a_clock_that_is_set_back_fires_nothing_twice(
    app: Treadle, greet: Task, clock: FakeClock, misfire: Misfire
) -> None:
    hourly(app, misfire=misfire)
    clock.advance(hours=2)
    fire(app)
    clock.advance(hours=1)
    fire(app)
    for back in (1, 30, 90):
        clock.advance(minutes=-back)
        fire(app)
        clock.advance(minutes=back)
        fire(app)
    ticks = [job.tick for job in app.find().jobs]
    assert len(ticks) == len(set(ticks)) == {"skip": 2, "once": 2, "all": 3}[misfire]


@any_store
@pytest.mark.covers("002-C4.b", "002-O2.d")
def test_a_schedule_runs_by_the_clock_on_its_wall_through_the_night_it_is_changed(
    make_app: Callable[..., Treadle],
) -> None:
    clock = FakeClock(datetime(2026, 3, 27, 12, tzinfo=UTC))
    app = make_app(clock=clock)
    register(app)
    hourly(app, "wall", cron="30 2 * * *", tz="Europe/Berlin")
    hourly(app, "real", cron="30 * * * *", tz="Europe/Berlin", misfire="all")
    for _ in range(3 * 24 * 2):
        clock.advance(minutes=30)
        fire(app)
    assert made(app, "wall") == ["28 01:30", "29 01:00", "30 00:30"]
    assert len(made(app, "real")) == 72


@any_store
@pytest.mark.covers("002-C5.a", "002-M3.c")
def test_a_schedule_without_a_next_run_gets_one_and_fires_at_it(app: Treadle, greet: Task, clock: FakeClock) -> None:
    """As somebody's SQL, or an import, leaves it."""
    app.engine.save(Schedule("bare", "greet", clock.now(), cron="0 * * * *", queue="mail"), before=None)
    clock.advance(minutes=10)
    fire(app)
    assert app.schedules.get("bare").next_at == clock.now() + timedelta(minutes=50)
    assert made(app) == []
    clock.advance(minutes=50)
    fire(app)
    assert made(app) == ["01 13:00"]


BAD_ROWS: dict[str, dict[str, object]] = {
    "cron": {"cron": "nonsense"},
    "cron of old": {"cron": "0 0 31 2 *"},
    "zone": {"timezone": "Mars/Olympus"},
    "interval": {"cron": None, "every": 0.001},
    "negative interval": {"cron": None, "every": -1.0},
    "endless interval": {"cron": None, "every": 1e100},
    "no limit": {"misfire": Misfire.ALL, "misfire_limit": 0},
    "negative limit": {"misfire": Misfire.ALL, "misfire_limit": -1},
    "endless age": {"misfire": Misfire.ALL, "misfire_age": 1e100},
    "endless jitter": {"jitter": 1e100},
    "far future": {"cron": None, "every": 60.0, "created_at": datetime(9999, 12, 31, 23, 59, tzinfo=UTC)},
    "queue": {"queue": ""},
    "task": {"task": ""},
    "timeout": {"timeout": -1.0},
    "backoff": {"retry_base": -5.0},
}


@any_store
@pytest.mark.parametrize("fields", BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_row_that_cannot_be_read_disables_itself_with_a_line_and_stops_nobody_else(
    app: Treadle, greet: Task, clock: FakeClock, fields: dict, caplog: pytest.LogCaptureFixture
) -> None:
    """We would not have taken it; somebody else wrote it into the table."""
    row = {"cron": "* * * * *", "task": "greet", "created_at": clock.now(), "next_at": clock.now(), **fields}
    try:
        app.engine.save(Schedule("bad", **row), before=None)
    except TreadleError:
        return  # this store would not have taken it either
    hourly(app, "good")
    clock.advance(days=1)
    with caplog.at_level(logging.ERROR):
        fire(app, "w7")
    bad = app.schedules.get("bad")
    assert not bad.enabled
    [line] = app.schedules.events("bad")
    assert (line.kind, line.actor, line.revision) == (EventKind.DISABLED, "w7", bad.revision)
    assert "schedule bad: disabled" in line.note
    assert "schedule bad: disabled" in caplog.text
    assert [job.schedule for job in app.find().jobs] == ["good"]
    fire(app)
    assert len(app.schedules.events("bad")) == 1


def test_a_bad_row_can_be_mended_and_enabled(app: Treadle, greet: Task, clock: FakeClock) -> None:
    app.engine.save(Schedule("bad", "greet", clock.now(), cron="nonsense", next_at=clock.now()), before=None)
    fire(app)
    with pytest.raises(ConfigError, match="cron"):
        app.schedules.enable("bad")
    app.schedules.update("bad", cron="0 * * * *", enabled=True)
    clock.advance(hours=1)
    fire(app)
    assert made(app) == ["01 13:00"]


@any_store
def test_more_schedules_than_fit_one_look_all_fire(app: Treadle, clock: FakeClock) -> None:
    for number in range(205):
        row = Schedule(f"n{number}", "greet", clock.now(), cron="0 * * * *", next_at=clock.now() + HOUR)
        app.engine.save(row, before=None)
    clock.advance(hours=1)
    scheduler = Scheduler(app.engine, "s1")
    while scheduler.run_due():
        pass
    assert sum(app.count().values()) == 205


def test_a_store_that_takes_its_time_has_its_schedules_fired_all_the_same(
    app: Treadle, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.schedules.firing.LONGEST_RUN", -1.0)  # every look takes too long
    for number in range(3):
        row = Schedule(f"n{number}", "greet", clock.now(), cron="0 * * * *", next_at=clock.now() + HOUR)
        app.engine.save(row, before=None)
    clock.advance(hours=1)
    scheduler = Scheduler(app.engine, "s1")
    assert [scheduler.run_due() for _ in range(4)] == [True, True, True, False]
    assert sum(app.count().values()) == 3


@any_store
def test_an_enqueued_job_has_the_given_time_key_attempts_and_schedule(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    """The schedule is given by the one that enqueues for it: a tick, or a run by hand."""
    app = make_app(profile=backend.PROFILE)
    task = app.register("prune", lambda: None)
    once = task.using(run_after="1h", key="k", retry=Retry(max_attempts=9)).enqueue()
    assert (once.state, once.due_at, once.key) == (State.PENDING, clock.now() + HOUR, "k")
    assert (once.max_attempts, once.schedule) == (9, None)
    app.schedules.create("nightly", task, cron="0 13 * * *", overlap="skip", max_attempts=2)
    clock.advance(hours=1)
    fire(app)
    [job] = [job for job in app.find().jobs if job.schedule is not None]
    assert (job.state, job.due_at, job.max_attempts, job.schedule) == (State.PENDING, clock.now(), 2, "nightly")
    assert job.key is not None


@any_store
@pytest.mark.covers("002-D3.c")
def test_jobs_without_a_priority_are_taken_in_order_of_their_due_time(app: Treadle, clock: FakeClock) -> None:
    task = app.register("t", lambda: None)
    jobs = [task.using(run_after=f"{minutes}m").enqueue() for minutes in (3, 1, 2)]
    clock.advance(minutes=3)
    assert [job.id for job in run_until_idle(app)] == [jobs[place].id for place in (1, 2, 0)]
