"""Statements on an asyncpg Connection, or on one that a pool has lent."""

from functools import partial
from typing import Any

from asyncpg import Record  # type: ignore[import-untyped]

from treadle.transactions.joined import POSTGRES, Joined, Rows


async def ajoin(connection: Any) -> Joined:
    return Joined(
        "an asyncpg connection", POSTGRES, "use `async with conn.transaction():`", partial(_execute, connection)
    )


async def _execute(connection: Any, sql: str, text: str | None) -> Rows:
    if text is None:
        await connection.execute(sql)
        return []
    return [tuple(record) for record in await connection.fetch(sql, text, record_class=Record)]
