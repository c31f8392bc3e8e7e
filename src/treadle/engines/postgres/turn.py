"""The one statement of a turn: settle what has ended, then claim.

It answers with ids only, a few kilobytes, because its locks last until the answer has been sent: a client that is
frozen while its socket is full must not hold five hundred uncommitted claims. The jobs are read after the commit.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from treadle.engines.postgres.places import Place
from treadle.engines.postgres.rows import CHANGE, packed, stored, unpack
from treadle.engines.postgres.scripts import SETTLED
from treadle.engines.rows import Row
from treadle.engines.values import Claim

SPARE = 1000  # jobs that one statement may put away beside what it claims


_PENDING = "j.state = 'pending' and not j.filed"
_FILED = "j.state = 'pending' and j.filed and not j.parked"
_PARKED = "j.state = 'pending' and j.filed and j.parked"
_JOB = "j.id, j.priority, j.due_at, j.tenant, j.task, j.task_version, j.lease_token"

# No limit at all, but the planner takes it for a tenth. Without it a recursion within a recursion looks so costly that
# a server with jit compiles the statement for seconds.
_FEW = "limit (select 1000000000 from p)"

_ASKED = """
asked as materialized (
    select w.*, @.holding(w.token) as held from p cross join lateral json_to_record(p.claim) as w(
        token text, worker text, lease float8, "limit" int, spare int, queues text[], lanes text[], known json,
        any_task boolean, places json, again boolean, first bigint, audit_all boolean)
),
known as materialized (select k.* from asked, json_to_recordset(known) as k(task text, version bigint)),
wanted as materialized (select distinct unnest(queues) as queue from asked)"""

# To read the pauses is not enough: a claim that began before a pause was committed does not see it, and may itself
# commit after it. So every claim names the table once more, to lock no row of it: that takes a ROW SHARE lock on the
# table, before the statement's snapshot. Whoever pauses waits after the commit until all claims that hold one are over
# (records.await_claims); no claim waits for anybody.
_DOOR = "door as materialized (select 1 from @.pauses where false for key share)"
_HOLDS = "(s.until is null or s.until > (select now from t)) and not exists (select 1 from door)"

# Where nothing is paused and nothing was put away, as is usual, a claim looks into its lanes alone. It takes nothing if
# it finds that this is not so: then it is sent again, with all that follows below.
_NOTHING_ASIDE = f"""
aside as materialized (
    select exists (
        select 1 from @.pauses s, asked w where (s.queue = '*' or s.queue = any (w.queues)) and {_HOLDS}
    ) or exists (
        select 1 from wanted q
        where (select true from @.jobs j where {_FILED} and j.queue = q.queue order by j.lane, j.task limit 1)
        or (select true from @.jobs j where {_PARKED} and j.queue = q.queue order by j.lane, j.tenant limit 1)
    ) as yes
),
queues as materialized (select queue from wanted {_FEW})"""


def _shut(job: str, *, by_tenant: bool) -> str:
    """Whether the gate stops such a job: by its task, or by a pause that names its tenant."""
    gate = "(select tenant, queue, task from gate)"
    if not by_tenant:
        return f"(('*', {job}.queue, {job}.task) in {gate})"
    return f"(({job}.tenant, {job}.queue, {job}.task) in {gate} or ({job}.tenant, {job}.queue, '*') in {gate})"


# The gate: the pauses that hold in these queues; * is any tenant or task. Jobs that some claim met and could not take
# are found by lane, task and version, or by lane, tenant, task and version, one step for each.
_ASIDE = f"""
gate as materialized (
    select s.tenant, q.queue, s.task from wanted q join @.pauses s on s.queue in (q.queue, '*') where {_HOLDS}
),
queues as materialized (
    select q.queue from wanted q where ('*', q.queue, '*') not in (select tenant, queue, task from gate) {_FEW}
),
filed_steps(queue, lane, task, task_version) as (
    select q.queue, f.lane, f.task, f.task_version from queues q cross join lateral (
        select j.lane, j.task, j.task_version from @.jobs j where {_FILED} and j.queue = q.queue
        order by j.lane, j.task, j.task_version limit 1
    ) f
    union all
    select s.queue, f.lane, f.task, f.task_version from filed_steps s cross join lateral (
        select j.lane, j.task, j.task_version from @.jobs j where {_FILED} and j.queue = s.queue
        and (j.lane, j.task, j.task_version) > (s.lane, s.task, s.task_version)
        order by j.lane, j.task, j.task_version limit 1
    ) f
),
filed as materialized (
    select s.queue, s.lane, s.task, s.task_version
    from filed_steps s cross join wish w left join known k on k.task = s.task
    where (w.lanes is null or s.lane = any (w.lanes)) and not {_shut("s", by_tenant=False)}
    and case when k.task is null then w.any_task else s.task_version <= k.version end
),
parked_steps(queue, lane, tenant, task, task_version) as (
    select q.queue, f.* from queues q cross join lateral (
        select j.lane, j.tenant, j.task, j.task_version from @.jobs j where {_PARKED} and j.queue = q.queue
        order by j.lane, j.tenant, j.task, j.task_version limit 1
    ) f
    union all
    select s.queue, f.* from parked_steps s cross join lateral (
        select j.lane, j.tenant, j.task, j.task_version from @.jobs j where {_PARKED} and j.queue = s.queue
        and (j.lane, j.tenant, j.task, j.task_version) > (s.lane, s.tenant, s.task, s.task_version)
        order by j.lane, j.tenant, j.task, j.task_version limit 1
    ) f
),
parked as materialized (
    select s.queue, s.lane, s.tenant, s.task, s.task_version
    from parked_steps s cross join wish w left join known k on k.task = s.task
    where (w.lanes is null or s.lane = any (w.lanes))
    and not {_shut("s", by_tenant=False)} and not {_shut("s", by_tenant=True)}
    and case when k.task is null then w.any_task else s.task_version <= k.version end
),
aside as materialized (
    select exists (select 1 from gate) or exists (select 1 from filed_steps)
        or exists (select 1 from parked_steps) as yes
)"""

# The lanes of these queues that hold pending jobs: from the first to the next, stepping over the jobs of each.
_LANES_FOUND = f"""
lane_steps(queue, lane) as (
    select q.queue, (select j.lane from @.jobs j where {_PENDING} and j.queue = q.queue order by j.lane limit 1)
    from queues q
    union all
    select s.queue, (select j.lane from @.jobs j where {_PENDING} and j.queue = s.queue and j.lane > s.lane
        order by j.lane limit 1)
    from lane_steps s where s.lane is not null
),
lanes as materialized (select queue, lane from lane_steps where lane is not null {_FEW})"""

_LANES_GIVEN = """
lanes as materialized (
    select q.queue, l.lane
    from queues q cross join (select distinct unnest(lanes) as lane from asked) l
)"""

# Within a lane: from priority to priority, and within each a range by due time. A single ordered scan would walk
# over every future job of a higher priority.
_BY_LANE = f"""
    select l.queue, l.lane, d.*
    from lanes l cross join share s cross join lateral (
        with recursive level(priority) as (
            select (select j.priority from @.jobs j where {_PENDING} and j.queue = l.queue and j.lane = l.lane
                order by j.priority desc limit 1)
            union all
            select (select j.priority from @.jobs j where {_PENDING} and j.queue = l.queue and j.lane = l.lane
                and j.priority < level.priority order by j.priority desc limit 1)
            from level where level.priority is not null
        )
        select d.* from (select priority from level where priority is not null {_FEW}) level cross join lateral (
            select {_JOB} from @.jobs j
            where {_PENDING} and j.queue = l.queue and j.lane = l.lane and j.priority = level.priority
            and j.due_at <= (select now from t) and (j.expires_at is null or j.expires_at > (select now from t))
            order by j.due_at, j.id limit s.n for update skip locked
        ) d limit s.n
    ) d"""

# The same from places known already: nothing that was taken lately is walked over, although its index entries stay
# while some long transaction may still need them.
_BY_PLACE = f"""
    select l.queue, l.lane, d.*
    from lanes l cross join share s cross join lateral (
        select {_JOB} from @.jobs j
        where {_PENDING} and j.queue = l.queue and j.lane = l.lane and j.priority = l.priority
        and (j.due_at, j.id) > (l.due_at, l.id)
        and j.due_at <= (select now from t) and (j.expires_at is null or j.expires_at > (select now from t))
        order by j.due_at, j.id limit s.n for update skip locked
    ) d"""

_PLACES = f"""
lanes as materialized (
    select l.* from asked, json_to_recordset(places) as l(
        queue text, lane text, priority int, due_at timestamptz, id uuid)
    where l.queue in (select queue from queues) {_FEW}
)"""

_BY_TASK = f"""
    select f.queue, f.lane, d.*
    from filed f cross join share s cross join lateral (
        select {_JOB} from @.jobs j
        where {_FILED} and j.queue = f.queue and j.lane = f.lane and j.task = f.task
        and j.task_version = f.task_version
        and j.due_at <= (select now from t) and (j.expires_at is null or j.expires_at > (select now from t))
        order by j.priority desc, j.due_at, j.id limit s.n for update skip locked
    ) d"""

# Tenants may be many: of their groups only those count whose first job is among the first, and no job is locked before
# it is known to be among the first. Some more are looked at than are wanted, for others may be locking the same ones.
_BY_TENANT = f"""
    select l.queue, l.lane, d.*
    from (select distinct queue, lane from parked) l cross join share s cross join lateral (
        select {_JOB} from @.jobs j
        where {_PARKED} and j.id = any (array(
            select d.id from (
                select f.tenant, f.task, f.task_version
                from parked f cross join lateral (
                    select j.priority, j.due_at, j.id from @.jobs j
                    where {_PARKED} and j.queue = f.queue and j.lane = f.lane and j.tenant = f.tenant
                    and j.task = f.task and j.task_version = f.task_version
                    and j.due_at <= (select now from t) and (j.expires_at is null or j.expires_at > (select now from t))
                    order by j.priority desc, j.due_at, j.id limit 1
                ) d
                where f.queue = l.queue and f.lane = l.lane
                order by d.priority desc, d.due_at, d.id limit 4 * s.n
            ) f cross join lateral (
                select j.priority, j.due_at, j.id from @.jobs j
                where {_PARKED} and j.queue = l.queue and j.lane = l.lane and j.tenant = f.tenant
                and j.task = f.task and j.task_version = f.task_version
                and j.due_at <= (select now from t) and (j.expires_at is null or j.expires_at > (select now from t))
                order by j.priority desc, j.due_at, j.id limit 4 * s.n
            ) d
            order by d.priority desc, d.due_at, d.id limit 4 * s.n
        ))
        order by j.priority desc, j.due_at, j.id limit s.n for update of j skip locked
    ) d"""

# state is compared again in the update: it is rechecked on the newest version of each row.
_CLAIMED = """
wish as materialized (
    select w.*, case {unless} when held = 0 then "limit" when again then greatest("limit" - held, 0) else 0 end as n
    from asked w
),{aside},{lanes},
share as materialized (  -- lanes take turns, so that a full one does not starve the others
    select l.lanes, ceil((w.n + w.spare)::float8 / greatest(l.lanes, 1))::int as n
    from wish w, (select count(*) as lanes from ({all_lanes}) l) l
),
pool as materialized (
    select x.*, {ours} as ours from (
        select x.*, {open}
            case when k.task is null then (select any_task from wish) else x.task_version <= k.version end as open
        from (
            {sources}
        ) x left join known k on k.task = x.task
    ) x
),
ranked as materialized (
    select id, ours, row_number() over (partition by queue, lane order by priority desc, due_at, id) as place,
        (dense_rank() over (order by queue, lane) + w.first) % greatest(s.lanes, 1) as turn
    from pool cross join wish w cross join share s
),
claimed as (
    update @.jobs j
    set state = 'running', attempt = attempt + 1, revision = revision + 1, claimed_at = t.now, started_at = null,
        progress = null, lease_until = t.now + make_interval(secs => w.lease), lease_token = w.token,
        worker = w.worker, filed = false, parked = false
    from t, wish w
    where j.id = any (array(
        select r.id from ranked r where r.ours and r.place <= (select n from share)
        order by r.place, r.turn limit (select n from wish)
    ))
    and j.state = 'pending'
    returning j.id, j.revision, j.tenant, j.key_scope
),
put_away as (  -- what its task stops is filed, what only its tenant stops is parked
    update @.jobs j set filed = true, parked = j.id = any (array(select id from pool where open and not ours))
    where j.id = any (array(select id from pool where not ours)) and j.state = 'pending' returning j.id
),
let_go as (
    delete from @.keys k using claimed c where k.job = c.id and k.scope = 'pending' and c.key_scope = 'pending'
),
told as (
    insert into @.events (job, revision, at, kind, actor, note, tenant)
    select c.id, c.revision, t.now, 'claimed', w.worker, '', c.tenant from claimed c, t, wish w where w.audit_all
)"""

_SETTLED_ROWS = "select 's' as kind, id::text, now, null::text from t left join settled on true"


def statement(claim: Claim | None, *, settles: bool = True, places: Sequence[Place] = (), aside: bool = True) -> str:
    """The SQL of a turn, with `@` for the schema. What it need not do is left out: it would be planned all the same.

    Without `aside` the claim looks for jobs that nobody put away, and takes none if there are others, or a pause.
    """
    return _statement(claim is not None, claim is None or claim.lanes is None, settles, bool(places), aside)


@cache
def _statement(claims: bool, all_lanes: bool, settles: bool, places: bool, aside: bool) -> str:
    if not claims:
        return f"{unpack(CHANGE)},{SETTLED}\n{_SETTLED_ROWS}"
    settled = (f",{SETTLED}", _SETTLED_ROWS) if settles else ("", "select 's' as kind, null as id, now, null from t")
    by_lane = _BY_PLACE if places else _BY_LANE
    lanes = ["select queue, lane from lanes"]
    if aside:
        lanes += ["select queue, lane from filed", "select queue, lane from parked"]
    claimed = _CLAIMED.format(
        unless="" if aside else "when (select yes from aside) then 0",
        aside=_ASIDE if aside else _NOTHING_ASIDE,
        lanes=_PLACES if places else _LANES_FOUND if all_lanes else _LANES_GIVEN,
        all_lanes=" union ".join(lanes),
        open=f"not {_shut('x', by_tenant=False)} and" if aside else "",
        ours=f"x.open and not {_shut('x', by_tenant=True)}" if aside else "x.open",
        sources=f"{by_lane} union all {_BY_TASK} union all {_BY_TENANT}" if aside else by_lane,
    )
    return f"""{unpack(CHANGE)}{settled[0]},{_ASKED},
{_DOOR},{claimed}
{settled[1]}
union all select 'c', id::text, null, null from claimed
union all select 'b', c.id::text, null, pool.lease_token from pool join c on c.id = pool.id
union all select 'h', held::text, null, null from asked
union all select 'p', count(*)::text, null, null from put_away
union all select 'a', null, null, null from aside where yes
union all select 'm', null, null, null from (select count(*) as n from pool group by queue, lane) m
    having max(n) >= (select n from share)
"""


def parameter(
    changes: Sequence[dict[str, Any]],
    claim: Claim | None,
    now: datetime | None,
    *,
    audit_all: bool = False,
    places: Sequence[Place] = (),
    spare: int = 0,
    again: bool = False,
    first: int = 0,
) -> str:
    """The one parameter of that statement. `again`: this is a further round of a claim that is not yet full.

    Without it a token that holds jobs already gets no more of them: the turn was here before, its answer was lost.
    """
    if claim is None:
        return packed(changes, now)
    wish = dict(  # noqa: C408 - reads like the record that SQL makes of it
        token=claim.token,
        worker=claim.worker,
        lease=claim.lease,
        limit=claim.limit,
        spare=spare,
        queues=list(claim.queues),
        lanes=None if claim.lanes is None else list(claim.lanes),
        known=_known(claim),
        any_task=claim.tasks is None,
        places=[{**place._asdict(), "due_at": stored(place.due_at)} for place in places],
        again=again,
        first=first,
        audit_all=audit_all,
    )
    return packed(changes, now, claim=wish)


def _known(claim: Claim) -> list[dict[str, Any]]:
    """The tasks that the claim says something about: the newest version that it takes of each."""
    names = claim.versions if claim.tasks is None else claim.tasks
    known = {name: claim.versions.get(name, _ANY_VERSION) for name in names} | dict.fromkeys(claim.unless, _NO_VERSION)
    return [{"task": name, "version": version} for name, version in known.items()]


_ANY_VERSION = 2**31 - 1
_NO_VERSION = -(2**31) - 1


class Answer:
    """What the statements of one turn have said so far."""

    def __init__(self) -> None:
        self.settled: set[str] = set()
        self.claimed: set[str] = set()
        self.before: dict[str, str | None] = {}  # the token it had, of a job that this turn meant to change as well
        self.held = 0  # jobs that the token held before the last statement
        self.put_away = 0  # jobs that we may not take, by the last statement
        self.aside = False  # whether it found that there is a pause, or something put away
        self.more = False  # whether the last statement may have left something
        self.took = 0.0  # seconds, for the last statement
        self.knew = False  # whether it went on from known places
        self.now: datetime | None = None

    def understand(self, rows: Sequence[Row]) -> None:
        self.put_away, self.aside, self.more = 0, False, False
        for kind, value, now, token in rows:
            match kind:
                case "s":
                    self.now = now.astimezone(UTC)
                    if value is not None:
                        self.settled.add(value)
                case "c":
                    self.claimed.add(value)
                case "b":
                    self.before[value] = token
                case "h":
                    self.held = int(value)
                case "p":
                    self.put_away = int(value)
                case "a":
                    self.aside = True
                case _:
                    self.more = True
        self.more = self.more or self.put_away > 0
