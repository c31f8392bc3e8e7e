"""How a job is stored: a script, so that the engine and the caller's own transaction run the very same statements.

A script yields (sql, its one text parameter) and is sent the rows. The parameter is JSON, unpacked in SQL, so the
caller's driver and its parameter style never matter.
"""

import sqlite3
from collections.abc import Sequence
from datetime import datetime

from treadle.engines.batches import receipts_of, write_halved
from treadle.engines.rows import NEW
from treadle.engines.scripts import Script
from treadle.engines.sqlite.audit import ADD_EVENTS
from treadle.engines.sqlite.connection import DATA_ERRORS, run
from treadle.engines.sqlite.keys import FREE_DEAD_KEYS, HOLDERS, TAKE_KEYS, key_row
from treadle.engines.sqlite.queries import BY_IDS
from treadle.engines.sqlite.rows import IDS, event_row, job_from, packed, row_from, unpack
from treadle.engines.values import Receipt
from treadle.model import Event, EventKind, Job

# An id that ever existed is not taken again: a repeated enqueue must not run a finished job twice.
INSERT = f"""
{unpack(NEW)}
insert into treadle_jobs
    ({", ".join(NEW)}, state, attempt, failures, crashes, cancel_requested, cost_micros, revision)
select {", ".join(NEW)}, 'pending', 0, 0, 0, 0, 0, 0 from c
where not exists (select 1 from treadle_finished f where f.id = c.id)
on conflict (id) do nothing
returning id
"""  # noqa: S608

KNOWN = f"""
with wanted as materialized {IDS}
select id from treadle_jobs where id in wanted
union all
select id from treadle_finished where id in wanted
"""  # noqa: S608


def store_jobs(connection: sqlite3.Connection, jobs: Sequence[Job], now: datetime, *, audit_all: bool) -> list[Receipt]:
    """Store new jobs in this transaction; a receipt each, in order. A value that SQLite refuses falls alone."""
    return write_halved(
        jobs,
        lambda part: run(connection, enqueue_script(part, now, audit_all=audit_all)),
        lambda job, error: Receipt(job, created=False, refused=str(error)),
        DATA_ERRORS,
    )


def enqueue_script(jobs: Sequence[Job], now: datetime, *, audit_all: bool) -> Script[list[Receipt]]:
    """Store new jobs; a known id or a taken key answers with the job that was first."""
    stored: dict[str, Job] = {}
    for job in jobs:
        stored.setdefault(job.id, job.stored_at(now))
    keyed = [job for job in stored.values() if job.key is not None]
    first = (yield from _take_keys(keyed, now)) if keyed else {}
    new = [job for job in stored.values() if job.id not in first]
    created = yield from _insert(new, now, audit_all)
    first |= {job.id: job.id for job in new if job.id not in created}
    return receipts_of(jobs, stored, created, (yield from _read(first)) if first else {})


def _take_keys(jobs: Sequence[Job], now: datetime) -> Script[dict[str, str]]:
    """Take the keys of these jobs; of a job that came too late, the id of the one that holds its key."""
    known = {row[0] for row in (yield KNOWN, packed([job.id for job in jobs]))}
    wanted = [key_row(job, now) for job in jobs if job.id not in known]
    yield FREE_DEAD_KEYS, packed(wanted)
    taken = {row[0] for row in (yield TAKE_KEYS, packed(wanted))}
    late = [row for row in wanted if row[3] not in taken]
    return dict((yield HOLDERS, packed(late))) if late else {}


def _insert(jobs: Sequence[Job], now: datetime, audit_all: bool) -> Script[set[str]]:
    """Write these jobs and their events; the ids that were new."""
    created = {row[0] for row in (yield INSERT, packed([row_from(job)[: len(NEW)] for job in jobs]))}
    if audit_all:
        new = [job for job in jobs if job.id in created]
        yield ADD_EVENTS, packed([event_row(_enqueued(job, now)) for job in new])
    return created


def _enqueued(job: Job, now: datetime) -> Event:
    return Event(job.id, 0, now, EventKind.ENQUEUED, "enqueue", "", job.tenant)


def _read(first: dict[str, str]) -> Script[dict[str, Job]]:
    """By the id that was asked for, the job that was first; one that is gone is left out."""
    rows = yield BY_IDS, packed(list(first.values()))
    jobs = {row[0]: job_from(row) for row in rows}
    return {asked: jobs[id_] for asked, id_ in first.items() if id_ in jobs}
