"""The PostgreSQL engine on a connection that somebody else opens, commits and closes."""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from treadle.engines.postgres.clock import ServerClock
from treadle.engines.postgres.connection import Connections
from treadle.engines.postgres.engine import PostgresEngine
from treadle.engines.postgres.notify import Notifications
from treadle.engines.postgres.schema import PostgresSchema
from treadle.engines.postgres.session import PostgresStore, Session
from treadle.engines.postgres.wire import Connection
from treadle.engines.scripts import Lend

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn

T = TypeVar("T")


class LentConnections(Connections):
    """The one connection that is lent; each call is one block of `lend`."""

    retry_for = 0.0  # its owner knows what to do when it is gone

    def __init__(self, lend: Lend) -> None:
        super().__init__("", prepare="off")
        self.where = "your connection to PostgreSQL"
        self._lend = lend

    def run(self, work: Callable[[Connection], T], *, answer_timeout: float | None = None, retry_for: float = 0.0) -> T:  # noqa: ARG002
        with self.translated_errors(), self._lend() as connection:
            return work(_over(connection.pgconn))

    def transaction(
        self,
        work: Callable[[Connection], T],
        *,
        answer_timeout: float | None = None,  # noqa: ARG002
        retry_for: float = 0.0,  # noqa: ARG002
        lock_timeout: str = "0",  # noqa: ARG002
    ) -> T:
        return self.run(work)


class LentNotifications(Notifications):
    """Tells the owner of what was written. Nobody is notified before the commit, and nobody listens."""

    def __init__(self, server: LentConnections, channel: str, written: Callable[[], None]) -> None:
        super().__init__(server.connect, channel)
        self._written = written

    def wake(self) -> None:
        self._written()

    def channel_to_notify(self) -> None:
        return None

    def _start(self) -> None:
        pass


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
) -> PostgresEngine:
    """An engine on a lent connection. It makes no tables by itself: `migrate` does."""
    server = LentConnections(lend)
    schema = PostgresSchema(server, schema_name, auto_migrate=False)
    notifications = LentNotifications(server, f"treadle_{schema.name}", written)
    store = PostgresStore(Session(server, schema), ServerClock(server, clock), notifications, audit_all)
    return PostgresEngine(server, schema, store)
