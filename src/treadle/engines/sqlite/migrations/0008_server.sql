-- Who may use the REST API: only a hash of each token is kept. Lists are JSON.
create table treadle_tokens (
    name text primary key not null,
    hash text not null,
    label text not null,
    scopes text not null,
    actor text not null,
    created_at integer not null,
    only_tenant text,
    only_queues text,
    expires_at integer,
    revoked_at integer,
    revision integer not null
) strict, without rowid;

-- What each worker has settled, by the minute: counts and distributions as JSON, by queue and task.
create table treadle_minutes (
    hour text not null,
    minute integer not null,
    worker text not null,
    counts text not null,
    primary key (hour, minute, worker)
) strict, without rowid;

-- Workers that are asked to stop.
create table treadle_drains (
    name text primary key not null,
    actor text not null,
    reason text not null,
    at integer not null,
    since integer not null
) strict, without rowid;
