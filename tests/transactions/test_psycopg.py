"""What is psycopg's own: its transactions, row factories, adapters and errors; and what only a server can do."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import psycopg
import pytest
from psycopg.adapt import Loader
from psycopg.rows import dict_row, namedtuple_row, scalar_row

import treadle.app.enqueue
import treadle.worker.settle_in_transaction
from tests.support import provision
from tests.transactions.libraries import Library, Shop, played
from treadle import (
    ConfigError,
    Context,
    EngineError,
    EngineUnavailable,
    Job,
    SchemaError,
    State,
    Task,
    Treadle,
    Unique,
)  # fmt: skip
from treadle.testing import run_until_idle


@pytest.fixture(params=["postgres"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def connect(shop: Shop) -> Iterator[Callable[..., psycopg.Connection]]:
    """Opens connections of the caller's own, and closes them."""
    opened: list[psycopg.Connection] = []

    def open_connection(url: str = shop.server, **options: Any) -> psycopg.Connection:
        opened.append(psycopg.connect(url, **options))
        return opened[-1]

    yield open_connection
    for connection in opened:
        connection.close()


def add(connection: psycopg.Connection, shop: Shop, name: str) -> None:
    connection.execute(f"insert into {shop.people} values (%s)", [name])


# ---------------------------------------------------------------------------------------- transactions


@pytest.mark.covers("000-R14.b")
def test_a_plain_insert_of_the_callers_own_belongs_to_its_transaction(
    shop: Shop, app: Treadle, welcome: Task, connect: Callable[..., psycopg.Connection]
) -> None:
    connection = connect()
    insert = f"insert into {shop.named('jobs')} (task, payload) values ('welcome', %s)"
    connection.execute(insert, ['{"user": "nobody"}'])
    connection.rollback()
    assert set(app.count().values()) == {0}
    connection.execute(insert, ['{"user": "Ada"}'])
    connection.commit()
    assert [job.result for job in run_until_idle(app)] == ["welcome Ada"]


@pytest.mark.covers("000-R14.b")
def test_a_job_rolled_back_with_its_transaction_does_not_exist(
    app: Treadle, welcome: Task, connect: Callable[..., psycopg.Connection]
) -> None:
    connection = connect()
    welcome.using(tx=connection).enqueue("Ada")
    connection.rollback()
    assert set(app.count().values()) == {0}


def test_autocommit_outside_a_transaction_is_refused(
    app: Treadle, welcome: Task, connect: Callable[..., psycopg.Connection]
) -> None:
    connection = connect(autocommit=True)
    with pytest.raises(ConfigError, match=r"not in a transaction.*conn\.transaction\(\)"):
        welcome.using(tx=connection).enqueue("Ada")
    assert set(app.count().values()) == {0}
    connection.execute("begin")
    welcome.using(tx=connection).enqueue("Ada")  # begun by hand is begun
    assert set(app.count().values()) == {0}
    connection.execute("commit")
    assert app.count()[State.PENDING] == 1


def test_autocommit_outside_a_transaction_is_refused_to_async_code_too(shop: Shop, app: Treadle, welcome: Task) -> None:
    async def scene() -> None:
        async with await psycopg.AsyncConnection.connect(shop.server, autocommit=True) as connection:
            with pytest.raises(ConfigError, match="async"):
                await welcome.using(tx=connection).aenqueue("Ada")

    asyncio.run(scene())
    assert set(app.count().values()) == {0}


def test_the_callers_savepoints_take_their_jobs_along(
    shop: Shop, app: Treadle, welcome: Task, connect: Callable[..., psycopg.Connection]
) -> None:
    connection = connect()
    with connection.transaction():
        welcome.using(tx=connection).enqueue("outer")
        with pytest.raises(EngineError), connection.transaction():
            welcome.using(tx=connection).enqueue("inner")
            welcome.using(tx=connection).enqueue("poison")
        add(connection, shop, "outer")
    assert (shop.names, [job.payload["user"] for job in app.find().jobs]) == (["outer"], ["outer"])


def test_a_transaction_that_has_failed_before_is_told_so(
    shop: Shop, welcome: Task, connect: Callable[..., psycopg.Connection]
) -> None:
    connection = connect()
    with pytest.raises(psycopg.errors.UndefinedTable):
        connection.execute("select * from nowhere")
    with pytest.raises(EngineError, match="failed already"):
        welcome.using(tx=connection).enqueue("Ada")
    connection.rollback()
    welcome.using(tx=connection).enqueue("Ada")


def test_a_pipeline_is_refused(app: Treadle, welcome: Task, connect: Callable[..., psycopg.Connection]) -> None:
    connection = connect()
    with connection.pipeline(), pytest.raises(ConfigError, match="pipeline"):
        welcome.using(tx=connection).enqueue("Ada")
    welcome.using(tx=connection).enqueue("Ada")


# ------------------------------------------------------------------------------------ values and rows


class Shouting(Loader):
    """An adapter of the caller's own that reads everything as something else."""

    def load(self, data: Any) -> Any:
        return f"<{bytes(data).decode(errors='replace').upper()}>"


@pytest.mark.parametrize("factory", [dict_row, namedtuple_row, scalar_row], ids=lambda factory: factory.__name__)
def test_the_callers_row_factory_is_its_own_business(
    app: Treadle, welcome: Task, connect: Callable[..., psycopg.Connection], factory: Any
) -> None:
    first = welcome.using(key="k").enqueue("Ada")
    connection = connect(row_factory=factory)
    assert welcome.using(tx=connection, key="k").enqueue("Bob") == first
    assert connection.row_factory is factory


def test_the_callers_adapters_are_its_own_business(
    shop: Shop, app: Treadle, welcome: Task, connect: Callable[..., psycopg.Connection]
) -> None:
    first = welcome.using(key="k", run_after="1h", timeout=7).enqueue("Ada")
    connection = connect(cursor_factory=psycopg.ClientCursor)
    for name in ("text", "timestamptz", "int4", "int8", "float8", "bool", "json", "uuid"):
        for format_ in (psycopg.pq.Format.TEXT, psycopg.pq.Format.BINARY):
            loader = type("Shouting", (Shouting,), {"format": format_})
            connection.adapters.register_loader(name, loader)
    assert welcome.using(tx=connection, key="k").enqueue("Bob") == first
    second = welcome.using(tx=connection).enqueue("Eve")
    assert connection.execute("select 'quietly'").fetchone() == ("<QUIETLY>",)
    connection.commit()
    assert app.get(second.id) == second


def test_times_are_utc_whatever_the_sessions_zone(
    app: Treadle, welcome: Task, connect: Callable[..., psycopg.Connection]
) -> None:
    connection = connect()
    connection.execute("set time zone 'America/New_York'")
    job = welcome.using(tx=connection).enqueue("Ada")
    connection.commit()
    assert str(job.created_at.tzinfo) == "UTC"
    assert app.get(job.id) == job


# --------------------------------------------------------------------------------------------- errors


def test_a_serialization_failure_says_to_repeat_the_whole_transaction(
    shop: Shop, app: Treadle, welcome: Task, connect: Callable[..., psycopg.Connection]
) -> None:
    connection = connect()
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    add(connection, shop, "Ada")  # its snapshot is taken here
    welcome.using(key="k").enqueue("somebody else's")
    with pytest.raises(EngineUnavailable, match="roll back and repeat your transaction") as failed:
        welcome.using(tx=connection, key="k").enqueue("Ada")
    assert isinstance(failed.value.__cause__, psycopg.errors.SerializationFailure)
    connection.rollback()
    assert welcome.using(tx=connection, key="k").enqueue("Ada").payload == {"user": "somebody else's"}


def test_a_connection_that_was_cut_is_reported_as_lost(
    shop: Shop, welcome: Task, connect: Callable[..., psycopg.Connection]
) -> None:
    connection = connect()
    add(connection, shop, "Ada")
    shop.look(f"select pg_terminate_backend({connection.info.backend_pid})")
    with pytest.raises(EngineUnavailable, match="lost"):
        welcome.using(tx=connection).enqueue("Ada")
    with pytest.raises(EngineUnavailable, match="lost"):
        welcome.using(tx=connection).enqueue("Ada")
    assert shop.names == []


def test_another_database_is_told_by_its_missing_tables_and_stays_usable(
    shop: Shop, app: Treadle, welcome: Task, connect: Callable[..., psycopg.Connection]
) -> None:
    elsewhere = provision.fresh_database(shop.server)
    connection = connect(elsewhere)
    connection.execute("create table people (name text)")
    with pytest.raises(SchemaError, match="the app's url"):
        welcome.using(tx=connection).enqueue("Ada")
    connection.commit()
    assert connection.execute("select count(*) from people").fetchone() == (0,)
    connection.close()
    provision.drop_database(elsewhere)


def test_a_statement_timeout_of_the_callers_leaves_its_transaction_usable(
    shop: Shop, welcome: Task, connect: Callable[..., psycopg.Connection]
) -> None:
    first, second = connect(), connect()
    welcome.using(tx=first, key="k").enqueue("Ada")  # and nobody knows yet whether it will be there
    second.execute("set statement_timeout = '100ms'")
    with pytest.raises(EngineUnavailable, match="timeout"):
        welcome.using(tx=second, key="k").enqueue("Bob")
    add(second, shop, "Bob")
    second.commit()
    assert shop.names == ["Bob"]


def test_a_cancelled_enqueue_leaves_the_transaction_usable(shop: Shop, app: Treadle, welcome: Task) -> None:
    async def scene() -> None:
        async with (
            await psycopg.AsyncConnection.connect(shop.server) as first,
            await psycopg.AsyncConnection.connect(shop.server) as second,
        ):
            await welcome.using(tx=first, key="k").aenqueue("Ada")
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(welcome.using(tx=second, key="k").aenqueue("Bob"), 0.2)
            await second.execute(f"insert into {shop.people} values ('Bob')")

    asyncio.run(scene())
    assert (shop.names, app.count()[State.PENDING]) == (["Bob"], 1)


# ----------------------------------------------------------------------- other people's transactions


def test_racing_transactions_with_one_key_make_one_job(
    shop: Shop, app: Treadle, welcome: Task, connect: Callable[..., psycopg.Connection]
) -> None:
    first, second, answers = connect(), connect(), []
    job = welcome.using(tx=first, key="k").enqueue("Ada")
    racer = threading.Thread(target=lambda: answers.append(welcome.using(tx=second, key="k").enqueue("Bob")))
    racer.start()
    _until_waiting(shop, second)
    first.commit()
    racer.join(30)
    second.commit()
    assert answers == [job]
    assert app.count()[State.PENDING] == 1


@pytest.mark.parametrize("by", ["enqueue", "aenqueue"])
def test_a_replacement_waits_for_another_that_is_not_committed_yet(
    shop: Shop, app: Treadle, welcome: Task, connect: Callable[..., psycopg.Connection], monkeypatch: Any, by: str
) -> None:
    first = welcome.using(key="k").enqueue("Ada")
    replacing, other = welcome.using(key="k", unique=Unique(on_conflict="replace")), connect()
    replacing.using(tx=other).enqueue("Bob")
    monkeypatch.setattr(treadle.app.enqueue, "lock_waits", lambda: _second_thoughts(other.commit))

    async def scene() -> None:
        async with await psycopg.AsyncConnection.connect(shop.server) as connection:
            await replacing.using(tx=connection).aenqueue("Eve")

    if by == "enqueue":
        with connect() as connection:
            replacing.using(tx=connection).enqueue("Eve")
    else:
        asyncio.run(scene())
    assert app.get(first.id).payload == {"user": "Eve"}


@pytest.mark.parametrize("own", [True, False], ids=["on its own", "in a transaction"])
def test_a_replacement_that_waits_in_vain_says_so(
    app: Treadle, welcome: Task, connect: Callable[..., psycopg.Connection], monkeypatch: Any, own: bool
) -> None:
    monkeypatch.setattr(treadle.app.enqueue, "lock_waits", lambda: [0.001, 0.001])
    welcome.using(key="k").enqueue("Ada")
    replacing, other = welcome.using(key="k", unique=Unique(on_conflict="replace")), connect()
    replacing.using(tx=other).enqueue("Bob")
    with pytest.raises(EngineUnavailable, match="open transaction"):
        replacing.using(tx=None if own else connect()).enqueue("Eve")


def _second_thoughts(act: Callable[[], object]) -> Iterator[float]:
    """Pauses of which the first is followed by this act; then there is time to look again, and to write."""
    yield 0.001
    act()
    yield from (0.001, 0.001)


def _settled_while_locked(
    shop: Shop, app: Treadle, library: Library, act: Callable[[psycopg.Connection], Any], expected: Any
) -> Job:
    """The job of a handler that settles while somebody else, for whom we `act` first, has its row locked."""

    async def sell(ctx: Context) -> str:
        with psycopg.connect(shop.server) as stranger:
            stranger.execute(f"select 1 from {shop.named('jobs')} where id = %s for update", [ctx.job.id])
            act(stranger)
            async with library.transaction(shop) as caller:
                await caller.add("tea")
                with expected:
                    await caller.settle(ctx, "sold")
        return "later"

    job = app.register("sell", library.handler(sell)).enqueue()
    app.run_worker(until_idle=True, poll=0.02)
    return app.get(job.id)


@pytest.mark.parametrize("library", ["psycopg", "psycopg-async"], indirect=True)
def test_a_settlement_waits_for_a_row_that_is_locked_just_now(
    shop: Shop, app: Treadle, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the lease renewal of this very job."""

    def unlock(stranger: psycopg.Connection) -> None:
        monkeypatch.setattr(
            treadle.worker.settle_in_transaction, "lock_waits", lambda: _second_thoughts(stranger.commit)
        )

    job = _settled_while_locked(shop, app, library, unlock, nullcontext())
    assert (job.state, job.result, job.attempt) == (State.SUCCEEDED, "sold", 1)


@pytest.mark.parametrize("library", ["psycopg", "psycopg-async"], indirect=True)
def test_a_settlement_that_waits_in_vain_says_so_and_the_transaction_stays_usable(
    shop: Shop, app: Treadle, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(treadle.worker.settle_in_transaction, "lock_waits", lambda: [0.001, 0.001])
    refused = pytest.raises(EngineUnavailable, match="locked")
    job = _settled_while_locked(shop, app, library, lambda stranger: None, refused)
    assert (job.state, job.result, shop.names) == (State.SUCCEEDED, "later", ["tea"])


def _until_waiting(shop: Shop, connection: psycopg.Connection) -> None:
    """Until this connection waits for a lock."""
    asked = f"select 1 from pg_stat_activity where pid = {connection.info.backend_pid} and wait_event_type = 'Lock'"
    assert any(shop.look(asked) for _ in range(5000))


def test_what_is_played_without_a_loop_waits_for_nothing() -> None:
    async def waits() -> None:
        await asyncio.sleep(0)

    with pytest.raises(AssertionError):
        played(waits())
