"""The records beside the jobs: schedules, pauses, workers and the like. A save is one transaction."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar

from treadle.engines.dynamodb.audit import event_parts
from treadle.engines.dynamodb.client import MAX_ITEMS, MAX_SORT_KEY, MAX_TRIES, Client
from treadle.engines.dynamodb.connection import ConditionFailed, Throttled
from treadle.engines.dynamodb.enqueue import EnqueueWriter
from treadle.engines.dynamodb.gate import GateRaise, PauseGate
from treadle.engines.dynamodb.items import Item, ItemKey, key_of, text_of
from treadle.engines.dynamodb.pieces import MAX_INLINE, joined, piece_keys, pieces_of
from treadle.engines.dynamodb.rows import (
    named_key,
    payload_of,
    record_from,
    record_item,
    record_key,
    stored_value,
    tenant_range,
    tick_key,
    ticked_key,
)
from treadle.engines.dynamodb.writes import ABSENT, Part, TableInfo, Test, delete, put, there
from treadle.engines.records import TABLES, chosen, table_of
from treadle.engines.values import Overwrite, Receipt, Saved
from treadle.errors import EngineError
from treadle.model import Event, Job
from treadle.model.records import Pause, Record, Schedule, subject

R = TypeVar("R", bound=Record)


class Records:
    """The records of one table."""

    def __init__(self, client: Client, table: TableInfo, enqueuer: EnqueueWriter, pause_gate: PauseGate) -> None:
        self._client = client
        self._table = table
        self._enqueuer = enqueuer
        self._pause_gate = pause_gate

    # ---------------------------------------------------------------------------------------- reading

    def read(self, kind: type[R], tenant: str | None, name: str | None = None) -> list[R]:
        if name is not None:
            try:
                key = named_key(kind, chosen(kind, tenant, name))
                key.sk.encode()
            except UnicodeEncodeError:  # what cannot be stored is not there
                return []
            return self.from_items(kind, list(self._client.get([key]).values()))
        low, high = (" ", MAX_SORT_KEY) if tenant is None else tenant_range(tenant)
        pages = self._client.pages(TABLES[kind].name, low=low, high=high, limit=1000)
        records = self.from_items(kind, [item for page in pages for item in page])
        return sorted(records, key=lambda record: tuple(getattr(record, name) for name in TABLES[kind].key))

    def due(self, limit: int, until: datetime) -> list[Schedule]:
        """Enabled schedules that are due by then. A tick that its schedule does not confirm is ignored."""
        found: list[Schedule] = []
        for page in self._client.pages("ticks", high=f"{text_of(until)}#{MAX_SORT_KEY}", limit=min(limit, MAX_ITEMS)):
            items = self._client.get([ticked_key(tick) for tick in page])
            by_tick = {tick_key(schedule): schedule for schedule in self.from_items(Schedule, list(items.values()))}
            schedules = [by_tick[key_of(tick)] for tick in page if key_of(tick) in by_tick]
            found += [schedule for schedule in schedules if schedule.enabled]
            if len(found) >= limit:
                break
        return sorted(found[:limit], key=lambda one: (text_of(one.next_at), one.tenant, one.name))

    def from_items(self, kind: type[R], items: Sequence[Item]) -> list[R]:
        """The records in these items, with payloads that lie in pieces; records dropped meanwhile are left out."""
        for _ in range(MAX_TRIES):
            wanted = {key_of(item): _piece_keys(item) for item in items if "payload_size" in item}
            pieces = self._client.get([key for keys in wanted.values() for key in keys]) if wanted else {}
            torn = {record for record, keys in wanted.items() if any(key not in pieces for key in keys)}
            if not torn:
                break
            now = self._client.get(list(torn))
            items = [now.get(key, item) for item in items if (key := key_of(item)) not in torn or key in now]
        else:
            raise EngineError(f"schedule {min(torn).sk}: a part of its payload is missing from the table")
        texts = {record: joined([pieces[key] for key in keys]) for record, keys in wanted.items()}
        return [record_from(kind, item, texts.get(key_of(item))) for item in items]

    def _stored(self, record: Record) -> Any:
        """The record as it is in the table; None if it is not there."""
        place = record_key(record)
        return next(iter(self.from_items(type(record), list(self._client.get([place]).values()))), None)

    # ---------------------------------------------------------------------------------------- writing

    def save(
        self,
        record: Record,
        before: Record | Overwrite | None,
        event: Event | None,
        job: Job | None,
        now: datetime,
    ) -> Saved:
        """Write a record with its event and its job; without the job if its id or key is taken, or a value is bad."""
        new = None if job is None else job.stored_at(now)
        receipt = new and Receipt(new, created=True)
        dead: str | None = None
        once = before is not Overwrite.OVERWRITE  # else a repeat cannot fail because of what it wrote itself
        for _ in range(MAX_TRIES):
            parts, raised = self._parts(record, before, event)
            try:
                self._client.write([*parts, *self._job_parts(new, now, dead)], once=once)
            except ConditionFailed as failed:
                if 0 in failed.which and once:
                    return Saved(done=False)
                if new is not None and min(failed.which) >= len(parts):
                    first, dead = self._enqueuer.first(new, failed.which, len(parts))
                    if first is not None:
                        receipt, new = Receipt(first, created=False), None
                # else somebody paused meanwhile, or changed what we are to replace: try again
            except ValueError as error:
                if new is None or job is None:
                    raise
                receipt, new = Receipt(job, created=False, refused=str(error)), None
            else:
                self._close(raised)
                return Saved(done=True, receipt=receipt)
        raise Throttled(f"{self._client.where}: {record_key(record)} keeps changing; repeating is safe")

    def _job_parts(self, job: Job | None, now: datetime, dead: str | None) -> list[Part]:
        return [] if job is None else self._enqueuer.parts(job, now, dead)

    def _close(self, raised: GateRaise | None) -> None:
        if raised is not None:
            self._pause_gate.close(raised)

    def drop(self, record: Record, event: Event | None) -> bool:
        for _ in range(MAX_TRIES):
            stored = self._stored(record)
            if stored is None or getattr(stored, "revision", 0) != getattr(record, "revision", 0):
                return False
            parts = [delete(self._table, record_key(record), _unchanged(stored))]
            if isinstance(record, Pause):
                parts.append(self._pause_gate.raised().part)
            parts += self._schedule_parts(stored, None)
            parts += event_parts(self._table, event) if event is not None else []
            try:
                self._client.write(parts, once=True)
            except ConditionFailed:
                continue
            return True
        raise Throttled(f"{self._client.where}: {record_key(record)} keeps changing; repeating is safe")

    def schedule_parts(self, after: Schedule | None, before: Schedule | None, event: Event) -> list[Part]:
        """What writes a schedule and its event, or without an `after` deletes it, if it is still `before`."""
        if after is not None:
            return self._parts(after, before, event)[0]
        if before is None:
            return []
        gone = delete(self._table, record_key(before), _unchanged(before))
        return [gone, *self._schedule_parts(before, None), *event_parts(self._table, event)]

    def _parts(
        self, record: Record, before: Record | Overwrite | None, event: Event | None
    ) -> tuple[list[Part], GateRaise | None]:
        """What a save writes except its job, the record first; and how the gate is raised, if it is a pause."""
        key, item = record_key(record), record_item(record)
        if isinstance(before, Overwrite) and isinstance(record, Schedule):
            before = self._stored(record)
        if isinstance(before, Overwrite):
            parts = [put(self._table, key, item)]
        else:
            parts = [put(self._table, key, item, [ABSENT] if before is None else _unchanged(before))]
        raised = self._pause_gate.raised() if isinstance(record, Pause) else None
        parts += [raised.part] if raised is not None else []
        parts += self._schedule_parts(before if isinstance(before, Schedule) else None, record)
        parts += event_parts(self._table, event) if event is not None else []
        return parts, raised

    def _schedule_parts(self, before: Record | None, after: Record | None) -> Iterator[Part]:
        """What goes with a schedule: the tick that says when it is due, and the pieces of a large payload."""
        had, has = _ticks(before), _ticks(after)
        old, new = _pieces(before), _pieces(after)
        yield from (delete(self._table, key) for key in had if key not in has)
        yield from (put(self._table, key, {}) for key in has if key not in had)
        if old != new:
            yield from (put(self._table, key, piece) for key, piece in new.items())
            yield from (delete(self._table, key) for key in old if key not in new)


def _unchanged(before: Record) -> list[Test]:
    """The tests that the stored record is this one."""
    names = table_of(before).compared
    return [there(record_key(before)), *((name, "=", stored_value(name, getattr(before, name))) for name in names)]


def _ticks(record: Record | None) -> Iterable[ItemKey]:
    return [tick_key(record)] if isinstance(record, Schedule) and record.enabled else []


def _pieces(record: Record | None) -> dict[ItemKey, Item]:
    text = payload_of(record) if isinstance(record, Schedule) else None
    if record is None or text is None or len(text) <= MAX_INLINE:
        return {}
    return {key_of(piece): piece for piece in pieces_of(subject(record), "payload", text)}


def _piece_keys(item: Item) -> list[ItemKey]:
    """The keys of the pieces of a schedule's payload."""
    return piece_keys(subject(record_from(Schedule, item)), item, "payload")
