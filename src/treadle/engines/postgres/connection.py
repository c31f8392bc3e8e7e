"""Connections to the server: made when needed, kept while healthy, given up when they stall; what errors mean.

Nothing here leaves state in a session: no prepared statements unless asked for, no settings outside a transaction. So
every statement may run on another server connection, as it does behind a pooler in transaction mode.
"""

import os
import random
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import make_conninfo

from treadle.engines.rows import Row
from treadle.errors import ConfigError, EngineError, EngineUnavailable, SchemaError

T = TypeVar("T")

CONNECT = 5  # seconds to wait for a connection, for each host named
CALL = 30.0  # seconds to wait for an answer
SILENCE = 15_000  # milliseconds after which an unacknowledged packet ends a connection, on either side
IDLE = 10  # connections kept while nobody uses them
AGE = 600.0  # seconds after which a connection is made anew, so that a failover or a new address is followed

# A transaction of ours that is left open by a frozen process holds its row locks no longer than this.
FROZEN = "10s"

# What a caller's mistake or a value can cause: the statement is refused, the store is well.
DATA_ERRORS = (ValueError, OverflowError, pg.DataError, pg.IntegrityError, pg.ProgramLimitExceeded)

# A primary that has become a standby, a transaction that we left open too long: the next connection does better.
_PASSING = (pg.ReadOnlySqlTransaction, pg.IdleInTransactionSessionTimeout)
_NOT_MIGRATED = (pg.UndefinedTable, pg.UndefinedColumn, pg.InvalidSchemaName, pg.UndefinedFunction, pg.DatatypeMismatch)


# What the server, or libpq, says about a connection that no repeating will make; the driver keeps no code for it.
_LASTING = re.compile(
    r'(database|role) "[^"]*" does not exist|authentication failed for user|no password supplied|no pg_hba.conf entry'
    r"|not permitted to log in|invalid \w+ value|invalid port number"
)
_PARAMETER = re.compile(r'invalid URI query parameter: "\w+"')


class NoAnswer(psycopg.OperationalError):
    """The server, or the network before it, kept silent for as long as we would wait."""


class Connection(psycopg.Connection[Row]):
    """A connection whose every wait for the server has an end: a stalled network must not stall a lease."""

    patience: float = CALL
    born: float = 0.0

    def wait(self, gen: Any, interval: float = 0.1, *more: Any, **options: Any) -> Any:
        return super().wait(self._bounded(gen), interval, *more, **options)

    def _bounded(self, gen: Any) -> Any:
        """The driver's own generator, which asks for the socket; resumed every `interval`, it can be ended in time."""
        deadline = time.monotonic() + self.patience
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                wanted = gen.send(ready)
                if not ready and time.monotonic() > deadline:
                    raise NoAnswer(f"no answer within {self.patience:g} s")
        except StopIteration as end:
            return end.value


class Connections:
    """A stack of idle connections; a call takes one or makes one, so no thread waits for another's."""

    def __init__(self, conninfo: str, *, prepare: bool) -> None:
        self.where = address(conninfo)  # for messages: no password in it
        self._conninfo = conninfo
        given = psycopg.conninfo.conninfo_to_dict(conninfo)
        self._options = given.get("options") or ""
        self._limit = int(given.get("connect_timeout") or CONNECT)
        self._prepare = prepare
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        _all.add(self)
        weakref.finalize(self, _let_go, self._idle)  # an app that nobody closed
        self._plain = False  # whether the server, or a pooler before it, refuses our options at the start

    def run(self, work: Callable[[Connection], T], *, patience: float = CALL, persist: float = 0.0) -> T:
        """What `work` returns, on some connection; repeated on a new one if the old one turns out to be dead.

        `patience` bounds the wait for an answer, over all connections tried; `persist` how long an unavailable server
        is tried again. Everything an engine does may be repeated: ids, tokens and revisions see to that.
        """
        deadline = time.monotonic() + persist
        out_of_patience = time.monotonic() + patience
        tries = 0
        while True:
            fresh = True
            try:
                with self._connection(out_of_patience - time.monotonic()) as connection:
                    fresh = connection.born == 0.0
                    connection.born = connection.born or time.monotonic()
                    return work(connection)
            except EngineUnavailable as error:
                tries += 1
                if isinstance(error.__cause__, (NoAnswer, pg.ReadOnlySqlTransaction)):
                    self.close()  # the others lead to the same place
                # A dead connection from the stack says nothing about the server.
                if fresh or tries > IDLE + 1 or time.monotonic() >= out_of_patience:
                    wait = min(1.0, 0.02 * 2 ** min(tries, 6)) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
                    if time.monotonic() + wait >= deadline:
                        raise
                    time.sleep(wait)
                    out_of_patience = time.monotonic() + patience

    def transaction(
        self, work: Callable[[Connection], T], *, patience: float = CALL, persist: float = 0.0, waits: str = "0"
    ) -> T:
        """The same, in one transaction of several statements; `waits` bounds the wait for a lock ("0" does not)."""

        def inside(connection: Connection) -> T:
            # One round trip: should this process freeze in the middle, the server lets go.
            connection.execute(
                f"begin isolation level read committed; set local lock_timeout = '{waits}';"
                f" set local idle_in_transaction_session_timeout = '{FROZEN}'"
            )
            try:
                result = work(connection)
                connection.execute("commit")
            except BaseException:
                if not connection.closed and not connection.broken:
                    connection.execute("rollback")
                raise
            return result

        return self.run(inside, patience=patience, persist=persist)

    def connect(self) -> Connection:
        """A new connection, which the caller must close."""
        with self.meaning():
            return self._connect()

    def after_fork(self) -> None:
        """In a child: the sockets are our parent's, and so may be whoever held the lock."""
        self._lock = threading.Lock()
        self._idle.clear()

    def close(self) -> None:
        """Close what is idle."""
        with self._lock:
            idle = list(self._idle)
            self._idle.clear()
        for connection in idle:
            connection.close()

    @contextmanager
    def meaning(self) -> Iterator[None]:
        """Turn the driver's errors into ours: what happened, and what to do about it."""
        try:
            yield
        except psycopg.Error as error:
            raise self._explained(error) from error

    def _explained(self, error: psycopg.Error) -> EngineError:
        said = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, _NOT_MIGRATED):
            return SchemaError(f"{self.where}: {said}. Run `treadle migrate` (or set auto_migrate) first")
        if isinstance(error, pg.InsufficientPrivilege) and "row-level security" in said:
            return EngineError(f"{self.where}: {said}. This role sees one tenant at a time: use app.tenant(name)")
        if isinstance(error, pg.InsufficientPrivilege):
            return EngineError(f"{self.where}: {said}. Grant this role the rights it needs on the schema")
        if isinstance(error, (pg.InvalidPassword, pg.InvalidAuthorizationSpecification, pg.ProgramLimitExceeded)):
            return EngineError(f"{self.where}: {said}")
        if isinstance(error, psycopg.InterfaceError) or type(error) in (psycopg.OperationalError, NoAnswer):
            return EngineUnavailable(f"{self.where} does not answer ({said}); repeating is safe")
        if isinstance(error, (psycopg.OperationalError, *_PASSING)):
            return EngineUnavailable(f"{self.where}: {said}; repeating is safe")
        return EngineError(f"{self.where}: {said}")

    @contextmanager
    def _connection(self, patience: float) -> Iterator[Connection]:
        with self.meaning():
            connection = self._take(patience)
            connection.patience = max(patience, 0.05)
            try:
                yield connection
            except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError):
                connection.close()  # whatever state it is in, the next one is better
                raise
            except BaseException:
                if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                    connection.close()
                self._give_back(connection)
                raise
            self._give_back(connection)

    def _take(self, patience: float) -> Connection:
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if not connection.closed and time.monotonic() - connection.born < AGE:
                    return connection
                connection.close()
        return self._connect(patience)

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            if not connection.closed and len(self._idle) < IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def _connect(self, patience: float = CONNECT) -> Connection:
        # The server's own tcp_user_timeout: a frozen client whose reply does not fit the socket must not keep
        # row locks. A pooler may refuse such options at the start; it has settings of its own for that.
        plain = self._plain  # as it is now: another thread may learn meanwhile that it must be
        options = {} if plain else {"options": f"-c tcp_user_timeout={SILENCE} -c jit=off {_ISOLATION} {self._options}"}
        try:
            limit = min(self._limit, max(2, int(patience)))  # the driver takes less than two seconds for two
            wanted = make_conninfo(self._conninfo, connect_timeout=limit, **options)
            connection = Connection.connect(wanted, autocommit=True)
        except psycopg.OperationalError as error:
            if _LASTING.search(str(error)) and "multiple connection attempts" not in str(error):
                raise EngineError(f"{self.where}: {' '.join(str(error).split())}") from error
            if plain or "startup parameter" not in str(error):
                raise
            self._plain = True
            return self._connect(patience)
        connection.prepare_threshold = 5 if self._prepare else None
        return connection


# A claim sees a pause that was made before it only in a snapshot of its own.
_ISOLATION = "-c default_transaction_isolation=read\\ committed"

_all: weakref.WeakSet[Connections] = weakref.WeakSet()


def _let_go(idle: list[Connection]) -> None:
    for connection in idle:
        connection.close()


def _forked() -> None:
    for connections in _all:
        connections.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def address(url: str) -> str:
    """Where that is, for messages: every host, the database, and nothing secret."""
    given = psycopg.conninfo.conninfo_to_dict(url)
    hosts = str(given.get("host") or given.get("hostaddr") or "the local socket").split(",")
    ports = str(given.get("port") or "").split(",")
    ports = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
    named = ",".join(f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=True))
    return f"PostgreSQL at {named}/{given.get('dbname') or ''}"


def conninfo(url: str, setting: str = "url") -> str:
    """The URL as libpq wants it, with our time limits where it names none."""
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        known = _PARAMETER.search(str(error))  # other messages of libpq show the URL, password and all
        said = f"{known[0]}; " if known else ""
        raise ConfigError(f"{setting}: {said}write postgresql://user:password@host/database") from None
    if not all(port.isdigit() for port in str(given.get("port") or "5432").split(",") if port):
        raise ConfigError(f"{setting}: port {given['port']!r} must be a number")
    ours: dict[str, str | int] = {
        "connect_timeout": CONNECT,
        "tcp_user_timeout": SILENCE,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "target_session_attrs": "read-write",
        "application_name": "treadle",
    }
    return make_conninfo(url, **{name: value for name, value in ours.items() if name not in given})
