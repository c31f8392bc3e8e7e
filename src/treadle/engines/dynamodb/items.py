"""What lies in the table: items, their typed values, and the keys under which everything is found.

A pending or running job is a *due item*: its partition belongs to a slot (ranges.py), its sort key is its due time and
id. An *id item* beside it proves that the id is taken, says where the due item is, and becomes the record of the job
once the job has ended. A *list entry* is an item without content: its key says all there is to say.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple
from zlib import crc32

from treadle.model import Job

Value = dict[str, Any]
"""A value as DynamoDB writes it: {"S": "text"}, {"N": "1"}, {"B": b"bytes"}."""
Item = dict[str, Value]

MAX_NAME_BYTES = 900  # of a whole sort key; DynamoDB takes 1,024
MAX_PART_BYTES = 400  # of one name at the beginning of a sort key


class ItemKey(NamedTuple):
    """The key of an item: its partition and its place in it."""

    pk: str
    sk: str

    @property
    def attributes(self) -> Item:
        return {"PK": {"S": self.pk}, "SK": {"S": self.sk}}


def key_of(item: Mapping[str, Value]) -> ItemKey:
    return ItemKey(item["PK"]["S"], item["SK"]["S"])


def id_of(item: Mapping[str, Value]) -> str:
    """The id of the job that a due item, an id item or a list entry is about."""
    return str(item["SK"]["S"]).rpartition("#")[2]


MEMO, AFTER_MEMOS = "memo#", "memo$"
"""How the sort key of a memo begins, and a place behind all of them."""


def beside(owner: str) -> str:
    """The partition of what belongs to a job, or to a schedule, beside its item: pieces of large texts, and memos.

    It is one partition, so that one read finds all that is to be deleted with the job.
    """
    return f"large#{owner}"


# -------------------------------------------------------------------------------------------- values


def text_of(moment: datetime | None) -> str:
    """A time in one fixed width, so that text sorts as time does."""
    if moment is None:
        return ""
    return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def time_of(text: str | None) -> datetime | None:
    return moment_of(text) if text else None


def moment_of(text: str) -> datetime:
    """A stored time; one without a zone, written by another program, is UTC."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def day_of(moment: datetime | None) -> str:
    return text_of(moment)[:10]


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
            raise ValueError(f"{value!r} cannot be stored in an item")


def plain(item: Mapping[str, Value]) -> dict[str, Any]:
    """An item's attributes as plain values; numbers stay text."""
    return {name: next(iter(value.values())) for name, value in item.items() if "NULL" not in value}


# -------------------------------------------------------------------------------------- keys of jobs


class Slot(NamedTuple):
    """A range of due jobs: those of a queue, a lane and a priority.

    A job that claims may not take lies in another slot, where they skip it: parked by task and version, or by task,
    version and tenant. A `shared` slot has parked jobs of many tasks, and none that runs.
    """

    queue: str
    lane: str
    priority: int
    hashed: bool = False  # the lane is a number that many lanes share
    task: str = ""
    version: int = 0
    tenant: str = ""
    shared: bool = False  # its sort keys begin with task, version and tenant

    @property
    def name(self) -> str:
        lane = f"~{self.lane}" if self.hashed else _quoted(self.lane)
        by_task = "#~" if self.shared else f"#{_quoted(self.task)}@{self.version}" if self.task else ""
        by_tenant = f"#{_quoted(self.tenant)}" if self.tenant else ""
        return _short(f"{_quoted(self.queue)}#{lane}#{self.priority}{by_task}{by_tenant}")

    @property
    def key(self) -> ItemKey:
        """The item that says that this slot exists."""
        return ItemKey("slots", self.name)

    def partition(self, shard: int) -> str:
        is_plain = self == PLAIN and shard == 0
        return "job" if is_plain else f"job#{self.name}#{shard}"


def slot_names(pk: str) -> tuple[str | None, str | None]:
    """The queue and the lane of a partition of due jobs; None for what its name does not say."""
    if pk == "job":
        return PLAIN.queue, PLAIN.lane
    queue, lane = pk.split("#")[1:3]
    if not queue:  # a digest, maybe
        return None, None
    return _unquoted(queue), None if lane.startswith("~") else _unquoted(lane)


PLAIN = Slot("default", "", 0)
GATE = ItemKey("slots", "gate")  # the gate's version, in the partition that every claim reads; no slot has this name


def due_key(job: Job, slot: Slot, shards: int) -> ItemKey:
    """The key that a due item of this job gets now."""
    group = parked_group(job.task, job.task_version, job.tenant) if slot.shared else ""
    place = f"{group}scheduled#{text_of(job.due_at)}#{job.id}"
    return ItemKey(slot.partition(crc32(job.id.encode()) % shards), place)


def parked_group(task: str, version: int, tenant: str) -> str:
    """How the sort keys begin that jobs of this task, version and tenant have in a shared slot."""
    return f"{part_of(task)}@{version}#{part_of(tenant)}#"


def parked_task(task: str) -> tuple[str, str]:
    """Between which sort keys the jobs of a task lie in a shared slot, whatever their version and tenant."""
    return f"{part_of(task)}@", f"{part_of(task)}@:"  # a version is digits, and : is the character that follows 9


def id_key(job_id: str, spread: int) -> ItemKey:
    """The key of a job's id item: the id alone decides it, for ever."""
    return ItemKey(f"id#{crc32(job_id.encode()) % spread:02x}", job_id)


def pointer(due: ItemKey) -> Item:
    """What an id item says while its job has not ended: where the due item is."""
    return {"job_pk": {"S": due.pk}, "job_sk": {"S": due.sk}}


def pointed_key(item: Mapping[str, Value]) -> ItemKey | None:
    """Where an id item says the due item is; None once the job has ended."""
    return ItemKey(item["job_pk"]["S"], item["job_sk"]["S"]) if "job_pk" in item else None


def unique_key(tenant: str, task: str, key: str) -> ItemKey:
    """The item that says which job holds a unique key.

    A key such as scheduled-job#summary#ada#2026-01-31 is kept as other programs keep their records of such jobs, so
    that theirs and ours are the same item. It does not name the task: `not_ours` tells two tasks apart.
    """
    if tenant == "default" and (record := _DATED_RECORD.fullmatch(key)):
        return ItemKey(record[1], record[2])
    return ItemKey(f"key#{_short(f'{_quoted(tenant)}#{_quoted(task)}#{_quoted(key)}')}", "key")


_DATED_RECORD = re.compile(r"(scheduled-job#.+)#(\d{4}-\d{2}-\d{2})")


def holder_of(item: Mapping[str, Value] | None) -> str | None:
    """The id of the job that holds a unique key, from the key's item; in another program's, from where it points."""
    if not item or "job" in item:
        return item["job"]["S"] if item else None
    return str(item["job_sk"]["S"]).rpartition("#")[2] if "job_sk" in item else None


def target_of(item: Mapping[str, Value]) -> str:
    """Where a unique key's item points, to be compared: if the job there is gone, the key is not trusted."""
    return str(item["job_sk"]["S"]) if "job_sk" in item else ""


# -------------------------------------------------------------------------------------- keys of lists


def list_partitions(spread: int) -> int:
    """Over how many partitions a list is spread whose entries are written seldom."""
    return min(spread, 8)


def ended_key(job: Job, spread: int) -> ItemKey:
    """The entry of a failed or cancelled job in the list of its state, by the time it ended."""
    return ItemKey(f"{job.state}#{share_of(job.id, list_partitions(spread))}", f"{text_of(job.finished_at)}#{job.id}")


def expiry_key(job: Job, spread: int) -> ItemKey:
    return ItemKey(f"expires#{share_of(job.id, list_partitions(spread))}", f"{text_of(job.expires_at)}#{job.id}")


def cost_key(job: Job, spread: int) -> ItemKey:
    """What an ended job has cost, by the day it ended. There is one a job: a retry takes the old one away."""
    share = share_of(job.id, list_partitions(spread))
    return ItemKey(f"cost#{day_of(job.finished_at)}#{share}", f"{part_of(job.tenant)}#{job.id}")


def share_of(job_id: str, partitions: int) -> str:
    """Which of so many partitions has what is written of a job."""
    return f"{crc32(job_id.encode()) % partitions:02x}"


# ------------------------------------------------------------------------------------ names in a key


def part_of(name: str) -> str:
    """A name as the beginning of a sort key: quoted, and short enough that others fit behind it."""
    quoted = _quoted(name)
    return quoted if len(quoted.encode(errors="replace")) <= MAX_PART_BYTES else f"~{sha256(name.encode()).hexdigest()}"


def _quoted(text: str) -> str:
    """A name as one part of a key: the characters that separate parts are escaped."""
    return text.replace("%", "%25").replace("#", "%23").replace("~", "%7E")


def _unquoted(part: str) -> str:
    return part.replace("%7E", "~").replace("%23", "#").replace("%25", "%")


def _short(name: str) -> str:
    """The name, or its digest where a sort key could not hold it."""
    return name if len(name.encode(errors="replace")) <= MAX_NAME_BYTES else f"#{sha256(name.encode()).hexdigest()}"
