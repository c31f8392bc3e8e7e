"""Writing changes behind their fence: ends of attempts many at a time, what operators do one at a time.

No statement here waits for the row lock of a job: a job that another open transaction has locked is BUSY.
"""

import json
from collections.abc import Mapping, Sequence, Set
from datetime import datetime
from typing import Any

from treadle.engines.batches import write_halved
from treadle.engines.fence import fits, judge
from treadle.engines.postgres import queries
from treadle.engines.postgres.connection import WRITE_ERRORS, Connection, is_locked, refusal
from treadle.engines.postgres.enqueue import insert_jobs, selected, take_keys
from treadle.engines.postgres.queries import READ
from treadle.engines.postgres.rows import (
    CHANGE,
    EDIT,
    FENCE,
    FENCE_COLUMNS,
    JSON,
    change_record,
    edit_record,
    fence_record,
    job_from,
    listed,
    packed,
    unpack,
    without_comments,
)
from treadle.engines.postgres.session import LOCK_TIMEOUT, PostgresStore
from treadle.engines.rows import COLUMNS, EDITED
from treadle.engines.scripts import Script
from treadle.engines.values import Ruling, Verdict
from treadle.model import Change, Job, State
from treadle.model.change import Write

# ---------------------------------------------------------------------------------------- the statements

_FROM_CHANGE = frozenset(CHANGE) & frozenset(COLUMNS) - {"id", "due_at"}


def _finished(name: str) -> str:
    """A column of a finished job, from the change `c` or from the row `j`."""
    if name == "finished_at":  # the clock that gave started_at may have been ahead: an end is never before its start
        return "greatest(c.finished_at, c.started_at) as finished_at"
    if name == "lease_until":
        return "null::timestamptz as lease_until"
    if name not in _FROM_CHANGE:
        return f"j.{name}"
    return f"c.{name}::json as {name}" if name in JSON else f"c.{name}"


# The steps that write plain changes, after unpack(CHANGE); a turn that claims has them too (sql/turn.sql).
SETTLED = f"""
-- Lock the rows whose fence holds: the state, the revision and, if the change names them, token and lease. A row
-- that another open transaction holds is skipped, so that one locked job does not hold up the others.
mine as materialized (
    select j.id from c join @.jobs j on {FENCE}
    for update of j skip locked
),

-- A job that has ended moves to the finished ones.
gone as (
    delete from @.jobs j using c
    where j.id = c.id and c.state not in ('pending', 'running') and j.id = any (array(select id from mine))
    returning
        {listed(map(_finished, COLUMNS))}
),
kept as (
    insert into @.finished (
        {listed(COLUMNS)})
    select * from gone
),

-- A job that runs again is pending. It keeps its token, so that a repeated write is known as the same one.
back as (
    update @.jobs j
    set state = 'pending', due_at = c.due_at, error = c.error::json, failures = c.failures, crashes = c.crashes,
        started_at = c.started_at, worker = null, lease_until = null, lease_token = c.lease_token,
        progress = c.progress::json, cost_micros = c.cost_micros, revision = c.revision
    from c where j.id = c.id and c.state = 'pending' and j.id = any (array(select id from mine))
    returning j.id, j.tenant
),
settled as materialized (select id, tenant from gone union all select id, tenant from back),

-- A change that is written frees the key of its job, and has its audit event, in the same statement.
freed as (
    delete from @.keys k using c join settled s on s.id = c.id
    where k.job = c.id and c.frees and k.scope in ('pending', 'active')
),
noted as (
    insert into @.events (job, revision, at, kind, actor, note, tenant)
    select c.id, c.revision, c.at, c.kind, c.actor, c.note, s.tenant
    from c join settled s on s.id = c.id where c.kind is not null
)"""

SETTLE_COMMENTED = f"""{unpack(CHANGE)},
{SETTLED}

-- There is a row in any case, because of the server's time.
select settled.id::text, t.now from t left join settled on true"""
SETTLE = without_comments(SETTLE_COMMENTED)

# Locks the row for the rest of the transaction, if the fence lets the change pass.
LOCK = f"""
{unpack(FENCE_COLUMNS)},
live as (select j.id from c join @.jobs j on {FENCE} for update of j skip locked),
over as (select j.id from c join @.finished j on {FENCE} for update of j skip locked)
select id::text from live union all select id::text from over
"""

# The flag is never taken back, and compares nothing but the state: whichever worker holds the job, it is asked to stop.
REQUEST_CANCEL = f"""
{unpack(EDIT)},
mine as materialized (
    select j.id from c join @.jobs j on j.id = c.id where j.state = 'running' for update of j skip locked
),
requested as (
    update @.jobs j set cancel_requested = true, revision = revision + 1
    where j.id = any (array(select id from mine)) returning j.id, j.revision, j.tenant
),
noted as (
    insert into @.events (job, revision, at, kind, actor, note, tenant)
    select c.id, r.revision, c.at, c.kind, c.actor, c.note, r.tenant
    from c join requested r on r.id = c.id where c.kind is not null
)
select id::text from requested
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
    update @.jobs j
    set parked = false, parked_by_tenant = false, {", ".join(f"{name} = {selected('c', [name])}" for name in EDITED)}
    from c where j.id = c.id and j.id = any (array(select id from mine))
    returning j.id
),{_NOTED}"""

REVIVE = f"""
{unpack(EDIT)},
mine as materialized (select j.id from c join @.finished j on {FENCE} for update of j skip locked),
gone as (delete from @.finished where id = any (array(select id from mine)) returning id, payload),
written as (
    insert into @.jobs ({", ".join(COLUMNS)})
    select {", ".join("gone.payload" if name == "payload" else selected("c", [name]) for name in COLUMNS)}
    from c join gone on gone.id = c.id
    returning id
),{_NOTED}"""

# ----------------------------------------------------------------------------------- on our own connections


def is_plain(change: Change) -> bool:
    """Whether SETTLE writes this change, many at a time."""
    return change.write in (Write.FINISH, Write.REQUEUE) and not change.takes_key


def settle(store: PostgresStore, changes: Sequence[Change], now: datetime | None) -> list[Verdict]:
    """Write plain changes, a verdict each; a change that the server refuses does not affect the others."""
    if not changes:
        return []
    return write_halved(changes, lambda batch: _settle_batch(store, batch, now), _refused, WRITE_ERRORS)


def _settle_batch(store: PostgresStore, changes: Sequence[Change], now: datetime | None) -> list[Verdict]:
    if any(change.follow is not None for change in changes):
        return verdicts(store, changes, _settle_and_follow(store, changes, now), now)
    text = packed((change_record(change, audit_all=store.audit_all) for change in changes), now)
    rows = store.session.run_read_committed(lambda connection: store.session.execute(connection, SETTLE, text))
    store.clock.sync(rows[0][1])
    return verdicts(store, changes, {row[0] for row in rows}, now)


def _settle_and_follow(store: PostgresStore, changes: Sequence[Change], now: datetime | None) -> set[str]:
    """Write the changes and the jobs that follow them in one transaction; the ids of the changes written."""
    session, channel = store.session, store.notifications.channel_to_notify()

    def write(connection: Connection) -> set[str]:
        return session.drive(connection, settle_and_follow(changes, now, audit_all=store.audit_all, channel=channel))

    settled = session.transact(write, lock_timeout=LOCK_TIMEOUT)
    store.notifications.wake()
    return settled


def _refused(_: Change, error: Exception) -> Verdict:
    return Verdict(Ruling.REFUSED, why=refusal(error))


def settle_alone(store: PostgresStore, change: Change, now: datetime | None) -> Verdict:
    """Write one change that takes several statements, in its own transaction."""
    session = store.session

    def write(connection: Connection) -> Verdict:
        return session.drive(connection, settle_script(change, now, audit_all=store.audit_all))

    try:
        return session.transact(write, lock_timeout=LOCK_TIMEOUT)
    except WRITE_ERRORS as error:
        if is_locked(error):
            return Verdict(Ruling.BUSY)  # another open transaction takes the key, or frees it
        return Verdict(Ruling.REFUSED, why=refusal(error))


def verdicts(
    store: PostgresStore,
    changes: Sequence[Change],
    settled: Set[str],
    now: datetime | None,
    claimed: Mapping[str, str | None] = {},
) -> list[Verdict]:
    """A verdict for each change, in order; `claimed`: jobs that the same statement claimed, with the token before."""
    unwritten = [change.before.id for change in changes if change.before.id not in settled]
    found = dict(zip(unwritten, queries.get(store.session, unwritten), strict=True)) if unwritten else {}
    return [
        Verdict(Ruling.APPLIED)
        if (id_ := change.before.id) in settled
        else _verdict_before_claim(change, found[id_], claimed[id_])
        if id_ in claimed
        else _verdict(change, found[id_], now)
        for change in changes
    ]


def _verdict_before_claim(change: Change, job: Job | None, token: str | None) -> Verdict:
    """Why a change was not written, if the same statement then claimed the job: it was pending before that."""
    if job is None or change.after.state is not State.PENDING:
        return Verdict(Ruling.LOST, job)
    ours = bool(token) and token == change.before.lease_token and change.after.revision + 1 == job.revision
    return Verdict(Ruling.ALREADY if ours else Ruling.LOST, job)


def _verdict(change: Change, current: Job | None, now: datetime | None) -> Verdict:
    """Why a change was not written, from the job as it is now."""
    if current is not None and fits(change, current, now or change.at):
        return Verdict(Ruling.BUSY, current)  # only a lock of another transaction can have kept us away
    return judge(change, current)


# ------------------------------------------------------------------------ as scripts, also for the caller's transaction


def settle_and_follow(
    changes: Sequence[Change], now: datetime | None, *, audit_all: bool, channel: str | None = None
) -> Script[set[str]]:
    """Write plain changes and the jobs that follow them; the ids of the changes written."""
    rows = yield SETTLE, packed((change_record(change, audit_all=audit_all) for change in changes), now)
    settled = {row[0] for row in rows}
    follows = [change.follow for change in changes if change.follow is not None and change.before.id in settled]
    if follows:
        yield from insert_jobs(follows, now, audit_all=audit_all, channel=channel)
    return settled


def settle_script(change: Change, now: datetime | None, *, audit_all: bool) -> Script[Verdict]:
    """Write one change behind its fence, with its key, its audit event and its follow-up; for one transaction."""
    job = change.after
    if change.takes_key:
        if not (yield LOCK, packed([fence_record(change)], now)):
            return (yield from _unwritten(change, now))
        holder = (yield from take_keys([job], now)).get(job.id, job.id)
        if holder != job.id:
            return Verdict(Ruling.REFUSED, holder=holder, why=f"key {job.key!r} is taken")
    sql, values = _statement(change, audit_all)
    rows = yield sql, packed([values], now)
    if not any(row[0] for row in rows):
        return (yield from _unwritten(change, now))
    if change.follow is not None:
        yield from insert_jobs([change.follow], now, audit_all=audit_all)
    return Verdict(Ruling.APPLIED)


def _unwritten(change: Change, now: datetime | None) -> Script[Verdict]:
    found = yield READ, json.dumps([change.before.id])
    return _verdict(change, job_from(found[0]) if found else None, now)


def _statement(change: Change, audit_all: bool) -> tuple[str, dict[str, Any]]:
    match change.write:
        case Write.FINISH | Write.REQUEUE:
            return SETTLE, change_record(change, audit_all=audit_all)
        case Write.REQUEST_CANCEL:
            return REQUEST_CANCEL, edit_record(change, audit_all=audit_all)
        case Write.REPLACE:
            return REPLACE, edit_record(change, audit_all=audit_all)
        case Write.REVIVE:
            return REVIVE, edit_record(change, audit_all=audit_all)
