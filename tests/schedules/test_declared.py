"""Schedules that code declares: brought into the store at a start, without undoing what an operator did."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.making import race
from tests.support.marks import any_store
from tests.support.scheduling import fire, made, register
from treadle import (
    ConfigError,
    Task,
    Treadle,
)
from treadle.errors import TreadleError
from treadle.model import EventKind
from treadle.model.records import Misfire, Overlap
from treadle.schedules.declared import reconcile
from treadle.schedules.firing import Scheduler
from treadle.testing import FakeClock

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.fixture
def greet(app: Treadle) -> Task:
    return register(app)


def declaring(app: Treadle, **said: object) -> Treadle:
    """An app whose code declares the schedule `report`."""

    def report(month: str = "January") -> None:
        pass

    app.task(name="report", **{"cron": "0 6 * * *", "tz": "Europe/Berlin", **said})(report)
    return app


def restarted(app: Treadle, name: str = "w1") -> list[str]:
    """What a start of a worker does about what its code declares; the names it touched."""
    return [wanted.name for wanted in app.declared() if reconcile(app.engine, wanted, actor=name)]


@any_store
def test_what_code_declares_is_made_when_a_worker_starts_and_then_left_alone(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    app = declaring(make_app(), queue="slow", payload={"month": "May"}, misfire="all", overlap="skip", jitter="1m")
    assert app.schedules.list() == []  # not by importing it
    assert restarted(app) == ["report"]
    schedule = app.schedules.get("report")
    assert (schedule.task, schedule.cron, schedule.timezone) == ("report", "0 6 * * *", "Europe/Berlin")
    assert (schedule.queue, schedule.payload, schedule.misfire) == ("slow", {"month": "May"}, Misfire.ALL)
    assert (schedule.overlap, schedule.jitter, schedule.created_at) == (Overlap.SKIP, 60.0, clock.now())
    assert schedule.next_at == datetime(2026, 1, 2, 5, tzinfo=UTC)
    [line] = app.schedules.events("report")
    assert (line.kind, line.actor, line.note) == (EventKind.CREATED, "w1", "schedule report: declared in code")
    clock.advance(hours=1)
    assert restarted(app) == []
    assert app.schedules.get("report") == schedule


@any_store
def test_a_scheduler_brings_what_is_declared_into_the_store_and_fires_it(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    app = declaring(make_app(), cron=None, every="1h")
    Scheduler(app.engine, "w1", app.declared()).run_due()
    clock.advance(hours=1)
    Scheduler(app.engine, "w1", app.declared()).run_due()
    assert made(app) == ["01 13:00"]


@any_store
def test_what_an_operator_disabled_stays_so_when_the_code_restarts_and_when_it_changes(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    app = declaring(make_app())
    restarted(app)
    app.schedules.disable("report", actor="ada")
    assert restarted(app) == []
    assert restarted(declaring(make_app(), cron="0 7 * * *")) == ["report"]
    schedule = app.schedules.get("report")
    assert (schedule.enabled, schedule.cron) == (False, "0 7 * * *")
    clock.advance(days=3)
    fire(app)
    assert made(app) == []


def test_what_an_operator_edited_stays_until_the_code_says_something_new(make_app: Callable[..., Treadle]) -> None:
    app = declaring(make_app())
    restarted(app)
    app.schedules.update("report", cron="0 8 * * *", payload={"month": "June"}, actor="ada")
    assert restarted(app) == []
    assert app.schedules.get("report").cron == "0 8 * * *"
    assert restarted(declaring(make_app(), priority=5)) == ["report"]
    schedule = app.schedules.get("report")
    assert (schedule.cron, schedule.priority, schedule.payload) == ("0 6 * * *", 5, {})
    assert [line.kind for line in app.schedules.events("report")] == [
        EventKind.CREATED,
        EventKind.CHANGED,
        EventKind.CHANGED,
    ]


def test_code_that_says_another_time_counts_the_next_run_from_now_and_keeps_what_was(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    app = declaring(make_app())
    restarted(app)
    clock.advance(days=1)
    fire(app)
    last = app.schedules.get("report")
    clock.advance(days=2)
    new = declaring(make_app(), cron="0 14 * * *")
    restarted(new)
    after = new.schedules.get("report")
    assert after.next_at == clock.now() + HOUR
    assert (after.last_at, after.last_job, after.created_at) == (last.last_at, last.last_job, last.created_at)
    fire(app)
    assert len(made(app)) == 1


def test_code_that_says_another_payload_leaves_the_time_of_the_next_run(make_app: Callable[..., Treadle]) -> None:
    app = declaring(make_app())
    restarted(app)
    next_at = app.schedules.get("report").next_at
    restarted(declaring(make_app(), payload={"month": "May"}))
    after = app.schedules.get("report")
    assert (after.next_at, after.payload) == (next_at, {"month": "May"})


def test_two_apps_with_different_code_take_turns_and_neither_doubles_it(
    make_app: Callable[..., Treadle], clock: FakeClock
) -> None:
    old, new = declaring(make_app()), declaring(make_app(), cron="0 7 * * *")
    for app, cron in ((old, "0 6 * * *"), (new, "0 7 * * *"), (old, "0 6 * * *")):
        assert restarted(app) == ["report"]
        assert [schedule.cron for schedule in app.schedules.list()] == [cron]
    clock.advance(days=1)
    fire(old)
    fire(new)
    assert len(made(old)) == 1


@any_store
def test_many_workers_that_start_at_once_make_it_once(make_app: Callable[..., Treadle]) -> None:
    apps = [declaring(make_app()) for _ in range(5)]
    for app in apps:
        app.schedules.list()
    assert sorted(race(5, lambda place: restarted(apps[place], f"w{place}"))) == [[], [], [], [], ["report"]]
    assert len(apps[0].schedules.events("report")) == 1


@any_store
def test_a_tick_between_the_look_and_the_write_does_not_lose_what_new_code_says(
    make_app: Callable[..., Treadle], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = declaring(make_app())
    restarted(app)
    clock.advance(days=1)
    new = declaring(make_app(), priority=5)
    records = new.engine.records

    def slow(*arguments: object, **named: object) -> list:
        monkeypatch.undo()
        found = records(*arguments, **named)
        fire(app)
        return found

    monkeypatch.setattr(new.engine, "records", slow)
    assert restarted(new) == ["report"]
    assert app.schedules.get("report").priority == 5
    assert len(made(app)) == 1


def test_one_that_was_deleted_comes_back_while_code_declares_it(make_app: Callable[..., Treadle]) -> None:
    app = declaring(make_app())
    restarted(app)
    app.schedules.delete("report")
    assert restarted(app) == ["report"]
    assert app.schedules.get("report").enabled


def test_code_may_declare_for_a_tenant_several_of_a_task_and_one_that_begins_disabled(
    app: Treadle, greet: Task
) -> None:
    app.declare("morning", greet, {"name": "Ada"}, cron="0 6 * * *", tenant="acme")
    app.declare("evening", "greet", cron="0 18 * * *", tenant="acme")
    app.declare("morning", greet, cron="0 6 * * *", enabled=False)
    assert restarted(app) == ["morning", "evening", "morning"]
    assert [(one.tenant, one.name, one.enabled) for one in app.schedules.list()] == [
        ("acme", "evening", True), ("acme", "morning", True), ("default", "morning", False),
    ]  # fmt: skip
    assert restarted(app) == []


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"cron": "61 * * * *"}, "minute"), ({"every": "0s"}, "too short"), ({"tz": "UTC"}, "either cron"),
        ({"cron": "@daily", "every": "1h"}, "either cron"), ({"cron": "@daily", "tz": "Mars"}, "time zone"),
        ({"cron": "@daily", "misfire": "maybe"}, "misfire"), ({"cron": "@daily", "overlap": "maybe"}, "overlap"),
        ({"cron": "@daily", "jitter": -1}, "jitter"), ({"cron": "@daily", "misfire_limit": 0}, "misfire_limit"),
        ({"cron": "@daily", "colour": "red"}, "colour"), ({"for_each": lambda: []}, "either cron"),
    ],
)  # fmt: skip
def test_a_bad_declaration_is_an_error_where_it_is_written(app: Treadle, said: dict, words: str) -> None:
    with pytest.raises(TreadleError, match=words):
        app.task(name="t", **said)(lambda: None)
    assert app.declared() == []


def test_a_declaration_whose_payload_does_not_fit_is_an_error_when_a_worker_is_made(app: Treadle, greet: Task) -> None:
    app.declare("n", "greet", {"name": 7}, cron="@daily")
    with pytest.raises(ConfigError, match=r"schedule 'n': .*name"):
        app.worker()


def test_a_declaration_of_a_task_that_is_nowhere_is_an_error_when_a_worker_is_made(app: Treadle) -> None:
    app.declare("n", "greet", cron="@daily")
    with pytest.raises(ConfigError, match="schedule 'n': no task 'greet'"):
        app.worker()


def test_a_task_whose_declaration_is_bad_is_not_there_and_may_be_mended(app: Treadle) -> None:
    with pytest.raises(ConfigError, match="minute"):
        declaring(app, cron="61 * * * *")
    assert app.tasks == {}
    assert restarted(declaring(app)) == ["report"]


def test_a_name_is_declared_once(app: Treadle, greet: Task) -> None:
    app.declare("n", "greet", cron="@daily")
    with pytest.raises(ConfigError, match="declared twice"):
        app.declare("n", "greet", cron="@hourly")
    app.declare("n", "greet", cron="@daily", tenant="acme")
