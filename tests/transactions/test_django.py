"""What is Django's own: aliases, atomic blocks, time zones, its cursors and its errors."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import Error, connection, connections, transaction
from django.test.utils import override_settings

from tests.transactions.libraries import Shop, django_at
from treadle import ConfigError, EngineError, EngineUnavailable, State, Task, Treadle

ON_POSTGRES = pytest.mark.parametrize("engine_kind", ["postgres"])
ON_SQLITE = pytest.mark.parametrize("engine_kind", ["sqlite"])


@pytest.fixture(params=["postgres", "sqlite"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(autouse=True)
def _django(shop: Shop) -> Iterator[None]:
    django_at(shop)
    yield
    connections["default"].close()
    del connections["default"]


def add(shop: Shop, name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"insert into {shop.people} values (%s)", [name])


def users(app: Treadle) -> list[str]:
    return sorted(job.payload["user"] for job in app.find().jobs)


@pytest.mark.parametrize("way", ["alias", "connection", "connections"])
def test_a_database_outside_an_atomic_block_is_refused(app: Treadle, welcome: Task, way: str) -> None:
    tx = {"alias": "default", "connection": connection, "connections": connections["default"]}[way]
    with pytest.raises(ConfigError, match=r"transaction\.atomic\(using='default'\)"):
        welcome.using(tx=tx).enqueue("Ada")
    assert set(app.count().values()) == {0}
    with transaction.atomic():
        welcome.using(tx=tx).enqueue("Ada")
    assert users(app) == ["Ada"]


def test_an_unknown_alias_is_refused_with_those_that_are_known(welcome: Task) -> None:
    with pytest.raises(ConfigError, match=r"'replica'.*'default'"):
        welcome.using(tx="replica").enqueue("Ada")


def test_nested_blocks_take_their_jobs_along_and_go_on_working(shop: Shop, app: Treadle, welcome: Task) -> None:
    with transaction.atomic():
        welcome.using(tx="default").enqueue("outer")
        with pytest.raises(EngineError, match="poison"), transaction.atomic():
            welcome.using(tx="default").enqueue("undone")
            welcome.using(tx="default").enqueue("poison")
        with transaction.atomic():
            with pytest.raises(EngineError, match="poison"):
                welcome.using(tx="default").enqueue("poison")
            welcome.using(tx="default").enqueue("inner")
            add(shop, "inner")
        assert not connection.needs_rollback
    assert (shop.names, users(app)) == (["inner"], ["inner", "outer"])


def test_a_block_that_must_roll_back_is_told_so(shop: Shop, app: Treadle, welcome: Task) -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(EngineError, match="'atomic' block"):
            welcome.using(tx="default").enqueue("Ada")
    assert set(app.count().values()) == {0}


@ON_POSTGRES
def test_a_block_that_has_failed_is_told_so(welcome: Task) -> None:
    with transaction.atomic():
        with pytest.raises(Error), connection.cursor() as cursor:
            cursor.execute("select * from nowhere")
        with pytest.raises(EngineError, match="failed already"):
            welcome.using(tx="default").enqueue("Ada")
        transaction.set_rollback(True)


def test_a_database_without_autocommit_is_in_a_transaction(shop: Shop, app: Treadle, welcome: Task) -> None:
    transaction.set_autocommit(False)
    welcome.using(tx="default").enqueue("nobody")
    transaction.rollback()
    welcome.using(tx="default").enqueue("Ada")
    assert set(app.count().values()) == {0}
    transaction.commit()
    assert users(app) == ["Ada"]


@ON_POSTGRES
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
@pytest.mark.parametrize("aware", [True, False])
def test_times_are_utc_whatever_django_makes_of_them(app: Treadle, welcome: Task, aware: bool, zone: str) -> None:
    first = welcome.using(key="k", run_after="1h").enqueue("Ada")
    with override_settings(USE_TZ=aware, TIME_ZONE=zone):
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("set local time zone 'Australia/Eucla'")
            assert welcome.using(tx="default", key="k").enqueue("Bob") == first
            second = welcome.using(tx="default").enqueue("Eve")
        connection.close()
    assert app.get(second.id) == second
    assert str(second.created_at.tzinfo) == "UTC"


@ON_POSTGRES
def test_parameters_bound_by_the_server_are_as_good(shop: Shop, app: Treadle, welcome: Task) -> None:
    connections.settings["default"]["OPTIONS"] = {"server_side_binding": True}
    with transaction.atomic():
        welcome.using(tx="default").enqueue("it's 100 %s \\ sure")
    assert users(app) == ["it's 100 %s \\ sure"]


def test_djangos_own_log_and_wrappers_see_our_statements(shop: Shop, welcome: Task) -> None:
    seen: list[str] = []

    def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(sql)
        return execute(sql, params, many, context)

    with transaction.atomic(), connection.execute_wrapper(watch), override_settings(DEBUG=True):
        welcome.using(tx="default").enqueue("Ada")
    assert any(shop.asked_for_jobs(sql) for sql in seen)
    assert any(shop.asked_for_jobs(query["sql"]) for query in connection.queries)


def test_async_code_is_told_to_go_where_its_transaction_is(app: Treadle, welcome: Task) -> None:
    async def scene() -> None:
        with pytest.raises(ConfigError, match="sync_to_async"):
            welcome.using(tx="default").enqueue("Ada")

    asyncio.run(scene())
    assert set(app.count().values()) == {0}


@ON_POSTGRES
def test_a_serialization_failure_says_to_repeat_the_whole_transaction(shop: Shop, welcome: Task) -> None:
    with pytest.raises(EngineUnavailable, match="roll back and repeat your transaction"), transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("set transaction isolation level repeatable read")
        add(shop, "Ada")
        welcome.using(key="k").enqueue("somebody else's")
        welcome.using(tx="default", key="k").enqueue("Ada")
    assert shop.names == []


@ON_SQLITE
def test_a_transaction_begun_as_a_read_is_told_to_begin_immediate(shop: Shop, app: Treadle, welcome: Task) -> None:
    connections.settings["default"]["OPTIONS"] = {"timeout": 0.1}
    with pytest.raises(EngineUnavailable, match="BEGIN IMMEDIATE"), transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("select count(*) from people")
            assert cursor.fetchall() == [(0,)]
        welcome.enqueue("somebody else's")
        welcome.using(tx="default").enqueue("Ada")
    assert app.count()[State.PENDING] == 1
