"""The one app of a Django project: made from its settings, on its database, in its transactions."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.signals import connection_created

from treadle.app.profile import Profile
from treadle.app.store import Store, plain_sql_of
from treadle.app.treadle import Treadle
from treadle.engines import connect_on
from treadle.engines.contract import Engine
from treadle.errors import ConfigError
from treadle.integrations.django.connections import close_old_connections
from treadle.integrations.django.database import DatabaseUrl, connection_of, lent
from treadle.tasks.context import Context
from treadle.tasks.task import Task

BACKEND = "treadle.integrations.django.backend.TreadleBackend"


class DjangoStore(Store):
    """The store of a Django project. Inside `atomic()` it is Django's connection, else connections of treadle's own."""

    database: DatabaseUrl | None = None  # the one that has the jobs; None: they are elsewhere
    _tested: Any = None  # the connection that a test has all its calls go to

    @property
    def engine(self) -> Engine:  # type: ignore[override] # another one for each block
        """The engine for this call: inside the block that is open in this thread, if there is one."""
        database, url = self.database, self._in_force.given.get("url")
        if url is database and database is not None:  # and no override leads away
            connection = self._tested or connection_of(database.alias)
            if database.name != (name := connection.settings_dict["NAME"]):
                self._follow(database, name)
            if connection.in_atomic_block or connection is self._tested:
                return self.engine_on(connection)
        return self._in_force.engine

    def engine_on(self, connection: Any) -> Engine:
        """An engine on this connection of Django's; made once for each."""
        made_for, made_with, engine = getattr(connection, "_treadle_engine", (None, None, None))
        settings = self.settings
        if made_for is not self._in_force or made_with is not settings:
            clock = self._in_force.clock
            engine = connect_on(
                settings.url,
                partial(lent, connection),
                written=partial(self._wake_after_commit, connection),
                clock=None if clock is None else clock.now,
                audit_all=settings.audit == "everything",
                plain_sql=plain_sql_of(settings),
            )
            connection._treadle_engine = self._in_force, settings, engine
        return cast(Engine, engine)

    def _wake_after_commit(self, connection: Any) -> None:
        """Wake workers when the open block commits, once for all that it has written."""
        if not connection.in_atomic_block or self._tested is not None:
            return
        if not any(getattr(call, "func", None) == self._wake for _, call, _ in connection.run_on_commit):
            connection.on_commit(partial(self._wake, connection), robust=True)

    def _wake(self, connection: Any) -> None:
        self.engine_on(connection).wake(others=True)
        if self.opened:
            self._in_force.engine.wake()

    def _follow(self, database: DatabaseUrl, name: str) -> None:
        """Close what was opened, and read the settings again: a test run has switched Django to another database."""
        with self._switching:
            database.name = name
            for store in self._stack:
                if store.given.get("url") is database:
                    store.close()
                    for kept in ("settings", "engine"):
                        store.__dict__.pop(kept, None)
            self.__dict__.pop("settings", None)

    def close_before_tests(self, connection: Any, **_: object) -> None:
        """Close all that is open when Django connects to none of its databases: it makes, copies or drops one."""
        if connection.alias == NO_DB_ALIAS:
            for store in self._stack:
                store.close()

    @contextmanager
    def tested_on(self, connection: Any) -> Iterator[None]:
        """Let every call of any thread go to this connection, as long as the block lasts."""
        before, self._tested = self._tested, connection
        connection.inc_thread_sharing()
        try:
            yield
        finally:
            self._tested = before
            connection.dec_thread_sharing()


class DjangoTreadle(Treadle):
    """Treadle in a Django project. What it does inside `atomic()` is part of that block: it commits with it."""

    _store_class = DjangoStore
    _store: DjangoStore

    @property
    def database(self) -> str | None:
        """The alias of the database that has the jobs; None if `TREADLE` names a url."""
        return None if self._store.database is None else self._store.database.alias

    def register(self, name: str, handler: Callable[..., Any], **options: Any) -> Task[..., Any]:
        """As `Treadle.register`; the first async task brings the hook that async code needs."""
        task = super().register(name, handler, **options)
        if task.is_async and self._fresh_connections_of_async_code not in self.hooks.run:
            self.hooks.around_run(self._fresh_connections_of_async_code)
        return task

    async def _fresh_connections_of_async_code(self, ctx: Context) -> AsyncIterator[None]:
        """The same for an async handler: its queries run in the one thread that Django has for async code."""
        if not self.tasks[ctx.job.task].is_async:
            yield
            return
        close = sync_to_async(close_old_connections)
        await close(check=ctx.job.failures > 0)
        try:
            yield
        finally:
            await close()


def make_app(given: Mapping[str, Any]) -> DjangoTreadle:
    """The app that `settings.TREADLE` describes."""
    if not isinstance(given, Mapping):
        raise ConfigError(f'TREADLE: {given!r} must be a dict of settings, such as {{"concurrency": 20}}')
    options = {"database": "default", **given}
    alias = options.pop("database")
    if "url" in given and "database" in given:
        raise ConfigError("TREADLE: url and database both say where the jobs are: leave out one of them")
    elsewhere, database = options.pop("url", None), DatabaseUrl(alias)
    app = DjangoTreadle(elsewhere or database, profile=Profile(settings={"queues": _queues()}), **options)
    if not elsewhere:
        app._store.database = database
        connection_created.connect(app._store.close_before_tests)
    app.hooks.around_run(_fresh_connections)
    return app


def _queues() -> list[str]:
    """The queues of the TASKS that treadle runs, beside the default one: a worker serves them all."""
    tasks: Mapping[str, Any] = getattr(settings, "TASKS", None) or {}
    ours = [one.get("QUEUES", ()) for one in tasks.values() if one.get("BACKEND") == BACKEND]
    return list(dict.fromkeys(["default", *(queue for queues in ours for queue in queues)]))


def _fresh_connections(ctx: Context) -> Iterator[None]:
    """Around a plain handler, in its thread: drop a connection that the server has closed, as a request does."""
    if app.tasks[ctx.job.task].is_async:  # this is the thread of the event loop, where Django has no connection
        yield
        return
    close_old_connections(check=ctx.job.failures > 0)  # a retry has lost an attempt already
    try:
        yield
    finally:
        close_old_connections()


app = make_app(getattr(settings, "TREADLE", {}))
