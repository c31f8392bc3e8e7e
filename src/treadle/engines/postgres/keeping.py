"""What keeps the store in order: renewing leases, finding those that are past, pruning old jobs."""

from typing import Any

from treadle.engines.base import Hold
from treadle.engines.postgres.rows import JOB, record, stored, unpack
from treadle.engines.rows import renewal_of

RENEWAL = ("id", "token", "started_at", "progress", "cost_micros")

EXTEND = f"""
{unpack(RENEWAL)},
mine as materialized (
    select j.id from c join @.jobs j on j.id = c.id and j.state = 'running' and j.lease_token = c.token
    for update of j skip locked
)
update @.jobs j
set lease_until = t.now + make_interval(secs => t.lease),
    started_at = coalesce(c.started_at, j.started_at), progress = coalesce(c.progress::json, j.progress),
    cost_micros = coalesce(c.cost_micros, j.cost_micros)
from c, t
where j.id = any (array(select id from mine)) and j.id = c.id and j.state = 'running' and j.lease_token = c.token
returning j.id::text, j.lease_token, j.cancel_requested, t.now
"""

STILL = """
with wanted as materialized (select value::uuid as id from json_array_elements_text($1::text::json))
select j.id::text, j.lease_token from @.jobs j where j.id in (select id from wanted) and j.state = 'running'
"""

PAST = f"""
with t as materialized (select coalesce(%(now)s::timestamptz, statement_timestamp()) as now)
select t.now, past.* from t left join (
    (select {JOB} from @.jobs where state = 'running' and lease_until <= (select now from t)
    order by lease_until limit %(limit)s)
    union all
    (select {JOB} from @.jobs where state = 'pending' and expires_at <= (select now from t)
    order by expires_at limit %(limit)s)
    limit %(limit)s
) past on true
"""

OLD_KEYS = f"""
{unpack(("id",))},
old as materialized (
    select k.tenant, k.task, k.key from @.keys k, t where k.until <= t.now limit 1000 for update of k skip locked
)
delete from @.keys k using old o where k.tenant = o.tenant and k.task = o.task and k.key = o.key
"""

PRUNE = f"""
{unpack(("id",))},
old as materialized (
    select f.id from @.finished f, t
    where f.state = '$state' and f.finished_at < t.now - make_interval(secs => t.age)
    and not exists (select 1 from @.keys k where k.job = f.id)
    order by f.finished_at limit $limit for update of f skip locked
),
gone as (delete from @.finished where id = any (array(select id from old)) returning id),
forgotten as (delete from @.events where job = any (array(select id from old)))
select count(*)::int from gone
"""


def renewal(hold: Hold) -> dict[str, Any]:
    """A renewal as a record."""
    return record(RENEWAL, renewal_of(hold, stored))
