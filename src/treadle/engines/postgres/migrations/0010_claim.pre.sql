-- Whether a pause blocks jobs of this tenant, queue and task; * asks about pauses for everybody. The arrays are the pauses
-- that hold.
create function @.gated(tenants text[], queues text[], tasks text[], tenant text, queue text, task text) returns boolean
language sql immutable parallel safe
return exists (
    select 1 from unnest(gated.tenants, gated.queues, gated.tasks) as g(tenant, queue, task)
    where g.tenant in ('*', gated.tenant) and g.queue in ('*', gated.queue) and g.task in ('*', gated.task)
);

-- Claim jobs. One round looks at some lanes, takes a share from each, and parks what it finds and may not take; rounds
-- follow until the claim is full, every lane was seen, or the time is over. The answer:
--   held    jobs that the token held before: then this claim was here before, and its answer was lost
--   taken   jobs claimed now
--   small   whether the answer can carry them
--   search_time, take_time   seconds it took to find them, and to take them
--   more    whether it was cut short: there may be jobs that it could take
--   after   the queue and lane that was served last: the next claim begins behind it
--
-- Pending jobs lie in these indexes:
--   jobs_claim             not parked: by queue, lane, priority, due time, id; this is the order of claims
--   jobs_lanes             of these, all that have a lane and are not marked `later`: by queue and lane
--   jobs_later             marked `later`: by queue and due time
--   jobs_parked_by_task    parked, and not by tenant: by queue, task, version, lane, then in order
--   jobs_parked_by_tenant  parked by tenant: by queue, tenant, task, version, lane, then in order
-- The statements go through an index by groups: the first entry of a group, then the first entry behind that group. So a
-- claim reads a few pages, however many jobs, lanes or tasks there are.
-- Only turn() calls it, and its plans are made under the settings of that.
create function @.claim(request text, moment timestamptz) returns json
language plpgsql as $$
#variable_conflict use_column
declare
    r record;
    held int;
    wanted int;
    has_pauses boolean;
    has_parked boolean;
    has_parked_by_tenant boolean;
    has_lanes boolean;
    has_ripe boolean;
    spare int := 0;         -- jobs read beside those wanted, after a round that had to park some
    n int;
    queues text[];          -- those that are not paused as a whole
    gate_tenants text[];    -- the pauses that hold: tenant, queue and task of each
    gate_queues text[];
    gate_tasks text[];
    group_queues text[];    -- groups of parked jobs that this claim may take
    group_tenants text[];   -- null: parked by task
    group_tasks text[];
    group_versions int[];
    lane_queues text[];     -- the lanes of this round
    lane_names text[];
    start_queue int;        -- where the walk began: a place in queues, and a lane
    start_lane text := '';
    at_queue int;           -- where it is
    at_lane text;
    room int;               -- lanes that it may still step on in this round
    found_lanes text[];
    ripe tid[];
    served_queue text;      -- the last lane that gave a job
    served_lane text;
    wrapped boolean := false;
    circle_done boolean := false;
    once_more boolean := false;  -- a lane gave its whole share, or jobs were parked: there may be more behind them
    first_round boolean := true;
    unlaned boolean := true;
    share int;
    taken tid[];
    by_task tid[];
    by_tenant tid[];
    last_served int;
    greedy boolean;
    unlaned_greedy boolean;
    unlaned_more boolean := false;
    reach int := 4;         -- parked jobs that are read for each that is wanted
    parked_more boolean := false;  -- more parked jobs than were read, and others may have locked these
    keyed boolean := false;
    cut_short boolean := false;
    deadline timestamptz;
    mark timestamptz;
    search_time interval := '0';  -- the time it took to find jobs, and to take them
    take_time interval := '0';
    bytes bigint := 0;      -- of the jobs taken
begin
    select p.* into r from json_to_record(claim.request::json) as p(
        token text, worker text, lease float8, "limit" int, queues text[], lanes text[], tasks text[], versions bigint[],
        any_task boolean, audit_all boolean, round int, after text[], cursors json, patience float8,
        parks int);
    select count(*) into held from @.jobs j where j.state = 'running' and j.lease_token = r.token;
    if held > 0 then
        return json_build_object('held', held, 'taken', 0, 'small', false, 'more', true, 'after', r.after);
    end if;
    wanted := r."limit";
    queues := r.queues;
    deadline := clock_timestamp() + make_interval(secs => r.patience);

    -- To read the pauses is not enough: a claim that began before a pause was committed does not see it, and may itself
    -- commit after it. So each claim also locks the table of pauses, before it reads it. A pause waits, after its commit,
    -- until the claims that hold such a lock are over (records.await_claims). No claim waits for a pause.
    lock table @.pauses in row share mode;

    -- One look at what is mostly not there: pauses, parked jobs, lanes, and jobs of lanes whose time has come.
    select
        (select true from @.pauses s where s.queue = '*' or s.queue = any (queues) limit 1),
        (select true from unnest(queues) as q(queue) where (
            select true from @.jobs j
            where j.state = 'pending' and j.parked and not j.parked_by_tenant and j.queue = q.queue
            order by j.task limit 1
        ) limit 1),
        (select true from unnest(queues) as q(queue) where (
            select true from @.jobs j
            where j.state = 'pending' and j.parked and j.parked_by_tenant and j.queue = q.queue
            order by j.tenant limit 1
        ) limit 1),
        (select true from unnest(queues) as q(queue) where (
            select true from @.jobs j
            where j.state = 'pending' and not j.parked and not j.later and j.lane <> '' and j.queue = q.queue
            order by j.lane || '' limit 1
        ) limit 1),
        (select true from unnest(queues) as q(queue) where (
            select true from @.jobs j
            where j.state = 'pending' and j.later and j.queue = q.queue and j.due_at <= moment
            order by j.due_at limit 1
        ) limit 1)
    into has_pauses, has_parked, has_parked_by_tenant, has_lanes, has_ripe;

    if has_pauses then
        select array_agg(s.tenant), array_agg(s.queue), array_agg(s.task) into gate_tenants, gate_queues, gate_tasks
        from @.pauses s
        where (s.queue = '*' or s.queue = any (queues)) and (s.until is null or s.until > moment);
    end if;
    if gate_tenants is not null then
        select array_agg(q.queue order by q.place) into queues from unnest(queues) with ordinality as q(queue, place)
        where not @.gated(gate_tenants, gate_queues, gate_tasks, '*', q.queue, '');
        if queues is null then
            return json_build_object('held', 0, 'taken', 0, 'small', true, 'more', false, 'after', r.after);
        end if;
        -- A pause of a queue that is not looked at need not be asked about each job.
        select array_agg(g.tenant), array_agg(g.queue), array_agg(g.task) into gate_tenants, gate_queues, gate_tasks
        from unnest(gate_tenants, gate_queues, gate_tasks) as g(tenant, queue, task)
        where g.queue = '*' or g.queue = any (queues);
    end if;

    -- Which parked jobs it may take. A claim asks for the tasks that it knows, so unknown ones cost nothing.
    if has_parked then
        if r.any_task then
            with recursive steps(queue, task, version) as (
                select q.queue, g.task, g.task_version from unnest(queues) as q(queue) cross join lateral (
                    select j.task, j.task_version from @.jobs j
                    where j.state = 'pending' and j.parked and not j.parked_by_tenant and j.queue = q.queue
                    order by j.task, j.task_version limit 1
                ) g
                union all
                select s.queue, g.task, g.task_version from steps s cross join lateral (
                    select j.task, j.task_version from @.jobs j
                    where j.state = 'pending' and j.parked and not j.parked_by_tenant and j.queue = s.queue
                    and (j.task, j.task_version) > (s.task, s.version)
                    order by j.task, j.task_version limit 1
                ) g
            )
            select array_agg(s.queue), array_agg(null::text), array_agg(s.task), array_agg(s.version)
            into group_queues, group_tenants, group_tasks, group_versions
            from (
                select s.* from steps s
                where coalesce(s.version <= r.versions[array_position(r.tasks, s.task)], true)
                and (gate_tenants is null or not @.gated(gate_tenants, gate_queues, gate_tasks, '*', s.queue, s.task))
                and (
                    select true from @.jobs j
                    where j.state = 'pending' and j.parked and not j.parked_by_tenant and j.queue = s.queue
                    and j.task = s.task and j.task_version = s.version and (r.lanes is null or j.lane = any (r.lanes))
                    and j.due_at <= moment and (j.expires_at is null or j.expires_at > moment)
                    limit 1
                )
                limit greatest(64, wanted)
            ) s;
            cut_short := cardinality(group_queues) >= greatest(64, wanted);
        else
            with recursive steps(queue, task, newest, version) as (
                select q.queue, k.task, k.newest, (
                    select j.task_version from @.jobs j
                    where j.state = 'pending' and j.parked and not j.parked_by_tenant and j.queue = q.queue
                    and j.task = k.task order by j.task_version limit 1
                )
                from unnest(queues) as q(queue) cross join unnest(r.tasks, r.versions) as k(task, newest)
                where gate_tenants is null or not @.gated(gate_tenants, gate_queues, gate_tasks, '*', q.queue, k.task)
                union all
                select s.queue, s.task, s.newest, (
                    select j.task_version from @.jobs j
                    where j.state = 'pending' and j.parked and not j.parked_by_tenant and j.queue = s.queue
                    and j.task = s.task and j.task_version > s.version order by j.task_version limit 1
                )
                from steps s where s.version < s.newest
            )
            select array_agg(s.queue), array_agg(null::text), array_agg(s.task), array_agg(s.version)
            into group_queues, group_tenants, group_tasks, group_versions
            from steps s where s.version <= s.newest;
        end if;
    end if;

    -- The same for jobs that were parked by a pause that named their tenant: one step for each tenant, task and version.
    if has_parked_by_tenant then
        with recursive steps(queue, tenant, task, version) as (
            select q.queue, g.tenant, g.task, g.task_version from unnest(queues) as q(queue) cross join lateral (
                select j.tenant, j.task, j.task_version from @.jobs j
                where j.state = 'pending' and j.parked and j.parked_by_tenant and j.queue = q.queue
                order by j.tenant, j.task, j.task_version limit 1
            ) g
            union all
            select s.queue, g.tenant, g.task, g.task_version from steps s cross join lateral (
                select j.tenant, j.task, j.task_version from @.jobs j
                where j.state = 'pending' and j.parked and j.parked_by_tenant and j.queue = s.queue
                and (j.tenant, j.task, j.task_version) > (s.tenant, s.task, s.version)
                order by j.tenant, j.task, j.task_version limit 1
            ) g
        )
        select group_queues || array_agg(s.queue), group_tenants || array_agg(s.tenant),
            group_tasks || array_agg(s.task), group_versions || array_agg(s.version)
        into group_queues, group_tenants, group_tasks, group_versions
        from steps s
        where coalesce(s.version <= r.versions[array_position(r.tasks, s.task)], r.any_task)
        and (gate_tenants is null or not @.gated(gate_tenants, gate_queues, gate_tasks, s.tenant, s.queue, s.task));
    end if;

    start_queue := coalesce(array_position(queues, r.after[1]), 1);
    if queues[start_queue] = r.after[1] then
        start_lane := r.after[2];
    end if;
    at_queue := start_queue;
    at_lane := start_lane;

    loop
        if r.cursors is not null or r.lanes is not null then
            circle_done := true;
            select array_agg(q.queue), array_agg(l.lane) into lane_queues, lane_names
            from unnest(queues) as q(queue) cross join (select distinct unnest(r.lanes) as lane) l;
        else
            if first_round and has_ripe then
                -- Jobs of lanes whose time has come are found by lane from now on.
                select array_agg(x.ctid) into ripe from unnest(queues) as q(queue) cross join lateral (
                    select j.ctid from @.jobs j
                    where j.state = 'pending' and j.later and j.queue = q.queue and j.due_at <= moment
                    order by j.due_at limit greatest(200, 2 * wanted) for update skip locked
                ) x;
                if ripe is not null then
                    has_lanes := true;
                    update @.jobs j set later = false where j.ctid = any (ripe);
                    once_more := once_more or cardinality(ripe) >= greatest(200, 2 * wanted);
                end if;
            end if;
            -- The next lanes with something to do, one step for each, as many as jobs are wanted: those behind the lane that
            -- was served last, then those before it.
            lane_queues := null;
            lane_names := null;
            room := greatest(8, least(wanted, 500));
            circle_done := circle_done or has_lanes is null and group_queues is null;
            while room > 0 and not circle_done loop
                with recursive steps(lane, place) as (
                    select at_lane, 0
                    union all
                    select least((
                        select j.lane || '' from @.jobs j
                        where j.state = 'pending' and not j.parked and not j.later and j.lane <> ''
                        and j.queue = queues[at_queue] and j.lane || '' > s.lane
                        order by j.lane || '' limit 1
                    ), case when group_queues is not null then (
                        select min(p.lane) from unnest(group_queues, group_tenants, group_tasks, group_versions)
                            as g(queue, tenant, task, version) cross join lateral (
                            (select j.lane from @.jobs j
                            where g.tenant is null and j.state = 'pending' and j.parked and not j.parked_by_tenant
                            and j.queue = g.queue and j.task = g.task and j.task_version = g.version and j.lane > s.lane
                            order by j.lane limit 1)
                            union all
                            (select j.lane from @.jobs j
                            where j.state = 'pending' and j.parked and j.parked_by_tenant
                            and j.queue = g.queue and j.tenant = g.tenant and j.task = g.task
                            and j.task_version = g.version and j.lane > s.lane
                            order by j.lane limit 1)
                        ) p where g.queue = queues[at_queue]
                    ) end), s.place + 1
                    from steps s where s.lane is not null and s.place < room
                )
                select array_agg(s.lane order by s.place) into found_lanes
                from steps s
                where s.place > 0 and s.lane is not null
                and (not wrapped or at_queue <> start_queue or s.lane <= start_lane);
                n := coalesce(cardinality(found_lanes), 0);
                lane_queues := lane_queues || array_fill(queues[at_queue], array[n]);
                lane_names := lane_names || found_lanes;
                room := room - n;
                if room <= 0 then
                    at_lane := found_lanes[n];
                elsif wrapped and at_queue = start_queue or at_queue = cardinality(queues) and start_queue = 1
                    and start_lane = ''
                then
                    circle_done := true;
                else  -- the next queue, or the first one again
                    wrapped := wrapped or at_queue = cardinality(queues);
                    at_queue := at_queue % cardinality(queues) + 1;
                    at_lane := '';
                end if;
            end loop;
            -- Jobs without a lane take part in the first round, first or last by turns, each queue's first by turns; then as
            -- long as they fill their share.
            if first_round and unlaned then
                n := (r.round / 2) % cardinality(queues);
                if r.round % 2 = 0 then
                    lane_queues := queues[n + 1:] || queues[:n] || lane_queues;
                    lane_names := array_fill(''::text, array[cardinality(queues)]) || lane_names;
                else
                    lane_queues := lane_queues || queues[n + 1:] || queues[:n];
                    lane_names := lane_names || array_fill(''::text, array[cardinality(queues)]);
                end if;
            end if;
        end if;
        first_round := false;

        mark := clock_timestamp();
        n := case when r.cursors is null then cardinality(lane_queues) else json_array_length(r.cursors) end;
        taken := null;
        by_task := null;
        by_tenant := null;
        greedy := false;
        unlaned_greedy := false;
        if n = 1 and r.cursors is null and group_queues is null then
            -- The usual claim: one lane, nothing parked. It is the general one below with nothing to share or to merge.
            share := wanted + spare;
            with recursive level(priority) as (
                select (
                    select j.priority from @.jobs j
                    where j.state = 'pending' and not j.parked and j.queue = lane_queues[1] and j.lane = lane_names[1]
                    order by j.priority desc limit 1
                )
                union all
                select (
                    select j.priority from @.jobs j
                    where j.state = 'pending' and not j.parked and j.queue = lane_queues[1] and j.lane = lane_names[1]
                    and j.priority < level.priority order by j.priority desc limit 1
                )
                from level where level.priority is not null
            ),
            found as (
                select d.* from level cross join lateral (
                    select j.ctid as tid, j.tenant, j.task, j.task_version from @.jobs j
                    where j.state = 'pending' and not j.parked and j.queue = lane_queues[1] and j.lane = lane_names[1]
                    and j.priority = level.priority
                    and j.due_at <= moment and (j.expires_at is null or j.expires_at > moment)
                    order by j.due_at, j.id limit share for update skip locked
                ) d
                where level.priority is not null limit share
            ),
            ruled as (
                select f.tid, case
                    when not coalesce(f.task_version <= r.versions[array_position(r.tasks, f.task)], r.any_task) then 1
                    when gate_tenants is null then 0
                    when @.gated(gate_tenants, gate_queues, gate_tasks, '*', lane_queues[1], f.task) then 1
                    when @.gated(gate_tenants, gate_queues, gate_tasks, f.tenant, lane_queues[1], f.task) then 2
                    else 0
                end as ruling
                from found f
            )
            select (array_agg(x.tid) filter (where x.ruling = 0))[1:wanted], array_agg(x.tid) filter (where x.ruling = 1),
                array_agg(x.tid) filter (where x.ruling = 2), 1, count(*) >= share, count(*) >= share and lane_names[1] = ''
            into taken, by_task, by_tenant, last_served, greedy, unlaned_greedy
            from ruled x;
        elsif n > 0 then
            -- Lanes share the claim, so that a full one does not starve the others.
            share := ceil((wanted + spare)::float8 / n);
            with lanes as materialized (
                select * from unnest(lane_queues, lane_names) with ordinality as l(queue, lane, place)
            ),
            groups as materialized (
                select * from unnest(group_queues, group_tenants, group_tasks, group_versions)
                    as g(queue, tenant, task, version)
            ),
            -- Parked jobs that it may take. Groups may be many: no job is locked before it is known to be among the first of its
            -- lane. More are read than are wanted, because other claims may lock the same ones.
            waiting as materialized (
                select l.place, l.queue,
                    array(
                        select p.id from (
                            -- Only those groups count whose first job is among the first of the lane.
                            select g.* from groups g cross join lateral (
                                (select j.id, j.priority, j.due_at from @.jobs j
                                where g.tenant is null and j.state = 'pending' and j.parked and not j.parked_by_tenant
                                and j.queue = g.queue and j.task = g.task and j.task_version = g.version
                                and j.lane = l.lane
                                and j.due_at <= moment and (j.expires_at is null or j.expires_at > moment)
                                order by j.priority desc, j.due_at, j.id limit 1)
                                union all
                                (select j.id, j.priority, j.due_at from @.jobs j
                                where j.state = 'pending' and j.parked and j.parked_by_tenant
                                and j.queue = g.queue and j.tenant = g.tenant and j.task = g.task
                                and j.task_version = g.version and j.lane = l.lane
                                and j.due_at <= moment and (j.expires_at is null or j.expires_at > moment)
                                order by j.priority desc, j.due_at, j.id limit 1)
                            ) h
                            where g.queue = l.queue
                            order by h.priority desc, h.due_at, h.id limit reach * share
                        ) g cross join lateral (
                            (select j.id, j.priority, j.due_at from @.jobs j
                            where g.tenant is null and j.state = 'pending' and j.parked and not j.parked_by_tenant
                            and j.queue = g.queue and j.task = g.task and j.task_version = g.version and j.lane = l.lane
                            and j.due_at <= moment and (j.expires_at is null or j.expires_at > moment)
                            order by j.priority desc, j.due_at, j.id limit reach * share)
                            union all
                            (select j.id, j.priority, j.due_at from @.jobs j
                            where j.state = 'pending' and j.parked and j.parked_by_tenant
                            and j.queue = g.queue and j.tenant = g.tenant and j.task = g.task
                            and j.task_version = g.version and j.lane = l.lane
                            and j.due_at <= moment and (j.expires_at is null or j.expires_at > moment)
                            order by j.priority desc, j.due_at, j.id limit reach * share)
                        ) p
                        order by p.priority desc, p.due_at, p.id limit reach * share
                    ) as ids
                from lanes l where group_queues is not null
            ),
            -- The jobs that may be claimed, locked; a job that another transaction has locked is skipped.
            found as materialized (
                -- By lane: from priority to priority, and within each a range by due time. One ordered scan over the whole
                -- lane would walk over every future job of a higher priority.
                select l.place, l.queue, d.* from lanes l cross join lateral (
                    with recursive level(priority) as (
                        select (
                            select j.priority from @.jobs j
                            where j.state = 'pending' and not j.parked and j.queue = l.queue and j.lane = l.lane
                            order by j.priority desc limit 1
                        )
                        union all
                        select (
                            select j.priority from @.jobs j
                            where j.state = 'pending' and not j.parked and j.queue = l.queue and j.lane = l.lane
                            and j.priority < level.priority order by j.priority desc limit 1
                        )
                        from level where level.priority is not null
                    )
                    select d.* from level cross join lateral (
                        select j.ctid as tid, j.id, j.priority, j.due_at, j.tenant, j.task, j.task_version
                        from @.jobs j
                        where j.state = 'pending' and not j.parked and j.queue = l.queue and j.lane = l.lane
                        and j.priority = level.priority
                        and j.due_at <= moment and (j.expires_at is null or j.expires_at > moment)
                        order by j.due_at, j.id limit share for update skip locked
                    ) d
                    where level.priority is not null limit share
                ) d
                where r.cursors is null
                union all
                -- By cursor (cursors.py): nothing that was taken lately is walked over, although its index entries stay as
                -- long as a long transaction may need them.
                select l.place, l.queue, d.*
                from rows from (
                    json_to_recordset(r.cursors) as (queue text, lane text, priority int, due_at timestamptz, id uuid)
                ) with ordinality as l(queue, lane, priority, due_at, id, place) cross join lateral (
                    select j.ctid as tid, j.id, j.priority, j.due_at, j.tenant, j.task, j.task_version from @.jobs j
                    where j.state = 'pending' and not j.parked and j.queue = l.queue and j.lane = l.lane
                    and j.priority = l.priority and (j.due_at, j.id) > (l.due_at, l.id)
                    and j.due_at <= moment and (j.expires_at is null or j.expires_at > moment)
                    order by j.due_at, j.id limit share for update skip locked
                ) d
                where l.queue = any (queues)
                union all
                select l.place, l.queue, d.* from waiting l cross join lateral (
                    select j.ctid as tid, j.id, j.priority, j.due_at, j.tenant, j.task, j.task_version from @.jobs j
                    where j.id = any (l.ids) and j.state || '' = 'pending' and j.parked
                    order by j.priority desc, j.due_at, j.id limit share for update skip locked
                ) d
            ),
            -- Whether it may be taken: 0 if so, 1 if its task is unknown or paused, 2 if a pause of its tenant blocks it.
            ruled as (
                select f.place, f.tid, case
                    when not coalesce(f.task_version <= r.versions[array_position(r.tasks, f.task)], r.any_task) then 1
                    when gate_tenants is null then 0
                    when @.gated(gate_tenants, gate_queues, gate_tasks, '*', f.queue, f.task) then 1
                    when @.gated(gate_tenants, gate_queues, gate_tasks, f.tenant, f.queue, f.task) then 2
                    else 0
                end as ruling, row_number() over (partition by f.place order by f.priority desc, f.due_at, f.id) as rank
                from found f
            ),
            -- Beyond its share a lane was not read to the end, and the order of what was found there means nothing.
            ranked as (
                select x.*, x.rank <= share
                    and row_number() over (partition by x.ruling order by x.rank, x.place) <= wanted as fits
                from ruled x
            )
            select array_agg(x.tid) filter (where x.ruling = 0 and x.fits),
                array_agg(x.tid) filter (where x.ruling = 1), array_agg(x.tid) filter (where x.ruling = 2),
                max(x.place) filter (where x.ruling = 0 and x.fits), coalesce(max(x.rank) >= share, false),
                coalesce(bool_or(x.rank >= share and lane_names[x.place] = ''), false),
                exists (select 1 from waiting w where cardinality(w.ids) >= reach * share)
            into taken, by_task, by_tenant, last_served, greedy, unlaned_greedy, parked_more
            from ranked x;
            if parked_more and taken is null then
                reach := 16 * reach;
                once_more := true;
                unlaned_greedy := true;
            end if;
        end if;

        search_time := search_time + (clock_timestamp() - mark);
        mark := clock_timestamp();
        if taken is not null then
            -- The claim, as model/lifecycle.py specifies it.
            with claimed as (
                update @.jobs j
                set state = 'running', attempt = attempt + 1, revision = revision + 1, claimed_at = moment,
                    started_at = null, progress = null, lease_until = moment + make_interval(secs => r.lease),
                    lease_token = r.token, worker = r.worker, parked = false, parked_by_tenant = false, later = false
                where j.ctid = any (taken) and j.state || '' = 'pending'
                returning j.key_scope, octet_length(j.payload::text) + coalesce(octet_length(j.error::text), 0)
                    + coalesce(octet_length(j.on_end::text), 0) as size
            )
            select count(*), keyed or coalesce(bool_or(c.key_scope = 'pending'), false), bytes + coalesce(sum(c.size), 0)
            into n, keyed, bytes from claimed c;
            wanted := wanted - n;
            take_time := take_time + (clock_timestamp() - mark);
            if r.cursors is null and r.lanes is null and lane_names[last_served] <> '' then
                served_queue := lane_queues[last_served];
                served_lane := lane_names[last_served];
            end if;
        end if;

        -- A job that this claim may not take leaves jobs_claim, so that later claims skip it at no cost: parked by tenant if
        -- only a pause of its tenant blocks it, else by task.
        if by_task is not null then
            update @.jobs j set parked = true, parked_by_tenant = false, later = false
            where j.ctid = any (by_task) and j.state || '' = 'pending';
        end if;
        if by_tenant is not null then
            update @.jobs j set parked = true, parked_by_tenant = true, later = false
            where j.ctid = any (by_tenant) and j.state || '' = 'pending';
        end if;
        if by_task is not null or by_tenant is not null then
            -- More of them may follow: twice as many are read next, beside those that are wanted.
            spare := least(r.parks, 2 * (coalesce(cardinality(by_task), 0) + coalesce(cardinality(by_tenant), 0)));
            once_more := true;
        end if;
        once_more := once_more or greedy;
        unlaned_more := unlaned_more or unlaned_greedy;

        if wanted <= 0 then
            exit;
        end if;
        if circle_done then
            exit when not once_more;
            once_more := false;
            circle_done := false;
            wrapped := false;
            first_round := true;
            unlaned := unlaned_more;
            unlaned_more := false;
            start_queue := at_queue;
            start_lane := at_lane;
        end if;
        if clock_timestamp() > deadline then
            once_more := true;
            exit;
        end if;
    end loop;

    -- A key of the scope `pending` is free when its job is claimed.
    if keyed then
        delete from @.keys k using @.jobs j
        where j.state = 'running' and j.lease_token = r.token and j.key_scope = 'pending' and k.job = j.id
        and k.scope = 'pending';
    end if;
    n := r."limit" - wanted;
    if r.audit_all and n > 0 then
        insert into @.events (job, revision, at, kind, actor, note, tenant)
        select j.id, j.revision, moment, 'claimed', r.worker, '', j.tenant
        from @.jobs j where j.state = 'running' and j.lease_token = r.token;
    end if;
    return json_build_object('held', 0, 'taken', n, 'small', n <= 20 and bytes < 16384,
        'search_time', extract(epoch from search_time), 'take_time', extract(epoch from take_time),
        'more', wanted > 0 and (once_more or cut_short or parked_more),
        'after', case when served_queue is not null then array[served_queue, served_lane]
            when r.cursors is null and r.lanes is null and wanted > 0 then array[queues[at_queue], at_lane]
            else r.after end);
end
$$;
