"""The statements that write jobs, as scripts: each yields (sql, its one text parameter) and is sent the rows.

The engine runs them on its own connections; `tx=` runs the very same ones inside the caller's transaction. `@` stands
for the schema. No statement here waits for a job's row lock: what somebody's open transaction holds is BUSY.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from treadle.engines.fence import fits, judge
from treadle.engines.postgres.rows import (
    CHANGE,
    EDIT,
    FENCE,
    FENCE_COLUMNS,
    JOB,
    JSON,
    change_record,
    edit_record,
    fence_record,
    job_from,
    job_record,
    moment,
    packed,
    record,
    stored,
    unpack,
)
from treadle.engines.rows import COLUMNS, EDITED, NEW
from treadle.engines.scripts import Script
from treadle.engines.values import Receipt, Ruling, Verdict
from treadle.errors import EngineUnavailable
from treadle.model import Change, EventKind, Fence, Job

_IDS = "(select value::uuid as id from json_array_elements_text($1::text::json))"

# Two statements would see two snapshots, and a job on its way from one table to the other in neither or in both; a
# union in one statement sees it exactly once.
READ = f"""
with wanted as materialized {_IDS}
select {JOB} from @.jobs j where j.id in (select id from wanted)
union all
select {JOB} from @.finished f where f.id in (select id from wanted)
"""

# ------------------------------------------------------------------------------------------- enqueue


def _as(prefix: str, names: Sequence[str]) -> str:
    return ", ".join(f"{prefix}.{name}::json" if name in JSON else f"{prefix}.{name}" for name in names)


# What is there already is stepped over rather than run into: `on conflict` would wait for whoever has it locked.
# An id that ever existed is not taken again: a repeated enqueue must not run a finished job twice. (The trigger
# guard_jobs looks again, for a job that finishes while this runs.) A notification is a hint, sent now and then.
_REST = tuple(name for name in NEW if name not in ("created_at", "due_at"))
INSERT = f"""
{unpack(NEW)},
made as (
    insert into @.jobs (created_at, due_at, {", ".join(_REST)})
    select t.now, case when c.due_at > c.created_at then c.due_at else t.now end, {_as("c", _REST)}
    from c cross join t
    where not exists (select 1 from @.finished f where f.id = c.id)
    and not exists (select 1 from @.jobs j where j.id = c.id)
    order by c.id
    on conflict (id) do nothing
    returning id, created_at, due_at, queue
)
select id::text, created_at, due_at,
    case when t.notify is not null and due_at <= created_at then pg_notify(t.notify, queue)::text end
from made cross join t
"""

KNOWN = f"""
with wanted as materialized {_IDS}
select j.id::text from @.jobs j where j.id in (select id from wanted)
union all
select f.id::text from @.finished f where f.id in (select id from wanted)
"""

_KEY = ("tenant", "task", "key", "job", "scope", "until", "place")

# A window that is over, or whose job is gone, keeps nobody away.
FREE_DEAD_KEYS = f"""
{unpack(_KEY)}
delete from @.keys k using c, t
where k.tenant = c.tenant and k.task = c.task and k.key = c.key
and (
    k.until <= t.now
    or k.scope = 'window'
        and not exists (select 1 from @.jobs j where j.id = k.job)
        and not exists (select 1 from @.finished f where f.id = k.job)
)
"""

TAKE_KEYS = f"""
{unpack(_KEY)}
insert into @.keys (tenant, task, key, job, scope, until)
select tenant, task, key, job, scope, until from c
where not exists (select 1 from @.keys k where k.tenant = c.tenant and k.task = c.task and k.key = c.key)
order by place
on conflict do nothing
returning job::text
"""

HOLDERS = f"""
{unpack(_KEY)}
select c.job::text, k.job::text
from c join @.keys k on k.tenant = c.tenant and k.task = c.task and k.key = c.key
"""

NOTE_NEW = f"""
{unpack(("job", "actor", "tenant"))}
insert into @.events (job, revision, at, kind, actor, note, tenant)
select c.job, 0, t.now, 'enqueued', c.actor, '', c.tenant from c cross join t
"""

GIVE_BACK = f"delete from @.keys where job in {_IDS}"

ROUNDS = 10  # tries at a key that others keep taking and letting go


def enqueue(
    jobs: Sequence[Job], now: datetime | None, *, audit_all: bool, notify: str | None = None, walled: bool = False
) -> Script[list[Receipt]]:
    """Store new jobs; who has the id or the key already answers with the job that was first.

    `walled`: there may be jobs that the caller cannot see.
    """
    fresh: dict[str, Job] = {}
    for job in jobs:
        fresh.setdefault(job.id, job)
    keyed = [job for job in fresh.values() if job.key is not None]
    known = {row[0] for row in (yield KNOWN, json.dumps([job.id for job in keyed]))} if keyed else set()
    wanted = sorted((job for job in keyed if job.id not in known), key=lambda job: (job.tenant, job.task, job.key))
    first = yield from _take_keys(wanted, now)  # id asked for -> id of the job that was there before
    new = [job for job in fresh.values() if job.id not in first]
    created: dict[str, Job] = {}
    if new:
        rows = yield INSERT, packed((job_record(job, NEW) for job in new), now, notify=notify)
        created = {id_: fresh[id_].evolve(created_at=moment(at), due_at=moment(due)) for id_, at, due, _ in rows}
    lost = [job.id for job in wanted if job.id not in first and job.id not in created]
    if lost and walled:  # another tenant's: the key that we took for it goes back
        yield GIVE_BACK, json.dumps(lost)
    elif lost:
        # It came and went since we looked, and would never let go of the key that we took for it just now.
        raise EngineUnavailable("a job of this id ended just now; repeating is safe")
    if audit_all and created:
        lines = [{"job": id_, "actor": "enqueue", "tenant": job.tenant} for id_, job in created.items()]
        yield NOTE_NEW, packed(lines, now)
    first.update({job.id: job.id for job in new if job.id not in created})
    there = {row[0]: job_from(row) for row in (yield READ, json.dumps(list(first.values())))} if first else {}
    receipts = []
    for job in jobs:
        if job.id in created:
            receipts.append(Receipt(created.pop(job.id), created=True))  # a second request of this id finds the first
        else:
            found = there.get(first.get(job.id, job.id))
            # Neither stored nor to be seen: it is another tenant's. (Without walls it was pruned just now.)
            hidden = walled and found is None and job.id in first
            why = "this id cannot be used; leave it out and treadle makes one" if hidden else ""
            receipts.append(Receipt(found or fresh[job.id], created=False, refused=why))
    return receipts


def _take_keys(jobs: Sequence[Job], now: datetime | None) -> Script[dict[str, str]]:
    """Take the keys of these jobs, in an order that all callers share; the first holder for those who came late."""
    wanted = [{**_key_record(job), "place": place} for place, job in enumerate(jobs)]
    first: dict[str, str] = {}
    for _ in range(ROUNDS):
        if not wanted:
            return first
        yield FREE_DEAD_KEYS, packed(wanted, now)
        won = {row[0] for row in (yield TAKE_KEYS, packed(wanted, now))}
        wanted = [row for row in wanted if row["job"] not in won]
        if wanted:
            first.update(dict((yield HOLDERS, packed(wanted, now))))
            wanted = [row for row in wanted if row["job"] not in first]  # let go just now: try again
    raise EngineUnavailable("a key keeps changing hands; repeating is safe")


def _key_record(job: Job) -> dict[str, Any]:
    return record(_KEY[:-1], (job.tenant, job.task, job.key, job.id, job.key_scope, stored(job.key_until)))


# -------------------------------------------------------------------------------------------- settle

_FROM_CHANGE = frozenset(CHANGE) & frozenset(COLUMNS) - {"id", "due_at"}
_FINISHED = ", ".join(
    (f"c.{name}::json as {name}" if name in JSON else f"c.{name}")
    if name in _FROM_CHANGE
    else "null::timestamptz as lease_until"
    if name == "lease_until"
    else f"j.{name}"
    for name in COLUMNS
)

SETTLED = f"""
mine as materialized (
    select j.id from c join @.jobs j on {FENCE} for update of j skip locked
),
gone as (
    delete from @.jobs j using c
    where j.id = c.id and c.state not in ('pending', 'running') and j.id = any (array(select id from mine))
    returning {_FINISHED}
),
kept as (insert into @.finished ({", ".join(COLUMNS)}) select * from gone),
back as (
    update @.jobs j
    set state = 'pending', due_at = c.due_at, error = c.error::json, failures = c.failures, crashes = c.crashes,
        started_at = c.started_at, worker = null, lease_until = null, lease_token = c.lease_token,
        progress = c.progress::json, cost_micros = c.cost_micros, revision = c.revision
    from c where j.id = c.id and c.state = 'pending' and j.id = any (array(select id from mine))
    returning j.id, j.tenant
),
settled as materialized (select id, tenant from gone union all select id, tenant from back),
freed as (delete from @.keys k using c join settled s on s.id = c.id
    where k.job = c.id and c.frees and k.scope in ('pending', 'active')),
noted as (
    insert into @.events (job, revision, at, kind, actor, note, tenant)
    select c.id, c.revision, c.at, c.kind, c.actor, c.note, s.tenant
    from c join settled s on s.id = c.id where c.kind is not null
)"""
"""Changes that end an attempt, finish a job or put it back: `settled` lists the ids written. After `unpack(CHANGE)`."""

SETTLE = f"{unpack(CHANGE)},{SETTLED}\nselect id::text from settled"

# Holds the row for the rest of the transaction, if the change would be written.
LOCK = f"""
{unpack(FENCE_COLUMNS)},
live as (select j.id from c join @.jobs j on {FENCE} for update of j skip locked),
over as (select j.id from c join @.finished j on {FENCE} for update of j skip locked)
select id::text from live union all select id::text from over
"""

# The flag never falls and meets no fence but the state: whoever holds the job, it is told.
ASK = f"""
{unpack(EDIT)},
mine as materialized (
    select j.id from c join @.jobs j on j.id = c.id where j.state = 'running' for update of j skip locked
),
asked as (
    update @.jobs j set cancel_requested = true, revision = revision + 1
    where j.id = any (array(select id from mine)) returning j.id, j.revision, j.tenant
),
noted as (
    insert into @.events (job, revision, at, kind, actor, note, tenant)
    select c.id, a.revision, c.at, c.kind, c.actor, c.note, a.tenant
    from c join asked a on a.id = c.id where c.kind is not null
)
select id::text from asked
"""

_NOTED = """
noted as (
    insert into @.events (job, revision, at, kind, actor, note, tenant)
    select c.id, c.revision, c.at, c.kind, c.actor, c.note, c.tenant
    from c join written w on w.id = c.id where c.kind is not null
)
select id::text from written
"""

REPLACE = f"""
{unpack(EDIT)},
mine as materialized (select j.id from c join @.jobs j on {FENCE} for update of j skip locked),
written as (
    update @.jobs j set filed = false, parked = false, {", ".join(f"{name} = {_as('c', [name])}" for name in EDITED)}
    from c where j.id = c.id and j.id = any (array(select id from mine))
    returning j.id
),{_NOTED}"""

REVIVE = f"""
{unpack(EDIT)},
mine as materialized (select j.id from c join @.finished j on {FENCE} for update of j skip locked),
gone as (delete from @.finished where id = any (array(select id from mine)) returning id, payload),
written as (
    insert into @.jobs ({", ".join(COLUMNS)})
    select {", ".join("gone.payload" if name == "payload" else _as("c", [name]) for name in COLUMNS)}
    from c join gone on gone.id = c.id
    returning id
),{_NOTED}"""


def plain(change: Change) -> bool:
    """Whether SETTLE writes this change, many at a time."""
    return (
        change.fence is not Fence.RUNNING
        and not change.before.state.final
        and change.kind is not EventKind.REPLACED
        and not change.takes_key
    )


def settle_all(
    changes: Sequence[Change], now: datetime | None, *, audit_all: bool, notify: str | None = None
) -> Script[set[str]]:
    """Write plain changes and what follows them, in one transaction; the ids of those that were written."""
    rows = yield SETTLE, packed((change_record(change, audit_all=audit_all) for change in changes), now)
    settled = {row[0] for row in rows}
    follows = [change.follow for change in changes if change.follow is not None and change.before.id in settled]
    if follows:
        yield from enqueue(follows, now, audit_all=audit_all, notify=notify)
    return settled


def settle(change: Change, now: datetime | None, *, audit_all: bool) -> Script[Verdict]:
    """Write one change behind its fence, with its key, its audit line and its follow-up; for one transaction."""
    job = change.after
    if change.takes_key:
        if not (yield LOCK, packed([fence_record(change)], now)):
            return (yield from _unwritten(change, now))
        holder = (yield from _take_keys([job], now)).get(job.id, job.id)
        if holder != job.id:
            return Verdict(Ruling.REFUSED, holder=holder, why=f"key {job.key!r} is taken")
    sql, values = _statement(change, audit_all)
    if (yield sql, packed([values], now)):
        if change.follow is not None:
            yield from enqueue([change.follow], now, audit_all=audit_all)
        return Verdict(Ruling.APPLIED)
    return (yield from _unwritten(change, now))


def verdict(change: Change, current: Job | None, now: datetime | None) -> Verdict:
    """Why a change was not written, from the job as it is now."""
    if current is not None and fits(change, current, now or change.at):
        return Verdict(Ruling.BUSY, current)  # only somebody's lock can have kept us away
    return judge(change, current)


def _unwritten(change: Change, now: datetime | None) -> Script[Verdict]:
    found = yield READ, json.dumps([change.before.id])
    return verdict(change, job_from(found[0]) if found else None, now)


def _statement(change: Change, audit_all: bool) -> tuple[str, dict[str, Any]]:
    if change.fence is Fence.RUNNING:
        return ASK, edit_record(change, audit_all=audit_all)
    if change.before.state.final and not change.after.state.final:
        return REVIVE, edit_record(change, audit_all=audit_all)
    if change.kind is EventKind.REPLACED:
        return REPLACE, edit_record(change, audit_all=audit_all)
    return SETTLE, change_record(change, audit_all=audit_all)
