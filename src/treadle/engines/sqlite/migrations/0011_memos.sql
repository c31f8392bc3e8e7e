-- What a job remembers between its attempts, by name. Only who holds the job writes a row. Rows go with their job.
create table treadle_memos (
    job text not null,
    name text not null,
    kind text not null,
    state text not null,
    attempt integer not null,
    began_at integer not null,
    at integer not null,
    value text,
    primary key (job, name)
) strict;
