"""The SQLite engine on a connection that somebody else opens, commits and closes."""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TypeVar

from treadle.engines.scripts import Lend, Script, block_of
from treadle.engines.sqlite import schema
from treadle.engines.sqlite.connection import DATA_ERRORS, MEMORY, DatabaseFile, Savepoint
from treadle.engines.sqlite.engine import SqliteEngine
from treadle.engines.sqlite.retention import Pruner
from treadle.engines.values import Claim, Finding
from treadle.engines.waiting import Waiters
from treadle.errors import ConfigError, EngineError

T = TypeVar("T")

SYNCHRONOUS = ("off", "normal", "full", "full")  # as doctor reads it; the last one, extra, is as safe as full


class LentFile(DatabaseFile):
    """The file behind that connection; each call is one block of `lend`."""

    def __init__(self, lend: Lend, path: str) -> None:
        super().__init__(path, synchronous="full", migrate=lambda _connection, _deadline: [])
        self._lend = lend

    @contextmanager
    def write(self, timeout: float | None = None) -> Iterator[sqlite3.Connection]:  # noqa: ARG002 - as its owner waits
        with self.translated_errors, self._borrowed() as connection, _begun(connection):
            yield connection

    def write_alone(self, statement: Callable[[sqlite3.Connection], T]) -> T | None:
        with self.translated_errors:
            try:
                with self._borrowed() as connection, _begun(connection):
                    return statement(connection)
            except DATA_ERRORS:
                return None

    def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        with self.translated_errors, self._borrowed() as connection:
            return query(connection)

    def peek(self, sql: str, *parameters: object) -> list[tuple[object, ...]]:
        return self.rows(sql, *parameters)

    def check_same(self) -> Script[None]:
        """EngineError if `tx` is a connection to another file; one in memory has no name to compare."""
        if self.path != MEMORY:
            return (yield from super().check_same())
        [[file]] = yield "select file from pragma_database_list where name = 'main' and ? = ''", ""
        if file:
            raise EngineError(
                f"tx is a connection to {file}, but the url of this app is sqlite:///{MEMORY}: name the file in the url"
            )
        return None

    @contextmanager
    def _borrowed(self) -> Iterator[sqlite3.Connection]:
        """The connection, which gives plain rows of plain text meanwhile."""
        with block_of(self._lend) as connection:
            if not isinstance(connection, sqlite3.Connection):
                raise ConfigError(
                    f"lend: it must yield a connection of sqlite3, not {type(connection).__name__}; a session or a "
                    "connection of SQLAlchemy has it as `.connection.driver_connection`"
                )
            row_factory, text_factory = connection.row_factory, connection.text_factory
            connection.row_factory, connection.text_factory = None, str
            try:
                yield connection
            finally:
                connection.row_factory, connection.text_factory = row_factory, text_factory


@contextmanager
def _begun(connection: sqlite3.Connection) -> Iterator[None]:
    """In the owner's transaction, which goes on without what we wrote if we fail; ConfigError if there is none."""
    if not connection.in_transaction:
        raise ConfigError(
            "lend: begin a transaction before you yield the connection: execute BEGIN IMMEDIATE; otherwise our "
            "statements would commit one by one"
        )
    with Savepoint(connection):
        yield


class LentWaiters(Waiters):
    """Tells the owner of what was written; nobody is woken before the commit."""

    def __init__(self, written: Callable[[], None]) -> None:
        super().__init__()
        self._written = written

    def wake(self, *, claimed: bool = False) -> None:  # noqa: ARG002
        self._written()


class LentEngine(SqliteEngine):
    """An Engine on a lent connection. It makes no tables by itself: `migrate` does."""

    def __init__(
        self,
        lend: Lend,
        path: str,
        *,
        written: Callable[[], None],
        clock: Callable[[], datetime] | None,
        audit_all: bool,
    ) -> None:
        super().__init__(MEMORY, clock=clock, audit_all=audit_all)
        self.file = LentFile(lend, path)
        self._pruner = Pruner(self.file)
        self._waiters = LentWaiters(written)

    def migrate(self) -> list[str]:
        with self.file.write() as connection:
            return schema.apply_missing(connection)

    def check(self, *, quick: bool = False) -> list[str]:  # noqa: ARG002
        return self.file.read(schema.differences)

    def doctor(self) -> list[Finding]:
        [[level]] = self.file.rows("pragma synchronous")
        self.file.synchronous = SYNCHRONOUS[level]
        return schema.doctor(self.file, self.check())

    def wait(self, queues: Sequence[str], timeout: float, interrupt: threading.Event | None = None) -> bool:  # noqa: ARG002
        return self._waiters.wait(timeout, interrupt)

    def _promising(self, claim: Claim, now: datetime | None) -> bool:  # noqa: ARG002
        return True  # to look first saves the wait for the lock, and takes a transaction that is not ours to begin
