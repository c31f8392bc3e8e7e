"""What is SQLAlchemy's own: sessions, autobegin, nesting, isolation levels, events and errors."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import sqlalchemy
from psycopg.types.datetime import TimestamptzLoader
from sqlalchemy import event, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)  # fmt: skip
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

from tests.transactions.libraries import Shop, sqlalchemy_url
from treadle import ConfigError, EngineError, EngineUnavailable, State, Task, Treadle

ON_POSTGRES = pytest.mark.parametrize("engine_kind", ["postgres"])
ON_SQLITE = pytest.mark.parametrize("engine_kind", ["sqlite"])


@pytest.fixture(params=["postgres", "sqlite"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def database(shop: Shop) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(sqlalchemy_url(shop), poolclass=NullPool)
    yield engine
    engine.dispose()


@asynccontextmanager
async def asynchronous(shop: Shop, driver: str, **options: Any) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(sqlalchemy_url(shop, driver), poolclass=NullPool, **options)
    yield engine
    await engine.dispose()


def add(shop: Shop, name: str) -> sqlalchemy.TextClause:
    return text(f"insert into {shop.people} values ('{name}')")


def users(app: Treadle) -> list[str]:
    return sorted(job.payload["user"] for job in app.find().jobs)


# ---------------------------------------------------------------------------------------- transactions


def test_an_enqueue_begins_the_transaction_as_any_statement_does(
    shop: Shop, app: Treadle, welcome: Task, database: sqlalchemy.Engine
) -> None:
    with Session(database) as session:
        welcome.using(tx=session).enqueue("nobody")
        assert session.in_transaction()
        session.rollback()
        welcome.using(tx=session).enqueue("Ada")
        session.execute(add(shop, "Ada"))
        session.commit()
        welcome.using(tx=session).enqueue("never committed")
    with database.connect() as connection:
        welcome.using(tx=connection).enqueue("Bob")
        connection.commit()
        welcome.using(tx=connection).enqueue("never committed")
    assert (shop.names, users(app)) == (["Ada"], ["Ada", "Bob"])


@ON_POSTGRES
def test_sqlalchemys_own_savepoints_go_on_working_around_ours(
    shop: Shop, app: Treadle, welcome: Task, database: sqlalchemy.Engine
) -> None:
    with Session(database) as session, session.begin():
        welcome.using(tx=session).enqueue("outer")
        with session.begin_nested() as nested:
            welcome.using(tx=session).enqueue("undone")
            with pytest.raises(EngineError, match="poison"):
                welcome.using(tx=session).enqueue("poison")
            nested.rollback()
        with pytest.raises(EngineError, match="poison"), session.begin_nested():
            session.execute(add(shop, "undone"))
            welcome.using(tx=session).enqueue("poison")
        with session.begin_nested():
            welcome.using(tx=session).enqueue("inner")
            with pytest.raises(EngineError, match="poison"):
                welcome.using(tx=session).enqueue("poison")
            session.execute(add(shop, "inner"))
    assert (shop.names, users(app)) == (["inner"], ["inner", "outer"])


class Base(DeclarativeBase):
    """Of the application's own mapped classes."""


class Order(Base):
    """A row that the unit of work writes, not we."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    article: Mapped[str] = mapped_column(unique=True)


@pytest.fixture
def orders(shop: Shop, database: sqlalchemy.Engine) -> sqlalchemy.Engine:
    """The engine, with the tables of the mapped classes beside our own."""
    mapped = database.execution_options(schema_translate_map={None: shop.schema or None})
    Base.metadata.drop_all(mapped)
    Base.metadata.create_all(mapped)
    return mapped


def test_mapped_objects_are_written_with_the_job(app: Treadle, welcome: Task, orders: sqlalchemy.Engine) -> None:
    with Session(orders) as session, session.begin():
        session.add(Order(article="tea"))
        welcome.using(tx=session).enqueue("Ada")
        with pytest.raises(EngineError, match="poison"):
            welcome.using(tx=session).enqueue("poison")
        session.add(Order(article="milk"))
    with Session(orders) as session:
        assert sorted(session.scalars(sqlalchemy.select(Order.article))) == ["milk", "tea"]
    assert users(app) == ["Ada"]


def test_a_session_that_has_failed_before_is_told_so(app: Treadle, welcome: Task, orders: sqlalchemy.Engine) -> None:
    with Session(orders) as session:
        session.add_all([Order(article="tea"), Order(article="tea")])
        with pytest.raises(IntegrityError):
            session.flush()
        with pytest.raises(EngineError, match="failed already"):
            welcome.using(tx=session).enqueue("Ada")
        session.rollback()
        welcome.using(tx=session).enqueue("Ada")
        session.commit()
    assert users(app) == ["Ada"]


@ON_SQLITE
def test_transactions_begun_by_an_event_are_the_ones_that_are_used(
    shop: Shop, app: Treadle, welcome: Task, database: sqlalchemy.Engine
) -> None:
    """The recipe of SQLAlchemy's documentation for savepoints on SQLite."""
    begun: list[str] = []

    @event.listens_for(database, "connect")
    def connect(dbapi_connection: Any, _: object) -> None:
        dbapi_connection.isolation_level = None

    @event.listens_for(database, "begin")
    def begin(connection: Any) -> None:
        begun.append("here")
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    with Session(database) as session:
        welcome.using(tx=session).enqueue("nobody")
        session.rollback()
        with session.begin(), session.begin_nested():
            welcome.using(tx=session).enqueue("Ada")
    with database.connect() as connection:
        welcome.using(tx=connection).enqueue("Bob")
        connection.commit()
    assert (begun, users(app)) == (["here"] * 3, ["Ada", "Bob"])


# -------------------------------------------------------------------------------------------- refusals


def test_autocommit_is_refused(shop: Shop, app: Treadle, welcome: Task, database: sqlalchemy.Engine) -> None:
    by_itself = database.execution_options(isolation_level="AUTOCOMMIT")
    always = sqlalchemy.create_engine(sqlalchemy_url(shop), poolclass=NullPool, isolation_level="AUTOCOMMIT")
    for engine in (by_itself, always):
        with Session(engine) as session, session.begin(), pytest.raises(ConfigError, match="AUTOCOMMIT"):
            welcome.using(tx=session).enqueue("Ada")
        with engine.begin() as connection, pytest.raises(ConfigError, match="AUTOCOMMIT"):
            welcome.using(tx=connection).enqueue("Ada")
    always.dispose()
    assert set(app.count().values()) == {0}


@ON_POSTGRES
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_autocommit_is_refused_to_async_code_too(shop: Shop, app: Treadle, welcome: Task, driver: str) -> None:
    async def scene() -> None:
        async with asynchronous(shop, driver, isolation_level="AUTOCOMMIT") as engine, engine.begin() as connection:
            with pytest.raises(ConfigError, match="AUTOCOMMIT"):
                await welcome.using(tx=connection).aenqueue("Ada")

    asyncio.run(scene())
    assert set(app.count().values()) == {0}


def test_a_session_that_does_not_begin_by_itself_must_have_begun(
    app: Treadle, welcome: Task, database: sqlalchemy.Engine
) -> None:
    with Session(database, autobegin=False) as session:
        with pytest.raises(ConfigError, match="begin one"):
            welcome.using(tx=session).enqueue("Ada")
        with session.begin():
            welcome.using(tx=session).enqueue("Ada")
    assert users(app) == ["Ada"]


def test_a_session_of_several_databases_must_name_the_one_with_the_jobs(
    app: Treadle, welcome: Task, orders: sqlalchemy.Engine
) -> None:
    with Session(binds={Order: orders}) as session:
        with pytest.raises(ConfigError, match=r"session\.connection"):
            welcome.using(tx=session).enqueue("Ada")
        welcome.using(tx=session.connection(bind_arguments={"mapper": Order})).enqueue("Ada")
        session.commit()
    assert users(app) == ["Ada"]


def test_a_store_we_do_not_speak_is_refused_by_name(
    welcome: Task, database: sqlalchemy.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database.dialect, "name", "mysql")
    with database.begin() as connection, pytest.raises(ConfigError, match="mysql"):
        welcome.using(tx=connection).enqueue("Ada")


# ------------------------------------------------------------------------------------ rows and errors


def test_events_and_options_of_the_callers_engine_see_our_statements_and_harm_nothing(
    shop: Shop, app: Treadle, welcome: Task, database: sqlalchemy.Engine
) -> None:
    seen: list[str] = []

    @event.listens_for(database, "before_cursor_execute", retval=True)
    def comment(_c: Any, _cursor: Any, statement: str, parameters: Any, _ctx: Any, _many: bool) -> tuple[str, Any]:
        seen.append(statement)
        return f"{statement} /* of the shop */", parameters

    first = welcome.using(key="k").enqueue("Ada")
    streaming = database.execution_options(stream_results=True, yield_per=1)
    with streaming.begin() as connection:
        assert welcome.using(tx=connection, key="k").enqueue("Bob") == first
        welcome.using(tx=connection).enqueue("Eve")
    assert users(app) == ["Ada", "Eve"]
    assert any(shop.asked_for_jobs(statement) for statement in seen)


@ON_POSTGRES
def test_a_serialization_failure_says_to_repeat_the_whole_transaction(
    shop: Shop, welcome: Task, database: sqlalchemy.Engine
) -> None:
    with Session(database.execution_options(isolation_level="REPEATABLE READ")) as session:
        session.execute(add(shop, "Ada"))
        welcome.using(key="k").enqueue("somebody else's")
        with pytest.raises(EngineUnavailable, match="roll back and repeat your transaction") as failed:
            welcome.using(tx=session, key="k").enqueue("Ada")
        assert isinstance(failed.value.__cause__, OperationalError)
        session.rollback()
        welcome.using(tx=session, key="k").enqueue("Ada")


@ON_POSTGRES
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_what_a_driver_says_comes_without_the_payload(shop: Shop, welcome: Task, driver: str) -> None:
    async def scene() -> None:
        async with asynchronous(shop, driver) as engine, AsyncSession(engine) as session, session.begin():
            with pytest.raises(EngineError, match="no_poison") as refused:
                await welcome.using(tx=session).aenqueue("poison and a secret")
            assert "secret" not in str(refused.value)
            session.add(Order(article="tea"))
            session.expunge_all()
            await session.execute(add(shop, "Ada"))

    asyncio.run(scene())
    assert shop.names == ["Ada"]


@ON_SQLITE
def test_a_file_locked_by_another_writer_is_reported_as_busy(shop: Shop, app: Treadle, welcome: Task) -> None:
    engine = sqlalchemy.create_engine(sqlalchemy_url(shop), poolclass=NullPool, connect_args={"timeout": 0.1})
    with Session(engine) as one, Session(engine) as other:
        other.execute(add(shop, "Bob"))
        with pytest.raises(EngineUnavailable, match="locked"):
            welcome.using(tx=one).enqueue("Ada")
        other.commit()
        welcome.using(tx=one).enqueue("Ada")
        one.commit()
    engine.dispose()
    assert (shop.names, users(app)) == (["Bob"], ["Ada"])


@ON_POSTGRES
def test_a_connection_that_was_cut_is_reported_as_lost(shop: Shop, welcome: Task, database: sqlalchemy.Engine) -> None:
    with Session(database) as session:
        pid = session.scalar(text("select pg_backend_pid()"))
        shop.look(f"select pg_terminate_backend({pid})")
        with pytest.raises(EngineUnavailable, match="lost"):
            welcome.using(tx=session).enqueue("Ada")


@ON_POSTGRES
def test_times_without_a_zone_are_refused_rather_than_guessed(
    shop: Shop, app: Treadle, welcome: Task, database: sqlalchemy.Engine
) -> None:
    """A new job is told by a text, and does not mind; one that was first is read."""

    class Naive(TimestamptzLoader):
        def load(self, data: Any) -> Any:
            return super().load(data).replace(tzinfo=None)

    @event.listens_for(database, "connect")
    def connect(dbapi_connection: Any, _: object) -> None:
        dbapi_connection.adapters.register_loader("timestamptz", Naive)

    welcome.using(key="k").enqueue("Eve")
    with Session(database) as session:
        welcome.using(tx=session).enqueue("Ada")
        with pytest.raises(EngineError, match="without a zone"):
            welcome.using(tx=session, key="k").enqueue("Ada")
        session.execute(add(shop, "Ada"))
        session.commit()
    assert (shop.names, app.count()[State.PENDING]) == (["Ada"], 2)


@ON_POSTGRES
def test_a_scoped_session_of_async_code_is_a_session(shop: Shop, app: Treadle, welcome: Task) -> None:
    async def scene() -> None:
        async with asynchronous(shop, "psycopg") as engine:
            session = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
            await welcome.using(tx=session).aenqueue("Ada")
            assert app.count()[State.PENDING] == 0
            await session.commit()
            await session.remove()

    asyncio.run(scene())
    assert users(app) == ["Ada"]


@ON_POSTGRES
def test_an_async_connection_that_was_never_opened_is_refused_with_a_reason(shop: Shop, welcome: Task) -> None:
    async def scene() -> None:
        async with asynchronous(shop, "psycopg") as engine:
            with pytest.raises(EngineError, match="not been started"):
                await welcome.using(tx=engine.connect()).aenqueue("Ada")

    asyncio.run(scene())
