"""What an operator should know about a PostgreSQL store."""

from collections.abc import Sequence

import psycopg

from treadle.engines.postgres import rls
from treadle.engines.postgres.connection import Connections
from treadle.engines.postgres.notify import Notifications
from treadle.engines.postgres.schema import PostgresSchema
from treadle.engines.postgres.wire import Connection
from treadle.engines.rows import Row
from treadle.engines.values import Finding
from treadle.errors import EngineError

OLDEST_VERSION = 150000  # as server_version_num

FACTS = """
select current_setting('server_version'), current_setting('server_version_num')::int,
    current_setting('synchronous_commit'), current_setting('fsync'), pg_is_in_recovery()
"""


def doctor(server: Connections, schema: PostgresSchema, notifications: Notifications) -> list[Finding]:
    """Examine the server, the schema, LISTEN and row-level security."""
    facts = server.run(lambda connection: connection.execute(FACTS).fetchall(), retry_for=server.retry_for)[0]
    standby = facts[-1]
    drift = _drift(schema, quick=standby)

    def notify(connection: Connection) -> object:
        return connection.execute("select pg_notify(%s, 'doctor')", [notifications.channel])

    listens = not standby and notifications.receives(lambda: server.run(notify))
    row_security = server.run(lambda connection: rls.examine(connection, schema.name))
    return [*examine(facts, drift, listens=listens), *row_security]


def _drift(schema: PostgresSchema, *, quick: bool) -> list[str] | None:
    """The differences of the schema; None if this role may not build the expected one beside it."""
    try:
        return schema.check(quick=quick)
    except EngineError as error:
        if not isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            raise
        return None


def examine(facts: Row, drift: Sequence[str] | None, *, listens: bool) -> list[Finding]:
    """The findings: from FACTS, from the comparison of the schema, and whether LISTEN works."""
    version, number, synchronous, fsync, standby = facts
    found = [Finding("ok", f"PostgreSQL {version}")]
    if number < OLDEST_VERSION:
        found = [Finding("error", f"PostgreSQL {version} is too old; treadle needs 15 or newer")]
    if standby:
        found.append(Finding("error", "this server is a standby: name the primary, or both with host=a,b"))
    if fsync != "on" or synchronous == "off":
        found.append(Finding("warning", "fsync or synchronous_commit is off: a crash may undo acknowledged jobs"))
    else:
        found.append(Finding("ok", "fsync and synchronous_commit are on: an enqueued job survives a crash"))
    return [*found, _schema_finding(drift), _LISTEN_WORKS if listens else _LISTEN_FAILS]


def _schema_finding(drift: Sequence[str] | None) -> Finding:
    if drift is None:
        return Finding(
            "warning",
            "schema was not compared: this role may not create another one beside it; run `treadle migrate --check` as "
            "the role that migrates",
        )
    if drift:
        return Finding("error", "schema: " + "; ".join(drift))
    return Finding("ok", "schema is up to date")


_LISTEN_WORKS = Finding("ok", "LISTEN works: workers start jobs at once; polling alone would be enough")
_LISTEN_FAILS = Finding(
    "warning",
    "LISTEN receives nothing (a pooler in transaction mode?): workers find jobs by polling, which is always enough; to "
    "start them at once set listen_url to a direct connection",
)
