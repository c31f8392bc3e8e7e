-- The trace that a job belongs to: a W3C traceparent and, behind a space, its tracestate.
--
-- The functions below are those of 0007, 0008, 0009 and 0011 with this column. Code of the treadle before works beside them,
-- also on connections that have its calls prepared: what they take and answer is the same. So a job_row is as it was, and
-- its last column, the `summary`, tells of a job its trace.
alter table @.jobs add column trace text;
alter table @.finished add column trace text;

comment on column @.jobs.trace is 'W3C traceparent of whoever enqueued it; behind a space its tracestate, if there is one.';

-- The jobs that a token holds, in the order of claims.
create or replace function @.held_jobs(token text) returns setof @.job_row
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
begin
    return query
    select j.id::text, j.task, j.payload::text, j.created_at, j.due_at, j.tenant, j.queue, j.lane, j.task_version,
        j.priority, j.max_attempts, j.retry_base, j.retry_cap, j.retry_jitter, j.timeout, j.expires_at, j.key, j.key_scope,
        j.key_until, j.schedule, j.on_end::text, j.state, j.reason, j.result::text, j.error::text, j.attempt, j.failures,
        j.crashes, j.claimed_at, j.started_at, j.finished_at, j.worker, j.lease_until, j.lease_token, j.cancel_requested,
        j.progress::text, j.cost_micros, j.revision, j.trace
    from @.jobs j where j.state = 'running' and j.lease_token = held_jobs.token
    order by j.priority desc, j.due_at, j.id;
end
$$;

-- These jobs, wherever they are.
create or replace function @.read_jobs(ids uuid[]) returns setof @.job_row
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    return query
    select j.id::text, j.task, j.payload::text, j.created_at, j.due_at, j.tenant, j.queue, j.lane, j.task_version,
        j.priority, j.max_attempts, j.retry_base, j.retry_cap, j.retry_jitter, j.timeout, j.expires_at, j.key, j.key_scope,
        j.key_until, j.schedule, j.on_end::text, j.state, j.reason, j.result::text, j.error::text, j.attempt, j.failures,
        j.crashes, j.claimed_at, j.started_at, j.finished_at, j.worker, j.lease_until, j.lease_token, j.cancel_requested,
        j.progress::text, j.cost_micros, j.revision, j.trace
    from @.jobs j where j.id = any (read_jobs.ids)
    union all
    select f.id::text, f.task, f.payload::text, f.created_at, f.due_at, f.tenant, f.queue, f.lane, f.task_version,
        f.priority, f.max_attempts, f.retry_base, f.retry_cap, f.retry_jitter, f.timeout, f.expires_at, f.key, f.key_scope,
        f.key_until, f.schedule, f.on_end::text, f.state, f.reason, f.result::text, f.error::text, f.attempt, f.failures,
        f.crashes, f.claimed_at, f.started_at, f.finished_at, f.worker, f.lease_until, f.lease_token, f.cancel_requested,
        f.progress::text, f.cost_micros, f.revision, f.trace
    from @.finished f where f.id = any (read_jobs.ids);
end
$$;

-- Write changes that end an attempt (settle.py says what they hold); the ids of those written, and the time. There is a
-- row in any case.
create or replace function @.settle(request text) returns table (id text, now timestamptz)
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    moment timestamptz;
    changes json;
    settled text[];
begin
    select coalesce(p.now, statement_timestamp()), p.rows into moment, changes
    from json_to_record(settle.request::json) as p(now timestamptz, rows json);

    with c as materialized (
        select c.* from json_to_recordset(changes) as c(
            id uuid, was text, was_revision int, was_token text, was_lease timestamptz, state text, reason text,
            result text, error text, failures int, crashes int, started_at timestamptz, finished_at timestamptz,
            lease_token text, progress text, cost_micros bigint, revision int, due_at timestamptz, frees boolean,
            kind text, actor text, note text, at timestamptz)
    ),

    -- Lock the rows whose fence holds: the state, the revision and, if the change names them, token and lease. Without
    -- the token, a zombie could settle a job that was claimed again. Without the revision, a retry could bury a cancel
    -- request. Without the lease, recovery could take a job whose lease was renewed after it was read. A row that another
    -- open transaction holds is skipped, so that one locked job does not hold up the others.
    mine as materialized (
        select c.*, j.tid from c cross join lateral (
            select j.ctid as tid from @.jobs j
            where j.id = c.id and j.state || '' = c.was and j.revision = c.was_revision
            and (c.was_token is null or j.lease_token = c.was_token)
            and (c.was_lease is null or j.lease_until = c.was_lease and j.lease_until <= moment)
            limit 1 for update skip locked
        ) j
    ),

    -- A job that has ended moves to the finished ones. The clock that gave started_at may have been ahead: an end is never
    -- before its start.
    gone as (
        delete from @.jobs j using mine m
        where j.ctid = m.tid and m.state not in ('pending', 'running')
        returning j.id, j.task, j.payload, j.created_at, j.due_at, j.tenant, j.queue, j.lane, j.task_version, j.priority,
            j.max_attempts, j.retry_base, j.retry_cap, j.retry_jitter, j.timeout, j.expires_at, j.key, j.key_scope,
            j.key_until, j.schedule, j.on_end, m.state, m.reason, m.result::json, m.error::json, j.attempt, m.failures,
            m.crashes, j.claimed_at, m.started_at, greatest(m.finished_at, m.started_at) as finished_at, j.worker,
            m.lease_token, j.cancel_requested, m.progress::json, m.cost_micros, m.revision, j.trace, m.frees, m.kind,
            m.actor, m.note, m.at
    ),
    kept as (
        insert into @.finished (id, task, payload, created_at, due_at, tenant, queue, lane, task_version, priority,
            max_attempts, retry_base, retry_cap, retry_jitter, timeout, expires_at, key, key_scope, key_until, schedule,
            on_end, state, reason, result, error, attempt, failures, crashes, claimed_at, started_at, finished_at, worker,
            lease_token, cancel_requested, progress, cost_micros, revision, trace)
        select id, task, payload, created_at, due_at, tenant, queue, lane, task_version, priority, max_attempts, retry_base,
            retry_cap, retry_jitter, timeout, expires_at, key, key_scope, key_until, schedule, on_end, state, reason, result,
            error, attempt, failures, crashes, claimed_at, started_at, finished_at, worker, lease_token, cancel_requested,
            progress, cost_micros, revision, trace
        from gone
    ),

    -- A job that runs again is pending. It keeps its token, so that a repeated write is known as the same one.
    back as (
        update @.jobs j
        set state = 'pending', due_at = m.due_at, error = m.error::json, failures = m.failures, crashes = m.crashes,
            started_at = m.started_at, worker = null, lease_until = null, lease_token = m.lease_token,
            progress = m.progress::json, cost_micros = m.cost_micros, revision = m.revision,
            later = j.lane <> '' and m.due_at > moment
        from mine m where j.ctid = m.tid and m.state = 'pending'
        returning j.id, j.tenant, j.revision, m.frees, m.kind, m.actor, m.note, m.at
    ),
    written as materialized (
        select id, tenant, revision, frees, kind, actor, note, at from gone
        union all select id, tenant, revision, frees, kind, actor, note, at from back
    ),

    -- A change that is written frees the key of its job, and has its audit event, in the same statement.
    freed as (
        delete from @.keys k using written w where k.job = w.id and w.frees and k.scope in ('pending', 'active')
    ),
    noted as (
        insert into @.events (job, revision, at, kind, actor, note, tenant)
        select id, revision, at, kind, actor, note, tenant from written where kind is not null
    )
    select array_agg(written.id::text) into settled from written;

    return query select s.id, moment from (select 1) as always left join unnest(settled) as s(id) on true;
end
$$;

-- A turn: write the ends of attempts, then claim.
--
--   at         the time; null: the server's own
--   changes    other changes, for settle()
--   ids, ...   plain successes (lifecycle.Success): job, token, revision, start in microseconds since 1970, and the result
--   claim      the request for jobs (turn.py); without a token, none are claimed
--
-- Each statement in here has its own snapshot, so the claim sees what was settled just now. If a change or a success was
-- not written, nothing is claimed: why it was not is read first, from the job as it is.
--
-- The answer is small, because the locks last until it is sent: a client that is frozen while its socket is full must not
-- hold hundreds of uncommitted claims. So the jobs come with it only if they are few and small; else held_jobs() reads them
-- after the commit.
create or replace function @.turn(
    at timestamptz, changes text, ids uuid[], tokens text[], revisions int[], starts bigint[], results text[], claim text
) returns setof @.job_row
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    moment timestamptz := coalesce(turn.at, statement_timestamp());
    settled text[];
    succeeded text[];
    unwritten int;
    tids tid[];
    started timestamptz[];
    values_ text[];
    answer @.job_row;
    summary json;
    small boolean := false;
begin
    -- A turn may come again while its first sending is still under way: it waits until that has ended, and the claim below
    -- counts what that one took.
    perform pg_advisory_xact_lock(hashtextextended(turn.claim::json ->> 'token', 0));
    if turn.changes is not null then
        select array_agg(s.id) into settled from @.settle(turn.changes) s where s.id is not null;
    end if;

    if turn.ids is not null then
        -- What lifecycle.settle makes of a success, for jobs that hold no key and that nothing follows, behind the fence of
        -- the holder. state || '' is state: no other index than that of the ids may offer itself here.
        -- They are locked first and moved by the next statement, which sees the rows as they were locked, also those that a
        -- renewal has written since the first one began.
        select array_agg(j.tid), array_agg(to_timestamp(c.start / 1000000.0)), array_agg(c.result)
        into tids, started, values_
        from unnest(turn.ids, turn.tokens, turn.revisions, turn.starts, turn.results)
            as c(id, token, revision, start, result) cross join lateral (
            select j.ctid as tid from @.jobs j
            where j.id = c.id and j.state || '' = 'running' and j.lease_token = c.token and j.revision = c.revision
            and j.key_scope is null and j.on_end is null
            limit 1 for update skip locked
        ) j;
        with mine as materialized (
            select m.tid, m.started_at, m.result::json as result
            from unnest(tids, started, values_) as m(tid, started_at, result)
        ),
        gone as (
            delete from @.jobs j using mine m where j.ctid = m.tid
            returning j.id, j.task, j.payload, j.created_at, j.due_at, j.tenant, j.queue, j.lane, j.task_version,
                j.priority, j.max_attempts, j.retry_base, j.retry_cap, j.retry_jitter, j.timeout, j.expires_at, j.schedule,
                m.result, j.attempt, j.failures, j.crashes, j.claimed_at, m.started_at,
                greatest(moment, m.started_at), j.worker, j.lease_token, j.cancel_requested, j.progress, j.cost_micros,
                j.revision + 1, j.trace, 'succeeded'
        ),
        kept as (
            insert into @.finished (id, task, payload, created_at, due_at, tenant, queue, lane, task_version, priority,
                max_attempts, retry_base, retry_cap, retry_jitter, timeout, expires_at, schedule, result, attempt, failures,
                crashes, claimed_at, started_at, finished_at, worker, lease_token, cancel_requested, progress, cost_micros,
                revision, trace, state)
            select * from gone
            returning id
        )
        select coalesce(array_agg(kept.id::text), '{}') into succeeded from kept;
        if (turn.claim::json ->> 'audit_all')::boolean then
            insert into @.events (job, revision, at, kind, actor, note, tenant)
            select f.id, f.revision, moment, 'succeeded', coalesce(nullif(f.worker, ''), 'worker'), '', f.tenant
            from unnest(succeeded) as s(id) cross join lateral (
                select f.* from @.finished f where f.id = s.id::uuid limit 1) f;
        end if;
    end if;

    unwritten := coalesce(cardinality(turn.ids), 0) - coalesce(cardinality(succeeded), 0)
        + coalesce(json_array_length(turn.changes::json -> 'rows'), 0) - coalesce(cardinality(settled), 0);
    if unwritten = 0 and turn.claim::json -> 'token' is not null then
        summary := @.claim(turn.claim, moment);
        small := (summary ->> 'small')::boolean;
    end if;
    -- The time as it is now: it may have waited for a lock.
    answer.summary := json_build_object(
        'now', (extract(epoch from coalesce(turn.at, clock_timestamp())) * 1000000)::bigint, 'settled', settled,
        'succeeded', case when cardinality(succeeded) = cardinality(turn.ids) then null else succeeded end,
        'claim', summary);
    return next answer;
    if small and (summary ->> 'taken')::int > 0 then
        return query select * from @.held_jobs(turn.claim::json ->> 'token');
    end if;
end
$$;

-- Store new jobs (enqueue.py): `ids` and `payloads` of jobs that have all else in common, which is `job`; or whole `rows`.
-- The answer is the time, and each job that was not stored with the job that has its id or key.
create or replace function @.add_jobs(request text) returns text
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
                retry_jitter float8, timeout float8, expires_at timestamptz, schedule text, on_end text, trace text)
        ),
        made as (
            insert into @.jobs (id, payload, created_at, due_at, task, tenant, queue, lane, task_version, priority,
                max_attempts, retry_base, retry_cap, retry_jitter, timeout, expires_at, schedule, on_end, trace, later)
            select c.id, c.payload::json, moment, s.due, s.task, s.tenant, s.queue, s.lane, s.task_version, s.priority,
                s.max_attempts, s.retry_base, s.retry_cap, s.retry_jitter, s.timeout, s.expires_at, s.schedule,
                s.on_end::json, s.trace, s.lane <> '' and s.due > moment
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
                key_until timestamptz, schedule text, on_end text, trace text)
        ),
        made as (
            insert into @.jobs (id, payload, created_at, due_at, task, tenant, queue, lane, task_version, priority,
                max_attempts, retry_base, retry_cap, retry_jitter, timeout, expires_at, key, key_scope, key_until, schedule,
                on_end, trace, later)
            select c.id, c.payload::json, moment, c.due, c.task, c.tenant, c.queue, c.lane, c.task_version, c.priority,
                c.max_attempts, c.retry_base, c.retry_cap, c.retry_jitter, c.timeout, c.expires_at, c.key, c.key_scope,
                c.key_until, c.schedule, c.on_end::json, c.trace, c.lane <> '' and c.due > moment
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

-- Store one new job that has no key: what add_jobs() does, with nothing to unpack. The time, or null if a job has this id
-- already: then add_jobs() says which.
-- The last parameter has a default: code of the treadle before does not give it.
drop function @.add_job(timestamptz, text, uuid, text, text, timestamptz, timestamptz, text, text, text, int, int, int,
    float8, float8, float8, float8, timestamptz, text, text);

create function @.add_job(
    now timestamptz, notify text, id uuid, payload text, task text, created_at timestamptz, due_at timestamptz, tenant text,
    queue text, lane text, task_version int, priority int, max_attempts int, retry_base float8, retry_cap float8,
    retry_jitter float8, timeout float8, expires_at timestamptz, schedule text, on_end text,
    trace text default null
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
        retry_base, retry_cap, retry_jitter, timeout, expires_at, schedule, on_end, trace, later)
    select add_job.id, add_job.payload::json, moment, due, add_job.task, add_job.tenant, add_job.queue, add_job.lane,
        add_job.task_version, add_job.priority, add_job.max_attempts, add_job.retry_base, add_job.retry_cap,
        add_job.retry_jitter, add_job.timeout, add_job.expires_at, add_job.schedule, add_job.on_end::json,
        add_job.trace, add_job.lane <> '' and due > moment
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
