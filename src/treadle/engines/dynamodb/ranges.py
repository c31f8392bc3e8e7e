"""Which slots there are. A slot is written down before its first job, so a claim knows where to look.

A queue has a slot for each lane and priority in use, and keeps it. From MAX_SLOTS on, new lanes share a few slots by
their hash; then they share a claim's turn too. Parked jobs lie in other slots, which are deleted when they are empty.
From MAX_PARKED_SLOTS on, those of a lane and priority share one slot, which stays. So a claim reads a short list of
slots however many lanes, tasks and tenants there are.
"""

import threading
import time
from collections.abc import Collection, Iterable
from typing import NamedTuple
from zlib import crc32

from treadle.engines.dynamodb.client import MAX_SORT_KEY, Client
from treadle.engines.dynamodb.connection import ConditionFailed
from treadle.engines.dynamodb.cursors import Cursors
from treadle.engines.dynamodb.items import GATE, PLAIN, Item, ItemKey, Slot, due_key, plain, value_of
from treadle.engines.dynamodb.writes import ABSENT, Part, TableInfo, Test, delete, update
from treadle.model import Job, new_id

MAX_SLOTS = 48  # of a queue, before lanes are hashed
LANE_BUCKETS = 16
MAX_PARKED_SLOTS = 16  # of a queue, before parked jobs share
SHARED = "~"  # stands for the task of a shared slot: a process of an older version must not take it for another slot
SLOTS_LIFETIME = 60.0  # seconds for which the number of slots is trusted


class Range(NamedTuple):
    """A slot, over how many shards it was ever spread, and a mark that changes when jobs are parked in it."""

    slot: Slot
    shards: int
    touched: str = ""


class Ranges:
    """The slots of a table, as far as this process knows them."""

    def __init__(self, client: Client, cursors: Cursors, shards: int) -> None:
        self.shards = shards
        self.gate: tuple[int | None, float] = (None, float("-inf"))  # its version (None: it has none), when we asked
        self._client = client
        self._cursors = cursors
        self._known: dict[Slot, Range] = {}
        self._read_at = float("-inf")
        self._lock = threading.Lock()
        self._choosing = threading.Lock()

    # ------------------------------------------------------------------------------------ for writers

    def due_key(self, table: TableInfo, job: Job) -> ItemKey:
        """The key that a due item of this job gets, in a slot that everybody knows."""
        key = due_key(job, self._slot_for(table, job), self.shards)
        self._cursors.move_back(key)
        return key

    def _slot_for(self, table: TableInfo, job: Job) -> Slot:
        slot = Slot(job.queue, job.lane, job.priority)
        if self._spread_over(slot) >= self.shards:
            return slot
        with self._choosing:  # one after the other, so that each sees the new slots before it
            return self._register(table, self._wanted(slot))

    def _wanted(self, slot: Slot) -> Slot:
        """This slot, or, where a queue has many, one that its lane shares."""
        if slot.lane and self._number(slot.queue) < MAX_SLOTS and time.monotonic() - self._read_at >= SLOTS_LIFETIME:
            self.refresh()
        if not slot.lane or slot in self._known or self._number(slot.queue) < MAX_SLOTS:
            return slot
        return slot._replace(lane=_bucket(slot.lane), hashed=True)

    def _register(self, table: TableInfo, slot: Slot) -> Slot:
        """This slot, known to everybody from now on."""
        if self._spread_over(slot) >= self.shards:
            return slot
        fewer: Test = ("shards", "<", value_of(self.shards))
        shards = self.shards
        try:
            self._client.write([update(table, slot.key, _slot_item(slot, shards), (), [ABSENT], [fewer])])
        except ConditionFailed as failed:  # it is known already, with as many shards or more
            shards = max(shards, int(plain(failed.which[0] or {}).get("shards", 0)))
        with self._lock:
            self._known[slot] = Range(slot, shards)
        return slot

    def touch(self, table: TableInfo, slot: Slot) -> tuple[Part, int]:
        """The part that writes a slot down together with the jobs that are parked in it, and over how many shards.

        It changes the slot's mark, so that a process that has seen the slot empty before cannot delete it.
        """
        shards = max(self.shards, self._spread_over(slot))
        no_more: Test = ("shards", "<=", value_of(shards))
        sets = _slot_item(slot, shards) | {"touched": value_of(new_id()[-12:])}
        return update(table, slot.key, sets, (), [ABSENT], [no_more]), shards

    def parking_slot(self, slot: Slot, chosen: Collection[Slot]) -> Slot:
        """This slot for parked jobs, or, where a queue has many, one that they share; `chosen` are about to be made."""
        if slot in self._known or slot in chosen:
            return slot
        parked = [one for one in {*self._snapshot(), *chosen} if one.queue == slot.queue and one.task]
        if sum(not one.shared for one in parked) < MAX_PARKED_SLOTS:
            return slot
        return slot._replace(task=SHARED, version=0, tenant="", shared=True)

    def discard(self, table: TableInfo, range_: Range) -> None:
        """Delete an empty slot, unless jobs were parked there since it was read."""
        self._client.write([delete(table, range_.slot.key, [("touched", "=", value_of(range_.touched))])])

    # ------------------------------------------------------------------------------------ for readers

    def of(self, queues: Iterable[str], lanes: Iterable[str] | None) -> list[Range]:
        """The ranges that a claim of these queues and lanes scans.

        They are as `refresh` has read them, and a claim reads them each time: a job that was there when it began may
        be in a slot that is new.
        """
        wanted, names = set(queues), None if lanes is None else set(lanes)
        buckets = None if names is None else {_bucket(name) for name in names}
        return [
            range_
            for slot, range_ in sorted(self._snapshot().items())
            if slot.queue in wanted and (names is None or slot.lane in ((buckets if slot.hashed else names) or ()))
        ]

    def marks(self) -> dict[Slot, str]:
        """What changes when a job is parked anywhere, as `refresh` has read it."""
        return {slot: range_.touched for slot, range_ in self._snapshot().items() if range_.touched}

    def all(self) -> list[Range]:
        self.refresh()
        return [range_ for _, range_ in sorted(self._snapshot().items())]

    def refresh(self) -> None:
        asked = time.monotonic()
        found = {PLAIN: Range(PLAIN, 1)}  # other programs put plain jobs there without asking
        version: int | None = None
        for page in self._client.pages("slots", high=MAX_SORT_KEY, limit=1000):
            for item in page:
                if item["SK"]["S"] == GATE.sk:
                    version = int(item["version"]["N"])
                else:
                    range_ = _range_from(item)
                    found[range_.slot] = range_
        with self._lock:
            self._known = found  # also what is gone: a table may have been made anew
            self._read_at = asked
            self.gate = (version, asked)

    def _number(self, queue: str) -> int:
        return sum(1 for known in self._snapshot() if known.queue == queue and not known.task)

    def _spread_over(self, slot: Slot) -> int:
        known = self._known.get(slot)
        return known.shards if known is not None else 0

    def _snapshot(self) -> dict[Slot, Range]:
        with self._lock:
            return dict(self._known)


def _slot_item(slot: Slot, shards: int) -> Item:
    fields = {**slot._asdict(), "shards": shards}
    del fields["tenant" if slot.shared else "shared"]
    return {name: value_of(value) for name, value in fields.items()}


def _range_from(item: Item) -> Range:
    at = plain(item)
    slot = Slot(
        at["queue"],
        at["lane"],
        int(at["priority"]),
        bool(at["hashed"]),
        at["task"],
        int(at["version"]),
        at.get("tenant", ""),
        bool(at.get("shared", False)),
    )
    return Range(slot, int(at["shards"]), at.get("touched", ""))


def _bucket(lane: str) -> str:
    return str(crc32(lane.encode()) % LANE_BUCKETS)
