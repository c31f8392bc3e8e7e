"""Statements on a psycopg Connection or AsyncConnection, pooled or not."""

from functools import partial
from typing import Any

from psycopg import AsyncRawCursor, RawCursor
from psycopg.pq import PipelineStatus
from psycopg.rows import tuple_row
from psycopg.types.bool import BoolBinaryLoader
from psycopg.types.datetime import TimestamptzBinaryLoader, TimestamptzLoader
from psycopg.types.numeric import Float8BinaryLoader, Int4BinaryLoader, Int8BinaryLoader
from psycopg.types.string import TextBinaryLoader

from treadle.errors import ConfigError
from treadle.transactions.joined import POSTGRES, Joined, Rows

ADVICE = "use `with conn.transaction():`, or a connection without autocommit"
_LOADERS = {
    "bool": BoolBinaryLoader, "float8": Float8BinaryLoader, "int4": Int4BinaryLoader, "int8": Int8BinaryLoader,
    "text": TextBinaryLoader, "timestamptz": TimestamptzBinaryLoader,
}  # fmt: skip


def join(connection: Any) -> Joined:
    _refuse_pipeline(connection)
    return Joined("a psycopg connection", POSTGRES, ADVICE, partial(_execute, connection))


async def ajoin(connection: Any) -> Joined:
    _refuse_pipeline(connection)
    return Joined("a psycopg connection", POSTGRES, f"{ADVICE} (with async)", partial(_aexecute, connection))


def read_times_as_they_are(cursor: Any) -> None:
    """Undo what others made of timestamptz, for this cursor: Django replaces the zone, and may take it away."""
    cursor.adapters.register_loader("timestamptz", TimestamptzLoader)


def _execute(connection: Any, sql: str, text: str | None) -> Rows:
    with RawCursor(connection, row_factory=tuple_row) as cursor:
        _plain_values(cursor)
        cursor.execute(sql.encode(), None if text is None else (text,), binary=True)
        return cursor.fetchall() if cursor.description else []


async def _aexecute(connection: Any, sql: str, text: str | None) -> Rows:
    async with AsyncRawCursor(connection, row_factory=tuple_row) as cursor:
        _plain_values(cursor)
        await cursor.execute(sql.encode(), None if text is None else (text,), binary=True)
        return await cursor.fetchall() if cursor.description else []


def _plain_values(cursor: Any) -> None:
    """The values psycopg itself would give, whatever adapters the caller has put on the connection."""
    for name, loader in _LOADERS.items():
        cursor.adapters.register_loader(name, loader)


def _refuse_pipeline(connection: Any) -> None:
    """In a pipeline an error comes late and takes what was sent before it along."""
    if not connection.closed and connection.pgconn.pipeline_status != PipelineStatus.OFF:
        raise ConfigError("tx: this connection is in pipeline mode; call this before or after `conn.pipeline()`")
