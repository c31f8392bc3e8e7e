"""The pool of connections that the whole process shares."""

from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

SEARCH_PATH = "-c search_path=public"  # whatever the role's is: a role may have a schema of its name
Pool = AsyncConnectionPool[AsyncConnection[Any]]


class DatabaseManager:
    """Opens the pool at the start of the process and closes it at its end."""

    def __init__(self) -> None:
        self._pool: Pool | None = None

    @property
    def pool(self) -> Pool:
        if self._pool is None:
            raise RuntimeError("the database is not open: call `await get_database_manager().open(url)` first")
        return self._pool

    async def open(self, url: str) -> Pool:
        self._pool = AsyncConnectionPool(
            url,
            min_size=2,
            max_size=10,
            kwargs={"options": SEARCH_PATH},
            check=AsyncConnectionPool.check_connection,  # the server may have restarted since it was used
            open=False,
        )
        await self._pool.open(wait=True, timeout=30)
        return self._pool

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()
        self._pool = None


_manager = DatabaseManager()


def get_database_manager() -> DatabaseManager:
    return _manager


async def rows(pool: Pool, statement: str, *values: object) -> list[DictRow]:
    """What one statement answers, in a transaction of its own."""
    async with pool.connection() as connection, connection.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(statement, values)
        return await cursor.fetchall() if cursor.description else []
