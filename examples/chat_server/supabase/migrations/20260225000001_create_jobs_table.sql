-- The table `jobs` is a view over the jobs of treadle. What follows is printed by
-- `treadle own-table --sql --profile chat_server`; print it anew after an upgrade of treadle.
-- The table jobs of an application that now runs its jobs with treadle: a view under the names it has always had.
-- Written by `treadle own-table --sql`; see docs/own-table.md.
--
-- A role that owns treadle's tables runs it after `treadle migrate` and, where row-level security is wanted, after
-- `treadle rls`. It may be run again, and should be after each migration.

begin;

do $$
begin
    if not exists (
        select 1 from pg_attribute where attrelid = to_regclass('treadle.schedules') and attname = 'own_id')
    then
        raise exception 'there is no treadle here, or an old one' using hint = 'Run `treadle migrate` first.';
    end if;
    if exists (select 1 from pg_class where oid = to_regclass('public.jobs') and relkind <> 'v') then
        raise exception 'public.jobs is a table'
            using hint = 'Rename it first (alter table public.jobs rename to …), and then bring its rows: `treadle import`.';
    end if;
end
$$;

-- Whose job it is. A tenant that is no UUID is nobody's here; with a cast alone one such row would be an error of every
-- read.
create or replace function public.jobs_tenant(tenant text) returns uuid
language sql immutable parallel safe
return case when tenant ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then tenant::uuid end;

-- ------------------------------------------------------------------------------------------------------ the view

-- A part for each word, and not one case over both tables: so who asks for one reads only where such jobs lie.
create or replace view public.jobs with (security_invoker = true) as
select j.id,
    public.jobs_tenant(j.tenant) as user_id,
    j.task as job_type,
    j.word as status,
    j.payload::jsonb as input,
    nullif(j.result::jsonb, 'null') as output,
    j.error ->> 'message' as error,
    j.priority,
    least(j.failures, j.max_attempts - 1) as retry_count,
    j.max_attempts - 1 as max_retries,
    j.due_at as scheduled_for,
    j.expires_at,
    j.claimed_at,
    j.started_at,
    j.finished_at as completed_at,
    j.created_at,
    greatest(j.created_at, j.claimed_at, j.started_at, j.finished_at,
        (select max(e.at) from treadle.events e where e.job = j.id)) as updated_at
from (
    select 'pending'::text as word, id, tenant, task, state, payload, result, error, reason, queue, lane, task_version, priority, attempt, failures, crashes, max_attempts, timeout, due_at, expires_at, claimed_at, started_at, finished_at, created_at, lease_until, worker, key, schedule, cost_micros
    from treadle.jobs where state = 'pending'
    union all
    select 'running'::text as word, id, tenant, task, state, payload, result, error, reason, queue, lane, task_version, priority, attempt, failures, crashes, max_attempts, timeout, due_at, expires_at, claimed_at, started_at, finished_at, created_at, lease_until, worker, key, schedule, cost_micros
    from treadle.jobs where (state = 'running' and (started_at is not null))
    union all
    select 'claimed'::text as word, id, tenant, task, state, payload, result, error, reason, queue, lane, task_version, priority, attempt, failures, crashes, max_attempts, timeout, due_at, expires_at, claimed_at, started_at, finished_at, created_at, lease_until, worker, key, schedule, cost_micros
    from treadle.jobs where (state = 'running' and (started_at is null))
    union all
    select 'complete'::text as word, id, tenant, task, state, payload, result, error, reason, queue, lane, task_version, priority, attempt, failures, crashes, max_attempts, timeout, due_at, expires_at, claimed_at, started_at, finished_at, created_at, lease_until, worker, key, schedule, cost_micros
    from treadle.finished where state = 'succeeded'
    union all
    select 'failed'::text as word, id, tenant, task, state, payload, result, error, reason, queue, lane, task_version, priority, attempt, failures, crashes, max_attempts, timeout, due_at, expires_at, claimed_at, started_at, finished_at, created_at, lease_until, worker, key, schedule, cost_micros
    from treadle.finished where state in ('failed', 'cancelled')
) j
where public.jobs_tenant(j.tenant) is not null;

alter view public.jobs alter column id set default treadle.new_id();
alter view public.jobs alter column status set default 'pending';
alter view public.jobs alter column input set default '{}';
alter view public.jobs alter column priority set default 0;
alter view public.jobs alter column retry_count set default 0;
alter view public.jobs alter column max_retries set default 3;
alter view public.jobs alter column scheduled_for set default now();
alter view public.jobs alter column created_at set default now();
alter view public.jobs alter column updated_at set default now();

comment on view public.jobs is 'Universal job queue for all background work types (email processing, agent invocation, reminder delivery, etc.): the jobs of treadle, under this application''s names.';
comment on column public.jobs.job_type is 'Discriminator for handler dispatch (e.g., email_processing, agent_invocation, reminder_delivery)';
comment on column public.jobs.priority is 'Higher priority jobs are claimed first. Default 0.';
comment on column public.jobs.scheduled_for is 'Job is not eligible for claiming until this time. Supports delayed/scheduled execution.';
comment on column public.jobs.expires_at is 'Optional hard expiry. Jobs past this time are not executed.';

-- --------------------------------------------------------------------------------------------- writing through it

create or replace function public.jobs_insert() returns trigger
language plpgsql as $$
declare
    lacking text;
    called text;
    past boolean := new.status <> 'pending'
        or new.retry_count is distinct from 0
        or abs(extract(epoch from new.created_at - now())) > 60
        or abs(extract(epoch from new.updated_at - now())) > 60
        or num_nonnulls(new.output, new.error, new.claimed_at, new.started_at, new.completed_at) > 0;
begin
    select string_agg(name, ', ') into lacking from (values
        ('id', new.id is null),
        ('user_id', new.user_id is null),
        ('job_type', new.job_type is null),
        ('status', new.status is null),
        ('input', new.input is null),
        ('priority', new.priority is null),
        ('retry_count', new.retry_count is null),
        ('max_retries', new.max_retries is null),
        ('scheduled_for', new.scheduled_for is null),
        ('created_at', new.created_at is null),
        ('updated_at', new.updated_at is null)) as columns(name, missing)
    where missing;
    if lacking is not null then
        raise exception 'a job must have %', lacking using errcode = 'not_null_violation';
    end if;
    if new.status::text not in ('pending', 'claimed', 'running', 'complete', 'failed') then
        raise exception 'status: % is none of %', quote_literal(new.status), 'pending, claimed, running, complete, failed'
            using errcode = 'check_violation';
    end if;
    if past and not pg_has_role(current_user, (
        select relowner from pg_class where oid = 'treadle.jobs'::regclass), 'usage')
    then
        raise exception 'a new job is pending and has no past' using errcode = 'feature_not_supported',
            hint = 'Leave out status, output, error, retry_count, claimed_at, started_at, completed_at, created_at, updated_at. A role that owns the tables of treadle may insert rows with a past.';
    end if;
    perform public.jobs_known_user(new.user_id);
    if exists (select 1 from treadle.jobs j where j.id = new.id)
        or exists (select 1 from treadle.finished j where j.id = new.id)
    then
        raise exception 'id: there is a job % already', new.id using errcode = 'unique_violation';
    end if;
    if not past then
        if treadle.enqueue(task => new.job_type::text, payload => new.input, tenant => new.user_id::text, priority => new.priority, run_after => new.scheduled_for, expires_at => new.expires_at, id => new.id, max_attempts => new.max_retries + 1, retry_base => 30, retry_cap => 900, retry_jitter => 0) <> new.id then
            raise exception 'id: there is a job with this key already' using errcode = 'unique_violation';
        end if;
        -- enqueue() makes no second job of an id, and says nothing: another tenant may have it.
        if not exists (select 1 from treadle.jobs j where j.id = new.id and j.created_at = statement_timestamp()) then
            raise exception 'id: there is a job % already', new.id using errcode = 'unique_violation';
        end if;
        select * into new from public.jobs v where v.id = new.id;
        return new;
    end if;

    -- A row with a past, as treadle itself would have it. One that runs is held by nobody: its lease ends when it would
    -- have ended, and then the next worker takes it back.
    declare
        label text := case new.status::text when 'pending' then 'pending' when 'running' then 'running' when 'complete' then 'succeeded' when 'failed' then 'failed' when 'claimed' then 'claimed' end;
        state_ text := case when label in ('pending', 'scheduled', 'retrying') then 'pending'
            when label in ('running', 'claimed') then 'running' when label = 'succeeded' then 'succeeded'
            when label in ('failed', 'dead') then 'failed' else 'cancelled' end;
        created timestamptz := new.created_at;
        changed timestamptz := greatest(created, new.updated_at, new.claimed_at, new.started_at, coalesce(new.completed_at));
        claimed timestamptz := coalesce(new.claimed_at,
            case state_ when 'running' then coalesce(new.started_at, new.updated_at, created) end);
        started timestamptz := coalesce(new.started_at, case when label = 'running' then claimed end);
        ended timestamptz := case when state_ in ('succeeded', 'failed', 'cancelled')
            then coalesce(coalesce(new.completed_at), changed) end;
        most int := new.max_retries + 1;
        failed int := coalesce(new.retry_count, 0);
        tries int;
        spent boolean;
        error_ json;
    begin
        failed := greatest(least(failed, most - 1), 0);
        spent := state_ = 'failed' and (label = 'dead' or failed >= most - 1);
        tries := greatest(0, failed + (state_ in ('running', 'succeeded', 'failed'))::int);
        if new.error is not null then
            error_ := json_build_object('type', '', 'message', new.error, 'traceback', '', 'attempt', tries,
                'at', to_char(coalesce(nullif(null::text, '')::timestamptz, changed) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'));
        end if;
    if ended is null then
            insert into treadle.jobs (id, task, payload, created_at, due_at, tenant, queue, lane, task_version, priority, max_attempts, retry_base, retry_cap, retry_jitter, expires_at, key, key_scope, schedule, state, reason, result, error, attempt, failures, crashes, claimed_at, started_at, finished_at, worker, lease_until, lease_token, cancel_requested, cost_micros, revision)
            values (new.id, new.job_type::text, new.input::json, created, coalesce(new.scheduled_for, created), new.user_id::text, 'default', '', 1, new.priority, most, 30, 900, 0, new.expires_at, null::text, case when null::text is not null then 'active' end, called, state_, case state_ when 'failed' then case when spent then 'exhausted' else 'permanent' end when 'cancelled' then case label when 'expired' then 'expired' else 'by_request' end end, new.output::json, error_, tries, case when spent then most else failed end, 0, claimed, started, ended, null, case state_ when 'running' then coalesce(null::timestamptz, claimed + make_interval(secs => 1800)) end, case state_ when 'running' then treadle.new_id()::text end, false, 0 + 0 * 10000, 1);
        else
            insert into treadle.finished (id, task, payload, created_at, due_at, tenant, queue, lane, task_version, priority, max_attempts, retry_base, retry_cap, retry_jitter, expires_at, key, key_scope, schedule, state, reason, result, error, attempt, failures, crashes, claimed_at, started_at, finished_at, worker, lease_until, lease_token, cancel_requested, cost_micros, revision)
            values (new.id, new.job_type::text, new.input::json, created, coalesce(new.scheduled_for, created), new.user_id::text, 'default', '', 1, new.priority, most, 30, 900, 0, new.expires_at, null::text, case when null::text is not null then 'active' end, called, state_, case state_ when 'failed' then case when spent then 'exhausted' else 'permanent' end when 'cancelled' then case label when 'expired' then 'expired' else 'by_request' end end, new.output::json, error_, tries, case when spent then most else failed end, 0, claimed, started, ended, null, case state_ when 'running' then coalesce(null::timestamptz, claimed + make_interval(secs => 1800)) end, case state_ when 'running' then treadle.new_id()::text end, false, 0 + 0 * 10000, 1);
        end if;
        insert into treadle.events (job, revision, at, kind, actor, note, tenant)
        values (new.id, 1, changed, 'imported', current_user, 'inserted into jobs', new.user_id::text);
    end;
    select * into new from public.jobs v where v.id = new.id;
    return new;
end
$$;

create or replace trigger jobs_insert instead of insert on public.jobs for each row execute function public.jobs_insert();

create or replace function public.jobs_refuse() returns trigger
language plpgsql as $$
begin
    if tg_op = 'UPDATE' and new.status is null then
        raise exception 'a job must have status' using errcode = 'not_null_violation';
    end if;
    if tg_op = 'UPDATE' and new.status::text not in ('pending', 'claimed', 'running', 'complete', 'failed') then
        raise exception 'status: % is none of %', quote_literal(new.status), 'pending, claimed, running, complete, failed'
            using errcode = 'check_violation';
    end if;
    raise exception 'jobs are changed by treadle: no % through this view', lower(tg_op)
        using errcode = 'feature_not_supported',
        hint = 'Workers write states, results and errors. To stop a job: app.cancel(id) or `treadle jobs cancel`. To '
            'run a failed one again: app.retry(id) or `treadle jobs retry`. Old ones: `treadle prune`.';
end
$$;

create or replace trigger jobs_refuse instead of update or delete on public.jobs
for each row execute function public.jobs_refuse();

-- The old table's indexes, each over ended jobs and over the others, which lie apart: for the list of one user's jobs and
-- for deleting them, and for the jobs of a type and status. idx_jobs_poll has its counterpart in treadle's own jobs_claim.
-- Each costs a part of every write: drop those that no query of yours needs. `treadle migrate --check` leaves an index of
-- yours alone, if it is not unique.
create index if not exists idx_jobs_user on treadle.finished (public.jobs_tenant(tenant));
create index if not exists idx_jobs_user_waiting on treadle.jobs (public.jobs_tenant(tenant));
create index if not exists idx_jobs_type_status on treadle.finished (task, state);
create index if not exists idx_jobs_type_status_waiting on treadle.jobs (task, state);

-- What a foreign key would do, with its lock: whoever deletes the user waits for this transaction, and finds the job.
create or replace function public.jobs_known_user(user_id uuid) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if to_regclass('auth.users') is not null then
        perform 1 from auth.users u where u.id = jobs_known_user.user_id for key share;
        if not found then
            raise exception 'user_id: there is no user %', jobs_known_user.user_id using errcode = 'foreign_key_violation';
        end if;
    end if;
end
$$;

-- ------------------------------------------------------------------------------------------- a user who is deleted

-- Jobs first, and again until none is left: one that ends or is retried meanwhile goes from one table to the other. A
-- worker that runs one of them finds nothing to settle (its verdict is LOST). The seals go with the lines they seal.
create or replace function public.jobs_forget_users() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    users uuid[] := array(select id from gone);
    tenants text[] := users::text[];
    waiting bigint;
    ended bigint;
begin
    if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
        raise exception 'a user is deleted with its jobs, some of which this transaction cannot see'
            using hint = 'Delete users in a transaction of isolation level read committed.';
    end if;
    delete from treadle.schedules where tenant = any (tenants);
    delete from treadle.finished where public.jobs_tenant(tenant) = any (users);  -- waits for who takes one out just now
    loop
        delete from treadle.jobs where public.jobs_tenant(tenant) = any (users);
        get diagnostics waiting = row_count;
        delete from treadle.finished where public.jobs_tenant(tenant) = any (users);
        get diagnostics ended = row_count;
        exit when waiting + ended = 0;
    end loop;
    delete from treadle.keys where tenant = any (tenants);
    delete from treadle.pauses where tenant = any (tenants);
    delete from treadle.events where tenant = any (tenants);
    delete from treadle.seals where tenant = any (tenants);
    return null;
end
$$;

do $$
begin
    if to_regclass('auth.users') is null then
        raise notice 'there is no table auth.users: jobs outlive their users';
        return;
    end if;
    create or replace trigger jobs_forget_users after delete on auth.users
    referencing old table as gone for each statement execute function public.jobs_forget_users();
end
$$;

-- ------------------------------------------------------------------------------------------------ jobs gone stale

-- Fails what was claimed more than 30 minutes ago, whatever is left of its budget. Written as treadle's own recovery
-- would: the token goes, so that its worker, should it come back, has lost it; a job that was asked to stop is cancelled;
-- the key is let go; what is to follow its end follows. Whose row is locked is just being written: next time.
create or replace function public.expire_stale_jobs() returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    moment timestamptz := statement_timestamp();
    message text := 'Job timed out (stale claim)';
    expired integer;
begin
    with stale as materialized (
        select j.id from treadle.jobs j
        where j.state = 'running' and public.jobs_tenant(j.tenant) is not null
        and coalesce(j.claimed_at, j.started_at,
            greatest(j.created_at, (select max(e.at) from treadle.events e where e.job = j.id))
        ) < moment - interval '30 minutes'
        for update of j skip locked
    ),
    gone as (
        delete from treadle.jobs j where j.id = any (array(select id from stale))
        returning j.*, case when j.cancel_requested then 'cancelled' else 'failed' end as ends
    ),
    kept as (
        insert into treadle.finished (id, task, payload, created_at, due_at, tenant, queue, lane, task_version, priority,
            max_attempts, retry_base, retry_cap, retry_jitter, timeout, expires_at, key, key_scope, key_until, schedule,
            on_end, state, reason, result, error, attempt, failures, crashes, claimed_at, started_at, finished_at, worker,
            lease_until, lease_token, cancel_requested, progress, cost_micros, revision, trace)
        select id, task, payload, created_at, due_at, tenant, queue, lane, task_version, priority,
            max_attempts, retry_base, retry_cap, retry_jitter, timeout, expires_at, key, key_scope, key_until, schedule,
            on_end, ends, case when cancel_requested then 'by_request' else 'crashed' end, result,
            json_build_object('type', 'Crashed', 'message', message, 'traceback', '', 'attempt', attempt,
                'at', to_char(moment at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"')),
            attempt, failures, crashes + 1, claimed_at, started_at, moment, worker,
            null, null, cancel_requested, progress, cost_micros, revision + 1, trace
        from gone
    ),
    freed as (
        delete from treadle.keys k using gone g where k.job = g.id and k.scope in ('pending', 'active')
    ),
    noted as (
        insert into treadle.events (job, revision, at, kind, actor, note, tenant)
        select id, revision + 1, moment, ends, 'expire_stale_jobs',
            case when cancel_requested then '' else concat_ws(': ', nullif(on_end -> 'failed' ->> 'event', ''), message) end,
            tenant
        from gone
    ),
    followed as (
        insert into treadle.jobs (task, payload, tenant, queue, lane, priority, task_version, max_attempts, retry_base,
            retry_cap, retry_jitter, timeout, schedule, trace)
        select f.task,
            (select coalesce(json_object_agg(told.key, told.value), '{}') from json_each(json_build_object('job_id', g.id,
                'task', g.task, 'state', 'failed', 'reason', 'crashed', 'error', message)) as told
            where f.wants is null or told.key = any (f.wants)),
            g.tenant, coalesce(f.queue, 'default'), coalesce(f.lane, ''), coalesce(f.priority, 0), coalesce(f.version, 1),
            case when f.retry is null then 5 else (f.retry ->> 0)::int end,
            case when f.retry is null then 5 else (f.retry ->> 1)::double precision end,
            case when f.retry is null then 300 else (f.retry ->> 2)::double precision end,
            case when f.retry is null then 1 else (f.retry ->> 3)::double precision end,
            f.timeout, null, g.trace
        from gone g cross join lateral json_to_record(
            case when json_typeof(g.on_end -> 'failed') = 'object' then g.on_end -> 'failed' else '{}' end
        ) as f(task text, queue text, lane text, priority int, version int, retry json, timeout double precision, wants text[])
        where f.task <> '' and not g.cancel_requested
    )
    select count(*) into expired from gone;
    return expired;
end
$$;

revoke execute on function public.expire_stale_jobs() from public;

-- ------------------------------------------------------------------------------------------------- who sees what

do $$
declare
    sees_all boolean := (select rolsuper or rolbypassrls from pg_roles where rolname = current_user);
    worker text := (select polroles[1]::regrole::text from pg_policy
        where polrelid = 'treadle.jobs'::regclass and polname = 'treadle_worker');
    owned text := 'case when public.jobs_tenant(tenant) is null then false '
        'else public.is_record_owner(public.jobs_tenant(tenant)) end';
    place text;
begin
    if to_regrole('service_role') is not null then
        grant usage on schema treadle to service_role;
        grant select on treadle.jobs, treadle.finished, treadle.keys, treadle.events to service_role;
        grant insert on treadle.jobs to service_role;
        grant select, insert on public.jobs to service_role;
        grant execute on function public.expire_stale_jobs() to service_role;
    end if;
    if not (select relrowsecurity from pg_class where oid = 'treadle.jobs'::regclass) then
        raise notice 'row-level security is off: whoever may read treadle.jobs sees every job. Turn it on with '
            '`treadle rls`, then run this again';
        return;
    end if;
    if to_regprocedure('public.is_record_owner(uuid)') is null then
        raise notice 'there is no function public.is_record_owner(uuid): no policy for owners';
    else
        foreach place in array array['jobs', 'finished'] loop
            execute format('drop policy if exists "Enable full access for record owners on jobs" on treadle.%I', place);
            execute format('create policy "Enable full access for record owners on jobs" on treadle.%I '
                'using (%s) with check (%s)', place, owned, owned);
        end loop;
        drop policy if exists "Enable read access for record owners on jobs" on treadle.events;  -- for updated_at
        execute format('create policy "Enable read access for record owners on jobs" on treadle.events '
            'for select using (%s)', owned);
    end if;
    if to_regrole('service_role') is null then
        raise notice 'there is no role service_role: no policy for it';
    else
        foreach place in array array['jobs', 'finished', 'events'] loop
            execute format('drop policy if exists "Service role can access all jobs" on treadle.%I', place);
            execute format('create policy "Service role can access all jobs" on treadle.%I to service_role '
                'using (true) with check (true)', place);
        end loop;
    end if;
    -- The two that write for everybody must see everything, or they would quietly do nothing.
    if not sees_all then
        begin
            execute format('alter function public.jobs_forget_users() owner to %s', worker);
            execute format('alter function public.expire_stale_jobs() owner to %s', worker);
        exception when insufficient_privilege then
            raise exception 'row-level security hides jobs from %, which would own the functions of this script',
                current_user using errcode = 'insufficient_privilege', hint = format('Run it as a superuser or a role with '
                    'BYPASSRLS; or make this role a member of %s and grant %s create on schema public.', worker, worker);
        end;
    end if;
end
$$;

commit;

-- Below: what this application adds. A user reads the jobs that are the user's, and writes none.
revoke all on all tables in schema treadle from authenticated;
grant usage on schema treadle to authenticated;
grant select on public.jobs, treadle.jobs, treadle.finished, treadle.events to authenticated;
