"""Which jobs a claim tries, slot by slot in order, stepping over what it may not take.

Lanes take turns; within a lane the most urgent priority comes first, within that a shard at random, within the shard
the longest due. What a claim may not take, for it is paused or strange to the claimer, is put away in slots of its own,
so that claims meet it once; a slot that the gate shuts, or that the claimer does not know, is stepped over.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from heapq import merge
from itertools import groupby, islice
from typing import Any, NamedTuple

from treadle.engines.dynamodb import writes
from treadle.engines.dynamodb.client import BRIEFLY, TRIES, Client, Crowded, Failed
from treadle.engines.dynamodb.filing import Filing, Met
from treadle.engines.dynamodb.gate import GATE_READ, UNDERWAY, Keeper, Reading
from treadle.engines.dynamodb.items import Item, Place, Slot, is_ours, job_from, place_of, plain, text_of
from treadle.engines.dynamodb.looking import Reader
from treadle.engines.dynamodb.pools import AT_ONCE, Memory, Pools
from treadle.engines.dynamodb.slots import Range, Slots
from treadle.engines.dynamodb.writes import Table
from treadle.engines.fence import in_order
from treadle.engines.values import Claim
from treadle.model import UUID, Job, State
from treadle.model.records import ANY

PAGE = 25
ROUNDS = 20  # looks of one claim that keeps meeting what it may not take
FILED = 25  # such jobs that a claim steps over each time before it puts them away
FRESH = 1.0  # seconds
SPARE = 100  # such jobs that one look at a range may meet
TOGETHER = 10  # jobs that are claimed in one transaction, where there is a gate to mind
AT_A_TIME = 128  # jobs that are claimed before it is looked whether there is a gate by now
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


class Took(NamedTuple):
    """What became of some jobs that were to be claimed: those we have got, and whether others were in the way."""

    items: list[Item]
    crowded: bool = False
    outdated: bool = False  # the gate has changed since it was read


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
        keeper: Keeper,
        put_back: Callable[[Job, datetime], None],
    ) -> None:
        self._client = client
        self._table = table
        self._slots = slots
        self._reader = reader
        self._pools = pools
        self._cursors = cursors
        self._places = places
        self._keeper = keeper
        self._put_back = put_back
        self._filing = Filing(client, table, slots, pools.each)
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
            with UNDERWAY.claim():
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
            ranges, reading = self._slots.of(claim.queues, claim.lanes), self._keeper.seen(now)
            look = Look(self._client, self._cursors, claim, reading, now)
            sources, outdated = look.sources(ranges, self._first), False
            while not outdated and len(taken) < claim.limit and (tried := by_turns(sources, claim.limit - len(taken))):
                took = self._take(tried, claim, reading, now, give_way=give_way)
                taken += took.items
                crowded |= took.crowded
                outdated = took.outdated
            crowded |= look.crowded
            self._first = look.first or self._first
            if outdated:
                continue
            if len(look.met) > FILED:  # no more than a moment's worth while jobs wait to be started
                self._filing.put_away(look.met[:AT_ONCE] if taken else look.met)
            self._filing.tidy(look.empty)
            if taken or not look.cut_short:
                break
        return Attempt(taken, crowded)

    def _take(self, items: Sequence[Item], claim: Claim, reading: Reading, now: datetime, *, give_way: bool) -> Took:
        """Claim these, as far as nobody else was quicker and the gate is still as it was read."""
        if reading.armed:
            piles = _piles(items, TOGETHER)
            minding = self._pools.each(lambda pile: self._together(pile, claim, reading, now, give_way=give_way), piles)
            return _all(minding)
        took: list[Took] = []
        for some in _piles(items, AT_A_TIME):
            if reading.left < GATE_READ / 2:
                reading = self._keeper.look(now)
            if reading.armed:
                return _all([*took, Took([], outdated=True)])
            got = self._plainly(some, claim, reading, now, give_way=give_way)
            took.append(got if reading.left > 0 else got._replace(items=self._let_through(got.items, now)))
        return _all(took)

    def _plainly(self, items: Sequence[Item], claim: Claim, reading: Reading, now: datetime, *, give_way: bool) -> Took:
        """Claim these without a gate to mind."""
        return _all(self._pools.each(lambda item: self._alone(item, claim, reading, now, give_way=give_way), items))

    def _let_through(self, items: Sequence[Item], now: datetime) -> list[Item]:
        """What of these is not paused by now, for there may be a gate; the rest is put back unstarted."""
        gate = self._keeper.look(now).gate
        stopped = [item for item in items if gate.blocks(*_scope(item))]
        for job in self._reader.jobs(stopped):
            self._put_back(job, now)
        return [item for item in items if item not in stopped]

    def _alone(self, item: Item, claim: Claim, reading: Reading, now: datetime, *, give_way: bool) -> Took:
        """Claim this one without a gate to mind, if nobody else was quicker."""
        patience = min(BRIEFLY, reading.left)
        if patience <= 0:  # it was read too long ago
            return self._together([item], claim, reading, now, give_way=give_way)
        try:
            parts = writes.take(self._table, job_from(item), claim, place_of(item), now)
            self._client.write(parts, patience=patience, give_way=give_way)
        except Failed as failed:
            return Took([self._taken(item, claim, now)] if _is_ours(failed.which.get(0), claim) else [])
        except Crowded:
            return Took([], crowded=True)
        return Took([self._taken(item, claim, now)])

    def _together(
        self, items: Sequence[Item], claim: Claim, reading: Reading, now: datetime, *, give_way: bool
    ) -> Took:
        """Claim these in one transaction that minds the gate; without those that somebody else was quicker to take."""
        left, crowded = list(items), False
        ours: list[Item] = []
        for _ in range(TRIES):
            if not left:
                break
            parts, owners = [self._keeper.check(reading)], [-1]
            for number, item in enumerate(left):
                new = writes.take(self._table, job_from(item), claim, place_of(item), now)
                parts, owners = [*parts, *new], [*owners, *[number] * len(new)]
            try:
                self._client.write(parts, patience=BRIEFLY, give_way=give_way)
            except Failed as failed:
                if 0 in failed.which:
                    return Took([self._taken(item, claim, now) for item in ours], crowded, outdated=True)
                gone = {owners[part] for part in failed.which}
                ours += [left[owners[part]] for part, there in failed.which.items() if _is_ours(there, claim)]
            except Crowded as crowd:
                crowded = True
                gone = {owners[part] for part in crowd.which} or set(range(len(left)))
            else:
                ours, left = [*ours, *left], []
                break
            left = [item for number, item in enumerate(left) if number not in gone]
        return Took([self._taken(item, claim, now) for item in ours], crowded or bool(left))

    def _taken(self, item: Item, claim: Claim, now: datetime) -> Item:
        """The item as our claim has left it."""
        job = job_from(item)
        self._places.put(job.id, place_of(item))
        kept = {name: value for name, value in item.items() if name not in writes.TAKEN_AWAY}
        return kept | writes.taking(job, claim, now)

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


def _piles(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _all(took: Sequence[Took]) -> Took:
    """What several have got, together."""
    items = [item for one in took for item in one.items]
    return Took(items, any(one.crowded for one in took), any(one.outdated for one in took))


def _is_ours(there: Item | None, claim: Claim) -> bool:
    """Whether a claim was refused because it had been there before, and its answer was lost."""
    return there is not None and there.get("lease_token", {}).get("S") == claim.token


def _scope(item: Item) -> tuple[str, str, str]:
    at = plain(item)
    return at.get("tenant", "default"), at.get("queue", "default"), at["job_type"]
