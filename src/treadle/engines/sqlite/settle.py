"""How a change is written: a script, so that the engine and the caller's own transaction run the very same statements.

A change is written behind its fence, with its key, its audit event and the job that follows it, or not at all.
"""

import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from treadle.engines.batches import write_halved
from treadle.engines.fence import judge
from treadle.engines.rows import COLUMNS, EDITED, Row, fence_of, small
from treadle.engines.scripts import Script
from treadle.engines.sqlite.audit import ADD_EVENTS
from treadle.engines.sqlite.connection import DATA_ERRORS, run
from treadle.engines.sqlite.enqueue import enqueue_script
from treadle.engines.sqlite.keys import DELETE_KEYS, FREE_DEAD_KEYS, HOLDERS, RELEASE_KEYS, TAKE_KEYS, key_row
from treadle.engines.sqlite.queries import BY_IDS
from treadle.engines.sqlite.retention import DELETE_FINISHED
from treadle.engines.sqlite.rows import (
    DELETE_JOBS,
    DELETE_MEMOS,
    IDS,
    JOB,
    event_row,
    job_from,
    packed,
    row_from,
    unpack,
)
from treadle.engines.sqlite.successes import write_successes
from treadle.engines.values import APPLIED, Ruling, Verdict
from treadle.model import Change, Job
from treadle.model.change import Write
from treadle.model.clock import micros
from treadle.model.lifecycle import Success, whole

_CHANGE = (
    "id", "was", "was_revision", "was_token", "was_lease", "now", "state", "reason", "result", "error", "failures",
    "crashes", "started_at", "finished_at", "lease_token", "progress", "cost_micros", "revision", "due_at",
)  # fmt: skip

# The whole fence, in one place. Without the token a zombie settles a job that was claimed again; without the
# revision a retry buries a cancel request; without the lease a recovery takes a job whose lease was renewed
# since it looked.
_FENCE = """
j.state = c.was and j.revision = c.was_revision
and (c.was_token is null or j.lease_token = c.was_token)
and (c.was_lease is null or j.lease_until = c.was_lease and j.lease_until <= c.now)
"""

# Whether a change would be written, were its key free.
FITS = f"""
{unpack(_CHANGE[:6])}
select j.id from c cross join treadle_jobs j on j.id = c.id where {_FENCE}
union all
select j.id from c cross join treadle_finished j on j.id = c.id where {_FENCE}
"""  # noqa: S608

_FROM_CHANGE = frozenset(_CHANGE) & frozenset(COLUMNS) - {"id", "due_at"}
_FINISHED = ", ".join(
    f"c.{name}" if name in _FROM_CHANGE else "null" if name == "lease_until" else f"j.{name}" for name in COLUMNS
)

FINISH = f"""
{unpack(_CHANGE)}
insert into treadle_finished ({JOB})
select {_FINISHED} from c cross join treadle_jobs j on j.id = c.id where {_FENCE}
returning id, revision
"""  # noqa: S608

REQUEUE = f"""
{unpack(_CHANGE)}
update treadle_jobs as j
set state = 'pending', due_at = c.due_at, error = c.error, failures = c.failures, crashes = c.crashes,
    started_at = c.started_at, worker = null, lease_until = null, lease_token = c.lease_token,
    progress = c.progress, cost_micros = c.cost_micros, revision = c.revision,
    later = j.lane <> '' and c.due_at > c.now
from c where j.id = c.id and {_FENCE}
returning id, revision
"""  # noqa: S608

# The flag never falls and meets no fence but the state: it reaches the job, whoever holds it.
REQUEST_CANCEL = f"""
update treadle_jobs set cancel_requested = 1, revision = revision + 1
where id in {IDS} and state = 'running'
returning id, revision
"""  # noqa: S608

_EDIT = ("id", "was", "was_revision", "was_token", "was_lease", "now", *COLUMNS[1:])
REPLACE = f"""
{unpack(_EDIT)}
update treadle_jobs as j
set parked = 0, later = c.lane <> '' and c.due_at > c.now, {", ".join(f"{name} = c.{name}" for name in EDITED)}
from c where j.id = c.id and {_FENCE}
returning id, revision
"""  # noqa: S608

REVIVE = f"""
{unpack(_EDIT)}
insert into treadle_jobs ({JOB}, later)
select {", ".join("coalesce(c.payload, j.payload)" if name == "payload" else f"c.{name}" for name in COLUMNS)},
    c.lane <> '' and c.due_at > c.now
from c cross join treadle_finished j on j.id = c.id where {_FENCE}
returning id, revision
"""  # noqa: S608


# Nobody has heard of this id: neither a job has it, nor is an event about one that had it and is gone.
_UNKNOWN = """
not exists (select 1 from treadle_jobs j where j.id = c.id)
and not exists (select 1 from treadle_finished j where j.id = c.id)
and not exists (select 1 from treadle_events e where e.job = c.id)
"""
IS_UNKNOWN = f"{unpack(_CHANGE[:1])} select c.id from c where {_UNKNOWN}"  # noqa: S608

_ADOPTED = ("now", *COLUMNS)
ADOPT = f"""
{unpack(_ADOPTED)}
insert into treadle_jobs ({JOB}, later)
select {", ".join(f"c.{name}" for name in COLUMNS)}, c.state = 'pending' and c.lane <> '' and c.due_at > c.now
from c where c.state in ('pending', 'running') and {_UNKNOWN}
on conflict (id) do nothing
returning id, revision
"""  # noqa: S608
ADOPT_ENDED = f"""
{unpack(_ADOPTED)}
insert into treadle_finished ({JOB})
select {", ".join(f"c.{name}" for name in COLUMNS)}
from c where c.state not in ('pending', 'running') and {_UNKNOWN}
on conflict (id) do nothing
returning id, revision
"""  # noqa: S608


# A job is in one of the two tables: each statement deletes what it finds there.
def _delete_from(table: str) -> str:
    return f"""
{unpack(_CHANGE[:6])}
delete from {table} as j
where j.id in (select id from c) and exists (select 1 from c where j.id = c.id and {_FENCE})
returning id, revision + 1
"""  # noqa: S608 - its argument is ours


DELETE, DELETE_ENDED = _delete_from("treadle_jobs"), _delete_from("treadle_finished")


def settle_all(
    connection: sqlite3.Connection, changes: Sequence[Change | Success], now: datetime, *, audit_all: bool
) -> list[Verdict]:
    """Write the changes of a turn in this transaction; a verdict each, in order."""
    successes = [change for change in changes if isinstance(change, Success)]
    written = write_successes(connection, successes, now, audit_all=audit_all) if successes else set()
    if len(written) == len(changes):
        return [APPLIED] * len(changes)
    rest = whole([one for one in changes if not isinstance(one, Success) or one.id not in written], now)
    answers = write_changes(connection, rest, now, audit_all=audit_all)
    verdicts = {change.before.id: verdict for change, verdict in zip(rest, answers, strict=True)}
    return [verdicts.get(change.id, APPLIED) for change in changes]


def write_changes(
    connection: sqlite3.Connection, changes: Sequence[Change], now: datetime, *, audit_all: bool
) -> list[Verdict]:
    """Write these changes in this transaction; a verdict each, in order. A value that SQLite refuses falls alone."""
    return write_halved(
        changes,
        lambda part: run(connection, settle_script(part, now, audit_all=audit_all)),
        lambda _, error: Verdict(Ruling.REFUSED, why=str(error)),
        DATA_ERRORS,
    )


def settle_script(changes: Sequence[Change], now: datetime, *, audit_all: bool) -> Script[list[Verdict]]:
    """Write these changes, each behind its fence; a verdict each, in order."""
    verdicts: dict[str, Verdict] = {}
    ready = [change for change in changes if not change.takes_key]
    yield from _write(ready, now, verdicts, audit_all)
    for change in changes:
        if change.takes_key:
            yield from _write_and_take_key(change, now, verdicts, audit_all)
    return [verdicts[change.before.id] for change in changes]


def _write_and_take_key(change: Change, now: datetime, verdicts: dict[str, Verdict], audit_all: bool) -> Script[None]:
    job, key = change.after, packed([key_row(change.after, now)])
    yield FREE_DEAD_KEYS, key
    holders = yield HOLDERS, key
    if holders and holders[0][1] != job.id:
        fits = IS_UNKNOWN if change.write is Write.ADOPT else FITS
        if (yield fits, packed([_fence_row(change, now)])):
            verdicts[job.id] = Verdict(Ruling.REFUSED, holder=holders[0][1], why=f"key {job.key!r} is taken")
        else:  # somebody else's job by now, whoever has the key
            yield from _judge([change], verdicts)
        return
    yield from _write([change], now, verdicts, audit_all)
    if verdicts[job.id].ruling is Ruling.APPLIED:
        yield TAKE_KEYS, key


def _write(changes: Sequence[Change], now: datetime, verdicts: dict[str, Verdict], audit_all: bool) -> Script[None]:
    written = yield from _write_rows(changes, now)
    yield from _write_beside(changes, written, now, audit_all)
    verdicts.update(dict.fromkeys(written, APPLIED))
    if len(written) < len(changes):
        yield from _judge([change for change in changes if change.before.id not in written], verdicts)


def _write_rows(changes: Sequence[Change], now: datetime) -> Script[dict[str, int]]:
    """Write the jobs themselves, all changes of a kind in one statement; by id, the revision of those written."""
    written: dict[str, int] = {}
    groups: dict[Write, list[Change]] = {}
    for change in changes:
        groups.setdefault(change.write, []).append(change)
    for kind, group in groups.items():
        statement = STATEMENTS[kind]
        values = packed([statement.parameter(change, now) for change in group])
        done: dict[str, int] = dict((yield statement.sql, values))
        if statement.also and len(done) < len(group):
            done.update((yield statement.also, values))
        written.update(done)
        for then in statement.then if done else ():
            yield then, packed(list(done))
    return written


def _write_beside(changes: Sequence[Change], written: dict[str, int], now: datetime, audit_all: bool) -> Script[None]:
    """Free the keys, and write the events and the follow-up jobs, of the changes that were applied."""
    applied = [change for change in changes if change.before.id in written]
    if freed := [change.before.id for change in applied if change.frees_key]:
        yield RELEASE_KEYS, packed(freed)
    if events := [_event_row(change, written) for change in applied if change.audited(audit_all)]:
        yield ADD_EVENTS, packed(events)
    if follows := [change.follow for change in applied if change.follow is not None]:
        yield from enqueue_script(follows, now, audit_all=audit_all)


def _judge(changes: Sequence[Change], verdicts: dict[str, Verdict]) -> Script[None]:
    """Why these changes did not apply, from the jobs as they are now."""
    rows = yield BY_IDS, packed([change.before.id for change in changes])
    current: dict[str, Job] = {row[0]: job_from(row) for row in rows}
    verdicts.update({change.before.id: judge(change, current.get(change.before.id)) for change in changes})


def _event_row(change: Change, written: dict[str, int]) -> Row:
    """The event with the revision that was written: a cancel request may be decided on an older one."""
    return event_row(change.event._replace(revision=written[change.before.id]))


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


def _edit_row(change: Change, now: datetime) -> Row:
    return (*_fence_row(change, now), *row_from(change.after)[1:])


def _revive_row(change: Change, now: datetime) -> Row:
    """Without the payload, unless it was edited: it stays as somebody stored it."""
    same = change.after.payload_json == change.before.payload_json
    row = list(_edit_row(change, now))
    row[_EDIT.index("payload")] = None if same else change.after.payload_json
    return tuple(row)


def _adopted_row(change: Change, now: datetime) -> Row:
    return (micros(now), *row_from(change.after))


class WriteStatement(NamedTuple):
    """The statement for one kind of write: what it takes for a change, and what follows for the ids it wrote.

    `also` is the same for the table of the ended jobs.
    """

    sql: str
    parameter: Callable[[Change, datetime], object]
    then: tuple[str, ...] = ()
    also: str = ""


STATEMENTS = {
    Write.FINISH: WriteStatement(FINISH, _change_row, then=(DELETE_JOBS,)),
    Write.REQUEUE: WriteStatement(REQUEUE, _change_row),
    Write.REVIVE: WriteStatement(REVIVE, _revive_row, then=(DELETE_FINISHED,)),
    Write.REPLACE: WriteStatement(REPLACE, _edit_row),
    Write.REQUEST_CANCEL: WriteStatement(REQUEST_CANCEL, lambda change, _: change.before.id),
    Write.ADOPT: WriteStatement(ADOPT, _adopted_row, also=ADOPT_ENDED),
    Write.DELETE: WriteStatement(DELETE, _fence_row, then=(DELETE_KEYS, DELETE_MEMOS), also=DELETE_ENDED),
}
