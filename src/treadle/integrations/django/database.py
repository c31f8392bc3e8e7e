"""The database of Django's settings: its URL for treadle, and its connection, lent to an engine for one call."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connections, transaction
from django.db.utils import ConnectionDoesNotExist

from treadle.errors import ConfigError

_NOT_LIBPQ = {"client_encoding", "user", "password", "dbname"}  # the first is ours to say, the others are in the URL


class DatabaseUrl:
    """The URL of a database, read when treadle is first used: a test runner has changed its name by then."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.name = settings.DATABASES.get(alias, {}).get("NAME", "")  # of the database, until a test run switches it

    def render_as_string(self, hide_password: bool = True) -> str:
        """The URL as treadle writes it; the name of this method is that of SQLAlchemy's URLs."""
        connection = connection_of(self.alias)
        if connection.vendor == "sqlite":
            return _sqlite_url(connection)
        if connection.vendor == "postgresql":
            return _postgres_url(connection, hide_password)
        raise ConfigError(
            f"TREADLE: database {self.alias!r} is {connection.vendor}, and treadle keeps jobs in SQLite or PostgreSQL; "
            'name another one in settings.py: TREADLE = {"database": "…"} or {"url": "postgresql://…"}'
        )


def connection_of(alias: str) -> Any:
    """Django's connection of this thread; ConfigError if the settings have no such database."""
    try:
        return connections[alias]
    except ConnectionDoesNotExist:
        known = ", ".join(map(repr, connections))
        raise ConfigError(f"TREADLE: database {alias!r} is not in DATABASES; it has {known}") from None


def _sqlite_url(connection: Any) -> str:
    if connection.is_in_memory_db():
        return "sqlite:///:memory:"
    return f"sqlite:///{quote(str(connection.settings_dict['NAME']))}"


def _postgres_url(connection: Any, hide_password: bool) -> str:
    from psycopg.pq import Conninfo  # noqa: PLC0415 - projects on SQLite need no driver

    try:
        given: Mapping[str, Any] = connection.get_connection_params()
    except ImproperlyConfigured as error:
        raise ConfigError(f"DATABASES: {error}") from None
    known = {option.keyword.decode() for option in Conninfo.get_defaults()} - _NOT_LIBPQ
    options = {name: value for name, value in given.items() if name in known and value not in (None, "")}
    if role := connection.settings_dict["OPTIONS"].get("assume_role"):
        options["options"] = f"{options.get('options', '')} -c role={role}".strip()
    password = "***" if hide_password else quote(str(given.get("password") or ""), safe="")
    user = quote(str(given.get("user") or ""), safe="")
    login = f"{user}:{password}@" if given.get("password") else f"{user}@" if user else ""
    name = quote(str(given.get("dbname") or ""), safe="")
    return f"postgresql://{login}/{name}?{urlencode(options, quote_via=quote, safe='')}".rstrip("?")


@contextmanager
def lent(connection: Any) -> Iterator[Any]:
    """The driver's connection in a transaction: a savepoint of the block that is open, or a block of its own."""
    if not connection.in_atomic_block:
        with _of_this_thread(connection), transaction.atomic(using=connection.alias):
            connection.ensure_connection()
            if hasattr(connection.connection, "pgconn"):
                _begin(connection.connection)
            yield connection.connection
        return
    savepoint = connection.savepoint()
    try:
        yield connection.connection
    except BaseException:
        with suppress(Error):  # the connection may be gone; what happened first says more
            connection.savepoint_rollback(savepoint)
            connection.savepoint_commit(savepoint)
        raise
    connection.savepoint_commit(savepoint)


def _begin(driver: Any) -> None:
    """Begin what psycopg begins with the first statement of Django's; `atomic()` alone does not."""
    level = driver.isolation_level
    mode = "" if level is None else f" isolation level {level.name.replace('_', ' ')}"
    driver.pgconn.exec_(f"begin{mode}".encode())


@contextmanager
def _of_this_thread(connection: Any) -> Iterator[None]:
    """Let `atomic()` find this connection: in an async test it belongs to another thread."""
    own = connections[connection.alias]
    connections[connection.alias] = connection
    try:
        yield
    finally:
        connections[connection.alias] = own


def empty_tables(connection: Any) -> None:
    """Delete every row of treadle's, but for the ledger of migrations; Django's `flush` does not know these tables."""
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            names = connection.introspection.table_names(cursor)
            djangos = connection.introspection.django_table_names()  # a model of yours may have the prefix too
            ours = [name for name in names if name.startswith("treadle_") and name not in djangos]
        else:
            cursor.execute("select tablename from pg_tables where schemaname = 'treadle'")
            ours = [f"treadle.{name}" for (name,) in cursor.fetchall()]
        for table in ours:
            if not table.endswith("migrations"):
                cursor.execute(f"delete from {table}")  # noqa: S608 - ours; truncate would wait for all who read
