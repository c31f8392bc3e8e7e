"""Which slots there are. A slot is written down before its first job, so a claim knows where to look.

A queue has a slot for each lane and priority in use, and keeps it. From MOST of them on, new lanes share a few by their
hash: then they share a claim's turn too. What claims put away has slots of its own, which go when they are empty.
"""

import threading
import time
from collections.abc import Iterable
from typing import NamedTuple
from zlib import crc32

from treadle.engines.dynamodb.client import ALL, Client, Failed
from treadle.engines.dynamodb.items import GATE, PLAIN, Slot, plain, value_of
from treadle.engines.dynamodb.writes import ABSENT, Part, Table, Test, delete, update
from treadle.model import Job, new_id

MOST = 48  # slots of a queue before lanes are hashed
BUCKETS = 16
RECENT = 60.0  # seconds that the number of slots is believed


class Range(NamedTuple):
    """A slot, over how many shards it was ever spread, and a mark that changes when jobs are put away in it."""

    slot: Slot
    shards: int
    touched: str = ""


class Slots:
    """The slots of a table, as far as this process knows them."""

    def __init__(self, client: Client, shards: int) -> None:
        self.shards = shards
        self.gate: tuple[int | None, float] = (None, float("-inf"))  # its version (None: it has none), when we asked
        self._client = client
        self._known: dict[Slot, Range] = {}
        self._read_at = float("-inf")
        self._lock = threading.Lock()
        self._choosing = threading.Lock()

    def for_job(self, table: Table, job: Job) -> Slot:
        """Where a due item of this job belongs, written down."""
        slot = Slot(job.queue, job.lane, job.priority)
        if self._spread_over(slot) >= self.shards:
            return slot
        with self._choosing:  # one after the other, so that each sees the new ones before it
            return self._register(table, self._wanted(slot))

    def _register(self, table: Table, slot: Slot) -> Slot:
        """This slot, known to everybody from now on."""
        if self._spread_over(slot) >= self.shards:
            return slot
        fewer: Test = ("shards", "<", value_of(self.shards))
        shards = self.shards
        try:
            self._client.write([update(table, slot.place, self._said(slot, shards), (), [ABSENT], [fewer])])
        except Failed as failed:  # it is known already, with as many shards or more
            shards = max(shards, int(plain(failed.which[0] or {}).get("shards", 0)))
        with self._lock:
            self._known[slot] = Range(slot, shards)
        return slot

    def touch(self, table: Table, slot: Slot) -> tuple[Part, int]:
        """What writes a slot down together with the jobs that are put away in it; and over how many shards these go.

        It changes the slot's mark, so that nobody takes the slot away who has seen it empty before.
        """
        shards = max(self.shards, self._spread_over(slot))
        more: Test = ("shards", "<=", value_of(shards))
        sets = self._said(slot, shards) | {"touched": value_of(new_id())}
        return update(table, slot.place, sets, (), [ABSENT], [more]), shards

    def discard(self, table: Table, range_: Range) -> None:
        """Take a slot away in which nothing is left; not if jobs were put there since it was read."""
        self._client.write([delete(table, range_.slot.place, [("touched", "=", value_of(range_.touched))])])

    @staticmethod
    def _said(slot: Slot, shards: int) -> dict[str, dict[str, object]]:
        return {name: value_of(value) for name, value in (*slot._asdict().items(), ("shards", shards))}

    def of(self, queues: Iterable[str], lanes: Iterable[str] | None) -> list[Range]:
        """The ranges that a claim of these queues and lanes looks at.

        Read anew each time: a job that was there when the claim began may be in a slot that is new.
        """
        self.refresh()
        wanted, names = set(queues), None if lanes is None else set(lanes)
        buckets = None if names is None else {_bucket(name) for name in names}
        return [
            range_
            for slot, range_ in sorted(self._snapshot().items())
            if slot.queue in wanted and (names is None or slot.lane in ((buckets if slot.hashed else names) or ()))
        ]

    def all(self) -> list[Range]:
        self.refresh()
        return [range_ for _, range_ in sorted(self._snapshot().items())]

    def refresh(self) -> None:
        asked = time.monotonic()
        found = {PLAIN: Range(PLAIN, 1)}  # other programs put plain jobs without asking
        version: int | None = None
        for page in self._client.pages("slots", high=ALL, limit=1000):
            for item in page:
                at = plain(item)
                if at["SK"] == GATE.sk:
                    version = int(at["version"])
                    continue
                slot = Slot(
                    at["queue"],
                    at["lane"],
                    int(at["priority"]),
                    bool(at["hashed"]),
                    at["task"],
                    int(at["version"]),
                    at.get("tenant", ""),
                )
                found[slot] = Range(slot, int(at["shards"]), at.get("touched", ""))
        with self._lock:
            self._known = found  # a table may have been made anew
            self._read_at = asked
            self.gate = (version, asked)

    def _wanted(self, slot: Slot) -> Slot:
        """This slot, or, where a queue has many, one that its lane shares."""
        if slot.lane and self._number(slot.queue) < MOST and time.monotonic() - self._read_at >= RECENT:
            self.refresh()
        if not slot.lane or slot in self._known or self._number(slot.queue) < MOST:
            return slot
        return slot._replace(lane=_bucket(slot.lane), hashed=True)

    def _number(self, queue: str) -> int:
        return sum(1 for known in self._snapshot() if known.queue == queue and not known.task)

    def _spread_over(self, slot: Slot) -> int:
        known = self._known.get(slot)
        return known.shards if known is not None else 0

    def _snapshot(self) -> dict[Slot, Range]:
        with self._lock:
            return dict(self._known)


def _bucket(lane: str) -> str:
    return str(crc32(lane.encode()) % BUCKETS)
