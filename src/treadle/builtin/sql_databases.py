"""The databases whose rows the built-in tasks write: PostgreSQL and SQLite, each over a connection of its own."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pydantic import ValidationError

from treadle.app.settings import values_model
from treadle.engines import libpq_url, sqlite_url
from treadle.errors import ConfigError
from treadle.model.clock import micros

if TYPE_CHECKING:
    import psycopg

    from treadle.app.treadle import UrlObject

LOCK_TIMEOUT = 30.0  # seconds to wait for a SQLite file that others keep locked
CONNECT_TIMEOUT = 10  # seconds
FAR = 2**62  # microseconds: later than any cutoff, and it fits into SQLite's integers


class Missing(Exception):
    """A table or column is not there, or is not a time: no repetition will help."""

    def __init__(self, table: str, problem: str | None) -> None:
        self.table = table
        super().__init__(problem)


class Expired(NamedTuple):
    """The rows to delete: those whose time in `column` is before `before`, and that have the values of `where`."""

    table: str
    column: str
    before: datetime
    where: Mapping[str, Any]


class Quoted(NamedTuple):
    """The names in a statement, quoted as both databases read them; a column always with its table.

    SQLite takes a quoted word that is not a column for text, unless the table is named before it.
    """

    table: str
    columns: list[str]

    @classmethod
    def of(cls, table: str, *columns: str) -> "Quoted":
        """ConfigError for what cannot be a name."""
        parts = table.split(".") if isinstance(table, str) else [table]
        for name in (*parts, *columns):
            if not isinstance(name, str) or not name or "\0" in name:
                raise ConfigError(f"{name!r} is not the name of a table or a column; write it as the database has it")
        quoted = [_quote(part) for part in parts]
        return cls(".".join(quoted), [f"{quoted[-1]}.{_quote(column)}" for column in columns])

    def bare_columns(self) -> list[str]:
        """The columns without their table, as an insert names them."""
        table = self.table.rpartition(".")[2]
        return [column.removeprefix(f"{table}.") for column in self.columns]


class OpenDatabase(Protocol):
    """A connection over which old rows can be deleted."""

    def delete(self, expired: Expired, batch: int) -> Iterator[int]:
        """Delete them, at most `batch` a transaction; how many, after each commit. Missing if they cannot be found."""
        ...


class Database(Protocol):
    """Where the rows are; nothing is open yet."""

    def opened(self) -> AbstractContextManager[OpenDatabase]: ...


def database_of(url: "str | UrlObject") -> "PostgresDatabase | SqliteDatabase":
    """The database behind a URL; ConfigError if it is none that has tables."""
    try:
        text: str = values_model().model_validate({"url": url}).url  # type: ignore[attr-defined] # as in Settings
    except ValidationError:
        raise ConfigError(f"url: a {type(url).__name__} is not a URL; write postgresql://… or sqlite:///…") from None
    scheme = text.partition("://")[0].lower()
    if scheme == "sqlite":
        path, _ = sqlite_url(text)
        if path == ":memory:":
            raise ConfigError("url: a SQLite database in memory has one connection, and it is the store's")
        return SqliteDatabase(path)
    if scheme in ("postgresql", "postgres"):
        return PostgresDatabase(libpq_url(text, "url")[0])
    raise ConfigError(f"url: {scheme!r} has no tables; give a postgresql:// or sqlite:// URL")


# --------------------------------------------------------------------------------------------- PostgreSQL


class PostgresDatabase(NamedTuple):
    """A PostgreSQL server; also behind a pooler in transaction mode."""

    url: str

    @contextmanager
    def opened(self) -> "Iterator[PostgresRows]":
        try:
            import psycopg  # noqa: PLC0415 - only where there is such a database
        except ImportError:
            raise ConfigError("url: PostgreSQL needs its driver; run: pip install 'treadle[postgres]'") from None
        with psycopg.connect(
            self.url, autocommit=True, prepare_threshold=None, connect_timeout=CONNECT_TIMEOUT
        ) as connection:
            yield PostgresRows(connection)


class PostgresRows(NamedTuple):
    """A connection to PostgreSQL."""

    connection: "psycopg.Connection[Any]"

    def delete(self, expired: Expired, batch: int) -> Iterator[int]:
        from psycopg import errors as pg  # noqa: PLC0415

        # A row that somebody holds is left for the next time. ctid is only asked for within one statement.
        table, (column, *others) = Quoted.of(expired.table, expired.column, *expired.where)
        table, column = table.replace("%", "%%"), column.replace("%", "%%")
        others = [other.replace("%", "%%") for other in others]
        values = dict(zip((f"w{number}" for number in range(len(others))), expired.where.values(), strict=True))
        old = _old(f"{column} < %(before)s", others, [f"%({name})s" for name in values])
        # A row that was changed since the statement began is found, but not deleted: the next batch takes it, if it is
        # still old. So it is the number found that says whether there may be more.
        statement = f"""
            with found as materialized (
                select ctid as place from {table} where {old} limit %(batch)s for update skip locked
            ), gone as (
                delete from {table} where {old} and ctid = any(array(select place from found)) returning 1
            )
            select (select count(*) from found), (select count(*) from gone)
        """  # noqa: S608 - the names are quoted
        found = batch
        while found >= batch:
            try:
                with self.connection.transaction():
                    self.connection.execute("set local timezone to 'UTC'")  # for columns without a zone
                    rows = self.connection.execute(statement, {**values, "before": expired.before, "batch": batch})
                    [(found, deleted)] = rows.fetchall()
            except (pg.UndefinedTable, pg.UndefinedColumn, pg.InvalidSchemaName) as error:
                raise Missing(expired.table, error.diag.message_primary) from error
            except (pg.UndefinedFunction, pg.InvalidTextRepresentation, pg.DatatypeMismatch) as error:
                raise Missing(
                    expired.table, f"column {expired.column!r} or a value does not fit ({error.diag.message_primary})"
                ) from error
            yield deleted


# ------------------------------------------------------------------------------------------------- SQLite


class SqliteDatabase(NamedTuple):
    """A SQLite file."""

    path: str

    @contextmanager
    def opened(self) -> "Iterator[SqliteRows]":
        file = Path(self.path).absolute()
        if not file.exists():
            raise ConfigError(f"url: there is no file {self.path}, and this task does not make one")
        with closing(sqlite3.connect(file, timeout=LOCK_TIMEOUT, isolation_level=None)) as connection:
            connection.execute("pragma foreign_keys = on")  # what the tables say of each other holds
            connection.create_function("treadle_micros", 1, micros_of_value, deterministic=True)
            yield SqliteRows(connection)


class SqliteRows(NamedTuple):
    """A connection to a SQLite file."""

    connection: sqlite3.Connection

    def delete(self, expired: Expired, batch: int) -> Iterator[int]:
        # Rows are looked for without the write lock, in one pass over the table; others write meanwhile.
        table, (rowid, column, *others) = Quoted.of(expired.table, "rowid", expired.column, *expired.where)
        old = _old(f"treadle_micros({column}) < ?", others, ["?"] * len(others))
        values = (micros(expired.before), *expired.where.values())
        found, last = f"select {rowid} from {table} where {old} and {rowid} > ? order by 1 limit ?", -(2**63)  # noqa: S608
        remove = f"delete from {table} where {old} and {rowid} in (select value from json_each(?))"  # noqa: S608
        try:
            while ids := [id_ for (id_,) in self.connection.execute(found, (*values, last, batch))]:
                last = ids[-1]
                yield self.connection.execute(remove, (*values, str(ids))).rowcount
        except sqlite3.OperationalError as error:
            if str(error).startswith(("no such table", "no such column")):
                raise Missing(expired.table, str(error)) from error
            raise


def micros_of_value(value: object) -> int | None:
    """A time as SQLite's users write it, in microseconds since 1970: ISO 8601, UTC unless it says so, or seconds.

    >>> [micros_of_value(value) for value in ("1970-01-01 00:00:01", 2.5, "1970-01-01T01:00+01:00", "soon")]
    [1000000, 2500000, 0, None]
    """
    try:
        if isinstance(value, int | float):
            return max(-FAR, min(round(value * 1_000_000), FAR))
        moment = datetime.fromisoformat(value)  # type: ignore[arg-type] # a TypeError, then
        return micros(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (TypeError, ValueError, OverflowError):
        return None  # it is not a time: the row is left


# ---------------------------------------------------------------------------------------------- statements


def _quote(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _old(time: str, columns: list[str], places: list[str]) -> str:
    return " and ".join([time, *(f"{column} = {place}" for column, place in zip(columns, places, strict=True))])
