"""Connections to the server: opened when needed, kept while healthy, closed when they stall; what errors mean.

Nothing here leaves state in a connection that may lead to another server connection with each statement, as behind a
pooler in transaction mode: no settings outside a transaction, no prepared statements. Where it leads straight to the
server, the calls of our own functions are prepared.
"""

import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import make_conninfo

from treadle.engines.postgres.wire import ANSWER_TIMEOUT, Connection, NoAnswer
from treadle.errors import ConfigError, EngineError, EngineUnavailable, SchemaError
from treadle.model.backoff import Backoff

T = TypeVar("T")

CONNECT_TIMEOUT = 5  # seconds to wait for a connection, for each host in the URL
RETRY_FOR = 5.0  # seconds for which a caller's own calls are tried again while the server does not answer
TCP_TIMEOUT = 15_000  # milliseconds after which an unacknowledged packet ends a connection, on either side
MAX_IDLE = 10  # connections kept while nobody uses them
MAX_AGE = 600.0  # seconds after which a connection is opened anew, so that a failover or a new address is followed

# A frozen process leaves its transaction open; the server then ends it, and its row locks, after this time.
IDLE_IN_TRANSACTION_TIMEOUT = "10s"

# What a caller's mistake or a value can cause: the statement is refused, and the store is well.
DATA_ERRORS = (ValueError, OverflowError, pg.DataError, pg.IntegrityError, pg.ProgramLimitExceeded)
WRITE_ERRORS = (EngineError, *DATA_ERRORS)  # what a write may raise: see refusal() and is_locked()

# A primary that became a standby, a transaction that we left open too long: the next connection may succeed.
_TRANSIENT = (pg.ReadOnlySqlTransaction, pg.IdleInTransactionSessionTimeout)
# What was prepared is not what it was, since a migration came; or it is gone, so this is a pooler after all.
_NOT_PREPARED = (pg.InvalidSqlStatementName, pg.DuplicatePreparedStatement, pg.FeatureNotSupported)
_NOT_MIGRATED = (pg.UndefinedTable, pg.UndefinedColumn, pg.InvalidSchemaName, pg.UndefinedFunction, pg.DatatypeMismatch)


# Messages of the server or of libpq about a connection that will fail every time; the driver has no code for them.
_PERMANENT = re.compile(
    r'(database|role) "[^"]*" does not exist|authentication failed for user|no password supplied|no pg_hba.conf entry'
    r"|not permitted to log in|invalid \w+ value|invalid port number"
)
_PARAMETER = re.compile(r'invalid URI query parameter: "\w+"')


class Connections:
    """A stack of idle connections. A call takes one or opens one, so no thread waits for the connection of another."""

    answer_timeout: float = ANSWER_TIMEOUT
    retry_for: float = RETRY_FOR

    def __init__(self, conninfo: str, *, prepare: str) -> None:
        self.where = address(conninfo)  # for messages: without the password
        self._conninfo = conninfo
        given = psycopg.conninfo.conninfo_to_dict(conninfo)
        self._options = given.get("options") or ""
        self._connect_timeout = int(given.get("connect_timeout") or CONNECT_TIMEOUT)
        self._prepare = prepare
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        _open.add(self)
        weakref.finalize(self, _close_all, self._idle)  # an app that nobody closed
        self._plain = False  # whether the server, or a pooler before it, refuses our startup options

    def run(self, work: Callable[[Connection], T], *, answer_timeout: float | None = None, retry_for: float = 0.0) -> T:
        """What `work` returns, on some connection; repeated on a new one if the old one turns out to be dead.

        `answer_timeout` bounds the wait for an answer, over all connections tried; `retry_for` says how long an
        unavailable server is tried again. Everything an engine does may be repeated: ids, tokens and revisions see to
        that.
        """
        timeout = self.answer_timeout if answer_timeout is None else answer_timeout
        give_up_at, answer_by = time.monotonic() + retry_for, time.monotonic() + timeout
        failures = 0
        while True:
            fresh = True
            try:
                with self._connection(answer_by - time.monotonic()) as connection:
                    fresh = connection.opened_at == 0.0
                    connection.opened_at = connection.opened_at or time.monotonic()
                    return work(connection)
            except EngineUnavailable as error:
                failures += 1
                if isinstance(error.__cause__, (NoAnswer, pg.ReadOnlySqlTransaction)):
                    self.close()  # the other connections lead to the same server
                # A dead connection from the stack says nothing about the server.
                if fresh or failures > MAX_IDLE + 1 or time.monotonic() >= answer_by:
                    wait = _RETRY_DELAY.spread(failures)
                    if time.monotonic() + wait >= give_up_at:
                        raise
                    time.sleep(wait)
                    answer_by = time.monotonic() + timeout

    def transaction(
        self,
        work: Callable[[Connection], T],
        *,
        answer_timeout: float | None = None,
        retry_for: float = 0.0,
        lock_timeout: str = "0",
    ) -> T:
        """The same, in one transaction of several statements; a `lock_timeout` of "0" waits for locks without end."""

        def inside(connection: Connection) -> T:
            # One round trip. If this process freezes in the middle, the server ends the transaction.
            connection.execute(
                f"begin isolation level read committed; set local lock_timeout = '{lock_timeout}';"
                f" set local idle_in_transaction_session_timeout = '{IDLE_IN_TRANSACTION_TIMEOUT}'"
            )
            try:
                result = work(connection)
                connection.execute("commit")
            except BaseException:
                if not connection.closed and not connection.broken:
                    with suppress(psycopg.Error):  # what went wrong first is what the caller should hear of
                        connection.execute("rollback")
                raise
            return result

        return self.run(inside, answer_timeout=answer_timeout, retry_for=retry_for)

    def connect(self) -> Connection:
        """A new connection, which the caller must close."""
        with self.translated_errors():
            return self._connect()

    def after_fork(self) -> None:
        """In a child process: the sockets are the parent's, and a thread of the parent may have held the lock."""
        self._lock = threading.Lock()
        self._idle.clear()

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle = list(self._idle)
            self._idle.clear()
        for connection in idle:
            connection.close()

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Turn the driver's errors into ours: what happened, and what to do about it."""
        try:
            yield
        except psycopg.Error as error:
            raise self._explained(error) from error

    def _explained(self, error: psycopg.Error) -> EngineError:
        message = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, _NOT_MIGRATED):
            return SchemaError(f"{self.where}: {message}. Run `treadle migrate` (or set auto_migrate) first")
        if isinstance(error, pg.InsufficientPrivilege) and "row-level security" in message:
            return EngineError(f"{self.where}: {message}. This role sees one tenant at a time: use app.tenant(name)")
        if isinstance(error, pg.InsufficientPrivilege):
            return EngineError(f"{self.where}: {message}. Grant this role the rights it needs on the schema")
        if isinstance(error, (pg.InvalidPassword, pg.InvalidAuthorizationSpecification, pg.ProgramLimitExceeded)):
            return EngineError(f"{self.where}: {message}")
        if isinstance(error, psycopg.InterfaceError) or type(error) in (psycopg.OperationalError, NoAnswer):
            return EngineUnavailable(f"{self.where} does not answer ({message}); repeating is safe")
        if isinstance(error, (psycopg.OperationalError, *_TRANSIENT)):
            return EngineUnavailable(f"{self.where}: {message}; repeating is safe")
        return EngineError(f"{self.where}: {message}")

    @contextmanager
    def _connection(self, timeout: float) -> Iterator[Connection]:
        with self.translated_errors():
            connection = self._take(timeout)
            connection.answer_timeout = max(timeout, 0.05)
            try:
                yield connection
            except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError):
                connection.close()  # its state is unknown; the next call opens another
                raise
            except _NOT_PREPARED as error:
                if not connection.prepares:
                    self._give_back(connection)
                    raise
                connection.close()
                self.close()  # the others have prepared the same
                if not isinstance(error, pg.FeatureNotSupported):
                    self._prepare = "off"
                raise EngineUnavailable(f"{self.where}: {error}; repeating is safe") from error
            except BaseException:
                if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                    connection.close()
                self._give_back(connection)
                raise
            self._give_back(connection)

    def _take(self, timeout: float) -> Connection:
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if not connection.closed and time.monotonic() - connection.opened_at < MAX_AGE:
                    return connection
                connection.close()
        return self._connect(timeout)

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            if not connection.closed and len(self._idle) < MAX_IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def _connect(self, timeout: float = CONNECT_TIMEOUT) -> Connection:
        # The server's own tcp_user_timeout: a frozen client whose reply does not fit the socket must not keep row
        # locks. A pooler may refuse startup options; it has settings of its own for that.
        plain = self._plain  # as it is now: another thread may change it meanwhile
        options = (
            {} if plain else {"options": f"-c tcp_user_timeout={TCP_TIMEOUT} -c jit=off {_ISOLATION} {self._options}"}
        )
        try:
            limit = min(self._connect_timeout, max(2, int(timeout)))  # the driver takes less than two seconds for two
            wanted = make_conninfo(self._conninfo, connect_timeout=limit, **options)
            connection = Connection.connect(wanted, autocommit=True)
        except psycopg.OperationalError as error:
            if _PERMANENT.search(str(error)) and "multiple connection attempts" not in str(error):
                raise EngineError(f"{self.where}: {' '.join(str(error).split())}") from error
            if plain or "startup parameter" not in str(error):
                raise
            self._plain = True
            return self._connect(timeout)
        connection.answer_timeout = max(timeout, 0.05)
        connection.prepare_threshold = None
        try:
            connection.prepares = self._prepare == "on" or (
                self._prepare == "auto" and _leads_to_the_server(connection)
            )
        except BaseException:
            connection.close()
            raise
        return connection


def _leads_to_the_server(connection: Connection) -> bool:
    """Whether no pooler is in between: a pooler does not know, when it answers, which server process will serve us."""
    [[pid]] = connection.execute("select pg_backend_pid()").fetchall()
    return bool(pid == connection.info.backend_pid)


_RETRY_DELAY = Backoff(0.02, 1.0)

# Each claim needs a new snapshot: in an older one it would not see a pause that was made before it.
_ISOLATION = "-c default_transaction_isolation=read\\ committed"

_open: weakref.WeakSet[Connections] = weakref.WeakSet()


def _close_all(idle: list[Connection]) -> None:
    for connection in idle:
        connection.close()


def _forked() -> None:
    for connections in _open:
        connections.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def refusal(error: Exception) -> str:
    """Why the server refused a value; any other error is raised again."""
    cause = error.__cause__ if isinstance(error, EngineError) else error
    if not isinstance(cause, DATA_ERRORS):
        raise error
    return str(cause).partition("\n")[0]


def is_locked(error: Exception) -> bool:
    """Whether another open transaction kept us waiting longer than our lock_timeout."""
    return isinstance(error.__cause__, pg.LockNotAvailable)


def address(url: str) -> str:
    """Where that is, for messages: every host and the database, and nothing secret."""
    given = psycopg.conninfo.conninfo_to_dict(url)
    hosts = str(given.get("host") or given.get("hostaddr") or "the local socket").split(",")
    ports = str(given.get("port") or "").split(",")
    ports = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
    named = ",".join(f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=True))
    return f"PostgreSQL at {named}/{given.get('dbname') or ''}"


def conninfo(url: str, setting: str = "url") -> str:
    """The URL as libpq wants it, with our timeouts where it names none."""
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        known = _PARAMETER.search(str(error))  # other messages of libpq show the URL with its password
        problem = f"{known[0]}; " if known else ""
        raise ConfigError(f"{setting}: {problem}write postgresql://user:password@host/database") from None
    if not all(port.isdigit() for port in str(given.get("port") or "5432").split(",") if port):
        raise ConfigError(f"{setting}: port {given['port']!r} must be a number")
    ours: dict[str, str | int] = {
        "connect_timeout": CONNECT_TIMEOUT,
        "tcp_user_timeout": TCP_TIMEOUT,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "target_session_attrs": "read-write",
        "application_name": "treadle",
    }
    ours = {name: value for name, value in ours.items() if name not in given}
    return make_conninfo(url, **ours, client_encoding="UTF8")  # whatever PGCLIENTENCODING says: wire.py writes it so
