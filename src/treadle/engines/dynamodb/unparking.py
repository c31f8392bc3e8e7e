"""Unparking: parked jobs leave a slot that they share as soon as a claim may take them.

The claim moves as many as it wants back to the slot of their lane and priority, the oldest first, and finds them there.
What it has read beyond that is remembered, and so is that there was nothing. A shared slot is read again only when a
job was parked in it since, or when the gate changes or what this process claims.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from treadle.engines.dynamodb.client import MAX_SORT_KEY, SHORT_RETRY, Client
from treadle.engines.dynamodb.connection import ConditionFailed
from treadle.engines.dynamodb.items import Item, parked_group, parked_task, plain
from treadle.engines.dynamodb.parking import PARKED_AT_ONCE, PARTS_PER_MOVE, move_parts
from treadle.engines.dynamodb.pools import Each
from treadle.engines.dynamodb.ranges import Range, Ranges
from treadle.engines.dynamodb.rows import job_from
from treadle.engines.dynamodb.writes import TableInfo
from treadle.engines.values import Claim
from treadle.model import Job
from treadle.model.records import Gate

FIRST_PAGE, MAX_PAGE = 25, 1000  # items; the pages of a walk grow
MAX_TASKS = 4  # of a claim, up to which each is looked for; beyond that a slot is walked

Parked = tuple[Item, Job]


class Found(NamedTuple):
    """What a walk through a shared slot found for a claim: the oldest first, and whether that was all."""

    mark: str
    scope: object
    jobs: deque[Parked]
    complete: bool

    def holds(self, mark: str, scope: object) -> bool:
        """Whether another walk would find nothing else."""
        return (self.mark, self.scope) == (mark, scope) and (self.complete or bool(self.jobs))


class Brought(NamedTuple):
    """Whether jobs were moved, and whether there may be more of them."""

    moved: bool
    left: bool


class Unparking:
    """Brings parked jobs of one table back."""

    def __init__(self, client: Client, table: TableInfo, ranges: Ranges, each: Each) -> None:
        self._client = client
        self._table = table
        self._ranges = ranges
        self._each = each
        self._found: dict[str, Found] = {}  # by partition

    def bring_back(self, range_: Range, claim: Claim, gate: Gate, scope: object) -> Brought:
        """Move the jobs in a shared slot that this claim may take to the slot of their lane, as many as it wants.

        `scope` is what the claim may take, to be compared.
        """
        brought = [
            self._from_partition(pk, range_, claim, gate, scope)
            for pk in map(range_.slot.partition, range(range_.shards))
        ]
        return Brought(any(one.moved for one in brought), any(one.left for one in brought))

    def _from_partition(self, pk: str, range_: Range, claim: Claim, gate: Gate, scope: object) -> Brought:
        found = self._found.pop(pk, None)  # what is not moved as it should be is read again
        if found is None or not found.holds(range_.touched, scope):
            found = self._walk(pk, range_, claim, gate, scope)
        wanted = [found.jobs.popleft() for _ in range(min(claim.limit, len(found.jobs)))]
        moves = [wanted[start : start + PARKED_AT_ONCE] for start in range(0, len(wanted), PARKED_AT_ONCE)]
        if not all(self._each(self._move, moves)):
            return Brought(moved=True, left=True)
        self._found[pk] = found
        return Brought(bool(moves), bool(found.jobs) or not found.complete)

    def _walk(self, pk: str, range_: Range, claim: Claim, gate: Gate, scope: object) -> Found:
        walk = SharedWalk(self._client, pk, range_.slot.queue, claim, gate)
        once = {parked[1].id: parked for parked in walk.jobs()}
        jobs = sorted(once.values(), key=lambda parked: (parked[1].due_at, parked[1].id))
        if walk.left_some:  # beyond these, what was not read may come before what was
            del jobs[claim.limit :]
        return Found(range_.touched, scope, deque(jobs), not walk.left_some)

    def _move(self, parked: Sequence[Parked]) -> bool:
        """Move these, without those that were moved or changed meanwhile; whether there were none such."""
        left = list(parked)
        while left:
            moves = [move_parts(self._table, item, job, self._ranges.due_key(self._table, job)) for item, job in left]
            try:
                self._client.write([part for move in moves for part in move], retry_for=SHORT_RETRY)
            except ConditionFailed as failed:
                gone = {number // PARTS_PER_MOVE for number in failed.which}
                left = [one for number, one in enumerate(left) if number not in gone]
            else:
                break
        return len(left) == len(parked)


class SharedWalk:
    """One claim's way through a shared slot: from group to group, over those of which it may take nothing.

    A group is a task, a version and a tenant. Of each the walk takes the oldest jobs, as many as the claim wants.
    """

    def __init__(self, client: Client, pk: str, queue: str, claim: Claim, gate: Gate) -> None:
        self.left_some = False  # of a group there may be more
        self._client = client
        self._pk = pk
        self._queue = queue
        self._claim = claim
        self._gate = gate
        self._taken: Counter[str] = Counter()

    def jobs(self) -> Iterator[Parked]:
        tasks = self._claim.tasks
        spans = (
            [(" ", MAX_SORT_KEY)] if tasks is None or len(tasks) > MAX_TASKS else map(parked_task, dict.fromkeys(tasks))
        )
        for low, high in spans:
            yield from self._between(low, high)

    def _between(self, low: str, high: str) -> Iterator[Parked]:
        """What the claim may take between two sort keys.

        Where a page ends in a group of which nothing more is wanted, the next page begins behind that group.
        """
        size, more = FIRST_PAGE, True
        while more:
            page, more = self._client.page(self._pk, low=low, high=high, limit=size, retry_for=SHORT_RETRY)
            group, enough = "", False
            for item in page:
                group, wanted = self._group(item)
                enough = not wanted or self._taken[group] >= self._claim.limit
                self.left_some |= wanted and enough
                if not enough and self._is_open(item):
                    self._taken[group] += 1
                    yield item, job_from(item)
            if page:
                low = f"{group[:-1]}$" if enough else f"{page[-1]['SK']['S']} "  # $ is the character that follows #
            size = min(2 * size, MAX_PAGE)

    def _group(self, item: Item) -> tuple[str, bool]:
        """How the sort keys of the item's group begin, and whether the claim may take the jobs in it."""
        at = plain(item)
        task, version, tenant = at["job_type"], int(at.get("task_version", 1)), at.get("tenant", "default")
        blocked = self._gate.blocks(tenant, self._queue, task)
        return parked_group(task, version, tenant), self._claim.takes(task, version) and not blocked

    def _is_open(self, item: Item) -> bool:
        """Whether a job lies in a lane of the claim."""
        return self._claim.lanes is None or plain(item).get("lane", "") in self._claim.lanes


def scope_of(claim: Claim, gate: Gate) -> object:
    """What a claim may take, to be compared."""
    tasks, lanes = (None if names is None else tuple(names) for names in (claim.tasks, claim.lanes))
    return tasks, lanes, tuple(sorted(claim.versions.items())), tuple(claim.unless), tuple(gate.pauses)
