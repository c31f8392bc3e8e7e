"""Claiming: which jobs a claim takes, and the statement that gives them to a worker.

A claim looks at a bounded number of lanes, in turns, and steps over all that it may not take (lanes.py): so its cost
follows what it takes.
"""

import json
import sqlite3
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import count, islice, zip_longest
from typing import NamedTuple

from treadle.engines.rows import COLUMNS, Row
from treadle.engines.sqlite import audit, records
from treadle.engines.sqlite.keys import RELEASE_KEYS
from treadle.engines.sqlite.lanes import ClaimScan, Found, Place, anywhere, circle, due_of, places
from treadle.engines.sqlite.rows import IDS, JOB, job_from
from treadle.engines.values import Claim, ClaimedJob
from treadle.model import Event, EventKind, Scope
from treadle.model.clock import micros
from treadle.model.records import ANY

MAX_PARKED = 1000  # jobs that one round may meet and not take
MAX_SCANS = 20  # rounds of one claim before it takes what it has
MAX_RIPENED = 500  # jobs whose mark one claim takes off, or sets, a queue or lane
MIN_LANES, MAX_LANES = 8, 64  # that one round looks at: four for each job that is wanted, within these

# What lifecycle.claim decides, as a statement. The state is compared again although we hold the write lock: the
# update must be right without it.
CLAIM = f"""
update treadle_jobs
set state = 'running', attempt = attempt + 1, revision = revision + 1, claimed_at = ?, started_at = null,
    progress = null, lease_until = ?, lease_token = ?, worker = ?, parked = 0, later = 0
where id in {IDS} and state = 'pending'
"""  # noqa: S608
HELD = f"select {JOB} from treadle_jobs where state = 'running' and lease_token = ?"  # noqa: S608
_USED = (
    "id", "task", "payload", "due_at", "tenant", "priority", "max_attempts", "timeout", "key_scope", "on_end",
    "attempt", "crashes", "lease_token", "cost_micros", "revision", "queue",
)  # fmt: skip
(
    ID, TASK, PAYLOAD, DUE_AT, TENANT, PRIORITY, MAX_ATTEMPTS, TIMEOUT, KEY_SCOPE, ON_END,
    ATTEMPT, CRASHES, LEASE_TOKEN, COST, REVISION, QUEUE,
) = map(COLUMNS.index, _USED)  # fmt: skip

PARK_BY_TASK = f"update treadle_jobs set parked = 1 where id in {IDS} and state = 'pending'"  # noqa: S608
PARK_BY_PAUSE = f"update treadle_jobs set parked = 2 where id in {IDS} and state = 'pending'"  # noqa: S608
PARK_EXPIRED = f"update treadle_jobs set parked = 3 where id in {IDS} and state = 'pending'"  # noqa: S608

# Jobs of lanes whose time has come: their lanes are discovered from now on.
RIPEN = """
update treadle_jobs set later = 0 where rowid in (
    select rowid from treadle_jobs indexed by treadle_jobs_later
    where state = 'pending' and later = 1 and queue = ? and due_at <= ? limit ?
)
"""
RIPE = """
select 1 from treadle_jobs indexed by treadle_jobs_later
where state = 'pending' and later = 1 and queue = ? and due_at <= ? limit 1
"""
# Jobs that lack the mark, for somebody else has written them, in a lane of which nothing is due.
PUT_OFF = """
update treadle_jobs set later = 1 where rowid in (
    select rowid from treadle_jobs indexed by treadle_jobs_lanes
    where state = 'pending' and parked = 0 and later = 0 and lane <> '' and queue = ? and lane = ? and due_at > ?
    limit ?
)
"""


class LaneTurns:
    """Whose turn it is, for the claims of one process."""

    def __init__(self) -> None:
        self.claims = 0  # so far
        self.last: dict[str, str] = {}  # by queue, the lane that was served last


def promising(reader: sqlite3.Connection, claim: Claim, now: datetime, turns: LaneTurns) -> bool:
    """Whether a claim would find something; it needs no write lock, which an idle worker must not queue for."""
    if reader.in_transaction:  # an interrupt came between a begin and its try
        reader.execute("rollback")
    reader.execute("begin")  # one state of the file: a job that moves meanwhile is in one of its places
    try:
        return bool(_held(reader, claim.token)) or Search(reader, claim._replace(limit=1), now, turns).promising()
    finally:
        reader.execute("rollback")


def claim_jobs(
    connection: sqlite3.Connection, claim: Claim, now: datetime, turns: LaneTurns, *, audit_all: bool
) -> tuple[list[ClaimedJob], bool]:
    """Claim jobs in this transaction, and say whether there may be more."""
    held = _held(connection, claim.token)
    if held:  # this turn was here before, its answer was lost: give the same answer, claim no more
        return [_claimed(row) for row in sorted(held, key=_order)], True
    found, more = _pick_and_park(connection, claim, now, turns)
    if not found:
        return [], more
    ids = json.dumps([id_ for _, _, id_ in found])
    until = micros(now + timedelta(seconds=claim.lease))
    connection.execute(CLAIM, (micros(now), until, claim.token, claim.worker, ids))
    rows = sorted(_held(connection, claim.token), key=_order)
    if keyed := [row[ID] for row in rows if row[KEY_SCOPE] == Scope.PENDING]:
        connection.execute(RELEASE_KEYS, (json.dumps(keyed),))
    if audit_all:
        audit.add(
            connection,
            [Event(row[ID], row[REVISION], now, EventKind.CLAIMED, claim.worker, "", row[TENANT]) for row in rows],
        )
    return [_claimed(row) for row in rows], more


def _held(connection: sqlite3.Connection, token: str) -> list[Row]:
    """The jobs claimed under this token."""
    return connection.execute(HELD, (token,)).fetchall()


def _order(row: Row) -> Found:
    """The most urgent first, then the longest due."""
    return -row[PRIORITY], row[DUE_AT], row[ID]


def _claimed(row: Row) -> ClaimedJob:
    """A claimed job; the whole value is made for whoever asks."""
    return ClaimedJob(
        row[ID],
        row[TASK],
        row[PAYLOAD],
        row[LEASE_TOKEN],
        row[REVISION],
        row[ATTEMPT],
        row[TIMEOUT],
        row[CRASHES] > 0 or row[MAX_ATTEMPTS] == 1,
        row[KEY_SCOPE] is None and row[ON_END] is None,
        row[COST],
        row[QUEUE],
        row[DUE_AT] / 1e6,
        partial(job_from, row),
    )


def _pick_and_park(
    connection: sqlite3.Connection, claim: Claim, now: datetime, turns: LaneTurns
) -> tuple[list[Found], bool]:
    """What to claim, and whether there may be more. What this worker may not take is parked: claims meet it once."""
    turns.claims += 1
    while True:
        search = Search(connection, claim, now, turns)
        ripened = search.ripen()
        found, more = search.pick()
        if ripened or not claim.thorough or len(found) >= claim.limit:
            return found, more or not ripened


class Visit(NamedTuple):
    """A lane that a claim looks at, and the places that hold jobs of it."""

    queue: str
    lane: str
    holding: Sequence[Place]


class Search:
    """One claim's search, in rounds: some lanes each, until it has what it wants or went once round all of them.

    A round hands out equal shares, so that a full lane does not starve the others, and the next claim goes on behind
    the lane that was served last. The jobs without a lane have a turn in every claim.
    """

    def __init__(self, connection: sqlite3.Connection, claim: Claim, now: datetime, turns: LaneTurns) -> None:
        gate = records.gate(connection, now)
        self._connection = connection
        self._claim = claim
        self._turns = turns
        self._scan = ClaimScan(connection, claim, gate, micros(now), MAX_PARKED)
        self._queues = [queue for queue in dict.fromkeys(claim.queues) if not gate.blocks(ANY, queue)]

    def promising(self) -> bool:
        """Whether there is something to claim or to park, or too much to look at; nothing is written."""
        if any(self._ripe(queue) for queue in self._queues):
            return True
        walk = self._walk()
        for _ in range(MAX_SCANS):
            visits = next(walk, None)
            if visits is None:
                return False
            if any(any(True for _ in due_of(visit.lane, visit.holding)) or self._scan.met for visit in visits):
                return True
        return True

    def ripen(self) -> bool:
        """Let the lanes be discovered whose time has come; whether that was all of them."""
        ripened = True
        for queue in filter(self._ripe, self._queues):
            done = self._connection.execute(RIPEN, (queue, self._scan.now, MAX_RIPENED)).rowcount
            ripened = ripened and done < MAX_RIPENED
        return ripened

    def _ripe(self, queue: str) -> bool:
        """Whether the time of a job has come whose lane is not discovered yet; named lanes need no discovery."""
        return self._claim.lanes is None and self._scan.number(RIPE, queue, self._scan.now) is not None

    def pick(self) -> tuple[list[Found], bool]:
        """What to claim, and whether there may be more; what it may not take is parked on the way."""
        found: list[Found] = []
        walk = self._walk()
        visits = next(walk, None)
        for _ in count() if self._claim.thorough else range(MAX_SCANS):
            if visits is None:
                return found, False
            got = self._round(visits, self._claim.limit - len(found))
            full = self._scan.full
            self._park()
            if full:  # the same lanes again, without what is parked now
                continue
            found += got
            if len(found) >= self._claim.limit:
                return found, True
            visits = next(walk, None)
        return found, visits is not None

    def _park(self) -> None:
        """Park what was met and may not be taken."""
        scan = self._scan
        met = ((PARK_BY_TASK, scan.by_task), (PARK_BY_PAUSE, scan.by_pause), (PARK_EXPIRED, scan.expired))
        for park, ids in met:
            if ids:
                self._connection.execute(park, (json.dumps(ids),))
                ids.clear()

    def _round(self, visits: Sequence[Visit], wanted: int) -> list[Found]:
        """Up to so many jobs of these lanes, in equal shares."""
        found: list[Found] = []
        given = [0] * len(visits)
        waiting = [(index, due_of(visit.lane, visit.holding)) for index, visit in enumerate(visits)]
        while waiting and len(found) < wanted:
            share = max(1, (wanted - len(found)) // len(waiting))
            for one in tuple(waiting):
                index, due = one
                asked = min(share, wanted - len(found))
                got = list(islice(due, asked))
                found += got
                given[index] += len(got)
                if len(got) < asked:
                    waiting.remove(one)
        if not self._scan.full:
            self._note(visits, given, exhausted=len(found) < wanted)
        return found

    def _note(self, visits: Sequence[Visit], given: Sequence[int], *, exhausted: bool) -> None:
        """Remember whose turn it is next, and put off the lanes of which nothing was due."""
        for visit, number in zip(visits, given, strict=True):
            if not visit.lane or not (number or exhausted):
                continue
            self._turns.last[visit.queue] = visit.lane
            if not number and self._claim.lanes is None:
                self._connection.execute(PUT_OFF, (visit.queue, visit.lane, self._scan.now, MAX_RIPENED))

    def _walk(self) -> Iterator[list[Visit]]:
        """The lanes of all queues in turns, round by round; the jobs without a lane come in the first round."""
        if not self._queues:
            return
        number = len(self._queues)
        turn, first = divmod(self._turns.claims, number)
        queues = self._queues[first:] + self._queues[:first]
        held = [places(self._scan, queue) for queue in queues]
        circles = [self._circle(*one) for one in zip(queues, held, strict=True)]
        heads = [[Visit(queue, "", all_places)] for queue, all_places in zip(queues, held, strict=True)]
        if self._claim.lanes is not None and "" not in self._claim.lanes:
            heads = [[]] * number
        most = max(1, min(max(4 * self._claim.limit, MIN_LANES), MAX_LANES) // number)
        while True:
            rows = [list(islice(lanes, most)) for lanes in circles]
            # Now they come first, now last: a claim for one job must not always give it to the same side.
            rows = [[*row, *head] if turn % 2 else [*head, *row] for head, row in zip(heads, rows, strict=True)]
            visits = [visit for column in zip_longest(*rows) for visit in column if visit is not None]
            if not visits:
                return
            yield visits
            heads = [[]] * number

    def _circle(self, queue: str, held: Sequence[Place]) -> Iterator[Visit]:
        """The lanes of a queue, beginning behind the one that was served last."""
        if self._claim.lanes is not None:
            named = sorted({*self._claim.lanes} - {""})
            start = bisect_right(named, self._turns.last.get(queue, ""))
            yield from (Visit(queue, lane, held) for lane in named[start:] + named[:start])
            return
        start_lane = self._turns.last.get(queue) or anywhere(self._connection, queue)
        for lane, holding in circle(held, start_lane):
            yield Visit(queue, lane, holding)
