"""The SQLite engine on a connection that somebody else opens, commits and closes."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TypeVar

from treadle.engines.scripts import Lend, Script
from treadle.engines.sqlite import schema
from treadle.engines.sqlite.connection import DATA_ERRORS, MEMORY, DatabaseFile
from treadle.engines.sqlite.engine import SqliteEngine
from treadle.engines.sqlite.retention import Pruner
from treadle.engines.values import Claim
from treadle.engines.waiting import Waiters

T = TypeVar("T")


class LentFile(DatabaseFile):
    """The file behind that connection; each call is one block of `lend`."""

    def __init__(self, lend: Lend) -> None:
        super().__init__(MEMORY, synchronous="full", migrate=lambda _connection, _deadline: [])
        self._lend = lend

    @contextmanager
    def write(self, timeout: float | None = None) -> Iterator[sqlite3.Connection]:  # noqa: ARG002 - as its owner waits
        with self.translated_errors, self._lend() as connection:
            yield connection

    def write_alone(self, statement: Callable[[sqlite3.Connection], T]) -> T | None:
        try:
            return self.read(statement)
        except DATA_ERRORS:
            return None

    def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        with self.translated_errors, self._lend() as connection:
            return query(connection)

    def peek(self, sql: str, *parameters: object) -> list[tuple[object, ...]]:
        return self.rows(sql, *parameters)

    def check_same(self) -> Script[None]:
        """Nothing to compare: whoever lends a connection says that it is the one."""
        yield from ()


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
        self, lend: Lend, *, written: Callable[[], None], clock: Callable[[], datetime] | None, audit_all: bool
    ) -> None:
        super().__init__(MEMORY, clock=clock, audit_all=audit_all)
        self.file = LentFile(lend)
        self._pruner = Pruner(self.file)
        self._waiters = LentWaiters(written)

    def migrate(self) -> list[str]:
        with self.file.write() as connection:
            return schema.apply_missing(connection)

    def check(self, *, quick: bool = False) -> list[str]:  # noqa: ARG002
        return self.file.read(schema.differences)

    def _promising(self, claim: Claim, now: datetime | None) -> bool:  # noqa: ARG002
        return True  # to look first saves the wait for the lock, and takes a transaction that is not ours to begin
