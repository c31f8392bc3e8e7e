"""Deleting jobs that ended long ago, with everything that belongs to them except their events."""

import random
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple

from treadle.engines.dynamodb.client import Client
from treadle.engines.dynamodb.connection import ConditionFailed, Throttled
from treadle.engines.dynamodb.items import (
    Item,
    ItemKey,
    beside,
    holder_of,
    id_key,
    id_of,
    key_of,
    list_partitions,
    plain,
    pointed_key,
    text_of,
    unique_key,
)
from treadle.engines.dynamodb.pools import Each
from treadle.engines.dynamodb.queries import Reader
from treadle.engines.dynamodb.rows import job_from
from treadle.engines.dynamodb.writes import Part, TableInfo, delete, list_parts, revision_is, state_is
from treadle.engines.values import LISTED, Retention
from treadle.model import Job, State

PRUNE_PAGE = 200
MAX_PAGES = 5  # of one partition, that one call walks through
RESTART_INTERVAL = 6 * 3600.0  # seconds after which a walk begins at the oldest job again
FULL_WALK_CHANCE = 1 / 1440  # of a call; a worker prunes every minute
MAX_PIECES = 80  # that one transaction deletes


class PruneScan(NamedTuple):
    """What to find in each partition: so many jobs of a state, in so many pages (None: all)."""

    state: State
    cutoff: datetime  # they ended before it
    keep: Retention
    now: datetime
    limit: int
    pages: int | None

    def wants(self, item: Item) -> bool:
        at = plain(item)
        age = self.keep.age(self.state, at.get("job_type", ""))
        ended = at.get("completed_at", "")
        return bool(at.get("status") == self.state and age is not None and ended < text_of(_back(self.now, age)))


class Walked(NamedTuple):
    """What a walk through one partition found, the sort key it reached, and whether it left pages for the next."""

    items: list[Item]
    reached: str
    cut: bool = False


Reached = dict[tuple[State, int], str]
"""The sort key that the walk through each partition has reached."""


class Pruner:
    """Prunes one table.

    Failed and cancelled jobs are found in their lists, in the order they ended. Succeeded jobs are found among the
    records, which lie in the order they were made: a walk continues where the last one ended, a few pages a call. It
    begins again every few hours, because some jobs were kept then that may go now. So does the walk through a list when
    tasks have their own ages.

    In `real_time` our ids say when a job was made, and no job ends before that, so a walk can stop early. Ids that
    others made do not, so now and then a call walks through everything; under a test's clock every call does.
    """

    def __init__(self, client: Client, reader: Reader, table: TableInfo, each: Each, *, real_time: bool) -> None:
        self._client = client
        self._reader = reader
        self._table = table
        self._each = each
        self._real_time = real_time
        self._reached: dict[frozenset[str] | None, Reached] = {}  # by the tasks that were asked for
        self._restart_at = 0.0

    def prune(self, keep: Retention, limit: int, now: datetime, *, trust_ids: bool, to_the_end: bool) -> int:
        """Delete up to `limit` jobs; `trust_ids`: `now` is the time by which ids are made."""
        trust_ids = trust_ids and self._real_time
        everything = not trust_ids or random.random() < FULL_WALK_CHANCE  # noqa: S311 - not a secret
        if everything or time.monotonic() >= self._restart_at:
            self._reached, self._restart_at = {}, time.monotonic() + RESTART_INTERVAL
        before = self._reached.setdefault(keep.only, {})
        gone, more = 0, True
        while more and gone < limit:
            deleted, more = self._part(keep, limit - gone, now, before, everything=everything)
            gone += deleted
            if not to_the_end:
                break
        return gone

    def _part(
        self, keep: Retention, limit: int, now: datetime, before: Reached, *, everything: bool
    ) -> tuple[int, bool]:
        """A few pages of every partition: how many jobs were deleted, and whether there are pages left to walk."""
        old: list[Item] = []
        more = False
        walked: Reached = {}
        for state in (*LISTED, State.SUCCEEDED):
            cutoff = _latest(keep, state, now)
            if cutoff is None:
                continue
            picky = state not in LISTED or keep.only is not None or any(state in ages for ages in keep.tasks.values())
            scan = PruneScan(state, cutoff, keep, now, limit, MAX_PAGES if picky and not everything else None)
            parts = self._walk(scan, before)
            old += [item for part in parts for item in part.items]
            more |= any(part.cut for part in parts)
            if picky:  # the walk passes jobs that stay
                walked.update({(state, number): part.reached for number, part in enumerate(parts)})
        if len(old) <= limit and not everything:  # else the next call finds those that are left
            before.update(walked)
        old.sort(key=lambda item: str(item["completed_at"]["S"]))
        gone = sum(self._each(lambda item: self._delete(item, now), old[:limit]))
        return gone, more and (gone > 0 or not old)

    def _walk(self, scan: PruneScan, before: Reached) -> list[Walked]:
        """Records of jobs of this state that may go, partition by partition."""
        walk, partitions = self._walk_records, self._table.spread
        if scan.state in LISTED:
            walk, partitions = self._walk_list, list_partitions(self._table.spread)
        return self._each(lambda number: walk(number, before.get((scan.state, number), " "), scan), range(partitions))

    def _walk_list(self, number: int, low: str, scan: PruneScan) -> Walked:
        """The jobs of one list of failed or cancelled ones, by the time they ended."""
        found: list[Item] = []
        reached = low
        high, size = text_of(scan.cutoff), min(PRUNE_PAGE, scan.limit)
        pages = self._client.pages(f"{scan.state}#{number:02x}", low=low, high=high, limit=size)
        for count, page in enumerate(pages, 1):
            records = self._reader.items([id_of(entry) for entry in page])
            found += self._without_key([record for record in records if scan.wants(record)], scan.now)
            if len(found) >= scan.limit:
                break
            reached = page[-1]["SK"]["S"] if page else reached
            if count == scan.pages:
                return Walked(found, reached, cut=True)
        return Walked(found, reached)

    def _walk_records(self, number: int, low: str, scan: PruneScan) -> Walked:
        """The records of succeeded jobs in one partition, by the time they were made."""
        found: list[Item] = []
        reached = low
        high = "~" if scan.pages is None else _made_before(scan.cutoff)
        for count, page in enumerate(self._client.pages(f"id#{number:02x}", low=low, high=high, limit=PRUNE_PAGE), 1):
            wanted = [item for item in page if pointed_key(item) is None and scan.wants(item)]
            found += self._without_key(wanted, scan.now)
            if len(found) > scan.limit:
                break
            reached = page[-1]["SK"]["S"] if page else reached
            if count == scan.pages:
                return Walked(found, reached, cut=True)
        return Walked(found, reached)

    def _without_key(self, items: Sequence[Item], now: datetime) -> list[Item]:
        """Those that do not hold their unique key any more."""
        keys = self._client.get([unique for item in items if (unique := _unique_key(item))])

        def holds(item: Item) -> bool:
            key = keys.get(_unique_key(item) or key_of(item))
            if key is None or holder_of(key) != id_of(item):
                return False
            return "until" not in key or key["until"]["S"] > text_of(now)

        return [item for item in items if not holds(item)]

    def _delete(self, item: Item, now: datetime) -> int:
        """Delete a finished job with everything that belongs to it; how many jobs that was."""
        job = job_from(item)
        pieces = [key_of(piece) for page in self._client.pages(beside(job.id), limit=1000) for piece in page]
        parts = [*pruned_parts(self._table, job), *(delete(self._table, piece) for piece in pieces[:MAX_PIECES])]
        try:
            self._client.write(parts)
        except ConditionFailed:  # somebody retried it
            return 0
        with suppress(Throttled):
            self._client.delete(pieces[MAX_PIECES:])
        unique = _unique_key(item)
        if unique is not None:  # its window is over; time to live would delete it too
            with suppress(ConditionFailed, Throttled):
                over = [("job", "=", {"S": job.id}), ("until", "<=", {"S": text_of(now)})]
                self._client.write([delete(self._table, unique, over)])
        return 1


def pruned_parts(table: TableInfo, job: Job) -> list[Part]:
    """A finished job, deleted unless it has changed since it was read."""
    parts = [delete(table, id_key(job.id, table.spread), [state_is(job.state), revision_is(job.revision)])]
    return [*parts, *list_parts(table, job, None)]


def _unique_key(item: Item) -> ItemKey | None:
    at = plain(item)
    return unique_key(at.get("tenant", "default"), at["job_type"], at["key"]) if "key" in at else None


def _latest(keep: Retention, state: State, now: datetime) -> datetime | None:
    """A job of this state that ended later is kept, whatever its task; None: all are kept."""
    ages = [keep.states.get(state), *(ages.get(state) for ages in keep.tasks.values())]
    return max((_back(now, age) for age in ages if age is not None), default=None)


def _made_before(moment: datetime) -> str:
    """The highest id that can have been made by then: our ids say when they were made."""
    stamp = f"{max(0, int(moment.timestamp() * 1000)):012x}"
    return f"{stamp[:8]}-{stamp[8:]}-~"


def _back(now: datetime, age: timedelta) -> datetime:
    try:
        return now - age
    except OverflowError:
        return datetime.min.replace(tzinfo=now.tzinfo)
