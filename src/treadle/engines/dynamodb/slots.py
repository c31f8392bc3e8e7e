"""Which slots there are. A slot is written down before its first job and stays, so a claim knows where to look.

A queue has a slot for each lane and priority in use. From MOST of them on, new lanes share a few by their hash: then
they share a claim's turn too.
"""

import threading
import time
from collections.abc import Iterable
from typing import NamedTuple
from zlib import crc32

from treadle.engines.dynamodb.client import Client, Failed
from treadle.engines.dynamodb.items import PLAIN, Place, Slot, plain, value_of
from treadle.engines.dynamodb.writes import Table, Test, update
from treadle.model import Job

MOST = 48  # slots of a queue before lanes are hashed
BUCKETS = 16
RECENT = 60.0  # seconds that the number of slots is believed


class Range(NamedTuple):
    """A slot and over how many shards it was ever spread."""

    slot: Slot
    shards: int


class Slots:
    """The slots of a table, as far as this process knows them."""

    def __init__(self, client: Client, shards: int) -> None:
        self.shards = shards
        self._client = client
        self._known: dict[Slot, int] = {}
        self._read_at = float("-inf")
        self._lock = threading.Lock()
        self._choosing = threading.Lock()

    def for_job(self, table: Table, job: Job) -> Slot:
        """Where a due item of this job belongs, written down."""
        slot = Slot(job.queue, job.lane, job.priority)
        if self._known.get(slot, 0) >= self.shards:
            return slot
        with self._choosing:  # one after the other, so that each sees the new ones before it
            return self.register(table, self._wanted(slot))

    def register(self, table: Table, slot: Slot) -> Slot:
        """This slot, known to everybody from now on."""
        if self._known.get(slot, 0) >= self.shards:
            return slot
        sets = {name: value_of(value) for name, value in slot._asdict().items()} | {"shards": value_of(self.shards)}
        absent: Test = ("PK", "=", None)
        fewer: Test = ("shards", "<", value_of(self.shards))
        try:
            self._client.write([update(table, Place("slots", slot.name), sets, (), [absent], [fewer])])
        except Failed as failed:  # it is known already, with as many shards or more
            item = failed.which[0] or {}
            with self._lock:
                self._known[slot] = max(self.shards, int(plain(item).get("shards", 0)))
            return slot
        with self._lock:
            self._known[slot] = self.shards
        return slot

    def of(self, queues: Iterable[str], lanes: Iterable[str] | None) -> list[Range]:
        """The ranges that a claim of these queues and lanes looks at.

        Read anew each time: a job that was there when the claim began may be in a slot that is new.
        """
        self.refresh()
        wanted, names = set(queues), None if lanes is None else set(lanes)
        buckets = None if names is None else {_bucket(name) for name in names}
        return [
            Range(slot, shards)
            for slot, shards in sorted(self._snapshot().items())
            if slot.queue in wanted and (names is None or slot.lane in ((buckets if slot.hashed else names) or ()))
        ]

    def all(self) -> list[Range]:
        self.refresh()
        return [Range(slot, shards) for slot, shards in sorted(self._snapshot().items())]

    def refresh(self) -> None:
        asked = time.monotonic()
        found = {PLAIN: 1}  # other programs put plain jobs without asking
        for page in self._client.pages("slots", limit=1000):
            for item in page:
                at = plain(item)
                slot = Slot(
                    at["queue"], at["lane"], int(at["priority"]), bool(at["hashed"]), at["task"], int(at["version"])
                )
                found[slot] = int(at["shards"])
        with self._lock:
            self._known = found  # a table may have been made anew
            self._read_at = asked

    def _wanted(self, slot: Slot) -> Slot:
        """This slot, or, where a queue has many, one that its lane shares."""
        if slot.lane and self._number(slot.queue) < MOST and time.monotonic() - self._read_at >= RECENT:
            self.refresh()
        if not slot.lane or slot in self._known or self._number(slot.queue) < MOST:
            return slot
        return slot._replace(lane=_bucket(slot.lane), hashed=True)

    def _number(self, queue: str) -> int:
        return sum(1 for known in self._snapshot() if known.queue == queue)

    def _snapshot(self) -> dict[Slot, int]:
        with self._lock:
            return dict(self._known)


def _bucket(lane: str) -> str:
    return str(crc32(lane.encode()) % BUCKETS)
