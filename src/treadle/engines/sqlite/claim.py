"""Which jobs a claim takes, found by stepping over all that it may not take: cost follows what is taken."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple

from treadle.engines.sqlite.rows import micros
from treadle.engines.values import Claim
from treadle.model.records import ANY, Gate

SPARE = 1000  # jobs that one look may meet and not take

Found = tuple[int, int, str]  # -priority, due time, id: sorts as claims do


class Picked(NamedTuple):
    """What a claim may take, and what it met and may not: strangers are filed by task, paused tenants' jobs parked."""

    ids: list[str]
    strangers: list[str]
    parked: list[str]

    @property
    def full(self) -> bool:
        """Whether it met so much that this is put away first, and somebody looks again."""
        return len(self.strangers) + len(self.parked) >= SPARE


class Look(NamedTuple):
    """One claim's way through the jobs."""

    connection: sqlite3.Connection
    claim: Claim
    gate: Gate
    now: int
    picked: Picked
    places: dict[tuple[str, str, str, int], list[str] | None]  # where jobs like this are put away, as found so far

    def may(self, tenant: str, queue: str, task: str, version: int, id_: str) -> bool:
        """Whether the claim takes such a job; if not, it is put where it is not met again."""
        kind = (tenant, queue, task, version)
        if kind not in self.places:
            self.places[kind] = self._place(*kind)
        place = self.places[kind]
        if place is None:
            return True
        place.append(id_)
        return False

    def _place(self, tenant: str, queue: str, task: str, version: int) -> list[str] | None:
        if not self.claim.takes(task, version) or self.gate.blocks(ANY, queue, task):
            return self.picked.strangers
        return self.picked.parked if self.gate.blocks(tenant, queue, task) else None


def pick(connection: sqlite3.Connection, claim: Claim, now: datetime, gate: Gate, *, first: int = 0) -> Picked:
    """Ids to claim. Lanes take turns, beginning with the `first`, so that a full one does not starve the others."""
    look = Look(connection, claim, gate, micros(now) or 0, Picked([], [], []), {})
    queues = [queue for queue in dict.fromkeys(claim.queues) if not gate.blocks(ANY, queue)]
    lanes = [(queue, lane) for queue in queues for lane in _lanes(connection, queue, claim.lanes)]
    picked = look.picked
    if not lanes:
        return picked
    start = first % len(lanes)
    waiting = [_due(look, lane) for lane in lanes[start:] + lanes[:start]]
    while waiting and len(picked.ids) < claim.limit:
        share = max(1, (claim.limit - len(picked.ids)) // len(waiting))
        for source in list(waiting):
            wanted = min(share, claim.limit - len(picked.ids))
            got = [found[2] for found in islice(source, wanted)]
            picked.ids.extend(got)
            if len(got) < wanted:
                waiting.remove(source)
    return picked


def _lanes(connection: sqlite3.Connection, queue: str, wanted: Sequence[str] | None) -> Iterable[str]:
    """The lanes of a queue that hold pending jobs, found by stepping over the jobs of each."""
    if wanted is not None:
        return dict.fromkeys(wanted)
    return dict.fromkeys(lane for filed in (0, 1, 2) for lane in _lanes_with(connection, queue, filed))


def _lanes_with(connection: sqlite3.Connection, queue: str, filed: int) -> Iterator[str]:
    sql = (
        f"select lane from treadle_jobs where state = 'pending' and filed = {filed} and queue = ?"  # noqa: S608
        " and lane {} ? order by lane limit 1"
    )
    row = connection.execute(sql.format(">="), (queue, "")).fetchone()
    while row is not None:
        yield row[0]
        row = connection.execute(sql.format(">"), (queue, row[0])).fetchone()


def _due(look: Look, lane: tuple[str, str]) -> Iterator[Found]:
    """What of a lane may be claimed now, in order."""
    return merge(_by_lane(look, lane), *_by_task(look, lane), *_by_tenant(look, lane))


def _by_lane(look: Look, lane: tuple[str, str]) -> Iterator[Found]:
    """From priority to priority, within each by due time and id.

    One range per priority: a single ordered scan would walk over every future job of a higher priority.
    """
    ceiling = 2**31
    while True:
        row = look.connection.execute(
            """
            select priority from treadle_jobs
            where state = 'pending' and filed = 0 and queue = ? and lane = ? and priority < ?
            order by priority desc limit 1
            """,
            (*lane, ceiling),
        ).fetchone()
        if row is None:
            return
        ceiling = row[0]
        for due_at, id_, task, version, tenant in look.connection.execute(
            """
            select due_at, id, task, task_version, tenant from treadle_jobs
            where state = 'pending' and filed = 0 and queue = ? and lane = ? and priority = ? and due_at <= ?
            and (expires_at is null or expires_at > ?)
            order by due_at, id
            """,
            (*lane, ceiling, look.now, look.now),
        ):
            if look.may(tenant, lane[0], task, version, id_):
                yield -ceiling, due_at, id_
            elif look.picked.full:
                return


def _by_task(look: Look, lane: tuple[str, str]) -> Iterator[Iterator[Found]]:
    """What was filed, by task and version: a step for each, and a range for those that this claim takes."""
    for task, version in _groups(look.connection, lane, 1, ("task", "task_version")):
        if look.claim.takes(task, version) and not look.gate.blocks(ANY, lane[0], task):
            yield _filed(look, lane, task, version)


def _filed(look: Look, lane: tuple[str, str], task: str, version: int) -> Iterator[Found]:
    for *found, tenant in look.connection.execute(
        """
        select -priority, due_at, id, tenant from treadle_jobs
        where state = 'pending' and filed = 1 and queue = ? and lane = ? and task = ? and task_version = ?
        and due_at <= ? and (expires_at is null or expires_at > ?)
        order by priority desc, due_at, id
        """,
        (*lane, task, version, look.now, look.now),
    ):
        if look.may(tenant, lane[0], task, version, found[2]):
            yield found[0], found[1], found[2]
        elif look.picked.full:
            return


def _by_tenant(look: Look, lane: tuple[str, str]) -> Iterator[Iterator[Found]]:
    """What was parked, by tenant, task and version: a step for each, and a range for those that may go on."""
    for tenant, task, version in _groups(look.connection, lane, 2, ("tenant", "task", "task_version")):
        if look.claim.takes(task, version) and not look.gate.blocks(tenant, lane[0], task):
            yield iter(
                look.connection.execute(
                    """
                    select -priority, due_at, id from treadle_jobs
                    where state = 'pending' and filed = 2 and queue = ? and lane = ? and tenant = ? and task = ?
                    and task_version = ? and due_at <= ? and (expires_at is null or expires_at > ?)
                    order by priority desc, due_at, id
                    """,
                    (*lane, tenant, task, version, look.now, look.now),
                )
            )


def _groups(
    connection: sqlite3.Connection, lane: tuple[str, str], filed: int, names: tuple[str, ...]
) -> Iterator[tuple[Any, ...]]:
    """The different values of these columns among the filed or parked jobs of a lane, a step for each."""
    columns = ", ".join(names)
    step = (
        f"select {columns} from treadle_jobs where state = 'pending' and filed = {filed} and queue = ? and lane = ?"  # noqa: S608
        f" {{}} order by {columns} limit 1"
    )
    row = connection.execute(step.format(""), lane).fetchone()
    while row is not None:
        yield row
        # Not (a, b) > (?, ?): SQLite would walk over all jobs of the same a. So the last column first, then the others.
        following = None
        for place in reversed(range(len(names))):
            same = "".join(f" and {name} = ?" for name in names[:place])
            later = step.format(f"{same} and {names[place]} > ?")
            following = connection.execute(later, (*lane, *row[: place + 1])).fetchone()
            if following is not None:
                break
        row = following
