"""Enqueue and settle as items for the caller's own TransactWriteItems.

Nothing is written here. What can be told beforehand is told now, by consistent reads and by what the caller's list
already holds; what happens until the caller commits is caught by the conditions in the items, which then cancel the
whole transaction.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from treadle.engines.base import Receipt, Ruling, Script, Verdict, fits, judge
from treadle.engines.dynamodb.client import BATCH
from treadle.engines.dynamodb.items import Item, Place, job_from, place_of
from treadle.engines.dynamodb.looking import Reader
from treadle.engines.dynamodb.writes import Part, key_of
from treadle.errors import EngineError
from treadle.model import Change, Job

ITEMS = (
    "dynamodb items"  # the statement of such a script: its parameter is a JSON array of items, its rows are all items
)


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
            held = _puts((yield ITEMS, "[]"))
            due_at = job.due_at if job.due_at > job.created_at else now
            new = job.evolve(created_at=now, due_at=due_at)
            first, dead = self._first(new, held, now)
            if first is not None:
                receipts.append(Receipt(first, created=False))
                continue
            try:
                parts = self._new(new, now, dead)
            except ValueError as error:
                receipts.append(Receipt(job, created=False, refused=str(error)))
                continue
            yield _added(parts, len(held))
            receipts.append(Receipt(new, created=True))
        return receipts

    def _first(self, job: Job, held: Mapping[Place, Item], now: datetime) -> tuple[Job | None, str | None]:
        """The job that has this id or this key already; and whose key may be taken, for that job is gone."""
        for item in held.values():
            if "job_type" in item and place_of(item).sk.endswith(job.id):
                return job_from(item), None
        [known] = self._reader.get([job.id])
        if known is not None or job.key is None:
            return known, None
        place = key_of(job)
        if place in held:
            return self._first(job.evolve(id=held[place]["job"]["S"], key=None), held, now)
        return self._reader.holder(place, now)

    def settle(self, change: Change, place: Place | None, now: datetime) -> Script[Verdict]:
        [current] = self._reader.get([change.before.id])
        if current is None or place is None or not fits(change, current, now):
            return judge(change, current)
        held = _puts((yield ITEMS, "[]"))
        if place in held:
            raise EngineError(f"tx: job {change.before.id} is settled in this list already")
        try:
            parts = self._changed(change, place, now, None)
        except ValueError as error:
            return Verdict(Ruling.REFUSED, why=str(error))
        yield _added(parts, len(held))
        return Verdict(Ruling.APPLIED)


def _added(parts: Sequence[Part], there: int) -> tuple[str, str]:
    if there + len(parts) > BATCH:
        raise EngineError(
            f"tx: {there + len(parts)} items are more than the {BATCH} that a DynamoDB transaction takes: "
            "commit these first, or enqueue without tx"
        )
    return ITEMS, json.dumps(parts)


def _puts(rows: Sequence[tuple[Part, ...]]) -> dict[Place, Item]:
    """What the list does so far, by the key of each item."""
    found: dict[Place, Item] = {}
    for [part] in rows:
        for said in part.values():
            item = said.get("Item") or said["Key"]
            if "PK" in item and "SK" in item:
                found[place_of(item)] = item
    return found
