"""What keeps the table in order: finding leases that are past, finding jobs to expire, pruning."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import chain, islice

from treadle.engines.dynamodb.client import Client, Failed
from treadle.engines.dynamodb.items import (
    Item,
    Place,
    holder_of,
    id_of,
    is_ours,
    key_place,
    lines,
    place_of,
    plain,
    pointed,
    text_of,
    time_of,
)
from treadle.engines.dynamodb.looking import Reader
from treadle.engines.dynamodb.pools import Each
from treadle.engines.dynamodb.slots import Slots
from treadle.engines.dynamodb.writes import Table, delete, forgotten
from treadle.model import Job, State

PAGE = 200
DEEP = 5  # pages beyond, a look
QUIET = 2  # pages without a running job after which a walk from the head ends
SELDOM = timedelta(seconds=2)  # between two looks when nothing is known to run out earlier
TRAIL = 80  # events and pieces that one transaction takes along


class Recovery:
    """Finds running jobs whose lease is past.

    Jobs are claimed from the head of a range, so what runs is near the head: a walk from there ends after two pages in
    which nothing runs. Beyond, a few pages a look go through the rest of the range by and by. Between looks it is known
    when the earliest lease ends, so there is nothing to look for before.
    """

    def __init__(self, client: Client, slots: Slots, skew: float, each: Each) -> None:
        self._client = client
        self._each = each
        self._slots = slots
        self._skew = timedelta(seconds=skew)
        self._deep: dict[str, str] = {}  # how far the slow walk has come in each range
        self._last: datetime | None = None
        self._next: datetime | None = None

    def expect(self, moment: datetime) -> None:
        """Look again at this time, if not earlier."""
        if self._next is not None:
            self._next = min(self._next, moment)

    def due(self, now: datetime) -> bool:
        return self._next is None or self._last is None or now >= self._next or now < self._last

    def past(self, now: datetime) -> Iterator[Item]:
        """Running jobs whose lease is past; the margin is for clocks that differ."""
        self._last, self._next = now, now + SELDOM
        limit = text_of(now - self._skew)
        ranges = [range_.slot.partition(shard) for range_ in self._slots.all() for shard in range(range_.shards)]
        for running in self._each(lambda pk: list(self._running(pk, now)), ranges):
            for item in running:
                until = plain(item).get("lock_expires_at", "")
                if until <= limit:
                    yield item
                else:
                    self.expect((time_of(until) or now) + self._skew)

    def _running(self, pk: str, now: datetime) -> Iterator[Item]:
        high, quiet, last = f"scheduled#{text_of(now)}#~", 0, ""
        for page in self._client.pages(pk, low="scheduled#", high=high, limit=PAGE):
            running = [item for item in page if _runs(item)]
            yield from running
            quiet = 0 if running else quiet + 1
            last = page[-1]["SK"]["S"] if page else last
            if quiet >= QUIET:
                break
        else:
            return
        deep = self._client.pages(pk, low=max(last, self._deep.get(pk, "")), high=high, limit=PAGE)
        pages = list(islice(deep, DEEP))
        beyond = [item for page in pages for item in page if item["SK"]["S"] > last]
        yield from filter(_runs, beyond)
        self._deep[pk] = beyond[-1]["SK"]["S"] if beyond and len(pages) == DEEP else ""  # from the start again


def _runs(item: Item) -> bool:
    return item.get("status", {}).get("S") == State.RUNNING and is_ours(item)


class Keeper:
    """Expiry and pruning."""

    def __init__(self, client: Client, reader: Reader, table: Table, each: Each) -> None:
        self._client = client
        self._reader = reader
        self._table = table
        self._each = each

    def unstarted(self, limit: int, now: datetime) -> Iterator[Job]:
        """Pending jobs whose expires_at is past."""
        high, size = f"{text_of(now)}#~", min(limit, PAGE)
        lists = [f"expires#{number:02x}" for number in range(lines(self._table.spread))]
        pages = [self._client.pages(pk, high=high, limit=size) for pk in lists]
        firsts = self._each(lambda rest: next(rest, []), pages)
        for page in chain(firsts, chain.from_iterable(pages)):
            jobs = {job.id: job for job in self._reader.get([id_of(line) for line in page]) if job}
            for line in page:
                job = jobs.get(id_of(line))
                if job is None or job.state.final:
                    self._client.delete([place_of(line)])
                elif job.state is State.PENDING and job.expires_at is not None and job.expires_at <= now:
                    yield job

    def prune(self, keep: Mapping[State, timedelta], limit: int, now: datetime, *, high: str) -> int:
        ages = {state.value: text_of(back(now, age)) for state, age in keep.items() if state.final}
        if not ages:
            return 0
        parts = self._each(lambda number: self._old(number, ages, high, limit, now), range(self._table.spread))
        old = sorted((item for part in parts for item in part), key=lambda item: str(item["completed_at"]["S"]))
        return sum(self._each(self._forget, old[:limit]))

    def _old(self, number: int, ages: Mapping[str, str], high: str, limit: int, now: datetime) -> list[Item]:
        """Records of one partition that may go."""
        found: list[Item] = []
        for page in self._client.pages(f"id#{number:02x}", high=high, limit=PAGE):
            found += self._free([item for item in page if pointed(item) is None and _is_old(item, ages)], now)
            if len(found) >= limit:
                break
        return found

    def _free(self, items: Sequence[Item], now: datetime) -> list[Item]:
        """Those that do not hold their key any more."""
        keys = self._client.get([place for item in items if (place := _key(item))])
        moment = text_of(now)

        def holds(item: Item) -> bool:
            key = keys.get(_key(item) or place_of(item))
            return (
                key is not None and holder_of(key) == id_of(item) and ("until" not in key or key["until"]["S"] > moment)
            )

        return [item for item in items if not holds(item)]

    def _forget(self, item: Item) -> int:
        """Delete a finished job with all that belongs to it; how many jobs that was."""
        [job] = self._reader.jobs([item])
        belongings = [
            place_of(one)
            for pk in (f"events#{job.id}", f"large#{job.id}")
            for page in self._client.pages(pk, limit=1000)
            for one in page
        ]
        self._client.delete(belongings[:-TRAIL])
        parts = forgotten(self._table, job)
        parts += [delete(self._table, place) for place in belongings[-TRAIL:]]
        try:
            self._client.write(parts)
        except Failed:  # somebody retried it
            return 0
        key = _key(item)
        if key is not None:  # of a window that is over; TTL would tidy it up too
            with suppress(Failed):
                self._client.write([delete(self._table, key, [("job", "=", {"S": job.id})])])
        return 1


def _key(item: Item) -> Place | None:
    at = plain(item)
    return key_place(at.get("tenant", "default"), at["job_type"], at["key"]) if "key" in at else None


def _is_old(item: Item, ages: Mapping[str, str]) -> bool:
    at = plain(item)
    return at["status"] in ages and at.get("completed_at", "") < ages[at["status"]]


def back(now: datetime, age: timedelta) -> datetime:
    try:
        return now - age
    except OverflowError:
        return datetime.min.replace(tzinfo=now.tzinfo)
