"""A fresh, empty store of each kind, for tests, walks and chaos alike."""

import atexit
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from uuid import uuid4

import psycopg

from tests.support import dynamo_servers, dynamo_tables, provision
from treadle.engines import connect

KINDS = ("sqlite", "postgres", "dynamodb")
SQL = ("sqlite", "postgres")
SECOND = ("postgres15",)  # an older server, for the conformance suite where its binaries are to be had
DYNAMO = {"dynamodb" if kind == dynamo_servers.DEFAULT else kind: kind for kind in dynamo_servers.kinds()}
"""By kind, the server that speaks DynamoDB; the conformance suite asks the others for a second opinion."""


TABLES = (
    "jobs", "finished", "keys", "events", "schedules", "pauses", "workers", "seals", "tokens", "minutes", "drains",
    "memos",
)  # fmt: skip
"""Of a PostgreSQL schema."""

SLOW = (*SECOND, *(kind for kind in DYNAMO if kind not in KINDS))


def missing() -> list[str]:
    """The servers for a second opinion that are not to be had here."""
    return [kind for kind in SECOND if kind.removeprefix("postgres") not in provision.binaries()]


def emptied(url: str) -> str:
    """The same store with nothing in it; quicker than a fresh one."""
    if url.startswith("dynamodb"):
        engine = connect(url)
        if not dynamo_tables.emptied(engine.client, engine.client.table):
            engine.client.call("DeleteTable", {"TableName": engine.client.table})
            engine.migrate()
        engine.close()
    server, _, schema = url.partition("?schema=")
    if schema:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"truncate {', '.join(f'{schema}.{table}' for table in TABLES)}")
    return url


@contextmanager
def fresh_store(kind: str, folder: Path) -> Iterator[str]:
    """The URL of a store of this kind, migrated; on a server it is gone afterwards."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/treadle.db"
        return
    if kind in DYNAMO:
        with dynamo_tables.fresh_table(DYNAMO[kind]) as url:
            yield url
        return
    server, schema = _fresh_schema(kind)
    try:
        yield f"{server}?schema={schema}"
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"drop schema {schema} cascade")


@contextmanager
def empty_store(kind: str, folder: Path) -> Iterator[str]:
    """As fresh_store, but made more cheaply, for thousands of tests.

    On a server it is a schema or table that an earlier test used and left as it was; of SQLite, a copy of a migrated
    file.
    """
    if kind == "sqlite":
        shutil.copy(migrated_file(), folder / "treadle.db")
    if not kind.startswith("postgres"):
        with dynamo_tables.empty_table(DYNAMO[kind]) if kind in DYNAMO else fresh_store(kind, folder) as url:
            yield url
        return
    spare = _spare.setdefault(kind, deque())
    if len(spare) < SPARE:  # whoever still talks to the last ones must be gone before they are used again
        server, schema = _fresh_schema(kind)
        made = _shape(_cleaner(server), schema)
    else:
        server, schema, made = spare.popleft()
    yield f"{server}?schema={schema}"
    cleaner = _cleaner(server)
    try:
        if _shape(cleaner, schema) == made:
            _empty(cleaner, schema)
            spare.append((server, schema, made))
    except psycopg.errors.LockNotAvailable:
        pass  # somebody still has it: nobody else will


SPARE = 6
_spare: dict[str, deque[tuple[str, str, object]]] = {}
_cleaners: dict[str, psycopg.Connection] = {}


def _cleaner(server: str) -> psycopg.Connection:
    """The connection that cleans up after tests; a new one if theirs took it away."""
    known = _cleaners.get(server)
    if known is not None:
        with suppress(psycopg.Error):
            known.execute("select 1")
            return known
    _cleaners[server] = psycopg.connect(server, autocommit=True)
    _cleaners[server].execute("set lock_timeout = '1s'")
    return _cleaners[server]


@cache
def migrated_file() -> Path:
    """A file of SQLite with its tables and no job, to be copied."""
    path = Path(tempfile.mkdtemp(prefix="treadle-store-")) / "treadle.db"
    engine = connect(f"sqlite:///{path}")
    engine.migrate()
    engine.close()
    atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
    return path


def _fresh_schema(kind: str) -> tuple[str, str]:
    server, schema = provision.shared_postgres(kind.removeprefix("postgres") or "18"), f"t{uuid4().hex[:20]}"
    engine = connect(f"{server}?schema={schema}")
    engine.migrate()
    engine.close()
    return server, schema


def _shape(connection: psycopg.Connection, schema: str) -> object:
    """What of a schema a test may have changed: tables and who may use them, columns, indexes, checks, functions."""
    rows = connection.execute(
        """
        select relname, relkind::text, relnatts::int, relrowsecurity, relforcerowsecurity, relhastriggers, relacl::text,
            (select count(*) from pg_constraint where conrelid = c.oid),
            (select count(*) from pg_policy where polrelid = c.oid)
        from pg_class c where relnamespace = %(schema)s::regnamespace
        union all
        select proname, '', 0, false, false, false, proacl::text, pronargs, 0
        from pg_proc where pronamespace = %(schema)s::regnamespace
        order by 1, 2, 8
        """,
        {"schema": schema},
    )
    return rows.fetchall(), connection.execute(f"select * from {schema}.migrations order by 1").fetchall()


def _empty(connection: psycopg.Connection, schema: str) -> None:
    tables = [f"{schema}.{table}" for table in TABLES]
    sizes = connection.execute(
        "select t from unnest(%s::text[]) as t where pg_relation_size(t::regclass) > 0", [tables]
    )
    if used := [table for (table,) in sizes]:
        connection.execute(f"truncate {', '.join(used)} restart identity")
