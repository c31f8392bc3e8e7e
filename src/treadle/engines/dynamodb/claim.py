"""Claiming: each job by a conditional write, so that of two claims one gets it.

scan.py says which jobs a claim tries, gate.py how a pause keeps it from committing. In a table that was never paused a
claim is a plain update of the due item; in another, ten claims are one transaction that also checks the gate.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from treadle.engines.dynamodb.audit import event_parts
from treadle.engines.dynamodb.client import MAX_TRIES, SHORT_RETRY, Client
from treadle.engines.dynamodb.connection import ConditionFailed, Throttled
from treadle.engines.dynamodb.cursors import FIRST_DUE, Cursors
from treadle.engines.dynamodb.gate import GATE_LIFETIME, RUNNING_CLAIMS, GateReading, PauseGate
from treadle.engines.dynamodb.items import Item, ItemKey, Slot, id_of, key_of, plain, text_of, value_of
from treadle.engines.dynamodb.parking import Parking
from treadle.engines.dynamodb.pools import Memory, Pools
from treadle.engines.dynamodb.queries import Reader
from treadle.engines.dynamodb.ranges import Ranges
from treadle.engines.dynamodb.rows import job_from
from treadle.engines.dynamodb.scan import ClaimScan, Lane, by_turns
from treadle.engines.dynamodb.unparking import Unparking
from treadle.engines.dynamodb.writes import Part, TableInfo, free_key, revision_is, state_is, update
from treadle.engines.fence import in_order
from treadle.engines.values import Claim
from treadle.model import UUID, Change, Job, State, lifecycle

MAX_SCANS = 20  # of one claim that keeps finding jobs that it may not take
MAX_UNPARKED = 25  # such jobs that a claim skips each time before it parks them
FRESH_TOKEN_AGE = 1.0  # seconds
CLAIMS_PER_TRANSACTION = 10  # where the gate must be checked
CLAIMS_PER_GATE_READ = 128  # where there was no gate: then it is read again whether there is one by now


class ClaimTry(NamedTuple):
    """One try at a claim; with `give_way` a throttled call is not repeated."""

    claim: Claim
    now: datetime
    give_way: bool


class Candidate(NamedTuple):
    """A pending job as it was read, and the change that claims it."""

    item: Item
    change: Change

    @property
    def claimed(self) -> Item:
        """The item as the claim leaves it."""
        kept = {name: value for name, value in self.item.items() if name not in CLEARED}
        return kept | claimed_attributes(self.change.after)


class Taken(NamedTuple):
    """What became of some candidates: the items that we have got, and what kept us from the others."""

    items: list[Item]
    throttled: bool = False
    outdated: bool = False  # the gate has changed since it was read
    cut_short: bool = False  # there were more to look at


class Claimer:
    """Claims jobs of one table for this process."""

    def __init__(
        self,
        client: Client,
        table: TableInfo,
        ranges: Ranges,
        reader: Reader,
        pools: Pools,
        cursors: Cursors,
        last_keys: Memory[ItemKey],
        pause_gate: PauseGate,
        put_back: Callable[[Job, datetime], None],
    ) -> None:
        self._client = client
        self._table = table
        self._ranges = ranges
        self._reader = reader
        self._pools = pools
        self._cursors = cursors
        self._last_keys = last_keys
        self._pause_gate = pause_gate
        self._put_back = put_back
        self._parking = Parking(client, table, ranges, pools.each)
        self._unparking = Unparking(client, table, ranges, pools.each)
        self._foreign: Memory[bool] = Memory()  # by token: whether another process may have sent it
        self._sent: Memory[datetime] = Memory()  # by token: when this process sent it first
        self._first: Lane | None = None  # the lane that the last claim began with

    def may_be_repeat(self, token: str) -> bool:
        """Whether a claim with this token may have been sent before.

        A token that was minted a moment ago can only have been sent by this process, which remembers its own.
        """
        foreign = self._foreign.get(token)
        if foreign is None:
            made = int(token[:8] + token[9:13], 16) / 1000 if UUID.fullmatch(token) else 0.0
            foreign = abs(time.time() - made) > FRESH_TOKEN_AGE
            self._foreign.put(token, foreign)
        return foreign or self._sent.get(token) is not None

    def claim(self, claim: Claim, now: datetime, *, repeated: bool) -> tuple[list[Job], bool]:
        """Claim jobs, or answer again what the same claim got before; and whether there may be more."""
        if repeated and (held := self._held_under(claim, now)):
            return in_order(self._reader.jobs(held)), True
        self._sent.put(claim.token, now)
        for give_way in (True, False):
            with RUNNING_CLAIMS.claim():
                taken = self._try(ClaimTry(claim, now, give_way))
            if taken.items or not taken.throttled:
                break
        else:
            raise Throttled(
                f"{self._client.where}: there are jobs, but none can be claimed just now; repeating is safe"
            )
        return in_order(self._reader.jobs(taken.items)), taken.cut_short or taken.throttled

    def _held_under(self, claim: Claim, now: datetime) -> list[Item]:
        """What is held under this token; it was due when the claim was first sent."""
        self._ranges.refresh()
        first = None if self._foreign.get(claim.token) else self._sent.get(claim.token)
        high = "~" if first is None else f"scheduled#{text_of(max(first, now))}#~"
        return [
            item
            for range_ in self._ranges.of(claim.queues, None)
            if not range_.slot.shared  # where nothing runs
            for shard in range(range_.shards)
            for page in self._client.pages(range_.slot.partition(shard), low=FIRST_DUE, high=high, limit=1000)
            for item in page
            if item.get("lease_token", {}).get("S") == claim.token and item["status"]["S"] == State.RUNNING
        ]

    # ------------------------------------------------------------------------------------ one try

    def _try(self, wanted: ClaimTry) -> Taken:
        """Scan and claim until there is enough, or nothing more to try; park what was skipped."""
        claim, taken, throttled = wanted.claim, list[Item](), False
        for _ in range(MAX_SCANS):
            self._ranges.refresh()
            reading, marks = self._pause_gate.seen(wanted.now), self._ranges.marks()
            scan = ClaimScan(self._client, self._cursors, self._unparking, claim, reading, wanted.now)
            sources, left_out = scan.sources(self._ranges.of(claim.queues, claim.lanes), self._first)
            got = self._take_from(sources, reading, wanted, claim.limit - len(taken))
            if not (got.items or got.outdated or taken):
                got, left_out = _all([got, self._take_from(left_out, reading, wanted, claim.limit)]), []
            taken += got.items
            throttled |= got.throttled or scan.throttled
            self._first = scan.first or self._first
            if got.outdated:
                continue
            if len(scan.skipped) > MAX_UNPARKED:
                self._parking.park(scan.skipped, quickly=bool(taken))
            self._parking.discard_empty(scan.empty)
            if taken or not scan.cut_short:
                break
        outdated = got.outdated or (bool(left_out) and len(taken) < claim.limit)
        if claim.thorough and not (taken or outdated or scan.cut_short):
            outdated = self._parked_since(marks)
        return Taken(taken, throttled, cut_short=outdated or scan.cut_short)

    def _take_from(self, sources: list[Iterator[Item]], reading: GateReading, wanted: ClaimTry, number: int) -> Taken:
        """Claim up to so many of these, as long as the gate is as it was read."""
        taken = Taken([])
        while not taken.outdated and (tried := by_turns(sources, number - len(taken.items))):
            # A job that others move meanwhile is read in two places: where it was read last is where it is.
            once = {id_of(item): item for item in tried}.values()
            taken = _all([taken, self._take([_candidate(item, wanted) for item in once], reading, wanted)])
        return taken

    def _parked_since(self, marks: Mapping[Slot, str]) -> bool:
        """Whether a job was parked since these marks were read: it may have moved past us."""
        self._ranges.refresh()
        return bool(set(self._ranges.marks().items()) - set(marks.items()))

    def _take(self, candidates: Sequence[Candidate], reading: GateReading, wanted: ClaimTry) -> Taken:
        """Claim these, as far as nobody else was quicker and the gate is still as it was read."""
        if reading.armed:
            groups = _groups(candidates, CLAIMS_PER_TRANSACTION)
            return _all(self._pools.each(lambda group: self._take_together(group, reading, wanted), groups))
        taken: list[Taken] = []
        for group in _groups(candidates, CLAIMS_PER_GATE_READ):
            if reading.left < GATE_LIFETIME / 2:
                reading = self._pause_gate.read(wanted.now)
            if reading.armed:
                return _all([*taken, Taken([], outdated=True)])
            got = self._take_each(group, reading, wanted)
            taken.append(got if reading.left > 0 else got._replace(items=self._let_through(got.items, wanted.now)))
        return _all(taken)

    def _take_each(self, candidates: Sequence[Candidate], reading: GateReading, wanted: ClaimTry) -> Taken:
        """Claim these one by one, where there is no gate to check."""
        return _all(self._pools.each(lambda candidate: self._take_alone(candidate, reading, wanted), candidates))

    def _take_alone(self, candidate: Candidate, reading: GateReading, wanted: ClaimTry) -> Taken:
        retry_for = min(SHORT_RETRY, reading.left)
        if retry_for <= 0:  # the gate was read too long ago
            return self._take_together([candidate], reading, wanted)
        try:
            parts = claim_parts(self._table, key_of(candidate.item), candidate.change)
            self._client.write(parts, retry_for=retry_for, give_way=wanted.give_way)
        except ConditionFailed as failed:
            return self._taken([candidate] if _is_ours(failed.which.get(0), wanted.claim) else [])
        except Throttled:
            return Taken([], throttled=True)
        return self._taken([candidate])

    def _take_together(self, candidates: Sequence[Candidate], reading: GateReading, wanted: ClaimTry) -> Taken:
        """Claim these in one transaction that checks the gate; without those that somebody else was quicker to take."""
        left, throttled = list(candidates), False
        ours: list[Candidate] = []
        for _ in range(MAX_TRIES):
            if not left:
                break
            parts, owners = [self._pause_gate.check(reading)], [-1]
            for number, candidate in enumerate(left):
                new = claim_parts(self._table, key_of(candidate.item), candidate.change)
                parts, owners = [*parts, *new], [*owners, *[number] * len(new)]
            try:
                self._client.write(parts, retry_for=SHORT_RETRY, give_way=wanted.give_way)
            except ConditionFailed as failed:
                if 0 in failed.which:
                    return self._taken(ours, throttled=throttled, outdated=True)
                gone = {owners[part] for part in failed.which}
                ours += [left[owners[part]] for part, item in failed.which.items() if _is_ours(item, wanted.claim)]
            except Throttled as error:
                throttled = True
                gone = {owners[part] for part in error.which} or set(range(len(left)))
            else:
                ours, left = [*ours, *left], []
                break
            left = [candidate for number, candidate in enumerate(left) if number not in gone]
        return self._taken(ours, throttled=throttled or bool(left))

    def _taken(self, ours: Sequence[Candidate], *, throttled: bool = False, outdated: bool = False) -> Taken:
        for candidate in ours:
            self._last_keys.put(id_of(candidate.item), key_of(candidate.item))
        return Taken([candidate.claimed for candidate in ours], throttled, outdated)

    def _let_through(self, items: Sequence[Item], now: datetime) -> list[Item]:
        """The claimed items that nothing blocks by now; there may be a gate since, so the others are put back."""
        gate = self._pause_gate.read(now).gate
        blocked = [item for item in items if gate.blocks(*_scope(item))]
        for job in self._reader.jobs(blocked):
            self._put_back(job, now)
        return [item for item in items if item not in blocked]


def _groups(candidates: Sequence[Candidate], size: int) -> list[Sequence[Candidate]]:
    return [candidates[start : start + size] for start in range(0, len(candidates), size)]


def _all(taken: Sequence[Taken]) -> Taken:
    """What several writes have got, together."""
    items = [item for one in taken for item in one.items]
    return Taken(items, any(one.throttled for one in taken), any(one.outdated for one in taken))


def _is_ours(item: Item | None, claim: Claim) -> bool:
    """Whether a write was refused because the same one had been applied before, and its answer was lost."""
    return item is not None and item.get("lease_token", {}).get("S") == claim.token


def _scope(item: Item) -> tuple[str, str, str]:
    at = plain(item)
    return at.get("tenant", "default"), at.get("queue", "default"), at["job_type"]


# ------------------------------------------------------------------------------------ what is written

CLEARED = ("started_at", "progress")  # they were about the attempt before


def _candidate(item: Item, wanted: ClaimTry) -> Candidate:
    claim = wanted.claim
    change = lifecycle.claim(job_from(item), wanted.now, worker=claim.worker, token=claim.token, lease=claim.lease)
    return Candidate(item, change)


def claimed_attributes(job: Job) -> Item:
    """What a claim sets in a due item, from the job as the claim leaves it."""
    fields = {
        "status": job.state,
        "claims": job.attempt,
        "revision": job.revision,
        "claimed_at": job.claimed_at,
        "lock_expires_at": job.lease_until,
        "lease_token": job.lease_token,
        "locked_by": job.worker,
    }
    return {name: value_of(value) for name, value in fields.items()}


def claim_parts(table: TableInfo, key: ItemKey, change: Change) -> list[Part]:
    """The claim of one job, behind the condition that nobody has changed it since it was read."""
    tests = [state_is(State.PENDING), revision_is(change.before.revision)]
    parts = [update(table, key, claimed_attributes(change.after), CLEARED, tests)]
    if change.frees_key:
        parts.append(free_key(table, change.before))
    if change.audited(table.audit_all):
        parts += event_parts(table, change.event)
    return parts
