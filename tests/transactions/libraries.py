"""Every way an application may hold a transaction, behind one small face: the tests are written once, for all of them.

`async with library.transaction(shop) as caller:` is the application's own transaction: it commits at the end, and an
error rolls it back. A synchronous library's coroutines never wait, so `played` runs them without an event loop, which
Django would refuse.
"""

import asyncio
import functools
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import asyncpg
import django
import psycopg
import psycopg_pool
import sqlalchemy
from django.conf import settings as django_settings
from django.db import connections as django_connections
from django.db import transaction as django_transaction
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from treadle import Context, Job, Receipt, Task, Treadle

Row = tuple[Any, ...]


class Shop(NamedTuple):
    """A store of ours with a table of the application's beside it."""

    url: str

    @property
    def kind(self) -> str:
        return "sqlite" if self.url.startswith("sqlite") else "postgres"

    @property
    def server(self) -> str:
        """The server as libpq knows it."""
        return self.url.partition("?")[0]

    @property
    def path(self) -> Path:
        return Path(self.url.removeprefix("sqlite:///"))

    def named(self, table: str) -> str:
        """One of our tables."""
        return f"treadle_{table}" if self.kind == "sqlite" else f"{self.schema}.{table}"

    def asked_for_jobs(self, sql: str) -> bool:
        """Whether this statement of ours stores a job."""
        return self.named("jobs") in sql or self.named("add_jobs") in sql

    @property
    def people(self) -> str:
        """The application's own table."""
        return "people" if self.kind == "sqlite" else f"{self.schema}.people"

    @property
    def schema(self) -> str:
        return self.url.partition("?schema=")[2]

    def look(self, sql: str) -> list[Row]:
        """Read or write as somebody else, at once."""
        if self.kind == "sqlite":
            with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as connection:
                return connection.execute(sql).fetchall()
        cursor = onlooker(self.server).execute(sql)
        return cursor.fetchall() if cursor.description else []

    @property
    def names(self) -> list[str]:
        """Who is in the application's table for everybody to see."""
        return [row[0] for row in self.look(f"select name from {self.people} order by name")]

    def furnish(self) -> None:
        """Make the table, and let the store refuse whatever holds the word poison."""
        self.look(f"create table {self.people} (name text primary key)")
        if self.kind == "sqlite":
            for table, column in (("jobs", "payload"), ("finished", "result")):
                self.look(
                    f"create trigger no_poison_{table} before insert on treadle_{table} "
                    f"when new.{column} like '%poison%' begin select raise(abort, 'poison is refused'); end"
                )
        else:
            self.look(f"alter table {self.named('jobs')} add constraint no_poison check (payload::text !~ 'poison')")
            self.look(f"alter table {self.named('finished')} add constraint no_poison check (result::text !~ 'poison')")


@functools.cache
def onlooker(server: str) -> psycopg.Connection[Row]:
    """Somebody else's connection; one is enough, and opening it takes longer than most looks."""
    return psycopg.connect(server, autocommit=True)


def sqlite_shop(folder: Path) -> Shop:
    """A shop in a file of its own."""
    folder.mkdir(exist_ok=True)
    shop = Shop(f"sqlite:///{folder}/treadle.db")
    app = Treadle(shop.url)
    app.migrate()
    app.close()
    shop.furnish()
    return shop


class Caller:
    """An application inside its transaction."""

    def __init__(self, tx: Any, run: Callable[[str], Any], shop: Shop, *, asynchronous: bool) -> None:
        self.tx = tx
        self._run = run
        self._shop = shop
        self._asynchronous = asynchronous

    async def add(self, name: str) -> None:
        """Insert a row of the application's own."""
        await self.run(f"insert into {self._shop.people} values ('{name}')")

    async def run(self, sql: str) -> None:
        """Run a statement the application's own way."""
        done = self._run(sql)
        if self._asynchronous:
            await done

    async def enqueue(self, task: Task[..., Any], *arguments: Any, **using: Any) -> Job:
        bound = task.using(tx=self.tx, **using)
        return await bound.aenqueue(*arguments) if self._asynchronous else bound.enqueue(*arguments)

    async def enqueue_many(self, task: Task[..., Any], calls: list[Row], **using: Any) -> list[Receipt]:
        bound = task.using(tx=self.tx, **using)
        return await bound.aenqueue_many(calls) if self._asynchronous else bound.enqueue_many(calls)

    async def schedule(self, act: str, app: Treadle, *arguments: Any, **options: Any) -> Any:
        """Do something to a schedule: `create`, `upsert`, `update`, `delete` …"""
        call = getattr(app.schedules, f"a{act}" if self._asynchronous else act)
        done = call(*arguments, tx=self.tx, **options)
        return await done if self._asynchronous else done

    async def settle(self, ctx: Context, result: Any = None) -> None:
        if self._asynchronous:
            await ctx.asettle(self.tx, result)
        else:
            ctx.settle(self.tx, result)


class Library(NamedTuple):
    """A library, the kind of store it is used with, and its way of holding a transaction."""

    name: str
    kind: str
    asynchronous: bool
    open: Callable[[Shop], AbstractAsyncContextManager[tuple[Any, Callable[[str], Any]]]]

    @asynccontextmanager
    async def transaction(self, shop: Shop) -> AsyncIterator[Caller]:
        async with self.open(shop) as (tx, run):
            yield Caller(tx, run, shop, asynchronous=self.asynchronous)

    def play(self, scene: Coroutine[Any, Any, Any]) -> Any:
        """Run a test's coroutine as an application with this library would."""
        return asyncio.run(scene) if self.asynchronous else played(scene)

    def handler(self, scene: Callable[[Context], Awaitable[Any]]) -> Callable[[Context], Any]:
        """A task's handler of this library's colour."""

        async def on_the_loop(ctx: Context) -> Any:
            return await scene(ctx)

        def in_a_thread(ctx: Context) -> Any:
            return played(scene(ctx))

        return on_the_loop if self.asynchronous else in_a_thread


def played(scene: Any) -> Any:
    """What a coroutine that waits for nothing returns."""
    try:
        scene.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a synchronous library has waited")


# ------------------------------------------------------------------------------------- the libraries


LIBRARIES: list[Library] = []
EVERY_TYPE = [  # names of libraries, one for each type of object that may be a `tx`
    "sqlite3", "psycopg", "psycopg-async", "asyncpg", "asyncpg-pool", "sqlalchemy-session",
    "sqlalchemy-session-sqlite", "sqlalchemy-scoped-session", "sqlalchemy-connection",
    "sqlalchemy-async-session-asyncpg", "sqlalchemy-async-connection-psycopg", "django-alias",
    "django-alias-sqlite", "django-connection",
]  # fmt: skip


def library(name: str, kind: str = "postgres", *, asynchronous: bool = False) -> Callable[[Any], Any]:
    def register(generator: Any) -> Any:
        LIBRARIES.append(Library(name, kind, asynchronous, asynccontextmanager(generator)))
        return generator

    return register


@library("sqlite3", "sqlite")
async def _sqlite3(shop: Shop) -> Any:
    with closing(sqlite3.connect(shop.path, timeout=30)) as connection, connection:
        yield connection, connection.execute


@library("psycopg")
async def _psycopg(shop: Shop) -> Any:
    with psycopg.connect(shop.server) as connection:
        yield connection, connection.execute


@library("psycopg-block")
async def _psycopg_block(shop: Shop) -> Any:
    with psycopg.connect(shop.server, autocommit=True) as connection, connection.transaction():
        yield connection, connection.execute


@library("psycopg-pool")
async def _psycopg_pool(shop: Shop) -> Any:
    with psycopg_pool.ConnectionPool(shop.server, min_size=1, open=True) as pool, pool.connection() as connection:
        yield connection, connection.execute


@library("psycopg-async", asynchronous=True)
async def _psycopg_async(shop: Shop) -> Any:
    async with await psycopg.AsyncConnection.connect(shop.server) as connection:
        yield connection, connection.execute


@library("psycopg-async-block", asynchronous=True)
async def _psycopg_async_block(shop: Shop) -> Any:
    async with (
        await psycopg.AsyncConnection.connect(shop.server, autocommit=True) as connection,
        connection.transaction(),
    ):
        yield connection, connection.execute


@library("psycopg-async-pool", asynchronous=True)
async def _psycopg_async_pool(shop: Shop) -> Any:
    async with (
        psycopg_pool.AsyncConnectionPool(shop.server, min_size=1, open=False) as pool,
        pool.connection() as connection,
    ):
        yield connection, connection.execute


@library("asyncpg", asynchronous=True)
async def _asyncpg(shop: Shop) -> Any:
    connection = await asyncpg.connect(shop.server)
    try:
        async with connection.transaction():
            yield connection, connection.execute
    finally:
        await connection.close()


@library("asyncpg-pool", asynchronous=True)
async def _asyncpg_pool(shop: Shop) -> Any:
    async with (
        asyncpg.create_pool(shop.server, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield connection, connection.execute


def sqlalchemy_url(shop: Shop, driver: str = "psycopg") -> str:
    return shop.url if shop.kind == "sqlite" else shop.server.replace("postgresql://", f"postgresql+{driver}://")


def _textual(execute: Callable[[Any], Any]) -> Callable[[str], Any]:
    return lambda sql: execute(sqlalchemy.text(sql))


@asynccontextmanager
async def _engine(shop: Shop) -> AsyncIterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(sqlalchemy_url(shop), poolclass=NullPool)
    try:
        yield engine
    finally:
        engine.dispose()


@library("sqlalchemy-session")
@library("sqlalchemy-session-sqlite", "sqlite")
async def _session(shop: Shop) -> Any:
    async with _engine(shop) as engine:
        with Session(engine) as session, session.begin():
            yield session, _textual(session.execute)


@library("sqlalchemy-session-nested")
async def _session_nested(shop: Shop) -> Any:
    async with _engine(shop) as engine:
        with Session(engine) as session, session.begin(), session.begin_nested():
            yield session, _textual(session.execute)


@library("sqlalchemy-scoped-session")
async def _scoped_session(shop: Shop) -> Any:
    async with _engine(shop) as engine:
        session = scoped_session(sessionmaker(engine))
        try:
            yield session, _textual(session.execute)
            session.commit()
        finally:
            session.remove()


@library("sqlalchemy-connection")
@library("sqlalchemy-connection-sqlite", "sqlite")
async def _connection(shop: Shop) -> Any:
    async with _engine(shop) as engine:
        with engine.begin() as connection:
            yield connection, _textual(connection.execute)


async def _async_session(shop: Shop, driver: str) -> Any:
    engine = create_async_engine(sqlalchemy_url(shop, driver), poolclass=NullPool)
    async with AsyncSession(engine) as session, session.begin():
        yield session, _textual(session.execute)
    await engine.dispose()


async def _async_connection(shop: Shop, driver: str) -> Any:
    engine = create_async_engine(sqlalchemy_url(shop, driver), poolclass=NullPool)
    async with engine.begin() as connection:
        yield connection, _textual(connection.execute)
    await engine.dispose()


for _driver in ("psycopg", "asyncpg"):
    library(f"sqlalchemy-async-session-{_driver}", asynchronous=True)(functools.partial(_async_session, driver=_driver))
    library(f"sqlalchemy-async-connection-{_driver}", asynchronous=True)(
        functools.partial(_async_connection, driver=_driver)
    )


def django_at(shop: Shop) -> None:
    """Let Django's default database be this one."""
    if not django_settings.configured:
        django_settings.configure(DATABASES={})
        django.setup()
    if shop.kind == "sqlite":
        options = {"transaction_mode": "IMMEDIATE", "timeout": 30}
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": shop.path, "OPTIONS": options}
    else:
        parts = urlsplit(shop.server)
        database = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts.path.lstrip("/"),
            "USER": parts.username,
            "PASSWORD": parts.password or "",
            "HOST": parts.hostname,
            "PORT": parts.port,
        }
    django_connections.settings = django_connections.configure_settings({"default": database})


@asynccontextmanager
async def _django(shop: Shop) -> AsyncIterator[Any]:
    django_at(shop)
    connection = django_connections["default"]
    try:
        with django_transaction.atomic():
            yield connection
    finally:
        connection.close()
        del django_connections["default"]


def _by_cursor(connection: Any) -> Callable[[str], None]:
    def run(sql: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(sql)

    return run


@library("django-alias")
@library("django-alias-sqlite", "sqlite")
async def _django_alias(shop: Shop) -> Any:
    async with _django(shop) as connection:
        yield "default", _by_cursor(connection)


@library("django-connection")
async def _django_connection(shop: Shop) -> Any:
    from django.db import connection

    async with _django(shop) as beneath:
        yield connection, _by_cursor(beneath)


@library("django-nested")
async def _django_nested(shop: Shop) -> Any:
    async with _django(shop) as connection:
        with django_transaction.atomic():
            yield connection, _by_cursor(connection)
