"""What a program lends to `Treadle(lend=...)` in tests: one connection, each call in a block of its own."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg

Lend = Callable[[], AbstractContextManager[Any]]


def address_of(store_url: str) -> str:
    """The URL of a store on PostgreSQL as libpq reads it."""
    return store_url.partition("?schema=")[0]


def schema_of(store_url: str) -> str:
    return store_url.partition("?schema=")[2]


def in_blocks(connection: psycopg.Connection) -> Lend:
    """A transaction for each call; a savepoint if one is open."""

    @contextmanager
    def lend() -> Iterator[psycopg.Connection]:
        with connection.transaction():
            yield connection

    return lend


def in_transactions(connection: sqlite3.Connection) -> Lend:
    """A transaction for each call, on SQLite."""

    @contextmanager
    def lend() -> Iterator[sqlite3.Connection]:
        connection.execute("begin immediate")
        try:
            yield connection
        except BaseException:
            connection.execute("rollback")
            raise
        connection.execute("commit")

    return lend


def as_it_is(connection: Any) -> Lend:
    """The connection alone: neither begun nor committed."""

    @contextmanager
    def lend() -> Iterator[Any]:
        yield connection

    return lend
