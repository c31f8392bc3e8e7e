-- Whether a worker can read what is to follow a job's end: {"succeeded": {…}, "failed": {…}}, or one of them.
create function @.readable_end(on_end json) returns boolean
language sql immutable parallel safe
return case when json_typeof(on_end) = 'object' then not exists (
    select 1 from json_each(on_end) as ends(state, follow)
    where state not in ('succeeded', 'failed') or json_typeof(follow) not in ('object', 'null')
) else false end;

-- A job knows the schedule that made it, and what is to follow its end.
alter table @.jobs
    add column schedule text,
    add column on_end json check (on_end is null or @.readable_end(on_end)),
    add column parked boolean not null default false;
alter table @.finished add column schedule text, add column on_end json;

comment on column @.jobs.schedule is 'The name of the schedule that made it.';
comment on column @.jobs.on_end is 'What follows when it has succeeded or failed: a line in the audit trail, a job, or both.';
comment on column @.jobs.filed is
    'Met by a claim that could not take it, for the claimer does not know its task or version, or the task is paused: '
    'found by task from now on, no longer by lane. When somebody may take it, it is claimed from there.';
comment on column @.jobs.parked is
    'Of a job that is filed: it was a pause that named its tenant, so it is found by tenant and task. When the pause '
    'is over, it is claimed from there.';

-- Parked jobs are filed as well, so that jobs_claim knows nothing of them; here they are left out.
drop index @.jobs_filed;
create index jobs_filed on @.jobs (queue, lane, task, task_version, priority desc, due_at, id)
    where state = 'pending' and filed and not parked;

create index jobs_parked on @.jobs (queue, lane, tenant, task, task_version, priority desc, due_at, id)
    where state = 'pending' and filed and parked;

create index finished_cost on @.finished (finished_at) where cost_micros > 0;

-- A plain insert of (name, task, cron) or (name, task, every) is a schedule that fires: a worker computes its next_at.
create table @.schedules (
    name text not null check (octet_length(name) between 1 and 200),
    task text not null check (octet_length(task) between 1 and 200),
    created_at timestamptz not null default statement_timestamp() check (@.readable(created_at)),
    tenant text not null default 'default' check (octet_length(tenant) between 1 and 200),
    payload json not null default '{}',
    cron text,
    every double precision check (every > 0 and every < 'infinity'),
    timezone text not null default 'UTC',
    enabled boolean not null default true,
    queue text not null default 'default' check (octet_length(queue) between 1 and 200),
    lane text not null default '' check (octet_length(lane) <= 200),
    priority int not null default 0,
    task_version int not null default 1,
    max_attempts int not null default 5 check (max_attempts between 1 and 10000),
    retry_base double precision not null default 5 check (retry_base >= 0 and retry_base < 'infinity'),
    retry_cap double precision default 300 check (retry_cap >= 0 and retry_cap < 'infinity'),
    retry_jitter double precision not null default 1 check (retry_jitter >= 0 and retry_jitter < 'infinity'),
    timeout double precision check (timeout > 0 and timeout < 'infinity'),
    misfire text not null default 'once' check (misfire in ('skip', 'once', 'all')),
    misfire_limit int not null default 100 check (misfire_limit >= 0),
    misfire_age double precision not null default 86400 check (misfire_age >= 0 and misfire_age < 'infinity'),
    overlap text not null default 'allow' check (overlap in ('allow', 'skip', 'queue_one')),
    jitter double precision not null default 0 check (jitter >= 0 and jitter < 'infinity'),
    for_each text,
    on_end json check (on_end is null or @.readable_end(on_end)),
    next_at timestamptz check (@.readable(next_at)),
    last_at timestamptz check (@.readable(last_at)),
    last_job text,
    declared text,
    updated_at timestamptz check (@.readable(updated_at)),
    revision int not null default 0,
    primary key (tenant, name),
    constraint schedules_cron_or_every check ((cron is null) <> (every is null))
);

create index schedules_due on @.schedules (next_at) where enabled;

comment on table @.schedules is 'Rows that make jobs.';
comment on column @.schedules.every is 'Seconds between two jobs, counted from created_at; instead of cron.';
comment on column @.schedules.timezone is 'The IANA zone in which cron is read.';
comment on column @.schedules.misfire is
    'What becomes of runs that nobody was there to make: skip, once, or all of them up to misfire_limit jobs and '
    'misfire_age seconds.';
comment on column @.schedules.overlap is
    'What becomes of a run while an earlier one has not ended: allow, skip, or queue_one.';
comment on column @.schedules.jitter is 'Seconds by which a job may start later than its time, at random.';
comment on column @.schedules.for_each is 'The registered callable that yields what a job is made for, one each.';
comment on column @.schedules.on_end is 'What follows when one of its jobs has ended.';
comment on column @.schedules.next_at is 'When it makes its next job; null: a worker computes it.';
comment on column @.schedules.last_at is 'The time for which it made its last job, not the moment when it did.';
comment on column @.schedules.declared is 'A digest of what the code says, if code declared it.';

create table @.pauses (
    tenant text not null default '*' check (octet_length(tenant) between 1 and 200),
    queue text not null default '*' check (octet_length(queue) between 1 and 200),
    task text not null default '*' check (octet_length(task) between 1 and 200),
    actor text not null default '',
    reason text not null default '',
    at timestamptz default statement_timestamp() check (@.readable(at)),
    until timestamptz check (@.readable(until)),
    revision int not null default 0,
    primary key (tenant, queue, task)
);

comment on table @.pauses is
    'The gate: no job of this tenant, queue and task is claimed; * stands for all of them. Every claim holds a ROW SHARE '
    'lock on this table, which nobody waits for; who adds a row and wants to know when it holds waits until those locks '
    'are gone.';
comment on column @.pauses.until is 'When it is over by itself; null: when somebody deletes it.';

create table @.workers (
    name text primary key,
    host text not null,
    pid int not null,
    queues json not null,
    lanes json,
    tasks json not null,
    concurrency int not null,
    running int not null,
    stopping boolean not null,
    started_at timestamptz not null,
    seen_at timestamptz not null,
    period double precision not null
);

comment on table @.workers is 'Workers that are alive, as they last said.';
comment on column @.workers.lanes is 'The lanes it takes jobs from; null: all.';
comment on column @.workers.tasks is 'The tasks it knows, each with the newest version that it runs.';
comment on column @.workers.period is 'Seconds until it says so again.';

create table @.seals (
    tenant text not null,
    number int not null,
    lines int not null,
    first_at timestamptz not null,
    last_at timestamptz not null,
    digest text not null,
    previous text not null,
    hash text not null,
    sealed_at timestamptz not null,
    pruned_at timestamptz,
    primary key (tenant, number)
);

comment on table @.seals is 'Batches of audit lines, made tamper-evident: each is chained to the one before it.';
comment on column @.seals.digest is 'Of the lines.';
comment on column @.seals.hash is 'Of this seal and the hash of the previous one.';
comment on column @.seals.pruned_at is 'When its lines were deleted; the seal stays.';

-- The trail outlives its job, and an id may come back after its job was pruned: so the time is part of the key.
alter table @.events
    drop constraint events_pkey,
    add primary key (job, revision, at),
    add column seal int;

create index events_seal on @.events (seal, tenant collate "C", at);

comment on table @.events is 'The audit trail: who did what to which job, schedule or pause, when and why.';
comment on column @.events.seal is 'The number of the seal that it is in, of its tenant; null: not sealed yet.';
