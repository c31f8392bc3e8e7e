do $$
begin
    if exists (select 1 from pg_class where oid = to_regclass('public._ayb_job_schedules') and relkind <> 'v') then
        raise exception 'public._ayb_job_schedules is a table' using hint = 'Rename it first, and insert its rows into the '
            'view.';
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
