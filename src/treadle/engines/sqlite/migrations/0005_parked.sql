-- A parked job is one that a claim met and could not take: 1, parked by task (the worker does not run its task or its
-- version, or the task is paused for everybody), or 2, parked behind a pause of its tenant. Claims step over parked
-- jobs, and find them again by task or by tenant. 0 is not parked.
alter table treadle_jobs rename column filed to parked;

drop index treadle_jobs_filed;
drop index treadle_jobs_parked;

create index treadle_jobs_parked_by_task on treadle_jobs (queue, lane, task, task_version, priority desc, due_at, id)
    where state = 'pending' and parked = 1;

create index treadle_jobs_parked_by_pause on treadle_jobs
    (queue, lane, tenant, task, task_version, priority desc, due_at, id)
    where state = 'pending' and parked = 2;
