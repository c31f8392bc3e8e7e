"""The in-app part of `notify.send`: one row a job in a table of the application, on PostgreSQL or SQLite."""

import sqlite3
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from treadle.builtin.sql_databases import (
    PostgresDatabase,
    PostgresRows,
    Quoted,
    SqliteDatabase,
    SqliteRows,
    database_of,
)
from treadle.errors import ConfigError

if TYPE_CHECKING:
    from treadle.app.treadle import UrlObject

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

    def __repr__(self) -> str:
        """Without the URL, which may hold a password."""
        shown = ", ".join(f"{part}={name!r}" for part, name in zip(self._fields[:-1], self, strict=False))
        return f"InApp({shown})"


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


def check_in_app(in_app: object, app_url: str) -> None:
    """ConfigError if such a row cannot be inserted anywhere."""
    if not isinstance(in_app, InApp):
        raise ConfigError(f'in_app: a {type(in_app).__name__} is not an InApp; write in_app=InApp("notifications")')
    try:
        Quoted.of(*in_app[:-1])
    except ConfigError as error:
        raise ConfigError(f"in_app: {error}") from None
    _database(in_app, app_url)


def insert_once(in_app: InApp, app_url: str, row: InAppRow) -> bool:
    """Insert the row unless there is one of this id; whether it is new."""
    names = Quoted.of(*in_app[:-1])
    table, columns = names.table, names.bare_columns()

    def statement(place: str) -> str:
        values = ", ".join([place] * len(columns))
        return f"insert into {table} ({', '.join(columns)}) values ({values}) on conflict ({columns[0]}) do nothing"  # noqa: S608

    with _database(in_app, app_url).opened() as database:
        if isinstance(database, PostgresRows):
            table, columns = table.replace("%", "%%"), [column.replace("%", "%%") for column in columns]
            return _insert_postgres(database, statement("%s"), row)
        return _insert_sqlite(database, statement("?"), row)


def _database(in_app: InApp, app_url: str) -> PostgresDatabase | SqliteDatabase:
    try:
        return database_of(app_url if in_app.url is None else in_app.url)
    except ConfigError as error:
        advice = "; leave in_app out, or name a database with InApp(…, url=…)" if in_app.url is None else ""
        raise ConfigError(f"in_app: {error}{advice}") from None


def _insert_postgres(database: PostgresRows, statement: str, row: InAppRow) -> bool:
    from psycopg import errors as pg  # noqa: PLC0415 - only where there is such a database

    try:
        return database.connection.execute(statement, row).rowcount == 1
    except pg.DataError as error:  # its message holds the value
        raise RowRefused(f"a value does not fit its column ({type(error).__name__}, {error.sqlstate})") from None
    except (pg.ProgrammingError, pg.IntegrityError) as error:  # not its detail and context: they hold the row
        raise RowRefused(error.diag.message_primary or type(error).__name__) from None


def _insert_sqlite(database: SqliteRows, statement: str, row: InAppRow) -> bool:
    values = (*row[:-1], row.created_at.isoformat(sep=" "))
    try:
        return database.connection.execute(statement, values).rowcount == 1
    except sqlite3.IntegrityError as error:
        raise RowRefused(str(error)) from None
    except sqlite3.OperationalError as error:
        if str(error).startswith(MISFITS) or "has no column named" in str(error):
            raise RowRefused(str(error)) from None
        raise
