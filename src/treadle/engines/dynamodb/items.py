"""How a job lies in the table: items, their keys, and what becomes too large for one.

A pending or running job is a *due item*: its partition is a slot's (slots.py), its sort key its due time and id. An *id
item* beside it proves that the id was taken, says where the due item is and becomes the record once the job has
finished. A field that is left at its default is left out, so a plain job is eight attributes.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple
from zlib import crc32

from treadle.model import Job

Value = dict[str, Any]
"""A value as DynamoDB writes it: {"S": "text"}, {"N": "1"}."""
Item = dict[str, Value]
LONGEST_NAME = 900  # bytes; a sort key holds 1,024
LONGEST_PART = 400  # bytes of one name in a sort key that begins with it


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


def id_of(item: Mapping[str, Value]) -> str:
    return str(item["SK"]["S"]).rpartition("#")[2]


def place_of(item: Mapping[str, Value]) -> Place:
    return Place(item["PK"]["S"], item["SK"]["S"])


def pointed(item: Mapping[str, Value]) -> Place | None:
    """Where an id item says the due item is; None once the job has finished."""
    return Place(item["job_pk"]["S"], item["job_sk"]["S"]) if "job_pk" in item else None


def lines(spread: int) -> int:
    """Over how many partitions a list is spread whose lines are written seldom."""
    return min(spread, 8)


def ended_place(job: Job, spread: int) -> Place:
    """The line of a failed or cancelled job in the list of its state, by the time it ended."""
    return Place(f"{job.state}#{_share(job.id, lines(spread))}", f"{text_of(job.finished_at)}#{job.id}")


def expiry_place(job: Job, spread: int) -> Place:
    return Place(f"expires#{_share(job.id, lines(spread))}", f"{text_of(job.expires_at)}#{job.id}")


def cost_place(job: Job, spread: int) -> Place:
    """What an ended job has cost, by the day it ended. One line a job: who runs it again takes the old one away."""
    return Place(f"cost#{day_of(job.finished_at)}#{_share(job.id, lines(spread))}", f"{part_of(job.tenant)}#{job.id}")


def day_of(moment: datetime | None) -> str:
    return text_of(moment)[:10]


def _share(job_id: str, partitions: int) -> str:
    return f"{crc32(job_id.encode()) % partitions:02x}"
