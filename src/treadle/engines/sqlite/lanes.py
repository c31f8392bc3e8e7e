"""Where the jobs for a claim lie: the lanes of a queue, and what of each lane is due.

Jobs lie in three places, each with an index: not parked, parked by task, parked behind a pause. Every step here is one
seek in an index, past all that the claim may not take: however many lanes, tasks and jobs those are. An expired job is
parked in no place: no claim takes it again, and recovery finds it by its `expires_at`.
"""

import random
import sqlite3
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace, merge
from typing import NamedTuple, Protocol

from treadle.engines.values import Claim
from treadle.model.records import ANY, Gate

Found = tuple[int, int, str]  # -priority, due time, id: sorts as claims do


class ClaimScan:
    """One claim's way through the jobs: what it may take, and what it met and may not."""

    def __init__(self, connection: sqlite3.Connection, claim: Claim, gate: Gate, now: int, most_parked: int) -> None:
        self.connection = connection
        self.claim = claim
        self.now = now
        self.by_task: list[str] = []  # to be parked by task
        self.by_pause: list[str] = []  # to be parked behind a pause
        self.expired: list[str] = []  # to be parked for good
        self._most_parked = most_parked
        self._gates: dict[str, Gate] = {}  # by tenant: the pauses that are about it
        self._all = gate
        self._parks: dict[tuple[str, str, str, int], list[str] | None] = {}  # the list that such jobs go to

    @property
    def met(self) -> bool:
        """Whether it met jobs that are to be parked."""
        return bool(self.by_task or self.by_pause or self.expired)

    @property
    def full(self) -> bool:
        """Whether it met so many that they are parked first, and then it looks again."""
        return len(self.by_task) + len(self.by_pause) + len(self.expired) >= self._most_parked

    def blocks(self, tenant: str, queue: str, task: str = ANY) -> bool:
        """Whether a pause stops such jobs."""
        if tenant not in self._gates:
            self._gates[tenant] = Gate([pause for pause in self._all.pauses if pause.tenant in (ANY, tenant)])
        return self._gates[tenant].blocks(tenant, queue, task)

    def takes(self, tenant: str, queue: str, task: str, version: int, id_: str, expires_at: int | None) -> bool:
        """Whether the claim takes such a job; if not, it is noted to be parked."""
        kind = (tenant, queue, task, version)
        if kind not in self._parks:
            self._parks[kind] = self._park(*kind)
        park = self._parks[kind] if expires_at is None or expires_at > self.now else self.expired
        if park is None:
            return True
        park.append(id_)
        return False

    def _park(self, tenant: str, queue: str, task: str, version: int) -> list[str] | None:
        if not self.claim.takes(task, version) or self.blocks(ANY, queue, task):
            return self.by_task
        return self.by_pause if self.blocks(tenant, queue, task) else None

    def text(self, sql: str, *parameters: object) -> str | None:
        """The text that a query finds, if any."""
        row: tuple[str] | None = self.connection.execute(sql, parameters).fetchone()
        return None if row is None else row[0]

    def number(self, sql: str, *parameters: object) -> int | None:
        """The number that a query finds, if any."""
        row: tuple[int] | None = self.connection.execute(sql, parameters).fetchone()
        return None if row is None else row[0]


class Place(Protocol):
    """Jobs of a queue that lie together, by lane."""

    def next_lane(self, after: str) -> str | None:
        """The lane that follows."""
        ...

    def due(self, lane: str) -> Iterator[Found]:
        """What of a lane may be claimed now, in order."""
        ...


class NotParked(NamedTuple):
    """The jobs of a queue that are not parked."""

    scan: ClaimScan
    queue: str

    def next_lane(self, after: str) -> str | None:
        return self.scan.text(
            """
            select lane from treadle_jobs indexed by treadle_jobs_lanes
            where state = 'pending' and parked = 0 and later = 0 and lane <> '' and queue = ? and lane > ?
            order by lane limit 1
            """,
            self.queue,
            after,
        )

    def due(self, lane: str) -> Iterator[Found]:
        """From priority to priority, within each by due time and id.

        One range per priority: a single ordered scan would walk over every future job of a higher priority.
        """
        scan, ceiling = self.scan, 2**31
        while True:
            priority = scan.number(
                """
                select priority from treadle_jobs indexed by treadle_jobs_claim
                where state = 'pending' and parked = 0 and queue = ? and lane = ? and priority < ?
                order by priority desc limit 1
                """,
                self.queue,
                lane,
                ceiling,
            )
            if priority is None:
                return
            ceiling = priority
            for due_at, id_, task, version, tenant, expires_at in scan.connection.execute(
                """
                select due_at, id, task, task_version, tenant, expires_at
                from treadle_jobs indexed by treadle_jobs_claim
                where state = 'pending' and parked = 0 and queue = ? and lane = ? and priority = ? and due_at <= ?
                order by due_at, id
                """,
                (self.queue, lane, priority, scan.now),
            ):
                if scan.takes(tenant, self.queue, task, version, id_, expires_at):
                    yield -priority, due_at, id_
                elif scan.full:
                    return


class ParkedByTask(NamedTuple):
    """The jobs of one task and version that are parked by task."""

    scan: ClaimScan
    queue: str
    task: str
    version: int

    def next_lane(self, after: str) -> str | None:
        return self.scan.text(
            """
            select lane from treadle_jobs indexed by treadle_jobs_parked_by_task
            where state = 'pending' and parked = 1 and queue = ? and task = ? and task_version = ? and lane > ?
            order by lane limit 1
            """,
            *self[1:],
            after,
        )

    def due(self, lane: str) -> Iterator[Found]:
        scan = self.scan
        for urgency, due_at, id_, tenant, expires_at in scan.connection.execute(
            """
            select -priority, due_at, id, tenant, expires_at from treadle_jobs indexed by treadle_jobs_parked_by_task
            where state = 'pending' and parked = 1 and queue = ? and task = ? and task_version = ? and lane = ?
            and due_at <= ?
            order by priority desc, due_at, id
            """,
            (*self[1:], lane, scan.now),
        ):
            if scan.takes(tenant, self.queue, self.task, self.version, id_, expires_at):
                yield urgency, due_at, id_
            elif scan.full:
                return


class ParkedByPause(NamedTuple):
    """The jobs of one tenant, task and version that are parked behind a pause."""

    scan: ClaimScan
    queue: str
    tenant: str
    task: str
    version: int

    def next_lane(self, after: str) -> str | None:
        return self.scan.text(
            """
            select lane from treadle_jobs indexed by treadle_jobs_parked_by_pause
            where state = 'pending' and parked = 2 and queue = ? and tenant = ? and task = ? and task_version = ?
            and lane > ? order by lane limit 1
            """,
            *self[1:],
            after,
        )

    def due(self, lane: str) -> Iterator[Found]:
        scan = self.scan
        for urgency, due_at, id_, expires_at in scan.connection.execute(
            """
            select -priority, due_at, id, expires_at from treadle_jobs indexed by treadle_jobs_parked_by_pause
            where state = 'pending' and parked = 2 and queue = ? and tenant = ? and task = ? and task_version = ?
            and lane = ? and due_at <= ?
            order by priority desc, due_at, id
            """,
            (*self[1:], lane, scan.now),
        ):
            if scan.takes(self.tenant, self.queue, self.task, self.version, id_, expires_at):
                yield urgency, due_at, id_
            elif scan.full:
                return


def places(scan: ClaimScan, queue: str) -> list[Place]:
    """Where the jobs lie that this claim may take from a queue."""
    by_task = [ParkedByTask(scan, queue, *group) for group in _groups(scan, queue)]
    by_pause = [ParkedByPause(scan, queue, *group) for group in _groups_by_tenant(scan, queue)]
    return [NotParked(scan, queue), *by_task, *by_pause]


def due_of(lane: str, holding: Sequence[Place]) -> Iterator[Found]:
    """What of a lane may be claimed now, in order, wherever it lies."""
    return holding[0].due(lane) if len(holding) == 1 else merge(*(place.due(lane) for place in holding))


def circle(places: Sequence[Place], start: str) -> Iterator[tuple[str, list[Place]]]:
    """The lanes in these places, from behind `start` once round, each with the places that hold it."""
    for after, last in ((start, None), ("", start)) if start else (("", None),):
        heads = [(lane, index) for index, place in enumerate(places) if (lane := place.next_lane(after)) is not None]
        heapify(heads)
        while heads and (last is None or heads[0][0] <= last):
            lane, holding = heads[0][0], []
            while heads and heads[0][0] == lane:
                index = heads[0][1]
                holding.append(places[index])
                following = places[index].next_lane(lane)
                _ = heappop(heads) if following is None else heapreplace(heads, (following, index))
            yield lane, holding


def anywhere(connection: sqlite3.Connection, queue: str) -> str:
    """A random place between the first and the last lane of a queue, so that not every process begins with one."""
    ends = [
        connection.execute(
            f"""
            select lane from treadle_jobs indexed by treadle_jobs_lanes
            where state = 'pending' and parked = 0 and later = 0 and lane <> '' and queue = ?
            order by lane {order} limit 1
            """,  # noqa: S608
            (queue,),
        ).fetchone()
        for order in ("asc", "desc")
    ]
    if ends[0] is None:
        return ""
    low, high = ends[0][0], ends[1][0]
    same = low[: next((index for index, pair in enumerate(zip(low, high, strict=False)) if len({*pair}) > 1), len(low))]
    ahead = [ord(lane[len(same)]) if len(lane) > len(same) else ord(" ") for lane in (low, high)]
    letter = chr(random.randint(min(ahead), max(ahead)))  # noqa: S311 - a place, not a secret
    return f"{same}{letter if letter.isprintable() else ''}{random.randrange(10**9):09}"  # noqa: S311


# -------------------------------------------------------------------------------------- groups of parked jobs


def _groups(scan: ClaimScan, queue: str) -> Iterator[tuple[str, int]]:
    """The tasks and versions that are parked by task and that this claim takes."""

    def next_task(least: str) -> str | None:
        return scan.text(
            """
            select task from treadle_jobs indexed by treadle_jobs_parked_by_task
            where state = 'pending' and parked = 1 and queue = ? and task >= ? order by task limit 1
            """,
            queue,
            least,
        )

    def next_version(task: str, after: int) -> int | None:
        return scan.number(
            """
            select task_version from treadle_jobs indexed by treadle_jobs_parked_by_task
            where state = 'pending' and parked = 1 and queue = ? and task = ? and task_version > ?
            order by task_version limit 1
            """,
            queue,
            task,
            after,
        )

    for task in _in_both(scan.claim.tasks, next_task):
        if not scan.blocks(ANY, queue, task):
            yield from _versions(scan.claim, task, next_version)


def _groups_by_tenant(scan: ClaimScan, queue: str) -> Iterator[tuple[str, str, int]]:
    """The tenants, tasks and versions that are parked behind a pause and that this claim takes: a step each tenant."""
    for tenant in _in_both(None, lambda least: _next_tenant(scan, queue, least)):
        if scan.blocks(tenant, queue):
            continue

        def next_task(least: str, tenant: str = tenant) -> str | None:
            return scan.text(
                """
                select task from treadle_jobs indexed by treadle_jobs_parked_by_pause
                where state = 'pending' and parked = 2 and queue = ? and tenant = ? and task >= ? order by task limit 1
                """,
                queue,
                tenant,
                least,
            )

        def next_version(task: str, after: int, tenant: str = tenant) -> int | None:
            return scan.number(
                """
                select task_version from treadle_jobs indexed by treadle_jobs_parked_by_pause
                where state = 'pending' and parked = 2 and queue = ? and tenant = ? and task = ? and task_version > ?
                order by task_version limit 1
                """,
                queue,
                tenant,
                task,
                after,
            )

        for task in _in_both(scan.claim.tasks, next_task):
            if not scan.blocks(tenant, queue, task):
                yield from ((tenant, *group) for group in _versions(scan.claim, task, next_version))


def _next_tenant(scan: ClaimScan, queue: str, least: str) -> str | None:
    return scan.text(
        """
        select tenant from treadle_jobs indexed by treadle_jobs_parked_by_pause
        where state = 'pending' and parked = 2 and queue = ? and tenant >= ? order by tenant limit 1
        """,
        queue,
        least,
    )


def _in_both(named: Sequence[str] | None, stored: Callable[[str], str | None]) -> Iterator[str]:
    """The names that are stored; of those `named` only, if it is not None.

    It leaps from one row of names to the other and back, so it takes no more steps than the shorter one has names.
    """
    wanted, least = sorted(named or ()), ""
    while True:
        if named is not None:
            place = bisect_left(wanted, least)
            if place == len(wanted):
                return
            least = wanted[place]
        found = stored(least)
        if found is None:
            return
        if named is None or found == least:
            yield found
            least = f"{found}\0"  # the least name that is greater
        else:
            least = found


def _versions(claim: Claim, task: str, after: Callable[[str, int], int | None]) -> Iterator[tuple[str, int]]:
    """The stored versions of a task that the claim takes."""
    version = after(task, -(2**63))
    while version is not None and claim.takes(task, version):
        yield task, version
        version = after(task, version)
