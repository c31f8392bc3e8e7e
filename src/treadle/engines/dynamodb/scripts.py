"""Enqueue and settle as items for the caller's own TransactWriteItems.

No job is written here. What can be told beforehand is told now, by consistent reads and by what the caller's list
already holds; what happens until the caller commits is caught by the conditions in the items, which then cancel the
whole transaction.
"""

import json
from collections.abc import Callable, Sequence
from datetime import datetime

from treadle.engines.dynamodb.client import BATCH
from treadle.engines.dynamodb.items import Item, Place, holder_of, place_of
from treadle.engines.dynamodb.pieces import joined, piece_places, spilled_names
from treadle.engines.dynamodb.queries import Reader
from treadle.engines.dynamodb.rows import job_from
from treadle.engines.dynamodb.writes import Part, key_of
from treadle.engines.fence import fits, judge, stamped
from treadle.engines.scripts import ITEMS, Script
from treadle.engines.values import Receipt, Ruling, Verdict
from treadle.errors import ConfigError, EngineError
from treadle.model import Change, Job


class Scripts:
    """The scripts of one table."""

    def __init__(
        self,
        reader: Reader,
        new: Callable[[Job, datetime, str | None], list[Part]],
        changed: Callable[[Change, Place, datetime, str | None], list[Part]],
    ) -> None:
        self._reader = reader
        self._new = new
        self._changed = changed

    def enqueue(self, jobs: Sequence[Job], now: datetime) -> Script[list[Receipt]]:
        receipts: list[Receipt] = []
        for job in jobs:
            listed = Listed((yield ITEMS, "[]"))
            new = stamped(job, now)
            first, dead = self._first(new, listed, now)
            if first is not None:
                receipts.append(Receipt(first, created=False))
                continue
            try:
                parts = self._new(new, now, dead)
            except ValueError as error:
                receipts.append(Receipt(job, created=False, refused=str(error)))
                continue
            yield listed.with_(parts)
            receipts.append(Receipt(new, created=True))
        return receipts

    def _first(self, job: Job, listed: "Listed", now: datetime) -> tuple[Job | None, str | None]:
        """The job that has this id or this key already; and whose key may be taken, for that job is gone."""
        known = listed.job(job.id) or self._reader.get([job.id])[0]
        if known is not None or job.key is None:
            return known, None
        place = key_of(job)
        if place in listed.deleted:
            raise EngineError(f"tx: this list frees the key {job.key!r} and cannot take it too: commit it first")
        if place in listed.put:
            return listed.job(holder_of(listed.put[place]) or ""), None
        return self._reader.holder(place, now)

    def settle(self, change: Change, place: Place | None, now: datetime) -> Script[Verdict]:
        listed, id_ = Listed((yield ITEMS, "[]")), change.before.id
        if listed.job(id_) is not None:
            raise EngineError(f"tx: job {id_} is new in this list: enqueue it once, as it shall be")
        if place is not None and (place in listed.deleted or place in listed.put):
            raise EngineError(f"tx: job {id_} is settled in this list already")
        current = self._reader.at(id_, place)
        if current is None or place is None or not fits(change, current, now):
            return judge(change, current)
        try:
            parts = [*self._changed(change, place, now, None), *self._following(change, listed, now)]
        except ValueError as error:
            return Verdict(Ruling.REFUSED, why=str(error))
        yield listed.with_(parts)
        return Verdict(Ruling.APPLIED)

    def _following(self, change: Change, listed: "Listed", now: datetime) -> list[Part]:
        """The job that is stored with the change, if its id or key is not taken."""
        if change.follow is None:
            return []
        follow = stamped(change.follow, now)
        first, dead = self._first(follow, listed, now)
        return [] if first is not None else self._new(follow, now, dead)


class Listed:
    """What the caller's list does so far."""

    def __init__(self, rows: Sequence[tuple[Part, ...]]) -> None:
        self.put: dict[Place, Item] = {}
        self.deleted: set[Place] = set()
        self._size = len(rows)
        for number, [part] in enumerate(rows):
            if not isinstance(part, dict) or len(part) != 1 or not isinstance(next(iter(part.values())), dict):
                raise ConfigError(f'tx: item {number} of the list is none such as {{"Put": {{...}}}}')
            [(kind, said)] = part.items()
            key = said.get("Item") or said.get("Key", {})
            if "PK" in key and "SK" in key and kind == "Put":  # others may lie in a table of any keys
                self.put[place_of(key)] = key
            elif "PK" in key and "SK" in key:
                self.deleted.add(place_of(key))

    def job(self, job_id: str) -> Job | None:
        """The job of this id that is new in the list."""
        for place, item in self.put.items():
            if "job_type" in item and place.sk.endswith(f"#{job_id}"):
                names = spilled_names(item)
                return job_from(
                    item, {name: joined([self.put[one] for one in piece_places(job_id, item, name)]) for name in names}
                )
        return None

    def with_(self, parts: Sequence[Part]) -> tuple[str, str]:
        """The statement that adds these; EngineError if they are too many."""
        size = self._size + len(parts)
        if size > BATCH:
            raise EngineError(
                f"tx: {size} items are more than the {BATCH} that a DynamoDB transaction takes: "
                "commit these first, or enqueue without tx"
            )
        return ITEMS, json.dumps(parts)
