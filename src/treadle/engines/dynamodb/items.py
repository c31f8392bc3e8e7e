"""How a job lies in the table: items, their keys, and what becomes too large for one.

A pending or running job is a *due item*: its partition is a slot's (slots.py), its sort key its due time and id. An *id
item* beside it proves that the id was taken, says where the due item is and becomes the record once the job has
finished. A field that is left at its default is left out, so a plain job is eight attributes.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple
from zlib import crc32

from treadle.engines.rows import on_end_from, on_end_text, small
from treadle.model import UUID, Job, JobError, Progress, Reason, Scope, State, holds_nul
from treadle.model.retry import Retry

Value = dict[str, Any]
"""A value as DynamoDB writes it: {"S": "text"}, {"N": "1"}."""
Item = dict[str, Value]

INLINE = 600  # bytes of a payload, result or error that stay in the item: with them it is under 1 KB, one write unit
PIECE = 380_000  # bytes in one item of a larger one; the store takes 400 KB with all names
LONGEST_NAME = 900  # bytes; a sort key holds 1,024
LONGEST_PART = 400  # bytes of one name in a sort key that begins with it
SPILLED = ("payload", "result", "last_error")


class Place(NamedTuple):
    """The key of an item."""

    pk: str
    sk: str

    @property
    def key(self) -> Item:
        return {"PK": {"S": self.pk}, "SK": {"S": self.sk}}


class Slot(NamedTuple):
    """A range of due jobs: of a queue, a lane and a priority.

    What a claim met and could not take lies apart: filed by task and version, or parked by tenant too.
    """

    queue: str
    lane: str
    priority: int
    hashed: bool = False  # the lane is a number that many lanes share
    task: str = ""
    version: int = 0
    tenant: str = ""

    @property
    def name(self) -> str:
        lane = f"~{self.lane}" if self.hashed else _quoted(self.lane)
        filed = f"#{_quoted(self.task)}@{self.version}" if self.task else ""
        parked = f"#{_quoted(self.tenant)}" if self.tenant else ""
        return _short(f"{_quoted(self.queue)}#{lane}#{self.priority}{filed}{parked}")

    @property
    def place(self) -> Place:
        """Where it is written down."""
        return Place("slots", self.name)

    def partition(self, shard: int) -> str:
        plain = self == PLAIN and shard == 0
        return "job" if plain else f"job#{self.name}#{shard}"


PLAIN = Slot("default", "", 0)
GATE = Place("slots", "gate")  # the version of the gate, in the partition that every claim reads; no slot is named so


def due_place(job: Job, slot: Slot, shards: int) -> Place:
    """Where a due item of this job goes now."""
    return Place(slot.partition(crc32(job.id.encode()) % shards), f"scheduled#{text_of(job.due_at)}#{job.id}")


def id_place(job_id: str, spread: int) -> Place:
    """Where the id item of a job is, for ever: told by the id alone."""
    return Place(f"id#{crc32(job_id.encode()) % spread:02x}", job_id)


def key_place(tenant: str, task: str, key: str) -> Place:
    return Place(f"key#{_short(f'{_quoted(tenant)}#{_quoted(task)}#{_quoted(key)}')}", "key")


def part_of(name: str) -> str:
    """A name as the beginning of a sort key: quoted, and short enough that others fit behind it."""
    quoted = _quoted(name)
    return quoted if len(quoted.encode(errors="replace")) <= LONGEST_PART else f"~{sha256(name.encode()).hexdigest()}"


def _quoted(text: str) -> str:
    """A name as a part of a key; the signs between the parts are written otherwise."""
    return text.replace("%", "%25").replace("#", "%23").replace("~", "%7E")


def _short(name: str) -> str:
    """The name, or its digest where a sort key could not hold it."""
    return name if len(name.encode(errors="replace")) <= LONGEST_NAME else f"#{sha256(name.encode()).hexdigest()}"


# -------------------------------------------------------------------------------------------- values


def text_of(moment: datetime | None) -> str:
    """A time in one fixed width, so that text sorts as time does."""
    if moment is None:
        return ""
    return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def time_of(text: str | None) -> datetime | None:
    return moment_of(text) if text else None


def holder_of(key: Mapping[str, Value] | None) -> str | None:
    """The id of the job that a key item is for."""
    return key["job"]["S"] if key and "job" in key else None


def moment_of(text: str) -> datetime:
    """A stored time; one without a zone, by another program, is UTC."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def value_of(value: Any) -> Value:
    match value:
        case bool():
            return {"BOOL": value}
        case int() | float():
            return {"N": repr(value).removesuffix(".0")}  # as the service itself writes it
        case str():
            return {"S": str(value)}
        case datetime():
            return {"S": text_of(value)}
        case _:
            raise ValueError(f"{value!r} has no place in an item")


def plain(item: Mapping[str, Value]) -> dict[str, Any]:
    """An item's attributes as plain values; numbers as they are written."""
    return {name: next(iter(value.values())) for name, value in item.items() if "NULL" not in value}


# ---------------------------------------------------------------------------------------------- jobs

_DEFAULTS = Job("", "", "", datetime.min.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC))
# Attribute by attribute: what an item says that is not left at its default.
_FIELDS = {
    "tenant": "tenant", "queue": "queue", "lane": "lane", "task_version": "task_version", "priority": "priority",
    "timeout": "timeout", "expires_at": "expires_at", "key": "key", "key_scope": "key_scope", "key_until": "key_until",
    "schedule": "schedule", "reason": "reason", "crashes": "crashes", "claims": "attempt", "attempts": "failures",
    "claimed_at": "claimed_at", "started_at": "started_at", "completed_at": "finished_at", "locked_by": "worker",
    "lock_expires_at": "lease_until", "lease_token": "lease_token", "cancel_requested": "cancel_requested",
    "cost_micros": "cost_micros", "revision": "revision",
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
    for name, value in job.retry._asdict().items():
        if value != getattr(_RETRY, name):
            item[name if name == "max_attempts" else f"retry_{name}"] = (
                {"NULL": True} if value is None else value_of(value)
            )
    if job.on_end is not None:
        item["on_end"] = {"S": on_end_text(job.on_end) or ""}
    if job.progress is not None:
        item["progress"] = {"S": small(job.progress) or ""}
    for name, text in spilling(job).items():
        item |= text_item(name, text)
    for value in item.values():
        _check(value.get("S", ""))
    return item


def text_item(name: str, text: bytes) -> Item:
    """A text as an attribute; of one that is too large, only what its pieces are found by."""
    if len(text) <= INLINE:
        return {name: {"S": text.decode()}}
    item: Item = {f"{name}_size": {"N": str(len(text))}}
    return item | {f"{name}_hash": {"S": _hash(text)}} if len(text) > PIECE else item


def spilling(job: Job) -> dict[str, bytes]:
    """The texts that may be too large for an item, by attribute."""
    texts = {"payload": job.payload_json, "result": job.result_json, "last_error": small(job.error)}
    found = {}
    for name, text in texts.items():
        if text is not None:
            _check(text)
            found[name] = text.encode()
    return found


def _check(text: str) -> None:
    if "\0" in text or holds_nul(text):
        raise ValueError("holds a NUL character, which not every store takes")


def job_from(item: Mapping[str, Value], spilled: Mapping[str, str] | None = None) -> Job:
    """The job in a due item or a record; `spilled` has the texts that are not in it."""
    at = plain(item)
    if spilled:
        at.update(spilled)
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


def _error(text: str) -> JobError:
    try:
        return JobError(**json.loads(text))
    except (ValueError, TypeError):  # another program's own words
        return JobError("", text, "", 0, "")


def _json_of(value: Value) -> str:
    """JSON text of a value that another program has put as a map or a list."""
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


def id_of(item: Mapping[str, Value]) -> str:
    return str(item["SK"]["S"]).rpartition("#")[2]


def place_of(item: Mapping[str, Value]) -> Place:
    return Place(item["PK"]["S"], item["SK"]["S"])


def pointed(item: Mapping[str, Value]) -> Place | None:
    """Where an id item says the due item is; None once the job has finished."""
    return Place(item["job_pk"]["S"], item["job_sk"]["S"]) if "job_pk" in item else None


def _retry(item: Mapping[str, Value]) -> Retry:
    def number(name: str, default: float | None) -> float | None:
        value = item.get(f"retry_{name}")
        return default if value is None else None if "NULL" in value else float(value["N"])

    attempts = int(item["max_attempts"]["N"]) if "max_attempts" in item else _RETRY.max_attempts
    base, jitter = number("base", _RETRY.base), number("jitter", _RETRY.jitter)
    return Retry(attempts, base or 0.0, number("cap", _RETRY.cap), jitter or 0.0)


# -------------------------------------------------------------------------------- what is too large


def spilled_names(item: Mapping[str, Value]) -> list[str]:
    return [name for name in SPILLED if f"{name}_size" in item]


def pieces_of(job_id: str, name: str, text: bytes) -> Iterator[Item]:
    """A text in as many items as it needs."""
    for place, start in zip(_places(job_id, name, len(text), _hash(text)), range(0, len(text), PIECE), strict=True):
        yield {**place.key, "piece": {"B": base64.b64encode(text[start : start + PIECE]).decode()}}


def piece_places(job_id: str, item: Mapping[str, Value], name: str) -> list[Place]:
    at = plain(item)
    return _places(job_id, name, int(at[f"{name}_size"]), at.get(f"{name}_hash", ""))


def _places(job_id: str, name: str, size: int, digest: str) -> list[Place]:
    """One piece is overwritten by the next text; several lie beside those of the next, or a reader might mix them."""
    number = (size + PIECE - 1) // PIECE
    stem = name if number == 1 else f"{name}#{digest}"
    return [Place(f"large#{job_id}", f"{stem}#{place}") for place in range(number)]


def _hash(text: bytes) -> str:
    return sha256(text).hexdigest()[:16]


def joined(pieces: list[Item]) -> str:
    return b"".join(base64.b64decode(piece["piece"]["B"]) for piece in pieces).decode()
