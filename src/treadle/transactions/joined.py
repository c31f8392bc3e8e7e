"""What all libraries share: the savepoint around our statements, the refusals, and what a driver's error means."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from treadle.engines.scripts import Items
from treadle.errors import ConfigError, EngineError, EngineUnavailable, SchemaError, TreadleError

T = TypeVar("T")

Rows = list[tuple[Any, ...]]
Step = tuple[str, str | None] | Items | float
"""A statement with its one text parameter, if it has one; items for a list; or a pause in seconds."""
Steps = Generator[Step, Rows, T]

POSTGRES, SQLITE, DYNAMODB = "PostgreSQL", "SQLite", "DynamoDB"
_PLACEHOLDERS = {POSTGRES: "$1", SQLITE: "?"}
_CONNECTION = "pass a connection to the database that the app's url names"
_WANTED = {DYNAMODB: "pass a list, and commit the items that it collects"}
_BEGIN, _SAVEPOINT = ("begin immediate", None), ("savepoint treadle_tx", None)
_ROLLBACK, _RELEASE = ("rollback to treadle_tx", None), ("release treadle_tx", None)


class Joined(NamedTuple):
    """A connection of the caller's, as our statements see it."""

    called: str
    store: str  # POSTGRES, SQLITE, or what else it speaks
    advice: str  # how to begin a transaction on it
    execute: Callable[[str, str | None], Any]  # the rows as tuples; a coroutine of them from an async library
    file: Any = None  # the sqlite3.Connection beneath, if it is SQLite
    on_commit: Callable[[Callable[..., None]], None] | None = None  # calls it after the commit, if the library tells


def inside(joined: Joined, steps: Steps[T]) -> Steps[T]:
    """The steps within a savepoint: an error leaves the caller's transaction usable and nothing half-written in it."""
    try:
        step = next(steps)
    except StopIteration as end:  # nothing to do
        return end.value  # type: ignore[no-any-return]
    _refuse_another_store(joined, step)
    yield from _begun(joined)
    yield _SAVEPOINT
    try:
        result = yield from _answered(step, steps)
        yield _RELEASE
    except GeneratorExit:
        raise
    except BaseException:
        with suppress(Exception):  # the connection may be gone; the first error says more
            yield _ROLLBACK
            yield _RELEASE
        raise
    return result


def _answered(step: Step, steps: Steps[T]) -> Steps[T]:
    """The rest of the steps, their answers brought into one time zone."""
    try:
        while True:
            rows = yield step
            step = steps.send([_in_utc(row) for row in rows])
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def formatted(sql: str, store: str) -> str:
    """The statement for a driver whose placeholder is %s."""
    return sql.replace("%", "%%").replace(_PLACEHOLDERS[store], "%s")


@contextmanager
def translated_errors(advice: str = "") -> Iterator[None]:
    """Turn a library's errors into ours."""
    try:
        yield
    except TreadleError:
        raise
    except Exception as error:
        raise _explained(error, advice) from error


def _refuse_another_store(joined: Joined, step: Step) -> None:
    """Items are for DynamoDB; a statement's placeholder tells which store it is for."""
    sql = "" if isinstance(step, Items | float) else step[0]
    store = next((store for store, placeholder in _PLACEHOLDERS.items() if placeholder in sql), DYNAMODB)
    if joined.store != store:
        raise ConfigError(
            f"tx: {joined.called} leads to {joined.store}, but the jobs of this app are in {store}: "
            f"{_WANTED.get(store, _CONNECTION)}"
        )


def _begun(joined: Joined) -> Steps[None]:
    """See that there is a transaction: on a connection that commits by itself our statements would, one by one.

    PostgreSQL refuses a savepoint without one. SQLite would take the savepoint for the transaction, so we look.
    """
    if joined.store != SQLITE:
        return
    yield "select 1", None  # SQLAlchemy, and hooks of its users, begin at the first statement
    if not joined.file.in_transaction:
        if joined.file.isolation_level is None or getattr(joined.file, "autocommit", None) is True:
            raise ConfigError(f"tx: this connection is in autocommit mode; {joined.advice}")
        yield _BEGIN


def _in_utc(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_utc(value) if isinstance(value, datetime) else value for value in row)


def _utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise EngineError("tx: this connection reads timestamptz without a zone; take its adapter for timestamptz away")
    return moment.astimezone(UTC)


# ------------------------------------------------------------------------------- what an error means

_NO_TRANSACTION = "25P01"
_FAILED_BEFORE = "25P02"
_REPEAT_ALL = ("40001", "40P01")
_REPEAT = ("55P03", "57014")
_NO_TABLES = ("3F000", "42P01", "42703", "42883")
_GONE = ("08", "57P")
_BUSY = (5, 6)  # SQLITE_BUSY, SQLITE_LOCKED


def _explained(error: Exception, advice: str) -> TreadleError:
    cause = _driver_error(error)
    message = str(cause).partition("\n")[0] or type(cause).__name__
    state = _sqlstate(cause)
    if state == _NO_TRANSACTION:
        return ConfigError(f"tx: this connection is not in a transaction; {advice}")
    if state == _FAILED_BEFORE:
        return EngineError("tx: your transaction has failed already, before this call: roll it back")
    if state in _REPEAT_ALL:
        return EngineUnavailable(f"tx: {message}: roll back and repeat your transaction")
    if state in _REPEAT:
        return EngineUnavailable(f"tx: {message}; repeating is safe")
    if state in _NO_TABLES:
        return SchemaError(
            f"tx: {message}: connect to the database that the app's url names, and run `treadle migrate`"
        )
    if state.startswith(_GONE) or (not state and _is_gone(cause)):
        return EngineUnavailable(f"tx: the connection is lost ({message}): repeat your transaction on a new one")
    if _sqlite_code(cause) in _BUSY:
        return EngineUnavailable(
            "tx: the file is locked by another writer, and a transaction begun as a read cannot wait for it. "
            "Roll back, start the transaction with BEGIN IMMEDIATE, and repeat"
        )
    return EngineError(f"tx: {message}")


def _driver_error(error: BaseException) -> BaseException:
    """The driver's own error, beneath what SQLAlchemy or Django made of it."""
    beneath = getattr(error, "orig", None) or error.__cause__
    if isinstance(beneath, BaseException) and (_knows(beneath) or not _knows(error)):
        return _driver_error(beneath)
    return error


def _knows(error: BaseException) -> bool:
    return bool(_sqlstate(error)) or _sqlite_code(error) is not None


def _sqlstate(error: BaseException) -> str:
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""


def _sqlite_code(error: BaseException) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _is_gone(error: BaseException) -> bool:
    """Whether an error without a code says that there is no connection any more."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if "OperationalError" in names:
        return _sqlite_code(error) is None
    return isinstance(error, OSError) or ("InterfaceError" in names and "closed" in str(error))
