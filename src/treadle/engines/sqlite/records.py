"""The rows beside the jobs: schedules, pauses, workers and the like. Every function is given its connection."""

import sqlite3
from datetime import datetime
from typing import TypeVar

from treadle.engines.records import TABLES, chosen, row_from, table_of, value_from
from treadle.engines.records import record_from as read_record
from treadle.engines.rows import Row
from treadle.engines.values import Overwrite
from treadle.model.clock import from_micros, micros
from treadle.model.records import Gate, Pause, Record, Schedule

R = TypeVar("R", bound=Record)


def read(connection: sqlite3.Connection, kind: type[R], tenant: str | None = None, name: str | None = None) -> list[R]:
    """All records of a kind, in the order of their keys; a tenant's, or the one of this name."""
    table, wanted = TABLES[kind], chosen(kind, tenant, name)
    only = "".join(f" {'and' if place else 'where'} {column} = ?" for place, column in enumerate(wanted))
    sql = f"select {', '.join(table.columns)} from treadle_{table.name}{only} order by {', '.join(table.key)}"  # noqa: S608
    try:
        rows = connection.execute(sql, tuple(wanted.values()))
    except UnicodeEncodeError:  # what cannot be stored is not there
        return []
    return [read_record(kind, row, from_micros) for row in rows]


def gate(connection: sqlite3.Connection, now: datetime) -> Gate:
    """The pauses that hold now. While we hold the write lock, nobody adds one."""
    return Gate.at(read(connection, Pause), now)


def due(connection: sqlite3.Connection, until: datetime, limit: int) -> list[Schedule]:
    """Enabled schedules that are due by `until`, the longest due first."""
    columns = ", ".join(Schedule._fields)
    rows = connection.execute(
        f"""
        select {columns} from (
            select * from treadle_schedules where enabled = 1 and next_at is null
            union all
            select * from treadle_schedules where enabled = 1 and next_at <= ?
        )
        order by next_at, tenant, name limit ?
        """,  # noqa: S608
        (micros(until), limit),
    )
    return [read_record(Schedule, row, from_micros) for row in rows]


def save(connection: sqlite3.Connection, record: Record, before: Record | Overwrite | None) -> bool:
    """Write a record if what is there is still `before`; whether it was written."""
    table, row = table_of(record), row_from(record, micros)
    columns, marks = ", ".join(table.columns), ", ".join("?" * len(row))
    if before is None or isinstance(before, Overwrite):
        verb, then = "insert or replace", ""
        if before is None:
            verb, then = "insert", f" on conflict ({', '.join(table.key)}) do nothing"
        sql = f"{verb} into treadle_{table.name} ({columns}) values ({marks}){then}"
        return connection.execute(sql, row).rowcount == 1
    compared, was = _compared(before)
    sql = f"update treadle_{table.name} set ({columns}) = ({marks}) where {compared}"  # noqa: S608
    return connection.execute(sql, (*row, *was)).rowcount == 1


def drop(connection: sqlite3.Connection, record: Record) -> bool:
    """Delete a record if it still has this revision; whether it was deleted."""
    names = [*table_of(record).key, *(name for name in ("revision",) if name in record._fields)]
    where = " and ".join(f"{name} = ?" for name in names)
    sql = f"delete from treadle_{table_of(record).name} where {where}"  # noqa: S608
    return connection.execute(sql, [getattr(record, name) for name in names]).rowcount == 1


def _compared(before: Record) -> tuple[str, Row]:
    table = table_of(before)
    names = (*table.key, *table.compared)
    values = tuple(value_from(name, getattr(before, name), micros) for name in names)
    return " and ".join(f"{name} is ?" for name in names), values
