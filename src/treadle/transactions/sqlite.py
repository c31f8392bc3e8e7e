"""Statements on a sqlite3.Connection."""

import sqlite3
from functools import partial
from typing import Any

from treadle.transactions.joined import SQLITE, Joined, Rows


def join(connection: sqlite3.Connection) -> Joined:
    return Joined(
        "a sqlite3 connection", SQLITE, "execute BEGIN IMMEDIATE first", partial(_execute, connection), connection
    )


def _execute(connection: sqlite3.Connection, sql: str, text: str | None) -> Rows:
    # Plain rows of plain text, whatever factories the caller's connection has.
    cursor, text_factory = connection.cursor(), connection.text_factory
    cursor.row_factory = None
    try:
        connection.text_factory = str
        rows: list[Any] = cursor.execute(sql, () if text is None else (text,)).fetchall()
        return rows
    finally:
        connection.text_factory = text_factory
