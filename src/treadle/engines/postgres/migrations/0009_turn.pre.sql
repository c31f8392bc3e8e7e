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
create function @.turn(
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
                j.revision + 1, 'succeeded'
        ),
        kept as (
            insert into @.finished (id, task, payload, created_at, due_at, tenant, queue, lane, task_version, priority,
                max_attempts, retry_base, retry_cap, retry_jitter, timeout, expires_at, schedule, result, attempt, failures,
                crashes, claimed_at, started_at, finished_at, worker, lease_token, cancel_requested, progress, cost_micros,
                revision, state)
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
