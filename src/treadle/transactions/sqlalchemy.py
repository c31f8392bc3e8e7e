"""Statements on SQLAlchemy's sessions and connections, by its own `exec_driver_sql`: its events and echo see them."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from sqlalchemy import event
from sqlalchemy.exc import InvalidRequestError, PendingRollbackError
from sqlalchemy.orm import scoped_session

from treadle.errors import ConfigError, EngineError
from treadle.transactions.joined import POSTGRES, SQLITE, Joined, Rows, formatted

_STORES = {"postgresql": POSTGRES, "sqlite": SQLITE}
_NO_STREAM = {"stream_results": False, "yield_per": None}  # a server-side cursor takes no statement that writes


def join(tx: Any) -> Joined:
    with _asking():
        connection = tx if hasattr(tx, "exec_driver_sql") else tx.connection()
    session = None if connection is tx else tx() if isinstance(tx, scoped_session) else tx
    return _joined(connection, connection, partial(_execute, connection), session)


async def ajoin(tx: Any) -> Joined:
    with _asking():
        connection = tx if hasattr(tx, "exec_driver_sql") else await tx.connection()
    session = None if connection is tx else tx.sync_session if hasattr(tx, "sync_session") else tx().sync_session
    return _joined(connection, connection.sync_connection, partial(_aexecute, connection), session)


def _joined(connection: Any, beneath: Any, execute: Any, session: Any) -> Joined:
    store = _STORES.get(connection.dialect.name, connection.dialect.name)
    return Joined(
        "a SQLAlchemy connection",
        store,
        "leave AUTOCOMMIT out of its isolation_level",
        execute,
        beneath.connection.driver_connection if store == SQLITE else None,
        None if session is None else partial(_on_commit, session),
    )


def _on_commit(session: Any, call: Any) -> None:
    """Call it after each commit of the session, of savepoints too. A connection tells of its commit only before."""
    if not event.contains(session, "after_commit", call):
        event.listen(session, "after_commit", call)


@contextmanager
def _asking() -> Iterator[None]:
    """A session that cannot give its connection says why."""
    try:
        yield
    except PendingRollbackError as error:
        raise EngineError("tx: your transaction has failed already, before this call: roll it back") from error
    except InvalidRequestError as error:
        raise ConfigError(
            f"tx: this session has no transaction to join ({error}): begin one, or, if it has several databases, pass "
            "session.connection(...) of the one with the jobs"
        ) from error


def _execute(connection: Any, sql: str, text: str | None) -> Rows:
    return _rows(connection.exec_driver_sql(*_asked(connection, sql, text), _NO_STREAM))


async def _aexecute(connection: Any, sql: str, text: str | None) -> Rows:
    return _rows(await connection.exec_driver_sql(*_asked(connection, sql, text), _NO_STREAM))


def _asked(connection: Any, sql: str, text: str | None) -> tuple[str, tuple[str] | None]:
    if text is None:
        return sql, None
    if connection.dialect.paramstyle in ("format", "pyformat"):
        return formatted(sql, POSTGRES), (text,)
    return sql, (text,)


def _rows(result: Any) -> Rows:
    return [tuple(row) for row in result] if result.returns_rows else []
