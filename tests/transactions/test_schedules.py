"""Schedules in the caller's own transaction, by every library: a customer and its schedule commit together or not."""

import asyncio
import sqlite3
from contextlib import closing

import psycopg
import pytest

from tests.transactions.libraries import EVERY_TYPE, Library, Shop
from treadle import ConfigError, NotPossible, Task, Treadle
from treadle.errors import ScheduleNotFound
from treadle.model import EventKind


class Undone(Exception):
    """Makes a transaction roll back."""


every_type = pytest.mark.parametrize("library", EVERY_TYPE, indirect=True)


@every_type
def test_a_commit_leaves_the_customer_and_its_schedule(
    library: Library, shop: Shop, app: Treadle, welcome: Task
) -> None:
    async def scene() -> None:
        async with library.transaction(shop) as caller:
            await caller.add("Ada")
            made = await caller.schedule(
                "create", app, "Ada's", welcome, {"user": "Zoë ☃"}, cron="0 9 * * MON#2", tz="Europe/Berlin"
            )
            assert (shop.names, app.schedules.list()) == ([], [])  # nobody sees either yet
        assert app.schedules.get("Ada's") == made

    library.play(scene())
    schedule = app.schedules.get("Ada's")
    assert (shop.names, schedule.payload, schedule.cron) == (["Ada"], {"user": "Zoë ☃"}, "0 9 * * MON#2")
    assert [event.kind for event in app.schedules.events("Ada's")] == [EventKind.CREATED]
    assert app.schedules.run("Ada's").payload == {"user": "Zoë ☃"}


@every_type
def test_a_rollback_leaves_every_schedule_as_it_was(library: Library, shop: Shop, app: Treadle, welcome: Task) -> None:
    async def scene() -> None:
        with pytest.raises(Undone):
            async with library.transaction(shop) as caller:
                await caller.add("Ada")
                await caller.schedule("create", app, "new", welcome, {"user": "Ada"}, every="1h")
                await caller.schedule("update", app, "old", every="2h")
                await caller.schedule("delete", app, "older")
                raise Undone

    before = [app.schedules.create(name, welcome, {"user": name}, every="1h") for name in ("old", "older")]
    library.play(scene())
    assert (shop.names, app.schedules.list()) == ([], before)
    assert [len(app.schedules.events(name)) for name in ("new", "old", "older")] == [0, 1, 1]


@every_type
def test_one_transaction_sees_what_it_has_done_to_a_schedule(
    library: Library, shop: Shop, app: Treadle, welcome: Task
) -> None:
    async def scene() -> None:
        async with library.transaction(shop) as caller:
            await caller.schedule("create", app, "s", welcome, {"user": "Ada"}, every="1h", reason="signed up")
            await caller.schedule("update", app, "s", every="2h", actor="bob")
            await caller.schedule("disable", app, "s")
            same = await caller.schedule("upsert", app, "s", welcome, {"user": "Ada"}, every="2h")
            assert (same.enabled, same.revision) == (False, 2)  # nothing to do: not written, and not enabled
            await caller.schedule("delete", app, "s")
            await caller.schedule("create", app, "s", welcome, {"user": "Bob"}, every="3h")

    library.play(scene())
    schedule = app.schedules.get("s")
    assert (schedule.payload, schedule.every, schedule.enabled) == ({"user": "Bob"}, 10_800.0, True)
    events = app.schedules.events("s")
    assert [(event.revision, event.kind.value) for event in events] == [
        (0, "created"), (1, "changed"), (2, "disabled"), (3, "deleted"), (4, "created"),
    ]  # fmt: skip
    assert (events[0].note, events[1].actor) == ("schedule s: signed up", "bob")


@every_type
def test_a_refusal_leaves_the_transaction_usable(library: Library, shop: Shop, app: Treadle, welcome: Task) -> None:
    async def scene() -> None:
        async with library.transaction(shop) as caller:
            await caller.add("before")
            with pytest.raises(NotPossible, match="there is a schedule 'taken' already"):
                await caller.schedule("create", app, "taken", welcome, {"user": "Ada"}, every="1h")
            with pytest.raises(ScheduleNotFound, match="there is no schedule 'nobody'"):
                await caller.schedule("update", app, "nobody", every="1h")
            with pytest.raises(ConfigError, match="minute: '61' is out of range"):
                await caller.schedule("create", app, "bad", welcome, {"user": "Ada"}, cron="61 * * * *")
            await caller.add("then")

    app.schedules.create("taken", welcome, {"user": "Ada"}, every="1h")
    library.play(scene())
    assert (shop.names, [schedule.name for schedule in app.schedules.list()]) == (["before", "then"], ["taken"])


@pytest.mark.parametrize("library", ["psycopg"], indirect=True)
def test_an_update_waits_for_one_that_is_under_way_and_decides_on_what_that_left(
    library: Library, shop: Shop, app: Treadle, welcome: Task
) -> None:
    app.schedules.create("s", welcome, {"user": "Ada"}, every="1h")
    with psycopg.connect(shop.server) as mine:
        app.schedules.update("s", every="2h", tx=mine)

        async def beside() -> None:
            other = await psycopg.AsyncConnection.connect(shop.server)
            async with other:
                await app.schedules.aupdate("s", jitter="5s", tx=other)

        async def both() -> None:
            second = asyncio.create_task(beside())
            waits = "select count(*) from pg_locks where not granted"
            while shop.look(waits) == [(0,)]:
                await asyncio.sleep(0.01)
            mine.commit()
            await second

        asyncio.run(both())
    schedule = app.schedules.get("s")
    assert (schedule.every, schedule.jitter, schedule.revision) == (7200.0, 5.0, 2)


@pytest.mark.parametrize("library", ["sqlite3"], indirect=True)
def test_a_connection_of_the_other_colour_is_refused_with_the_method_to_use(
    library: Library, shop: Shop, app: Treadle, welcome: Task
) -> None:
    with closing(sqlite3.connect(shop.path)) as mine, pytest.raises(ConfigError, match="not asynchronous") as refused:
        asyncio.run(app.schedules.acreate("s", welcome, {"user": "Ada"}, every="1h", tx=mine))
    assert "schedules.create" in str(refused.value)
    assert app.schedules.list() == []
