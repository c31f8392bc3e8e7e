"""Running our statements inside the caller's own transaction, on the caller's own connection."""

import sqlite3
from typing import Any, TypeVar

from treadle.engines.base import Script
from treadle.errors import ConfigError, EngineError, EngineUnavailable

T = TypeVar("T")


def run_in(tx: Any, script: Script[T]) -> T:
    """Drive a script on the caller's connection; what it writes commits or rolls back with the caller's rows."""
    if isinstance(tx, sqlite3.Connection):
        return _run_on_sqlite(tx, script)
    raise ConfigError(f"tx: {type(tx).__module__}.{type(tx).__name__} is not supported; pass a sqlite3.Connection")


def _run_on_sqlite(connection: sqlite3.Connection, script: Script[T]) -> T:
    if not connection.in_transaction:
        if connection.isolation_level is None:
            raise ConfigError("tx: this connection is in autocommit mode; execute BEGIN IMMEDIATE first")
        _execute(connection, "begin immediate")
    try:
        sql, text = next(script)
        while True:
            sql, text = script.send(_execute(connection, sql, text))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _execute(connection: sqlite3.Connection, sql: str, *parameters: str) -> list[tuple[Any, ...]]:
    # A cursor of our own with plain rows: the connection's row_factory is the caller's business.
    cursor = connection.cursor()
    cursor.row_factory = None
    try:
        return cursor.execute(sql, parameters).fetchall()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise EngineUnavailable(
                "tx: the file is locked by another writer, and a transaction begun as a read cannot wait for it. "
                "Roll back, start the transaction with BEGIN IMMEDIATE, and repeat"
            ) from error
        raise EngineError(f"tx: {error}") from error
