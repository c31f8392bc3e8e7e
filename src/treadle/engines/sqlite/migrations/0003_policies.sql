-- A job knows the schedule that made it, and what is to follow its end (JSON).
alter table treadle_jobs add column schedule text;
alter table treadle_jobs add column on_end text;
alter table treadle_finished add column schedule text;
alter table treadle_finished add column on_end text;

-- A job that a claim met although its tenant is paused is filed too (filed = 2): claims find it by tenant and task, and
-- step over it while the pause lasts.
create index treadle_jobs_parked on treadle_jobs
    (queue, lane, tenant, task, task_version, priority desc, due_at, id)
    where state = 'pending' and filed = 2;

create index treadle_finished_cost on treadle_finished (finished_at) where cost_micros > 0;

create table treadle_schedules (
    name text not null,
    task text not null,
    created_at integer not null,
    tenant text not null,
    payload text not null,
    cron text,
    every real,
    timezone text not null,
    enabled integer not null check (enabled in (0, 1)),
    queue text not null,
    lane text not null,
    priority integer not null,
    task_version integer not null,
    max_attempts integer not null check (max_attempts >= 1),
    retry_base real not null,
    retry_cap real,
    retry_jitter real not null,
    timeout real,
    misfire text not null check (misfire in ('skip', 'once', 'all')),
    misfire_limit integer not null,
    misfire_age real not null,
    overlap text not null check (overlap in ('allow', 'skip', 'queue_one')),
    jitter real not null,
    for_each text,
    on_end text,
    next_at integer,
    last_at integer,
    last_job text,
    declared text,
    updated_at integer,
    revision integer not null,
    primary key (tenant, name),
    check ((cron is null) <> (every is null))
) strict, without rowid;

create index treadle_schedules_due on treadle_schedules (next_at) where enabled = 1;

-- The gate. A '*' stands for every tenant, queue or task.
create table treadle_pauses (
    tenant text not null,
    queue text not null,
    task text not null,
    actor text not null,
    reason text not null,
    at integer,
    until integer,
    revision integer not null,
    primary key (tenant, queue, task)
) strict, without rowid;

-- Workers that are alive, as they last said. Lists are JSON.
create table treadle_workers (
    name text primary key not null,
    host text not null,
    pid integer not null,
    queues text not null,
    lanes text,
    tasks text not null,
    concurrency integer not null,
    running integer not null,
    stopping integer not null,
    started_at integer not null,
    seen_at integer not null,
    period real not null
) strict, without rowid;

-- Batches of audit lines, each chained to the one before it.
create table treadle_seals (
    tenant text not null,
    number integer not null,
    lines integer not null,
    first_at integer not null,
    last_at integer not null,
    digest text not null,
    previous text not null,
    hash text not null,
    sealed_at integer not null,
    pruned_at integer,
    primary key (tenant, number)
) strict, without rowid;

-- The trail outlives its job, and an id may come back after its job was pruned: so the time is part of the key.
create table treadle_trail (
    job text not null,
    revision integer not null,
    at integer not null,
    what text not null,
    actor text not null,
    note text not null,
    tenant text not null,
    seal integer,
    primary key (job, revision, at)
) strict, without rowid;
insert into treadle_trail select job, revision, at, what, actor, note, tenant, null from treadle_events;
drop table treadle_events;
alter table treadle_trail rename to treadle_events;
create index treadle_events_seal on treadle_events (seal, tenant, at);
