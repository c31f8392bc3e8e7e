"""Schedules as an application and its operators see them: made, changed, looked at, run by hand."""

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests.support.making import a_policy, race
from tests.support.marks import any_store, postgres_only
from tests.support.scheduling import fire, hourly, made, register, traces
from treadle import (
    ConfigError,
    InvalidInput,
    InvalidJob,
    KeyTaken,
    NotPossible,
    Retry,
    State,
    Task,
    Treadle,
    UnknownTask,
)
from treadle.errors import ScheduleNotFound, TreadleError
from treadle.model import EventKind
from treadle.model.records import Misfire, Overlap, Schedule
from treadle.profiles import backend
from treadle.schedules.cron import MOVED, ONCE
from treadle.testing import FakeClock, run_until_idle

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.fixture
def greet(app: Treadle) -> Task:
    return register(app)


# -------------------------------------------------------------------------------------------------- making


@any_store
@pytest.mark.covers("002-C5.a")
def test_a_schedule_keeps_what_it_is_told_and_takes_the_rest_from_its_task(
    app: Treadle, greet: Task, clock: FakeClock
) -> None:
    schedule = app.schedules.create("nightly", greet, {"name": "Zoë"}, cron="30 2 * * *", tz="Europe/Berlin")
    assert schedule == app.schedules.get("nightly")
    assert (schedule.name, schedule.task, schedule.payload) == ("nightly", "greet", {"name": "Zoë"})
    assert (schedule.cron, schedule.every, schedule.timezone) == ("30 2 * * *", None, "Europe/Berlin")
    assert (schedule.enabled, schedule.tenant, schedule.queue, schedule.lane) == (True, "default", "mail", "")
    assert (schedule.priority, schedule.timeout, schedule.task_version) == (3, 300.0, 2)
    assert schedule.retry == Retry(max_attempts=4, base=1, cap=None, jitter=0)
    assert (schedule.misfire, schedule.misfire_limit, schedule.misfire_age) == (Misfire.ONCE, 100, 86_400.0)
    assert (schedule.overlap, schedule.jitter, schedule.for_each) == (Overlap.ALLOW, 0.0, None)
    assert (schedule.last_at, schedule.last_job, schedule.declared) == (None, None, None)
    assert schedule.created_at == schedule.updated_at == clock.now()
    assert schedule.next_at == datetime(2026, 1, 2, 1, 30, tzinfo=UTC)


@any_store
@pytest.mark.covers("002-M3.b")
def test_a_schedule_of_the_backend_has_its_defaults_and_its_jobs_inherit_its_attempts(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    app = make_app(profile=backend.PROFILE)
    app.register("stale_session_cleanup", lambda: None)
    schedule = app.schedules.create("sessions", "stale_session_cleanup", cron="0 * * * *")
    assert (schedule.payload, schedule.timezone, schedule.enabled, schedule.max_attempts) == ({}, "UTC", True, 3)
    app.schedules.update("sessions", max_attempts=7)
    clock.advance(hours=1)
    fire(app)
    [job] = app.find().jobs
    assert job.max_attempts == 7


@any_store
def test_everything_a_schedule_may_be_told_is_kept(app: Treadle, greet: Task) -> None:
    app.for_each(lambda: [], "users")
    said = {
        "every": 90.5, "enabled": False, "queue": "q", "lane": "l", "priority": -5,
        "timeout": 1.5, "misfire": "all", "misfire_limit": 7, "misfire_age": 3600.0, "overlap": "queue_one",
        "jitter": 2.5, "for_each": "users",
    }  # fmt: skip
    retry = Retry(max_attempts=2, base=0.5, cap=9, jitter=0.25)
    app.schedules.create("n", "greet", {"x": [1, None, "ü"]}, tenant="acme", retry=retry, tz="Asia/Kathmandu", **said)
    found = app.schedules.get("n", tenant="acme")
    assert {name: getattr(found, name) for name in said} == said
    assert (found.retry, found.payload, found.tenant) == (retry, {"x": [1, None, "ü"]}, "acme")
    assert found.timezone == "Asia/Kathmandu"
    assert (found.cron, found.misfire, found.overlap) == (None, Misfire.ALL, Overlap.QUEUE_ONE)


def test_an_interval_begins_when_the_schedule_is_made(app: Treadle, greet: Task, clock: FakeClock) -> None:
    clock.advance(minutes=7)
    assert hourly(app, cron=None, every="15m").next_at == clock.now() + timedelta(minutes=15)


@any_store
def test_a_name_is_taken_once_and_by_each_tenant(app: Treadle, greet: Task) -> None:
    hourly(app)
    before = traces(app)
    with pytest.raises(NotPossible, match=r"'hourly' already; update it"):
        hourly(app, cron="@daily")
    assert traces(app) == before
    assert hourly(app, tenant="acme").tenant == "acme"
    assert [schedule.tenant for schedule in app.schedules.list()] == ["acme", "default"]
    assert [schedule.tenant for schedule in app.schedules.list(tenant="acme")] == ["acme"]


@postgres_only
@pytest.mark.covers("002-M4.f")
def test_the_database_itself_refuses_a_second_schedule_of_a_name_and_a_second_holder_of_a_key(
    app: Treadle, greet: Task, store_url: str
) -> None:
    hourly(app)
    greet.using(key="k").enqueue()
    server, _, schema = store_url.partition("?schema=")
    with psycopg.connect(server, autocommit=True) as connection:
        for table in ("schedules", "keys"):
            with pytest.raises(psycopg.errors.UniqueViolation):
                connection.execute(f"insert into {schema}.{table} select * from {schema}.{table}")


@any_store
def test_schedules_are_listed_by_tenant_and_name(app: Treadle, greet: Task) -> None:
    for tenant, name in (("b", "x"), ("a", "z"), ("a", "y")):
        hourly(app, name, tenant=tenant)
    assert [(one.tenant, one.name) for one in app.schedules.list()] == [("a", "y"), ("a", "z"), ("b", "x")]


@any_store
def test_the_trail_of_a_schedule_tells_who_did_what_when_and_why(app: Treadle, greet: Task, clock: FakeClock) -> None:
    acts = [
        lambda **said: hourly(app, **said),
        lambda **said: app.schedules.update("hourly", priority=9, **said),
        lambda **said: app.schedules.disable("hourly", **said),
        lambda **said: app.schedules.enable("hourly", **said),
        lambda **said: app.schedules.run("hourly", **said),
        lambda **said: app.schedules.delete("hourly", **said),
    ]
    started = clock.now()
    for place, act in enumerate(acts):
        act(actor=f"ada{place}", reason=f"why {place}")
        clock.advance(seconds=1)
    lines = app.schedules.events("hourly")
    assert [line.kind for line in lines] == [
        EventKind.CREATED, EventKind.CHANGED, EventKind.DISABLED, EventKind.ENABLED, EventKind.RUN_REQUESTED,
        EventKind.DELETED,
    ]  # fmt: skip
    assert [line.actor for line in lines] == [f"ada{place}" for place in range(6)]
    assert [line.note for line in lines] == [f"schedule hourly: why {place}" for place in range(6)]
    assert [line.at for line in lines] == [started + timedelta(seconds=place) for place in range(6)]
    assert {line.tenant for line in lines} == {"default"}
    assert [line.revision for line in lines] == sorted({line.revision for line in lines})


def test_who_acts_has_a_name_and_says_what_can_be_stored(app: Treadle, greet: Task) -> None:
    hourly(app)
    before = traces(app)
    for act in (app.schedules.enable, app.schedules.disable, app.schedules.delete, app.schedules.run):
        with pytest.raises(InvalidJob, match="actor"):
            act("hourly", actor="")
    with pytest.raises(InvalidJob, match="actor"):
        app.schedules.update("hourly", priority=1, actor="\n")
    with pytest.raises(InvalidJob, match="actor"):
        hourly(app, "other", actor=" ")
    assert traces(app) == before
    app.schedules.disable("hourly", reason="\0" + "x" * 9000)
    assert app.schedules.events("hourly")[-1].note.startswith("schedule hourly: \N{REPLACEMENT CHARACTER}xxx")


# --------------------------------------------------------------------------------------------- bad input

BAD: list[tuple[str, object, str]] = [
    ("cron", "61 * * * *", "minute"), ("cron", "* * * * * *", "5: minute hour"), ("cron", "0 0 31 2 *", "never comes"),
    ("cron", "@fortnightly", "nickname"), ("cron", "", "0 fields"), ("cron", 5, "cron"),
    ("every", "0s", "too short"), ("every", "soon", "not a valid duration"), ("every", -1, "out of range"),
    ("every", True, "not a valid duration"), ("every", math.inf, "out of range"),
    ("tz", "Europe/Berlim", "did you mean 'Europe/Berlin'"), ("tz", "", "not a known time zone"),
    ("tz", 7, "not a known time zone"),
    ("enabled", "yes", "true or false"), ("enabled", 1, "true or false"),
    ("queue", "", "queue"), ("queue", "x" * 201, "queue"), ("queue", 7, "queue"), ("queue", "*", "queue"),
    ("lane", "\t", "lane"), ("lane", 0, "lane"), ("priority", "high", "priority"), ("priority", 2**31, "priority"),
    ("retry", 3, "retry"), ("retry", a_policy(max_attempts=0), "max_attempts"), ("retry", a_policy(base=-1), "base"),
    ("max_attempts", 0, "max_attempts"), ("max_attempts", "3", "max_attempts"),
    ("timeout", 0, "timeout"), ("timeout", "soon", "timeout"), ("timeout", -1, "timeout"),
    ("misfire", "sometimes", "skip, once, all"), ("misfire", None, "skip, once, all"), ("misfire", [], "misfire"),
    ("misfire_limit", 0, "misfire_limit"), ("misfire_limit", 10_001, "misfire_limit"),
    ("misfire_limit", "5", "misfire_limit"), ("misfire_limit", 2.5, "misfire_limit"),
    ("misfire_age", "31d", "misfire_age"), ("misfire_age", -1, "misfire_age"),
    ("overlap", "never", "allow, skip, queue_one"), ("overlap", 1, "overlap"),
    ("jitter", -1, "jitter"), ("jitter", "x", "jitter"), ("jitter", math.nan, "jitter"),
    ("for_each", "", "for_each"), ("for_each", 3, "for_each"), ("for_each", "nobody", "for_each"),
    ("payload", {"name": 7}, "name"), ("payload", {"nom": "Ada"}, "nom"), ("payload", [1], "payload"),
    ("payload", {"name": "\0"}, "NUL"), ("payload", {"name": "\ud800"}, "name: holds half a character"),
    ("task", "greed", "greed"), ("task", "", "no task ''"), ("colour", "red", "colour: no such option"),
    ("next_at", "now", "no such option"), ("created_at", "now", "no such option"), ("revision", 7, "no such option"),
]  # fmt: skip


@any_store
@pytest.mark.covers("002-C4.a", "002-D3.e")
def test_what_no_schedule_can_be_is_refused_by_create_and_update_and_nothing_is_written(
    app: Treadle, greet: Task
) -> None:
    hourly(app, actor="ada")
    before = traces(app)
    wrong = []
    for field, value, words in BAD:
        said = {"cron": "@daily"} if field not in ("cron", "every") else {}
        given = {**said, field: value}
        task, payload = given.pop("task", "greet"), given.pop("payload", None)
        for act in (
            lambda given=given, task=task, payload=payload: app.schedules.create("bad", task, payload, **given),
            lambda field=field, value=value: app.schedules.update("hourly", **{field: value}),
        ):
            try:
                act()
                wrong.append(f"{field}={value!r} was taken")
            except TreadleError as error:
                if words not in str(error):
                    wrong.append(f"{field}={value!r}: {error}")
    assert not wrong
    assert traces(app) == before


@pytest.mark.parametrize("name", ["", "  ", "x" * 201, "a\nb", None, 7, "*"])
def test_a_schedule_needs_a_name(app: Treadle, greet: Task, name: object) -> None:
    with pytest.raises(InvalidJob, match="name"):
        app.schedules.create(name, "greet", cron="@daily")  # type: ignore[arg-type]
    assert app.schedules.list() == []


@pytest.mark.parametrize("tenant", ["", "  ", "x" * 201, "a\nb", "a\udc80b", "*"])
def test_the_tenant_of_a_schedule_is_a_name_however_it_is_made(app: Treadle, greet: Task, tenant: str) -> None:
    for make in (app.schedules.create, app.schedules.upsert, app.schedules.plan, app.declare):
        with pytest.raises(InvalidJob, match=r"^tenant: "):
            make("nightly", "greet", cron="@daily", tenant=tenant)
    assert app.schedules.list() == []
    assert app.declared() == []


@any_store
def test_a_schedule_of_a_tenant_that_no_store_takes_is_not_found(app: Treadle, greet: Task) -> None:
    hourly(app)
    schedules, half = app.schedules, "a\udc80b"
    for act in (schedules.get, schedules.enable, schedules.delete, schedules.run, schedules.preview):
        with pytest.raises(ScheduleNotFound, match="no schedule 'hourly'"):
            act("hourly", tenant=half)
    assert schedules.events("hourly", tenant=half) == schedules.events(half) == []
    assert schedules.list(tenant=half) == schedules.list(name=half) == []


@pytest.mark.parametrize("said", [{}, {"cron": "@daily", "every": "1d"}, {"cron": None}, {"tz": "UTC"}])
def test_a_schedule_needs_an_expression_or_an_interval_and_not_both(app: Treadle, greet: Task, said: dict) -> None:
    with pytest.raises(ConfigError, match=r"either cron='30 2 \* \* \*' or every='15m'"):
        app.schedules.create("n", "greet", **said)
    assert app.schedules.list() == []


def test_a_task_that_is_not_known_here_is_refused_unless_it_need_not_be_checked(app: Treadle, greet: Task) -> None:
    with pytest.raises(UnknownTask, match="did you mean 'greet'"):
        app.schedules.create("n", "greeet", cron="@daily")
    there = app.schedules.create("n", "elsewhere", {"any": "thing"}, cron="@daily", checked=False)
    assert (there.task, there.payload, there.task_version) == ("elsewhere", {"any": "thing"}, 1)
    assert app.schedules.update("n", task="there", payload={}, checked=False).task == "there"


def test_rows_that_are_not_registered_here_are_refused_unless_they_need_not_be_checked(
    app: Treadle, greet: Task
) -> None:
    app.register("mail:users", lambda: None)
    with pytest.raises(TreadleError, match="for_each"):
        hourly(app, for_each="users")
    assert hourly(app, for_each="users", checked=False).for_each == "users"


def test_a_schedule_that_is_not_there_is_said_to_be_missing_with_the_nearest_name(app: Treadle, greet: Task) -> None:
    hourly(app)
    hourly(app, "nightly", tenant="acme")
    schedules = app.schedules
    for act in (
        schedules.get, schedules.enable, schedules.disable, schedules.delete, schedules.run, schedules.preview,
        lambda name: schedules.update(name, priority=1),
    ):  # fmt: skip
        with pytest.raises(ScheduleNotFound, match=r"no schedule 'hourli'; did you mean 'hourly'\?"):
            act("hourli")
        with pytest.raises(ScheduleNotFound, match=r"no schedule 'nightly'; `treadle schedules list`"):
            act("nightly")  # of another tenant
    assert app.schedules.events("hourli") == []


@pytest.mark.parametrize("said", [{}, {"payload": None}, {"queue": None}])
def test_an_update_that_says_nothing_is_refused(app: Treadle, greet: Task, said: dict) -> None:
    hourly(app)
    before = traces(app)
    with pytest.raises(InvalidInput, match="nothing is to change; give one of task, payload"):
        app.schedules.update("hourly", **said)
    assert traces(app) == before


def test_where_tenants_are_required_a_schedule_names_one(make_app: Callable[..., Treadle]) -> None:
    app = make_app(tenant_required=True)
    register(app)
    with pytest.raises(InvalidJob, match="tenant"):
        hourly(app)
    app.declare("declared", "greet", cron="@daily")
    with pytest.raises(InvalidJob, match="tenant"):
        app.declared()
    assert app.schedules.list() == []
    assert hourly(app, tenant="acme").tenant == "acme"


# ----------------------------------------------------------------------------------------------- changing


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ({"payload": {"name": "Bob"}}, {"payload": {"name": "Bob"}}),
        ({"queue": "q", "lane": "l", "priority": 1}, {"queue": "q", "lane": "l", "priority": 1}),
        ({"retry": Retry(2, 9, None, 0)}, {"retry": Retry(2, 9, None, 0)}),
        ({"max_attempts": 9}, {"retry": Retry(9, 1, None, 0)}),
        ({"timeout": "1h"}, {"timeout": 3600.0}),
        ({"timeout": None}, {"timeout": None}),
        ({"misfire": "skip", "misfire_age": "1h"}, {"misfire": Misfire.SKIP, "misfire_age": 3600.0}),
        ({"overlap": "skip", "jitter": "1m"}, {"overlap": Overlap.SKIP, "jitter": 60.0}),
    ],
    ids=", ".join,
)  # fmt: skip
def test_an_update_changes_what_it_says_and_leaves_the_time_of_the_next_run(
    app: Treadle, greet: Task, clock: FakeClock, said: dict, kept: dict
) -> None:
    before = hourly(app, misfire_limit=3)
    clock.advance(minutes=1)
    after = app.schedules.update("hourly", **said)
    assert after == app.schedules.get("hourly")
    assert {name: getattr(after, name) for name in kept} == kept
    assert (after.next_at, after.created_at, after.updated_at) == (before.next_at, before.created_at, clock.now())
    same = {name for name in Schedule._fields if getattr(after, name) == getattr(before, name)}
    assert {"cron", "task", "name", "enabled", "last_at", "declared"} <= same


@any_store
@pytest.mark.covers("002-C4.b")
@pytest.mark.parametrize(
    ("said", "next_at"),
    [
        ({"cron": "30 2 * * *"}, "2026-01-02 02:30"),
        ({"cron": "0 14 * * *", "tz": "Europe/Berlin"}, "2026-01-01 13:00"),
        ({"tz": "Asia/Kathmandu"}, "2026-01-01 13:15"),
        ({"every": "15m"}, "2026-01-01 12:45"),
    ],
)
def test_another_expression_interval_or_zone_counts_the_next_run_from_now(
    app: Treadle, greet: Task, clock: FakeClock, said: dict, next_at: str
) -> None:
    hourly(app)
    clock.advance(minutes=31)
    after = app.schedules.update("hourly", **said)
    assert f"{after.next_at:%Y-%m-%d %H:%M}" == next_at
    assert (after.cron is None) is ("every" in said)


@any_store
def test_an_update_of_the_expression_never_comes_back_to_a_run_that_was_made(
    app: Treadle, greet: Task, clock: FakeClock
) -> None:
    hourly(app)
    clock.advance(hours=1)
    fire(app)
    clock.advance(minutes=-30)  # the clock of the machine was wrong
    after = app.schedules.update("hourly", cron="0,30 * * * *")
    assert after.next_at == clock.now() + HOUR
    clock.advance(minutes=30)
    fire(app)
    assert made(app) == ["01 13:00"]


def test_an_update_of_the_task_checks_the_payload_and_takes_the_new_tasks_version(app: Treadle, greet: Task) -> None:
    def count(number: int) -> None:
        pass

    app.register("count", count)
    hourly(app)
    before = traces(app)
    with pytest.raises(InvalidJob, match="number"):
        app.schedules.update("hourly", task="count")
    assert traces(app) == before
    after = app.schedules.update("hourly", task="count", payload={"number": 7})
    assert (after.task, after.task_version, after.payload) == ("count", 1, {"number": 7})
    app.schedules.run("hourly")
    assert [job.task for job in run_until_idle(app)] == ["count"]


@any_store
@pytest.mark.covers("002-C6.a", "002-C6.b", "002-C6.c")
@pytest.mark.parametrize(
    "enable",
    [
        lambda app: app.schedules.enable("hourly"),
        lambda app: app.schedules.update("hourly", enabled=True),
        lambda app: app.schedules.update("hourly", enabled=True, priority=1),
    ],
    ids=["enable", "update", "update with more"],
)
@pytest.mark.parametrize("misfire", Misfire)
def test_a_disabled_schedule_does_not_fire_and_an_enabled_one_begins_from_now(
    app: Treadle, greet: Task, clock: FakeClock, misfire: Misfire, enable: Callable[[Treadle], Schedule]
) -> None:
    hourly(app, misfire=misfire)
    clock.advance(hours=1)
    fire(app)
    last = app.schedules.disable("hourly")
    clock.advance(days=1, minutes=30)
    fire(app)
    assert made(app) == ["01 13:00"]
    again = enable(app)
    assert again.next_at == clock.now() + timedelta(minutes=30)
    assert (again.last_at, again.last_job) == (last.last_at, last.last_job)
    fire(app)
    assert made(app) == ["01 13:00"]
    clock.advance(minutes=30)
    fire(app)
    assert made(app) == ["01 13:00", "02 14:00"]


def test_enabling_what_is_enabled_and_disabling_what_is_disabled_moves_nothing(
    app: Treadle, greet: Task, clock: FakeClock
) -> None:
    next_at = hourly(app).next_at
    clock.advance(hours=2)
    assert app.schedules.enable("hourly").next_at == next_at  # a run that is due stays due
    assert app.schedules.disable("hourly").next_at == app.schedules.disable("hourly").next_at == next_at


@any_store
def test_a_deleted_schedule_makes_no_more_jobs_and_those_it_made_stay(
    app: Treadle, greet: Task, clock: FakeClock
) -> None:
    hourly(app)
    clock.advance(hours=1)
    fire(app)
    app.schedules.delete("hourly")
    clock.advance(hours=1)
    fire(app)
    assert made(app) == ["01 13:00"]
    assert app.schedules.list() == []
    with pytest.raises(ScheduleNotFound):
        app.schedules.delete("hourly")


@any_store
def test_a_schedule_of_a_name_that_was_there_before_goes_on_with_its_trail_and_repeats_no_run(
    app: Treadle, greet: Task, clock: FakeClock
) -> None:
    hourly(app, actor="ada")
    clock.advance(hours=1)
    fire(app)
    app.schedules.delete("hourly", actor="bob")
    clock.advance(minutes=-30)  # set back, so that the run at one is to come again
    hourly(app, actor="eve")
    clock.advance(minutes=30)
    fire(app)
    assert made(app) == ["01 13:00"]
    lines = app.schedules.events("hourly")
    assert [line.actor for line in lines] == ["ada", "bob", "eve"]
    assert [line.revision for line in lines] == sorted({line.revision for line in lines})


# ------------------------------------------------------------------------------------------- looking ahead


@any_store
@pytest.mark.covers("002-C4.b")
def test_a_preview_shows_the_next_runs_with_their_offsets_and_says_where_clocks_are_changed(
    app: Treadle, greet: Task
) -> None:
    hourly(app, cron="30 2 * * *", tz="Europe/Berlin")
    spring = app.schedules.preview("hourly", 2, after=datetime(2026, 3, 28, 12, tzinfo=UTC))
    assert [(tick.local.isoformat(), tick.note) for tick in spring] == [
        ("2026-03-29T03:00:00+02:00", MOVED), ("2026-03-30T02:30:00+02:00", ""),
    ]  # fmt: skip
    [autumn] = app.schedules.preview("hourly", 1, after=datetime(2026, 10, 24, 12, tzinfo=UTC))
    assert (autumn.local.isoformat(), autumn.note) == ("2026-10-25T02:30:00+02:00", ONCE)
    assert len(app.schedules.preview("hourly")) == 5
    assert app.schedules.preview("hourly")[0].at == app.schedules.get("hourly").next_at


@pytest.mark.parametrize("n", [0, -1, 1001])
def test_a_preview_shows_from_one_to_a_thousand_runs(app: Treadle, greet: Task, n: int) -> None:
    hourly(app)
    with pytest.raises(InvalidInput, match="from 1 to 1,000"):
        app.schedules.preview("hourly", n)
    with pytest.raises(ConfigError, match="no time zone"):
        app.schedules.preview("hourly", after=datetime(2026, 1, 1))  # noqa: DTZ001 - that is the point


# ------------------------------------------------------------------------------------------ running one now


@any_store
@pytest.mark.covers("002-M1.c")
def test_a_run_between_the_ticks_is_a_job_of_the_schedule_and_moves_no_tick(
    app: Treadle, greet: Task, clock: FakeClock
) -> None:
    before = hourly(app, payload={"name": "Bob"}, jitter="1h")
    clock.advance(minutes=10)
    one, two = app.schedules.run("hourly"), app.schedules.run("hourly")
    assert one.id != two.id
    assert (one.task, one.payload, one.schedule) == ("greet", {"name": "Bob"}, "hourly")
    assert (one.due_at, one.queue, one.retry) == (clock.now(), "mail", greet.options.retry)
    after = app.schedules.get("hourly")
    assert (after.next_at, after.last_at) == (before.next_at, before.last_at)
    assert [job.result for job in run_until_idle(app)] == ["hello Bob"] * 2


def test_a_disabled_schedule_can_be_run_by_hand(app: Treadle, greet: Task) -> None:
    hourly(app, enabled=False)
    assert app.schedules.run("hourly").state is State.PENDING
    assert not app.schedules.get("hourly").enabled


@any_store
@pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.QUEUE_ONE])
def test_a_run_by_hand_heeds_the_overlap_and_names_the_job_in_its_way(
    app: Treadle, greet: Task, overlap: Overlap
) -> None:
    hourly(app, overlap=overlap)
    first = app.schedules.run("hourly")
    with pytest.raises(KeyTaken) as taken:
        app.schedules.run("hourly")
    assert taken.value.holder == first.id
    run_until_idle(app)
    assert app.schedules.run("hourly").id != first.id


# ------------------------------------------------------------------------------------------------- at once


@any_store
def test_of_many_that_create_one_name_one_does(make_app: Callable[..., Treadle]) -> None:
    apps = [make_app() for _ in range(5)]
    for app in apps:
        register(app)
        app.schedules.list()

    def create(place: int) -> str:
        try:
            return hourly(apps[place], actor=f"a{place}").name
        except NotPossible:
            return "no"

    assert sorted(race(5, create)) == ["hourly", "no", "no", "no", "no"]
    assert len(apps[0].schedules.events("hourly")) == 1


@any_store
def test_updates_at_once_all_count_and_each_leaves_its_line(make_app: Callable[..., Treadle]) -> None:
    said = [{"priority": 7}, {"queue": "q"}, {"misfire": "all"}, {"jitter": 5}, {"cron": "@daily"}]
    apps = [make_app() for _ in said]
    register(apps[0])
    hourly(apps[0])
    for app in apps:
        app.schedules.list()
    race(len(said), lambda place: apps[place].schedules.update("hourly", actor=f"a{place}", **said[place]))
    found = apps[0].schedules.get("hourly")
    assert (found.priority, found.queue, found.misfire, found.jitter) == (7, "q", Misfire.ALL, 5.0)
    assert found.cron == "@daily"
    assert {line.actor for line in apps[0].schedules.events("hourly")} == {"api", *(f"a{place}" for place in range(5))}


@any_store
def test_an_update_while_it_fires_loses_neither(make_app: Callable[..., Treadle], clock: FakeClock) -> None:
    apps = [make_app() for _ in range(4)]
    register(apps[0])
    hourly(apps[0])
    for hour in range(1, 4):
        clock.advance(hours=1)

        def act(place: int, hour: int = hour) -> object:
            return fire(apps[place]) if place < 3 else apps[3].schedules.update("hourly", priority=hour)

        race(4, act)
        fire(apps[0])
        assert apps[0].schedules.get("hourly").priority == hour
    assert made(apps[0]) == ["01 13:00", "01 14:00", "01 15:00"]
