"""Parking: a job that claims find and may not take moves to a slot that they skip.

The job is unknown to the claimer, or paused. A claim that may take it enters that slot and finds it there. A slot
that parked jobs of many tasks share is another matter: unparking.py.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from treadle.engines.dynamodb.client import SHORT_RETRY, Client
from treadle.engines.dynamodb.connection import ConditionFailed, Throttled
from treadle.engines.dynamodb.items import Item, ItemKey, Slot, due_key, id_key, key_of, pointer
from treadle.engines.dynamodb.pools import MAX_CALLS, Each
from treadle.engines.dynamodb.ranges import Range, Ranges
from treadle.engines.dynamodb.rows import job_from
from treadle.engines.dynamodb.writes import Part, TableInfo, delete, put, revision_is, state_is, update
from treadle.model import Job, State

PARKED_AT_ONCE = 30  # jobs in one transaction
PARTS_PER_MOVE = 3


class Skipped(NamedTuple):
    """A job that a claim may not take, and the slot in which it is to be parked."""

    item: Item
    slot: Slot


class Parking:
    """Parks the jobs of one table."""

    def __init__(self, client: Client, table: TableInfo, ranges: Ranges, each: Each) -> None:
        self._client = client
        self._table = table
        self._ranges = ranges
        self._each = each

    def park(self, skipped: Sequence[Skipped], *, quickly: bool = False) -> None:
        """Move these to their slots; a job that was claimed or moved meanwhile stays where it is.

        With `quickly`, only as many as one transaction a slot can move, because somebody waits.
        """
        groups: dict[Slot, list[Item]] = {}
        for item, slot in skipped:
            groups.setdefault(self._ranges.parking_slot(slot, groups), []).append(item)
        if quickly:
            groups = {slot: groups[slot][:PARKED_AT_ONCE] for slot in list(groups)[:MAX_CALLS]}
        self._each(lambda group: self._park_in(*group), list(groups.items()))

    def _park_in(self, slot: Slot, items: Sequence[Item]) -> None:
        """One transaction after the other, because each writes the slot too."""
        for start in range(0, len(items), PARKED_AT_ONCE):
            with suppress(Throttled):
                self._move(slot, items[start : start + PARKED_AT_ONCE])

    def _move(self, slot: Slot, items: Sequence[Item]) -> None:
        while items:
            touched, shards = self._ranges.touch(self._table, slot)
            parts = [touched, *(part for item in items for part in self._moved(item, slot, shards))]
            try:
                self._client.write(parts, retry_for=SHORT_RETRY)
            except ConditionFailed as failed:
                if 0 in failed.which:  # the slot has more shards than we know of
                    return
                gone = {(number - 1) // PARTS_PER_MOVE for number in failed.which}
                items = [item for number, item in enumerate(items) if number not in gone]
            else:
                return

    def _moved(self, item: Item, slot: Slot, shards: int) -> list[Part]:
        job = job_from(item)
        return move_parts(self._table, item, job, due_key(job, slot, shards))

    def discard_empty(self, ranges: Sequence[Range]) -> None:
        """Delete those of these slots that hold no job any more."""
        for range_ in dict.fromkeys(ranges):
            with suppress(Throttled, ConditionFailed):  # jobs were parked there meanwhile
                if range_.touched and not any(self._holds(range_, shard) for shard in range(range_.shards)):
                    self._ranges.discard(self._table, range_)

    def _holds(self, range_: Range, shard: int) -> bool:
        return any(next(self._client.pages(range_.slot.partition(shard), limit=1)))


def move_parts(table: TableInfo, item: Item, job: Job, new: ItemKey) -> list[Part]:
    """A pending job in another slot; nothing else of it changes."""
    tests = [state_is(State.PENDING), revision_is(job.revision)]
    home = update(table, id_key(job.id, table.spread), pointer(new))
    return [delete(table, key_of(item), tests), put(table, new, item), home]
