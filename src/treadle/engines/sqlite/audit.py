"""The audit trail: events, and the seals over them."""

import json
import sqlite3
from collections.abc import Sequence
from datetime import datetime
from heapq import nlargest

from treadle.engines.sqlite import records
from treadle.engines.sqlite.connection import DatabaseFile
from treadle.engines.sqlite.rows import EVENT, EVENT_COLUMNS, event_from, event_row, unpack
from treadle.model import Event
from treadle.model.clock import micros
from treadle.model.records import Seal
from treadle.model.seals import in_order

ADD_EVENTS = f"""
{unpack(EVENT_COLUMNS)}
insert into treadle_events ({EVENT})
select {EVENT} from c
"""  # noqa: S608

Place = tuple[datetime, str, int]  # time, job and revision
ALL_TIME = 2**63 - 1  # microseconds
NEXT_TENANT = "select min(tenant) from treadle_events where seal is null and tenant > ?"
NEWEST_OF_TENANT = f"""
select {EVENT} from treadle_events
where seal is null and tenant = ? and at >= ? and (at, job, revision) < (?, ?, ?)
order by at desc, job desc, revision desc limit ?
"""  # noqa: S608


def add(connection: sqlite3.Connection, events: Sequence[Event]) -> None:
    """Write events in the transaction of what they tell of."""
    marks = ", ".join("?" * len(EVENT_COLUMNS))
    sql = f"insert into treadle_events ({EVENT}) values ({marks})"  # noqa: S608
    connection.executemany(sql, [event_row(event) for event in events])


def events(file: DatabaseFile, job_id: str, latest: int | None) -> list[Event]:
    """The events of one job or record, oldest first; with `latest`, the last so many."""
    sql = f"select {EVENT} from treadle_events where job = ? order by revision desc, at desc limit ?"  # noqa: S608
    return [event_from(row) for row in reversed(file.rows(sql, job_id, -1 if latest is None else latest))]


def unsealed(connection: sqlite3.Connection, limit: int) -> list[Event]:
    """Events that are in no seal yet."""
    sql = f"""
        select {EVENT} from treadle_events where seal is null order by tenant, at, job, revision limit ?
        """  # noqa: S608
    return [event_from(row) for row in connection.execute(sql, (limit,))]


def newest_unsealed(connection: sqlite3.Connection, limit: int, before: Place | None) -> list[Event]:
    """The latest of them before this place, newest first: up to `limit` of each tenant are read, by the index."""
    end = (ALL_TIME, "", 0) if before is None else (micros(before[0]), *before[1:])
    found: list[Event] = []
    tenant = ""
    while tenant := connection.execute(NEXT_TENANT, (tenant,)).fetchone()[0]:
        lowest = micros(found[-1].at) if len(found) == limit else 0
        rows = connection.execute(NEWEST_OF_TENANT, (tenant, lowest, *end, limit))
        found = nlargest(limit, [*found, *map(event_from, rows)], key=in_order)
    return found


def seal(connection: sqlite3.Connection, made: Seal, over: Sequence[Event]) -> bool:
    """Write the seal and mark its events, if all of them are still unsealed."""
    wanted = "seal is null and (job, revision, at) in (select value ->> 0, value ->> 1, value ->> 2 from json_each(?))"
    ids = json.dumps([(event.job_id, event.revision, micros(event.at)) for event in over])
    [[number]] = connection.execute(f"select count(*) from treadle_events where {wanted}", (ids,))  # noqa: S608
    if number != len(over) or not records.save(connection, made, None):
        return False
    connection.execute(f"update treadle_events set seal = ? where {wanted}", (made.number, ids))  # noqa: S608
    return True


def sealed(connection: sqlite3.Connection, made: Seal) -> list[Event]:
    """The events in a seal."""
    sql = f"select {EVENT} from treadle_events where seal = ? and tenant = ? order by at, job, revision"  # noqa: S608
    return [event_from(row) for row in connection.execute(sql, (made.number, made.tenant))]


def orphaned_events(connection: sqlite3.Connection, limit: int) -> list[Event]:
    """Events that were sealed and whose seal is gone."""
    sql = f"""
        select {EVENT} from treadle_events e where seal is not null
        and not exists (select 1 from treadle_seals s where s.tenant = e.tenant and s.number = e.seal)
        order by tenant, at, job, revision limit ?
        """  # noqa: S608
    return [event_from(row) for row in connection.execute(sql, (limit,))]


def prune_events(connection: sqlite3.Connection, made: Seal, now: datetime) -> bool:
    """Delete the events of a seal, which says from now on when that was; False if somebody else did."""
    marked = connection.execute(
        "update treadle_seals set pruned_at = ? where tenant = ? and number = ? and pruned_at is null",
        (micros(now), made.tenant, made.number),
    )
    if marked.rowcount == 1:
        connection.execute("delete from treadle_events where seal = ? and tenant = ?", (made.number, made.tenant))
    return marked.rowcount == 1
