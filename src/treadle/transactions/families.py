"""Which library an object given as `tx` belongs to, by the names in its type: nothing is imported to find out."""

import sys
from importlib import import_module
from typing import Any, NamedTuple

from treadle.errors import ConfigError


class Family(NamedTuple):
    """A library's objects of one colour. `name` is both the library's and that of our file for it."""

    name: str
    asynchronous: bool = False

    def module(self) -> Any:
        """Our file for it, which may import the library: the caller has."""
        return import_module(f"treadle.transactions.{self.name}")


_FAMILIES = {
    ("sqlite3", "Connection"): Family("sqlite"),
    ("psycopg", "Connection"): Family("psycopg"),
    ("psycopg", "AsyncConnection"): Family("psycopg", asynchronous=True),
    ("asyncpg", "Connection"): Family("asyncpg", asynchronous=True),
    ("asyncpg", "PoolConnectionProxy"): Family("asyncpg", asynchronous=True),
    ("sqlalchemy", "Session"): Family("sqlalchemy"),
    ("sqlalchemy", "scoped_session"): Family("sqlalchemy"),
    ("sqlalchemy", "Connection"): Family("sqlalchemy"),
    ("sqlalchemy", "AsyncSession"): Family("sqlalchemy", asynchronous=True),
    ("sqlalchemy", "async_scoped_session"): Family("sqlalchemy", asynchronous=True),
    ("sqlalchemy", "AsyncConnection"): Family("sqlalchemy", asynchronous=True),
    ("django", "BaseDatabaseWrapper"): Family("django"),
    ("django", "ConnectionProxy"): Family("django"),
    ("builtins", "list"): Family("dynamodb"),
}


def family_of(tx: Any) -> Family:
    """The family of this object, or ConfigError."""
    for kind in type(tx).__mro__:
        family = _FAMILIES.get((kind.__module__.partition(".")[0], kind.__name__))
        if family is not None:
            return family
    if isinstance(tx, str) and "://" not in tx and "django.db" in sys.modules:  # an alias, never a URL
        return Family("django")
    raise ConfigError(
        f"tx: {name_of(tx)} is not supported; pass a connection of sqlite3, psycopg or asyncpg, a session or a "
        "connection of SQLAlchemy, (with Django) the alias of a database such as 'default', or (for DynamoDB) a list"
    )


def refuse_colour(tx: Any, family: Family, *, wanted_async: bool) -> None:
    """ConfigError for an async object in a sync call, or the other way round, naming the method to use."""
    if family.asynchronous and not wanted_async:
        raise ConfigError(
            f"tx: {name_of(tx)} is asynchronous: write `await` and aenqueue, aenqueue_many, ctx.asettle or "
            "schedules.acreate instead"
        )
    if wanted_async and not family.asynchronous:
        raise ConfigError(
            f"tx: {name_of(tx)} is not asynchronous, its statements would stop the event loop: "
            "write enqueue, enqueue_many, ctx.settle or schedules.create instead, without `await`"
        )


def name_of(tx: Any) -> str:
    """What to call the object in a message."""
    return f"{type(tx).__module__}.{type(tx).__qualname__}"
