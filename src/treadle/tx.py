"""Our statements inside the caller's own transaction, on the caller's own connection."""

import sqlite3
from typing import Any, TypeVar

from treadle import lifecycle
from treadle.context import Attempt
from treadle.engines.base import Engine, Ruling, Script, Verdict
from treadle.errors import ConfigError, EngineError, EngineUnavailable, LeaseLost
from treadle.model import State, json_text

T = TypeVar("T")


def run_in(tx: Any, script: Script[T]) -> T:
    """Drive a script on the caller's connection; what it writes commits or rolls back with the caller's rows."""
    if isinstance(tx, sqlite3.Connection):
        return _run_on_sqlite(tx, script)
    raise ConfigError(f"tx: {type(tx).__module__}.{type(tx).__name__} is not supported; pass a sqlite3.Connection")


def settle_in(engine: Engine, attempt: Attempt, tx: Any, result: Any) -> None:
    """ctx.settle: write the attempt's success in the handler's own transaction."""
    now = engine.now()
    outcome = lifecycle.Succeeded(None if result is None else json_text(result, "result"))
    verdict = Verdict(Ruling.STALE, attempt.job)
    while verdict.ruling is Ruling.STALE:  # a cancel request came meanwhile: a success still stands
        attempt.job = verdict.job or attempt.job
        change = lifecycle.settle(attempt.job_so_far(), outcome, now)
        verdict = run_in(tx, engine.settle_script(change))
    if verdict.ruling is not Ruling.APPLIED:
        raise LeaseLost(f"job {attempt.job.id} is no longer yours: roll your transaction back")
    attempt.settled = True


def committed(engine: Engine, attempt: Attempt) -> bool:
    """Whether what `settle_in` wrote was committed."""
    [job] = engine.get([attempt.job.id])
    return job is None or job.state is not State.RUNNING or job.lease_token != attempt.job.lease_token


def _run_on_sqlite(connection: sqlite3.Connection, script: Script[T]) -> T:
    if not connection.in_transaction:
        if connection.isolation_level is None:
            raise ConfigError("tx: this connection is in autocommit mode; execute BEGIN IMMEDIATE first")
        _execute(connection, "begin immediate")
    _execute(connection, "savepoint treadle_tx")
    try:
        sql, text = next(script)
        while True:
            sql, text = script.send(_execute(connection, sql, text))
    except StopIteration as end:
        _execute(connection, "release treadle_tx")
        return end.value  # type: ignore[no-any-return]
    except BaseException:  # nothing of ours stays half-written in the caller's transaction
        if connection.in_transaction:
            _execute(connection, "rollback to treadle_tx")
            _execute(connection, "release treadle_tx")
        raise


def _execute(connection: sqlite3.Connection, sql: str, *parameters: str) -> list[tuple[Any, ...]]:
    # Plain rows of plain text, whatever factories the caller's connection has.
    cursor, text_factory = connection.cursor(), connection.text_factory
    cursor.row_factory = None
    try:
        connection.text_factory = str
        return cursor.execute(sql, parameters).fetchall()
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
            raise EngineUnavailable(
                "tx: the file is locked by another writer, and a transaction begun as a read cannot wait for it. "
                "Roll back, start the transaction with BEGIN IMMEDIATE, and repeat"
            ) from error
        raise EngineError(f"tx: {error}") from error
    finally:
        connection.text_factory = text_factory
