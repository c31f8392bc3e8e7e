"""Putting away what claims meet and may not take: where only those look who may, and everybody else steps over it."""

from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple

from treadle.engines.dynamodb.client import BRIEFLY, Client, Crowded, Failed
from treadle.engines.dynamodb.items import Item, Place, Slot, due_place, id_place, place_of
from treadle.engines.dynamodb.pools import Each
from treadle.engines.dynamodb.ranges import Range, Slots
from treadle.engines.dynamodb.rows import job_from
from treadle.engines.dynamodb.writes import Part, Table, delete, pointer, put, revision_is, state_is, update
from treadle.model import Job, State

TOGETHER = 30  # jobs in one transaction


class Met(NamedTuple):
    """A job that a claim may not take, and where it belongs."""

    item: Item
    slot: Slot


class Filing:
    """Puts jobs of one table away."""

    def __init__(self, client: Client, table: Table, slots: Slots, each: Each) -> None:
        self._client = client
        self._table = table
        self._slots = slots
        self._each = each

    def put_away(self, met: Sequence[Met]) -> None:
        """Move these where they belong, as far as nobody took them or did the same."""
        piles = groupby(sorted(met, key=lambda one: one.slot), lambda one: one.slot)
        self._each(lambda pile: self._pile(*pile), [(slot, [one.item for one in some]) for slot, some in piles])

    def _pile(self, slot: Slot, items: Sequence[Item]) -> None:
        """One transaction after the other: each writes the slot too."""
        for start in range(0, len(items), TOGETHER):
            with suppress(Crowded):
                self._move(slot, items[start : start + TOGETHER])

    def _move(self, slot: Slot, items: Sequence[Item]) -> None:
        while items:
            touched, shards = self._slots.touch(self._table, slot)
            parts = [touched, *(part for item in items for part in self._moved(item, slot, shards))]
            try:
                self._client.write(parts, patience=BRIEFLY)
            except Failed as failed:
                if 0 in failed.which:  # it has more shards than we know of
                    return
                gone = {(number - 1) // MOVED for number in failed.which}
                items = [item for number, item in enumerate(items) if number not in gone]
            else:
                return

    def _moved(self, item: Item, slot: Slot, shards: int) -> list[Part]:
        job = job_from(item)
        return moved(self._table, item, job, place_of(item), due_place(job, slot, shards))

    def tidy(self, ranges: Sequence[Range]) -> None:
        """Take those of these slots away in which nothing is left."""
        for range_ in dict.fromkeys(ranges):
            with suppress(Crowded, Failed):  # jobs were put there meanwhile
                if range_.touched and not any(self._holds(range_, shard) for shard in range(range_.shards)):
                    self._slots.discard(self._table, range_)

    def _holds(self, range_: Range, shard: int) -> bool:
        return any(next(self._client.pages(range_.slot.partition(shard), limit=1)))


MOVED = 3  # parts that moving a job takes


def moved(table: Table, item: Item, job: Job, old: Place, new: Place) -> list[Part]:
    """A pending job in another slot; nothing else changes."""
    tests = [state_is(State.PENDING), revision_is(job.revision)]
    home = update(table, id_place(job.id, table.spread), pointer(new))
    return [delete(table, old, tests), put(table, new, item), home]
