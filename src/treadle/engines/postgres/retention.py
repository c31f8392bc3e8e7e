"""What keeps the store in order: renewing leases, finding those that are past, pruning old jobs, adding up costs."""

from datetime import UTC, datetime
from typing import Any

from treadle.engines.postgres.rows import JOB, packed, record, stored, unpack
from treadle.engines.retention import Place, Rule
from treadle.engines.rows import renewal_of
from treadle.engines.values import Lease

WINDOW = 1000  # finished jobs that are looked at in one go, to see which are old

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
    select f.id from @.finished f
    where f.state = '$state' and f.finished_at < (select until from t)
    and not exists (select 1 from @.keys k where k.job = f.id)
    order by f.finished_at limit $limit for update of f skip locked
),
gone as (delete from @.finished where id = any (array(select id from old)) returning id)
select count(*)::int, null::timestamptz, null::text from gone
"""

# Where some stay and some go, a window of them is looked at, from a place on: (finished_at, id).
PRUNE_SOME = f"""
{unpack(("id",))},
seen as materialized (
    select f.id, f.task, f.finished_at from @.finished f
    where f.state = '$state' and f.finished_at < (select until from t)
    and (f.finished_at, f.id) > ((select since from t), (select after from t))
    and not exists (select 1 from @.keys k where k.job = f.id)
    order by f.finished_at, f.id limit {WINDOW}
),
chosen as materialized (
    select s.id, s.finished_at from seen s cross join t
    where (s.task = any (t.tasks)) = t.these order by s.finished_at, s.id limit $limit
),
old as materialized (
    select f.id from @.finished f where f.id = any (array(select id from chosen)) for update of f skip locked
),
gone as (delete from @.finished where id = any (array(select id from old)) returning id),
reached as (
    (select id, finished_at from chosen where (select count(*) from chosen) = $limit
    order by finished_at desc, id desc limit 1)
    union all
    (select id, finished_at from seen where (select count(*) from seen) = {WINDOW}
    order by finished_at desc, id desc limit 1)
    limit 1
)
select g.n::int, r.finished_at, r.id::text
from (select count(*) as n from gone) g left join reached r on true
"""


def pruning(rule: Rule, since: Place, until: datetime, limit: int) -> tuple[str, str]:
    """The statement that deletes what the rule wants of the next jobs, and its parameter."""
    sql = PRUNE_SOME if rule.picky else PRUNE
    at, after = since or (datetime.min.replace(tzinfo=UTC), "00000000-0000-0000-0000-000000000000")
    place = {"since": stored(at), "after": after, "until": stored(until)}
    text = packed([], None, **place, tasks=sorted(rule.tasks), these=rule.these)
    return sql.replace("$state", rule.state.value).replace("$limit", str(limit)), text


COSTS = """
select tenant, task, sum(cost_micros) from @.finished
where cost_micros > 0 and finished_at >= %(since)s and finished_at < %(until)s
and (%(tenant)s::text is null or tenant = %(tenant)s)
group by tenant, task
"""


def renewal(held: Lease) -> dict[str, Any]:
    """A renewal as a record."""
    return record(RENEWAL, renewal_of(held, stored))
