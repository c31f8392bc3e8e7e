"""A schedule per customer: made or brought up to date by one call that may be repeated, and listed by the page."""

import asyncio
import inspect
import time

import pytest

from tests.support.making import race
from tests.support.marks import any_store, dynamodb_only
from tests.support.scheduling import register
from treadle import ConfigError, InvalidInput, NotPossible, Task, Treadle
from treadle.engines.dynamodb.connection import ConditionFailed
from treadle.errors import ScheduleNotFound
from treadle.testing import FakeClock


@pytest.fixture
def greet(app: Treadle) -> Task:
    return register(app)


# -------------------------------------------------------------------------------------------------- upsert


@any_store
def test_an_upsert_makes_a_schedule_as_create_does(app: Treadle, greet: Task) -> None:
    made = app.schedules.upsert("a", greet, {"name": "Ada"}, cron="0 9 L * *", tz="Europe/Berlin", overlap="skip")
    same = app.schedules.create("b", greet, {"name": "Ada"}, cron="0 9 L * *", tz="Europe/Berlin", overlap="skip")
    assert made == app.schedules.get("a") == same.evolve(name="a", own_id=made.own_id)


@any_store
def test_an_upsert_that_changes_nothing_writes_nothing(app: Treadle, greet: Task, clock: FakeClock) -> None:
    @app.task(on_succeeded=greet)
    def first(name: str, times: float = 1.5) -> None: ...

    def upsert():
        return app.schedules.upsert(
            "s", first, {"name": "Ada", "times": 2}, every="1h", timeout="90s", jitter="1m", lane="x", actor="ann"
        )

    made = upsert()
    clock.advance(minutes=5)
    assert upsert() == made == app.schedules.get("s")
    assert [event.kind.value for event in app.schedules.events("s")] == ["created"]


@any_store
def test_an_upsert_brings_a_schedule_to_these_values_and_leaves_no_other(
    app: Treadle, greet: Task, clock: FakeClock
) -> None:
    app.schedules.create("s", greet, {"name": "Ada"}, every="1h", overlap="skip", queue="slow")
    clock.advance(minutes=5)
    changed = app.schedules.upsert("s", greet, {"name": "Bob"}, cron="30 * * * *", actor="ann", reason="moved")
    assert (changed.payload, changed.cron, changed.every) == ({"name": "Bob"}, "30 * * * *", None)
    assert (changed.overlap.value, changed.queue) == ("allow", "mail")  # as if it were new
    assert f"{changed.next_at:%H:%M}" == "12:30"
    assert changed == app.schedules.get("s")
    event = app.schedules.events("s")[-1]
    assert (event.kind.value, event.actor, event.note) == ("changed", "ann", "schedule s: moved")


@any_store
def test_what_an_operator_disabled_stays_disabled_unless_the_upsert_says_otherwise(app: Treadle, greet: Task) -> None:
    app.schedules.create("s", greet, {"name": "Ada"}, every="1h")
    app.schedules.disable("s", actor="ann")
    assert not app.schedules.upsert("s", greet, {"name": "Ada"}, every="1h").enabled
    assert not app.schedules.upsert("s", greet, {"name": "Bob"}, every="2h").enabled
    assert app.schedules.upsert("s", greet, {"name": "Bob"}, every="2h", enabled=True).enabled
    assert not app.schedules.upsert("s", greet, {"name": "Bob"}, every="2h", enabled=False).enabled


@any_store
def test_of_upserts_at_once_one_makes_it_and_no_value_is_lost(app: Treadle, greet: Task) -> None:
    race(6, lambda place: app.schedules.upsert("s", greet, {"name": f"n{place}"}, every="1h"))
    kinds = [event.kind.value for event in app.schedules.events("s")]
    assert kinds[0] == "created"
    assert set(kinds[1:]) <= {"changed"}
    assert app.schedules.get("s").revision == len(kinds) - 1


def test_an_upsert_of_what_cannot_be_is_refused_before_the_store_is_asked(app: Treadle, greet: Task) -> None:
    with pytest.raises(ConfigError, match="minute: '61' is out of range"):
        app.schedules.upsert("s", greet, {"name": "Ada"}, cron="61 * * * *")
    with pytest.raises(ConfigError, match="crn: no such option"):
        app.schedules.upsert("s", greet, {"name": "Ada"}, crn="* * * * *")  # type: ignore[call-arg]


# ------------------------------------------------------------------------------------------- lists and pages


def names(page):
    return [schedule.name for schedule in page]


@any_store
def test_a_list_takes_filters(app: Treadle, greet: Task) -> None:
    @app.task
    def other() -> None: ...

    app.schedules.create("acme:daily", greet, {"name": "Ada"}, every="1d")
    app.schedules.create("acme:hourly", other, every="1h", enabled=False)
    app.schedules.create("bolt:daily", greet, {"name": "Bob"}, every="1d", tenant="bolt")
    app.schedules.create("100%_x", other, every="1h")
    assert names(app.schedules.list(task=other)) == names(app.schedules.list(task="other")) == ["100%_x", "acme:hourly"]
    assert names(app.schedules.list(enabled=False)) == ["acme:hourly"]
    assert names(app.schedules.list(prefix="acme:")) == ["acme:daily", "acme:hourly"]
    assert names(app.schedules.list(prefix="100%_")) == ["100%_x"]
    assert names(app.schedules.list(prefix="1_")) == []
    assert names(app.schedules.list(prefix="ACME")) == []
    assert names(app.schedules.list(tenant="bolt", enabled=True)) == ["bolt:daily"]
    assert names(app.tenant("bolt").schedules.list(task=greet)) == ["bolt:daily"]
    assert names(app.schedules.list(declared=True)) == names(app.schedules.list(gone=True)) == []
    assert len(app.schedules.list(declared=False)) == len(app.schedules.list(gone=False)) == 4


@any_store
def test_pages_hold_every_schedule_once_in_order(app: Treadle, greet: Task) -> None:
    wanted = sorted([("default", f"s{n:02}") for n in range(12)] + [("é/b", "x y/%"), ("é/b", "ü"), ("a", "#1~%")])
    for tenant, name in wanted:
        app.schedules.create(name, greet, {"name": name}, every="1h", tenant=tenant)
    found, cursor = [], None
    while True:
        page = app.schedules.list(limit=4, cursor=cursor)
        found += [(schedule.tenant, schedule.name) for schedule in page]
        if (cursor := page.cursor) is None:
            break
        assert len(page) == 4
    assert found == wanted
    everything = app.schedules.list()
    assert ([(one.tenant, one.name) for one in everything], everything.cursor) == (wanted, None)
    assert app.schedules.list(limit=15).cursor is None  # the last page knows that it is


def test_a_bad_limit_or_cursor_is_refused(app: Treadle) -> None:
    for limit in (0, -1, True, "5"):
        with pytest.raises(InvalidInput, match=r"limit: .* must be a number from 1 on"):
            app.schedules.list(limit=limit)  # type: ignore[arg-type]
    for cursor in ("", "x", "a/b/c", "/b"):
        with pytest.raises(InvalidInput, match=r"cursor: .* is not a valid cursor: pass the cursor of the page before"):
            app.schedules.list(limit=5, cursor=cursor)


# ------------------------------------------------------------------------------------------- async code

FACES = [
    "alist", "aget", "acreate", "aupsert", "aupdate", "aenable", "adisable", "adelete", "apreview", "arun", "aevents",
]  # fmt: skip


@pytest.mark.parametrize("name", FACES)
def test_an_async_face_takes_what_its_method_takes(app: Treadle, name: str) -> None:
    face, method = getattr(app.schedules, name), getattr(app.schedules, name[1:])
    assert inspect.iscoroutinefunction(face)
    assert inspect.signature(face) == inspect.signature(method)
    assert face.__name__ == name


def test_a_day_of_a_schedule_in_async_code(app: Treadle, greet: Task) -> None:
    async def day() -> None:
        schedules = app.schedules
        made = await schedules.acreate("s", greet, {"name": "Ada"}, every="1h")
        assert await schedules.aget("s") == made
        assert (await schedules.aupsert("s", greet, {"name": "Ada"}, every="2h")).every == 7200
        assert (await schedules.aupdate("s", every="3h")).every == 10_800
        assert not (await schedules.adisable("s")).enabled
        assert (await schedules.aenable("s")).enabled
        assert (await schedules.arun("s")).schedule == "s"
        assert len(await schedules.apreview("s", 3)) == 3
        assert names(await schedules.alist(prefix="s")) == ["s"]
        await schedules.adelete("s")
        with pytest.raises(ScheduleNotFound):
            await schedules.aget("s")
        assert len(await schedules.aevents("s")) == 7

    asyncio.run(day())


# ------------------------------------------------------------------------------------- DynamoDB's list


@dynamodb_only
def test_a_schedule_joins_a_list_of_items_once(app: Treadle, greet: Task) -> None:
    app.schedules.create("old", greet, {"name": "Ada"}, every="1h")
    items: list = []
    app.schedules.create("new", greet, {"name": "Bob"}, every="1h", tx=items)
    app.schedules.update("old", every="2h", tx=items)
    with pytest.raises(NotPossible, match="this list changes schedule 'new' already"):
        app.schedules.update("new", every="2h", tx=items)
    assert names(app.schedules.list()) == ["old"]
    app.engine._records._client.call("TransactWriteItems", {"TransactItems": items})
    assert [(one.name, one.every) for one in app.schedules.list()] == [("new", 3600.0), ("old", 7200.0)]
    items = []
    app.schedules.delete("old", tx=items)
    app.schedules.disable("old")
    with pytest.raises(ConditionFailed):
        app.engine._records._client.call("TransactWriteItems", {"TransactItems": items})
    assert names(app.schedules.list()) == ["new", "old"]


# --------------------------------------------------------------------------------------- by the thousand


@any_store
def test_an_act_reads_no_other_schedule(app: Treadle, greet: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        app.schedules.create(f"s{number}", greet, {"name": "Ada"}, every="1h")
    seen = []
    real = app.engine.records

    def records(kind, **which):
        found = real(kind, **which)
        seen.append(len(found))
        return found

    monkeypatch.setattr(app.engine, "records", records)
    monkeypatch.setattr(app.engine, "find_schedules", lambda *_, **__: pytest.fail("a list was read"))
    schedules = app.schedules
    schedules.get("s3")
    schedules.create("new", greet, {"name": "Bob"}, every="1h")
    schedules.upsert("new", greet, {"name": "Bob"}, every="2h")
    schedules.update("s4", every="2h")
    schedules.disable("s5")
    schedules.enable("s5")
    schedules.run("s6")
    schedules.preview("s7")
    schedules.delete("s8")
    assert max(seen) == 1


@pytest.mark.slow
def test_an_act_costs_the_same_beside_many_schedules(app: Treadle, greet: Task) -> None:
    def seconds() -> float:
        spent = []
        for _ in range(15):
            began = time.perf_counter()
            app.schedules.get("s1")
            app.schedules.update("s1", jitter="1s")
            spent.append(time.perf_counter() - began)
        return sorted(spent)[3]

    app.schedules.create("s1", greet, {"name": "Ada"}, every="1h")
    alone = seconds()
    with app.engine.file.write() as connection:
        connection.execute(
            "with recursive n(i) as (select 2 union all select i + 1 from n where i < 100000) "
            "insert into treadle_schedules select 's' || i, task, created_at, tenant, payload, cron, every, timezone, "
            "enabled, queue, lane, priority, task_version, max_attempts, retry_base, retry_cap, retry_jitter, timeout, "
            "misfire, misfire_limit, misfire_age, overlap, jitter, for_each, on_end, next_at, last_at, last_job, "
            "declared, updated_at, revision, own_id || i from treadle_schedules, n where name = 's1'"
        )
    assert seconds() < 5 * alone + 0.01
