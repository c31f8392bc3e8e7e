"""Lines of lists and of the audit trail: small items that are found by their key.

A list is spread over a few partitions; within each its lines lie in the order in which somebody looks for them.
"""

from collections.abc import Mapping
from datetime import datetime
from zlib import crc32

from treadle.engines.dynamodb.items import Item, Place, Value, moment_of, part_of, plain, text_of, value_of
from treadle.model import Event, EventKind, Job

MARKED = 16  # partitions of lines that are in no seal yet, at most


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


# -------------------------------------------------------------------------------------- the audit trail


def event_place(event: Event) -> Place:
    """Where a line of the trail is. An id may come back after its job was pruned, so the time is a part of it."""
    return Place(f"events#{event.job_id}", f"{event.revision:010d}#{text_of(event.at)}")


def event_item(event: Event) -> Item:
    return {
        **event_place(event).key,
        "at": value_of(event.at),
        "kind": {"S": event.kind.value},
        "actor": {"S": event.actor},
        "note": {"S": event.note},
        "tenant": {"S": event.tenant},
    }


def event_from(item: Mapping[str, Value]) -> Event:
    at = plain(item)
    job_id, revision = at["PK"].removeprefix("events#"), int(at["SK"].partition("#")[0])
    kind = EventKind(at.get("kind") or at["what"])  # `what` in tables written before events had a kind
    return Event(job_id, revision, moment_of(at["at"]), kind, at["actor"], at["note"], at["tenant"])


def marker_place(event: Event, spread: int) -> Place:
    """What says that a line is in no seal yet; it names the line."""
    return Place(
        f"unsealed#{_share(event.job_id, min(spread, MARKED))}",
        f"{part_of(event.tenant)}#{text_of(event.at)}#{event.job_id}#{event.revision:010d}",
    )


def marked(marker: Mapping[str, Value]) -> Place:
    """Where the line of a marker is."""
    _, at, job_id, revision = str(marker["SK"]["S"]).split("#")
    return Place(f"events#{job_id}", f"{revision}#{at}")
