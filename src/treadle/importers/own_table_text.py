"""The texts that `own_table_sql` fills in; «names» stand for what the profile says."""

HEAD = """\
-- The table «plain» of an application that now runs its jobs with treadle: a view under the names it has always had.
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
    if exists (select 1 from pg_class where oid = to_regclass('«view»') and relkind <> 'v') then
        raise exception '«view» is a table'
            using hint = 'Rename it first (alter table «view» rename to …), and then bring its rows: `treadle import`.';
    end if;
end
$$;
"""

ENUM = """\
do $$
begin
    if to_regtype('public.«enum»') is null then
        create type public.«enum» as enum («words»);
    end if;
end
$$;
"""

TENANT = """\
-- Whose job it is. A tenant that is no UUID is nobody's here; with a cast alone one such row would be an error of every
-- read.
create or replace function «tenant_function»(tenant text) returns uuid
language sql immutable parallel safe
return case when tenant ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then tenant::uuid end;
"""

VIEW = """\
-- ------------------------------------------------------------------------------------------------------ the view

-- A part for each word, and not one case over both tables: so who asks for one reads only where such jobs lie.
create or replace view «view» with (security_invoker = true) as
select «columns»
from (
«jobs»
) j«where»;

«defaults»

«comments»
"""

INSERT = """\
-- --------------------------------------------------------------------------------------------- writing through it

create or replace function «insert»() returns trigger
language plpgsql as $$
declare
    lacking text;
    called text;
    past boolean := «has_past»;
begin
    select string_agg(name, ', ') into lacking from (values
        «missing») as columns(name, missing)
    where missing;
    if lacking is not null then
        raise exception 'a job must have %', lacking using errcode = 'not_null_violation';
    end if;
    if «state»::text not in («words») then
        raise exception '«state_name»: % is none of %', quote_literal(«state»), '«listed_words»'
            using errcode = 'check_violation';
    end if;
«attempts_check»    if past and not pg_has_role(current_user, (
        select relowner from pg_class where oid = 'treadle.jobs'::regclass), 'usage')
    then
        raise exception 'a new job is «pending_word» and has no past' using errcode = 'feature_not_supported',
            hint = 'Leave out «left_out». A role that owns the tables of treadle may insert rows with a past.';
    end if;
«checks»«schedule_check»    if exists (select 1 from treadle.jobs j where j.id = «id»)
        or exists (select 1 from treadle.finished j where j.id = «id»)
    then
        raise exception 'id: there is a job % already', «id» using errcode = 'unique_violation';
    end if;
    if not past then
        if treadle.enqueue(«enqueue») <> «id» then
            raise exception '«key»: there is a job with this key already' using errcode = 'unique_violation';
        end if;
        -- enqueue() makes no second job of an id, and says nothing: another tenant may have it.
        if not exists (select 1 from treadle.jobs j where j.id = «id» and j.created_at = statement_timestamp()) then
            raise exception 'id: there is a job % already', «id» using errcode = 'unique_violation';
        end if;
«schedule_set»        select * into new from «view» v where v.«id_name» = «id»;
        return new;
    end if;

    -- A row with a past, as treadle itself would have it. One that runs is held by nobody: its lease ends when it would
    -- have ended, and then the next worker takes it back.
    declare
        label text := case «state»::text «labels» end;
        state_ text := case when label in ('pending', 'scheduled', 'retrying') then 'pending'
            when label in ('running', 'claimed') then 'running' when label = 'succeeded' then 'succeeded'
            when label in ('failed', 'dead') then 'failed' else 'cancelled' end;
        created timestamptz := «created_at»;
        changed timestamptz := greatest(created, «updated_at», «claimed_at», «started_at», «finished_at»);
        claimed timestamptz := coalesce(«claimed_at»,
            case state_ when 'running' then coalesce(«started_at», «updated_at», created) end);
        started timestamptz := coalesce(«started_at», «started_too»);
        ended timestamptz := case when state_ in ('succeeded', 'failed', 'cancelled')
            then coalesce(«finished_at», changed) end;
        most int := «most»;
        failed int := «failures»;
        tries int;
        spent boolean;
        error_ json;
    begin
        failed := greatest(least(failed, most - 1), 0);
        spent := state_ = 'failed' and (label = 'dead' or failed >= most - 1);
        tries := greatest(«attempt», failed + (state_ in ('running', 'succeeded', 'failed'))::int);
        if «error_text» is not null then
            error_ := json_build_object('type', '', 'message', «error_text», 'traceback', '', 'attempt', tries,
                'at', to_char(coalesce(«error_at», changed) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'));
        end if;
«key_check»    if ended is null then
            insert into treadle.jobs («stored»)
            values («values»);
        else
            insert into treadle.finished («stored»)
            values («values»);
        end if;
        insert into treadle.events (job, revision, at, kind, actor, note, tenant)
        values («id», 1, changed, 'imported', current_user, 'inserted into «plain»', «tenant»);
    end;
    select * into new from «view» v where v.«id_name» = «id»;
    return new;
end
$$;

create or replace trigger «insert_trigger» instead of insert on «view» for each row execute function «insert»();
"""

REFUSE = """\
create or replace function «refuse»() returns trigger
language plpgsql as $$
begin
    if tg_op = 'UPDATE' and «state» is null then
        raise exception 'a job must have «state_name»' using errcode = 'not_null_violation';
    end if;
    if tg_op = 'UPDATE' and «state»::text not in («words») then
        raise exception '«state_name»: % is none of %', quote_literal(«state»), '«listed_words»'
            using errcode = 'check_violation';
    end if;
    raise exception 'jobs are changed by treadle: no % through this view', lower(tg_op)
        using errcode = 'feature_not_supported',
        hint = 'Workers write states, results and errors. To stop a job: app.cancel(id) or `treadle jobs cancel`. To '
            'run a failed one again: app.retry(id) or `treadle jobs retry`. Old ones: `treadle prune`.';
end
$$;

create or replace trigger «refuse_trigger» instead of update or delete on «view»
for each row execute function «refuse»();
"""

SCHEDULE_CHECK = """\
    if «schedule» is not null then
        -- The lock of a foreign key: whoever deletes the schedule waits for this transaction.
        select s.name into called from treadle.schedules s
        where s.own_id = «schedule» and s.tenant = 'default' and s.cron is not null for key share;
        if not found then
            raise exception 'schedule_id: there is no schedule %', «schedule» using errcode = 'foreign_key_violation';
        end if;
    end if;
"""

SCHEDULE_SET = """\
        if called is not null then
            update treadle.jobs j set schedule = called where j.id = «id»;
        end if;
"""

KEY_CHECK = """\
    if «takes_key» then
        insert into treadle.keys (tenant, task, key, job, scope)
        values («tenant», «task», «key_value», «id», «scope») on conflict do nothing;
        if not found then
            raise exception '«key»: there is a job with this key already' using errcode = 'unique_violation';
        end if;
    end if;
"""
