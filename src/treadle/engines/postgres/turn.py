"""The one statement of a turn: settle what has ended, then claim.

It answers with ids only, a few kilobytes, because its locks last until the answer has been sent: a client that is
frozen while its socket is full must not hold five hundred uncommitted claims. The jobs are read after the commit.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple

from treadle.engines.base import Claim
from treadle.engines.postgres.rows import CHANGE, packed, stored, unpack
from treadle.engines.postgres.scripts import SETTLED
from treadle.engines.rows import Row
from treadle.model import Job

SPARE = 1000  # jobs of strangers that one statement may file away beside what it claims


class Place(NamedTuple):
    """Where a claim goes on: what comes before in this lane and priority was taken."""

    queue: str
    lane: str
    priority: int
    due_at: datetime
    id: str


class Places:
    """The places where claims go on, while that is worth it.

    A long transaction keeps the index entries of all that was claimed since it began, and every claim walks over them
    to the first job that is still there. So after a claim that was slow, the next ones go on where it ended; what they
    cannot see (an earlier or more urgent job) is seen by the full scan that follows within a second.
    """

    SLOW = 0.05  # seconds
    FULL_SCAN = 1.0  # seconds

    def __init__(self) -> None:
        self._shape: object = None
        self._until = 0.0
        self._places: dict[tuple[str, str, int], Place] = {}

    def of(self, claim: Claim, now: float) -> list[Place]:
        """Where this claim goes on; nothing: it must look everywhere. `now` is monotonic."""
        return list(self._places.values()) if self._shape == _shape(claim) and now < self._until else []

    def learn(self, claim: Claim, jobs: Sequence[Job], *, took: float, known: bool, now: float) -> None:
        """A claim gave these jobs; `known`: it went on from a known place."""
        if not known:
            if took < self.SLOW or len(jobs) < claim.limit:
                self._until = 0.0
                return
            self._shape, self._until, self._places = _shape(claim), now + self.FULL_SCAN, {}
        places = dict(self._places)  # another thread may be reading the old ones
        for job in jobs:
            place = Place(job.queue, job.lane, job.priority, job.due_at, job.id)
            key = (job.queue, job.lane, job.priority)
            places[key] = max(place, places.get(key, place))
        self._places = places


def _shape(claim: Claim) -> object:
    return tuple(claim.queues), claim.lanes, claim.tasks


_PENDING = "j.state = 'pending' and not j.filed"
_FILED = "j.state = 'pending' and j.filed"

# No limit at all, but the planner takes it for a tenth. Without it a recursion within a recursion looks so costly that
# a server with jit compiles the statement for seconds.
_FEW = "limit (select 1000000000 from p)"

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
            select j.id, j.priority, j.due_at, j.task, j.task_version, j.lease_token from @.jobs j
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
        select j.id, j.priority, j.due_at, j.task, j.task_version, j.lease_token from @.jobs j
        where {_PENDING} and j.queue = l.queue and j.lane = l.lane and j.priority = l.priority
        and (j.due_at, j.id) > (l.due_at, l.id)
        and j.due_at <= (select now from t) and (j.expires_at is null or j.expires_at > (select now from t))
        order by j.due_at, j.id limit s.n for update skip locked
    ) d"""

_PLACES = f"""
lanes as materialized (
    select l.* from asked, json_to_recordset(places) as l(
        queue text, lane text, priority int, due_at timestamptz, id uuid) {_FEW}
)"""

# Jobs that some worker met and did not know are found by lane, task and version, one step for each.
_FILED_STEPS = f"""
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
    where (w.lanes is null or s.lane = any (w.lanes))
    and case when k.task is null then w.any_task else s.task_version <= k.version end
)"""

_BY_TASK = f"""
    select f.queue, f.lane, d.*
    from filed f cross join share s cross join lateral (
        select j.id, j.priority, j.due_at, j.task, j.task_version, j.lease_token from @.jobs j
        where {_FILED} and j.queue = f.queue and j.lane = f.lane and j.task = f.task
        and j.task_version = f.task_version
        and j.due_at <= (select now from t) and (j.expires_at is null or j.expires_at > (select now from t))
        order by j.priority desc, j.due_at, j.id limit s.n for update skip locked
    ) d"""

# state is compared again in the update: it is rechecked on the newest version of each row.
_CLAIMED = f"""
wish as materialized (
    select w.*, case when held = 0 then "limit" when again then greatest("limit" - held, 0) else 0 end as n
    from asked w
),
queues as materialized (select distinct unnest(queues) as queue from asked {_FEW}),
known as materialized (select k.* from asked, json_to_recordset(known) as k(task text, version int)),
{{lanes}},{_FILED_STEPS},
share as materialized (  -- lanes take turns, so that a full one does not starve the others
    select l.lanes, ceil((w.n + w.spare)::float8 / greatest(l.lanes, 1))::int as n
    from wish w, (select count(*) as lanes from (select queue, lane from lanes union select queue, lane from filed) l) l
),
pool as materialized (
    select x.*, case when k.task is null then (select any_task from wish) else x.task_version <= k.version end as ours
    from (
        {{by_lane}} union all {_BY_TASK}
    ) x left join known k on k.task = x.task
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
        worker = w.worker, filed = false
    from t, wish w
    where j.id = any (array(
        select r.id from ranked r where r.ours and r.place <= (select n from share)
        order by r.place, r.turn limit (select n from wish)
    ))
    and j.state = 'pending'
    returning j.id, j.revision, j.tenant, j.key_scope
),
strangers as (
    update @.jobs j set filed = true
    where j.id = any (array(select id from pool where not ours)) and j.state = 'pending' returning j.id
),
let_go as (
    delete from @.keys k using claimed c where k.job = c.id and k.scope = 'pending' and c.key_scope = 'pending'
),
told as (
    insert into @.events (job, revision, at, what, actor, note, tenant)
    select c.id, c.revision, t.now, 'claimed', w.worker, '', c.tenant from claimed c, t, wish w where w.everything
)"""

_ASKED = """
asked as materialized (
    select w.*, @.holding(w.token) as held from p cross join lateral json_to_record(p.claim) as w(
        token text, worker text, lease float8, "limit" int, spare int, queues text[], lanes text[], known json,
        any_task boolean, places json, again boolean, first bigint, everything boolean)
)"""

_SETTLED_ROWS = "select 's' as kind, id::text, now, null::text from t left join settled on true"


def statement(claim: Claim | None, *, settles: bool = True, places: Sequence[Place] = ()) -> str:
    """The SQL of a turn, with `@` for the schema. What it need not do is left out: it would be planned all the same."""
    return _statement(claim is not None, claim is None or claim.lanes is None, settles, bool(places))


@cache
def _statement(claims: bool, all_lanes: bool, settles: bool, places: bool) -> str:
    if not claims:
        return f"{unpack(CHANGE)},{SETTLED}\n{_SETTLED_ROWS}"
    settled = (f",{SETTLED}", _SETTLED_ROWS) if settles else ("", "select 's' as kind, null as id, now, null from t")
    if places:
        claimed = _CLAIMED.format(lanes=_PLACES, by_lane=_BY_PLACE)
    else:
        claimed = _CLAIMED.format(lanes=_LANES_FOUND if all_lanes else _LANES_GIVEN, by_lane=_BY_LANE)
    return f"""{unpack(CHANGE)}{settled[0]},{_ASKED},{claimed}
{settled[1]}
union all select 'c', id::text, null, null from claimed
union all select 'b', c.id::text, null, pool.lease_token from pool join c on c.id = pool.id
union all select 'h', held::text, null, null from asked
union all select 'f', count(*)::text, null, null from strangers
union all select 'm', null, null, null from (select count(*) as n from pool group by queue, lane) m
    having max(n) >= (select n from share)
"""


def parameter(
    changes: Sequence[dict[str, Any]],
    claim: Claim | None,
    now: datetime | None,
    *,
    everything: bool = False,
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
        known=_known(claim.tasks, claim.versions),
        any_task=claim.tasks is None,
        places=[{**place._asdict(), "due_at": stored(place.due_at)} for place in places],
        again=again,
        first=first,
        everything=everything,
    )
    return packed(changes, now, claim=wish)


def _known(tasks: Sequence[str] | None, versions: Mapping[str, int]) -> list[dict[str, Any]]:
    names = versions if tasks is None else dict.fromkeys(tasks)
    return [{"task": name, "version": versions.get(name, 2**31 - 1)} for name in names]


class Answer:
    """What the statements of one turn have said so far."""

    def __init__(self) -> None:
        self.settled: set[str] = set()
        self.claimed: set[str] = set()
        self.before: dict[str, str | None] = {}  # the token it had, of a job that this turn meant to change as well
        self.held = 0  # jobs that the token held before the last statement
        self.filed = 0  # jobs that we do not know, put aside by the last statement
        self.more = False  # whether the last statement may have left something
        self.took = 0.0  # seconds, for the last statement
        self.knew = False  # whether it went on from known places
        self.now: datetime | None = None

    def understand(self, rows: Sequence[Row]) -> None:
        self.filed, self.more = 0, False
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
                case "f":
                    self.filed = int(value)
                case _:
                    self.more = True
        self.more = self.more or self.filed > 0
