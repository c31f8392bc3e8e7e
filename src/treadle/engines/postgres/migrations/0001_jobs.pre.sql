-- @ stands for the schema's name.

-- A UUIDv7: sorts by the time it was made, so that lists show the newest first (uuidv7() exists from PostgreSQL 18 on).
create function @.new_id() returns uuid
language sql volatile parallel safe
return encode(
    overlay(
        overlay(uuid_send(gen_random_uuid())
            placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6)
        placing set_byte('\x00'::bytea, 0, 112 | (get_byte(uuid_send(gen_random_uuid()), 0) & 15)) from 7 for 1
    ), 'hex')::uuid;

-- Whether a worker can read this time, whatever its time zone: Python's calendar has the years 1 to 9999, and one row
-- that cannot be read would stop every claim. (NaN, in the checks below, is larger than infinity.)
create function @.readable(moment timestamptz) returns boolean
language sql immutable parallel safe
return moment >= '0001-01-02 00:00:00+00' and moment < '9999-12-31 00:00:00+00';

-- Jobs that wait or run. Finished ones move to @.finished in the statement that ends them, so this table and its
-- indexes stay small. A plain insert of (task, payload) is a job that runs; @.enqueue() below is the same with keys.
create table @.jobs (
    id uuid primary key default @.new_id(),
    task text not null check (octet_length(task) between 1 and 200),
    payload json not null default '{}',
    created_at timestamptz not null default statement_timestamp() check (@.readable(created_at)),
    due_at timestamptz not null default statement_timestamp() check (@.readable(due_at)),
    tenant text not null default 'default' check (octet_length(tenant) between 1 and 200),
    queue text not null default 'default' check (octet_length(queue) between 1 and 200),
    lane text not null default '' check (octet_length(lane) <= 200),
    task_version int not null default 1,
    priority int not null default 0,
    max_attempts int not null default 5 check (max_attempts between 1 and 10000),
    retry_base double precision not null default 5 check (retry_base >= 0 and retry_base < 'infinity'),
    retry_cap double precision default 300 check (retry_cap >= 0 and retry_cap < 'infinity'),
    retry_jitter double precision not null default 1 check (retry_jitter >= 0 and retry_jitter < 'infinity'),
    timeout double precision check (timeout > 0 and timeout < 'infinity'),
    expires_at timestamptz check (@.readable(expires_at)),
    key text check (octet_length(key) between 1 and 1000),
    key_scope text check (key_scope in ('pending', 'active', 'window', 'ever')),
    key_until timestamptz check (@.readable(key_until)),
    state text not null default 'pending' check (state in ('pending', 'running')),
    reason text,
    result json,
    error json,
    attempt int not null default 0,
    failures int not null default 0,
    crashes int not null default 0,
    claimed_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    worker text,
    lease_until timestamptz,
    lease_token text,
    cancel_requested boolean not null default false,
    progress json,
    cost_micros bigint not null default 0,
    revision int not null default 0,
    filed boolean not null default false,
    constraint jobs_key_and_scope check ((key is null) = (key_scope is null)),
    constraint jobs_lease_while_running check ((state = 'running') = (lease_until is not null))
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05);

comment on column @.jobs.filed is
    'Met by a worker that does not know its task or version: found by task from now on, no longer by lane.';

-- The order of claims. A claim steps from lane to lane and from priority to priority, so rows due later, of other
-- queues or of other priorities are never walked over.
create index jobs_claim on @.jobs (queue, lane, priority desc, due_at, id) where state = 'pending' and not filed;

-- Where jobs lie that some worker met and did not know, by what a worker must know to run them.
create index jobs_filed on @.jobs (queue, lane, task, task_version, priority desc, due_at, id)
    where state = 'pending' and filed;

-- Finds what a claim token holds (a repeated turn), and, being small, which leases are past.
create index jobs_lease on @.jobs (lease_token, lease_until) where state = 'running';

create index jobs_expiry on @.jobs (expires_at) where state = 'pending' and expires_at is not null;

create table @.finished (
    id uuid primary key,
    task text not null,
    payload json not null,
    created_at timestamptz not null,
    due_at timestamptz not null,
    tenant text not null,
    queue text not null,
    lane text not null,
    task_version int not null,
    priority int not null,
    max_attempts int not null,
    retry_base double precision not null,
    retry_cap double precision,
    retry_jitter double precision not null,
    timeout double precision,
    expires_at timestamptz,
    key text,
    key_scope text,
    key_until timestamptz,
    state text not null check (state in ('succeeded', 'failed', 'cancelled')),
    reason text,
    result json,
    error json,
    attempt int not null,
    failures int not null,
    crashes int not null,
    claimed_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz not null,
    worker text,
    lease_until timestamptz,
    lease_token text,
    cancel_requested boolean not null,
    progress json,
    cost_micros bigint not null,
    revision int not null
);

create index finished_state on @.finished (state, finished_at, id);

-- Who holds a key. A row with `until` in the past is nobody's.
create table @.keys (
    tenant text not null,
    task text not null,
    key text not null,
    job uuid not null,
    scope text not null,
    until timestamptz,
    primary key (tenant, task, key)
);

create index keys_job on @.keys (job);
create index keys_until on @.keys (until) where until is not null;

create table @.events (
    job uuid not null,
    revision int not null,
    at timestamptz not null,
    what text not null,
    actor text not null,
    note text not null,
    tenant text not null,
    primary key (job, revision)
);

-- How many jobs a claim token holds. A repeated claim may come while its first sending is still under way: it waits
-- here until that has ended, and counts what it left, which the snapshot of its own statement does not show.
create function @.holding(token text) returns int
language plpgsql volatile as $$
begin
    perform pg_advisory_xact_lock(hashtextextended(holding.token, 0));
    return (select count(*) from @.jobs j where j.state = 'running' and j.lease_token = holding.token);
end
$$;

-- Two things no constraint can say. An id that is finished already must not run again: the statement's own snapshot
-- may be older than the commit that finished it, so this looks once more. And a new job must hold its key.
create function @.guard_jobs() returns trigger
language plpgsql as $$
declare
    bad uuid;
begin
    select n.id into bad
    from added n cross join lateral (select 1 from @.finished f where f.id = n.id limit 1) f limit 1;
    if found then
        raise exception 'job % finished just now; repeat the statement', bad using errcode = '40001';
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        -- This snapshot stays as old as the transaction; a unique index looks below it, and raises 40001 itself.
        insert into @.finished (id, task, payload, created_at, due_at, tenant, queue, lane, task_version, priority,
            max_attempts, retry_base, retry_jitter, state, attempt, failures, crashes, finished_at, lease_token,
            cancel_requested, cost_micros, revision)
        select id, '', '{}', created_at, due_at, '', '', '', 0, 0, 0, 0, 0, 'cancelled', 0, 0, 0, due_at, 'guard',
            false, 0, 0
        from added on conflict (id) do nothing;
        delete from @.finished f using added n where f.id = n.id and f.lease_token = 'guard' and f.task = '';
    end if;
    select n.id into bad from added n where n.key is not null and n.revision = 0 and not exists (
        select 1 from @.keys k where k.tenant = n.tenant and k.task = n.task and k.key = n.key and k.job = n.id) limit 1;
    if found then
        raise exception 'job % names a key that it does not hold', bad
            using errcode = '23514', hint = 'enqueue jobs with a key by the function enqueue(...)';
    end if;
    return null;
end
$$;

create trigger guard_jobs after insert on @.jobs
referencing new table as added for each statement execute function @.guard_jobs();

-- Enqueue from SQL, in your own transaction: select @.enqueue('greet', '{"name": "Ada"}', queue => 'mail');
-- Answers the id of the new job, or of the job that has the key.
create function @.enqueue(
    task text,
    payload jsonb default '{}',
    queue text default 'default',
    run_after timestamptz default null,
    priority int default 0,
    key text default null,
    key_scope text default 'active',
    key_until timestamptz default null,
    tenant text default 'default',
    lane text default '',
    max_attempts int default 5,
    retry_base double precision default 5,
    retry_cap double precision default 300,
    retry_jitter double precision default 1,
    timeout double precision default null,
    expires_at timestamptz default null,
    task_version int default 1,
    id uuid default null
) returns uuid
language plpgsql as $$
#variable_conflict use_column
declare
    moment timestamptz := statement_timestamp();
    job_id uuid := coalesce(enqueue.id, @.new_id());
    holder uuid;
    took boolean := false;
begin
    if (enqueue.key_scope = 'window') <> (enqueue.key_until is not null) then
        raise exception 'key_until: the window scope, and only that, needs an end' using errcode = '22023';
    end if;
    if enqueue.key is not null and not exists (select 1 from @.jobs j where j.id = job_id)
        and not exists (select 1 from @.finished f where f.id = job_id)
    then
        loop
            delete from @.keys k
            where k.tenant = enqueue.tenant and k.task = enqueue.task and k.key = enqueue.key
            and (k.until <= moment or k.scope = 'window'
                and not exists (select 1 from @.jobs j where j.id = k.job)
                and not exists (select 1 from @.finished f where f.id = k.job));
            insert into @.keys (tenant, task, key, job, scope, until)
            values (enqueue.tenant, enqueue.task, enqueue.key, job_id, enqueue.key_scope, enqueue.key_until)
            on conflict do nothing;
            took := found;
            exit when took;
            select k.job into holder from @.keys k
            where k.tenant = enqueue.tenant and k.task = enqueue.task and k.key = enqueue.key;
            if found then
                return holder;
            end if;
        end loop;
    end if;
    insert into @.jobs (id, task, payload, created_at, due_at, tenant, queue, lane, task_version, priority,
        max_attempts, retry_base, retry_cap, retry_jitter, timeout, expires_at, key, key_scope, key_until)
    select job_id, enqueue.task, enqueue.payload::text::json, moment, greatest(coalesce(enqueue.run_after, moment), moment),
        enqueue.tenant, enqueue.queue, enqueue.lane, enqueue.task_version, enqueue.priority, enqueue.max_attempts,
        enqueue.retry_base, enqueue.retry_cap, enqueue.retry_jitter, enqueue.timeout, enqueue.expires_at,
        enqueue.key, case when enqueue.key is not null then enqueue.key_scope end, enqueue.key_until
    where not exists (select 1 from @.finished f where f.id = job_id)
    on conflict (id) do nothing;
    if not found and took then  -- it came and went since we looked
        delete from @.keys k where k.job = job_id and k.tenant = enqueue.tenant and k.task = enqueue.task
            and k.key = enqueue.key;
    end if;
    return job_id;
end
$$;
