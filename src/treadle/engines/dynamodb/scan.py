"""One claim's way through the ranges."""

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from heapq import merge
from itertools import groupby, islice
from typing import Any

from treadle.engines.dynamodb.client import BRIEFLY, Client, Crowded
from treadle.engines.dynamodb.cursors import BELIEVED, Cursors
from treadle.engines.dynamodb.gate import Reading
from treadle.engines.dynamodb.items import Item, Slot, plain, text_of
from treadle.engines.dynamodb.parking import Met
from treadle.engines.dynamodb.ranges import Range
from treadle.engines.dynamodb.rows import is_ours
from treadle.engines.values import Claim
from treadle.model.records import ANY

PAGE = 25
SPARE = 100  # such jobs that one look at a range may meet
HEAD = 25  # running jobs at the head of a range that are walked over each time
MARGIN = 2.0  # seconds: clocks differ, so a cursor stays that far behind


Lane = tuple[str, bool, str]


def _lane(range_: Range) -> Lane:
    return range_.slot.queue, range_.slot.hashed, range_.slot.lane


class Look:
    """One claim's way through the ranges."""

    def __init__(self, client: Client, cursors: Cursors, claim: Claim, reading: Reading, now: datetime) -> None:
        self.first: Lane | None = None  # the lane that the first job came from
        self.met: list[Met] = []  # what it may not take
        self.empty: list[Range] = []  # slots of what was put away, with nothing in them
        self.crowded = False  # a range could not be read just now
        self.cut_short = False  # there was more than one look may meet
        self._client = client
        self._cursors = cursors
        self._claim = claim
        self._gate = reading.gate
        self._now = text_of(now)
        self._behind = text_of(now.fromtimestamp(now.timestamp() - MARGIN, now.tzinfo))

    def sources(self, ranges: Sequence[Range], last: Lane | None) -> list[Iterator[Item]]:
        """One stream of jobs a lane, beginning after the lane that came first the last time."""
        ranges = [range_ for range_ in ranges if self._enters(range_.slot)]
        lanes = {lane: list(group) for lane, group in groupby(sorted(ranges, key=_lane), _lane)}
        later = [lane for lane in lanes if last is None or lane > last]
        earlier = [lane for lane in lanes if lane not in later]
        return [self._jobs(lane, lanes[lane]) for lane in (*later, *earlier)]

    def _enters(self, slot: Slot) -> bool:
        """Whether there may be jobs for this claim in a slot."""
        if self._gate.blocks(ANY, slot.queue):
            return False
        known = self._claim.takes(slot.task, slot.version) and not self._gate.blocks(
            slot.tenant or ANY, slot.queue, slot.task
        )
        return not slot.task or known

    def _jobs(self, lane: Lane, ranges: list[Range]) -> Iterator[Item]:
        """What of a lane may be claimed now: from priority to priority, within each from shard to shard."""
        for priority in sorted({range_.slot.priority for range_ in ranges}, reverse=True):
            same = [range_ for range_ in ranges if range_.slot.priority == priority]
            shards = max(range_.shards for range_ in same)
            start = random.randrange(shards)  # noqa: S311 - spreads the workers
            for shard in (*range(start, shards), *range(start)):
                streams = [self._due(range_, shard) for range_ in same if shard < range_.shards]
                for item in merge(*streams, key=lambda item: str(item["SK"]["S"])):
                    self.first = self.first or lane
                    yield item

    def _due(self, range_: Range, shard: int) -> Iterator[Item]:
        """What of a range may be claimed now, in order; nothing where it cannot be read just now."""
        try:
            yield from self._walk(range_, range_.slot.partition(shard))
        except Crowded:
            self.crowded = True

    def _walk(self, range_: Range, pk: str) -> Iterator[Item]:
        low, met, running = self._cursors.start(pk), 0, 0
        head, anything = True, False
        for page in self._client.pages(
            pk, low=low, high=f"scheduled#{self._now}#~", limit=max(PAGE, self._claim.limit), patience=BRIEFLY
        ):
            anything = anything or bool(page)
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
                aside = self._aside(range_.slot, at)
                if aside is None:
                    yield item
                    continue
                met += 1
                self.met.append(Met(item, aside))
                if met >= SPARE:
                    self.cut_short = True
                    return
        if range_.slot.task and not anything:
            self.empty.append(range_)

    def _aside(self, slot: Slot, at: Mapping[str, Any]) -> Slot | None:
        """Where a job belongs that this claim may not take; None if it may."""
        task, version, tenant = at["job_type"], int(at.get("task_version", 1)), at.get("tenant", "default")
        if not self._claim.takes(task, version) or self._gate.blocks(ANY, slot.queue, task):
            return slot._replace(task=task, version=version, tenant="")
        if self._gate.blocks(tenant, slot.queue, task):
            return slot._replace(task=task, version=version, tenant=tenant)
        return None


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
