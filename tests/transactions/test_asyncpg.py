"""What is asyncpg's own: its transactions, codecs, record classes and errors."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from tests.transactions.libraries import Shop
from treadle import ConfigError, EngineError, EngineUnavailable, State, Task, Treadle


@pytest.fixture(params=["postgres"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    return request.param


@asynccontextmanager
async def connected(shop: Shop, **options: Any) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(shop.server, **options)
    try:
        yield connection
    finally:
        await connection.close()


def test_a_connection_outside_a_transaction_is_refused(shop: Shop, app: Treadle, welcome: Task) -> None:
    async def scene() -> None:
        async with connected(shop) as connection:
            with pytest.raises(ConfigError, match=r"not in a transaction.*conn\.transaction\(\)"):
                await welcome.using(tx=connection).aenqueue("Ada")

    asyncio.run(scene())
    assert set(app.count().values()) == {0}


def test_a_nested_transaction_takes_its_jobs_along(shop: Shop, app: Treadle, welcome: Task) -> None:
    async def scene() -> None:
        async with connected(shop) as connection, connection.transaction():
            await welcome.using(tx=connection).aenqueue("outer")
            with pytest.raises(EngineError, match="poison"):
                async with connection.transaction():
                    await welcome.using(tx=connection).aenqueue("inner")
                    await welcome.using(tx=connection).aenqueue("poison")

    asyncio.run(scene())
    assert [job.payload["user"] for job in app.find().jobs] == ["outer"]


def test_codecs_and_record_classes_are_the_callers_own_business(shop: Shop, app: Treadle, welcome: Task) -> None:
    class Mine(asyncpg.Record):
        def __iter__(self) -> Any:
            raise AssertionError("this is the caller's own")

    async def scene() -> None:
        async with connected(shop, record_class=Mine) as connection, connection.transaction():
            for name in ("json", "jsonb"):
                await connection.set_type_codec(name, schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
            await connection.set_type_codec("uuid", schema="pg_catalog", encoder=str, decoder=lambda text: text[::-1])
            await connection.execute("set time zone 'Asia/Kolkata'")
            assert await welcome.using(tx=connection, key="k").aenqueue("Bob") == first
            made.append(await welcome.using(tx=connection).aenqueue("Eve"))

    made: list[Any] = []
    first = welcome.using(key="k", run_after="1h").enqueue("Ada")
    asyncio.run(scene())
    assert app.get(made[0].id) == made[0]


def test_a_serialization_failure_says_to_repeat_the_whole_transaction(shop: Shop, welcome: Task) -> None:
    async def scene() -> None:
        async with connected(shop) as connection:
            with pytest.raises(EngineUnavailable, match="roll back and repeat your transaction") as failed:
                async with connection.transaction(isolation="repeatable_read"):
                    await connection.execute(f"insert into {shop.people} values ('Ada')")
                    await welcome.using(key="k").aenqueue("somebody else's")
                    await welcome.using(tx=connection, key="k").aenqueue("Ada")
            assert isinstance(failed.value.__cause__, asyncpg.SerializationError)

    asyncio.run(scene())
    assert shop.names == []


def test_a_connection_that_was_cut_is_reported_as_lost(shop: Shop, welcome: Task) -> None:
    async def scene() -> None:
        connection = await asyncpg.connect(shop.server)
        await connection.execute("begin")
        shop.look(f"select pg_terminate_backend({connection.get_server_pid()})")
        while not connection.is_closed():
            await asyncio.sleep(0.01)
        with pytest.raises(EngineUnavailable, match="lost"):
            await welcome.using(tx=connection).aenqueue("Ada")

    asyncio.run(scene())


def test_a_cancelled_enqueue_leaves_the_transaction_usable(shop: Shop, app: Treadle, welcome: Task) -> None:
    async def scene() -> None:
        async with connected(shop) as first, connected(shop) as second, first.transaction(), second.transaction():
            await welcome.using(tx=first, key="k").aenqueue("Ada")
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(welcome.using(tx=second, key="k").aenqueue("Bob"), 0.2)
            await second.execute(f"insert into {shop.people} values ('Bob')")

    asyncio.run(scene())
    assert (shop.names, app.count()[State.PENDING]) == (["Bob"], 1)


def test_a_failed_transaction_is_told_so(shop: Shop, welcome: Task) -> None:
    async def scene() -> None:
        async with connected(shop) as connection:
            await connection.execute("begin")
            with pytest.raises(asyncpg.UndefinedTableError):
                await connection.execute("select * from nowhere")
            with pytest.raises(EngineError, match="failed already"):
                await welcome.using(tx=connection).aenqueue("Ada")

    asyncio.run(scene())
