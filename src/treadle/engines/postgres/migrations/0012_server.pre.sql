-- What the server and the operators need beside the jobs: tokens, counts by the minute, workers asked to stop.

create table @.tokens (
    name text primary key,
    hash text not null,
    label text not null,
    scopes json not null,
    actor text not null,
    created_at timestamptz not null,
    only_tenant text,
    only_queues json,
    expires_at timestamptz,
    revoked_at timestamptz,
    revision int not null
);

comment on table @.tokens is 'Who may use the REST API. Only a hash of each token is kept.';
comment on column @.tokens.only_tenant is 'The tenant whose rows it sees and changes; null: everybody''s.';

create table @.minutes (
    hour text not null,
    minute int not null,
    worker text not null,
    counts json not null,
    primary key (hour, minute, worker)
);

comment on table @.minutes is 'What each worker has settled, by the minute: counts and distributions, by queue and task.';

create table @.drains (
    name text primary key,
    actor text not null,
    reason text not null,
    at timestamptz not null,
    since timestamptz not null
);

comment on table @.drains is 'Workers that are asked to stop, as a signal would.';
