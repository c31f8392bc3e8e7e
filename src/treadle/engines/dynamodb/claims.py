"""Which jobs a claim tries, slot by slot in order, stepping over what it may not take.

Lanes take turns; within a lane the most urgent priority comes first, within that a shard at random, within the shard
the longest due. What a claim does not know is filed by task and version, so that claims meet it once.
"""

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from heapq import merge
from itertools import groupby, islice
from typing import NamedTuple

from treadle.engines.base import Claim, in_order
from treadle.engines.dynamodb import writes
from treadle.engines.dynamodb.client import BRIEFLY, Client, Crowded, Failed
from treadle.engines.dynamodb.items import Item, Place, Slot, due_place, is_ours, job_from, place_of, plain, text_of
from treadle.engines.dynamodb.looking import Reader
from treadle.engines.dynamodb.pools import AT_ONCE, Memory, Pools
from treadle.engines.dynamodb.slots import Range, Slots
from treadle.engines.dynamodb.writes import Table
from treadle.model import UUID, Job, State

PAGE = 25
ROUNDS = 20  # looks of one claim that keeps meeting strangers
FILED = 25  # strangers that a claim steps over each time before it files them away
FRESH = 1.0  # seconds
SPARE = 100  # jobs of strangers that one look at a range may meet
HEAD = 25  # running jobs at the head of a range that are walked over each time
BELIEVED = 1.0  # seconds that a cursor counts: what was released or recovered lies before it
MARGIN = 2.0  # seconds: clocks differ, so a cursor stays that far behind


class Cursor(NamedTuple):
    """Up to this sort key everything was running when we looked, and until when that is believed."""

    sk: str
    until: float


class Cursors:
    """Where claims begin in each range, instead of walking over everything that runs."""

    def __init__(self) -> None:
        self._cursors: dict[str, Cursor] = {}
        self._lock = threading.Lock()

    def start(self, pk: str) -> str:
        cursor = self._cursors.get(pk)
        return cursor.sk if cursor is not None and time.monotonic() < cursor.until else "scheduled#"

    def advance(self, pk: str, sk: str, seconds: float) -> None:
        with self._lock:
            if self.start(pk) == "scheduled#":
                self._cursors[pk] = Cursor(sk, time.monotonic() + seconds)
            else:
                self._cursors[pk] = self._cursors[pk]._replace(sk=sk)

    def back(self, pk: str, sk: str) -> None:
        """A job was put at this place: look there again."""
        with self._lock:
            if pk in self._cursors and self._cursors[pk].sk >= sk:
                del self._cursors[pk]


Lane = tuple[str, bool, str]


def _lane(range_: Range) -> Lane:
    return range_.slot.queue, range_.slot.hashed, range_.slot.lane


class Look:
    """One claim's way through the ranges."""

    def __init__(self, client: Client, cursors: Cursors, claim: Claim, now: datetime) -> None:
        self.first: Lane | None = None  # the lane that the first job came from
        self.strangers: list[Item] = []
        self.crowded = False  # a range could not be read just now
        self.cut_short = False  # there were more strangers than one look may meet
        self._client = client
        self._cursors = cursors
        self._claim = claim
        self._now = text_of(now)
        self._behind = text_of(now.fromtimestamp(now.timestamp() - MARGIN, now.tzinfo))

    def sources(self, ranges: Sequence[Range], last: Lane | None) -> list[Iterator[Item]]:
        """One stream of jobs a lane, beginning after the lane that came first the last time."""
        lanes = {lane: list(group) for lane, group in groupby(sorted(ranges, key=_lane), _lane)}
        later = [lane for lane in lanes if last is None or lane > last]
        earlier = [lane for lane in lanes if lane not in later]
        return [self._jobs(lane, lanes[lane]) for lane in (*later, *earlier)]

    def _jobs(self, lane: Lane, ranges: list[Range]) -> Iterator[Item]:
        """What of a lane may be claimed now: from priority to priority, within each from shard to shard."""
        ranges = [range_ for range_ in ranges if not range_.slot.task or self._knows_slot(range_.slot)]
        for priority in sorted({range_.slot.priority for range_ in ranges}, reverse=True):
            same = [range_ for range_ in ranges if range_.slot.priority == priority]
            shards = max(range_.shards for range_ in same)
            start = random.randrange(shards)  # noqa: S311 - spreads the workers
            for shard in (*range(start, shards), *range(start)):
                streams = [self._due(range_.slot.partition(shard)) for range_ in same if shard < range_.shards]
                for item in merge(*streams, key=lambda item: str(item["SK"]["S"])):
                    self.first = self.first or lane
                    yield item

    def _due(self, pk: str) -> Iterator[Item]:
        """What of a range may be claimed now, in order; nothing where it cannot be read just now."""
        try:
            yield from self._walk(pk)
        except Crowded:
            self.crowded = True

    def _walk(self, pk: str) -> Iterator[Item]:
        low, met, running = self._cursors.start(pk), 0, 0
        head = True
        for page in self._client.pages(
            pk, low=low, high=f"scheduled#{self._now}#~", limit=max(PAGE, self._claim.limit), patience=BRIEFLY
        ):
            for item in page:
                at = plain(item)
                if at.get("status") == "running":
                    running += 1
                    if head and running > HEAD and at["SK"][10:] < self._behind:
                        self._cursors.advance(pk, at["SK"], min(BELIEVED, self._claim.lease / 3))
                    continue
                head = False
                if not is_ours(item) or ("expires_at" in at and at["expires_at"] <= self._now):
                    continue
                if self._claim.lanes is not None and at.get("lane", "") not in self._claim.lanes:
                    continue
                if self._knows(at["job_type"], int(at.get("task_version", 1))):
                    yield item
                    continue
                met += 1
                self.strangers.append(item)
                if met >= SPARE:
                    self.cut_short = True
                    return

    def _knows(self, task: str, version: int) -> bool:
        claim = self._claim
        return (claim.tasks is None or task in claim.tasks) and version <= claim.versions.get(task, version)

    def _knows_slot(self, slot: Slot) -> bool:
        return self._knows(slot.task, slot.version)


def by_turns(sources: list[Iterator[Item]], wanted: int) -> list[Item]:
    """Up to `wanted` items, from each source its share; exhausted sources are taken off the list."""
    taken: list[Item] = []
    while sources and len(taken) < wanted:
        share = max(1, (wanted - len(taken)) // len(sources))
        for source in list(sources):
            asked = min(share, wanted - len(taken))
            got = list(islice(source, asked))
            taken += got
            if len(got) < asked:
                sources.remove(source)
    return taken


class Take(NamedTuple):
    """What became of one job that was to be claimed: the item, or others wanted it too."""

    item: Item | None
    crowded: bool = False


class Attempt(NamedTuple):
    """What one way through the ranges has got, and whether it met a crowd."""

    taken: list[Item]
    crowded: bool


class Claims:
    """Claims jobs of one table for this process."""

    def __init__(
        self,
        client: Client,
        table: Table,
        slots: Slots,
        reader: Reader,
        pools: Pools,
        cursors: Cursors,
        places: Memory[Place],
    ) -> None:
        self._client = client
        self._table = table
        self._slots = slots
        self._reader = reader
        self._pools = pools
        self._cursors = cursors
        self._places = places
        self._strange: Memory[bool] = Memory()  # tokens that we were asked for, and whether others may have sent them
        self._tokens: Memory[datetime] = Memory()  # of those it has sent, and when
        self._first: Lane | None = None  # the lane that the last claim began with

    def begun(self, token: str) -> bool:
        """Whether a claim with this token may have been sent before.

        One that was minted a moment ago can only have been sent by us, and that we would know.
        """
        strange = self._strange.get(token)
        if strange is None:
            made = int(token[:8] + token[9:13], 16) / 1000 if UUID.fullmatch(token) else 0.0
            strange = abs(time.time() - made) > FRESH
            self._strange.put(token, strange)
        return strange or self._tokens.get(token) is not None

    def claim(self, claim: Claim, now: datetime, *, repeated: bool) -> list[Job]:
        """Claim jobs, or give again what an earlier sending of this claim has got."""
        if repeated and (held := self._under(claim, now)):
            return in_order(self._reader.jobs(held))  # this turn was here before: the same answer, and no more
        self._tokens.put(claim.token, now)
        for give_way in (True, False):
            attempt = self._attempt(claim, now, give_way=give_way)
            if attempt.taken or not attempt.crowded:
                break
        else:
            raise Crowded(f"{self._client.where}: there are jobs, but none can be claimed just now; repeating is safe")
        return in_order(self._reader.jobs(attempt.taken))

    def _attempt(self, claim: Claim, now: datetime, *, give_way: bool) -> Attempt:
        taken: list[Item] = []
        crowded = False
        for _ in range(ROUNDS):
            look = Look(self._client, self._cursors, claim, now)
            sources = look.sources(self._slots.of(claim.queues, claim.lanes), self._first)
            while len(taken) < claim.limit and (tried := by_turns(sources, claim.limit - len(taken))):
                takes = self._pools.each(lambda item: self._take(item, claim, now, give_way=give_way), tried)
                taken += [take.item for take in takes if take.item]
                crowded |= any(take.crowded for take in takes)
            crowded |= look.crowded
            self._first = look.first or self._first
            if len(look.strangers) > FILED:  # no more than a moment's worth while jobs wait to be started
                self._pools.each(self._file, look.strangers[:AT_ONCE] if taken else look.strangers)
            if taken or not look.cut_short:
                break
        return Attempt(taken, crowded)

    def _take(self, item: Item, claim: Claim, now: datetime, *, give_way: bool) -> Take:
        """Claim this one, if nobody else was quicker."""
        place, job = place_of(item), job_from(item)
        try:
            parts = writes.take(self._table, job, claim, place, now)
            self._client.write(parts, patience=BRIEFLY, give_way=give_way)
        except Failed as failed:
            there = failed.which.get(0)
            if there is None or there.get("lease_token", {}).get("S") != claim.token:
                return Take(None)  # else it was us, and the answer was lost
        except Crowded:
            return Take(None, crowded=True)
        self._places.put(job.id, place)
        kept = {name: value for name, value in item.items() if name not in writes.TAKEN_AWAY}
        return Take(kept | writes.taking(job, claim, now))

    def _under(self, claim: Claim, now: datetime) -> list[Item]:
        """What is held under this token: it was due when the claim was first sent."""
        first = None if self._strange.get(claim.token) else self._tokens.get(claim.token)
        high = "~" if first is None else f"scheduled#{text_of(max(first, now))}#~"
        return [
            item
            for range_ in self._slots.of(claim.queues, None)
            for shard in range(range_.shards)
            for page in self._client.pages(range_.slot.partition(shard), low="scheduled#", high=high, limit=1000)
            for item in page
            if item.get("lease_token", {}).get("S") == claim.token and item["status"]["S"] == State.RUNNING
        ]

    def _file(self, item: Item) -> None:
        """Put a job that nobody here knows where only those look who know it."""
        job, old = job_from(item), place_of(item)
        filed = Slot(job.queue, job.lane, job.priority, task=job.task, version=job.task_version)
        new = due_place(job, self._slots.register(self._table, filed), self._slots.shards)
        with suppress(Failed, Crowded):  # somebody took it, or did the same
            self._client.write(writes.moved(self._table, item, job, old, new))
