"""What is no transaction of the right kind is refused, and the message says what to pass or to call instead."""

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from sqlalchemy.orm import sessionmaker

from tests.transactions.libraries import EVERY_TYPE, Library, Shop, sqlalchemy_url
from treadle import ConfigError, Context, State, Task, Treadle


@pytest.mark.parametrize("library", EVERY_TYPE, indirect=True)
def test_a_call_of_the_other_colour_is_refused_and_the_right_one_named(
    library: Library, shop: Shop, app: Treadle, welcome: Task
) -> None:
    async def scene() -> None:
        async with library.transaction(shop) as caller:
            bound = welcome.using(tx=caller.tx)
            if library.asynchronous:
                with pytest.raises(ConfigError, match=r"is asynchronous.*await.*aenqueue"):
                    bound.enqueue("Ada")
                with pytest.raises(ConfigError, match="aenqueue_many"):
                    bound.enqueue_many([("Ada",)])
            else:
                in_async_code = r"not asynchronous.*write enqueue.*without `await`"
                for call in (bound.aenqueue("Ada"), bound.aenqueue_many([("Ada",)])):
                    with ThreadPoolExecutor(1) as loops, pytest.raises(ConfigError, match=in_async_code):
                        loops.submit(asyncio.run, call).result()
            await caller.add("Ada")

    library.play(scene())
    assert (shop.names, set(app.count().values())) == (["Ada"], {0})


@pytest.mark.parametrize("library", ["psycopg", "psycopg-async"], indirect=True)
def test_a_settlement_of_the_other_colour_is_refused_and_the_right_one_named(
    library: Library, shop: Shop, app: Treadle
) -> None:
    async def sell(ctx: Context) -> str:
        async with library.transaction(shop) as caller:
            if library.asynchronous:
                with pytest.raises(ConfigError, match=r"ctx\.asettle"):
                    ctx.settle(caller.tx)
            else:
                with pytest.raises(ConfigError, match=r"ctx\.settle"):
                    await ctx.asettle(caller.tx)
        return "refused"

    job = app.register("sell", library.handler(sell)).enqueue()
    app.run_worker(until_idle=True, poll=0.02)
    assert (app.get(job.id).state, app.get(job.id).result) == (State.SUCCEEDED, "refused")


@pytest.mark.server
@pytest.mark.parametrize("library", EVERY_TYPE, indirect=True)
def test_a_connection_to_another_kind_of_store_is_refused(
    library: Library, shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The connection is to the shop, the jobs of the app are elsewhere."""
    server = request.getfixturevalue("postgres_shop").url
    app = Treadle(server if shop.kind == "sqlite" else f"sqlite:///{tmp_path}/elsewhere.db")
    task = app.register("tick", lambda: None)

    async def scene() -> None:
        async with library.transaction(shop) as caller:
            mine, theirs = ("SQLite", "PostgreSQL") if shop.kind == "sqlite" else ("PostgreSQL", "SQLite")
            with pytest.raises(ConfigError, match=rf"leads to {mine}.*are in {theirs}"):
                await caller.enqueue(task)
            await caller.add("Ada")

    library.play(scene())
    assert shop.names == ["Ada"]
    app.close()


@pytest.mark.parametrize("library", ["psycopg"], indirect=True)
def test_what_is_no_connection_is_refused_with_what_to_pass(library: Library, shop: Shop, welcome: Task) -> None:
    engine = sqlalchemy.create_engine(sqlalchemy_url(shop))
    pool = psycopg_pool.ConnectionPool(shop.server, open=False)
    with psycopg.connect(shop.server) as connection, connection.cursor() as cursor:
        for tx in (engine, sessionmaker(engine), pool, cursor, connection.transaction(), object(), 7, shop.server):
            with pytest.raises(ConfigError, match=r"tx.*(not supported; pass a connection|no database of Django)"):
                welcome.using(tx=tx).enqueue("Ada")


@pytest.mark.parametrize("library", ["sqlite3"], indirect=True)
def test_no_library_is_loaded_that_the_caller_does_not_use(shop: Shop) -> None:
    code = f"""
import sys
from treadle import ConfigError, Treadle
libraries = {{"asyncpg", "django", "psycopg", "psycopg_pool", "sqlalchemy", "sqlite3"}}
assert not libraries & set(sys.modules), libraries & set(sys.modules)
app = Treadle({shop.url!r})
tick = app.register("tick", lambda: None)
for tx in (object(), "default"):
    try:
        tick.using(tx=tx).enqueue()
    except ConfigError:
        pass
import sqlite3
connection = sqlite3.connect({str(shop.path)!r})
tick.using(tx=connection).enqueue()
connection.commit()
connection.close()
app.close()
assert libraries & set(sys.modules) == {{"sqlite3"}}, libraries & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
