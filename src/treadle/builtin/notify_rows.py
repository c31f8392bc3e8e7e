"""The in-app part of `notify.send`: one row a job in a table of the application, on PostgreSQL or SQLite."""

import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from treadle.app.settings import values_model
from treadle.engines import libpq_url, sqlite_url
from treadle.errors import ConfigError

if TYPE_CHECKING:
    from treadle.app.treadle import UrlObject

LOCK_TIMEOUT = 30.0  # seconds to wait for a SQLite file that others keep locked
CONNECT_TIMEOUT = 10  # seconds
MISFITS = ("no such table", "no such column", "ON CONFLICT clause does not match")


class InApp(NamedTuple):
    """The table that gets a row, which may be `schema.table`, and the names of its columns; `id` is its primary key."""

    table: str
    id: str = "id"
    user: str = "user_id"
    type: str = "type"
    title: str = "title"
    body: str = "body"
    created_at: str = "created_at"
    url: "str | UrlObject | None" = None


class InAppRow(NamedTuple):
    """What is inserted: the id is the job's."""

    id: str
    user: str
    type: str
    title: str
    body: str
    created_at: datetime


class RowRefused(Exception):
    """The table is not as it was named, or has a rule that refuses the row: no repetition will help."""


def check_in_app(in_app: InApp, app_url: str) -> None:
    """ConfigError if such a row cannot be inserted anywhere."""
    for part, name in zip(InApp._fields[:-1], in_app, strict=False):
        names = name.split(".") if part == "table" and isinstance(name, str) else [name]
        if not all(isinstance(one, str) and one and "\0" not in one for one in names):
            raise ConfigError(f"in_app: {part}: {name!r} is not the name of a {part}; write it as the database has it")
    _place(in_app, app_url)


def insert_once(in_app: InApp, app_url: str, row: InAppRow) -> bool:
    """Insert the row unless there is one of this id; whether it is new."""
    scheme, place = _place(in_app, app_url)
    table = ".".join(map(_quoted, in_app.table.split(".")))
    columns = [_quoted(name) for name in in_app[1:-1]]
    mark = "?" if scheme == "sqlite" else "%s"
    into = f"{table} ({', '.join(columns)})"
    if scheme != "sqlite":
        into, columns = into.replace("%", "%%"), [column.replace("%", "%%") for column in columns]
    values = ", ".join([mark] * len(columns))
    statement = f"insert into {into} values ({values}) on conflict ({columns[0]}) do nothing"  # noqa: S608
    return _insert_sqlite(place, statement, row) if scheme == "sqlite" else _insert_postgres(place, statement, row)


def _place(in_app: InApp, app_url: str) -> tuple[str, str]:
    """`sqlite` and a path, or `postgresql` and a URL."""
    url: str = app_url
    if in_app.url is not None:
        url = values_model().model_validate({"url": in_app.url}).url  # type: ignore[attr-defined] # as in Settings
    scheme = url.partition("://")[0].lower()
    if scheme == "sqlite":
        path, _ = sqlite_url(url)
        if path == ":memory:":
            raise ConfigError(
                "in_app: a SQLite database in memory has one connection, and it is the store's; use a file"
            )
        return scheme, path
    if scheme in ("postgresql", "postgres"):
        return "postgresql", libpq_url(url, "url")[0]
    raise ConfigError(
        f"in_app: {scheme!r} has no tables; leave in_app out, or give InApp a postgresql:// or sqlite:// url"
    )


def _insert_postgres(url: str, statement: str, row: InAppRow) -> bool:
    try:
        import psycopg  # noqa: PLC0415 - only where there is such a database
        from psycopg import errors as pg  # noqa: PLC0415
    except ImportError:
        raise ConfigError("in_app: PostgreSQL needs its driver; run: pip install 'treadle[postgres]'") from None
    with psycopg.connect(url, autocommit=True, prepare_threshold=None, connect_timeout=CONNECT_TIMEOUT) as connection:
        try:
            return connection.execute(statement, row).rowcount == 1
        except (pg.ProgrammingError, pg.IntegrityError, pg.DataError) as error:
            # Not its detail and context: they hold the values of the row.
            raise RowRefused(error.diag.message_primary or type(error).__name__) from None


def _insert_sqlite(path: str, statement: str, row: InAppRow) -> bool:
    file = Path(path).absolute()
    if not file.exists():
        raise RowRefused(f"there is no file {path}")
    values = (*row[:-1], row.created_at.isoformat(sep=" "))
    with closing(sqlite3.connect(file, timeout=LOCK_TIMEOUT, isolation_level=None)) as connection:
        connection.execute("pragma foreign_keys = on")
        try:
            return connection.execute(statement, values).rowcount == 1
        except sqlite3.IntegrityError as error:
            raise RowRefused(str(error)) from None
        except sqlite3.OperationalError as error:
            if str(error).startswith(MISFITS) or "has no column named" in str(error):
                raise RowRefused(str(error)) from None
            raise


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
