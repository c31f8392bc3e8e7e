"""The rows beside the jobs in PostgreSQL: schedules, pauses, live workers, seals.

Every function is told how to run a query: `query(sql, values)` gives its rows; `@` stands for the schema.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from treadle.engines.postgres.rows import event_from, moment
from treadle.engines.records import JSONS, TABLES, Table, row_from, table_of, value_from
from treadle.engines.records import record_from as read_record
from treadle.engines.rows import Row
from treadle.engines.values import Overwrite
from treadle.errors import EngineUnavailable
from treadle.model import Event
from treadle.model.records import KEYS, Record, Schedule, Seal

R = TypeVar("R", bound=Record)

Values = Sequence[Any] | Mapping[str, Any]
Query = Callable[[str, Values], list[Row]]

GLANCE = 0.002  # seconds between two looks at the claims that a pause waits for; longer and longer ones
PATIENCE = 30.0  # seconds that it waits for them

_EVENT = "job::text, revision, at, kind, actor, note, tenant"


def read(query: Query, kind: type[R], tenant: str | None = None) -> list[R]:
    table = TABLES[kind]
    only = "where tenant = %s" if tenant is not None else ""
    sql = f"select {_selected(table)} from @.{table.name} {only} order by {_in_order(kind)}"
    return [read_record(kind, row, moment) for row in query(sql, [] if tenant is None else [tenant])]


def _selected(table: Table) -> str:
    return ", ".join(f"{name}::text" if name in JSONS or name == "on_end" else name for name in table.columns)


def _in_order(kind: type[Any]) -> str:
    """Their keys, sorted as every engine does, whatever the database's language."""
    return ", ".join(name if name == "number" else f'{name} collate "C"' for name in KEYS[kind])


def due(query: Query, limit: int, ahead: float, now: datetime | None) -> list[Schedule]:
    sql = f"""
    with t as materialized (
        select coalesce(%(now)s::timestamptz, statement_timestamp()) + make_interval(secs => %(ahead)s) as until
    )
    select {_selected(TABLES[Schedule])} from (
        (select * from @.schedules where enabled and next_at is null limit %(limit)s)
        union all
        (select * from @.schedules where enabled and next_at <= (select until from t) order by next_at limit %(limit)s)
    ) s
    order by next_at nulls first, {_in_order(Schedule)} limit %(limit)s
    """
    rows = query(sql, {"now": now, "ahead": float(ahead), "limit": limit})
    return [read_record(Schedule, row, moment) for row in rows]


def save(query: Query, record: Record, before: Record | Overwrite | None, event: Event | None) -> bool:
    """Write a record and its audit line if what is there is still `before`; whether they were written."""
    done = _write(query, record, before)
    if done:
        _note(query, event)
    return done


def _write(query: Query, record: Record, before: Record | Overwrite | None) -> bool:
    table, row = table_of(record), row_from(record, _as_it_is)
    columns, marks, key = ", ".join(table.columns), ", ".join(["%s"] * len(row)), ", ".join(table.key)
    if before is None or isinstance(before, Overwrite):
        others = ", ".join(f"{name} = excluded.{name}" for name in table.columns if name not in table.key)
        verb = "nothing" if before is None else f"update set {others}"
        sql = f"insert into @.{table.name} ({columns}) values ({marks}) on conflict ({key}) do {verb} returning 1"
        return bool(query(sql, row))
    same = [f"{name} = %s" for name in table.key] + [f"{name} is not distinct from %s" for name in table.compared]
    was = [value_from(name, getattr(before, name), _as_it_is) for name in (*table.key, *table.compared)]
    sql = f"update @.{table.name} set ({columns}) = ({marks}) where {' and '.join(same)} returning 1"
    return bool(query(sql, [*row, *was]))


def drop(query: Query, record: Record, event: Event | None) -> bool:
    table = table_of(record)
    names = [*table.key, *(name for name in ("revision",) if name in table.columns)]
    where = " and ".join(f"{name} = %s" for name in names)
    values = [getattr(record, name) for name in names]
    done = bool(query(f"delete from @.{table.name} where {where} returning 1", values))
    if done:
        _note(query, event)
    return done


def _note(query: Query, event: Event | None) -> None:
    if event is not None:
        columns, marks = _EVENT.replace("::text", ""), ", ".join(["%s"] * len(event))
        query(f"insert into @.events ({columns}) values ({marks})", event)


def _as_it_is(moment: datetime | None) -> datetime | None:
    """A time as the driver takes it."""
    return moment


# ------------------------------------------------------------------------------------------- the gate

_CLAIMS = """
select l.virtualtransaction from pg_locks l
where l.locktype = 'relation' and l.database = (select oid from pg_database where datname = current_database())
and l.relation = '@.pauses'::regclass and l.mode = 'RowShareLock' and l.granted
and l.pid is distinct from pg_backend_pid()
"""


def await_claims(query: Query) -> None:
    """Wait until the claims that may have begun before this moment are over: they may not have seen a new pause.

    A claim that begins later sees it: it holds its lock on the table before it looks (turn._GATE).
    """
    deadline, glance = time.monotonic() + PATIENCE, GLANCE
    left = {row[0] for row in query(_CLAIMS, [])}
    while left:
        if time.monotonic() > deadline:
            raise EngineUnavailable(
                f"the pause is stored, but after {PATIENCE:g} s some claim that began before it has not ended; "
                "repeating is safe"
            )
        time.sleep(glance)
        glance = min(2 * glance, 0.05)
        left &= {row[0] for row in query(_CLAIMS, [])}


# ------------------------------------------------------------------------------------------ the seals

# The first column makes it the order of events_seal.
_UNSEALED = f"""
select {_EVENT} from @.events where seal is null order by seal, tenant collate "C", at, job, revision limit %s
"""

# All in one: a seal whose number is free, over lines of which none is sealed or just being sealed. Every sealer begins
# with the oldest line, so that is locked before the others: of two that each skip what the other has locked, neither
# might get them all.
_SEAL = f"""
with c as materialized (
    select * from json_to_recordset(%s) as c(job uuid, revision int, at timestamptz)
),
door as materialized (
    select 1 from (select * from c order by at, job, revision limit 1) f
    join @.events e on e.job = f.job and e.revision = f.revision and e.at = f.at
    where e.seal is null for update of e skip locked
),
mine as materialized (
    select e.job, e.revision, e.at from c join @.events e on e.job = c.job and e.revision = c.revision and e.at = c.at
    where e.seal is null and exists (select from door) for update of e skip locked
),
made as (
    insert into @.seals ({", ".join(Seal._fields)})
    select {", ".join(["%s"] * len(Seal._fields))}
    where (select count(*) from mine) = (select count(*) from c)
    on conflict do nothing returning number
),
marked as (
    update @.events e set seal = made.number from made, mine
    where e.job = mine.job and e.revision = mine.revision and e.at = mine.at
)
select number from made
"""

_SEALED = f"""
select {_EVENT} from @.events where seal = %s and tenant collate "C" = %s order by at, job, revision
"""

_STRAYS = f"""
select {_EVENT} from @.events e where seal is not null
and not exists (select 1 from @.seals s where s.tenant = e.tenant and s.number = e.seal)
order by tenant collate "C", at, job, revision limit %s
"""

_FORGET = """
with done as (
    update @.seals set pruned_at = coalesce(%(now)s::timestamptz, statement_timestamp())
    where tenant = %(tenant)s and number = %(number)s and pruned_at is null returning number
),
gone as (delete from @.events where seal = (select number from done) and tenant collate "C" = %(tenant)s)
select number from done
"""


def unsealed(query: Query, limit: int) -> list[Event]:
    return [event_from(row) for row in query(_UNSEALED, [limit])]


def seal(query: Query, made: Seal, events: Sequence[Event]) -> bool:
    """Write the seal and mark its lines, if all of them are still unsealed."""
    wanted = json.dumps(
        [{"job": event.job_id, "revision": event.revision, "at": event.at.isoformat()} for event in events]
    )
    return bool(query(_SEAL, [wanted, *row_from(made, _as_it_is)]))


def sealed(query: Query, made: Seal) -> list[Event]:
    return [event_from(row) for row in query(_SEALED, [made.number, made.tenant])]


def orphaned_events(query: Query, limit: int) -> list[Event]:
    return [event_from(row) for row in query(_STRAYS, [limit])]


def prune_events(query: Query, made: Seal, now: datetime | None) -> bool:
    return bool(query(_FORGET, {"now": now, "tenant": made.tenant, "number": made.number}))
