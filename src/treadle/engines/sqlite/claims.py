"""Which jobs a claim takes, found by stepping over all that it may not take: cost follows what is taken."""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice

from treadle.engines.base import Claim
from treadle.engines.sqlite.rows import micros
from treadle.model import Job


def pick(connection: sqlite3.Connection, claim: Claim, now: datetime, *, first: int = 0) -> list[str]:
    """Ids to claim. Lanes take turns, beginning with the `first`, so that a full one does not starve the others."""
    queues = dict.fromkeys(claim.queues)
    lanes = [(queue, lane) for queue in queues for lane in _lanes(connection, queue, claim.lanes)]
    if not lanes:
        return []
    start = first % len(lanes)
    waiting = [_due(connection, lane, claim, now) for lane in lanes[start:] + lanes[:start]]
    picked: list[str] = []
    while waiting and len(picked) < claim.limit:
        share = -(-(claim.limit - len(picked)) // len(waiting))
        for source in list(waiting):
            wanted = min(share, claim.limit - len(picked))
            got = list(islice(source, wanted))
            picked += got
            if len(got) < wanted:
                waiting.remove(source)
    return picked


def in_order(jobs: list[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: (-job.priority, job.due_at, job.id))


def _lanes(connection: sqlite3.Connection, queue: str, wanted: Sequence[str] | None) -> Iterator[str]:
    """The lanes of a queue that hold pending jobs, found by stepping over the jobs of each."""
    if wanted is not None:
        yield from dict.fromkeys(wanted)
        return
    sql = "select lane from treadle_jobs where state = 'pending' and queue = ? and lane {} ? order by lane limit 1"
    row = connection.execute(sql.format(">="), (queue, "")).fetchone()
    while row is not None:
        yield row[0]
        row = connection.execute(sql.format(">"), (queue, row[0])).fetchone()


def _due(connection: sqlite3.Connection, lane: tuple[str, str], claim: Claim, now: datetime) -> Iterator[str]:
    """Ids of a lane that may be claimed now, in order: from priority to priority, within each by due time and id.

    One range per priority: a single ordered scan would walk over every future job of a higher priority.
    """
    moment = micros(now)
    tasks = json.dumps(list(claim.tasks or ()))
    versions = json.dumps(claim.versions)
    ceiling = 2**31
    while True:
        row = connection.execute(
            """
            select priority from treadle_jobs
            where state = 'pending' and queue = ? and lane = ? and priority < ?
            order by priority desc limit 1
            """,
            (*lane, ceiling),
        ).fetchone()
        if row is None:
            return
        ceiling = row[0]
        yield from (
            found[0]
            for found in connection.execute(
                """
                select id from treadle_jobs
                where state = 'pending' and queue = ? and lane = ? and priority = ? and due_at <= ?
                and (expires_at is null or expires_at > ?)
                and (? or task in (select value from json_each(?)))
                and task_version <= coalesce((select value from json_each(?) where key = task), task_version)
                order by due_at, id
                """,
                (*lane, ceiling, moment, moment, claim.tasks is None, tasks, versions),
            )
        )
