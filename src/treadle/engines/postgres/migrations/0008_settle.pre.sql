-- Write changes that end an attempt (settle.py says what they hold); the ids of those written, and the time. There is a
-- row in any case.
create function @.settle(request text) returns table (id text, now timestamptz)
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    moment timestamptz;
    changes json;
    settled text[];
begin
    select coalesce(p.now, statement_timestamp()), p.rows into moment, changes
    from json_to_record(settle.request::json) as p(now timestamptz, rows json);

    with c as materialized (
        select c.* from json_to_recordset(changes) as c(
            id uuid, was text, was_revision int, was_token text, was_lease timestamptz, state text, reason text,
            result text, error text, failures int, crashes int, started_at timestamptz, finished_at timestamptz,
            lease_token text, progress text, cost_micros bigint, revision int, due_at timestamptz, frees boolean,
            kind text, actor text, note text, at timestamptz)
    ),

    -- Lock the rows whose fence holds: the state, the revision and, if the change names them, token and lease. Without
    -- the token, a zombie could settle a job that was claimed again. Without the revision, a retry could bury a cancel
    -- request. Without the lease, recovery could take a job whose lease was renewed after it was read. A row that another
    -- open transaction holds is skipped, so that one locked job does not hold up the others.
    mine as materialized (
        select c.*, j.tid from c cross join lateral (
            select j.ctid as tid from @.jobs j
            where j.id = c.id and j.state || '' = c.was and j.revision = c.was_revision
            and (c.was_token is null or j.lease_token = c.was_token)
            and (c.was_lease is null or j.lease_until = c.was_lease and j.lease_until <= moment)
            limit 1 for update skip locked
        ) j
    ),

    -- A job that has ended moves to the finished ones. The clock that gave started_at may have been ahead: an end is never
    -- before its start.
    gone as (
        delete from @.jobs j using mine m
        where j.ctid = m.tid and m.state not in ('pending', 'running')
        returning j.id, j.task, j.payload, j.created_at, j.due_at, j.tenant, j.queue, j.lane, j.task_version, j.priority,
            j.max_attempts, j.retry_base, j.retry_cap, j.retry_jitter, j.timeout, j.expires_at, j.key, j.key_scope,
            j.key_until, j.schedule, j.on_end, m.state, m.reason, m.result::json, m.error::json, j.attempt, m.failures,
            m.crashes, j.claimed_at, m.started_at, greatest(m.finished_at, m.started_at) as finished_at, j.worker,
            m.lease_token, j.cancel_requested, m.progress::json, m.cost_micros, m.revision, m.frees, m.kind, m.actor, m.note,
            m.at
    ),
    kept as (
        insert into @.finished (id, task, payload, created_at, due_at, tenant, queue, lane, task_version, priority,
            max_attempts, retry_base, retry_cap, retry_jitter, timeout, expires_at, key, key_scope, key_until, schedule,
            on_end, state, reason, result, error, attempt, failures, crashes, claimed_at, started_at, finished_at, worker,
            lease_token, cancel_requested, progress, cost_micros, revision)
        select id, task, payload, created_at, due_at, tenant, queue, lane, task_version, priority, max_attempts, retry_base,
            retry_cap, retry_jitter, timeout, expires_at, key, key_scope, key_until, schedule, on_end, state, reason, result,
            error, attempt, failures, crashes, claimed_at, started_at, finished_at, worker, lease_token, cancel_requested,
            progress, cost_micros, revision
        from gone
    ),

    -- A job that runs again is pending. It keeps its token, so that a repeated write is known as the same one.
    back as (
        update @.jobs j
        set state = 'pending', due_at = m.due_at, error = m.error::json, failures = m.failures, crashes = m.crashes,
            started_at = m.started_at, worker = null, lease_until = null, lease_token = m.lease_token,
            progress = m.progress::json, cost_micros = m.cost_micros, revision = m.revision,
            later = j.lane <> '' and m.due_at > moment
        from mine m where j.ctid = m.tid and m.state = 'pending'
        returning j.id, j.tenant, j.revision, m.frees, m.kind, m.actor, m.note, m.at
    ),
    written as materialized (
        select id, tenant, revision, frees, kind, actor, note, at from gone
        union all select id, tenant, revision, frees, kind, actor, note, at from back
    ),

    -- A change that is written frees the key of its job, and has its audit event, in the same statement.
    freed as (
        delete from @.keys k using written w where k.job = w.id and w.frees and k.scope in ('pending', 'active')
    ),
    noted as (
        insert into @.events (job, revision, at, kind, actor, note, tenant)
        select id, revision, at, kind, actor, note, tenant from written where kind is not null
    )
    select array_agg(written.id::text) into settled from written;

    return query select s.id, moment from (select 1) as always left join unnest(settled) as s(id) on true;
end
$$;
