-- Jobs that wait or run. Finished ones move to treadle_finished, so this table and its indexes stay small.
-- Times are microseconds since 1970 in UTC.
create table treadle_jobs (
    id text primary key not null,
    task text not null,
    payload text not null,
    created_at integer not null,
    due_at integer not null,
    tenant text not null,
    queue text not null,
    lane text not null,
    task_version integer not null,
    priority integer not null,
    max_attempts integer not null check (max_attempts >= 1),
    retry_base real not null,
    retry_cap real,
    retry_jitter real not null,
    timeout real,
    expires_at integer,
    key text,
    key_scope text check (key_scope in ('pending', 'active', 'window', 'ever')),
    key_until integer,
    state text not null check (state in ('pending', 'running')),
    reason text,
    result text,
    error text,
    attempt integer not null,
    failures integer not null,
    crashes integer not null,
    claimed_at integer,
    started_at integer,
    finished_at integer,
    worker text,
    lease_until integer,
    lease_token text,
    cancel_requested integer not null,
    progress text,
    cost_micros integer not null,
    revision integer not null
) strict;

-- The order of claims. A claim steps from lane to lane and from priority to priority, so rows due later,
-- of other queues or of other priorities are never walked over.
create index treadle_jobs_claim on treadle_jobs (queue, lane, priority desc, due_at, id) where state = 'pending';

-- Finds what a claim token holds (a repeated turn), and, being small, which leases are past.
create index treadle_jobs_lease on treadle_jobs (lease_token, lease_until) where state = 'running';

create index treadle_jobs_expiry on treadle_jobs (expires_at) where state = 'pending' and expires_at is not null;

create table treadle_finished (
    id text primary key not null,
    task text not null,
    payload text not null,
    created_at integer not null,
    due_at integer not null,
    tenant text not null,
    queue text not null,
    lane text not null,
    task_version integer not null,
    priority integer not null,
    max_attempts integer not null,
    retry_base real not null,
    retry_cap real,
    retry_jitter real not null,
    timeout real,
    expires_at integer,
    key text,
    key_scope text,
    key_until integer,
    state text not null check (state in ('succeeded', 'failed', 'cancelled')),
    reason text,
    result text,
    error text,
    attempt integer not null,
    failures integer not null,
    crashes integer not null,
    claimed_at integer,
    started_at integer,
    finished_at integer not null,
    worker text,
    lease_until integer,
    lease_token text,
    cancel_requested integer not null,
    progress text,
    cost_micros integer not null,
    revision integer not null
) strict;

create index treadle_finished_state on treadle_finished (state, finished_at, id);

-- Who holds a key. A row with `until` in the past is nobody's.
create table treadle_keys (
    tenant text not null,
    task text not null,
    key text not null,
    job text not null,
    scope text not null,
    until integer,
    primary key (tenant, task, key)
) strict, without rowid;

create index treadle_keys_job on treadle_keys (job);

create table treadle_events (
    job text not null,
    revision integer not null,
    at integer not null,
    what text not null,
    actor text not null,
    note text not null,
    tenant text not null,
    primary key (job, revision)
) strict, without rowid;
