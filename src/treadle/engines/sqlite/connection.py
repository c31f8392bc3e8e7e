"""The database file: connections, waiting for its lock, the schema, and what its errors mean to a user."""

import hashlib
import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from treadle.errors import EngineError, EngineUnavailable, SchemaError

T = TypeVar("T")

PATIENCE = 30.0  # seconds to wait for a file that others keep locked
MINIMUM = (3, 38, 0)  # RETURNING, STRICT, ->>
WAL_RESET_FIXED = (3, 51, 3)
MEMORY = ":memory:"

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class FileLocked(EngineUnavailable):
    """Somebody else held the file's lock for as long as we would wait."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} stayed locked by another writer; repeating is safe. "
            "If that writer is a transaction of your own, enqueue inside it with .using(tx=connection)"
        )


class Migration(NamedTuple):
    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()[:16]

    @property
    def record(self) -> str:
        """The statement that notes it as applied."""
        columns = "insert into treadle_migrations (number, name, checksum)"
        return f"{columns} values ({self.number}, '{self.name}', '{self.checksum}')"


class File:
    """One SQLite file: a writer connection behind a lock, and a reader that never waits for the writer.

    No connection is open across a fork: SQLite keeps its locks by process, and a child would inherit the belief that
    it holds them. Parent and child open their own again on next use.
    """

    def __init__(self, path: str, *, synchronous: str) -> None:
        self.path = path if path == MEMORY else str(Path(path).absolute())
        self.synchronous = synchronous
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._watching = threading.Lock()
        self._reader: sqlite3.Connection | None = None
        self._watcher: sqlite3.Connection | None = None
        self.migrated: list[str] = []  # the migrations that opening the file has applied
        _files.add(self)
        _watch_forks()

    @contextmanager
    def write(self, patience: float = PATIENCE) -> Iterator[sqlite3.Connection]:
        """A transaction that holds the write lock from its first moment; committed at the end, or undone whole."""
        deadline = time.monotonic() + patience
        held = False
        try:
            held = self._writing.acquire(timeout=patience)
            if not held:
                raise FileLocked(self.path)
            with self.meaning():
                connection = self._open()
                try:
                    if connection.in_transaction:  # an interrupt came between a begin and its try
                        connection.execute("rollback")
                    self._until(deadline, lambda: connection.execute("begin immediate"))
                    yield connection
                    self._until(deadline, lambda: connection.execute("commit"))
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("rollback")
                    raise
        finally:
            if held:
                self._writing.release()

    def read(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """The rows of one query; what cannot be stored cannot be found."""
        try:
            return self.look(lambda connection: connection.execute(sql, parameters).fetchall())
        except UnicodeEncodeError:
            return []

    def look(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """What `query` finds, on a connection of its own: a reader waits for no writer."""
        deadline = time.monotonic() + PATIENCE
        with self._writing if self.path == MEMORY else self._reading, self.meaning():
            if self.path == MEMORY:
                connection = self._open()
            else:
                if self._reader is None:
                    if self._writer is None:
                        with self._writing:
                            self._open()  # the file and its schema come first
                    self._reader = self._connect()
                connection = self._reader
            return self._until(deadline, lambda: query(connection))

    def watch(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """A glance, on a connection that no slow query of this process can hold up."""
        with self._watching, self.meaning():
            if self._watcher is None:
                self._watcher = self._connect()
            watcher = self._watcher
            return self._until(time.monotonic() + 1.0, lambda: watcher.execute(sql, parameters).fetchall())

    def close(self) -> None:
        """Close both connections of this process."""
        with self._reading, self._writing, self._watching:
            self._close()

    def _close(self) -> None:
        for connection in (self._watcher, self._reader, self._writer):
            if connection is not None:
                connection.close()
        self._watcher = self._reader = self._writer = None

    @contextmanager
    def meaning(self) -> Iterator[None]:
        """Turn SQLite's errors into ours: what happened, and what to do about it."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise self._explained(error) from error

    def _explained(self, error: sqlite3.DatabaseError) -> EngineError:
        code = (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF
        where = self.path
        match code:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return FileLocked(where)
            case sqlite3.SQLITE_FULL:
                return EngineUnavailable(f"the disk of {where} is full: nothing was written; free some space")
            case sqlite3.SQLITE_READONLY:
                return EngineError(f"{where} is read-only: make the file and its directory writable")
            case sqlite3.SQLITE_CANTOPEN:
                return EngineError(f"{where} cannot be opened: does its directory exist, and may you write there?")
            case sqlite3.SQLITE_NOTADB:
                return EngineError(f"{where} is not an SQLite database: choose another file")
            case sqlite3.SQLITE_CORRUPT:
                return EngineError(f"{where} is damaged: stop all writers, run `pragma integrity_check`, restore it")
            case sqlite3.SQLITE_IOERR:
                return EngineUnavailable(f"reading or writing {where} failed ({error}); check the disk")
            case _:
                return EngineError(f"{where}: {error}")

    def before_fork(self) -> None:
        """Let every call of this process end, and close; new ones wait until the fork is done."""
        for lock in (self._reading, self._writing, self._watching):
            lock.acquire()
        if self.path != MEMORY:
            self._close()

    def after_fork(self) -> None:
        for lock in (self._watching, self._writing, self._reading):
            lock.release()

    def _open(self) -> sqlite3.Connection:
        if self._writer is None:
            if sqlite3.sqlite_version_info < MINIMUM:
                raise EngineError(f"SQLite {sqlite3.sqlite_version} is too old; treadle needs 3.38 or newer")
            connection = self._connect()
            try:
                deadline = time.monotonic() + PATIENCE
                self._until(deadline, lambda: connection.execute("pragma journal_mode = wal").fetchone())
                self.migrated += migrate(connection, deadline=deadline, until=self._until)
            except BaseException:
                connection.close()
                raise
            self._writer = connection
        return self._writer

    def _connect(self) -> sqlite3.Connection:
        # isolation_level=None: we say begin and commit. timeout=0: _until waits, more fairly than SQLite's own
        # handler, whose naps grow to 100 ms and starve whoever waited longest.
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            deadline = time.monotonic() + PATIENCE
            for setting in (f"synchronous = {self.synchronous}", "cache_size = -32000"):
                self._until(deadline, partial(connection.execute, f"pragma {setting}"))
        except BaseException:
            connection.close()
            raise
        return connection

    @staticmethod
    def _until(deadline: float, attempt: Callable[[], T]) -> T:
        """Repeat what found the file locked, with short naps of random length, until it works or time is up."""
        while True:
            try:
                return attempt()
            except sqlite3.OperationalError as error:
                # some errors of the sqlite3 module itself carry no code
                if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _BUSY or time.monotonic() >= deadline:
                    raise
            time.sleep(random.uniform(0.0005, 0.005))  # noqa: S311 - spreads the waiters, keeps no secret


_files: weakref.WeakSet[File] = weakref.WeakSet()


@cache
def _watch_forks() -> None:
    """Have every open file closed before this process forks; once a process."""
    forking: list[File] = []
    one_at_a_time = threading.Lock()

    def before() -> None:
        one_at_a_time.acquire()
        forking[:] = list(_files)
        for file in forking:
            file.before_fork()

    def after() -> None:
        for file in forking:
            file.after_fork()
        forking.clear()
        one_at_a_time.release()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=after, after_in_child=after)


def migrations() -> list[Migration]:
    """The numbered files beside this module, in order."""
    folder = resources.files("treadle.engines.sqlite") / "migrations"
    found = sorted((item for item in folder.iterdir() if item.name.endswith(".sql")), key=lambda item: item.name)
    return [Migration(int(item.name[:4]), item.name[:-4], item.read_text("utf-8")) for item in found]


LEDGER = """create table if not exists treadle_migrations (
    number integer primary key,
    name text not null,
    checksum text not null,
    applied_at text not null default current_timestamp
)"""


def migrate(
    connection: sqlite3.Connection,
    *,
    deadline: float,
    until: Callable[[float, Callable[[], Any]], Any],
) -> list[str]:
    """Apply what is missing, in one transaction that starting processes take turns at; the names applied now."""
    if not until(deadline, lambda: differences(connection)):
        return []
    until(deadline, lambda: connection.execute("begin immediate"))
    try:
        connection.execute(LEDGER)
        done = ledger(connection)
        refuse_strangers(done)
        missing = [step for step in migrations() if step.number not in done]
        for step in missing:
            for statement in statements(step.sql):
                connection.execute(statement)
            connection.execute(step.record)
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise
    if drift := until(deadline, lambda: differences(connection)):
        raise SchemaError(
            "the tables are not as treadle left them: " + "; ".join(drift) + ". Undo the change by hand, or move the "
            "jobs to a fresh file; `treadle migrate --sql` prints the expected schema"
        )
    return [step.name for step in missing]


def ledger(connection: sqlite3.Connection) -> dict[int, tuple[str, str]]:
    """The migrations this file has seen: number -> (name, checksum)."""
    rows = connection.execute("select number, name, checksum from treadle_migrations").fetchall()
    return {number: (name, checksum) for number, name, checksum in rows}


def refuse_strangers(done: dict[int, tuple[str, str]]) -> None:
    """Stop before a file that a newer treadle wrote, or whose migrations are not ours."""
    known = {step.number: step for step in migrations()}
    for number, (name, checksum) in done.items():
        if number not in known:
            raise SchemaError(f"migration {name} comes from a newer treadle: upgrade treadle to open this file")
        if checksum != known[number].checksum:
            raise SchemaError(f"migration {name} differs from the one applied here: install the treadle that wrote it")


def differences(connection: sqlite3.Connection) -> list[str]:
    """What is missing, altered or unknown among treadle's tables and indexes."""
    wanted, found = _expected(), _schema(connection)
    missing = [f"{name} is missing" for name in wanted if name not in found]
    altered = [f"{name} was altered" for name in wanted if name in found and found[name] != wanted[name]]
    unknown = [f"{name} is unknown" for name in found if name not in wanted]
    if "treadle_migrations" in found:
        done = ledger(connection)
        refuse_strangers(done)
    if not missing and not altered and not unknown:
        missing = [f"migration {step.name} is not recorded" for step in migrations() if step.number not in done]
    return missing + altered + unknown


def statements(sql: str) -> Iterator[str]:
    """The single statements of a migration."""
    gathered = ""
    for line in sql.splitlines(keepends=True):
        gathered += line
        if sqlite3.complete_statement(gathered):
            yield gathered
            gathered = ""


@cache
def _expected() -> dict[str, str]:
    with closing(sqlite3.connect(MEMORY)) as scratch:
        scratch.execute(LEDGER)
        for step in migrations():
            scratch.executescript(step.sql)
        return _schema(scratch)


def _schema(connection: sqlite3.Connection) -> dict[str, str]:
    rows = connection.execute(
        "select name, sql from sqlite_schema where name glob 'treadle_*' and sql is not null"
    ).fetchall()
    return {name: " ".join(sql.split()) for name, sql in rows}
