-- A turn that settles alone (settle.py).

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
)

-- There is a row in any case, because of the server's time.
select settled.id::text, t.now from t left join settled on true
