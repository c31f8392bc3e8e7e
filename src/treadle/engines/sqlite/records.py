"""The rows beside the jobs in SQLite: schedules, pauses, live workers, seals; every function is told its connection."""

import json
import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import TypeVar

from treadle.engines.records import TABLES, row_from, table_of, value_from
from treadle.engines.records import record_from as read_record
from treadle.engines.rows import Row
from treadle.engines.sqlite.rows import event_from, micros, moment
from treadle.engines.values import Overwrite
from treadle.model import Event
from treadle.model.records import Gate, Pause, Record, Schedule, Seal

R = TypeVar("R", bound=Record)

_EVENT = "job, revision, at, kind, actor, note, tenant"


def read(connection: sqlite3.Connection, kind: type[R], tenant: str | None = None) -> list[R]:
    table = TABLES[kind]
    only = " where tenant = ?" if tenant is not None else ""
    sql = f"select {', '.join(table.columns)} from treadle_{table.name}{only} order by {', '.join(table.key)}"  # noqa: S608
    rows = connection.execute(sql, () if tenant is None else (tenant,))
    return [read_record(kind, row, moment) for row in rows]


def gate(connection: sqlite3.Connection, now: datetime) -> Gate:
    """The pauses that hold now; with the write lock in hand nobody adds one meanwhile."""
    return Gate.at(read(connection, Pause), now)


def due(connection: sqlite3.Connection, until: datetime, limit: int) -> list[Schedule]:
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
    return [read_record(Schedule, row, moment) for row in rows]


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
    names = [*table_of(record).key, *(name for name in ("revision",) if name in record._fields)]
    where = " and ".join(f"{name} = ?" for name in names)
    sql = f"delete from treadle_{table_of(record).name} where {where}"  # noqa: S608
    return connection.execute(sql, [getattr(record, name) for name in names]).rowcount == 1


def _compared(before: Record) -> tuple[str, Row]:
    table = table_of(before)
    names = (*table.key, *table.compared)
    values = tuple(value_from(name, getattr(before, name), micros) for name in names)
    return " and ".join(f"{name} is ?" for name in names), values


def note(connection: sqlite3.Connection, event: Event | None) -> None:
    if event is not None:
        values = (*event[:2], micros(event.at), *event[3:])
        connection.execute(f"insert into treadle_events ({_EVENT}) values (?, ?, ?, ?, ?, ?, ?)", values)  # noqa: S608


# ------------------------------------------------------------------------------------------ the seals


def unsealed(connection: sqlite3.Connection, limit: int) -> list[Event]:
    sql = f"select {_EVENT} from treadle_events where seal is null order by tenant, at, job, revision limit ?"  # noqa: S608
    return [event_from(row) for row in connection.execute(sql, (limit,))]


def seal(connection: sqlite3.Connection, made: Seal, events: Sequence[Event]) -> bool:
    """Write the seal and mark its lines, if all of them are still unsealed."""
    wanted = "seal is null and (job, revision, at) in (select value ->> 0, value ->> 1, value ->> 2 from json_each(?))"
    ids = json.dumps([(event.job_id, event.revision, micros(event.at)) for event in events])
    [[number]] = connection.execute(f"select count(*) from treadle_events where {wanted}", (ids,))  # noqa: S608
    if number != len(events) or not save(connection, made, None):
        return False
    connection.execute(f"update treadle_events set seal = ? where {wanted}", (made.number, ids))  # noqa: S608
    return True


def sealed(connection: sqlite3.Connection, made: Seal) -> list[Event]:
    sql = f"select {_EVENT} from treadle_events where seal = ? and tenant = ? order by at, job, revision"  # noqa: S608
    return [event_from(row) for row in connection.execute(sql, (made.number, made.tenant))]


def orphaned_events(connection: sqlite3.Connection, limit: int) -> list[Event]:
    sql = f"""
        select {_EVENT} from treadle_events e where seal is not null
        and not exists (select 1 from treadle_seals s where s.tenant = e.tenant and s.number = e.seal)
        order by tenant, at, job, revision limit ?
        """  # noqa: S608
    return [event_from(row) for row in connection.execute(sql, (limit,))]


def prune_events(connection: sqlite3.Connection, made: Seal, now: datetime) -> bool:
    done = connection.execute(
        "update treadle_seals set pruned_at = ? where tenant = ? and number = ? and pruned_at is null",
        (micros(now), made.tenant, made.number),
    )
    if done.rowcount == 1:
        connection.execute("delete from treadle_events where seal = ? and tenant = ?", (made.number, made.tenant))
    return done.rowcount == 1
