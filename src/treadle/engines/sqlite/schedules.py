"""Schedules by the page, and statements that change one in the caller's own transaction."""

import sqlite3

from treadle.engines.records import TABLES, conditions, matching, record_from, row_from, value_from
from treadle.engines.scripts import Script
from treadle.engines.sqlite.audit import ADD_EVENTS
from treadle.engines.sqlite.rows import event_row, packed, unpack
from treadle.engines.values import ScheduleFilter
from treadle.model import Event
from treadle.model.clock import from_micros, micros
from treadle.model.records import Schedule, subject_of_schedule


def find(
    connection: sqlite3.Connection, where: ScheduleFilter, limit: int, after: tuple[str, str] | None
) -> list[Schedule]:
    """The first schedules that match, in the order of their keys."""
    wanted = conditions(where) + [("(tenant, name) > (?, ?)", after)] * (after is not None)
    values = [value for _, value in wanted if value is not None and value is not after] + list(after or ())
    only = " and ".join(["true", *(sql for sql, _ in wanted)])
    sql = f"select {', '.join(Schedule._fields)} from treadle_schedules where {only} order by tenant, name limit ?"  # noqa: S608
    try:
        rows = connection.execute(sql, (*values, limit if where.id is None else -1))
    except UnicodeEncodeError:  # what cannot be stored is not there
        return []
    return matching(where, (record_from(Schedule, row, from_micros) for row in rows), limit)


# ------------------------------------------------------------------------- for the caller's own transaction

_SCHEDULE = Schedule._fields
_COLUMNS = ", ".join(_SCHEDULE)
_COMPARED = (*TABLES[Schedule].key, *TABLES[Schedule].compared)

_READ = f"""
{unpack(("tenant", "name"))}
select {", ".join(f"s.{name}" for name in _SCHEDULE)}
from c cross join treadle_schedules s on s.tenant = c.tenant and s.name = c.name
"""  # noqa: S608

_LAST_REVISION = f"""
{unpack(("job",))}
select max(e.revision) from c cross join treadle_events e on e.job = c.job
"""  # noqa: S608

_INSERT = f"""
{unpack(_SCHEDULE)}
insert into treadle_schedules ({_COLUMNS})
select {_COLUMNS} from c where true on conflict (tenant, name) do nothing returning 1
"""  # noqa: S608

_UPDATE = f"""
{unpack((*_SCHEDULE, *(f"was_{name}" for name in _COMPARED)))}
update treadle_schedules as s set ({_COLUMNS}) = ({", ".join(f"c.{name}" for name in _SCHEDULE)})
from c where {" and ".join(f"s.{name} is c.was_{name}" for name in _COMPARED)} returning 1
"""  # noqa: S608

_DELETE = f"""
{unpack(("tenant", "name", "revision"))}
delete from treadle_schedules where (tenant, name, revision) in (select tenant, name, revision from c) returning 1
"""  # noqa: S608


def schedule_script(tenant: str, name: str) -> Script[tuple[Schedule | None, int]]:
    """Read a schedule, and the revision that a new one of its name has."""
    rows = yield _READ, packed([(tenant, name)])
    if rows:
        return record_from(Schedule, rows[0], from_micros), 0
    [[last]] = yield _LAST_REVISION, packed([(subject_of_schedule(tenant, name),)])
    return None, 0 if last is None else last + 1


def save_script(after: Schedule | None, before: Schedule | None, event: Event) -> Script[bool]:
    """Write a schedule and its event if what is there is still `before`, or delete it; whether that was done."""
    if after is None and before is not None:
        rows = yield _DELETE, packed([(before.tenant, before.name, before.revision)])
    elif after is not None and before is None:
        rows = yield _INSERT, packed([row_from(after, micros)])
    elif after is not None and before is not None:
        was = (value_from(name, getattr(before, name), micros) for name in _COMPARED)
        rows = yield _UPDATE, packed([(*row_from(after, micros), *was)])
    else:
        return False
    if rows:
        yield ADD_EVENTS, packed([event_row(event)])
    return bool(rows)
