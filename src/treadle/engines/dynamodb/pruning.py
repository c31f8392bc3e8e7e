"""Deleting jobs that ended long ago, with all that belongs to them."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from treadle.engines.base import LISTED
from treadle.engines.dynamodb.client import Client, Crowded, Failed
from treadle.engines.dynamodb.items import (
    Item,
    Place,
    holder_of,
    id_of,
    job_from,
    key_place,
    lines,
    place_of,
    plain,
    pointed,
    text_of,
)
from treadle.engines.dynamodb.looking import Reader
from treadle.engines.dynamodb.pools import Each
from treadle.engines.dynamodb.writes import Table, delete, forgotten
from treadle.model import State

PAGE = 200
PAGES = 5  # of records, of one partition, that one call walks
ROUND = 6 * 3600.0  # seconds between two walks over what was kept
TRAIL = 80  # events and pieces that one transaction takes along


Walked = tuple[list[Item], str]


class Pruning:
    """Prunes one table.

    Failed and cancelled jobs are found in their lists, in the order they ended. Succeeded ones are found among the
    records, which lie in the order they were made: the walk goes on where it was, a few pages a call, and begins anew
    every few hours, for some were kept then that may go now.
    """

    def __init__(self, client: Client, reader: Reader, table: Table, each: Each) -> None:
        self._client = client
        self._reader = reader
        self._table = table
        self._each = each
        self._walked: dict[int, str] = {}  # how far each partition of records was walked
        self._anew_at = 0.0

    def prune(self, keep: Mapping[State, timedelta], limit: int, now: datetime, *, everything: bool) -> int:
        """Delete up to `limit`; `everything`: look at all records, also at those whose id was made too late."""
        cutoffs = {state: back(now, age) for state, age in keep.items() if state.final}
        old = [item for state in LISTED if state in cutoffs for item in self._ended(state, cutoffs[state], limit, now)]
        if State.SUCCEEDED in cutoffs:
            if everything or time.monotonic() >= self._anew_at:
                self._walked, self._anew_at = {}, time.monotonic() + ROUND
            cutoff = cutoffs[State.SUCCEEDED]
            pages = None if everything else PAGES
            parts = self._each(lambda n: self._succeeded(n, cutoff, limit, now, pages), range(self._table.spread))
            old += [item for found, _ in parts for item in found]
            if len(old) <= limit and not everything:  # else those that are left are met the next time
                self._walked.update({number: reached for number, (_, reached) in enumerate(parts)})
        old.sort(key=lambda item: str(item["completed_at"]["S"]))
        return sum(self._each(lambda item: self._forget(item, now), old[:limit]))

    def _ended(self, state: State, cutoff: datetime, limit: int, now: datetime) -> list[Item]:
        """Records of failed or cancelled jobs that may go."""
        parts = self._each(lambda n: self._listed(n, state, cutoff, limit, now), range(lines(self._table.spread)))
        return [item for part in parts for item in part]

    def _listed(self, number: int, state: State, cutoff: datetime, limit: int, now: datetime) -> list[Item]:
        """Those of one list, by the time they ended."""
        found: list[Item] = []
        for page in self._client.pages(f"{state}#{number:02x}", high=text_of(cutoff), limit=min(PAGE, limit)):
            records = self._reader.items([id_of(line) for line in page])
            found += self._free([record for record in records if _is_old(record, state, cutoff)], now)
            if len(found) >= limit:
                break
        return found

    def _succeeded(self, number: int, cutoff: datetime, limit: int, now: datetime, pages: int | None) -> Walked:
        """Records of succeeded jobs of one partition that may go, and how far it looked."""
        found: list[Item] = []
        low = reached = self._walked.get(number, " ")
        high = "~" if pages is None else _made_before(cutoff)
        for count, page in enumerate(self._client.pages(f"id#{number:02x}", low=low, high=high, limit=PAGE), 1):
            records = [item for item in page if pointed(item) is None and _is_old(item, State.SUCCEEDED, cutoff)]
            found += self._free(records, now)
            if len(found) > limit:
                break
            reached = page[-1]["SK"]["S"] if page else reached
            if count == pages:
                break
        return found, reached

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
        belongings = [
            place_of(one)
            for pk in (f"events#{job.id}", f"large#{job.id}")
            for page in self._client.pages(pk, limit=1000)
            for one in page
        ]
        parts = [*forgotten(self._table, job), *(delete(self._table, place) for place in belongings[:TRAIL])]
        try:
            self._client.write(parts)
        except Failed:  # somebody retried it
            return 0
        with suppress(Crowded):
            self._client.delete(belongings[TRAIL:])
        key = _key(item)
        if key is not None:  # of a window that is over; TTL would tidy it up too
            with suppress(Failed, Crowded):
                over = [("job", "=", {"S": job.id}), ("until", "<=", {"S": text_of(now)})]
                self._client.write([delete(self._table, key, over)])
        return 1


def _key(item: Item) -> Place | None:
    at = plain(item)
    return key_place(at.get("tenant", "default"), at["job_type"], at["key"]) if "key" in at else None


def _is_old(item: Item, state: State, cutoff: datetime) -> bool:
    at = plain(item)
    return bool(at["status"] == state and at.get("completed_at", "") < text_of(cutoff))


def _made_before(moment: datetime) -> str:
    """The highest id that can have been made by then: our ids tell when they were made."""
    stamp = f"{max(0, int(moment.timestamp() * 1000)):012x}"
    return f"{stamp[:8]}-{stamp[8:]}-~"


def back(now: datetime, age: timedelta) -> datetime:
    try:
        return now - age
    except OverflowError:
        return datetime.min.replace(tzinfo=now.tzinfo)
