"""Leases: renewing them, and finding those that have run out."""

import json
import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from treadle.engines.rows import MEMO_COLUMNS, memo_from, memo_row, renewal_of
from treadle.engines.sqlite.connection import SHORT_LOCK_TIMEOUT, DatabaseFile, FileLocked
from treadle.engines.sqlite.rows import JOB, job_from, packed, unpack
from treadle.engines.values import Lease, Renewal, RenewalResult
from treadle.model import Job
from treadle.model.clock import from_micros, micros
from treadle.model.memo import Memo

RENEW = f"""
{unpack(("id", "token", "started_at", "progress", "cost_micros"))}
update treadle_jobs as j
set lease_until = ?, started_at = coalesce(c.started_at, j.started_at), progress = coalesce(c.progress, j.progress),
    cost_micros = coalesce(c.cost_micros, j.cost_micros)
from c where j.id = c.id and j.state = 'running' and j.lease_token = c.token
returning id, lease_token, cancel_requested
"""  # noqa: S608

# A memo that is done stays as it is.
REMEMBER = f"""
{unpack(("job", *MEMO_COLUMNS))}
insert into treadle_memos as m (job, {", ".join(MEMO_COLUMNS)})
select * from c where true
on conflict (job, name) do update
set {", ".join(f"{name} = excluded.{name}" for name in MEMO_COLUMNS[1:])}
where m.state <> 'done'
"""  # noqa: S608

MEMOS = f"select {', '.join(MEMO_COLUMNS)} from treadle_memos where job = ? order by name"  # noqa: S608

CANCEL_REQUESTS = """
select id from treadle_jobs
where id in (select value from json_each(?)) and cancel_requested = 1 and state = 'running'
"""


def renew(
    file: DatabaseFile, leases: Sequence[Lease], lease: float, clock: Callable[[], datetime]
) -> list[RenewalResult]:
    """Renew these leases for `lease` seconds and write what the attempts report; an answer each, in order."""
    version = file.version()
    try:
        with file.write(timeout=lease / 6) as connection:
            renewed = _write_renewals(connection, leases, clock() + timedelta(seconds=lease))
    except FileLocked:
        if file.version() != version:
            raise  # others do write, we were only unlucky: these leases may run out
        return _busy_or_lost(file, leases)
    return [
        RenewalResult(held.job_id, Renewal.RENEWED, renewed[held.job_id, held.token])
        if (held.job_id, held.token) in renewed
        else RenewalResult(held.job_id, Renewal.LOST)
        for held in leases
    ]


def read_expired(file: DatabaseFile, limit: int, now: datetime) -> list[Job]:
    """Running jobs whose lease is past and pending jobs whose expires_at is."""
    if not file.read(lambda reader: _past(reader, 1, now)):
        return []
    # Read again while holding the write lock: while others hold it, the holders of these leases cannot renew them.
    with file.write(timeout=SHORT_LOCK_TIMEOUT) as connection:
        return _past(connection, limit, now)


def read_memos(file: DatabaseFile, job_id: str) -> list[Memo]:
    """What this job remembers, by name."""
    return [memo_from(row, from_micros) for row in file.rows(MEMOS, job_id)]


def cancel_requests(file: DatabaseFile, job_ids: Sequence[str]) -> set[str]:
    """Which of these running jobs somebody has asked to stop."""
    return {id_ for (id_,) in file.rows(CANCEL_REQUESTS, json.dumps(list(job_ids)))}


def _write_renewals(
    connection: sqlite3.Connection, leases: Sequence[Lease], until: datetime
) -> dict[tuple[str, str], bool]:
    """By id and token, the leases that were renewed, and whether somebody asked the job to stop."""
    rows = json.dumps([renewal_of(held, micros) for held in leases])
    found = connection.execute(RENEW, (rows, micros(until))).fetchall()
    renewed = {(job_id, token): cancel_requested == 1 for job_id, token, cancel_requested in found}
    holders = [held for held in leases if held.memos and (held.job_id, held.token) in renewed]
    if memos := [(held.job_id, *memo_row(memo, micros)) for held in holders for memo in held.memos]:
        connection.execute(REMEMBER, (packed(memos),))
    return renewed


def _busy_or_lost(file: DatabaseFile, leases: Sequence[Lease]) -> list[RenewalResult]:
    """The file is locked and nobody has written since: nobody can have taken these jobs meanwhile."""
    ours = set(file.peek("select id, lease_token from treadle_jobs where state = 'running'"))
    return [
        RenewalResult(held.job_id, Renewal.BUSY if (held.job_id, held.token) in ours else Renewal.LOST)
        for held in leases
    ]


def _past(connection: sqlite3.Connection, limit: int, now: datetime) -> list[Job]:
    rows = connection.execute(
        f"select {JOB} from treadle_jobs where state = 'running' and lease_until <= ?"  # noqa: S608
        " order by lease_until limit ?",
        (micros(now), limit),
    ).fetchall()
    rows += connection.execute(
        f"select {JOB} from treadle_jobs where state = 'pending' and expires_at <= ?"  # noqa: S608
        " order by expires_at limit ?",
        (micros(now), limit - len(rows)),
    ).fetchall()
    return [job_from(row) for row in rows]
