"""How a job is stored: a script, so that the engine and the caller's own transaction run the very same statements.

A script yields (sql, its one text parameter) and is sent the rows. The parameter is JSON, unpacked in SQL, so the
caller's driver and its parameter style never matter.
"""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from treadle.engines.batches import Receipts, receipts_of, write_halved
from treadle.engines.rows import NEW, Row, on_end_text
from treadle.engines.scripts import Script
from treadle.engines.sqlite.audit import ADD_EVENTS
from treadle.engines.sqlite.connection import DATA_ERRORS, DatabaseFile, Savepoint, run
from treadle.engines.sqlite.keys import HOLDERS, TAKE_NEW_KEYS, key_row, take_if_new
from treadle.engines.sqlite.queries import BY_IDS
from treadle.engines.sqlite.rows import IDS, event_row, job_from, packed
from treadle.engines.values import Receipt
from treadle.model import AlikeJobs, Event, EventKind, Job
from treadle.model.alike import have_keys, stored_alike
from treadle.model.clock import micros

SHARED = tuple(name for name in NEW if name not in ("id", "payload"))
"""What many new jobs of one call have in common."""


def if_new(id_: str) -> str:
    """The end of an insert of jobs.

    An id that ever existed is not taken again: a repeated enqueue must not run a finished job twice.
    """
    return f"""
where not exists (select 1 from treadle_finished f where f.id = {id_})
on conflict (id) do nothing
"""  # noqa: S608 - its argument is ours


# Jobs of one call often differ in id and payload alone: the parameter holds the rest once for each run of them, with
# an object of payloads by id. Unpacking twenty columns for every job would cost more than to store it.
INSERT = f"""
insert into treadle_jobs
    (id, payload, {", ".join(SHARED)},
    state, attempt, failures, crashes, cancel_requested, cost_micros, revision, later)
with s as materialized (
    select {", ".join(f"value ->> {index} as {name}" for index, name in enumerate((*SHARED, "jobs")))} from json_each(?)
)
select c.key, c.value, {", ".join(f"s.{name}" for name in SHARED)},
    'pending', 0, 0, 0, 0, 0, 0, s.lane <> '' and s.due_at > s.created_at
from s cross join json_each(s.jobs) c
{if_new("c.key")}
"""  # noqa: S608
INSERT_AND_TELL = INSERT + "returning id"

KNOWN = f"""
with wanted as materialized {IDS}
select id from treadle_jobs where id in wanted
union all
select id from treadle_finished where id in wanted
"""  # noqa: S608

_PLACES = {name: f"?{3 + index}" for index, name in enumerate(SHARED)}  # as parameters

_INSERT_ONE = f"""
insert into treadle_jobs
    (id, payload, {", ".join(SHARED)},
    state, attempt, failures, crashes, cancel_requested, cost_micros, revision, later)
select ?1, ?2, {", ".join(_PLACES.values())},
    'pending', 0, 0, 0, 0, 0, 0, {_PLACES["lane"]} <> '' and {_PLACES["due_at"]} > {_PLACES["created_at"]}
{if_new("?1")}
"""

_TAKE_KEY = f"""
insert into treadle_keys (tenant, task, key, job, scope, until)
select ?1, ?2, ?3, ?4, ?5, ?6
{take_if_new("?4", "?7")}
"""


# ------------------------------------------------------------------------------------------ the engine's own way


def enqueue(
    file: DatabaseFile, jobs: Sequence[Job], now: datetime | None, clock: Callable[[], datetime], *, audit_all: bool
) -> Sequence[Receipt]:
    """Store new jobs; a receipt each, in order. Without a `now`, the clock is asked as late as can be.

    Each quick way is one statement, and leaves what it cannot do to the general one: a known id, a taken key, a value
    that is refused.
    """
    if len(jobs) == 1 and jobs[0].key is None and not audit_all:
        receipts = _store_one(file, jobs[0], now or clock())
        if receipts is not None:
            return receipts
    with file.write() as connection:
        now = now or clock()
        quick = None if audit_all else _store_quickly(connection, jobs, now)
        return store_jobs(connection, jobs, now, audit_all=audit_all) if quick is None else quick


def _store_quickly(connection: sqlite3.Connection, jobs: Sequence[Job], now: datetime) -> Sequence[Receipt] | None:
    if len(jobs) == 1:
        return None if jobs[0].key is None else _store_keyed(connection, jobs[0], now)
    return None if have_keys(jobs) else _store_many(connection, jobs, now)


def _store_one(file: DatabaseFile, job: Job, now: datetime) -> list[Receipt] | None:
    """Store a new job without a key, in a transaction by itself; None, and nothing written, if that does not do."""
    stored = job.stored_at(now)
    row = (stored.id, stored.payload_json, *shared_row(stored))
    if _holds_nul(row):
        return None
    created = file.write_alone(lambda connection: connection.execute(_INSERT_ONE, row).rowcount)
    return [Receipt(stored, created=True)] if created else None


def _store_keyed(connection: sqlite3.Connection, job: Job, now: datetime) -> list[Receipt] | None:
    """Store a new job with a key in this transaction; None, and nothing written, if that does not do."""
    stored = job.stored_at(now)
    row = (stored.id, stored.payload_json, *shared_row(stored))
    if _holds_nul(row):
        return None
    try:
        with Savepoint(connection):
            if not connection.execute(_TAKE_KEY, key_row(stored, now)).rowcount:
                return None
            connection.execute(_INSERT_ONE, row)
    except DATA_ERRORS:
        return None
    return [Receipt(stored, created=True)]


def _holds_nul(row: Row) -> bool:
    return any("\0" in value for value in row if isinstance(value, str))


def _store_many(connection: sqlite3.Connection, jobs: Sequence[Job], now: datetime) -> Sequence[Receipt] | None:
    """Store new jobs without keys in this transaction; None, and nothing written, unless all of them are new."""
    try:
        text = packed_jobs(stored_alike(jobs, now))
        with Savepoint(connection):
            if connection.execute(INSERT, (text,)).rowcount == len(jobs):
                return Receipts(jobs, now)
            connection.execute("rollback to treadle")
    except (ValueError, *DATA_ERRORS):
        pass
    return None


def store_jobs(connection: sqlite3.Connection, jobs: Sequence[Job], now: datetime, *, audit_all: bool) -> list[Receipt]:
    """Store new jobs of any kind in this transaction; a receipt each. A value that SQLite refuses falls alone."""
    return write_halved(
        jobs,
        lambda part: run(connection, enqueue_script(part, now, audit_all=audit_all)),
        lambda job, error: Receipt(job, created=False, refused=str(error)),
        DATA_ERRORS,
    )


# ------------------------------------------------------------------- for our connections and the caller's own alike


def enqueue_script(jobs: Sequence[Job], now: datetime, *, audit_all: bool) -> Script[list[Receipt]]:
    """Store new jobs; a known id or a taken key answers with the job that was first."""
    stored: dict[str, Job] = {}
    for job in jobs:
        stored.setdefault(job.id, job.stored_at(now))
    keyed = [job for job in stored.values() if job.key is not None]
    first = (yield from _take_keys(keyed, now)) if keyed else {}
    new = [job for job in stored.values() if job.id not in first] if first else list(stored.values())
    created = (yield from _insert(new, now, audit_all)) if new else set()
    first |= {job.id: job.id for job in new if job.id not in created}
    return receipts_of(jobs, stored, created, (yield from _read(first)) if first else {})


def _take_keys(jobs: Sequence[Job], now: datetime) -> Script[dict[str, str]]:
    """Take the keys of these jobs; of a job that came too late, the id of the one that holds its key."""
    known = {row[0] for row in (yield KNOWN, packed([job.id for job in jobs]))}
    new = [job for job in jobs if job.id not in known]
    wanted: dict[tuple[object, ...], Row] = {}  # by key, the first that wants it
    for job in new:
        wanted.setdefault((job.tenant, job.task, job.key), key_row(job, now))
    taken = {row[0] for row in (yield TAKE_NEW_KEYS, packed(list(wanted.values())))}
    late = [key_row(job, now) for job in new if job.id not in taken]
    return dict((yield HOLDERS, packed(late))) if late else {}


def _insert(jobs: Sequence[Job], now: datetime, audit_all: bool) -> Script[set[str]]:
    """Write these jobs and their events; the ids that were new."""
    created = {row[0] for row in (yield INSERT_AND_TELL, packed_jobs(jobs))}
    if audit_all:
        new = [job for job in jobs if job.id in created]
        yield ADD_EVENTS, packed([event_row(_enqueued(job, now)) for job in new])
    return created


def packed_jobs(jobs: Iterable[Job]) -> str:
    """These jobs as INSERT takes them: runs of jobs that differ in id and payload alone."""
    if isinstance(jobs, AlikeJobs):
        return packed([(*shared_row(jobs.like), dict(zip(jobs.ids, jobs.payloads, strict=True)))])
    runs: list[tuple[Any, ...]] = []
    before: Row | None = None
    for job in jobs:
        shared = shared_row(job)
        if shared != before:
            payloads: dict[str, str] = {}
            runs.append((*shared, payloads))
            before = shared
        payloads[job.id] = job.payload_json
    return packed(runs)


def shared_row(job: Job) -> Row:
    """What a new job says besides its id and its payload, in the order of SHARED."""
    created = micros(job.created_at)
    return (
        job.task,
        created,
        created if job.due_at is job.created_at else micros(job.due_at),
        job.tenant,
        job.queue,
        job.lane,
        job.task_version,
        job.priority,
        *job.retry,
        job.timeout,
        job.expires_at and micros(job.expires_at),
        job.key,
        job.key_scope,
        job.key_until and micros(job.key_until),
        job.schedule,
        job.on_end and on_end_text(job.on_end),
        job.trace,
    )


def _enqueued(job: Job, now: datetime) -> Event:
    return Event(job.id, 0, now, EventKind.ENQUEUED, "enqueue", "", job.tenant)


def _read(first: dict[str, str]) -> Script[dict[str, Job]]:
    """By the id that was asked for, the job that was first; one that is gone is left out."""
    rows = yield BY_IDS, packed(list(first.values()))
    jobs = {row[0]: job_from(row) for row in rows}
    return {asked: jobs[id_] for asked, id_ in first.items() if id_ in jobs}
