-- What workers and enqueuers send all day, as functions: a connection plans each of them once, also behind a pooler that
-- gives every statement another server connection.
--
-- The settings of these functions hold while a plan is made. A plan is kept, and may be made on an empty table that was
-- never analysed; then each of them has one index that can be used, and the join order is as it is written.

-- A job as Python reads it (engines/rows.py, COLUMNS), and what else a function has to say, in its first row.
create type @.job_row as (
    id text, task text, payload text, created_at timestamptz, due_at timestamptz, tenant text, queue text, lane text,
    task_version int, priority int, max_attempts int, retry_base float8, retry_cap float8, retry_jitter float8,
    timeout float8, expires_at timestamptz, key text, key_scope text, key_until timestamptz, schedule text, on_end text,
    state text, reason text, result text, error text, attempt int, failures int, crashes int, claimed_at timestamptz,
    started_at timestamptz, finished_at timestamptz, worker text, lease_until timestamptz, lease_token text,
    cancel_requested boolean, progress text, cost_micros bigint, revision int, summary text
);

-- The jobs that a token holds, in the order of claims.
create function @.held_jobs(token text) returns setof @.job_row
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
begin
    return query
    select j.id::text, j.task, j.payload::text, j.created_at, j.due_at, j.tenant, j.queue, j.lane, j.task_version,
        j.priority, j.max_attempts, j.retry_base, j.retry_cap, j.retry_jitter, j.timeout, j.expires_at, j.key, j.key_scope,
        j.key_until, j.schedule, j.on_end::text, j.state, j.reason, j.result::text, j.error::text, j.attempt, j.failures,
        j.crashes, j.claimed_at, j.started_at, j.finished_at, j.worker, j.lease_until, j.lease_token, j.cancel_requested,
        j.progress::text, j.cost_micros, j.revision, null::text
    from @.jobs j where j.state = 'running' and j.lease_token = held_jobs.token
    order by j.priority desc, j.due_at, j.id;
end
$$;

-- These jobs, wherever they are.
create function @.read_jobs(ids uuid[]) returns setof @.job_row
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    return query
    select j.id::text, j.task, j.payload::text, j.created_at, j.due_at, j.tenant, j.queue, j.lane, j.task_version,
        j.priority, j.max_attempts, j.retry_base, j.retry_cap, j.retry_jitter, j.timeout, j.expires_at, j.key, j.key_scope,
        j.key_until, j.schedule, j.on_end::text, j.state, j.reason, j.result::text, j.error::text, j.attempt, j.failures,
        j.crashes, j.claimed_at, j.started_at, j.finished_at, j.worker, j.lease_until, j.lease_token, j.cancel_requested,
        j.progress::text, j.cost_micros, j.revision, null::text
    from @.jobs j where j.id = any (read_jobs.ids)
    union all
    select f.id::text, f.task, f.payload::text, f.created_at, f.due_at, f.tenant, f.queue, f.lane, f.task_version,
        f.priority, f.max_attempts, f.retry_base, f.retry_cap, f.retry_jitter, f.timeout, f.expires_at, f.key, f.key_scope,
        f.key_until, f.schedule, f.on_end::text, f.state, f.reason, f.result::text, f.error::text, f.attempt, f.failures,
        f.crashes, f.claimed_at, f.started_at, f.finished_at, f.worker, f.lease_until, f.lease_token, f.cancel_requested,
        f.progress::text, f.cost_micros, f.revision, null::text
    from @.finished f where f.id = any (read_jobs.ids);
end
$$;
