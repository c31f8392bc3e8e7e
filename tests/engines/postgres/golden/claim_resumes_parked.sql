-- A turn that claims and has nothing to settle, from cursors, while something may be parked or paused (sql/turn.sql).

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

-- The gate: the pauses that hold in these queues, where * means any tenant or any task.
gate as materialized (
    select s.tenant, q.queue, s.task
    from requested_queues q join @.pauses s on s.queue in (q.queue, '*')
    where (s.until is null or s.until > (select now from t)) and not exists (select 1 from gate_lock)
),

-- The queues that are not paused as a whole.
queues as materialized (
    select q.queue from requested_queues q
    where ('*', q.queue, '*') not in (select tenant, queue, task from gate)
    limit (select 1000000000 from p)
),

-- The groups of jobs that were parked by task, one step for each lane, task and version.
task_group_steps(queue, lane, task, task_version) as (
    select q.queue, g.lane, g.task, g.task_version from queues q cross join lateral (
        select j.lane, j.task, j.task_version from @.jobs j
        where j.state = 'pending' and j.parked and not j.parked_by_tenant and j.queue = q.queue
        order by j.lane, j.task, j.task_version limit 1
    ) g
    union all
    select s.queue, g.lane, g.task, g.task_version from task_group_steps s cross join lateral (
        select j.lane, j.task, j.task_version from @.jobs j
        where j.state = 'pending' and j.parked and not j.parked_by_tenant and j.queue = s.queue
        and (j.lane, j.task, j.task_version) > (s.lane, s.task, s.task_version)
        order by j.lane, j.task, j.task_version limit 1
    ) g
),

-- Of these, the groups that this claim may take: of its lanes, not paused, of a task and version that it knows.
task_groups as materialized (
    select s.queue, s.lane, s.task, s.task_version
    from task_group_steps s cross join request r left join known k on k.task = s.task
    where (r.lanes is null or s.lane = any (r.lanes))
    and ('*', s.queue, s.task) not in (select tenant, queue, task from gate)
    and case when k.task is null then r.any_task else s.task_version <= k.version end
),

-- The same for jobs that were parked by a pause that named their tenant.
tenant_group_steps(queue, lane, tenant, task, task_version) as (
    select q.queue, g.* from queues q cross join lateral (
        select j.lane, j.tenant, j.task, j.task_version from @.jobs j
        where j.state = 'pending' and j.parked and j.parked_by_tenant and j.queue = q.queue
        order by j.lane, j.tenant, j.task, j.task_version limit 1
    ) g
    union all
    select s.queue, g.* from tenant_group_steps s cross join lateral (
        select j.lane, j.tenant, j.task, j.task_version from @.jobs j
        where j.state = 'pending' and j.parked and j.parked_by_tenant and j.queue = s.queue
        and (j.lane, j.tenant, j.task, j.task_version) > (s.lane, s.tenant, s.task, s.task_version)
        order by j.lane, j.tenant, j.task, j.task_version limit 1
    ) g
),

tenant_groups as materialized (
    select s.queue, s.lane, s.tenant, s.task, s.task_version
    from tenant_group_steps s cross join request r left join known k on k.task = s.task
    where (r.lanes is null or s.lane = any (r.lanes))
    and ('*', s.queue, s.task) not in (select tenant, queue, task from gate)
    and (s.tenant, s.queue, s.task) not in (select tenant, queue, task from gate)
    and (s.tenant, s.queue, '*') not in (select tenant, queue, task from gate)
    and case when k.task is null then r.any_task else s.task_version <= k.version end
),

parked_or_paused as materialized (
    select exists (select 1 from gate) or exists (select 1 from task_group_steps)
        or exists (select 1 from tenant_group_steps) as yes
),

-- The cursors: in each lane and priority, the last job that a claim has taken.
lanes as materialized (
    select l.*
    from request, json_to_recordset(cursors) as l(queue text, lane text, priority int, due_at timestamptz, id uuid)
    where l.queue in (select queue from queues)
    limit (select 1000000000 from p)
),

-- How many jobs to claim. A token that holds jobs already gets no more: this turn was here before, and its answer was
-- lost. Only a further round of the same claim (`again`) fills up what is left of its limit.
demand as materialized (
    select r.*, case
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
            union select queue, lane from task_groups
            union select queue, lane from tenant_groups
        ) l
    ) l
),

-- The jobs that may be claimed, locked; a job that another transaction has locked is skipped. `open`: its task may be
-- taken, by what the claimer knows and by the gate. `allowed`: no pause of its tenant blocks it either.
candidates as materialized (
    select x.*,
        x.open and (x.tenant, x.queue, x.task) not in (select tenant, queue, task from gate)
            and (x.tenant, x.queue, '*') not in (select tenant, queue, task from gate) as allowed
    from (
        select x.*,
            ('*', x.queue, x.task) not in (select tenant, queue, task from gate) and
            case when k.task is null then (select any_task from demand) else x.task_version <= k.version end as open
        from (
            -- By cursor: nothing that was taken lately is walked over, although its index entries stay as long as a long
            -- transaction may need them.
            select l.queue, l.lane, d.*
            from lanes l cross join share s cross join lateral (
                select j.id, j.priority, j.due_at, j.tenant, j.task, j.task_version, j.lease_token from @.jobs j
                where j.state = 'pending' and not j.parked and j.queue = l.queue and j.lane = l.lane
                and j.priority = l.priority and (j.due_at, j.id) > (l.due_at, l.id)
                and j.due_at <= (select now from t) and (j.expires_at is null or j.expires_at > (select now from t))
                order by j.due_at, j.id limit s.n for update skip locked
            ) d
            -- Jobs that were parked by task.
            union all
            select g.queue, g.lane, d.*
            from task_groups g cross join share s cross join lateral (
                select j.id, j.priority, j.due_at, j.tenant, j.task, j.task_version, j.lease_token from @.jobs j
                where j.state = 'pending' and j.parked and not j.parked_by_tenant
                and j.queue = g.queue and j.lane = g.lane and j.task = g.task and j.task_version = g.task_version
                and j.due_at <= (select now from t) and (j.expires_at is null or j.expires_at > (select now from t))
                order by j.priority desc, j.due_at, j.id limit s.n for update skip locked
            ) d
            -- Jobs that were parked by tenant. Tenants may be many: only those groups count whose first job is among the
            -- first, and no job is locked before it is known to be among the first. Four times as many are read as are
            -- wanted, because other claims may lock the same ones.
            union all
            select l.queue, l.lane, d.*
            from (select distinct queue, lane from tenant_groups) l cross join share s cross join lateral (
                select j.id, j.priority, j.due_at, j.tenant, j.task, j.task_version, j.lease_token from @.jobs j
                where j.state = 'pending' and j.parked and j.parked_by_tenant and j.id = any (array(
                    select d.id from (
                        select g.tenant, g.task, g.task_version
                        from tenant_groups g cross join lateral (
                            select j.priority, j.due_at, j.id from @.jobs j
                            where j.state = 'pending' and j.parked and j.parked_by_tenant
                            and j.queue = g.queue and j.lane = g.lane and j.tenant = g.tenant
                            and j.task = g.task and j.task_version = g.task_version
                            and j.due_at <= (select now from t)
                            and (j.expires_at is null or j.expires_at > (select now from t))
                            order by j.priority desc, j.due_at, j.id limit 1
                        ) d
                        where g.queue = l.queue and g.lane = l.lane
                        order by d.priority desc, d.due_at, d.id limit 4 * s.n
                    ) g cross join lateral (
                        select j.priority, j.due_at, j.id from @.jobs j
                        where j.state = 'pending' and j.parked and j.parked_by_tenant
                        and j.queue = l.queue and j.lane = l.lane and j.tenant = g.tenant
                        and j.task = g.task and j.task_version = g.task_version
                        and j.due_at <= (select now from t)
                        and (j.expires_at is null or j.expires_at > (select now from t))
                        order by j.priority desc, j.due_at, j.id limit 4 * s.n
                    ) d
                    order by d.priority desc, d.due_at, d.id limit 4 * s.n
                ))
                order by j.priority desc, j.due_at, j.id limit s.n for update of j skip locked
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
select 's' as kind, null as id, now, null from t
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
