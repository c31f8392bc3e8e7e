"""The statements that write jobs, as scripts: each yields (sql, its one text parameter) and is sent the rows.

The engine runs them on its own connection; `tx=` runs the very same ones inside the caller's transaction, so there
is one way to enqueue and one way to settle. The parameter is JSON, unpacked in SQL, so the caller's driver and its
parameter style never matter.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from treadle.engines.fence import judge, stamped
from treadle.engines.rows import COLUMNS, EDITED, NEW, Row, fence_of, small
from treadle.engines.scripts import Script
from treadle.engines.sqlite.rows import JOB, job_from, micros, row_from
from treadle.engines.values import Receipt, Ruling, Verdict
from treadle.model import Change, EventKind, Fence, Job, holds_nul


def _unpack(names: Iterable[str]) -> str:
    """`with c as (…)`: the parameter, an array of arrays, as a relation with these columns."""
    columns = ", ".join(f"value ->> {place} as {name}" for place, name in enumerate(names))
    return f"with c as materialized (select {columns} from json_each(?))"  # noqa: S608 - names are constants


_IDS = "(select value from json_each(?))"
_WANTED = f"with wanted as materialized {_IDS}"

READ = f"""
{_WANTED}
select {JOB} from treadle_jobs where id in wanted
union all
select {JOB} from treadle_finished where id in wanted
"""  # noqa: S608

# ---------------------------------------------------------------------------------------------- enqueue

# An id that ever existed is not taken again: a repeated enqueue must not run a finished job twice.
INSERT = f"""
{_unpack(NEW)}
insert into treadle_jobs
    ({", ".join(NEW)}, state, attempt, failures, crashes, cancel_requested, cost_micros, revision)
select {", ".join(NEW)}, 'pending', 0, 0, 0, 0, 0, 0 from c
where not exists (select 1 from treadle_finished f where f.id = c.id)
on conflict (id) do nothing
returning id
"""  # noqa: S608

KNOWN = f"""
{_WANTED}
select id from treadle_jobs where id in wanted
union all
select id from treadle_finished where id in wanted
"""  # noqa: S608

_KEY = ("tenant", "task", "key", "job", "scope", "until", "now")

# A window that is over, or whose job is gone, keeps nobody away.
FREE_DEAD_KEYS = f"""
{_unpack(_KEY)}
delete from treadle_keys
where (tenant, task, key) in (select tenant, task, key from c)
and (
    until <= (select min(now) from c)
    or scope = 'window'
        and not exists (select 1 from treadle_jobs j where j.id = treadle_keys.job)
        and not exists (select 1 from treadle_finished f where f.id = treadle_keys.job)
)
"""  # noqa: S608

TAKE_KEYS = f"""
{_unpack(_KEY)}
insert into treadle_keys (tenant, task, key, job, scope, until)
select tenant, task, key, job, scope, until from c where true
on conflict do nothing
returning job
"""  # noqa: S608

HOLDERS = f"""
{_unpack(_KEY)}
select c.job, k.job from c cross join treadle_keys k on (k.tenant, k.task, k.key) = (c.tenant, c.task, c.key)
"""  # noqa: S608

RELEASE_KEYS = f"delete from treadle_keys where job in {_IDS} and scope in ('pending', 'active')"  # noqa: S608


def enqueue(jobs: Sequence[Job], now: datetime, *, audit_all: bool) -> Script[list[Receipt]]:
    """Store new jobs; who has the id or the key already answers with the job that was first."""
    fresh: dict[str, Job] = {}
    for job in jobs:
        fresh.setdefault(job.id, stamped(job, now))
    first: dict[str, str] = {}  # id asked for -> id of the job that was there before
    keyed = [job for job in fresh.values() if job.key is not None]
    if keyed:
        known = {row[0] for row in (yield KNOWN, _text([job.id for job in keyed]))}
        wanted = [_key_row(job, now) for job in keyed if job.id not in known]
        yield FREE_DEAD_KEYS, _text(wanted)
        won = {row[0] for row in (yield TAKE_KEYS, _text(wanted))}
        losers = [row for row in wanted if row[3] not in won]
        if losers:
            first.update((yield HOLDERS, _text(losers)))
    new = [job for job in fresh.values() if job.id not in first]
    created = {row[0] for row in (yield INSERT, _text([row_from(job)[: len(NEW)] for job in new]))}
    if audit_all:
        yield (
            EVENTS,
            _text([(id_, 0, micros(now), EventKind.ENQUEUED, "enqueue", "", fresh[id_].tenant) for id_ in created]),
        )
    first.update({job.id: job.id for job in new if job.id not in created})
    there = {row[0]: job_from(row) for row in (yield READ, _text(list(first.values())))} if first else {}
    receipts = []
    for job in jobs:
        if job.id in created:
            created.discard(job.id)  # a second request with the same id finds the first
            receipts.append(Receipt(fresh[job.id], created=True))
        else:
            receipts.append(Receipt(there.get(first.get(job.id, job.id), fresh[job.id]), created=False))
    return receipts


def _key_row(job: Job, now: datetime) -> Row:
    return (job.tenant, job.task, job.key, job.id, job.key_scope, micros(job.key_until), micros(now))


# ----------------------------------------------------------------------------------------------- settle

_CHANGE = (
    "id", "was", "was_revision", "was_token", "was_lease", "now", "state", "reason", "result", "error", "failures",
    "crashes", "started_at", "finished_at", "lease_token", "progress", "cost_micros", "revision", "due_at",
)  # fmt: skip

# The whole fence, in one place. Without the token a zombie settles a job that was claimed again; without the
# revision a retry buries a cancel request; without the lease a reaper takes a job whose lease was renewed since
# it looked.
_FENCE = """
j.state = c.was and j.revision = c.was_revision
and (c.was_token is null or j.lease_token = c.was_token)
and (c.was_lease is null or j.lease_until = c.was_lease and j.lease_until <= c.now)
"""

# Whether a change would be written, were its key free.
FITS = f"""
{_unpack(_CHANGE[:6])}
select j.id from c cross join treadle_jobs j on j.id = c.id where {_FENCE}
union all
select j.id from c cross join treadle_finished j on j.id = c.id where {_FENCE}
"""  # noqa: S608

_FROM_CHANGE = frozenset(_CHANGE) & frozenset(COLUMNS) - {"id", "due_at"}
_FINISHED = ", ".join(
    f"c.{name}" if name in _FROM_CHANGE else "null" if name == "lease_until" else f"j.{name}" for name in COLUMNS
)

FINISH = f"""
{_unpack(_CHANGE)}
insert into treadle_finished ({JOB})
select {_FINISHED} from c cross join treadle_jobs j on j.id = c.id where {_FENCE}
returning id
"""  # noqa: S608

DELETE_JOBS = f"delete from treadle_jobs where id in {_IDS}"  # noqa: S608

REQUEUE = f"""
{_unpack(_CHANGE)}
update treadle_jobs as j
set state = 'pending', due_at = c.due_at, error = c.error, failures = c.failures, crashes = c.crashes,
    started_at = c.started_at, worker = null, lease_until = null, lease_token = c.lease_token,
    progress = c.progress, cost_micros = c.cost_micros, revision = c.revision
from c where j.id = c.id and {_FENCE}
returning id
"""  # noqa: S608

# The flag never falls and meets no fence but the state: whoever holds the job, it is told.
ASK = f"""
update treadle_jobs set cancel_requested = 1, revision = revision + 1
where id in {_IDS} and state = 'running'
returning id, revision
"""  # noqa: S608

_EDIT = ("id", "was", "was_revision", "was_token", "was_lease", "now", *COLUMNS[1:])
REPLACE = f"""
{_unpack(_EDIT)}
update treadle_jobs as j set filed = 0, {", ".join(f"{name} = c.{name}" for name in EDITED)}
from c where j.id = c.id and {_FENCE}
returning id
"""  # noqa: S608

REVIVE = f"""
{_unpack(_EDIT)}
insert into treadle_jobs ({JOB})
select {", ".join("j.payload" if name == "payload" else f"c.{name}" for name in COLUMNS)}
from c cross join treadle_finished j on j.id = c.id where {_FENCE}
returning id
"""  # noqa: S608

FILE = f"update treadle_jobs set filed = 1 where id in {_IDS} and state = 'pending'"  # noqa: S608
PARK = f"update treadle_jobs set filed = 2 where id in {_IDS} and state = 'pending'"  # noqa: S608

DELETE_FINISHED = f"delete from treadle_finished where id in {_IDS}"  # noqa: S608

EVENTS = f"""
{_unpack(("job", "revision", "at", "kind", "actor", "note", "tenant"))}
insert into treadle_events (job, revision, at, kind, actor, note, tenant)
select job, revision, at, kind, actor, note, tenant from c
"""  # noqa: S608


def settle(changes: Sequence[Change], now: datetime, *, audit_all: bool) -> Script[list[Verdict]]:
    """Write these changes, each behind its fence, with its key and its audit line; a verdict each, in order."""
    verdicts: dict[str, Verdict] = {}
    ready = [change for change in changes if not change.takes_key]
    yield from _write(ready, now, verdicts, audit_all)
    for change in changes:
        if change.takes_key:
            job = change.after
            yield FREE_DEAD_KEYS, _text([_key_row(job, now)])
            holders = yield HOLDERS, _text([_key_row(job, now)])
            taken = bool(holders) and holders[0][1] != job.id
            if taken and (yield FITS, _text([_fence_row(change, now)])):
                verdicts[job.id] = Verdict(Ruling.REFUSED, holder=holders[0][1], why=f"key {job.key!r} is taken")
            elif taken:  # somebody else's job by now, whoever has the key
                verdicts[job.id] = judge(change, _only((yield READ, _text([job.id]))))
            else:
                yield from _write([change], now, verdicts, audit_all)
                if verdicts[job.id].ruling is Ruling.APPLIED:
                    yield TAKE_KEYS, _text([_key_row(job, now)])
    return [verdicts[change.before.id] for change in changes]


def _only(rows: list[Row]) -> Job | None:
    return job_from(rows[0]) if rows else None


def _write(changes: Sequence[Change], now: datetime, verdicts: dict[str, Verdict], audit_all: bool) -> Script[None]:
    groups: dict[str, list[Change]] = {}
    for change in changes:
        groups.setdefault(_statement(change), []).append(change)
    written: dict[str, int] = {}  # id -> revision
    for sql, group in groups.items():
        rows: Sequence[Any]
        if sql is ASK:
            rows = [change.before.id for change in group]
        elif sql in (FINISH, REQUEUE):
            rows = [_change_row(change, now) for change in group]
        else:
            rows = [(*_fence_row(change, now), *row_from(change.after)[1:]) for change in group]
        done = yield sql, _text(rows)
        if sql is ASK:
            written.update(done)
        else:
            ids = {row[0] for row in done}
            written.update({change.before.id: change.after.revision for change in group if change.before.id in ids})
            if ids and sql in (FINISH, REVIVE):
                yield DELETE_JOBS if sql is FINISH else DELETE_FINISHED, _text(list(ids))
    freed = [change.before.id for change in changes if change.before.id in written and change.frees_key]
    if freed:
        yield RELEASE_KEYS, _text(freed)
    events = [
        (c.before.id, written[c.before.id], micros(c.at), c.kind, c.actor, c.note, c.before.tenant)
        for c in changes
        if c.before.id in written and (audit_all or c.always_audited or c.kind.noteworthy)
    ]
    if events:
        yield EVENTS, _text(events)
    follows = [c.follow for c in changes if c.before.id in written and c.follow is not None]
    if follows:
        yield from enqueue(follows, now, audit_all=audit_all)
    verdicts.update(dict.fromkeys(written, Verdict(Ruling.APPLIED)))
    unwritten = [change for change in changes if change.before.id not in written]
    if unwritten:
        rows = yield READ, _text([change.before.id for change in unwritten])
        current = {row[0]: job_from(row) for row in rows}
        verdicts.update({c.before.id: judge(c, current.get(c.before.id)) for c in unwritten})


def _statement(change: Change) -> str:
    if change.fence is Fence.RUNNING:
        return ASK
    if change.after.state.final:
        return FINISH
    if change.before.state.final:
        return REVIVE
    return REPLACE if change.kind is EventKind.REPLACED else REQUEUE


def _fence_row(change: Change, now: datetime) -> Row:
    return (*fence_of(change, micros), micros(now))


def _change_row(change: Change, now: datetime) -> Row:
    after = change.after
    return (
        *_fence_row(change, now),
        after.state,
        after.reason,
        after.result_json,
        small(after.error),
        after.failures,
        after.crashes,
        micros(after.started_at),
        micros(after.finished_at),
        after.lease_token,
        small(after.progress),
        after.cost_micros,
        after.revision,
        micros(after.due_at),
    )


def _text(value: object) -> str:
    """The parameter of a statement; ValueError for what SQLite would cut short or not take as JSON."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if holds_nul(text):
        raise ValueError("holds a NUL character, which would cut the text short")
    return text
