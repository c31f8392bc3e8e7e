"""The audit trail: events, and the seals that show whether one was changed.

Each function is given `query(sql, values)`, which runs a query and returns its rows; `@` stands for the schema.
"""

import json
from collections.abc import Sequence
from datetime import datetime

from treadle.engines.postgres.queries import is_id
from treadle.engines.postgres.rows import as_given, event_from
from treadle.engines.postgres.session import Query
from treadle.engines.records import row_from
from treadle.model import Event
from treadle.model.records import Seal

Place = tuple[datetime, str, int]  # time, job and revision

_COLUMNS = "job, revision, at, kind, actor, note, tenant"
_EVENT = _COLUMNS.replace("job", "job::text")

_EVENTS = f"select {_EVENT} from @.events where job = %s order by revision desc, at desc limit %s"

# With `seal` first, this is the order of the index events_seal.
_UNSEALED = f"""
select {_EVENT} from @.events where seal is null order by seal, tenant collate "C", at, job, revision limit %s
"""

# Of each tenant the newest by the index, which is read backwards; tenants are found by it one after another.
_NEWEST_UNSEALED = f"""
with recursive tenants(name) as (
    (select tenant from @.events where seal is null order by seal, tenant collate "C" limit 1)
    union all
    select (
        select e.tenant from @.events e where e.seal is null and e.tenant collate "C" > t.name
        order by e.seal, e.tenant collate "C" limit 1
    ) from tenants t where t.name is not null
)
select {_EVENT} from tenants t cross join lateral (
    select e.* from @.events e where e.seal is null and e.tenant collate "C" = t.name{{before}}
    order by e.seal desc, e.tenant collate "C" desc, e.at desc, e.job desc, e.revision desc limit %(limit)s
) e order by at desc, job desc, revision desc limit %(limit)s
"""
_BEFORE = """
    and e.at <= %(at)s::timestamptz and (e.at, e.job, e.revision) < (%(at)s::timestamptz, %(job)s::uuid, %(revision)s)
"""

# One statement: a seal whose number is free, over events of which none is sealed or just being sealed. Every sealer
# locks the oldest event before the others. Without that, two sealers might each skip what the other has locked, and
# neither would get them all.
_SEAL = f"""
with c as materialized (
    select * from json_to_recordset(%s) as c(job uuid, revision int, at timestamptz)
),
oldest as materialized (
    select 1 from (select * from c order by at, job, revision limit 1) f
    join @.events e on e.job = f.job and e.revision = f.revision and e.at = f.at
    where e.seal is null for update of e skip locked
),
mine as materialized (
    select e.job, e.revision, e.at from c join @.events e on e.job = c.job and e.revision = c.revision and e.at = c.at
    where e.seal is null and exists (select from oldest) for update of e skip locked
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

_ORPHANED = f"""
select {_EVENT} from @.events e where seal is not null
and not exists (select 1 from @.seals s where s.tenant = e.tenant and s.number = e.seal)
order by tenant collate "C", at, job, revision limit %s
"""

_PRUNE = """
with done as (
    update @.seals set pruned_at = coalesce(%(now)s::timestamptz, statement_timestamp())
    where tenant = %(tenant)s and number = %(number)s and pruned_at is null returning number
),
gone as (delete from @.events where seal = (select number from done) and tenant collate "C" = %(tenant)s)
select number from done
"""


def events(query: Query, subject: str, latest: int | None) -> list[Event]:
    """The events of a job or a record, oldest first; with `latest`, the last so many."""
    return [event_from(row) for row in reversed(query(_EVENTS, [subject, latest]))] if is_id(subject) else []


def write_event(query: Query, event: Event | None) -> None:
    """Add an event, if there is one."""
    if event is not None:
        query(f"insert into @.events ({_COLUMNS}) values ({', '.join(['%s'] * len(event))})", event)


def unsealed(query: Query, limit: int) -> list[Event]:
    """Events that are in no seal yet."""
    return [event_from(row) for row in query(_UNSEALED, [limit])]


def newest_unsealed(query: Query, limit: int, before: Place | None) -> list[Event]:
    """The latest of them before this place, newest first: up to `limit` of each tenant are read."""
    sql = _NEWEST_UNSEALED.format(before="" if before is None else _BEFORE)
    values = dict(zip(("at", "job", "revision"), before or (), strict=False))
    return [event_from(row) for row in query(sql, {"limit": limit, **values})]


def seal(query: Query, made: Seal, events: Sequence[Event]) -> bool:
    """Write the seal and mark its events, if all of them are still unsealed."""
    wanted = json.dumps(
        [{"job": event.job_id, "revision": event.revision, "at": event.at.isoformat()} for event in events]
    )
    return bool(query(_SEAL, [wanted, *row_from(made, as_given)]))


def sealed(query: Query, made: Seal) -> list[Event]:
    """The events in a seal."""
    return [event_from(row) for row in query(_SEALED, [made.number, made.tenant])]


def orphaned_events(query: Query, limit: int) -> list[Event]:
    """Events whose seal is gone."""
    return [event_from(row) for row in query(_ORPHANED, [limit])]


def prune_events(query: Query, made: Seal, now: datetime | None) -> bool:
    """Delete the events of a seal, and write into the seal when."""
    return bool(query(_PRUNE, {"now": now, "tenant": made.tenant, "number": made.number}))
