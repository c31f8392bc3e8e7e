"""Statements on a Django database, named by its alias or given as its connection, through Django's own cursor."""

from functools import partial
from typing import Any

from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections
from django.db.utils import ConnectionDoesNotExist

from treadle.errors import ConfigError
from treadle.transactions.joined import POSTGRES, SQLITE, Joined, Rows, formatted

_STORES = {"postgresql": POSTGRES, "sqlite": SQLITE}


def join(tx: Any) -> Joined:
    connection = _named(tx) if isinstance(tx, str) else tx
    try:
        connection.ensure_connection()
    except SynchronousOnlyOperation as error:
        raise ConfigError(
            "tx: Django's connections do not work in async code: enqueue or settle in the synchronous function that "
            "holds your `transaction.atomic()`, called by sync_to_async"
        ) from error
    store = _STORES.get(connection.vendor, connection.vendor)
    return Joined(
        f"Django's database {connection.alias!r}",
        store,
        f"use it inside `with transaction.atomic(using={connection.alias!r}):`",
        partial(_execute, connection, store),
        connection.connection if store == SQLITE else None,
        partial(_on_commit, connection),
    )


def _on_commit(connection: Any, call: Any) -> None:
    if connection.in_atomic_block:  # a transaction that the caller manages by hand does not tell
        connection.on_commit(call, robust=True)


def _named(alias: str) -> Any:
    try:
        return connections[alias]
    except ConnectionDoesNotExist as error:
        known = ", ".join(map(repr, connections))
        raise ConfigError(f"tx: str {alias!r} is not a database of Django's settings; they have {known}") from error


def _execute(connection: Any, store: str, sql: str, text: str | None) -> Rows:
    with connection.cursor() as cursor:
        if store == POSTGRES and hasattr(cursor, "adapters"):  # psycopg 3
            from treadle.transactions.psycopg import read_times_as_they_are  # noqa: PLC0415 - psycopg 2 has no such thing

            read_times_as_they_are(cursor)
        if text is None:
            cursor.execute(sql)
        else:
            cursor.execute(formatted(sql, store), (text,))
        return [tuple(row) for row in cursor.fetchall()] if cursor.description else []
