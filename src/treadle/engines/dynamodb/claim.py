"""Which jobs a claim tries, slot by slot in order, stepping over what it may not take.

Lanes take turns; within a lane the most urgent priority comes first, within that a shard at random, within the shard
the longest due. What a claim may not take, for it is paused or strange to the claimer, is put away in slots of its own,
so that claims meet it once; a slot that the gate shuts, or that the claimer does not know, is stepped over.
"""

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from treadle.engines.dynamodb.audit import trail
from treadle.engines.dynamodb.client import BRIEFLY, TRIES, Client, Crowded, Failed
from treadle.engines.dynamodb.cursors import Cursors
from treadle.engines.dynamodb.gate import GATE_READ, UNDERWAY, Keeper, Reading
from treadle.engines.dynamodb.items import Item, Place, place_of, plain, text_of, value_of
from treadle.engines.dynamodb.parking import Filing
from treadle.engines.dynamodb.pools import AT_ONCE, Memory, Pools
from treadle.engines.dynamodb.queries import Reader
from treadle.engines.dynamodb.ranges import Slots
from treadle.engines.dynamodb.rows import job_from
from treadle.engines.dynamodb.scan import Lane, Look, by_turns
from treadle.engines.dynamodb.writes import Part, Table, free_key, revision_is, state_is, update
from treadle.engines.fence import in_order
from treadle.engines.values import Claim
from treadle.model import UUID, Event, EventKind, Job, Scope, State

ROUNDS = 20  # looks of one claim that keeps meeting what it may not take
FILED = 25  # such jobs that a claim steps over each time before it puts them away
FRESH = 1.0  # seconds
TOGETHER = 10  # jobs that are claimed in one transaction, where there is a gate to mind
AT_A_TIME = 128  # jobs that are claimed before it is looked whether there is a gate by now


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
            parts = take(self._table, job_from(item), claim, place_of(item), now)
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
                new = take(self._table, job_from(item), claim, place_of(item), now)
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
        kept = {name: value for name, value in item.items() if name not in TAKEN_AWAY}
        return kept | taking(job, claim, now)

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


# --------------------------------------------------------------------------------------------- claim


TAKEN_AWAY = ("started_at", "progress")  # by a claim: they told of the attempt before


def taking(job: Job, claim: Claim, now: datetime) -> Item:
    """What a claim sets in the due item of this job."""
    said = {
        "status": State.RUNNING,
        "claims": job.attempt + 1,
        "revision": job.revision + 1,
        "claimed_at": now,
        "lock_expires_at": now + timedelta(seconds=claim.lease),
        "lease_token": claim.token,
        "locked_by": claim.worker,
    }
    return {name: value_of(value) for name, value in said.items()}


def take(table: Table, job: Job, claim: Claim, place: Place, now: datetime) -> list[Part]:
    """A claim of one job."""
    tests = [state_is(State.PENDING), revision_is(job.revision)]
    parts = [update(table, place, taking(job, claim, now), TAKEN_AWAY, tests)]
    if job.key_scope is Scope.PENDING:
        parts.append(free_key(table, job))
    if table.audit_all:
        parts += trail(table, Event(job.id, job.revision + 1, now, EventKind.CLAIMED, claim.worker, "", job.tenant))
    return parts
