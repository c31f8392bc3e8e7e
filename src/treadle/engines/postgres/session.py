"""Statements for one schema, and for one tenant where row-level security is on.

`@` in a statement stands for the schema. A script is run the same way on our connection and in the caller's
transaction.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import psycopg

from treadle.engines.postgres import rls
from treadle.engines.postgres.clock import ServerClock
from treadle.engines.postgres.connection import Connections
from treadle.engines.postgres.notify import Notifications
from treadle.engines.postgres.schema import PostgresSchema, named
from treadle.engines.postgres.wire import Connection, Value
from treadle.engines.rows import Row
from treadle.engines.scripts import Script, drive

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

T = TypeVar("T")

Values = Sequence[Any] | Mapping[str, Any]
Query = Callable[[str, Values], list[Row]]
"""Runs a query with the driver's placeholders; its rows."""

LOCK_TIMEOUT = "100ms"  # how long a write waits for a key that another open transaction holds


class Session:
    """Runs statements on some connection, opening the schema first."""

    def __init__(self, server: Connections, schema: PostgresSchema, tenant: str | None = None) -> None:
        self._server, self._schema, self._tenant = server, schema, tenant

    def for_tenant(self, tenant: str) -> "Session":
        """The same connections; with row-level security each transaction names the tenant."""
        return Session(self._server, self._schema, tenant)

    def run(self, work: Callable[[Connection], T], *, answer_timeout: float | None = None, retry_for: float = 0.0) -> T:
        """What `work` returns on some connection; a single statement is a transaction by itself."""
        self._open()
        if self.isolated:
            return self._server.transaction(self._as_tenant(work), answer_timeout=answer_timeout, retry_for=retry_for)
        return self._server.run(work, answer_timeout=answer_timeout, retry_for=retry_for)

    def transact(self, work: Callable[[Connection], T], *, retry_for: float = 0.0, lock_timeout: str = "0") -> T:
        """What `work` returns in a transaction of several statements."""
        self._open()
        return self._server.transaction(self._as_tenant(work), retry_for=retry_for, lock_timeout=lock_timeout)

    def run_read_committed(self, work: Callable[[Connection], T]) -> T:
        """The same as `run`, in read committed, whatever the server's default is."""
        self._open()
        return self.transact(work) if self._schema.sets_isolation else self.run(work)

    def read(self, sql: str, values: Values = ()) -> list[Row]:
        """The rows of one query with the driver's placeholders; tried again while the server does not answer."""
        return self.run(lambda connection: self.query(connection, sql, values), retry_for=self._server.retry_for)

    def send(self, sql: str, text: str, *, answer_timeout: float | None = None, retry_for: float = 0.0) -> list[Row]:
        """The rows of one statement with its one text parameter."""
        return self.run(
            lambda connection: self.execute(connection, sql, text), answer_timeout=answer_timeout, retry_for=retry_for
        )

    def query(self, connection: Connection, sql: str, values: Values) -> list[Row]:
        """The rows of one query, on this connection."""
        cursor = connection.execute(named(sql, self._schema.name), values or None, binary=True)
        return cursor.fetchall() if cursor.description else []

    def execute(self, connection: Connection, sql: str, text: str) -> list[Row]:
        """The rows of one statement with its one text parameter, on this connection."""
        cursor = psycopg.RawCursor(connection)
        cursor.execute(named(sql, self._schema.name), [text], binary=True)
        return cursor.fetchall() if cursor.description else []

    def call(self, connection: Connection, sql: str, values: Sequence[Value]) -> "PGresult":
        """The answer to a call of one of our functions, whose parameters are $1, $2 and so on, on this connection."""
        return connection.call(named(sql, self._schema.name), values)

    def drive(self, connection: Connection, script: Script[T]) -> T:
        """Run a script's statements on this connection; what it returns."""
        return drive(script, lambda sql, text: self.execute(connection, sql, text))

    @property
    def retry_for(self) -> float:
        """Seconds for which a caller's own calls are tried again while the server does not answer."""
        return self._server.retry_for

    @cached_property
    def isolated(self) -> bool:
        """Whether this is the session of one tenant, and row-level security is on."""
        schema = self._schema.name
        return self._tenant is not None and self._server.run(lambda connection: rls.is_on(connection, schema))

    def for_caller(self, script: Script[T]) -> Script[T]:
        """The script for the caller's transaction, whose own tenant is set again at the end."""
        if self._schema.auto_migrate:  # else nothing needs a connection of ours
            self._open()
        if not self.isolated:
            return (yield from self._with_schema(script))
        # The setting is local to the caller's transaction; if that fails, it is undone with it.
        [[before]] = yield rls.READ_TENANT, ""
        yield rls.SET_TENANT, self._tenant or ""
        result = yield from self._with_schema(script)
        yield rls.SET_TENANT, before
        return result

    def _with_schema(self, script: Script[T]) -> Script[T]:
        try:
            sql, text = next(script)
            while True:
                rows = yield named(sql, self._schema.name), text
                sql, text = script.send(rows)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _open(self) -> None:
        if not self._schema.ready:
            self._schema.open()

    def _as_tenant(self, work: Callable[[Connection], T]) -> Callable[[Connection], T]:
        """The same work as the tenant; the setting ends with its transaction."""
        if not self.isolated:
            return work

        def inside(connection: Connection) -> T:
            connection.execute("select set_config(%s, %s, true)", [rls.SETTING, self._tenant])
            return work(connection)

        return inside


class PostgresStore(NamedTuple):
    """What the parts of the engine share."""

    session: Session
    clock: ServerClock
    notifications: Notifications
    audit_all: bool

    def for_tenant(self, tenant: str) -> "PostgresStore":
        """The same store as one tenant may see it."""
        return self._replace(session=self.session.for_tenant(tenant))
