"""The mapping between jobs and rows of PostgreSQL, and the one JSON text that a statement takes as its parameter."""

import json
import struct
import textwrap
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from treadle.engines import rows
from treadle.engines.rows import COLUMNS, NEW, Row
from treadle.model import Change, Event, EventKind, Job
from treadle.model.change import Write

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

_TYPES = {
    "id": "uuid", "created_at": "timestamptz", "due_at": "timestamptz", "task_version": "int", "priority": "int",
    "max_attempts": "int", "retry_base": "float8", "retry_cap": "float8", "retry_jitter": "float8",
    "timeout": "float8", "expires_at": "timestamptz", "key_until": "timestamptz", "attempt": "int",
    "failures": "int", "crashes": "int", "claimed_at": "timestamptz", "started_at": "timestamptz",
    "finished_at": "timestamptz", "lease_until": "timestamptz", "cancel_requested": "boolean",
    "cost_micros": "bigint", "revision": "int", "was_revision": "int", "was_lease": "timestamptz", "at": "timestamptz",
    "job": "uuid", "position": "int", "until": "timestamptz", "frees": "boolean",
    "takes": "boolean",
}  # fmt: skip
JSON = frozenset(("payload", "on_end", "result", "error", "progress"))

JOB = ", ".join(f"{name}::text" if name == "id" or name in JSON else name for name in COLUMNS)
"""What to select for `job_from`; every driver reads it the same way."""


def job_from(row: Row) -> Job:
    """The job in a row selected as JOB, or in one of the type job_row."""
    return rows.job_from(row[: len(COLUMNS)], moment)


def job_record(job: Job) -> dict[str, Any]:
    """A job as a record of COLUMNS."""
    return record(COLUMNS, rows.row_from(job, stored))


def new_record(job: Job) -> dict[str, Any]:
    """A new job as a record of NEW."""
    row = rows.row_from(job, stored)
    return record(NEW, (*row[: len(NEW) - 1], row[-1]))


def record(names: Iterable[str], values: Iterable[Any]) -> dict[str, Any]:
    """Names and values as an object; a None is left out and arrives as null."""
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}


def moment(read: datetime | None) -> datetime | None:
    """A time as read, in UTC, whatever the time zone of the connection is."""
    return None if read is None else read.astimezone(UTC)


def row_in(result: "PGresult", number: int) -> Row:
    """A row of the type job_row, in the server's binary form; its last column, the summary, is the trace of a job.

    It needs no connection, which may be closed by now.
    """
    value = result.get_value
    return tuple(
        None if (found := value(number, place)) is None else read(found) for place, read in enumerate(_READERS)
    )


def moment_in(value: bytes) -> datetime:
    """A time in the server's binary form: microseconds since 2000."""
    return _Y2000 + timedelta(microseconds=number_in(value))


def number_in(value: bytes) -> int:
    """A whole number in the server's binary form."""
    return int.from_bytes(value, "big", signed=True)


_Y2000 = datetime(2000, 1, 1, tzinfo=UTC)
_FLOAT = struct.Struct(">d")
_READ: dict[str, Callable[[bytes], Any]] = {
    "timestamptz": moment_in,
    "int": number_in,
    "bigint": number_in,
    "float8": lambda value: _FLOAT.unpack(value)[0],
    "boolean": lambda value: value != b"\0",
}
_READERS = [_READ.get(_TYPES.get(name, ""), bytes.decode) for name in COLUMNS]


def stored(moment: datetime | None) -> str | None:
    """A time as written."""
    return None if moment is None else moment.isoformat()


def as_given(moment: datetime | None) -> datetime | None:
    """A time as the driver takes it."""
    return moment


def storable(text: str) -> bool:
    """Whether the server can store this text."""
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
    """The head of a statement: the parameter's rows as relation `c` with these columns, its single values as `t`.

    The parameter is {"now": …, "rows": […], …}. Only tests give a `now`; without it the server's clock counts. The JSON
    is parsed once, here: parsing it for each row would parse all of it each time.
    """
    columns = listed(f"{name} {_TYPES.get(name, 'text')}" for name in names)
    return f"""
with recursive p as materialized (
    select * from json_to_record($1::text::json) as p(now timestamptz, rows json, lease float8,
        since timestamptz, after uuid, until timestamptz, tasks text[], these boolean)
),
t as materialized (
    select coalesce(p.now, statement_timestamp()) as now, lease, since, after, until, tasks, these from p
),
c as materialized (
    select c.* from p cross join lateral json_to_recordset(p.rows) as c(
        {columns})
)"""


def listed(names: Iterable[str]) -> str:
    """Names with commas, broken into lines between two of them."""
    joined = ", ".join(name.replace(" ", "\0") for name in names)
    return textwrap.fill(joined, 110, subsequent_indent=" " * 8, break_long_words=False).replace("\0", " ")


def packed(records: Iterable[dict[str, Any]], now: datetime | None, **more: Any) -> str:
    """The parameter for `unpack`; ValueError if a value has no JSON."""
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
EDIT = (*FENCE_COLUMNS, *COLUMNS[1:], *_AUDIT)

# The whole fence, in one place. Without the token, a zombie could settle a job that was claimed again. Without the
# revision, a retry could bury a cancel request. Without the lease, recovery could take a job whose lease was renewed
# after it was read.
FENCE = """j.id = c.id and j.state = c.was and j.revision = c.was_revision
    and (c.was_token is null or j.lease_token = c.was_token)
    and (c.was_lease is null or j.lease_until = c.was_lease and j.lease_until <= (select now from t))"""


def fence_record(change: Change) -> dict[str, Any]:
    """What the change compares."""
    return record(FENCE_COLUMNS, rows.fence_of(change, stored))


def change_record(change: Change, *, audit_all: bool) -> dict[str, Any]:
    """A change that finishes a job or puts it back, for SETTLE."""
    after = change.after
    values = (
        after.state, after.reason, after.result_json, rows.small(after.error), after.failures, after.crashes,
        stored(after.started_at), stored(after.finished_at), after.lease_token, rows.small(after.progress),
        after.cost_micros, after.revision, stored(after.due_at), change.frees_key or None,
    )  # fmt: skip
    return fence_record(change) | record(_OUTCOME, values) | audit_record(change, audit_all=audit_all)


def edit_record(change: Change, *, audit_all: bool) -> dict[str, Any]:
    """A change that writes most of the row, for REPLACE and REVIVE."""
    job = job_record(change.after)
    if change.write is Write.REVIVE and change.after.payload_json == change.before.payload_json:
        del job["payload"]
    return job | fence_record(change) | audit_record(change, audit_all=audit_all)


def audit_record(change: Change, *, audit_all: bool) -> dict[str, Any]:
    """The audit event of a change; without a `kind` none is written."""
    if not change.audited(audit_all):
        return {}
    return record(_AUDIT, (change.kind, change.actor, change.note, stored(change.at)))
