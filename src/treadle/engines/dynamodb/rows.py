"""How jobs and records are written as items, and read from them.

A field of a job that has its default is left out, so a plain job has eight attributes. A record is an item in the
partition of its kind, its fields by their names, None left out.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from treadle.engines.dynamodb.items import (
    Item,
    ItemKey,
    Value,
    id_of,
    moment_of,
    part_of,
    plain,
    text_of,
    time_of,
    value_of,
)
from treadle.engines.dynamodb.pieces import check_text, large_texts, text_item
from treadle.engines.records import TABLES, table_of, value_from
from treadle.engines.records import record_from as read_record
from treadle.engines.rows import on_end_from, on_end_text, small
from treadle.model import UUID, Job, JobError, Progress, Reason, Scope, State
from treadle.model.records import Pause, Record, Schedule, Seal
from treadle.model.retry import Retry

_DEFAULTS = Job("", "", "", datetime.min.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC))
# The attribute of each field that is written where it is not the default.
_FIELDS = {
    "tenant": "tenant", "queue": "queue", "lane": "lane", "task_version": "task_version", "priority": "priority",
    "timeout": "timeout", "expires_at": "expires_at", "key": "key", "key_scope": "key_scope", "key_until": "key_until",
    "schedule": "schedule", "trace": "trace", "reason": "reason", "crashes": "crashes", "claims": "attempt",
    "attempts": "failures", "claimed_at": "claimed_at", "started_at": "started_at", "completed_at": "finished_at",
    "locked_by": "worker", "lock_expires_at": "lease_until", "lease_token": "lease_token",
    "cancel_requested": "cancel_requested", "cost_micros": "cost_micros", "revision": "revision",
}  # fmt: skip
_RETRY = Retry()


def attributes_of(job: Job) -> Item:
    """The attributes of a job, without the keys; ValueError for what no store takes."""
    item: Item = {
        "job_type": {"S": job.task},
        "scheduled_for": {"S": text_of(job.due_at)},
        "status": {"S": job.state.value},
        "created_at": {"S": text_of(job.created_at)},
        "attempts": {"N": "0"},
    }
    for attribute, field in _FIELDS.items():
        value = getattr(job, field)
        if value is not None and value != getattr(_DEFAULTS, field):
            item[attribute] = value_of(value)
    if job.retry != _RETRY:
        item |= _retry_attributes(job.retry)
    if job.on_end is not None:
        item["on_end"] = {"S": on_end_text(job.on_end) or ""}
    if job.progress is not None:
        item["progress"] = {"S": small(job.progress) or ""}
    for name, text in large_texts(job).items():
        item |= text_item(name, text)
    for value in item.values():
        check_text(value.get("S", ""))
    return item


def job_from(item: Mapping[str, Value], texts: Mapping[str, str] | None = None) -> Job:
    """The job in a due item or a record; `texts` are those that lie in pieces."""
    at = plain(item)
    if texts:
        at.update(texts)
    error, progress = at.get("last_error"), at.get("progress")
    return Job(
        id_of(item),
        at["job_type"],
        at.get("payload", "{}") if isinstance(at.get("payload", ""), str) else _json_of(item["payload"]),
        moment_of(at.get("created_at", at["scheduled_for"])),
        moment_of(at["scheduled_for"]),
        at.get("tenant", "default"),
        at.get("queue", "default"),
        at.get("lane", ""),
        int(at.get("task_version", 1)),
        int(at.get("priority", 0)),
        _retry(item),
        float(at["timeout"]) if "timeout" in at else None,
        time_of(at.get("expires_at")),
        at.get("key"),
        Scope(at["key_scope"]) if "key_scope" in at else None,
        time_of(at.get("key_until")),
        at.get("schedule"),
        on_end_from(at.get("on_end")),
        at.get("trace"),
        State(at["status"]),
        Reason(at["reason"]) if "reason" in at else None,
        at.get("result"),
        _error(error) if error else None,
        int(at.get("claims", 0)),
        int(at.get("attempts", 0)),
        int(at.get("crashes", 0)),
        time_of(at.get("claimed_at")),
        time_of(at.get("started_at")),
        time_of(at.get("completed_at")),
        at.get("locked_by"),
        time_of(at.get("lock_expires_at")),
        at.get("lease_token"),
        bool(at.get("cancel_requested", False)),
        Progress(**json.loads(progress)) if progress else None,
        int(at.get("cost_micros", 0)),
        int(at.get("revision", 0)),
    )


def is_ours(item: Mapping[str, Value]) -> bool:
    """Whether this is the due item of a job that we can read: what other programs put there may be anything."""
    try:
        return job_from(item).state in (State.PENDING, State.RUNNING) and bool(UUID.fullmatch(id_of(item)))
    except (KeyError, ValueError, TypeError, AttributeError):
        return False


FOREIGN_WORDS = {"in_progress": "running", "completed": "succeeded", "failed": "pending", "dead_letter": "failed"}
"""What another program may call the states of the jobs that it runs itself: failed will be retried, there."""


def foreign_job(item: Item) -> Job | None:
    """The job in an item that another program has written, and perhaps runs itself; None if nobody can read it."""
    status = item.get("status", {}).get("S", "")
    try:
        return job_from({**item, "status": {"S": FOREIGN_WORDS.get(status, status)}})
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


def _error(text: str) -> JobError:
    try:
        return JobError(**json.loads(text))
    except (ValueError, TypeError):  # written by another program
        return JobError("", text, "", 0, "")


def _json_of(value: Value) -> str:
    """JSON text of a value that another program has stored as a map or a list."""
    return json.dumps(_untyped(value), ensure_ascii=False, separators=(",", ":"))


def _untyped(value: Value) -> Any:
    [(kind, inner)] = value.items()
    match kind:
        case "M":
            return {name: _untyped(one) for name, one in inner.items()}
        case "L":
            return [_untyped(one) for one in inner]
        case "N":
            return json.loads(inner)
        case "NULL":
            return None
        case "S" | "BOOL":
            return inner
        case _:
            raise ValueError(f"a value of type {kind} has no JSON form")


def _retry_attributes(retry: Retry) -> Item:
    item: Item = {}
    for name, value in retry._asdict().items():
        if value != getattr(_RETRY, name):
            attribute = name if name == "max_attempts" else f"retry_{name}"
            item[attribute] = {"NULL": True} if value is None else value_of(value)
    return item


def _retry(item: Mapping[str, Value]) -> Retry:
    def number(name: str, default: float | None) -> float | None:
        value = item.get(f"retry_{name}")
        return default if value is None else None if "NULL" in value else float(value["N"])

    attempts = int(item["max_attempts"]["N"]) if "max_attempts" in item else _RETRY.max_attempts
    base, jitter = number("base", _RETRY.base), number("jitter", _RETRY.jitter)
    return Retry._make((attempts, base or 0.0, number("cap", _RETRY.cap), jitter or 0.0))


# ------------------------------------------------------------------------------------------- records

_FLOATS = frozenset(
    name for kind in TABLES for name, type_ in kind.__annotations__.items() if type_ in (float, float | None)
)


def record_key(record: Record) -> ItemKey:
    table = table_of(record)
    return ItemKey(table.name, "#".join(_part(getattr(record, name)) for name in table.key))


def named_key(kind: type[Any], named: Mapping[str, str]) -> ItemKey:
    """Where the record of a kind lies whose key has these values."""
    table = TABLES[kind]
    return ItemKey(table.name, "#".join(_part(named[name]) for name in table.key))


def tenant_range(tenant: str) -> tuple[str, str]:
    """Between which sort keys the records of a tenant lie."""
    return f"{_part(tenant)}#", f"{_part(tenant)}$"  # $ is the character that follows #


def _part(value: str | int) -> str:
    return f"{value:010d}" if isinstance(value, int) else part_of(value)


def tick_key(schedule: Schedule) -> ItemKey:
    """The item that says when a schedule is due; one without a time comes first."""
    return ItemKey("ticks", f"{text_of(schedule.next_at)}#{record_key(schedule).sk}")


def ticked_key(tick: Mapping[str, Value]) -> ItemKey:
    """The key of the schedule that a tick is for."""
    return ItemKey(TABLES[Schedule].name, str(tick["SK"]["S"]).partition("#")[2])


def record_item(record: Record) -> Item:
    """A record's attributes, without the keys; of a payload that is too large, only what its pieces are found by."""
    item: Item = {}
    for name, value in zip(record._fields, record, strict=True):
        stored = stored_value(name, value)
        if stored is not None:
            item[name] = stored
    if isinstance(record, Schedule) and (text := payload_of(record)) is not None:
        del item["payload"]
        item |= text_item("payload", text)
    return item


def stored_value(name: str, value: Any) -> Value | None:
    """One field as an attribute; None if it is left out."""
    stored = value_from(name, value, lambda moment: moment)
    return None if stored is None else value_of(stored)


def payload_of(schedule: Schedule) -> bytes | None:
    stored = stored_value("payload", schedule.payload)
    return None if stored is None else str(stored["S"]).encode()


def record_from(kind: type[Any], item: Mapping[str, Value], payload: str | None = None) -> Any:
    """The record in an item; `payload` is given if it is not in it."""
    fields = {**item, "payload": {"S": payload}} if payload is not None else item
    if kind is Seal and "lines" in item:  # written before events were called events
        fields = {**item, "events": item["lines"]}
    if kind is Pause and "owner" not in item:  # written before a pause said whose it is
        fields = {**item, "owner": {"S": "budget" if item["actor"] == {"S": "budget"} else "operator"}}
    return read_record(kind, tuple(_plain(name, fields.get(name)) for name in kind._fields), time_of)


def _plain(name: str, value: Value | None) -> Any:
    if value is None:
        return None
    [(kind, stored)] = value.items()
    if kind == "N":
        return float(stored) if name in _FLOATS else int(stored)
    return stored
