"""The audit trail in seals. A line comes with a marker; a seal takes the markers away and names their lines."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from heapq import merge
from itertools import chain, islice

from treadle.engines.dynamodb.client import ALL, BATCH, Client, Failed
from treadle.engines.dynamodb.items import (
    Item,
    Place,
    Value,
    _share,
    moment_of,
    part_of,
    place_of,
    plain,
    text_of,
    value_of,
)
from treadle.engines.dynamodb.pools import Each
from treadle.engines.dynamodb.rows import record_item, record_place
from treadle.engines.dynamodb.writes import ABSENT, Part, Table, delete, put, there, update
from treadle.model import Event, EventKind
from treadle.model.records import Seal

MOST_LINES = BATCH - 2  # that one seal takes: a transaction has place for so many, the seal and the list of its lines


class Trail:
    """The audit trail of one table."""

    def __init__(self, client: Client, table: Table, each: Each) -> None:
        self._client = client
        self._table = table
        self._each = each

    def unsealed(self, limit: int) -> list[Event]:
        partitions = [f"unsealed#{number:02x}" for number in range(min(self._table.spread, MARKED))]
        pages = [self._client.pages(pk, high=ALL, limit=min(limit, BATCH)) for pk in partitions]
        firsts = self._each(lambda rest: next(rest, []), pages)
        streams = [chain(first, chain.from_iterable(rest)) for first, rest in zip(firsts, pages, strict=True)]
        markers = merge(*streams, key=lambda marker: str(marker["SK"]["S"]))
        found: list[Event] = []
        while len(found) < limit and (some := list(islice(markers, limit - len(found)))):
            found += self._lines([marked(marker) for marker in some])  # one that was taken away has left its marker
        return sorted(found, key=lambda event: (event.tenant, event.at, event.job_id, event.revision))

    def _lines(self, places: Sequence[Place]) -> list[Event]:
        return [event_from(item) for item in self._client.get(places).values()]

    def seal(self, seal: Seal, events: Sequence[Event]) -> bool:
        if len(events) > MOST_LINES:
            return False
        markers = [marker_place(event, self._table.spread) for event in events]
        named: Item = {"lines": {"L": [{"S": f"{place.pk}#{place.sk}"} for place in map(event_place, events)]}}
        parts = [
            put(self._table, record_place(seal), record_item(seal), [ABSENT]),
            put(self._table, _named(seal), named),
            *(delete(self._table, marker, [there(marker)]) for marker in markers),
        ]
        try:
            self._client.write(parts)
        except Failed:
            return False
        return True

    def sealed(self, seal: Seal) -> list[Event]:
        return sorted(self._lines(self._places(seal)), key=lambda event: (event.at, event.job_id, event.revision))

    def _places(self, seal: Seal) -> list[Place]:
        """Where the lines of a seal are; nowhere once they are forgotten."""
        return _places_in(self._client.get([_named(seal)]).get(_named(seal), {"lines": {"L": []}}))

    def orphaned_events(self, seals: Callable[[], Sequence[Seal]], limit: int) -> list[Event]:
        """Lines of tenants that have seals, named by a list whose seal is not among them."""
        known = {_named(seal) for seal in seals()}
        pages = (self._client.pages(pk, high=ALL, limit=BATCH) for pk in sorted({place.pk for place in known}))
        items = [item for each in pages for item in chain.from_iterable(each) if place_of(item) not in known]
        if items:  # some may have been sealed just now
            known |= {_named(seal) for seal in seals()}
        found: list[Event] = []
        for item in items:
            if place_of(item) not in known and len(found) < limit:
                found += self._lines(_places_in(item))
        return sorted(found, key=lambda event: (event.tenant, event.at, event.job_id, event.revision))[:limit]

    def prune_events(self, seal: Seal, now: datetime) -> bool:
        """In one transaction, so that nobody misses lines in a seal that does not say why."""
        place = record_place(seal)
        pruned = update(self._table, place, {"pruned_at": value_of(now)}, (), [there(place), ("pruned_at", "=", None)])
        events = [delete(self._table, event) for event in self._places(seal)]
        try:
            self._client.write([pruned, delete(self._table, _named(seal)), *events])
        except Failed:
            return False
        return True


def _places_in(item: Item) -> list[Place]:
    texts = [str(event["S"]).split("#") for event in item["lines"]["L"]]
    return [Place("#".join(text[:2]), "#".join(text[2:])) for text in texts]


def _named(seal: Seal) -> Place:
    """Where the lines of a seal are named; beside it, so that a chain of seals is quickly read."""
    return Place(f"sealed#{part_of(seal.tenant)}", f"{seal.number:010d}")


MARKED = 16  # partitions of lines that are in no seal yet, at most


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


def trail(table: Table, line: Event) -> list[Part]:
    """A line of the audit trail, and what says that it is in no seal yet."""
    item = event_item(line)
    return [put(table, place_of(item), item), put(table, marker_place(line, table.spread), {})]
