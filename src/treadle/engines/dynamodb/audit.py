"""The audit trail: events, and the seals over them.

An event is written with a marker, which says that no seal holds it yet. A seal deletes the markers and lists the keys
of their events, in one transaction.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from heapq import merge, nlargest
from itertools import chain, islice

from treadle.engines.dynamodb.client import LARGEST_PAGE, MAX_ITEMS, MAX_SORT_KEY, Client
from treadle.engines.dynamodb.connection import ConditionFailed
from treadle.engines.dynamodb.items import (
    Item,
    ItemKey,
    Value,
    key_of,
    moment_of,
    part_of,
    plain,
    share_of,
    text_of,
    value_of,
)
from treadle.engines.dynamodb.pools import Each
from treadle.engines.dynamodb.rows import record_item, record_key
from treadle.engines.dynamodb.writes import ABSENT, Part, TableInfo, Test, delete, put, there, update
from treadle.model import UUID, Event, EventKind
from treadle.model.records import Seal
from treadle.model.seals import in_order

MARKER_PARTITIONS = 16  # at most, of events that no seal holds yet
MAX_SEALED_EVENTS = MAX_ITEMS - 2  # a transaction has room for so many, the seal and the list of its events

Place = tuple[datetime, str, int]  # time, job and revision


class AuditTrail:
    """The audit trail of one table."""

    def __init__(self, client: Client, table: TableInfo, each: Each) -> None:
        self._client = client
        self._table = table
        self._each = each

    def events(self, job_id: str, latest: int | None = None) -> list[Event]:
        if not UUID.fullmatch(job_id):
            return []
        if latest is None:
            items = chain.from_iterable(self._client.pages(f"events#{job_id}", limit=LARGEST_PAGE))
            return [event_from(item) for item in items]
        pages = self._client.pages(f"events#{job_id}", limit=min(latest, LARGEST_PAGE), backward=True)
        return [event_from(item) for item in islice(chain.from_iterable(pages), latest)][::-1]

    def unsealed(self, limit: int) -> list[Event]:
        pages = self._marker_pages(min(limit, MAX_ITEMS))
        firsts = self._each(lambda rest: next(rest, []), pages)
        streams = [chain(first, chain.from_iterable(rest)) for first, rest in zip(firsts, pages, strict=True)]
        markers = merge(*streams, key=lambda marker: str(marker["SK"]["S"]))
        found: list[Event] = []
        while len(found) < limit and (some := list(islice(markers, limit - len(found)))):
            found += self._read([marked_key(marker) for marker in some])  # an event that is gone has left its marker
        return _by_tenant(found)

    def newest_unsealed(self, limit: int, before: Place | None) -> list[Event]:
        """The latest of all tenants before this place, newest first; markers whose event is gone are passed over."""
        end = MAX_SORT_KEY if before is None else f"{text_of(before[0])}#{before[1]}#{before[2]:010d}"
        found: list[Event] = []
        while missing := limit - len(found):
            some = self._newest_markers(missing, end)
            found += sorted(self._read([marked_key(marker) for marker in some]), key=in_order, reverse=True)
            if len(some) < missing:
                break
            _, end = _tenant_and_place(some[-1])
        return found

    def _newest_markers(self, limit: int, end: str) -> list[Item]:
        """The latest markers of all partitions whose place is before `end`, newest first."""
        some = self._each(lambda pk: self._newest_of(pk, limit, end), self._marker_partitions())
        return nlargest(limit, chain.from_iterable(some), key=lambda marker: _tenant_and_place(marker)[1])

    def _newest_of(self, pk: str, limit: int, end: str) -> list[Item]:
        """The latest markers of each tenant in a partition, up to `limit`. They lie by tenant: others are skipped."""
        found: dict[str, list[Item]] = {}
        high, size = MAX_SORT_KEY, min(max(limit, MAX_ITEMS), LARGEST_PAGE)
        while high:
            pages = self._client.pages(pk, high=high, limit=size, backward=True)
            high = next((skipped for page in pages if (skipped := _skip(page, found, limit, end))), "")
        return list(chain.from_iterable(found.values()))

    def _marker_pages(self, limit: int) -> list[Iterator[list[Item]]]:
        """By partition, the markers of events that no seal holds yet, in their order."""
        return [self._client.pages(pk, high=MAX_SORT_KEY, limit=limit) for pk in self._marker_partitions()]

    def _marker_partitions(self) -> list[str]:
        return [f"unsealed#{number:02x}" for number in range(min(self._table.spread, MARKER_PARTITIONS))]

    def _read(self, keys: Sequence[ItemKey]) -> list[Event]:
        return [event_from(item) for item in self._client.get(keys).values()]

    def seal(self, seal: Seal, events: Sequence[Event]) -> bool:
        if len(events) > MAX_SEALED_EVENTS:
            return False
        markers = [marker_key(event, self._table.spread) for event in events]
        listed: Item = {"events": {"L": [{"S": f"{key.pk}#{key.sk}"} for key in map(event_key, events)]}}
        parts = [
            put(self._table, record_key(seal), record_item(seal), [ABSENT]),
            put(self._table, _list_key(seal), listed),
            *(delete(self._table, marker, [there(marker)]) for marker in markers),
        ]
        try:
            self._client.write(parts)
        except ConditionFailed:
            return False
        return True

    def sealed(self, seal: Seal) -> list[Event]:
        return sorted(self._read(self._sealed_keys(seal)), key=in_order)

    def _sealed_keys(self, seal: Seal) -> list[ItemKey]:
        """The keys of the events of a seal; none once they are pruned."""
        return [key for item in self._client.get([_list_key(seal)]).values() for key in _listed_keys(item)]

    def orphaned_events(self, seals: Callable[[], Sequence[Seal]], limit: int) -> list[Event]:
        """Events of tenants that have seals, in a list whose seal is not among these."""
        known = {_list_key(seal) for seal in seals()}
        pages = (self._client.pages(pk, high=MAX_SORT_KEY, limit=MAX_ITEMS) for pk in sorted({key.pk for key in known}))
        items = [item for each in pages for item in chain.from_iterable(each) if key_of(item) not in known]
        if items:  # some may have been sealed just now
            known |= {_list_key(seal) for seal in seals()}
        found: list[Event] = []
        for item in items:
            if key_of(item) not in known and len(found) < limit:
                found += self._read(_listed_keys(item))
        return _by_tenant(found)[:limit]

    def prune_events(self, seal: Seal, now: datetime) -> bool:
        """In one transaction, so that a seal that misses events always says why."""
        key = record_key(seal)
        pruned = update(self._table, key, {"pruned_at": value_of(now)}, (), [there(key), ("pruned_at", "=", None)])
        events = [delete(self._table, event) for event in self._sealed_keys(seal)]
        try:
            self._client.write([pruned, delete(self._table, _list_key(seal)), *events])
        except ConditionFailed:
            return False
        return True


def _by_tenant(events: Iterable[Event]) -> list[Event]:
    return sorted(events, key=lambda event: (event.tenant, event.at, event.job_id, event.revision))


# -------------------------------------------------------------------------------------------- events


def event_parts(table: TableInfo, event: Event, *when: Sequence[Test]) -> list[Part]:
    """An event of the audit trail, and the marker that says that no seal holds it yet."""
    item = event_item(event)
    return [put(table, key_of(item), item, *when), put(table, marker_key(event, table.spread), {})]


def event_key(event: Event) -> ItemKey:
    """The key of an event. An id may come back after its job was pruned, so the time is a part of the key."""
    return ItemKey(f"events#{event.job_id}", f"{event.revision:010d}#{text_of(event.at)}")


def event_item(event: Event) -> Item:
    return {
        **event_key(event).attributes,
        "at": value_of(event.at),
        "kind": {"S": event.kind.value},
        "actor": {"S": event.actor},
        "note": {"S": event.note},
        "tenant": {"S": event.tenant},
    }


def event_from(item: Mapping[str, Value]) -> Event:
    values = plain(item)
    job_id, revision = values["PK"].removeprefix("events#"), int(values["SK"].partition("#")[0])
    kind = EventKind(values.get("kind") or values["what"])  # `what` in tables written before events had a kind
    return Event(job_id, revision, moment_of(values["at"]), kind, values["actor"], values["note"], values["tenant"])


def marker_key(event: Event, spread: int) -> ItemKey:
    """The marker of an event that no seal holds yet; it names the event."""
    return ItemKey(
        f"unsealed#{share_of(event.job_id, min(spread, MARKER_PARTITIONS))}",
        f"{part_of(event.tenant)}#{text_of(event.at)}#{event.job_id}#{event.revision:010d}",
    )


def _tenant_and_place(marker: Mapping[str, Value]) -> tuple[str, str]:
    """The tenant in a marker, and its time, job and revision as one text that sorts as they do."""
    tenant, _, place = str(marker["SK"]["S"]).partition("#")
    return tenant, place


def _skip(page: Sequence[Item], found: dict[str, list[Item]], limit: int, end: str) -> str:
    """Take from a page, newest first, what is before `end`, up to `limit` of a tenant; the sort key to go on from.

    It is empty where the next page is the one to read.
    """
    tenant = place = ""
    for marker in page:
        tenant, place = _tenant_and_place(marker)
        if place < end and len(found.setdefault(tenant, [])) < limit:
            found[tenant].append(marker)
    if page and len(found.get(tenant, ())) >= limit:
        return f"{tenant}#"
    return f"{tenant}#{end}" if place > end else ""


def marked_key(marker: Mapping[str, Value]) -> ItemKey:
    """The key of the event that a marker names."""
    _, at, job_id, revision = str(marker["SK"]["S"]).split("#")
    return ItemKey(f"events#{job_id}", f"{revision}#{at}")


# --------------------------------------------------------------------------------------------- seals


def _list_key(seal: Seal) -> ItemKey:
    """The list of a seal's events; apart from the seal, so that a chain of seals is quickly read."""
    return ItemKey(f"sealed#{part_of(seal.tenant)}", f"{seal.number:010d}")


def _listed_keys(item: Item) -> list[ItemKey]:
    listed = item.get("events") or item["lines"]  # `lines` in tables written before events were called events
    texts = [str(event["S"]).split("#") for event in listed["L"]]
    return [ItemKey("#".join(text[:2]), "#".join(text[2:])) for text in texts]
