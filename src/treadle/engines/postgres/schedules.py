"""Schedules by the page, and statements that change one in the caller's own transaction. `@` stands for the schema."""

import json

from treadle.engines.postgres.rows import moment, storable, stored
from treadle.engines.postgres.session import Query
from treadle.engines.records import JSONS, TABLES, UUIDS, conditions, matching, record_from, row_from, value_from
from treadle.engines.rows import Row
from treadle.engines.scripts import Script
from treadle.engines.values import ScheduleFilter
from treadle.model import Event
from treadle.model.records import Schedule, subject_of_schedule

_NAMES = Schedule._fields
_COLUMNS = ", ".join(_NAMES)
_TEXTS = {*JSONS, "on_end"}
_SELECTED = ", ".join(f"s.{name}::text" if name in {*_TEXTS, *UUIDS} else f"s.{name}" for name in _NAMES)
_COMPARED = TABLES[Schedule].compared

_ORDER = 'tenant collate "C", name collate "C"'  # as every engine sorts, whatever the collation of the database is


def find(query: Query, where: ScheduleFilter, limit: int, after: tuple[str, str] | None) -> list[Schedule]:
    """The first schedules that match, in the order of their keys."""
    wanted = conditions(where)
    values = [value for _, value in wanted if value is not None] + list(after or ())
    if not all(storable(value) for value in values if isinstance(value, str)):
        return []
    rest = [f"({_ORDER}) > (%s, %s)"] * (after is not None)
    only = " and ".join(["true", *(sql.replace("?", "%s") for sql, _ in wanted), *rest])
    sql = f"select {_SELECTED} from @.schedules s where {only} order by {_ORDER} limit %s"
    rows = query(sql, [*values, limit if where.id is None else None])
    return matching(where, (record_from(Schedule, row, moment) for row in rows), limit)


# ------------------------------------------------------------------------- for the caller's own transaction

_READ = f"""
select {_SELECTED} from @.schedules s, (select $1::json as j) c where s.tenant = c.j ->> 0 and s.name = c.j ->> 1
"""

_LAST_REVISION = "select max(revision) from @.events where job = $1::text::uuid"

# JSON texts come as text, so that they are stored letter by letter, and null is not mistaken for nothing.
_ROW = ", ".join(f"(c.j ->> '{name}')::json as {name}" if name in _TEXTS else f"r.{name}" for name in _NAMES)
_FROM = "from (select $1::json as j) c cross join lateral json_populate_record(null::@.schedules, {}) r"
_BARE = "(select json_object_agg(key, value) from json_each(c.j) where key not in ('payload', 'on_end'))"

_INSERT = f"""
insert into @.schedules ({_COLUMNS})
select {_ROW} {_FROM.format(_BARE)}
on conflict (tenant, name) do nothing returning 1
"""

_SAME = " and ".join(f"s.{name} is not distinct from w.{name}" for name in _COMPARED)
_UPDATE = f"""
with given as materialized (select {_ROW}, c.j -> 'was' as was {_FROM.format(_BARE)})
update @.schedules s set ({_COLUMNS}) = (select {_COLUMNS} from given)
from given g cross join lateral json_populate_record(null::@.schedules, g.was) w
where s.tenant = g.tenant and s.name = g.name and {_SAME} returning 1
"""

_DELETE = """
delete from @.schedules s using (select $1::json as j) c
where s.tenant = c.j ->> 0 and s.name = c.j ->> 1 and s.revision = (c.j ->> 2)::int returning 1
"""

_ADD_EVENT = """
insert into @.events (job, revision, at, kind, actor, note, tenant)
select job, revision, at, kind, actor, note, tenant
from json_to_record($1::json)
as c(job uuid, revision int, at timestamptz, kind text, actor text, note text, tenant text)
"""


def schedule_script(tenant: str, name: str) -> Script[tuple[Schedule | None, int]]:
    """Read a schedule, and the revision that a new one of its name has."""
    rows = (yield _READ, json.dumps([tenant, name])) if storable(tenant) and storable(name) else []
    if rows:
        return record_from(Schedule, rows[0], moment), 0
    [[last]] = yield _LAST_REVISION, subject_of_schedule(tenant, name)
    return None, 0 if last is None else last + 1


def save_script(after: Schedule | None, before: Schedule | None, event: Event) -> Script[bool]:
    """Write a schedule and its event if what is there is still `before`, or delete it; whether that was done."""
    if after is None and before is not None:
        rows = yield _DELETE, json.dumps([before.tenant, before.name, before.revision])
    elif after is not None and before is None:
        rows = yield _INSERT, json.dumps(_given(after))
    elif after is not None and before is not None:
        was = {name: value_from(name, getattr(before, name), stored) for name in _COMPARED}
        rows = yield _UPDATE, json.dumps({**_given(after), "was": was})
    else:
        return False
    if rows:
        yield _ADD_EVENT, json.dumps(dict(zip(_EVENT, (*event[:2], stored(event.at), *event[3:]), strict=True)))
    return bool(rows)


_EVENT = ("job", "revision", "at", "kind", "actor", "note", "tenant")


def _given(schedule: Schedule) -> dict[str, object]:
    row: Row = row_from(schedule, stored)
    return dict(zip(_NAMES, row, strict=True))
