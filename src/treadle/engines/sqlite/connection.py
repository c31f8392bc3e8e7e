"""The database file: its connections, waiting for its lock, and what SQLite's errors mean to a user."""

import logging
import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from treadle.engines.scripts import Script, drive
from treadle.errors import EngineError, EngineUnavailable

T = TypeVar("T")
log = logging.getLogger("treadle.sqlite")

LOCK_TIMEOUT = 30.0  # seconds to wait for a file that others keep locked
SHORT_LOCK_TIMEOUT = 0.25  # the same, for a write that is not worth a longer wait
PEEK_TIMEOUT = 1.0
MIN_SQLITE = (3, 38, 0)  # RETURNING, STRICT, ->>
MEMORY = ":memory:"

DATA_ERRORS = (ValueError, OverflowError, sqlite3.IntegrityError, sqlite3.DataError)
"""What a value raises that SQLite does not take."""

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

Migrate = Callable[[sqlite3.Connection, float], list[str]]
"""Brings the tables up to date before the deadline; the names of the migrations it applied."""


class FileLocked(EngineUnavailable):
    """Somebody else held the file's lock for as long as we would wait."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} stayed locked by another writer; repeating is safe. "
            "If that writer is a transaction of your own, enqueue inside it with .using(tx=connection)"
        )


class FileId(NamedTuple):
    """Which file lies at a path: another one has another number."""

    device: int
    number: int

    @classmethod
    def of(cls, path: str) -> "FileId | None":
        try:
            found = os.stat(path)
        except OSError:
            return None
        return cls(found.st_dev, found.st_ino)


class DatabaseFile:
    """One SQLite file: a writer connection behind a lock, and a reader that never waits for the writer.

    If the file is removed or replaced, the next use opens what is there then: a connection to the old one would go on
    writing where nobody looks.

    No connection is open across a fork: SQLite keeps its locks by process, and a child would inherit the belief that
    it holds them. Parent and child open their own again on next use.
    """

    def __init__(self, path: str, *, synchronous: str, migrate: Migrate) -> None:
        self.path = path if path == MEMORY else str(Path(path).absolute())
        self.synchronous = synchronous
        self.translated_errors = TranslatedErrors(self.path)
        self._migrate = migrate
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._peeking = threading.Lock()
        self._held_for_fork: list[threading.Lock] = []
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._peeker: sqlite3.Connection | None = None
        self._file_ids: dict[sqlite3.Connection, FileId | None] = {}  # the file that each connection has open
        self.migrated: list[str] = []  # the migrations that opening the file has applied
        _files.add(self)
        _watch_forks()

    @contextmanager
    def write(self, timeout: float | None = None) -> Iterator[sqlite3.Connection]:
        """A transaction that holds the write lock from its first moment; committed at the end, or undone whole.

        It waits `timeout` seconds for the lock, LOCK_TIMEOUT without one.
        """
        timeout = LOCK_TIMEOUT if timeout is None else timeout
        deadline = time.monotonic() + timeout
        held = False
        _let_forks_pass()
        try:
            held = self._writing.acquire(timeout=timeout)
            if not held:
                raise FileLocked(self.path)
            with self.translated_errors:
                connection = self._open()
                try:
                    if connection.in_transaction:  # an interrupt came between a begin and its try
                        connection.execute("rollback")
                    retry_locked(deadline, lambda: connection.execute("begin immediate"))
                    yield connection
                    retry_locked(deadline, lambda: connection.execute("commit"))
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("rollback")
                    raise
        finally:
            if held:
                self._writing.release()

    def write_alone(self, statement: Callable[[sqlite3.Connection], T]) -> T | None:
        """What one statement answers, as a transaction by itself: the quickest way to write.

        None if it refuses a value: then nothing is written.
        """
        deadline = time.monotonic() + LOCK_TIMEOUT
        _let_forks_pass()
        if not self._writing.acquire(timeout=LOCK_TIMEOUT):
            raise FileLocked(self.path)
        try:
            with self.translated_errors:
                connection = self._open()
                if connection.in_transaction:  # an interrupt came between a begin and its try
                    connection.execute("rollback")
                try:
                    return retry_locked(deadline, lambda: statement(connection))
                except DATA_ERRORS:
                    return None
        finally:
            self._writing.release()

    def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """What `query` finds, on a separate connection: a reader never waits for a writer."""
        deadline = time.monotonic() + LOCK_TIMEOUT
        _let_forks_pass()
        with self._writing if self.path == MEMORY else self._reading, self.translated_errors:
            connection = self._open() if self.path == MEMORY else self._open_reader()
            return retry_locked(deadline, lambda: query(connection))

    def rows(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """The rows of one query. A text that cannot be stored finds nothing."""
        try:
            return self.read(lambda connection: connection.execute(sql, parameters).fetchall())
        except UnicodeEncodeError:
            return []

    def peek(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """The rows of a quick query, on a connection that no slow query of this process holds up."""
        with self._peeking, self.translated_errors:
            self._peeker = self._in_place(self._peeker)
            if self._peeker is None:
                self._peeker = self._connect()
            peeker = self._peeker
            return retry_locked(time.monotonic() + PEEK_TIMEOUT, lambda: peeker.execute(sql, parameters).fetchall())

    def version(self) -> object:
        """A value that changes whenever somebody has written to the file, in any process."""
        return self.peek("pragma data_version") if self.path != MEMORY else None

    def check_same(self) -> Script[None]:
        """EngineError if the connection that runs this script is not one to this file, or the file has no tables."""
        rows = yield (
            "select file, (select count(*) from sqlite_schema where name = 'treadle_migrations')"
            " from pragma_database_list where name = 'main' and ? = ''",
            "",
        )
        file, migrated = rows[0]
        if self.path == MEMORY or str(file) != str(Path(self.path).resolve()):
            raise EngineError(
                f"tx is a connection to {file or MEMORY}, but the jobs are in {self.path}: "
                "open the same file to enqueue or settle in its transaction"
            )
        if not migrated:
            raise EngineError(f"{file} has no treadle tables yet: call app.migrate() before your transaction begins")

    def close(self) -> None:
        """Close the connections of this process."""
        with self._reading, self._writing, self._peeking:
            self._close()

    def _close(self) -> None:
        for connection in (self._peeker, self._reader, self._writer):
            if connection is not None:
                connection.close()
        self._peeker = self._reader = self._writer = None
        self._file_ids.clear()

    def before_fork(self) -> None:
        """Let every call of this process end, and close; new ones wait until the fork is done."""
        for lock in (self._reading, self._writing, self._peeking):
            lock.acquire()
            self._held_for_fork.append(lock)
        if self.path != MEMORY:
            self._close()

    def after_fork(self) -> None:
        """Let calls go on; an exception of a signal may have come between two of the locks."""
        while self._held_for_fork:
            self._held_for_fork.pop().release()

    def _open(self) -> sqlite3.Connection:
        if self._writer is not None and self._in_place(self._writer) is None:
            self._writer = None
            log.warning("%s was removed or replaced: what is there now is opened", self.path)
        if self._writer is None:
            if sqlite3.sqlite_version_info < MIN_SQLITE:
                raise EngineError(f"SQLite {sqlite3.sqlite_version} is too old; treadle needs 3.38 or newer")
            connection = self._connect()
            try:
                deadline = time.monotonic() + LOCK_TIMEOUT
                retry_locked(deadline, lambda: connection.execute("pragma journal_mode = wal").fetchone())
                self.migrated += self._migrate(connection, deadline)
            except BaseException:
                connection.close()
                raise
            self._file_ids[connection] = FileId.of(self.path)  # only now is there a file for sure
            self._writer = connection
        return self._writer

    def _open_reader(self) -> sqlite3.Connection:
        self._reader = self._in_place(self._reader)
        if self._reader is None:
            if self._writer is None or not self._is_in_place(self._writer):
                with self._writing:
                    self._open()  # the file and its tables come first
            self._reader = self._connect()
        return self._reader

    def _in_place(self, connection: sqlite3.Connection | None) -> sqlite3.Connection | None:
        """The connection, if its file is still where it was; else it is closed."""
        if connection is None or self._is_in_place(connection):
            return connection
        self._file_ids.pop(connection, None)
        connection.close()
        return None

    def _is_in_place(self, connection: sqlite3.Connection) -> bool:
        return self.path == MEMORY or self._file_ids.get(connection) == FileId.of(self.path)

    def _connect(self) -> sqlite3.Connection:
        # isolation_level=None: we say begin and commit. timeout=0: retry_locked waits, more fairly than SQLite's own
        # handler, whose pauses grow to 100 ms and starve whoever waited longest.
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            deadline = time.monotonic() + LOCK_TIMEOUT
            for setting in (f"synchronous = {self.synchronous}", "cache_size = -32000"):
                retry_locked(deadline, partial(connection.execute, f"pragma {setting}"))
        except BaseException:
            connection.close()
            raise
        self._file_ids[connection] = FileId.of(self.path)
        return connection


class TranslatedErrors:
    """Turns SQLite's errors into ours: what happened, and what to do about it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, sqlite3.DatabaseError):
            raise _explained(self._path, error) from error


def _explained(path: str, error: sqlite3.DatabaseError) -> EngineError:
    code = (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF
    match code:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return FileLocked(path)
        case sqlite3.SQLITE_FULL:
            return EngineUnavailable(f"the disk of {path} is full: nothing was written; free some space")
        case sqlite3.SQLITE_READONLY:
            return EngineError(f"{path} is read-only: make the file and its directory writable")
        case sqlite3.SQLITE_CANTOPEN:
            return EngineError(f"{path} cannot be opened: does its directory exist, and may you write there?")
        case sqlite3.SQLITE_NOTADB:
            return EngineError(f"{path} is not an SQLite database: choose another file")
        case sqlite3.SQLITE_CORRUPT:
            return EngineError(f"{path} is damaged: stop all writers, run `pragma integrity_check`, restore it")
        case sqlite3.SQLITE_IOERR:
            return EngineUnavailable(f"reading or writing {path} failed ({error}); check the disk")
        case _:
            return EngineError(f"{path}: {error}")


def retry_locked(deadline: float, attempt: Callable[[], T]) -> T:
    """Repeat what found the file locked, with short pauses of random length, until it works or the time is up."""
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            # some errors of the sqlite3 module itself carry no code
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _BUSY or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(0.0005, 0.005))  # noqa: S311 - a pause, not a secret


class Savepoint:
    """Undo what happened inside if it fails, and leave the transaction usable."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("savepoint treadle")

    def __exit__(self, failed: object, *_: object) -> None:
        if failed and self._connection.in_transaction:
            self._connection.execute("rollback to treadle")
        if self._connection.in_transaction:
            self._connection.execute("release treadle")


def run(connection: sqlite3.Connection, script: Script[T]) -> T:
    """Run a script's statements; if one fails, those before it are undone."""
    with Savepoint(connection):
        return drive(script, lambda sql, text: connection.execute(sql, (text,)).fetchall())


_files: weakref.WeakSet[DatabaseFile] = weakref.WeakSet()
_fork_waits = [False]  # whether a thread waits for all calls to end, to fork; a plain value, for a child inherits it


def _let_forks_pass() -> None:
    """Wait while somebody is about to fork. Locks are not fair: a busy thread would take its own again and again."""
    while _fork_waits[0]:
        time.sleep(0.0005)


@cache
def _watch_forks() -> None:
    """Have every open file closed before this process forks; once a process."""
    forking: list[DatabaseFile] = []
    one_at_a_time = threading.Lock()

    def before() -> None:
        one_at_a_time.acquire()
        _fork_waits[0] = True
        forking[:] = list(_files)
        for file in forking:
            file.before_fork()

    def after() -> None:
        for file in forking:
            file.after_fork()
        forking.clear()
        _fork_waits[0] = False
        one_at_a_time.release()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=after, after_in_child=after)
