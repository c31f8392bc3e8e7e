"""Statements for somebody else's transaction."""

from collections.abc import Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")

Script = Generator[tuple[str, str], list[tuple[Any, ...]], T]
"""Statements for somebody else's transaction: yields (sql, its one text parameter), is sent the rows, returns T."""


def drive(script: Script[T], execute: Callable[[str, str], list[tuple[Any, ...]]]) -> T:
    """Run a script's statements one after the other; what it returns."""
    try:
        sql, text = next(script)
        while True:
            sql, text = script.send(execute(sql, text))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


ITEMS = "dynamodb items"
"""The statement of a DynamoDB script: its parameter is a JSON array of items to add, its rows are all items so far."""
