"""How a job lies in a row of PostgreSQL, and how values travel to it: one JSON text a statement."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from treadle.engines import rows
from treadle.engines.rows import COLUMNS, Row
from treadle.model import Change, Event, EventKind, Job

_TYPES = {
    "id": "uuid", "created_at": "timestamptz", "due_at": "timestamptz", "task_version": "int", "priority": "int",
    "max_attempts": "int", "retry_base": "float8", "retry_cap": "float8", "retry_jitter": "float8",
    "timeout": "float8", "expires_at": "timestamptz", "key_until": "timestamptz", "attempt": "int",
    "failures": "int", "crashes": "int", "claimed_at": "timestamptz", "started_at": "timestamptz",
    "finished_at": "timestamptz", "lease_until": "timestamptz", "cancel_requested": "boolean",
    "cost_micros": "bigint", "revision": "int", "was_revision": "int", "was_lease": "timestamptz", "at": "timestamptz",
    "job": "uuid", "place": "int", "until": "timestamptz", "frees": "boolean",
}  # fmt: skip
JSON = frozenset(("payload", "on_end", "result", "error", "progress"))

JOB = ", ".join(f"{name}::text" if name == "id" or name in JSON else name for name in COLUMNS)
"""What to select for `job_from`; every driver reads it alike."""


def job_from(row: Row) -> Job:
    """The job in a row selected as JOB."""
    return rows.job_from(row, moment)


def job_record(job: Job, names: Sequence[str] = COLUMNS) -> dict[str, Any]:
    """A job as a record of COLUMNS, or of the first of them."""
    return record(names, rows.row_from(job, stored)[: len(names)])


def record(names: Iterable[str], values: Iterable[Any]) -> dict[str, Any]:
    """Names and values as an object; what is left out arrives as null."""
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}


def moment(read: datetime | None) -> datetime | None:
    """A time as read, in UTC, whatever the session's time zone."""
    return None if read is None else read.astimezone(UTC)


def stored(moment: datetime | None) -> str | None:
    """A time as written."""
    return None if moment is None else moment.isoformat()


def storable(text: str) -> bool:
    """Whether the server takes this text at all."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def event_from(row: Row) -> Event:
    """The event in a row (job::text, revision, at, kind, actor, note, tenant)."""
    job_id, revision, at, kind, actor, note, tenant = row
    return Event(job_id, revision, at.astimezone(UTC), EventKind(kind), actor, note, tenant)


def unpack(names: Sequence[str]) -> str:
    """The head of a statement: its parameter as relation `c` with these columns, its single values as `t`.

    The parameter is {"now": …, "rows": […], …}; without a `now`, which only tests give, the server's clock counts.
    It is taken apart once, here: looking into it for every row would read all of it for every row.
    """
    columns = ", ".join(f"{name} {_TYPES.get(name, 'text')}" for name in names)
    return f"""
with recursive p as materialized (
    select * from json_to_record($1::text::json) as p(now timestamptz, rows json, claim json, notify text, lease float8,
        since timestamptz, after uuid, until timestamptz, tasks text[], these boolean)
),
t as materialized (
    select coalesce(p.now, statement_timestamp()) as now, notify, lease, since, after, until, tasks, these from p
),
c as materialized (select c.* from p cross join lateral json_to_recordset(p.rows) as c({columns}))"""


def packed(records: Iterable[dict[str, Any]], now: datetime | None, **more: Any) -> str:
    """The parameter for `unpack`; ValueError for what is not JSON."""
    return json.dumps(
        {"now": stored(now), "rows": list(records), **more}, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )


# ------------------------------------------------------------------------------------------- changes

FENCE_COLUMNS = ("id", "was", "was_revision", "was_token", "was_lease")
_OUTCOME = (
    "state", "reason", "result", "error", "failures", "crashes", "started_at", "finished_at", "lease_token", "progress",
    "cost_micros", "revision", "due_at", "frees",
)  # fmt: skip
_AUDIT = ("kind", "actor", "note", "at")
CHANGE = (*FENCE_COLUMNS, *_OUTCOME, *_AUDIT)
EDIT = (*FENCE_COLUMNS, *COLUMNS[1:], *_AUDIT)

# The whole fence, in one place. Without the token a zombie settles a job that was claimed again; without the revision
# a retry buries a cancel request; without the lease a reaper takes a job whose lease was renewed since it looked.
FENCE = """
j.id = c.id and j.state = c.was and j.revision = c.was_revision
and (c.was_token is null or j.lease_token = c.was_token)
and (c.was_lease is null or j.lease_until = c.was_lease and j.lease_until <= (select now from t))
"""


def fence_record(change: Change) -> dict[str, Any]:
    """What the change compares."""
    return record(FENCE_COLUMNS, rows.fence_of(change, stored))


def change_record(change: Change, *, audit_all: bool) -> dict[str, Any]:
    """A change that ends an attempt, finishes a job or puts it back."""
    after = change.after
    values = (
        after.state, after.reason, after.result_json, rows.small(after.error), after.failures, after.crashes,
        stored(after.started_at), stored(after.finished_at), after.lease_token, rows.small(after.progress),
        after.cost_micros, after.revision, stored(after.due_at), change.frees_key or None,
    )  # fmt: skip
    told = audit_record(change, audit_all=audit_all)
    return fence_record(change) | record(_OUTCOME, values) | told


def edit_record(change: Change, *, audit_all: bool) -> dict[str, Any]:
    """A change that writes most of the row."""
    return job_record(change.after) | fence_record(change) | audit_record(change, audit_all=audit_all)


def audit_record(change: Change, *, audit_all: bool) -> dict[str, Any]:
    """The audit line of a change; without a `what` none is written."""
    if not (audit_all or change.always_audited or change.kind.noteworthy):
        return {}
    return record(_AUDIT, (change.kind, change.actor, change.note, stored(change.at)))
