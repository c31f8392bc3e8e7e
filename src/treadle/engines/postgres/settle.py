"""Writing changes behind their fence: ends of attempts many at a time, what operators do by kind.

No statement here waits for the row lock of a job: a job that another open transaction has locked is BUSY.
"""

import json
from collections.abc import Sequence, Set
from datetime import datetime
from typing import Any

from treadle.engines.batches import write_halved
from treadle.engines.fence import fits, judge
from treadle.engines.postgres import queries
from treadle.engines.postgres.connection import WRITE_ERRORS, is_locked, refusal
from treadle.engines.postgres.enqueue import insert_jobs, selected
from treadle.engines.postgres.keys import take_key
from treadle.engines.postgres.queries import READ
from treadle.engines.postgres.rows import (
    EDIT,
    FENCE,
    FENCE_COLUMNS,
    change_record,
    edit_record,
    fence_record,
    job_from,
    packed,
    unpack,
)
from treadle.engines.postgres.session import LOCK_TIMEOUT, PostgresStore
from treadle.engines.postgres.wire import Connection
from treadle.engines.rows import COLUMNS, EDITED
from treadle.engines.scripts import Script
from treadle.engines.values import APPLIED, Ruling, Verdict
from treadle.model import Change, Job
from treadle.model.change import Write

# ---------------------------------------------------------------------------------------- the statements

# Writes plain changes, many at a time; the function is in migrations/0013_trace.pre.sql.
SETTLE = "select id, now from @.settle($1::text)"

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

NOTED = """
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
    set parked = false, parked_by_tenant = false, later = c.lane <> '' and c.due_at > t.now,
        {", ".join(f"{name} = {selected('c', [name])}" for name in EDITED)}
    from c cross join t where j.id = c.id and j.id = any (array(select id from mine))
    returning j.id
),{NOTED}"""

_PAYLOAD = "coalesce(c.payload::json, gone.payload)"  # it comes along only if it was edited
REVIVE = f"""
{unpack(EDIT)},
mine as materialized (select j.id from c join @.finished j on {FENCE} for update of j skip locked),
gone as (delete from @.finished where id = any (array(select id from mine)) returning id, payload),
written as (
    insert into @.jobs ({", ".join(COLUMNS)})
    select {", ".join(_PAYLOAD if name == "payload" else selected("c", [name]) for name in COLUMNS)}
    from c join gone on gone.id = c.id
    returning id
),{NOTED}"""

# A job is in one of the two tables. What it remembers goes with it, and so does its key, whatever its scope, because
# nobody would ever free it.
DELETE = f"""
{unpack(EDIT)},
live as materialized (select j.id from c join @.jobs j on {FENCE} for update of j skip locked),
ended as materialized (select j.id from c join @.finished j on {FENCE} for update of j skip locked),
gone as (delete from @.jobs where id = any (array(select id from live)) returning id),
gone_ended as (delete from @.finished where id = any (array(select id from ended)) returning id),
written as (select id from gone union all select id from gone_ended),
freed as (delete from @.keys k using written w where k.job = w.id),
forgotten as (delete from @.memos m using written w where m.job = w.id),{NOTED}"""

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


def settle_together(store: PostgresStore, changes: Sequence[Change], now: datetime | None) -> list[Verdict]:
    """Write what operators do to many jobs: changes of one kind that take no key, a verdict each."""

    def write(batch: Sequence[Change]) -> list[Verdict]:
        records = [edit_record(change, audit_all=store.audit_all) for change in batch]
        sql, text = _STATEMENTS[batch[0].write], packed(records, now)
        rows = store.session.transact(
            lambda connection: store.session.execute(connection, sql, text), lock_timeout=LOCK_TIMEOUT
        )
        return verdicts(store, batch, {row[0] for row in rows}, now)

    return write_halved(changes, write, refused_or_busy, WRITE_ERRORS)


def refused_or_busy(_: Change, error: Exception) -> Verdict:
    """A lock that was waited for in vain: another open transaction takes the key, or frees it."""
    return Verdict(Ruling.BUSY) if is_locked(error) else Verdict(Ruling.REFUSED, why=refusal(error))


def settle_alone(store: PostgresStore, change: Change, now: datetime | None) -> Verdict:
    """Write one change that takes several statements, in its own transaction."""
    session = store.session

    def write(connection: Connection) -> Verdict:
        return session.drive(connection, settle_script(change, now, audit_all=store.audit_all))

    try:
        return session.transact(write, lock_timeout=LOCK_TIMEOUT)
    except WRITE_ERRORS as error:
        return refused_or_busy(change, error)


def verdicts(store: PostgresStore, changes: Sequence[Change], settled: Set[str], now: datetime | None) -> list[Verdict]:
    """A verdict for each change, in order; those that were not `settled` are read."""
    unwritten = [change.id for change in changes if change.id not in settled]
    found = dict(zip(unwritten, queries.get(store.session, unwritten), strict=True)) if unwritten else {}
    return [APPLIED if change.id in settled else _verdict(change, found[change.id], now) for change in changes]


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
    settled = {row[0] for row in rows if row[0] is not None}
    follows = [change.follow for change in changes if change.follow is not None and change.before.id in settled]
    if follows:
        yield from insert_jobs(follows, now, audit_all=audit_all, more={"notify": channel})
    return settled


def settle_script(change: Change, now: datetime | None, *, audit_all: bool) -> Script[Verdict]:
    """Write one change behind its fence, with its key, its audit event and its follow-up; for one transaction."""
    job = change.after
    if change.takes_key:
        if not (yield LOCK, packed([fence_record(change)], now)):
            return (yield from _unwritten(change, now))
        holder = yield from take_key(job, now)
        if holder != job.id:
            return Verdict(Ruling.REFUSED, holder=holder, why=f"key {job.key!r} is taken")
    sql, values = _statement(change, audit_all)
    rows = yield sql, packed([values], now)
    if not any(row[0] for row in rows):
        return (yield from _unwritten(change, now))
    if change.follow is not None:
        yield from insert_jobs([change.follow], now, audit_all=audit_all)
    return APPLIED


def _unwritten(change: Change, now: datetime | None) -> Script[Verdict]:
    found = yield READ, json.dumps([change.before.id])
    return _verdict(change, job_from(found[0]) if found else None, now)


def _statement(change: Change, audit_all: bool) -> tuple[str, dict[str, Any]]:
    if change.write in (Write.FINISH, Write.REQUEUE):
        return SETTLE, change_record(change, audit_all=audit_all)
    return _STATEMENTS[change.write], edit_record(change, audit_all=audit_all)


_STATEMENTS = {
    Write.REQUEST_CANCEL: REQUEST_CANCEL,
    Write.REPLACE: REPLACE,
    Write.REVIVE: REVIVE,
    Write.DELETE: DELETE,
}
