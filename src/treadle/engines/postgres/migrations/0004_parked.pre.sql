-- One word for a job that claims step over: it is parked, by its task, or by its tenant and its task.

alter table @.jobs rename column parked to parked_by_tenant;
alter table @.jobs rename column filed to parked;
alter index @.jobs_parked rename to jobs_parked_by_tenant;
alter index @.jobs_filed rename to jobs_parked_by_task;

comment on column @.jobs.parked is
    'A claim found it and could not take it: its task or version is unknown to that worker, or paused. It is no longer '
    'found by lane, but by task and version, and is claimed from there as soon as a worker may take it.';
comment on column @.jobs.parked_by_tenant is
    'Of a parked job: a pause of its tenant blocked it, so it is found by tenant and task, and is claimed from there when '
    'the pause is over.';
