"""Which jobs a claim tries, in which order.

Lanes take turns. Where there are many, a claim leaves out most of those in which claims have just found nothing, and
looks into them only if the others give nothing either. Within a lane the most urgent priority comes first, within a
priority a shard at random, within a shard the job that has been due longest. A job that the claim may not take is
skipped and noted, so that it can be parked. A slot of parked jobs is not entered while the gate blocks them or the
claim does not take their task.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from heapq import merge
from itertools import groupby, islice
from typing import Any

from treadle.engines.dynamodb.client import SHORT_RETRY, Client
from treadle.engines.dynamodb.connection import Throttled
from treadle.engines.dynamodb.cursors import CURSOR_LIFETIME, FIRST_DUE, Cursors
from treadle.engines.dynamodb.gate import GateReading
from treadle.engines.dynamodb.items import Item, Slot, key_of, plain, text_of
from treadle.engines.dynamodb.parking import Skipped
from treadle.engines.dynamodb.ranges import Range
from treadle.engines.dynamodb.rows import is_ours
from treadle.engines.dynamodb.unparking import Unparking, scope_of
from treadle.engines.values import Claim
from treadle.model import State
from treadle.model.records import ANY

SCAN_PAGE = 25
MAX_SKIPPED = 100  # jobs of one range that a scan may skip
MAX_RUNNING_HEAD = 25  # running jobs at the head of a range that each scan walks over
QUIET_LANES = 8  # lanes without jobs that each claim looks at
CLOCK_MARGIN = 2.0  # seconds that a cursor stays behind, because clocks differ

Lane = tuple[str, bool, str]
"""A queue, whether its lane is hashed, and the lane."""


def _lane(range_: Range) -> Lane:
    return range_.slot.queue, range_.slot.hashed, range_.slot.lane


class ClaimScan:
    """One claim's way through the ranges."""

    def __init__(
        self,
        client: Client,
        cursors: Cursors,
        unparking: Unparking,
        claim: Claim,
        reading: GateReading,
        now: datetime,
    ) -> None:
        self.first: Lane | None = None  # the lane that the first job came from
        self.skipped: list[Skipped] = []  # jobs that it may not take
        self.empty: list[Range] = []  # slots for parked jobs that hold none
        self.throttled = False  # a range could not be read just now
        self.cut_short = False  # a range has more such jobs than one scan may skip, or more that were parked
        self._client = client
        self._cursors = cursors
        self._unparking = unparking
        self._claim = claim
        self._gate = reading.gate
        self._scope = scope_of(claim, reading.gate)
        cursors.ask_for(self._scope)
        self._moment = now
        self._now = text_of(now)
        self._behind = text_of(now.fromtimestamp(now.timestamp() - CLOCK_MARGIN, now.tzinfo))

    def sources(self, ranges: Sequence[Range], last: Lane | None) -> tuple[list[Iterator[Item]], list[Iterator[Item]]]:
        """One stream of jobs for each lane, beginning after the lane that came first the last time.

        First those to look at, then those of the lanes in which there was nothing a moment ago.
        """
        ranges = [range_ for range_ in ranges if self._enters(range_.slot)]
        lanes = {lane: list(group) for lane, group in groupby(sorted(ranges, key=_lane), _lane)}
        later = [lane for lane in lanes if last is None or lane > last]
        earlier = [lane for lane in lanes if last is not None and lane <= last]
        left_out = self._left_out(lanes)
        return (
            [self._jobs(lane, lanes[lane]) for lane in (*later, *earlier) if lane not in left_out],
            [self._jobs(lane, lanes[lane]) for lane in (*later, *earlier) if lane in left_out],
        )

    def _left_out(self, lanes: Mapping[Lane, Sequence[Range]]) -> set[Lane]:
        """The lanes in which claims have found nothing of late, without the few whose turn it is to be looked at."""
        if self._claim.thorough:
            return set()
        quiet: list[tuple[float, Lane]] = []
        for lane, ranges in lanes.items():
            walked = [range_ for range_ in ranges if not range_.slot.shared]
            partitions = [range_.slot.partition(shard) for range_ in walked for shard in range(range_.shards)]
            looks = [self._cursors.quiet_since(pk, self._moment) for pk in partitions]
            if looks and None not in looks:
                quiet.append((min(look for look in looks if look is not None), lane))
        return {lane for _, lane in sorted(quiet)[QUIET_LANES:]}

    def _enters(self, slot: Slot) -> bool:
        """Whether there may be jobs for this claim in a slot."""
        if self._gate.blocks(ANY, slot.queue):
            return False
        if not slot.task or slot.shared:
            return True
        paused = self._gate.blocks(slot.tenant or ANY, slot.queue, slot.task)
        return self._claim.takes(slot.task, slot.version) and not paused

    def _jobs(self, lane: Lane, ranges: list[Range]) -> Iterator[Item]:
        """The jobs of a lane that may be claimed now: priority by priority, within each shard by shard."""
        for priority in sorted({range_.slot.priority for range_ in ranges}, reverse=True):
            same = [range_ for range_ in ranges if range_.slot.priority == priority and not range_.slot.shared]
            for shared in ranges:
                if shared.slot.priority == priority and shared.slot.shared:
                    self._bring_back(shared)
            shards = max((range_.shards for range_ in same), default=1)
            start = random.randrange(shards)  # noqa: S311 - spreads the workers
            for shard in (*range(start, shards), *range(start)):
                streams = [self._due(range_, shard) for range_ in same if shard < range_.shards]
                for item in merge(*streams, key=lambda item: str(item["SK"]["S"])):
                    self.first = self.first or lane
                    yield item

    def _bring_back(self, range_: Range) -> None:
        """Move parked jobs that the claim may take to where it looks next."""
        try:
            brought = self._unparking.bring_back(range_, self._claim, self._gate, self._scope)
        except Throttled:
            self.throttled = True
        else:
            self.cut_short |= brought.left or (brought.moved and self.first is None)

    def _due(self, range_: Range, shard: int) -> Iterator[Item]:
        """The jobs of a range that may be claimed now, in order; none if it cannot be read just now."""
        try:
            yield from self._walk(range_, range_.slot.partition(shard))
        except Throttled:
            self.throttled = True

    def _walk(self, range_: Range, pk: str) -> Iterator[Item]:
        skipped, found = 0, False
        for item, at in self._waiting(range_, pk):
            parked = self._parking_slot(range_.slot, at)
            if parked is None:
                found = True
                yield item
                continue
            skipped += 1
            self.skipped.append(Skipped(item, parked))
            if skipped >= MAX_SKIPPED:
                self.cut_short = True
                return
        if not found:
            self._cursors.found_nothing(pk, self._moment)

    def _waiting(self, range_: Range, pk: str) -> Iterator[tuple[Item, Mapping[str, Any]]]:
        """Pending jobs of a range, open to this claim, with their values; what runs at the head moves the cursor."""
        at_head, running, empty = True, 0, True
        for item in self._items(pk):
            at, empty = plain(item), False
            if at.get("status") == State.RUNNING:
                running += 1
                if at_head and running > MAX_RUNNING_HEAD and at["SK"].removeprefix(FIRST_DUE) < self._behind:
                    self._cursors.advance(key_of(item), min(CURSOR_LIFETIME, self._claim.lease / 3))
                continue
            at_head = False
            if is_ours(item) and self._is_open(at):
                yield item, at
        if range_.slot.task and empty:
            self.empty.append(range_)

    def _items(self, pk: str) -> Iterator[Item]:
        """What is due in a partition, in order, from its cursor on."""
        low = FIRST_DUE if self._claim.thorough else self._cursors.start(pk)
        size = max(SCAN_PAGE, self._claim.limit)
        pages = self._client.pages(pk, low=low, high=f"scheduled#{self._now}#~", limit=size, retry_for=SHORT_RETRY)
        for page in pages:
            yield from page

    def _is_open(self, at: Mapping[str, Any]) -> bool:
        """Whether a pending job has not expired and lies in a lane of the claim."""
        if "expires_at" in at and at["expires_at"] <= self._now:
            return False
        return self._claim.lanes is None or at.get("lane", "") in self._claim.lanes

    def _parking_slot(self, slot: Slot, at: Mapping[str, Any]) -> Slot | None:
        """Where a job that this claim may not take is parked; None if the claim may take it."""
        task, version, tenant = at["job_type"], int(at.get("task_version", 1)), at.get("tenant", "default")
        if not self._claim.takes(task, version) or self._gate.blocks(ANY, slot.queue, task):
            return slot._replace(task=task, version=version, tenant="")
        if self._gate.blocks(tenant, slot.queue, task):
            return slot._replace(task=task, version=version, tenant=tenant)
        return None


def by_turns(sources: list[Iterator[Item]], wanted: int) -> list[Item]:
    """Up to `wanted` items, from each source its share; a source that is exhausted leaves the list."""
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
