"""The table whose rows are brought: of PostgreSQL or SQLite, read in batches in the order of its ids."""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from treadle.engines import libpq_url, sqlite_url
from treadle.errors import ConfigError, EngineUnavailable, NotPossible

if TYPE_CHECKING:
    import psycopg

LOCK_TIMEOUT = 30.0  # seconds to wait for a SQLite file that others keep locked
CONNECT_TIMEOUT = 10  # seconds

_HALF = re.compile("[\ud800-\udfff]")
"""Half a character, which no database can be asked for."""

Values = dict[str, Any]
"""A row: what it has by column. Of PostgreSQL all is text, as it prints values in UTC."""


class SourceTable(Protocol):
    """A table that can be read."""

    name: str
    columns: list[str]

    def batches(self, id_column: str, names: Sequence[str], size: int) -> Iterator[list[Values]]:
        """These columns of all rows, so many rows at a time, in the order of their ids; what has no id is left out."""
        ...

    def count(self) -> int:
        """How many rows it has."""
        ...


@contextmanager
def opened(url: str, table: str) -> Iterator[SourceTable]:
    """The table in the database of this URL. ConfigError for what has no tables, NotPossible if it is not there."""
    scheme = url.partition("://")[0].lower()
    if scheme == "sqlite":
        with _sqlite(url, table) as source:
            yield source
    elif scheme in ("postgresql", "postgres"):
        with _postgres(url, table) as source:
            yield source
    else:
        raise ConfigError(f"--from-url: {scheme!r} has no tables to read; give a postgresql:// or sqlite:// URL")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _table(name: str) -> str:
    parts = name.split(".")
    if not all(parts) or "\0" in name or _HALF.search(name):
        raise ConfigError(f"--from: {name!r} is not the name of a table; write jobs, or schema.jobs")
    return ".".join(map(_quoted, parts))


# ------------------------------------------------------------------------------------------------- PostgreSQL


@contextmanager
def _postgres(url: str, table: str) -> "Iterator[PostgresTable]":
    try:
        import psycopg  # noqa: PLC0415 - only where there is such a database
    except ImportError:
        raise ConfigError("--from-url: PostgreSQL needs its driver; run: pip install 'treadle[postgres]'") from None
    address = libpq_url(url, "--from-url")[0]
    try:
        psycopg.conninfo.conninfo_to_dict(address)
    except psycopg.ProgrammingError:  # its message shows the URL, with the password
        raise ConfigError("--from-url: write postgresql://user:password@host/database") from None
    try:
        with psycopg.connect(
            address,
            autocommit=True,
            prepare_threshold=None,
            connect_timeout=CONNECT_TIMEOUT,
            options="-c timezone=UTC -c datestyle=ISO -c default_transaction_read_only=on",
        ) as connection:
            yield PostgresTable(connection, table)
    except psycopg.OperationalError as error:
        raise EngineUnavailable(f"the database of {table} does not answer: {' '.join(str(error).split())}") from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise NotPossible(f"--from: {table} cannot be read: {error.diag.message_primary}") from None


class PostgresTable:
    """A table or view of PostgreSQL. Its values are read as text, so that none is out of Python's reach."""

    def __init__(self, connection: "psycopg.Connection[Any]", name: str) -> None:
        self.name = name
        self._connection = connection
        self._quoted = _table(name)
        found = connection.execute(
            "select attname, format_type(atttypid, null) from pg_attribute "
            "where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped order by attnum",
            [self._quoted],
        ).fetchall()
        if not found:
            raise NotPossible(f"--from: there is no table {name}; write it as the database has it, maybe schema.{name}")
        self._types = dict(found)
        self.columns = list(self._types)

    def batches(self, id_column: str, names: Sequence[str], size: int) -> Iterator[list[Values]]:
        listed = ", ".join(f"{_quoted(name)}::text" for name in (id_column, *names)).replace("%", "%%")
        # With its table: alone it would be the text in the list, which sorts otherwise.
        place, table = f"source.{_quoted(id_column)}".replace("%", "%%"), self._quoted.replace("%", "%%")
        after = f"{place} > %(last)s::text::{self._types[id_column]}"
        last = None
        while True:
            where = after if last is not None else f"{place} is not null"
            rows = self._connection.execute(
                f"select {listed} from {table} as source where {where} order by {place} limit %(size)s",  # noqa: S608 - quoted
                {"last": last, "size": size},
            ).fetchall()
            if rows:
                yield [dict(zip((id_column, *names), row, strict=True)) for row in rows]
            if len(rows) < size:
                return
            last = rows[-1][0]

    def count(self) -> int:
        [(number,)] = self._connection.execute(f"select count(*) from {self._quoted.replace('%', '%%')}").fetchall()  # noqa: S608
        return int(number)


# ---------------------------------------------------------------------------------------------------- SQLite


@contextmanager
def _sqlite(url: str, table: str) -> "Iterator[SqliteTable]":
    path, _ = sqlite_url(url)
    if path == ":memory:" or not Path(path).exists():
        raise NotPossible(f"--from-url: there is no file {path}; give the database that has the table")
    try:
        with closing(sqlite3.connect(path, timeout=LOCK_TIMEOUT, isolation_level=None)) as connection:
            connection.execute("pragma query_only = on")
            yield SqliteTable(connection, table)
    except sqlite3.DatabaseError as error:
        raise NotPossible(f"--from: {table} cannot be read: {error}") from error


class SqliteTable:
    """A table or view of a SQLite file."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self.name = name
        self._connection = connection
        self._quoted = _table(name)
        schema, _, table = name.rpartition(".")
        found = connection.execute("select name from pragma_table_info(?1, ?2)", [table, schema or "main"]).fetchall()
        if not found:
            raise NotPossible(f"--from: there is no table {name}; write it as the database has it")
        self.columns = [column for (column,) in found]

    def batches(self, id_column: str, names: Sequence[str], size: int) -> Iterator[list[Values]]:
        listed, place = ", ".join(_quoted(name) for name in (id_column, *names)), _quoted(id_column)
        last = None
        while True:
            where = f"{place} > ?1" if last is not None else f"{place} is not null"
            rows = self._connection.execute(
                f"select {listed} from {self._quoted} where {where} order by {place} limit ?2",  # noqa: S608 - quoted
                [last, size],
            ).fetchall()
            if rows:
                yield [dict(zip((id_column, *names), row, strict=True)) for row in rows]
            if len(rows) < size:
                return
            last = rows[-1][0]

    def count(self) -> int:
        [(number,)] = self._connection.execute(f"select count(*) from {self._quoted}").fetchall()  # noqa: S608
        return int(number)
