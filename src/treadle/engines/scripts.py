"""Our steps in somebody else's transaction."""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar

from treadle.errors import ConfigError

T = TypeVar("T")

Rows = list[tuple[Any, ...]]
Script = Generator[tuple[str, str], Rows, T]
"""Statements for a transaction of SQL: yields (sql, its one text parameter), is sent the rows, returns T."""

Lend = Callable[[], AbstractContextManager[Any]]
"""A block in a transaction of somebody's connection, which it gives as its driver has it: sqlite3 or psycopg."""


def block_of(lend: Lend) -> AbstractContextManager[Any]:
    """One block of `lend`; ConfigError if that is not what it returns."""
    block = lend()
    if not isinstance(block, AbstractContextManager):
        raise ConfigError(
            f"lend: it must return a context manager, not {type(block).__name__}: a generator function with "
            "@contextmanager that yields the connection; treadle calls it in a thread, so it cannot be async"
        )
    return block


class Items(NamedTuple):
    """Items that the caller's list for DynamoDB gets."""

    new: Sequence[dict[str, Any]] = ()


ItemScript = Generator[Items, Rows, T]
"""Items for a transaction of DynamoDB: yields them, is sent all items of the list so far, one in a row, returns T."""


def drive(script: Script[T], execute: Callable[[str, str], Rows]) -> T:
    """Run a script's statements one after the other; what it returns."""
    try:
        sql, text = next(script)
        while True:
            sql, text = script.send(execute(sql, text))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
