"""Connections of the pool for the threads in which treadle works."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from psycopg import AsyncConnection, errors
from psycopg.pq import DiagnosticField, ExecStatus

from chatServer.database.connection import Pool

WAIT = 5  # seconds for a connection; a pool that is being closed does not tell all who wait
CONNECTION_FAILURE = b"08006"  # where the server itself says nothing


class Lending:
    """`Treadle(lend=lending.lend)`: connections of an async pool, in a transaction, for the thread that asks."""

    def __init__(self, pool: Pool, loop: asyncio.AbstractEventLoop) -> None:
        self._pool, self._loop = pool, loop
        self._thread = threading.local()

    @contextmanager
    def lend(self) -> Iterator[Any]:
        """The connection of the `transaction` of this thread; if there is none, one for a transaction of its own."""
        if (connection := getattr(self._thread, "connection", None)) is not None:
            yield connection
        else:
            with self.transaction() as connection:
                yield connection

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """All that this thread does inside is written together, or not at all."""
        self._refuse_the_thread_of_the_loop()
        connection = asyncio.run_coroutine_threadsafe(self._pool.getconn(WAIT), self._loop).result()
        try:
            run(connection, b"begin")
            self._thread.connection = connection
            try:
                yield connection
            except BaseException:
                run(connection, b"rollback")
                raise
            finally:
                self._thread.connection = None
            run(connection, b"commit")
        finally:
            asyncio.run_coroutine_threadsafe(self._pool.putconn(connection), self._loop).result()

    def _refuse_the_thread_of_the_loop(self) -> None:
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            return
        if here is self._loop:
            raise RuntimeError(
                "lend: a blocking call in the thread of the event loop would wait for a connection that only this loop "
                "can give; call treadle in another thread, such as by `await app.aenqueue()`"
            )


def run(connection: AsyncConnection[Any], statement: bytes, *values: str) -> None:
    """In this thread: the loop leaves a connection alone that is out of the pool."""
    answer = connection.pgconn.exec_params(statement, [value.encode() for value in values])
    if answer.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
        state = answer.error_field(DiagnosticField.SQLSTATE) or CONNECTION_FAILURE
        raise errors.lookup(state.decode())(answer.error_message.decode("utf-8", "replace"))
