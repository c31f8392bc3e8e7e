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
