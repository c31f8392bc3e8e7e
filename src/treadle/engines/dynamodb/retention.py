"""Deleting jobs that ended long ago, with all that belongs to them but their trail."""

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple

from treadle.engines.dynamodb.client import Client, Crowded, Failed
from treadle.engines.dynamodb.items import (
    Item,
    Place,
    holder_of,
    id_of,
    id_place,
    key_place,
    lines,
    place_of,
    plain,
    pointed,
    text_of,
)
from treadle.engines.dynamodb.pools import Each
from treadle.engines.dynamodb.queries import Reader
from treadle.engines.dynamodb.rows import job_from
from treadle.engines.dynamodb.writes import Part, Table, delete, list_parts, revision_is, state_is
from treadle.engines.values import LISTED, Retention
from treadle.model import Job, State

PAGE = 200
PAGES = 5  # of records, of one partition, that one call walks
ROUND = 6 * 3600.0  # seconds between two walks over what was kept
PIECES = 80  # that one transaction takes along


class Look(NamedTuple):
    """What is looked for in each partition: jobs of a state that may go, so many, in so many pages (None: all)."""

    state: State
    cutoff: datetime  # when they ended at the latest
    keep: Retention
    now: datetime
    limit: int
    pages: int | None

    def wants(self, item: Item) -> bool:
        at = plain(item)
        age = self.keep.age(self.state, at.get("job_type", ""))
        ended = at.get("completed_at", "")
        return bool(at.get("status") == self.state and age is not None and ended < text_of(back(self.now, age)))


class Walked(NamedTuple):
    """What a walk through one partition found, how far it came, and whether it left something for the next."""

    items: list[Item]
    reached: str
    cut: bool = False


Reached = dict[tuple[State, int], str]
"""How far each partition was walked."""


class Pruning:
    """Prunes one table.

    Failed and cancelled jobs are found in their lists, in the order they ended. Succeeded ones are found among the
    records, which lie in the order they were made: the walk goes on where it was, a few pages a call, and begins anew
    every few hours, for some were kept then that may go now. So does a walk through a list where tasks have ages of
    their own.
    """

    def __init__(self, client: Client, reader: Reader, table: Table, each: Each) -> None:
        self._client = client
        self._reader = reader
        self._table = table
        self._each = each
        self._reached: dict[frozenset[str] | None, Reached] = {}  # by the tasks that were asked for
        self._anew_at = 0.0

    def prune(self, keep: Retention, limit: int, now: datetime, *, everything: bool, to_the_end: bool) -> int:
        """Delete up to `limit`; `everything`: look at all records, also at those whose id was made too late."""
        if everything or time.monotonic() >= self._anew_at:
            self._reached, self._anew_at = {}, time.monotonic() + ROUND
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
        """A few pages of every partition: how many went, and whether pages are left that nobody has looked at."""
        old: list[Item] = []
        more = False
        walked: Reached = {}
        for state in (*LISTED, State.SUCCEEDED):
            cutoff = _latest(keep, state, now)
            if cutoff is None:
                continue
            picky = state not in LISTED or keep.only is not None or any(state in ages for ages in keep.tasks.values())
            look = Look(state, cutoff, keep, now, limit, PAGES if picky and not everything else None)
            parts = self._walk(look, before)
            old += [item for part in parts for item in part.items]
            more |= any(part.cut for part in parts)
            if picky:  # it passes some that stay
                walked.update({(state, number): part.reached for number, part in enumerate(parts)})
        if len(old) <= limit and not everything:  # else those that are left are met the next time
            before.update(walked)
        old.sort(key=lambda item: str(item["completed_at"]["S"]))
        gone = sum(self._each(lambda item: self._forget(item, now), old[:limit]))
        return gone, more and (gone > 0 or not old)

    def _walk(self, look: Look, before: Reached) -> list[Walked]:
        """Records of jobs of this state that may go, partition by partition."""
        listed = look.state in LISTED
        part, spread = (self._listed, lines(self._table.spread)) if listed else (self._succeeded, self._table.spread)
        return self._each(lambda number: part(number, before.get((look.state, number), " "), look), range(spread))

    def _listed(self, number: int, low: str, look: Look) -> Walked:
        """Those of one list, by the time they ended; and how far it looked."""
        found: list[Item] = []
        reached = low
        high, size = text_of(look.cutoff), min(PAGE, look.limit)
        pages = self._client.pages(f"{look.state}#{number:02x}", low=low, high=high, limit=size)
        for count, page in enumerate(pages, 1):
            records = self._reader.items([id_of(line) for line in page])
            found += self._free([record for record in records if look.wants(record)], look.now)
            if len(found) >= look.limit:
                break
            reached = page[-1]["SK"]["S"] if page else reached
            if count == look.pages:
                return Walked(found, reached, cut=True)
        return Walked(found, reached)

    def _succeeded(self, number: int, low: str, look: Look) -> Walked:
        """Records of succeeded jobs of one partition that may go, and how far it looked."""
        found: list[Item] = []
        reached = low
        high = "~" if look.pages is None else _made_before(look.cutoff)
        for count, page in enumerate(self._client.pages(f"id#{number:02x}", low=low, high=high, limit=PAGE), 1):
            found += self._free([item for item in page if pointed(item) is None and look.wants(item)], look.now)
            if len(found) > look.limit:
                break
            reached = page[-1]["SK"]["S"] if page else reached
            if count == look.pages:
                return Walked(found, reached, cut=True)
        return Walked(found, reached)

    def _free(self, items: Sequence[Item], now: datetime) -> list[Item]:
        """Those that do not hold their key any more."""
        keys = self._client.get([place for item in items if (place := _key(item))])

        def holds(item: Item) -> bool:
            key = keys.get(_key(item) or place_of(item))
            if key is None or holder_of(key) != id_of(item):
                return False
            return "until" not in key or key["until"]["S"] > text_of(now)

        return [item for item in items if not holds(item)]

    def _forget(self, item: Item, now: datetime) -> int:
        """Delete a finished job with all that belongs to it; how many jobs that was."""
        job = job_from(item)
        pieces = [place_of(piece) for page in self._client.pages(f"large#{job.id}", limit=1000) for piece in page]
        parts = [*forgotten(self._table, job), *(delete(self._table, place) for place in pieces[:PIECES])]
        try:
            self._client.write(parts)
        except Failed:  # somebody retried it
            return 0
        with suppress(Crowded):
            self._client.delete(pieces[PIECES:])
        key = _key(item)
        if key is not None:  # of a window that is over; TTL would tidy it up too
            with suppress(Failed, Crowded):
                over = [("job", "=", {"S": job.id}), ("until", "<=", {"S": text_of(now)})]
                self._client.write([delete(self._table, key, over)])
        return 1


def _key(item: Item) -> Place | None:
    at = plain(item)
    return key_place(at.get("tenant", "default"), at["job_type"], at["key"]) if "key" in at else None


def _latest(keep: Retention, state: State, now: datetime) -> datetime | None:
    """When a job of this state ended at the latest that may go, whatever its task; None: all are kept."""
    ages = [keep.states.get(state), *(ages.get(state) for ages in keep.tasks.values())]
    return max((back(now, age) for age in ages if age is not None), default=None)


def _made_before(moment: datetime) -> str:
    """The highest id that can have been made by then: our ids tell when they were made."""
    stamp = f"{max(0, int(moment.timestamp() * 1000)):012x}"
    return f"{stamp[:8]}-{stamp[8:]}-~"


def back(now: datetime, age: timedelta) -> datetime:
    try:
        return now - age
    except OverflowError:
        return datetime.min.replace(tzinfo=now.tzinfo)


def forgotten(table: Table, job: Job) -> list[Part]:
    """A finished job, deleted unless it has changed since it was read."""
    parts = [delete(table, id_place(job.id, table.spread), [state_is(job.state), revision_is(job.revision)])]
    return [*parts, *list_parts(table, job, None)]
