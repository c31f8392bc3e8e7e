"""Leases: renewing them, and finding those that are past."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from treadle.engines.postgres.rows import JOB, job_from, packed, record, stored, unpack
from treadle.engines.postgres.session import PostgresStore
from treadle.engines.rows import MEMO_COLUMNS, Row, memo_from, memo_row, renewal_of
from treadle.engines.values import Lease, Renewal, RenewalResult
from treadle.model import Job
from treadle.model.memo import Memo

RENEWAL_BATCH = 500  # leases renewed by one statement
_RENEWAL = ("id", "token", "started_at", "progress", "cost_micros")

_MINE = f"""
{unpack((*_RENEWAL, "memos"))},
mine as materialized (
    select c.*, j.tenant from c cross join lateral (
        select j.tenant from @.jobs j
        where j.id = c.id and j.state || '' = 'running' and j.lease_token = c.token
        limit 1 for update skip locked
    ) j
)"""

_RENEW = """
update @.jobs j
set lease_until = t.now + make_interval(secs => t.lease),
    started_at = coalesce(m.started_at, j.started_at), progress = coalesce(m.progress::json, j.progress),
    cost_micros = coalesce(m.cost_micros, j.cost_micros)
from mine m, t
where j.id = m.id and j.state || '' = 'running' and j.lease_token || '' = m.token
returning j.id::text, j.lease_token, j.cancel_requested, t.now
"""
EXTEND = (
    _MINE + _RENEW
)  # state || '' is state: on a table that was never analysed the index of all leases would offer itself

# The lock of `mine` is the fence. Without it a holder that was replaced meanwhile could still commit a memo.
REMEMBER = f"""{_MINE},
noted as (
    insert into @.memos as k (job, tenant, {", ".join(MEMO_COLUMNS)})
    select m.id, m.tenant, {", ".join("n.value::json" if name == "value" else f"n.{name}" for name in MEMO_COLUMNS)}
    from mine m cross join lateral json_to_recordset(m.memos::json) as n(
        name text, kind text, state text, attempt int, began_at timestamptz, at timestamptz, value text)
    on conflict (job, name) do update
    set {", ".join(f"{name} = excluded.{name}" for name in MEMO_COLUMNS[1:])}
    where k.state <> 'done'
){_RENEW}"""

_AS_READ = ", ".join("value::text" if name == "value" else name for name in MEMO_COLUMNS)
MEMOS = f'select {_AS_READ} from @.memos where job = $1::text::uuid order by name collate "C"'

STILL_HELD = """
with wanted as materialized (select value::uuid as id from json_array_elements_text($1::text::json))
select j.id::text, j.lease_token from wanted w cross join lateral (
    select j.id, j.lease_token from @.jobs j where j.id = w.id and j.state || '' = 'running' limit 1
) j
"""

CANCEL_REQUESTS = """
with wanted as materialized (select value::uuid as id from json_array_elements_text($1::text::json))
select j.id::text from wanted w cross join lateral (
    select j.id from @.jobs j where j.id = w.id and j.state || '' = 'running' and j.cancel_requested limit 1
) j
"""

EXPIRED = f"""
with t as materialized (select coalesce(%(now)s::timestamptz, statement_timestamp()) as now)
select t.now, past.* from t left join (
    (select {JOB} from @.jobs where state = 'running' and lease_until <= (select now from t)
    order by lease_until limit %(limit)s)
    union all
    (select {JOB} from @.jobs where state = 'pending' and expires_at <= (select now from t)
    order by expires_at limit %(limit)s)
    limit %(limit)s
) past on true
"""


def extend(store: PostgresStore, leases: Sequence[Lease], lease: float, now: datetime | None) -> list[RenewalResult]:
    """Renew these leases for `lease` seconds; an answer each, in order."""
    now, timeout = store.clock.written(now), max(1.0, lease / 6)
    results: list[RenewalResult] = []
    for start in range(0, len(leases), RENEWAL_BATCH):
        results += _extend(store, leases[start : start + RENEWAL_BATCH], lease, now, timeout)
    return results


def _extend(
    store: PostgresStore, leases: Sequence[Lease], lease: float, now: datetime | None, timeout: float
) -> list[RenewalResult]:
    text = packed([renewal_record(held) for held in leases], now, lease=lease)
    statement = REMEMBER if any(held.memos for held in leases) else EXTEND
    rows = store.session.send(statement, text, answer_timeout=timeout)
    if rows:
        store.clock.sync(rows[0][3])
    renewed = {(id_, token): cancel_requested for id_, token, cancel_requested, _ in rows}
    missing = [held.job_id for held in leases if (held.job_id, held.token) not in renewed]
    ours: set[Row] = set()
    if missing:  # a job that is still ours is locked by another open transaction: nobody can take it meanwhile
        ours = set(store.session.send(STILL_HELD, json.dumps(missing), answer_timeout=timeout))
    return [
        RenewalResult(held.job_id, Renewal.RENEWED, renewed[held.job_id, held.token])
        if (held.job_id, held.token) in renewed
        else RenewalResult(held.job_id, Renewal.BUSY if (held.job_id, held.token) in ours else Renewal.LOST)
        for held in leases
    ]


def cancel_requests(store: PostgresStore, job_ids: Sequence[str]) -> set[str]:
    """Which of these running jobs somebody has asked to stop."""
    return {id_ for (id_,) in store.session.send(CANCEL_REQUESTS, json.dumps(list(job_ids)))}


def renewal_record(held: Lease) -> dict[str, Any]:
    """A renewal as EXTEND takes it."""
    renewal = record(_RENEWAL, renewal_of(held, stored))
    if held.memos:
        renewal["memos"] = [record(MEMO_COLUMNS, memo_row(memo, stored)) for memo in held.memos]
    return renewal


def memos(store: PostgresStore, job_id: str) -> list[Memo]:
    """What this job remembers, by name."""
    return [memo_from(row, _in_utc) for row in store.session.send(MEMOS, job_id)]


def _in_utc(read: datetime) -> datetime:
    return read.astimezone(UTC)


def expired(store: PostgresStore, limit: int, now: datetime | None) -> list[Job]:
    """Running jobs whose lease is past, and pending jobs whose expires_at is."""
    rows = store.session.read(EXPIRED, {"now": store.clock.written(now), "limit": limit})
    store.clock.sync(
        rows[0][0]
    )  # if the server's clock was set forward, our own must follow before leases count as past
    return [job_from(row[1:]) for row in rows if row[1] is not None]
