"""Which jobs a claim takes, found by stepping over all that it may not take: cost follows what is taken."""

import sqlite3
from collections.abc import Iterator, Sequence
from datetime import datetime
from heapq import merge
from itertools import islice
from typing import NamedTuple

from treadle.engines.base import Claim
from treadle.engines.sqlite.rows import micros

SPARE = 1000  # jobs of strangers that one look may meet

Found = tuple[int, int, str]  # -priority, due time, id: sorts as claims do


class Picked(NamedTuple):
    """What a claim may take, and what it met and does not know."""

    ids: list[str]
    strangers: list[str]


def pick(connection: sqlite3.Connection, claim: Claim, now: datetime, *, first: int = 0) -> Picked:
    """Ids to claim. Lanes take turns, beginning with the `first`, so that a full one does not starve the others."""
    queues = dict.fromkeys(claim.queues)
    lanes = [(queue, lane) for queue in queues for lane in _lanes(connection, queue, claim.lanes)]
    picked = Picked([], [])
    if not lanes:
        return picked
    start = first % len(lanes)
    waiting = [_due(connection, lane, claim, now, picked.strangers) for lane in lanes[start:] + lanes[:start]]
    while waiting and len(picked.ids) < claim.limit:
        share = max(1, (claim.limit - len(picked.ids)) // len(waiting))
        for source in list(waiting):
            wanted = min(share, claim.limit - len(picked.ids))
            got = [found[2] for found in islice(source, wanted)]
            picked.ids.extend(got)
            if len(got) < wanted:
                waiting.remove(source)
    return picked


def _lanes(connection: sqlite3.Connection, queue: str, wanted: Sequence[str] | None) -> Iterator[str]:
    """The lanes of a queue that hold pending jobs, found by stepping over the jobs of each."""
    if wanted is not None:
        yield from dict.fromkeys(wanted)
        return
    for filed in (0, 1):
        sql = (
            f"select lane from treadle_jobs where state = 'pending' and filed = {filed} and queue = ?"  # noqa: S608
            " and lane {} ? order by lane limit 1"
        )
        row = connection.execute(sql.format(">="), (queue, "")).fetchone()
        while row is not None:
            if filed == 0 or not _has_unfiled(connection, queue, row[0]):
                yield row[0]
            row = connection.execute(sql.format(">"), (queue, row[0])).fetchone()


def _has_unfiled(connection: sqlite3.Connection, queue: str, lane: str) -> bool:
    sql = "select 1 from treadle_jobs where state = 'pending' and filed = 0 and queue = ? and lane = ? limit 1"
    return connection.execute(sql, (queue, lane)).fetchone() is not None


def _due(
    connection: sqlite3.Connection, lane: tuple[str, str], claim: Claim, now: datetime, strangers: list[str]
) -> Iterator[Found]:
    """What of a lane may be claimed now, in order; the ids of what it does not know are added to `strangers`."""
    met = _by_lane(connection, lane, claim, now, strangers)
    return merge(met, *_by_task(connection, lane, claim, now))


def _by_lane(
    connection: sqlite3.Connection, lane: tuple[str, str], claim: Claim, now: datetime, strangers: list[str]
) -> Iterator[Found]:
    """From priority to priority, within each by due time and id.

    One range per priority: a single ordered scan would walk over every future job of a higher priority.
    """
    moment = micros(now)
    ceiling = 2**31
    while True:
        row = connection.execute(
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
        for due_at, id_, task, version in connection.execute(
            """
            select due_at, id, task, task_version from treadle_jobs
            where state = 'pending' and filed = 0 and queue = ? and lane = ? and priority = ? and due_at <= ?
            and (expires_at is null or expires_at > ?)
            order by due_at, id
            """,
            (*lane, ceiling, moment, moment),
        ):
            if _knows(claim, task, version):
                yield -ceiling, due_at, id_
            elif len(strangers) < SPARE:
                strangers.append(id_)
            else:
                return  # they are filed away first, then somebody looks again


def _by_task(
    connection: sqlite3.Connection, lane: tuple[str, str], claim: Claim, now: datetime
) -> Iterator[Iterator[Found]]:
    """What was filed, by task and version: a step for each, and a range for those that this claim knows."""
    moment = micros(now)
    for row in _filed(connection, lane):
        if _knows(claim, *row):
            yield iter(
                connection.execute(
                    """
                    select -priority, due_at, id from treadle_jobs
                    where state = 'pending' and filed = 1 and queue = ? and lane = ? and task = ? and task_version = ?
                    and due_at <= ? and (expires_at is null or expires_at > ?)
                    order by priority desc, due_at, id
                    """,
                    (*lane, *row, moment, moment),
                )
            )


def _filed(connection: sqlite3.Connection, lane: tuple[str, str]) -> Iterator[tuple[str, int]]:
    """The tasks and versions among the filed jobs of a lane."""
    step = """
        select task, task_version from treadle_jobs
        where state = 'pending' and filed = 1 and queue = ? and lane = ? and {} order by task, task_version limit 1
    """
    row = connection.execute(step.format("task > ?"), (*lane, "")).fetchone()
    while row is not None:
        yield row
        # Not (task, task_version) > (?, ?): SQLite would walk over all jobs of the task.
        newer = connection.execute(step.format("task = ? and task_version > ?"), (*lane, *row)).fetchone()
        row = newer or connection.execute(step.format("task > ?"), (*lane, row[0])).fetchone()


def _knows(claim: Claim, task: str, version: int) -> bool:
    return (claim.tasks is None or task in claim.tasks) and version <= claim.versions.get(task, version)
