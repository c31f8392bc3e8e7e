"""The rows beside the jobs: schedules, pauses, live workers, seals. A save is one transaction with all it brings."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar

from treadle.engines.dynamodb.audit import trail
from treadle.engines.dynamodb.client import ALL, BATCH, TRIES, Client, Crowded, Failed
from treadle.engines.dynamodb.enqueue import Storing
from treadle.engines.dynamodb.gate import Keeper, Raised
from treadle.engines.dynamodb.items import Item, Place, place_of, text_of
from treadle.engines.dynamodb.pieces import INLINE, joined, piece_places, pieces_of
from treadle.engines.dynamodb.rows import (
    payload_of,
    record_from,
    record_item,
    record_place,
    stored_value,
    tenant_range,
    tick_place,
    ticked,
)
from treadle.engines.dynamodb.writes import ABSENT, Part, Table, Test, delete, put, there
from treadle.engines.fence import stamped
from treadle.engines.records import TABLES, table_of
from treadle.engines.values import Overwrite, Receipt, Saved
from treadle.errors import EngineError
from treadle.model import Event, Job
from treadle.model.records import Pause, Record, Schedule, subject

R = TypeVar("R", bound=Record)


class Records:
    """The records of one table; `new` says what a job writes."""

    def __init__(
        self,
        client: Client,
        table: Table,
        storing: Storing,
        keeper: Keeper,
        new: Callable[[Job, datetime, str | None], list[Part]],
    ) -> None:
        self._client = client
        self._table = table
        self._storing = storing
        self._keeper = keeper
        self._new = new

    # ---------------------------------------------------------------------------------------- reading

    def read(self, kind: type[R], tenant: str | None) -> list[R]:
        low, high = (" ", ALL) if tenant is None else tenant_range(tenant)
        pages = self._client.pages(TABLES[kind].name, low=low, high=high, limit=1000)
        records = self._from(kind, [item for page in pages for item in page])
        return sorted(records, key=lambda record: tuple(getattr(record, name) for name in TABLES[kind].key))

    def due(self, limit: int, until: datetime) -> list[Schedule]:
        """Enabled schedules that are due by then. What was changed by hand says itself when it is due, not its tick."""
        found: list[Schedule] = []
        for page in self._client.pages("ticks", high=f"{text_of(until)}#{ALL}", limit=min(limit, BATCH)):
            items = self._client.get([ticked(tick) for tick in page])
            there = {tick_place(schedule): schedule for schedule in self._from(Schedule, list(items.values()))}
            ticks = [there[place_of(tick)] for tick in page if place_of(tick) in there]
            found += [schedule for schedule in ticks if schedule.enabled]
            if len(found) >= limit:
                break
        return sorted(found[:limit], key=lambda one: (text_of(one.next_at), one.tenant, one.name))

    def _from(self, kind: type[R], items: Sequence[Item]) -> list[R]:
        """The records in these items, with payloads that were too large for them; not those dropped meanwhile."""
        for _ in range(TRIES):
            wanted = {place_of(item): _pieces_of(item) for item in items if "payload_size" in item}
            pieces = self._client.get([place for places in wanted.values() for place in places]) if wanted else {}
            torn = {one for one, places in wanted.items() if any(place not in pieces for place in places)}
            if not torn:
                break
            now = self._client.get(list(torn))
            items = [now.get(place, item) for item in items if (place := place_of(item)) not in torn or place in now]
        else:
            raise EngineError(f"schedule {min(torn).sk}: a part of its payload is missing from the table")
        texts = {one: joined([pieces[place] for place in places]) for one, places in wanted.items()}
        return [record_from(kind, item, texts.get(place_of(item))) for item in items]

    def _stored(self, record: Record) -> Any:
        """The record as it is in the table; None if it is not there."""
        place = record_place(record)
        return next(iter(self._from(type(record), list(self._client.get([place]).values()))), None)

    # ---------------------------------------------------------------------------------------- writing

    def save(
        self,
        record: Record,
        before: Record | Overwrite | None,
        event: Event | None,
        job: Job | None,
        now: datetime,
    ) -> Saved:
        wanted = None if job is None else stamped(job, now)
        receipt, dead = None, None
        for _ in range(TRIES):
            parts, raised = self._parts(record, before, event)
            try:
                new = self._new(wanted, now, dead) if wanted is not None else []
                once = before is not Overwrite.OVERWRITE  # else a repeat cannot fail of what it wrote itself
                self._client.write([*parts, *new], once=once)
            except Failed as failed:
                if 0 in failed.which and not isinstance(before, Overwrite):
                    return Saved(done=False)
                if min(failed.which) < len(parts) or wanted is None:
                    continue  # somebody else paused meanwhile, or changed what we are to replace
                first, dead = self._storing.first(wanted, failed.which, len(parts))
                if first is not None:
                    receipt, wanted = Receipt(first, created=False), None
                continue
            except ValueError as error:
                if wanted is None or job is None:
                    raise
                receipt, wanted = Receipt(job, created=False, refused=str(error)), None
                continue
            if raised is not None:
                self._keeper.close(raised)
            return Saved(done=True, receipt=receipt or (wanted and Receipt(wanted, created=True)))
        raise Crowded(f"{self._client.where}: {record_place(record)} keeps changing; repeating is safe")

    def drop(self, record: Record, event: Event | None) -> bool:
        for _ in range(TRIES):
            stored = self._stored(record)
            if stored is None or getattr(stored, "revision", 0) != getattr(record, "revision", 0):
                return False
            parts = [delete(self._table, record_place(record), _still(stored))]
            if isinstance(record, Pause):
                parts.append(self._keeper.raised().part)
            parts += self._beside(stored, None)
            parts += trail(self._table, event) if event is not None else []
            try:
                self._client.write(parts, once=True)
            except Failed:
                continue
            return True
        raise Crowded(f"{self._client.where}: {record_place(record)} keeps changing; repeating is safe")

    def _parts(
        self, record: Record, before: Record | Overwrite | None, event: Event | None
    ) -> tuple[list[Part], Raised | None]:
        """What a save writes but for its job, the record first; and how the gate is raised, if it is a pause."""
        place, item = record_place(record), record_item(record)
        if isinstance(before, Overwrite) and isinstance(record, Schedule):
            before = self._stored(record)
        if isinstance(before, Overwrite):
            parts = [put(self._table, place, item)]
        else:
            parts = [put(self._table, place, item, [ABSENT] if before is None else _still(before))]
        raised = self._keeper.raised() if isinstance(record, Pause) else None
        parts += [raised.part] if raised is not None else []
        parts += self._beside(before if isinstance(before, Schedule) else None, record)
        parts += trail(self._table, event) if event is not None else []
        return parts, raised

    def _beside(self, before: Record | None, after: Record | None) -> Iterator[Part]:
        """Of a schedule: when it is due, and a payload that is too large for its item."""
        had, has = _ticks(before), _ticks(after)
        old, new = _pieces(before), _pieces(after)
        yield from (delete(self._table, place) for place in had if place not in has)
        yield from (put(self._table, place, {}) for place in has if place not in had)
        if old != new:
            yield from (put(self._table, place, piece) for place, piece in new.items())
            yield from (delete(self._table, place) for place in old if place not in new)


def _still(before: Record) -> list[Test]:
    """That the stored record is this one."""
    names = table_of(before).compared
    return [there(record_place(before)), *((name, "=", stored_value(name, getattr(before, name))) for name in names)]


def _ticks(record: Record | None) -> Iterable[Place]:
    return [tick_place(record)] if isinstance(record, Schedule) and record.enabled else []


def _pieces(record: Record | None) -> dict[Place, Item]:
    text = payload_of(record) if isinstance(record, Schedule) else None
    if record is None or text is None or len(text) <= INLINE:
        return {}
    return {place_of(piece): piece for piece in pieces_of(subject(record), "payload", text)}


def _pieces_of(item: Item) -> list[Place]:
    """Where the payload of this schedule's item is."""
    return piece_places(subject(record_from(Schedule, item)), item, "payload")
