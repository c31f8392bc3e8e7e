-- A job that a worker met and did not know (its task, or its version) is filed: found by task from now on, no longer
-- by lane alone, so that nobody who does not know it meets it again.
alter table treadle_jobs add column filed integer not null default 0;

drop index treadle_jobs_claim;
create index treadle_jobs_claim on treadle_jobs (queue, lane, priority desc, due_at, id)
    where state = 'pending' and filed = 0;

create index treadle_jobs_filed on treadle_jobs (queue, lane, task, task_version, priority desc, due_at, id)
    where state = 'pending' and filed = 1;
