-- A claim costs the same beside ten lanes and beside a hundred thousand, and beside any number of unknown tasks.

-- Lanes are found in an index that has only lanes with something to do: a job of a lane that is due later is not in it.
-- The order within a lane is read from jobs_claim, whether a job is marked or not.
alter table @.jobs add column later boolean not null default false;
comment on column @.jobs.later is
    'Of a pending job in a lane: it was due later when it was stored, so claims do not find its lane by it. The first '
    'claim after its due time unmarks it.';
update @.jobs set later = true
where state = 'pending' and not parked and lane <> '' and due_at > statement_timestamp();

-- (lane || '') is lane. As an expression no other index can offer itself for the walk from lane to lane, whatever the
-- planner thinks of an empty table.
create index jobs_lanes on @.jobs (queue, (lane || ''))
    where state = 'pending' and not parked and not later and lane <> '';
create index jobs_later on @.jobs (queue, due_at) where state = 'pending' and later;

-- Parked jobs are found by what a claim knows, its tasks, and not by lane.
drop index @.jobs_parked_by_task;
create index jobs_parked_by_task on @.jobs (queue, task, task_version, lane, priority desc, due_at, id)
    where state = 'pending' and parked and not parked_by_tenant;
drop index @.jobs_parked_by_tenant;
create index jobs_parked_by_tenant on @.jobs (queue, tenant, task, task_version, lane, priority desc, due_at, id)
    where state = 'pending' and parked and parked_by_tenant;

-- Every statement prepared the nineteen checks of this table anew. Two are about columns that a claim writes, and stay. The
-- other seventeen are asked by triggers, whose plans are kept: for all rows of an insert together, and for an update that
-- names one of their columns.
alter table @.jobs
    drop constraint jobs_task_check,
    drop constraint jobs_created_at_check,
    drop constraint jobs_due_at_check,
    drop constraint jobs_tenant_check,
    drop constraint jobs_queue_check,
    drop constraint jobs_lane_check,
    drop constraint jobs_max_attempts_check,
    drop constraint jobs_retry_base_check,
    drop constraint jobs_retry_cap_check,
    drop constraint jobs_retry_jitter_check,
    drop constraint jobs_timeout_check,
    drop constraint jobs_expires_at_check,
    drop constraint jobs_key_check,
    drop constraint jobs_key_scope_check,
    drop constraint jobs_key_until_check,
    drop constraint jobs_key_and_scope,
    drop constraint jobs_on_end_check;

-- The check that a job does not pass; null if it passes all. (NaN is larger than infinity.)
create function @.broken_check(
    task text, created_at timestamptz, due_at timestamptz, tenant text, queue text, lane text, max_attempts int,
    retry_base float8, retry_cap float8, retry_jitter float8, timeout float8, expires_at timestamptz, key text,
    key_scope text, key_until timestamptz, on_end json
) returns text
language sql immutable parallel safe
return case
    when octet_length(task) not between 1 and 200 then 'jobs_task_check'
    when not @.readable(created_at) then 'jobs_created_at_check'
    when not @.readable(due_at) then 'jobs_due_at_check'
    when octet_length(tenant) not between 1 and 200 then 'jobs_tenant_check'
    when octet_length(queue) not between 1 and 200 then 'jobs_queue_check'
    when octet_length(lane) > 200 then 'jobs_lane_check'
    when max_attempts not between 1 and 10000 then 'jobs_max_attempts_check'
    when not (retry_base >= 0 and retry_base < 'infinity') then 'jobs_retry_base_check'
    when not (retry_cap >= 0 and retry_cap < 'infinity') then 'jobs_retry_cap_check'
    when not (retry_jitter >= 0 and retry_jitter < 'infinity') then 'jobs_retry_jitter_check'
    when not (timeout > 0 and timeout < 'infinity') then 'jobs_timeout_check'
    when not @.readable(expires_at) then 'jobs_expires_at_check'
    when octet_length(key) not between 1 and 1000 then 'jobs_key_check'
    when key_scope not in ('pending', 'active', 'window', 'ever') then 'jobs_key_scope_check'
    when not @.readable(key_until) then 'jobs_key_until_check'
    when (key is null) <> (key_scope is null) then 'jobs_key_and_scope'
    when on_end is not null and not @.readable_end(on_end) then 'jobs_on_end_check'
end;

create function @.refuse_job(broken text) returns void
language plpgsql as $$
begin
    raise exception 'new row for relation "jobs" violates check constraint "%"', refuse_job.broken
        using errcode = '23514', constraint = refuse_job.broken, table = 'jobs';
end
$$;

-- An update by hand. A worker's own statements name none of these columns, but for a job that waits again.
create function @.check_job() returns trigger
language plpgsql as $$
declare
    broken text := @.broken_check(new.task, new.created_at, new.due_at, new.tenant, new.queue, new.lane, new.max_attempts,
        new.retry_base, new.retry_cap, new.retry_jitter, new.timeout, new.expires_at, new.key, new.key_scope, new.key_until,
        new.on_end);
begin
    if broken is not null then
        perform @.refuse_job(broken);
    end if;
    return new;
end
$$;

create trigger check_job
before update of task, created_at, due_at, tenant, queue, lane, max_attempts, retry_base, retry_cap, retry_jitter, timeout,
    expires_at, key, key_scope, key_until, on_end on @.jobs
for each row execute function @.check_job();

-- An id that is finished already must not run again: the snapshot of the statement that inserted these jobs may be older than
-- the commit that finished one of them, so this looks once more.
create function @.refuse_finished(ids uuid[]) returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    bad uuid;
begin
    select f.id into bad from @.finished f where f.id = any (refuse_finished.ids) limit 1;
    if found then
        raise exception 'job % finished just now; repeat the statement', bad using errcode = '40001';
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        -- This snapshot stays as old as the transaction; a unique index looks below it, and raises 40001 itself.
        insert into @.finished (id, task, payload, created_at, due_at, tenant, queue, lane, task_version, priority,
            max_attempts, retry_base, retry_jitter, state, attempt, failures, crashes, finished_at, lease_token,
            cancel_requested, cost_micros, revision)
        select id, '', '{}', now(), now(), '', '', '', 0, 0, 0, 0, 0, 'cancelled', 0, 0, 0, now(), 'guard', false, 0, 0
        from unnest(refuse_finished.ids) as i(id) on conflict (id) do nothing;
        delete from @.finished f where f.id = any (refuse_finished.ids) and f.lease_token = 'guard' and f.task = '';
    end if;
end
$$;

-- An insert by anybody else than our own functions: what the constraints said, and what no constraint can say. A new job must
-- hold its key. Our functions see to that themselves, and say so in a setting while they insert.
create or replace function @.guard_jobs() returns trigger
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    bad uuid;
    broken text;
    keyed boolean;
begin
    -- One look at all of them, which nearly always finds nothing to do.
    select min(@.broken_check(n.task, n.created_at, n.due_at, n.tenant, n.queue, n.lane, n.max_attempts, n.retry_base,
            n.retry_cap, n.retry_jitter, n.timeout, n.expires_at, n.key, n.key_scope, n.key_until, n.on_end)),
        bool_or(n.key is not null and n.revision = 0)
    into broken, keyed from added n;
    if broken is not null then
        perform @.refuse_job(broken);
    end if;
    perform @.refuse_finished(array(select n.id from added n));
    if keyed then
        select n.id into bad from added n
        where n.key is not null and n.revision = 0 and n.id is distinct from (
            select k.job from @.keys k where k.tenant = n.tenant and k.task = n.task and k.key = n.key) limit 1;
        if found then
            raise exception 'job % names a key that it does not hold', bad
                using errcode = '23514', hint = 'enqueue jobs with a key by the function enqueue(...)';
        end if;
    end if;
    return null;
end
$$;

drop trigger guard_jobs on @.jobs;
create trigger guard_jobs after insert on @.jobs
referencing new table as added for each statement
when (current_setting('treadle.guarded', true) is distinct from 'yes')
execute function @.guard_jobs();

-- Where tenants are kept apart, a tenant must not be able to skip the checks. `treadle rls` puts its own guard in this place.
do $$ begin
    if (select c.relrowsecurity from pg_class c where c.oid = '@.jobs'::regclass) then
        create trigger rls_guard_checks after insert on @.jobs
        referencing new table as added for each statement execute function @.guard_jobs();
    end if;
end $$;

-- A job in a lane that is due later is marked, whoever has inserted it.
create function @.mark_later() returns trigger
language plpgsql as $$
begin
    new.later := true;
    return new;
end
$$;

create trigger mark_later before insert on @.jobs for each row
when (new.lane <> '' and not new.later and new.state = 'pending' and new.due_at > statement_timestamp())
execute function @.mark_later();
