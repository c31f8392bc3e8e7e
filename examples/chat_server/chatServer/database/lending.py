"""Connections of the pool for the threads in which treadle's async calls do their work."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from psycopg import AsyncConnection, OperationalError
from psycopg.pq import ExecStatus

from chatServer.database.connection import Pool


def lend_from(pool: Pool, loop: asyncio.AbstractEventLoop) -> Callable[[], AbstractContextManager[Any]]:
    """What `Treadle(lend=...)` takes: a connection of an async pool, in a transaction, for the thread that asks."""

    @contextmanager
    def lend() -> Iterator[Any]:
        connection = asyncio.run_coroutine_threadsafe(pool.getconn(), loop).result()
        try:
            _run(connection, b"begin")
            try:
                yield connection
            except BaseException:
                _run(connection, b"rollback")
                raise
            _run(connection, b"commit")
        finally:
            asyncio.run_coroutine_threadsafe(pool.putconn(connection), loop).result()

    return lend


def _run(connection: AsyncConnection[Any], statement: bytes) -> None:
    """In this thread: the loop leaves a connection alone that is out of the pool."""
    answer = connection.pgconn.exec_(statement)
    if answer.status != ExecStatus.COMMAND_OK:
        raise OperationalError(answer.error_message.decode("utf-8", "replace"))
