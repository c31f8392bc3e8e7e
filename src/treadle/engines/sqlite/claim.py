"""Claiming: which jobs a claim takes, and the statement that gives them to a worker.

Jobs are found by stepping over all that the claim may not take, so the cost follows what is taken.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple

from treadle.engines.fence import in_order
from treadle.engines.rows import Row
from treadle.engines.sqlite import audit, records
from treadle.engines.sqlite.keys import RELEASE_KEYS
from treadle.engines.sqlite.rows import IDS, JOB, job_from, micros
from treadle.engines.values import Claim
from treadle.model import Event, EventKind, Job, Scope
from treadle.model.records import ANY, Gate

MAX_PARKED = 1000  # jobs that one scan may meet and not take
MAX_SCANS = 20  # times that one claim may park jobs before it takes what it has

Found = tuple[int, int, str]  # -priority, due time, id: sorts as claims do

# What lifecycle.claim decides, as a statement. The state is compared again although we hold the write lock: the
# update must be right without it.
CLAIM = f"""
update treadle_jobs
set state = 'running', attempt = attempt + 1, revision = revision + 1, claimed_at = ?, started_at = null,
    progress = null, lease_until = ?, lease_token = ?, worker = ?, parked = 0
where id in {IDS} and state = 'pending'
returning {JOB}
"""  # noqa: S608

PARK_BY_TASK = f"update treadle_jobs set parked = 1 where id in {IDS} and state = 'pending'"  # noqa: S608
PARK_BY_PAUSE = f"update treadle_jobs set parked = 2 where id in {IDS} and state = 'pending'"  # noqa: S608


def promising(reader: sqlite3.Connection, claim: Claim, now: datetime) -> bool:
    """Whether a claim would find something; it needs no write lock, which an idle worker must not queue for."""
    one = claim._replace(limit=1)
    return bool(_held(reader, claim.token) or any(pick(reader, one, now, records.gate(reader, now))))


def claim_jobs(
    connection: sqlite3.Connection, claim: Claim, now: datetime, *, first: int, audit_all: bool
) -> tuple[list[Job], bool]:
    """Claim jobs in this transaction, and say whether there may be more; `first` is the lane to begin with."""
    held = _held(connection, claim.token)
    if held:  # this turn was here before, its answer was lost: give the same answer, claim no more
        return in_order([job_from(row) for row in held]), True
    ids, more = _pick_and_park(connection, claim, now, first)
    if not ids:
        return [], more
    until = micros(now + timedelta(seconds=claim.lease))
    rows = connection.execute(CLAIM, (micros(now), until, claim.token, claim.worker, json.dumps(ids))).fetchall()
    jobs = [job_from(row) for row in rows]
    if keyed := [job.id for job in jobs if job.key_scope is Scope.PENDING]:
        connection.execute(RELEASE_KEYS, (json.dumps(keyed),))
    if audit_all:
        audit.add(
            connection,
            [Event(job.id, job.revision, now, EventKind.CLAIMED, claim.worker, "", job.tenant) for job in jobs],
        )
    return in_order(jobs), more


def _held(connection: sqlite3.Connection, token: str) -> list[Row]:
    """The jobs claimed under this token."""
    sql = f"select {JOB} from treadle_jobs where state = 'running' and lease_token = ?"  # noqa: S608
    return connection.execute(sql, (token,)).fetchall()


def _pick_and_park(connection: sqlite3.Connection, claim: Claim, now: datetime, first: int) -> tuple[list[str], bool]:
    """Ids to claim, and whether there may be more. What this worker may not take is parked: claims meet it once."""
    gate = records.gate(connection, now)
    for _ in range(MAX_SCANS):
        picked = pick(connection, claim, now, gate, first=first)
        for park, ids in ((PARK_BY_TASK, picked.by_task), (PARK_BY_PAUSE, picked.by_pause)):
            if ids:
                connection.execute(park, (json.dumps(ids),))
        if not picked.full:
            break
    return picked.ids, picked.full


class Picked(NamedTuple):
    """The ids that a claim may take, and those that it met and may not: to be parked by task, or behind a pause."""

    ids: list[str]
    by_task: list[str]
    by_pause: list[str]

    @property
    def full(self) -> bool:
        """Whether it met so many that they are parked first, and another scan follows."""
        return len(self.by_task) + len(self.by_pause) >= MAX_PARKED


class ClaimScan(NamedTuple):
    """One claim's way through the jobs."""

    connection: sqlite3.Connection
    claim: Claim
    gate: Gate
    now: int
    picked: Picked
    parks: dict[tuple[str, str, str, int], list[str] | None]  # the list that such jobs go to, as found so far

    def takes(self, tenant: str, queue: str, task: str, version: int, id_: str) -> bool:
        """Whether the claim takes such a job; if not, it is noted to be parked."""
        kind = (tenant, queue, task, version)
        if kind not in self.parks:
            self.parks[kind] = self._park(*kind)
        park = self.parks[kind]
        if park is None:
            return True
        park.append(id_)
        return False

    def _park(self, tenant: str, queue: str, task: str, version: int) -> list[str] | None:
        if not self.claim.takes(task, version) or self.gate.blocks(ANY, queue, task):
            return self.picked.by_task
        return self.picked.by_pause if self.gate.blocks(tenant, queue, task) else None


def pick(connection: sqlite3.Connection, claim: Claim, now: datetime, gate: Gate, *, first: int = 0) -> Picked:
    """Ids to claim. Lanes take turns, beginning with the `first`, so that a full one does not starve the others."""
    scan = ClaimScan(connection, claim, gate, micros(now) or 0, Picked([], [], []), {})
    queues = [queue for queue in dict.fromkeys(claim.queues) if not gate.blocks(ANY, queue)]
    lanes = [(queue, lane) for queue in queues for lane in _lanes(connection, queue, claim.lanes)]
    picked = scan.picked
    if not lanes:
        return picked
    start = first % len(lanes)
    waiting = [_due(scan, lane) for lane in lanes[start:] + lanes[:start]]
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
    return dict.fromkeys(lane for parked in (0, 1, 2) for lane in _lanes_with(connection, queue, parked))


def _lanes_with(connection: sqlite3.Connection, queue: str, parked: int) -> Iterator[str]:
    sql = (
        f"select lane from treadle_jobs where state = 'pending' and parked = {parked} and queue = ?"  # noqa: S608
        " and lane {} ? order by lane limit 1"
    )
    row = connection.execute(sql.format(">="), (queue, "")).fetchone()
    while row is not None:
        yield row[0]
        row = connection.execute(sql.format(">"), (queue, row[0])).fetchone()


def _due(scan: ClaimScan, lane: tuple[str, str]) -> Iterator[Found]:
    """What of a lane may be claimed now, in order."""
    return merge(_not_parked(scan, lane), *_parked_by_task(scan, lane), *_parked_by_pause(scan, lane))


def _not_parked(scan: ClaimScan, lane: tuple[str, str]) -> Iterator[Found]:
    """From priority to priority, within each by due time and id.

    One range per priority: a single ordered scan would walk over every future job of a higher priority.
    """
    ceiling = 2**31
    while True:
        row = scan.connection.execute(
            """
            select priority from treadle_jobs
            where state = 'pending' and parked = 0 and queue = ? and lane = ? and priority < ?
            order by priority desc limit 1
            """,
            (*lane, ceiling),
        ).fetchone()
        if row is None:
            return
        ceiling = row[0]
        for due_at, id_, task, version, tenant in scan.connection.execute(
            """
            select due_at, id, task, task_version, tenant from treadle_jobs
            where state = 'pending' and parked = 0 and queue = ? and lane = ? and priority = ? and due_at <= ?
            and (expires_at is null or expires_at > ?)
            order by due_at, id
            """,
            (*lane, ceiling, scan.now, scan.now),
        ):
            if scan.takes(tenant, lane[0], task, version, id_):
                yield -ceiling, due_at, id_
            elif scan.picked.full:
                return


def _parked_by_task(scan: ClaimScan, lane: tuple[str, str]) -> Iterator[Iterator[Found]]:
    """What is parked by task: a step for each task and version, and a range for those that this claim takes."""
    for task, version in _groups(scan.connection, lane, 1, ("task", "task_version")):
        if scan.claim.takes(task, version) and not scan.gate.blocks(ANY, lane[0], task):
            yield _due_of_task(scan, lane, task, version)


def _due_of_task(scan: ClaimScan, lane: tuple[str, str], task: str, version: int) -> Iterator[Found]:
    for *found, tenant in scan.connection.execute(
        """
        select -priority, due_at, id, tenant from treadle_jobs
        where state = 'pending' and parked = 1 and queue = ? and lane = ? and task = ? and task_version = ?
        and due_at <= ? and (expires_at is null or expires_at > ?)
        order by priority desc, due_at, id
        """,
        (*lane, task, version, scan.now, scan.now),
    ):
        if scan.takes(tenant, lane[0], task, version, found[2]):
            yield found[0], found[1], found[2]
        elif scan.picked.full:
            return


def _parked_by_pause(scan: ClaimScan, lane: tuple[str, str]) -> Iterator[Iterator[Found]]:
    """What is parked behind a pause: a step for each tenant, task and version, and a range for those not paused now."""
    for tenant, task, version in _groups(scan.connection, lane, 2, ("tenant", "task", "task_version")):
        if scan.claim.takes(task, version) and not scan.gate.blocks(tenant, lane[0], task):
            yield iter(
                scan.connection.execute(
                    """
                    select -priority, due_at, id from treadle_jobs
                    where state = 'pending' and parked = 2 and queue = ? and lane = ? and tenant = ? and task = ?
                    and task_version = ? and due_at <= ? and (expires_at is null or expires_at > ?)
                    order by priority desc, due_at, id
                    """,
                    (*lane, tenant, task, version, scan.now, scan.now),
                )
            )


def _groups(
    connection: sqlite3.Connection, lane: tuple[str, str], parked: int, names: tuple[str, ...]
) -> Iterator[tuple[Any, ...]]:
    """The different values of these columns among the parked jobs of a lane, a step for each."""
    columns = ", ".join(names)
    step = (
        f"select {columns} from treadle_jobs where state = 'pending' and parked = {parked} and queue = ? and lane = ?"  # noqa: S608
        f" {{}} order by {columns} limit 1"
    )
    row = connection.execute(step.format(""), lane).fetchone()
    while row is not None:
        yield row
        # Not (a, b) > (?, ?): SQLite would walk over all jobs of the same a. So the last column first, then the others.
        following = None
        for index in reversed(range(len(names))):
            same = "".join(f" and {name} = ?" for name in names[:index])
            later = step.format(f"{same} and {names[index]} > ?")
            following = connection.execute(later, (*lane, *row[: index + 1])).fetchone()
            if following is not None:
                break
        row = following
