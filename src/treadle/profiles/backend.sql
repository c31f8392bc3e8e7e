-- The tables `_ayb_jobs` and `_ayb_job_schedules` of a backend that now runs its jobs with treadle: views under the names
-- they have always had. See docs/profiles.md.
--
--   python -c "from treadle.profiles import backend; print(backend.view_sql())" | psql -1 -v ON_ERROR_STOP=1 -d ayb
--
-- Run it after `treadle migrate`. It may be run again, and should be after each migration. It has no transaction of its
-- own. The backend knows no tenants: what belongs to another one than `default` is not in the views.

do $$
begin
    if not exists (select 1 from pg_attribute where attrelid = to_regclass('treadle.schedules') and attname = 'own_id') then
        raise exception 'there is no treadle here, or an old one' using hint = 'Run `treadle migrate` first.';
    end if;
    if exists (select 1 from pg_class
        where oid in (to_regclass('public._ayb_jobs'), to_regclass('public._ayb_job_schedules')) and relkind <> 'v')
    then
        raise exception '_ayb_jobs or _ayb_job_schedules is a table' using hint = 'Rename it first, and insert what waits '
            'in it into the view.';
    end if;
end
$$;

-- ------------------------------------------------------------------------------------------------- the schedules

-- One that runs by an interval has no cron_expr, and is not in it.
create or replace view public._ayb_job_schedules with (security_invoker = true) as
select s.own_id as id,
    s.name::varchar as name,
    s.task::varchar as job_type,
    s.payload::jsonb as payload,
    s.cron::varchar as cron_expr,
    s.timezone::varchar as timezone,
    s.enabled,
    s.max_attempts,
    s.next_at as next_run_at,
    s.last_at as last_run_at,
    s.created_at,
    coalesce(s.updated_at, s.created_at) as updated_at
from treadle.schedules s where s.tenant = 'default' and s.cron is not null and s.own_id is not null;

alter view public._ayb_job_schedules alter column id set default gen_random_uuid();
alter view public._ayb_job_schedules alter column payload set default '{}';
alter view public._ayb_job_schedules alter column timezone set default 'UTC';
alter view public._ayb_job_schedules alter column enabled set default true;
alter view public._ayb_job_schedules alter column max_attempts set default 3;
alter view public._ayb_job_schedules alter column created_at set default now();
alter view public._ayb_job_schedules alter column updated_at set default now();

create or replace function public._ayb_schedule_check(s public._ayb_job_schedules) returns void
language plpgsql as $$
declare
    lacking text;
begin
    select string_agg(name, ', ') into lacking from (values
        ('id', s.id is null), ('name', s.name is null), ('job_type', s.job_type is null), ('payload', s.payload is null),
        ('cron_expr', s.cron_expr is null), ('timezone', s.timezone is null), ('enabled', s.enabled is null),
        ('max_attempts', s.max_attempts is null), ('created_at', s.created_at is null),
        ('updated_at', s.updated_at is null)) as columns(name, missing)
    where missing;
    if lacking is not null then
        raise exception 'a schedule must have %', lacking using errcode = 'not_null_violation';
    end if;
    if cardinality(regexp_split_to_array(btrim(s.cron_expr), '\s+')) <> 5 then
        raise exception 'cron_expr: % must have five fields', quote_literal(s.cron_expr) using errcode = 'check_violation';
    end if;
    if not exists (select 1 from pg_timezone_names z where z.name = s.timezone) then
        raise exception 'timezone: % is not a known time zone', quote_literal(s.timezone) using errcode = 'check_violation';
    end if;
end
$$;

-- A revision more keeps a run that is made at this moment from writing the old values back. Without a next_at, the next
-- worker computes it, from now on.
create or replace function public._ayb_schedule_write() returns trigger
language plpgsql as $$
begin
    if tg_op = 'DELETE' then
        delete from treadle.schedules s where s.tenant = 'default' and s.own_id = old.id;
        return old;
    end if;
    perform public._ayb_schedule_check(new);
    if tg_op = 'INSERT' then
        insert into treadle.schedules (own_id, name, task, payload, cron, timezone, enabled, max_attempts, next_at, last_at,
            created_at, updated_at)
        values (new.id, new.name, new.job_type, new.payload::json, new.cron_expr, new.timezone, new.enabled,
            new.max_attempts, new.next_run_at, new.last_run_at, new.created_at, new.updated_at);
        return new;
    end if;
    if (new.id, new.name, new.created_at) is distinct from (old.id, old.name, old.created_at) then
        raise exception 'id, name and created_at of a schedule stay' using errcode = 'feature_not_supported',
            hint = 'Delete it, and make another.';
    end if;
    -- Only what the statement changes is written: the rest of `new` is as old as its snapshot, and somebody else may have
    -- changed it since.
    update treadle.schedules s set
        task = case when new.job_type is distinct from old.job_type then new.job_type else s.task end,
        payload = case when new.payload is distinct from old.payload then new.payload::json else s.payload end,
        cron = case when new.cron_expr is distinct from old.cron_expr then new.cron_expr else s.cron end,
        timezone = case when new.timezone is distinct from old.timezone then new.timezone else s.timezone end,
        enabled = case when new.enabled is distinct from old.enabled then new.enabled else s.enabled end,
        max_attempts = case when new.max_attempts is distinct from old.max_attempts then new.max_attempts
            else s.max_attempts end,
        next_at = case when new.next_run_at is distinct from old.next_run_at then new.next_run_at
            when (new.cron_expr, new.timezone) is distinct from (old.cron_expr, old.timezone)
                or (new.enabled and not old.enabled) then null
            else s.next_at end,
        last_at = case when new.last_run_at is distinct from old.last_run_at then new.last_run_at else s.last_at end,
        updated_at = statement_timestamp(), revision = s.revision + 1
    where s.tenant = 'default' and s.own_id = old.id;
    select * into new from public._ayb_job_schedules s where s.id = old.id;
    return case when found then new end;
end
$$;

create or replace trigger _ayb_schedule_write instead of insert or update or delete on public._ayb_job_schedules
for each row execute function public._ayb_schedule_write();

-- ------------------------------------------------------------------------------------------------------ the jobs

-- A part for each state, and not one case over both tables: so who asks for a state reads only where such jobs lie.
-- schedule_id is what a foreign key with `on delete set null` would leave; a later schedule of the same name is another.
create or replace view public._ayb_jobs with (security_invoker = true) as
select j.id,
    j.task::varchar as type,
    j.payload::jsonb as payload,
    j.word as state,
    j.due_at as run_at,
    j.lease_until,
    j.worker::varchar as worker_id,
    j.attempt as attempts,
    j.max_attempts,
    j.error ->> 'message' as last_error,
    j.claimed_at as last_run_at,
    j.key::varchar as idempotency_key,
    (select s.own_id from treadle.schedules s
        where s.tenant = j.tenant and s.name = j.schedule and s.created_at <= j.created_at and s.cron is not null
    ) as schedule_id,
    j.created_at,
    greatest(j.created_at, j.claimed_at, j.started_at, j.finished_at,
        (select max(e.at) from treadle.events e where e.job = j.id)) as updated_at,
    case j.state when 'succeeded' then j.finished_at end as completed_at,
    case j.state when 'cancelled' then j.finished_at end as canceled_at
from (
    select id, tenant, task, 'queued'::varchar as word, state, payload, error, attempt, max_attempts, due_at, lease_until,
        worker, claimed_at, started_at, finished_at, key, schedule, created_at
    from treadle.jobs where state = 'pending'
    union all
    select id, tenant, task, 'running', state, payload, error, attempt, max_attempts, due_at, lease_until,
        worker, claimed_at, started_at, finished_at, key, schedule, created_at
    from treadle.jobs where state = 'running'
    union all
    select id, tenant, task, 'completed', state, payload, error, attempt, max_attempts, due_at, lease_until,
        worker, claimed_at, started_at, finished_at, key, schedule, created_at
    from treadle.finished where state = 'succeeded'
    union all
    select id, tenant, task, 'failed', state, payload, error, attempt, max_attempts, due_at, lease_until,
        worker, claimed_at, started_at, finished_at, key, schedule, created_at
    from treadle.finished where state = 'failed' or (state = 'cancelled' and reason = 'expired')
    union all
    select id, tenant, task, 'canceled', state, payload, error, attempt, max_attempts, due_at, lease_until,
        worker, claimed_at, started_at, finished_at, key, schedule, created_at
    from treadle.finished where state = 'cancelled' and reason is distinct from 'expired'
) j
where j.tenant = 'default';

alter view public._ayb_jobs alter column id set default gen_random_uuid();
alter view public._ayb_jobs alter column payload set default '{}';
alter view public._ayb_jobs alter column state set default 'queued';
alter view public._ayb_jobs alter column run_at set default now();
alter view public._ayb_jobs alter column attempts set default 0;
alter view public._ayb_jobs alter column max_attempts set default 3;
alter view public._ayb_jobs alter column created_at set default now();
alter view public._ayb_jobs alter column updated_at set default now();

create or replace function public._ayb_job_insert() returns trigger
language plpgsql as $$
declare
    lacking text;
    called text;
    made public._ayb_jobs;
begin
    select string_agg(name, ', ') into lacking from (values
        ('id', new.id is null), ('type', new.type is null), ('payload', new.payload is null), ('state', new.state is null),
        ('run_at', new.run_at is null), ('attempts', new.attempts is null), ('max_attempts', new.max_attempts is null),
        ('created_at', new.created_at is null), ('updated_at', new.updated_at is null)) as columns(name, missing)
    where missing;
    if lacking is not null then
        raise exception 'a job must have %', lacking using errcode = 'not_null_violation';
    end if;
    if new.state not in ('queued', 'running', 'completed', 'failed', 'canceled') then
        raise exception 'state: % is none of queued, running, completed, failed, canceled', quote_literal(new.state)
            using errcode = 'check_violation';
    end if;
    if new.max_attempts < 1 then
        raise exception 'max_attempts: % must be 1 or more', new.max_attempts using errcode = 'check_violation';
    end if;
    if new.state <> 'queued' or new.attempts <> 0 or new.created_at <> now() or new.updated_at <> now() or num_nonnulls(
        new.lease_until, new.worker_id, new.last_error, new.last_run_at, new.completed_at, new.canceled_at) > 0
    then
        raise exception 'a new job is queued and has no past' using errcode = 'feature_not_supported',
            hint = 'Leave out state, attempts, lease_until, worker_id, last_error, last_run_at, created_at, updated_at, '
                'completed_at and canceled_at.';
    end if;
    if new.schedule_id is not null then
        -- The lock of a foreign key: whoever deletes the schedule waits for this transaction.
        select s.name into called from treadle.schedules s
        where s.own_id = new.schedule_id and s.tenant = 'default' and s.cron is not null for key share;
        if not found then
            raise exception 'schedule_id: there is no schedule %', new.schedule_id using errcode = 'foreign_key_violation';
        end if;
    end if;
    if exists (select 1 from public._ayb_jobs j where j.id = new.id) then
        raise exception 'id: there is a job % already', new.id using errcode = 'unique_violation';
    end if;
    if treadle.enqueue(new.type::text, new.payload, run_after => new.run_at, max_attempts => new.max_attempts,
        retry_base => 5, retry_cap => 300, retry_jitter => 1, key => new.idempotency_key::text,
        key_scope => case when new.idempotency_key is not null then 'ever' end, id => new.id) <> new.id
    then
        raise exception 'idempotency_key: there is a job with % already', quote_literal(new.idempotency_key)
            using errcode = 'unique_violation';
    end if;
    if called is not null then
        update treadle.jobs j set schedule = called where j.id = new.id;
    end if;
    select * into made from public._ayb_jobs j where j.id = new.id;
    return made;
end
$$;

create or replace trigger _ayb_job_insert instead of insert on public._ayb_jobs
for each row execute function public._ayb_job_insert();

create or replace function public._ayb_job_refuse() returns trigger
language plpgsql as $$
begin
    if tg_op = 'UPDATE' and new.state not in ('queued', 'running', 'completed', 'failed', 'canceled') then
        raise exception 'state: % is none of queued, running, completed, failed, canceled', quote_literal(new.state)
            using errcode = 'check_violation';
    end if;
    raise exception 'jobs are changed by treadle: no % through this view', lower(tg_op)
        using errcode = 'feature_not_supported',
        hint = 'Workers write state, attempts and last_error. To cancel a queued job: POST /api/admin/jobs/{id}/cancel or '
            '`treadle jobs cancel`. To retry a failed one: /retry or `treadle jobs retry`. Old ones: `treadle prune`.';
end
$$;

create or replace trigger _ayb_job_refuse instead of update or delete on public._ayb_jobs
for each row execute function public._ayb_job_refuse();
