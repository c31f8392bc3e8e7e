-- A turn that settles and claims, from named lanes, while nothing is thought to be parked or paused (sql/turn.sql).

-- p is the parameter, t the time and other single values, c the changes.
with recursive p as materialized (
    select * from json_to_record($1::text::json) as p(now timestamptz, rows json, claim json, notify text, lease float8,
        since timestamptz, after uuid, until timestamptz, tasks text[], these boolean)
),
t as materialized (
    select coalesce(p.now, statement_timestamp()) as now, notify, lease, since, after, until, tasks, these from p
),
c as materialized (
    select c.* from p cross join lateral json_to_recordset(p.rows) as c(
        id uuid, was text, was_revision int, was_token text, was_lease timestamptz, state text, reason text,
        result text, error text, failures int, crashes int, started_at timestamptz, finished_at timestamptz,
        lease_token text, progress text, cost_micros bigint, revision int, due_at timestamptz, frees boolean,
        kind text, actor text, note text, at timestamptz)
),

-- Write the changes; `settled` has the jobs that were written.
-- Lock the rows whose fence holds: the state, the revision and, if the change names them, token and lease. A row
-- that another open transaction holds is skipped, so that one locked job does not hold up the others.
mine as materialized (
    select j.id from c join @.jobs j on j.id = c.id and j.state = c.was and j.revision = c.was_revision
    and (c.was_token is null or j.lease_token = c.was_token)
    and (c.was_lease is null or j.lease_until = c.was_lease and j.lease_until <= (select now from t))
    for update of j skip locked
),

-- A job that has ended moves to the finished ones.
gone as (
    delete from @.jobs j using c
    where j.id = c.id and c.state not in ('pending', 'running') and j.id = any (array(select id from mine))
    returning
        j.id, j.task, j.payload, j.created_at, j.due_at, j.tenant, j.queue, j.lane, j.task_version, j.priority,
        j.max_attempts, j.retry_base, j.retry_cap, j.retry_jitter, j.timeout, j.expires_at, j.key,
        j.key_scope, j.key_until, j.schedule, j.on_end, c.state, c.reason, c.result::json as result,
        c.error::json as error, j.attempt, c.failures, c.crashes, j.claimed_at, c.started_at,
        greatest(c.finished_at, c.started_at) as finished_at, j.worker, null::timestamptz as lease_until,
        c.lease_token, j.cancel_requested, c.progress::json as progress, c.cost_micros, c.revision
),
kept as (
    insert into @.finished (
        id, task, payload, created_at, due_at, tenant, queue, lane, task_version, priority, max_attempts, retry_base,
        retry_cap, retry_jitter, timeout, expires_at, key, key_scope, key_until, schedule, on_end, state,
        reason, result, error, attempt, failures, crashes, claimed_at, started_at, finished_at, worker,
        lease_until, lease_token, cancel_requested, progress, cost_micros, revision)
    select * from gone
),

-- A job that runs again is pending. It keeps its token, so that a repeated write is known as the same one.
back as (
    update @.jobs j
    set state = 'pending', due_at = c.due_at, error = c.error::json, failures = c.failures, crashes = c.crashes,
        started_at = c.started_at, worker = null, lease_until = null, lease_token = c.lease_token,
        progress = c.progress::json, cost_micros = c.cost_micros, revision = c.revision
    from c where j.id = c.id and c.state = 'pending' and j.id = any (array(select id from mine))
    returning j.id, j.tenant
),
settled as materialized (select id, tenant from gone union all select id, tenant from back),

-- A change that is written frees the key of its job, and has its audit event, in the same statement.
freed as (
    delete from @.keys k using c join settled s on s.id = c.id
    where k.job = c.id and c.frees and k.scope in ('pending', 'active')
),
noted as (
    insert into @.events (job, revision, at, kind, actor, note, tenant)
    select c.id, c.revision, c.at, c.kind, c.actor, c.note, s.tenant
    from c join settled s on s.id = c.id where c.kind is not null
),

-- The request of the claim. held: how many jobs the token holds already. The function waits for an earlier sending of the
-- same claim that is still under way, and counts what that one took.
request as materialized (
    select r.*, @.holding(r.token) as held
    from p cross join lateral json_to_record(p.claim) as r(
        token text, worker text, lease float8, "limit" int, spare int, queues text[], lanes text[], known json,
        any_task boolean, cursors json, again boolean, round bigint, audit_all boolean)
),

-- The tasks that the claimer says something about: the newest version that it takes of each.
known as materialized (select k.* from request, json_to_recordset(known) as k(task text, version bigint)),

requested_queues as materialized (select distinct unnest(queues) as queue from request),

-- To read the pauses is not enough: a claim that began before a pause was committed does not see it, and may itself
-- commit after it. So each claim also locks the table of pauses: `for key share` over no row takes a ROW SHARE lock on
-- the table, before the snapshot of the statement is taken. A pause waits, after its commit, until the claims that hold
-- such a lock are over (records.await_claims). No claim waits for a pause.
gate_lock as materialized (select 1 from @.pauses where false for key share),

-- Usually nothing is paused and no job is parked, and the claim reads its lanes alone. Here it checks that this is so.
-- If it is not, it takes nothing, and the turn is sent again in the form that reads all of it.
parked_or_paused as materialized (
    select exists (
        select 1 from @.pauses s, request r
        where (s.queue = '*' or s.queue = any (r.queues))
        and (s.until is null or s.until > (select now from t)) and not exists (select 1 from gate_lock)
    ) or exists (
        select 1 from requested_queues q
        where (
            select true from @.jobs j
            where j.state = 'pending' and j.parked and not j.parked_by_tenant and j.queue = q.queue
            order by j.lane, j.task limit 1
        ) or (
            select true from @.jobs j
            where j.state = 'pending' and j.parked and j.parked_by_tenant and j.queue = q.queue
            order by j.lane, j.tenant limit 1
        )
    ) as yes
),

queues as materialized (select queue from requested_queues limit (select 1000000000 from p)),

lanes as materialized (
    select q.queue, l.lane
    from queues q cross join (select distinct unnest(lanes) as lane from request) l
),

-- How many jobs to claim. A token that holds jobs already gets no more: this turn was here before, and its answer was
-- lost. Only a further round of the same claim (`again`) fills up what is left of its limit.
demand as materialized (
    select r.*, case
        when (select yes from parked_or_paused) then 0
        when held = 0 then "limit"
        when again then greatest("limit" - held, 0)
        else 0
    end as n
    from request r
),

-- How many jobs to read in each lane: lanes share the claim, so that a full one does not starve the others. After a
-- round that had to park jobs, `spare` more are read, because more of them may follow.
share as materialized (
    select l.lanes, ceil((d.n + d.spare)::float8 / greatest(l.lanes, 1))::int as n
    from demand d, (
        select count(*) as lanes from (
            select queue, lane from lanes
        ) l
    ) l
),

-- The jobs that may be claimed, locked; a job that another transaction has locked is skipped. `open`: its task may be
-- taken, by what the claimer knows and by the gate. `allowed`: no pause of its tenant blocks it either.
candidates as materialized (
    select x.*,
        x.open as allowed
    from (
        select x.*,
            case when k.task is null then (select any_task from demand) else x.task_version <= k.version end as open
        from (
            -- By lane: from priority to priority, and within each a range by due time. One ordered scan over the whole
            -- lane would walk over every future job of a higher priority.
            select l.queue, l.lane, d.*
            from lanes l cross join share s cross join lateral (
                with recursive level(priority) as (
                    select (
                        select j.priority from @.jobs j
                        where j.state = 'pending' and not j.parked and j.queue = l.queue and j.lane = l.lane
                        order by j.priority desc limit 1
                    )
                    union all
                    select (
                        select j.priority from @.jobs j
                        where j.state = 'pending' and not j.parked and j.queue = l.queue and j.lane = l.lane
                        and j.priority < level.priority order by j.priority desc limit 1
                    )
                    from level where level.priority is not null
                )
                select d.*
                from (
                    select priority from level where priority is not null limit (select 1000000000 from p)
                ) level cross join lateral (
                    select j.id, j.priority, j.due_at, j.tenant, j.task, j.task_version, j.lease_token from @.jobs j
                    where j.state = 'pending' and not j.parked and j.queue = l.queue and j.lane = l.lane
                    and j.priority = level.priority
                    and j.due_at <= (select now from t) and (j.expires_at is null or j.expires_at > (select now from t))
                    order by j.due_at, j.id limit s.n for update skip locked
                ) d limit s.n
            ) d
        ) x left join known k on k.task = x.task
    ) x
),

-- The order of the claim within each lane, and which lane comes first in this round.
ranked as materialized (
    select id, allowed, row_number() over (partition by queue, lane order by priority desc, due_at, id) as place,
        (dense_rank() over (order by queue, lane) + d.round) % greatest(s.lanes, 1) as turn
    from candidates cross join demand d cross join share s
),

-- The claim, as model/lifecycle.py specifies it. The state is compared again, because the update checks it on the newest
-- version of each row.
claimed as (
    update @.jobs j
    set state = 'running', attempt = attempt + 1, revision = revision + 1, claimed_at = t.now, started_at = null,
        progress = null, lease_until = t.now + make_interval(secs => d.lease), lease_token = d.token,
        worker = d.worker, parked = false, parked_by_tenant = false
    from t, demand d
    where j.id = any (array(
        select r.id from ranked r where r.allowed and r.place <= (select n from share)
        order by r.place, r.turn limit (select n from demand)
    ))
    and j.state = 'pending'
    returning j.id, j.revision, j.tenant, j.key_scope
),

-- A job that this claim may not take leaves jobs_claim, so that later claims skip it at no cost: parked by tenant if only
-- a pause of its tenant blocks it, else by task.
newly_parked as (
    update @.jobs j
    set parked = true, parked_by_tenant = j.id = any (array(select id from candidates where open and not allowed))
    where j.id = any (array(select id from candidates where not allowed)) and j.state = 'pending'
    returning j.id
),

-- A key of the scope `pending` is free when its job is claimed.
freed_keys as (
    delete from @.keys k using claimed c where k.job = c.id and k.scope = 'pending' and c.key_scope = 'pending'
),

noted_claims as (
    insert into @.events (job, revision, at, kind, actor, note, tenant)
    select c.id, c.revision, t.now, 'claimed', d.worker, '', c.tenant from claimed c, t, demand d where d.audit_all
)

-- The answer, rows of (kind, value, now, token). It has ids alone, a few kilobytes, because the locks last until it has
-- been sent: a client that is frozen while its socket is full must not hold hundreds of uncommitted claims. The jobs are
-- read after the commit.
-- s: the server's time, and the id of a job that was settled
select 's' as kind, id::text, now, null::text from t left join settled on true
-- c: the id of a job that was claimed
union all select 'c', id::text, null, null from claimed
-- b: the token that a candidate had before, if a change of this turn is about the same job
union all select 'b', c.id::text, null, x.lease_token from candidates x join c on c.id = x.id
-- h: how many jobs the token held before
union all select 'h', held::text, null, null from request
-- p: how many jobs this statement has parked
union all select 'p', count(*)::text, null, null from newly_parked
-- a: a pause holds, or a job is parked
union all select 'a', null, null, null from parked_or_paused where yes
-- m: a lane gave its whole share, so it may have more
union all select 'm', null, null, null from (select count(*) as n from candidates group by queue, lane) m
    having max(n) >= (select n from share)
