"""Deleting finished jobs that are old enough, and keys whose time is over."""

from datetime import UTC, datetime

from treadle.engines.postgres.rows import packed, stored, unpack
from treadle.engines.postgres.session import PostgresStore
from treadle.engines.retention import Place, Rule, Sweeper, Window
from treadle.engines.values import Retention

WINDOW_SIZE = 1000  # finished jobs that one statement reads, where some of them stay

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
gone as (delete from @.finished where id = any (array(select id from old)) returning id),
forgotten as (delete from @.memos where job = any (array(select id from old)))
select count(*)::int, null::timestamptz, null::text from gone
"""

# Where some jobs stay, the statement reads a window of them, from (finished_at, id) on.
PRUNE_SOME = f"""
{unpack(("id",))},
seen as materialized (
    select f.id, f.task, f.finished_at from @.finished f
    where f.state = '$state' and f.finished_at < (select until from t)
    and (f.finished_at, f.id) > ((select since from t), (select after from t))
    and not exists (select 1 from @.keys k where k.job = f.id)
    order by f.finished_at, f.id limit {WINDOW_SIZE}
),
chosen as materialized (
    select s.id, s.finished_at from seen s cross join t
    where (s.task = any (t.tasks)) = t.these order by s.finished_at, s.id limit $limit
),
old as materialized (
    select f.id from @.finished f where f.id = any (array(select id from chosen)) for update of f skip locked
),
gone as (delete from @.finished where id = any (array(select id from old)) returning id),
forgotten as (delete from @.memos where job = any (array(select id from old))),
reached as (
    (select id, finished_at from chosen where (select count(*) from chosen) = $limit
    order by finished_at desc, id desc limit 1)
    union all
    (select id, finished_at from seen where (select count(*) from seen) = {WINDOW_SIZE}
    order by finished_at desc, id desc limit 1)
    limit 1
)
select g.n::int, r.finished_at, r.id::text
from (select count(*) as n from gone) g left join reached r on true
"""


def prune(
    store: PostgresStore, sweeper: Sweeper, keep: Retention, limit: int, now: datetime | None, *, to_the_end: bool
) -> int:
    """Delete up to `limit` jobs that finished longer ago than `keep` says; how many it deleted."""
    moment = store.clock.written(now)
    store.session.send(OLD_KEYS, packed([], moment))

    def delete(rule: Rule, since: Place, until: datetime, limit: int) -> Window:
        [[gone, *end]] = store.session.send(*prune_sql(rule, since, until, limit))
        return Window(gone, end if end[0] is not None else None)

    return sweeper.sweep(keep, limit, moment or store.clock.now(), delete, to_the_end=to_the_end)


def prune_sql(rule: Rule, since: Place, until: datetime, limit: int) -> tuple[str, str]:
    """The statement that deletes the next jobs of this rule, and its parameter."""
    sql = PRUNE_SOME if rule.picky else PRUNE
    at, after = since or (datetime.min.replace(tzinfo=UTC), "00000000-0000-0000-0000-000000000000")
    place = {"since": stored(at), "after": after, "until": stored(until)}
    text = packed([], None, **place, tasks=sorted(rule.tasks), these=rule.these)
    return sql.replace("$state", rule.state.value).replace("$limit", str(limit)), text
