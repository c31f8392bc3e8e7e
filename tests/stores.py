"""A fresh, empty store of each kind, for tests, walks and chaos alike."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg

import dynamo_servers
import provision
from treadle.engines import connect

KINDS = ("sqlite", "postgres", "dynamodb")
SQL = ("sqlite", "postgres")
SECOND = ("postgres15",)  # an older server, for the conformance suite where its binaries are to be had
DYNAMO = {"dynamodb" if kind == dynamo_servers.DEFAULT else kind: kind for kind in dynamo_servers.kinds()}
"""By kind, the server that speaks DynamoDB; the conformance suite asks the others for a second opinion."""


TABLES = ("jobs", "finished", "keys", "events", "schedules", "pauses", "workers", "seals")  # of a PostgreSQL schema

SLOW = tuple(kind for kind in DYNAMO if kind not in KINDS)


def missing() -> list[str]:
    """The servers for a second opinion that are not to be had here."""
    return [kind for kind in SECOND if kind.removeprefix("postgres") not in provision.binaries()]


def _fresh_table(server: str) -> Iterator[str]:
    table = f"t{uuid4().hex[:20]}"
    url = f"dynamodb://{table}?endpoint={dynamo_servers.shared_dynamodb(server)}&region=us-east-1&spread=4&skew=0"
    engine = connect(url)
    engine.migrate()
    try:
        yield url
    finally:
        engine.client.call("DeleteTable", {"TableName": table})
        engine.close()


def emptied(url: str) -> str:
    """The same store with nothing in it; quicker than a fresh one."""
    if url.startswith("dynamodb"):
        engine = connect(url)
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
        yield from _fresh_table(DYNAMO[kind])
        return
    server, schema = provision.shared_postgres(kind.removeprefix("postgres") or "18"), f"t{uuid4().hex[:20]}"
    url = f"{server}?schema={schema}"
    engine = connect(url)
    engine.migrate()
    engine.close()
    try:
        yield url
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"drop schema {schema} cascade")
