-- Claims discover the lanes of a queue in an index that holds only what may be due, so a lane of which nothing is due
-- costs them nothing. `later`: this job has a lane and was not due when it was written. A claim takes the mark off once
-- the time has come. Jobs without a lane need no mark: every claim looks there.
alter table treadle_jobs add column later integer not null default 0;

update treadle_jobs set later = 1
where state = 'pending' and lane <> '' and due_at > (unixepoch() + 1) * 1000000;

create index treadle_jobs_lanes on treadle_jobs (queue, lane)
    where state = 'pending' and parked = 0 and later = 0 and lane <> '';

create index treadle_jobs_later on treadle_jobs (queue, due_at) where state = 'pending' and later = 1;

-- Parked jobs lie by task or by tenant first, and then by lane: a claim that may not take them steps over all their
-- lanes at once.
drop index treadle_jobs_parked_by_task;
drop index treadle_jobs_parked_by_pause;

create index treadle_jobs_parked_by_task on treadle_jobs
    (queue, task, task_version, lane, priority desc, due_at, id)
    where state = 'pending' and parked = 1;

create index treadle_jobs_parked_by_pause on treadle_jobs
    (queue, tenant, task, task_version, lane, priority desc, due_at, id)
    where state = 'pending' and parked = 2;
