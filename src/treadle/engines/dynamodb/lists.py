"""Lists of jobs, page by page.

Ids are spread over partitions in which the newest come first, and ends over others. Nothing lies by task, tenant, lane
or queue: a page looks at job after job, at so many at most, and then comes short, with a cursor.
"""

import re
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from treadle.engines.dynamodb.client import MAX_ITEMS, Client
from treadle.engines.dynamodb.items import (
    Item,
    id_of,
    list_partitions,
    moment_of,
    pointed_key,
    slot_names,
    unique_key,
)
from treadle.engines.dynamodb.pools import Each
from treadle.engines.dynamodb.queries import Reader, matches
from treadle.engines.values import LISTED, JobFilter, LookedPage, Page
from treadle.model import UUID, Job, State

MOST_LOOKED = 10_000  # jobs that one page may look at until it is full
FEW_DUE = 200  # due items that are read before a list of waiting jobs walks the newest jobs instead
DUE_FOR_ONE = 4  # due items that cost about as much as one job by its id

_CURSOR = re.compile(rf"({UUID.pattern})?(?::({UUID.pattern}))?")
_ENDED_CURSOR = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z#" + UUID.pattern)


class _Cursor(NamedTuple):
    """Where a list goes on: below this id, without the job that came first because it holds the key."""

    below: str | None
    shown: str | None

    def __str__(self) -> str:
        return f"{self.below or ''}:{self.shown}" if self.shown else self.below or ""


class Lists:
    """Finds the jobs of one table, page by page."""

    def __init__(self, client: Client, reader: Reader, spread: int, each: Each) -> None:
        self._client = client
        self._reader = reader
        self._spread = spread
        self._each = each

    def find(self, where: JobFilter, *, limit: int, cursor: str | None, bare: bool = False) -> Page:
        if where.state in LISTED:
            return self._ended(where, limit, cursor, bare)
        if cursor is None and (holder := self._holder(where)) is not None:
            return LookedPage([holder], str(_Cursor(None, holder.id)), 1, holder.created_at)
        at = _position(cursor)
        active = where.state in (State.PENDING, State.RUNNING)
        page = self._active(where, limit, at, bare) if active else self._newest(where, limit, at, bare, MOST_LOOKED)
        below = page.cursor and str(at._replace(below=page.cursor))
        return LookedPage(page.jobs, below, page.looked, page.back_to)

    def _holder(self, where: JobFilter) -> Job | None:
        """The job that holds this key of a task. Others may have had it before: they are on the next pages."""
        if where.key is None or where.task is None:
            return None
        key = unique_key(where.tenant or "default", where.task, where.key)
        item = self._client.get([key]).get(key)
        job = None if item is None else self._reader.target(item)
        return job if job is not None and _fits(job, where) else None

    # ------------------------------------------------------------------------------------- newest first

    def _newest(self, where: JobFilter, limit: int, at: _Cursor, bare: bool, most: int) -> LookedPage:
        """The newest jobs that match; the cursor is an id."""
        partitions = [f"id#{number:02x}" for number in range(self._spread)]
        homes = self._reader.merged(partitions, limit, at.below or "~", at.below)
        found: list[Item] = []
        looked, size, last = 0, limit, ""
        while len(found) < limit and looked < most:
            some = list(islice(homes, min(size, most - looked)))
            if not some:
                return LookedPage(self._reader.jobs(found, bare), None, looked)
            found += [item for item in self._matching(some, where) if id_of(item) != at.shown]
            looked, size, last = looked + len(some), max(size, MAX_ITEMS) * 2, id_of(some[-1])
        if len(found) >= limit:
            return LookedPage(self._reader.jobs(found[:limit], bare), id_of(found[limit - 1]), looked)
        back_to = next((moment_of(item["created_at"]["S"]) for item in self._reader.items([last])), None)
        return LookedPage(self._reader.jobs(found, bare), last, looked, back_to)

    def _matching(self, homes: Sequence[Item], where: JobFilter) -> list[Item]:
        """The jobs of these id items that match. Of those that wait or run, only what may match is read."""
        homes = [home for home in homes if _may_match(home, where)]
        waiting = [home for home in homes if pointed_key(home)]
        parts = [waiting[start : start + MAX_ITEMS] for start in range(0, len(waiting), MAX_ITEMS)]
        due = {id_of(item): item for items in self._each(self._reader.due, parts) for item in items}
        items = [due.get(id_of(home)) if pointed_key(home) else home for home in homes]
        return [item for item in items if item is not None and matches(item, where)]

    def _active(self, where: JobFilter, limit: int, at: _Cursor, bare: bool) -> LookedPage:
        """The newest that wait, or run. Due items lie by their time, so of a few all are read and put in order.

        Of many, the newest jobs of all are walked, as far as that is no more work. If they do not fill the page, all
        due items are read, unless they are more than a page may look at. Running jobs are seldom the newest.
        """
        few = MOST_LOOKED if where.state is State.RUNNING else min(max(FEW_DUE, DUE_FOR_ONE * limit), MOST_LOOKED)
        items = self._reader.due_items(where.queue, few + 1)
        due = list(islice(items, few + 1))
        if len(due) > few:
            page = self._newest(where, limit, at, bare, few)
            if len(page.jobs) >= limit:
                return page
            due += islice(items, max(0, MOST_LOOKED - len(due)))
            if len(due) >= MOST_LOOKED:
                over = page.cursor is None or page.looked >= MOST_LOOKED
                return page if over else self._continued(page, where, limit, at, bare)
        found = {id_of(item): item for item in due if matches(item, where)}
        ids = sorted((id_ for id_ in found if id_ != at.shown and (at.below is None or id_ < at.below)), reverse=True)
        jobs = self._reader.jobs([found[id_] for id_ in ids[:limit]], bare)
        return LookedPage(jobs, ids[limit - 1] if len(ids) >= limit else None, len(jobs))

    def _continued(self, page: LookedPage, where: JobFilter, limit: int, at: _Cursor, bare: bool) -> LookedPage:
        """The page with what else a page may look at."""
        left, there = limit - len(page.jobs), at._replace(below=page.cursor)
        rest = self._newest(where, left, there, bare, MOST_LOOKED - page.looked)
        return LookedPage(page.jobs + rest.jobs, rest.cursor, page.looked + rest.looked, rest.back_to)

    # --------------------------------------------------------------------------------- latest end first

    def _ended(self, where: JobFilter, limit: int, cursor: str | None, bare: bool) -> LookedPage:
        """Jobs that failed, or were cancelled; the cursor is the key of a list entry."""
        if cursor is not None and not _ENDED_CURSOR.fullmatch(cursor):
            raise ValueError(f"{cursor!r} is not a valid cursor")
        partitions = [f"{where.state}#{number:02x}" for number in range(list_partitions(self._spread))]
        ended = self._reader.merged(partitions, limit, cursor or "~", cursor)
        found: list[tuple[str, Item]] = []
        looked, size, last = 0, limit, ""
        while len(found) < limit and looked < MOST_LOOKED:
            entries = list(islice(ended, min(size, MOST_LOOKED - looked)))
            if not entries:
                return LookedPage(self._jobs(found, bare), None, looked)
            parts = [entries[start : start + MAX_ITEMS] for start in range(0, len(entries), MAX_ITEMS)]
            read = self._each(lambda part: self._reader.items([id_of(entry) for entry in part]), parts)
            items = {id_of(item): item for part in read for item in part}
            for entry in entries:  # a job that was retried has left the list, or soon will
                item = items.get(id_of(entry))
                if item is not None and matches(item, where):
                    found.append((entry["SK"]["S"], item))
            looked, size, last = looked + len(entries), max(size, MAX_ITEMS) * 2, entries[-1]["SK"]["S"]
        if len(found) >= limit:
            return LookedPage(self._jobs(found[:limit], bare), found[limit - 1][0], looked)
        return LookedPage(self._jobs(found, bare), last, looked, moment_of(last.partition("#")[0]))

    def _jobs(self, found: Sequence[tuple[str, Item]], bare: bool) -> list[Job]:
        return self._reader.jobs([item for _, item in found], bare)


def _position(cursor: str | None) -> _Cursor:
    found = _CURSOR.fullmatch(cursor or "")
    if found is None or cursor == "":
        raise ValueError(f"{cursor!r} is not a valid cursor")
    return _Cursor(found[1], found[2])


def _may_match(home: Item, where: JobFilter) -> bool:
    """Whether the job of an id item may match: of one that waits or runs it says the queue and the lane at most."""
    due = pointed_key(home)
    if due is None:
        return matches(home, where)
    if where.state is not None and where.state.final:
        return False
    named = zip(slot_names(due.pk), (where.queue, where.lane), strict=True)
    return all(name is None or wanted in (None, name) for name, wanted in named)


def _fits(job: Job, where: JobFilter) -> bool:
    wanted = where._replace(expired=None)._asdict().items()
    return all(value is None or getattr(job, field) == value for field, value in wanted)
