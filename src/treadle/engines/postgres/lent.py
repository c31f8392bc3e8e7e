"""The PostgreSQL engine on a connection that somebody else opens, commits and closes.

The owner's transaction goes on after our call, and its connection too: so we refuse what would only half work on them,
and leave no setting, handler or running statement of ours behind. What fails is undone by the owner's savepoint or
rollback.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from treadle.engines.postgres import rls
from treadle.engines.postgres.claim import PostgresTurns
from treadle.engines.postgres.clock import ServerClock
from treadle.engines.postgres.connection import Connections
from treadle.engines.postgres.engine import PostgresEngine
from treadle.engines.postgres.enqueue import enqueue
from treadle.engines.postgres.notify import Notifications
from treadle.engines.postgres.schema import PostgresSchema
from treadle.engines.postgres.session import PostgresStore, Session
from treadle.engines.postgres.turn import TURN, ClaimedRows
from treadle.engines.postgres.wire import Connection, NoAnswer, Value
from treadle.engines.scripts import Lend, block_of
from treadle.engines.values import Receipt
from treadle.errors import ConfigError, NotPossible
from treadle.model import Job
from treadle.model.alike import have_keys

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn

T = TypeVar("T")

CANCEL_TIMEOUT = 2.0  # seconds to end a statement for whose answer we have waited in vain

# The settings that say how our text is read, and what they must be.
_NEEDED = {"client_encoding": "UTF8", "standard_conforming_strings": "on"}

# The settings of the owner's transaction that our statements change.
_READ_SETTINGS = f"select current_setting('lock_timeout'), coalesce(current_setting('{rls.SETTING}', true), '')"
_SET_LOCK_TIMEOUT = "select set_config('lock_timeout', %s, true)"
_PUT_BACK = f"""
select set_config(s.name, s.before, true)
from (values ('lock_timeout', %s::text), ('{rls.SETTING}', %s::text)) as s(name, before)
where coalesce(current_setting(s.name, true), '') <> s.before
"""


class LentConnections(Connections):
    """The one connection that is lent; each call is one block of `lend`."""

    retry_for = 0.0  # its owner knows what to do when it is gone

    def __init__(self, lend: Lend) -> None:
        super().__init__("", prepare="off")
        self.where = "your connection to PostgreSQL"
        self._lend = lend

    def run(self, work: Callable[[Connection], T], *, answer_timeout: float | None = None, retry_for: float = 0.0) -> T:  # noqa: ARG002
        with self._borrowed(answer_timeout) as connection:
            return work(connection)

    def transaction(
        self,
        work: Callable[[Connection], T],
        *,
        answer_timeout: float | None = None,
        retry_for: float = 0.0,  # noqa: ARG002
        lock_timeout: str = "0",
    ) -> T:
        """The same, for work that changes settings. A `lock_timeout` of "0" waits as long as the owner would."""
        with self._borrowed(answer_timeout) as connection, _settings_kept(connection):
            if lock_timeout != "0":
                connection.execute(_SET_LOCK_TIMEOUT, [lock_timeout])
            return work(connection)

    def connect(self) -> Connection:
        raise NotPossible("lend: this app opens no connection; give what needs one an app without `lend`")

    @contextmanager
    def _borrowed(self, answer_timeout: float | None) -> Iterator[Connection]:
        with self.translated_errors(), block_of(self._lend) as lent:
            pgconn = getattr(lent, "pgconn", None)
            if pgconn is None:
                raise ConfigError(
                    f"lend: it must yield a connection of psycopg, not {type(lent).__name__}; a session or a "
                    "connection of SQLAlchemy has it as `.connection.driver_connection`"
                )
            _check(pgconn)
            handlers = pgconn.notice_handler, pgconn.notify_handler
            try:
                connection = _over(pgconn)
                pgconn.notify_handler = handlers[1]  # a notification may come at any moment, and comes once
                connection.answer_timeout = self.answer_timeout if answer_timeout is None else answer_timeout
                yield connection
            except NoAnswer:
                _end_statement(connection)
                raise
            finally:
                pgconn.notice_handler, pgconn.notify_handler = handlers


class LentKeyConnections(LentConnections):
    """The same for enqueues with a key: their one statement sets the lock_timeout."""

    def run(self, work: Callable[[Connection], T], *, answer_timeout: float | None = None, retry_for: float = 0.0) -> T:  # noqa: ARG002
        return self.transaction(work, answer_timeout=answer_timeout)


class LentNotifications(Notifications):
    """Tells the owner of what was written. Nobody is notified before the commit, and nobody listens."""

    def __init__(self, server: LentConnections, channel: str, written: Callable[[], None]) -> None:
        super().__init__(server.connect, channel)
        self._written = written

    def wake(self) -> None:
        self._written()

    def channel_to_notify(self) -> None:
        return None

    def receives(self, send: Callable[[], object], *, within: float = 2.0) -> bool:  # noqa: ARG002
        return False

    def _start(self) -> None:
        pass


class LentTurns(PostgresTurns):
    """Claims only where each statement sees what was committed before it."""

    def _rows(self, connection: Connection, sql: str, values: Sequence[Value]) -> ClaimedRows:
        if sql == TURN and "token" in json.loads(str(values[-1])):  # it claims
            [[isolation]] = connection.execute("show transaction_isolation").fetchall()
            if isolation not in ("read committed", "read uncommitted"):  # to PostgreSQL these two are the same
                raise ConfigError(
                    f"lend: a claim in a {isolation} transaction would not see a pause that was made since it began; "
                    "lend it a read committed transaction"
                )
        return super()._rows(connection, sql, values)


class LentPostgresEngine(PostgresEngine):
    """An Engine on a lent connection. It makes no tables by itself: `migrate` does."""

    def __init__(self, server: Connections, schema: PostgresSchema, store: PostgresStore, with_keys: Session) -> None:
        super().__init__(server, schema, store)
        self.turns = LentTurns(store)
        self._with_keys = with_keys

    def enqueue(self, jobs: Sequence[Job], *, now: datetime | None = None) -> Sequence[Receipt]:
        if have_keys(jobs):
            return enqueue(self._store._replace(session=self._with_keys), jobs, now)
        return super().enqueue(jobs, now=now)

    def for_tenant(self, tenant: str) -> "LentPostgresEngine":
        store, with_keys = self._store.for_tenant(tenant), self._with_keys.for_tenant(tenant)
        return LentPostgresEngine(self.server, self._schema, store, with_keys)


def _check(pgconn: "PGconn") -> None:
    """ConfigError if calls on this connection would be half done, or store garbled text."""
    status = pgconn.transaction_status
    if status == TransactionStatus.UNKNOWN:
        raise psycopg.OperationalError("the connection is closed")
    if pgconn.pipeline_status != PipelineStatus.OFF:
        raise ConfigError("lend: this connection is in pipeline mode; lend it before or after `conn.pipeline()`")
    if status == TransactionStatus.ACTIVE:
        raise ConfigError("lend: this connection is busy with another statement; lend it to one call at a time")
    if status == TransactionStatus.IDLE:
        raise ConfigError(
            "lend: begin a transaction before you yield the connection, such as `with conn.transaction():`; otherwise "
            "our statements would commit one by one"
        )
    for name, wanted in _NEEDED.items():
        value = pgconn.parameter_status(name.encode()) or b"unknown"
        if value.decode() != wanted:
            raise ConfigError(
                f"lend: {name} of this connection is {value.decode()}, and treadle's statements are written for "
                f"{wanted}; connect with {name}={wanted}"
            )


@contextmanager
def _settings_kept(connection: Connection) -> Iterator[None]:
    """Put the owner's settings back at the end. After an error of the server, the owner's rollback does."""
    [before] = connection.execute(_READ_SETTINGS).fetchall()
    try:
        yield
    except BaseException:
        if connection.pgconn.transaction_status == TransactionStatus.INTRANS:
            with suppress(psycopg.Error):  # what went wrong first is what the caller should hear of
                connection.execute(_PUT_BACK, before)
        raise
    connection.execute(_PUT_BACK, before)


def _end_statement(connection: Connection) -> None:
    """End the statement that goes on at the server: the owner could not even roll back before."""
    with suppress(psycopg.Error):
        connection.cancel_safe(timeout=CANCEL_TIMEOUT)
        connection.answer_timeout = CANCEL_TIMEOUT
        connection._answer()


def _over(pgconn: "PGconn") -> Connection:
    """Our own face of the driver's connection: neither its cursors nor its adapters are the owner's."""
    connection = Connection(pgconn)
    connection._autocommit = True  # the owner begins and commits
    connection._pool = None  # the driver then does not expect it to be closed by us
    connection.prepare_threshold = None
    return connection


def lent_engine(
    lend: Lend,
    *,
    written: Callable[[], None],
    schema_name: str,
    clock: Callable[[], datetime] | None,
    audit_all: bool,
    plain_sql: bool | None = None,
) -> LentPostgresEngine:
    """An engine on a lent connection; its parameters are those of `connect_on`."""
    server = LentConnections(lend)
    schema = PostgresSchema(server, schema_name, auto_migrate=False, plain_sql=plain_sql)
    notifications = LentNotifications(server, f"treadle_{schema.name}", written)
    store = PostgresStore(Session(server, schema), ServerClock(server, clock), notifications, audit_all)
    return LentPostgresEngine(server, schema, store, Session(LentKeyConnections(lend), schema))
