"""A row of an application's table as a job with its past; pure. What does not fit is said of the row and the column."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from treadle.errors import InvalidJob
from treadle.importers.table_map import TableMap
from treadle.model import MESSAGE_CAP, PAYLOAD_CAP, UUID, Job, JobError, Reason, Scope, State, new_id
from treadle.model.checks import TRACEBACK_CAP
from treadle.model.job import checked
from treadle.model.records import derived_id

MILLISECONDS_FROM = 1e11  # numbers from here on are milliseconds: as seconds they would lie in the year 5138

STATES = {
    "pending": State.PENDING, "scheduled": State.PENDING, "retrying": State.PENDING, "running": State.RUNNING,
    "claimed": State.RUNNING, "succeeded": State.SUCCEEDED, "failed": State.FAILED, "dead": State.FAILED,
    "cancelled": State.CANCELLED, "expired": State.CANCELLED,
}  # fmt: skip


class Misfit(NamedTuple):
    """A row that cannot be a job: its id, the column, why, and what to do about it."""

    row: str
    column: str
    why: str
    way_out: str

    def __str__(self) -> str:
        return f"row {self.row}: {self.column}: {self.why}; {self.way_out}"


class Past(NamedTuple):
    """A job with its past, and when something happened to it last."""

    job: Job
    at: datetime
    row: str


class _Unfit(Exception):
    """What is wrong with a field of a row."""

    def __init__(self, field: str, why: str, way_out: str = "correct the row") -> None:
        super().__init__(why)
        self.field, self.why, self.way_out = field, why, way_out


def past_of(values: dict[str, Any], table_map: TableMap, table: str, now: datetime) -> Past | Misfit:
    """The row as a job, or why it cannot be one."""
    row = _Row(values, table_map)
    id_ = str(row.get("id"))[:100]
    try:
        return _past(row, table, now)._replace(row=id_)
    except _Unfit as unfit:
        return Misfit(id_, table_map.column(unfit.field), unfit.why, unfit.way_out)
    except InvalidJob as invalid:
        field = _column_for(invalid.field, table_map)
        why = str(invalid).removeprefix(f"{invalid.field}: ")
        return Misfit(id_, table_map.column(field), why, "correct the row, or map another column")


def _column_for(field: str, table_map: TableMap) -> str:
    """The field of the map that says what is wrong with this field of a job."""
    field = {"retry": "max_attempts", "unique": "key"}.get(field, field)
    return "max_retries" if field == "max_attempts" and "max_retries" in table_map.columns else field


class _Row:
    """The values of a row by field."""

    def __init__(self, values: dict[str, Any], table_map: TableMap) -> None:
        self._values = values
        self.map = table_map

    def get(self, field: str) -> Any:
        """What the row has of a field, or the default; None if neither has anything."""
        if field not in self.map.columns:
            return self.map.defaults.get(field)
        name, *path = self.map.columns[field]
        value = self._values[name]
        for key in path:
            value = _json(field, value)
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def text(self, field: str) -> str | None:
        value = self.get(field)
        if isinstance(value, bytes):
            raise _Unfit(field, "is binary, and must be text", "read the table through a view that shows it as text")
        return None if value is None else str(value)

    def number(self, field: str, otherwise: int | None = None) -> int | None:
        value = self.get(field)
        if value is None:
            return otherwise
        try:
            return round(float(value)) if isinstance(value, float) else int(value)
        except (TypeError, ValueError):
            raise _Unfit(field, f"{_short(value)} is not a whole number") from None

    def seconds(self, field: str) -> float | None:
        value = self.get(field)
        try:
            return None if value is None else float(value)
        except (TypeError, ValueError):
            raise _Unfit(field, f"{_short(value)} is not a number of seconds") from None

    def time(self, *fields: str) -> datetime | None:
        """The first of these fields that has a time."""
        found = (_time(field, self.get(field)) for field in fields)
        return next((moment for moment in found if moment is not None), None)

    def json_text(self, field: str) -> str | None:
        value = self.get(field)
        if value is None or (isinstance(value, str) and not value.strip()):
            return None
        if len(self.map.columns.get(field, ())) > 1:
            return json.dumps(value, ensure_ascii=False)
        text = str(value) if not isinstance(value, bytes) else value.decode(errors="replace")
        _json(field, text)
        if (size := len(text.encode(errors="replace"))) > PAYLOAD_CAP:
            why = f"is {size:,} bytes; the limit is {PAYLOAD_CAP:,}"
            raise _Unfit(field, why, "keep it elsewhere, and a reference here")
        return text


def _json(field: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise _Unfit(field, f"{_short(value)} is not JSON ({error})") from None


def _time(field: str, value: Any) -> datetime | None:
    """A time as tables have it: with a zone or in UTC, as text, or in seconds or milliseconds since 1970."""
    if value is None or value == "":
        return None
    try:
        number = _number(value)
        if number is not None:
            seconds = number / 1000 if abs(number) >= MILLISECONDS_FROM else number
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
        moment = datetime.fromisoformat(value)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        raise _Unfit(field, f"{_short(value)} is not a time; write ISO 8601, or seconds since 1970") from None


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


# ------------------------------------------------------------------------------------------------- the job


class _Tries(NamedTuple):
    """How often a job was tried, and how often it failed."""

    most: int
    failures: int
    attempt: int
    spent: bool


def _past(row: _Row, table: str, now: datetime) -> Past:
    label = _label(row)
    state = STATES[label]
    times = {field: row.time(field) for field in ("updated_at", "claimed_at", "started_at")}
    ended = row.time("finished_at", "succeeded_at", "cancelled_at")
    known = [moment for moment in (*times.values(), ended) if moment is not None]
    written = row.time("created_at")
    created = written or min(known, default=now)
    changed = max([created, *known])
    claimed, started = times["claimed_at"], times["started_at"]
    if state is State.RUNNING:
        claimed = claimed or started or times["updated_at"] or created
    if label == "running" or (state.final and "started_at" not in row.map.columns):
        started = started or claimed
    retry = row.map.retry
    tries = _tries(row, label, state, retry.max_attempts)
    job = Job(
        _id(row, table, written),
        _needed(row, "task"),
        row.json_text("payload") or "{}",
        created,
        row.time("retry_at", "due_at") or created,
        tenant=row.text("tenant") or "default",
        queue=row.text("queue") or "default",
        lane=row.text("lane") or "",
        task_version=row.number("task_version", 1) or 1,
        priority=row.number("priority", 0) or 0,
        retry=retry._replace(max_attempts=tries.most),
        timeout=row.seconds("timeout"),
        expires_at=row.time("expires_at"),
        state=state,
        reason=_reason(label, state, tries),
        result_json=row.json_text("result"),
        error=_error(row, tries, changed),
        attempt=tries.attempt,
        failures=tries.failures,
        claimed_at=claimed,
        started_at=started,
        finished_at=(ended or changed) if state.final else None,
        worker=row.text("worker"),
        cost_micros=(row.number("cost_micros", 0) or 0) + 10_000 * (row.number("cost_cents", 0) or 0),
        **_key(row),
    )
    if state is State.RUNNING and claimed is not None:
        until = row.time("lease_until") or claimed + timedelta(seconds=row.map.lease)
        job = job.evolve(lease_until=until, lease_token=new_id())
    return Past(checked(job), changed, "")


def _label(row: _Row) -> str:
    if "state" not in row.map.columns:
        return str(row.map.defaults["state"])
    word = row.text("state")
    label = row.map.states.get(word or "")
    if label is None:
        way_out = f'say under [states] what it means: {json.dumps(word or "")} = "failed"'
        raise _Unfit("state", f"{word!r} is none of the words of the map", way_out)
    return label


def _id(row: _Row, table: str, created: datetime | None) -> str:
    """The row's own id, if it is a UUID; else one made from it, the same for ever."""
    text = str(row.get("id"))
    own = text.lower()
    return own if UUID.fullmatch(own) else derived_id(f"import\x1f{table}\x1f{text}", created)


def _needed(row: _Row, field: str) -> str:
    value = row.text(field)
    if not value:
        raise _Unfit(field, "is empty")
    return value


def _key(row: _Row) -> dict[str, Any]:
    key = row.text("key")
    return {} if key is None else {"key": key, "key_scope": Scope(row.map.defaults.get("key_scope", "active"))}


def _tries(row: _Row, label: str, state: State, usual: int) -> _Tries:
    """From whichever of these counts the table has."""
    retries = row.number("max_retries")
    most = row.number("max_attempts", usual) or 0
    if "max_attempts" not in row.map.columns and retries is not None:
        most = retries + 1
    attempt = row.number("attempt", 0) or 0
    under_way = state in (State.RUNNING, State.SUCCEEDED)
    failed = next((n for n in (row.number("failures"), row.number("retries")) if n is not None), attempt - under_way)
    failed = max(min(failed, most - 1), 0)
    spent = state is State.FAILED and (label == "dead" or failed >= most - 1)
    attempt = max(attempt, failed + (under_way or state is State.FAILED))
    return _Tries(most, most if spent else failed, attempt, spent)


def _reason(label: str, state: State, tries: _Tries) -> Reason | None:
    if state is State.FAILED:
        return Reason.EXHAUSTED if tries.spent else Reason.PERMANENT
    if state is State.CANCELLED:
        return Reason.EXPIRED if label == "expired" else Reason.BY_REQUEST
    return None


def _error(row: _Row, tries: _Tries, changed: datetime) -> JobError | None:
    trace = row.text("error_traceback") or ""
    text = row.text("error_text") or (trace.strip().splitlines() or [""])[-1]
    if not text:
        return None
    at = row.time("error_at") or changed
    kind = (row.text("error_type") or "")[:200]
    return JobError(kind, text[:MESSAGE_CAP], trace[-TRACEBACK_CAP:], tries.attempt, at.isoformat())
