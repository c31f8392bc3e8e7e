-- Store new jobs (enqueue.py): `ids` and `payloads` of jobs that have all else in common, which is `job`; or whole `rows`.
-- The answer is the time, and each job that was not stored with the job that has its id or key.
create function @.add_jobs(request text) returns text
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    p record;
    moment timestamptz;
    made uuid[];
    late uuid[] := '{}';  -- jobs whose key is taken, and by which jobs
    holders uuid[] := '{}';
    took uuid[];          -- jobs that took a key here
    broken text;
    due boolean;
begin
    select r.* into p from json_to_record(add_jobs.request::json) as r(
        now timestamptz, notify text, audit_all boolean, keyed boolean, lock_timeout text, ids uuid[], payloads text[],
        job json, rows json);
    moment := coalesce(p.now, statement_timestamp());
    if p.keyed then
        if p.lock_timeout is not null then  -- a caller that has given up must not find the jobs stored after all
            perform set_config('lock_timeout', p.lock_timeout, true);
        end if;
        select k.late, k.holders, k.took into late, holders, took from @.take_keys(p.rows, moment) k;
    end if;

    perform set_config('treadle.guarded', 'yes', true);
    -- A row that is there already is not inserted: `on conflict` alone would wait for a transaction that has it locked. (Not
    -- `not exists`: planned on an empty table, that would read all of the table once it is full.) An id that was ever used is
    -- not taken again: a repeated enqueue must not run a finished job twice.
    if p.job is not null then
        with s as materialized (
            select s.*, case when s.due_at > s.created_at then s.due_at else moment end as due
            from json_to_record(p.job) as s(
                created_at timestamptz, due_at timestamptz, task text, tenant text, queue text, lane text,
                task_version int, priority int, max_attempts int, retry_base float8, retry_cap float8,
                retry_jitter float8, timeout float8, expires_at timestamptz, schedule text, on_end text)
        ),
        made as (
            insert into @.jobs (id, payload, created_at, due_at, task, tenant, queue, lane, task_version, priority,
                max_attempts, retry_base, retry_cap, retry_jitter, timeout, expires_at, schedule, on_end, later)
            select c.id, c.payload::json, moment, s.due, s.task, s.tenant, s.queue, s.lane, s.task_version, s.priority,
                s.max_attempts, s.retry_base, s.retry_cap, s.retry_jitter, s.timeout, s.expires_at, s.schedule,
                s.on_end::json, s.lane <> '' and s.due > moment
            from s cross join unnest(p.ids, p.payloads) as c(id, payload)
            where (select f.id from @.finished f where f.id = c.id) is null
            and (select j.id from @.jobs j where j.id = c.id) is null
            order by c.id
            on conflict (id) do nothing
            returning id
        )
        select array_agg(made.id) filter (where made.id is not null), min(s.due) <= moment, min(@.broken_check(s.task, moment, s.due, s.tenant, s.queue, s.lane,
            s.max_attempts, s.retry_base, s.retry_cap, s.retry_jitter, s.timeout, s.expires_at, null, null, null,
            s.on_end::json))
        into made, due, broken from s left join made on true;
    else
        with c as materialized (
            select c.*, case when c.due_at > c.created_at then c.due_at else moment end as due
            from json_to_recordset(p.rows) as c(
                id uuid, payload text, created_at timestamptz, due_at timestamptz, task text, tenant text, queue text,
                lane text, task_version int, priority int, max_attempts int, retry_base float8, retry_cap float8,
                retry_jitter float8, timeout float8, expires_at timestamptz, key text, key_scope text,
                key_until timestamptz, schedule text, on_end text)
        ),
        made as (
            insert into @.jobs (id, payload, created_at, due_at, task, tenant, queue, lane, task_version, priority,
                max_attempts, retry_base, retry_cap, retry_jitter, timeout, expires_at, key, key_scope, key_until, schedule,
                on_end, later)
            select c.id, c.payload::json, moment, c.due, c.task, c.tenant, c.queue, c.lane, c.task_version, c.priority,
                c.max_attempts, c.retry_base, c.retry_cap, c.retry_jitter, c.timeout, c.expires_at, c.key, c.key_scope,
                c.key_until, c.schedule, c.on_end::json, c.lane <> '' and c.due > moment
            from c
            where c.id <> all (late)
            and (select f.id from @.finished f where f.id = c.id) is null
            and (select j.id from @.jobs j where j.id = c.id) is null
            order by c.id
            on conflict (id) do nothing
            returning id
        )
        select (select array_agg(made.id) from made), array_agg(c.id), min(c.due) <= moment,
            min(@.broken_check(c.task, moment, c.due, c.tenant, c.queue, c.lane, c.max_attempts, c.retry_base, c.retry_cap,
                c.retry_jitter, c.timeout, c.expires_at, c.key, c.key_scope, c.key_until, c.on_end::json))
        into made, p.ids, due, broken from c;
    end if;
    perform set_config('treadle.guarded', '', true);
    if broken is not null then
        perform @.refuse_job(broken);
    end if;

    if made is not null then
        if current_setting('transaction_isolation') <> 'read committed'
            or (select f.id from @.finished f where f.id = any (made) limit 1) is not null
        then
            perform @.refuse_finished(made);
        end if;
        if p.audit_all then
            insert into @.events (job, revision, at, kind, actor, note, tenant)
            select j.id, 0, moment, 'enqueued', 'enqueue', '', j.tenant from @.jobs j where j.id = any (made);
        end if;
        if p.notify is not null and due then  -- a hint, sent now and then
            perform pg_notify(p.notify, '');
        end if;
        if cardinality(made) = cardinality(p.ids) then
            return json_build_object('now', moment);
        end if;
    end if;
    made := coalesce(made, '{}');
    if took is not null then  -- a job that was there after all must not leave a key behind that nobody frees
        delete from @.keys h using json_to_recordset(p.rows) as c(id uuid, tenant text, task text, key text)
        where c.id = any (took) and c.id <> all (made)
        and h.tenant = c.tenant and h.task = c.task and h.key = c.key and h.job = c.id;
    end if;
    return json_build_object('now', moment, 'others', (
        select json_object_agg(w.id, coalesce(holders[array_position(late, w.id)], w.id))
        from unnest(p.ids) as w(id) where w.id <> all (made)));
end
$$;

-- Take the keys of these rows, in an order that all callers share: which jobs took theirs, and which came too late for whom.
-- A job that is known already takes none.
create function @.take_keys(rows json, moment timestamptz, out late uuid[], out holders uuid[], out took uuid[])
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    k record;
    holder uuid;
    dead boolean;
begin
    late := '{}';
    holders := '{}';
    for k in
        select c.* from rows from (
            json_to_recordset(take_keys.rows) as (
                id uuid, tenant text, task text, key text, key_scope text, key_until timestamptz)
        ) with ordinality as c(id, tenant, task, key, key_scope, key_until, place)
        where c.key is not null
        and (select j.id from @.jobs j where j.id = c.id) is null
        and (select f.id from @.finished f where f.id = c.id) is null
        order by c.tenant, c.task, c.key, c.place
    loop
        for tries in 1..11 loop
            if tries = 11 then
                raise exception 'a key keeps changing hands' using errcode = '40001';
            end if;
            -- A key is free if its window is over, or if the job that took it for a window is gone. It is read before it is
            -- taken: `on conflict` alone would wait for a transaction that has it locked.
            select h.job, h.until <= moment or h.scope = 'window' and h.job <> all (coalesce(took, '{}'))
                and (select j.id from @.jobs j where j.id = h.job) is null
                and (select f.id from @.finished f where f.id = h.job) is null
            into holder, dead
            from @.keys h where h.tenant = k.tenant and h.task = k.task and h.key = k.key;
            if found and dead is true then
                delete from @.keys h where h.tenant = k.tenant and h.task = k.task and h.key = k.key and h.job = holder;
            elsif found then
                late := late || k.id;
                holders := holders || holder;
                exit;
            end if;
            insert into @.keys (tenant, task, key, job, scope, until)
            values (k.tenant, k.task, k.key, k.id, k.key_scope, k.key_until)
            on conflict do nothing;
            if found then
                took := took || k.id;
                exit;
            end if;
        end loop;
    end loop;
end
$$;

-- Store one new job that has no key: what add_jobs() does, with nothing to unpack. The time, or null if a job has this id
-- already: then add_jobs() says which.
create function @.add_job(
    now timestamptz, notify text, id uuid, payload text, task text, created_at timestamptz, due_at timestamptz, tenant text,
    queue text, lane text, task_version int, priority int, max_attempts int, retry_base float8, retry_cap float8,
    retry_jitter float8, timeout float8, expires_at timestamptz, schedule text, on_end text
) returns timestamptz
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    moment timestamptz := coalesce(add_job.now, statement_timestamp());
    due timestamptz := case when add_job.due_at > add_job.created_at then add_job.due_at else moment end;
    broken text := @.broken_check(add_job.task, moment, due, add_job.tenant, add_job.queue, add_job.lane,
        add_job.max_attempts, add_job.retry_base, add_job.retry_cap, add_job.retry_jitter, add_job.timeout,
        add_job.expires_at, null, null, null, add_job.on_end::json);
    setting text;  -- a value that is assigned costs a tenth of a statement
begin
    if broken is not null then
        perform @.refuse_job(broken);
    end if;
    setting := set_config('treadle.guarded', 'yes', true);
    insert into @.jobs (id, payload, created_at, due_at, task, tenant, queue, lane, task_version, priority, max_attempts,
        retry_base, retry_cap, retry_jitter, timeout, expires_at, schedule, on_end, later)
    select add_job.id, add_job.payload::json, moment, due, add_job.task, add_job.tenant, add_job.queue, add_job.lane,
        add_job.task_version, add_job.priority, add_job.max_attempts, add_job.retry_base, add_job.retry_cap,
        add_job.retry_jitter, add_job.timeout, add_job.expires_at, add_job.schedule, add_job.on_end::json,
        add_job.lane <> '' and due > moment
    where (select j.id from @.jobs j where j.id = add_job.id) is null
    and (select f.id from @.finished f where f.id = add_job.id) is null
    on conflict (id) do nothing;
    if not found then
        setting := set_config('treadle.guarded', '', true);
        return null;
    end if;
    setting := set_config('treadle.guarded', '', true);
    if current_setting('transaction_isolation') <> 'read committed'
        or (select f.id from @.finished f where f.id = add_job.id) is not null
    then
        perform @.refuse_finished(array[add_job.id]);
    end if;
    if add_job.notify is not null and due <= moment then
        setting := pg_notify(add_job.notify, '')::text;
    end if;
    return moment;
end
$$;
