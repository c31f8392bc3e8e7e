"""Reading jobs: by id, in lists, in numbers, with their trail. No index stands behind it, so nothing here is stale."""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from heapq import merge
from itertools import chain, islice
from typing import Any

from treadle.engines.dynamodb.audit import event_from
from treadle.engines.dynamodb.client import ALL, TRIES, Client
from treadle.engines.dynamodb.items import (
    PLAIN,
    Item,
    Place,
    day_of,
    id_of,
    id_place,
    lines,
    part_of,
    place_of,
    plain,
    pointed,
    text_of,
    value_of,
)
from treadle.engines.dynamodb.pieces import joined, piece_places, spilled_names
from treadle.engines.dynamodb.pools import Each
from treadle.engines.dynamodb.ranges import Slots
from treadle.engines.dynamodb.rows import is_ours, job_from
from treadle.engines.dynamodb.writes import COST_KEPT, Table, put
from treadle.engines.values import LISTED, JobFilter, Page
from treadle.errors import EngineError
from treadle.model import UUID, Event, Job, State

_LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z#" + UUID.pattern)


class Reader:
    """Reads one table."""

    def __init__(self, client: Client, slots: Slots, spread: int, each: Each) -> None:
        self._each = each
        self._client = client
        self._slots = slots
        self._spread = spread

    # -------------------------------------------------------------------------------------- by id

    def get(self, ids: Sequence[str]) -> list[Job | None]:
        wanted = [id_ for id_ in dict.fromkeys(ids) if UUID.fullmatch(id_)]
        found = {id_of(item): item for item in self.items(wanted)}
        jobs = {job.id: job for job in self.jobs(list(found.values()))}
        return [jobs.get(id_) for id_ in ids]

    def items(self, ids: Sequence[str]) -> list[Item]:
        """The due items or records of these jobs."""
        homes = self._client.get([id_place(id_, self._spread) for id_ in ids])
        return self._due(list(homes.values()))

    def _due(self, homes: Sequence[Item]) -> list[Item]:
        """What these id items stand for."""
        found: list[Item] = []
        for _ in range(TRIES):
            found += [home for home in homes if pointed(home) is None]
            due = self._client.get([place for home in homes if (place := pointed(home))])
            found += due.values()
            # Whose due item is not where it was said to be has moved meanwhile: ask again.
            moved = [id_of(home) for home in homes if (place := pointed(home)) and place not in due]
            if not moved:
                break
            homes = list(self._client.get([id_place(id_, self._spread) for id_ in moved]).values())
        return found

    def place(self, job_id: str, due_at: datetime | None = None) -> Place | None:
        """Where the due item of a job is; None if it has none. Another program's has no id item, but a known place."""
        if not UUID.fullmatch(job_id):
            return None
        home = id_place(job_id, self._spread)
        item = self._client.get([home]).get(home)
        if item is None and due_at is not None:
            return Place(PLAIN.partition(0), f"scheduled#{text_of(due_at)}#{job_id}")
        return None if item is None else pointed(item)

    def at(self, job_id: str, place: Place | None) -> Job | None:
        """The job of this id; one of another program has no id item, but may be at this place."""
        [job] = self.get([job_id])
        if job is not None or place is None:
            return job
        item = self._client.get([place]).get(place)
        return next(iter(self.jobs([item])), None) if item is not None and is_ours(item) else None

    def holder(self, key: Place, now: datetime) -> tuple[Job | None, str | None]:
        """The job that has this key, or else, if the job is gone that it was for, the id of that one."""
        item = self._client.get([key]).get(key)
        if item is None or ("until" in item and item["until"]["S"] <= text_of(now)):
            return None, None
        [job] = self.get([item["job"]["S"]])
        return job, item["job"]["S"] if job is None else None

    def jobs(self, items: Sequence[Item]) -> list[Job]:
        """The jobs in these items, with what was too large for them; not those that were pruned meanwhile."""
        for _ in range(TRIES):
            wanted = {
                (id_of(item), name): piece_places(id_of(item), item, name)
                for item in items
                for name in spilled_names(item)
            }
            pieces = self._client.get([place for places in wanted.values() for place in places]) if wanted else {}
            torn = {job_id for (job_id, _), places in wanted.items() if any(place not in pieces for place in places)}
            if not torn:
                break
            items = self._again(items, torn)
        else:
            raise EngineError(f"job {min(torn)}: a part of its payload, result or error is missing from the table")
        texts: dict[str, dict[str, str]] = {}
        for (job_id, name), places in wanted.items():
            texts.setdefault(job_id, {})[name] = joined([pieces[place] for place in places])
        return [job_from(item, texts.get(id_of(item))) for item in items]

    def _again(self, items: Sequence[Item], torn: set[str]) -> list[Item]:
        """These items, those of `torn` as they are now: they were replaced or pruned while we read."""
        now = self._client.get([place_of(item) for item in items if id_of(item) in torn])
        kept = [item if id_of(item) not in torn else now.get(place_of(item)) for item in items]
        return [item for item in kept if item is not None]

    # -------------------------------------------------------------------------------------- lists

    def find(self, where: JobFilter, *, limit: int, cursor: str | None) -> Page:
        if where.state in LISTED:
            return self._find_ended(where, limit, cursor)
        if cursor is not None and not UUID.fullmatch(cursor):
            raise ValueError(f"{cursor!r} is no cursor")
        if where.state in (State.PENDING, State.RUNNING):
            found = sorted(self._active(where), key=id_of, reverse=True)
            jobs = self.jobs([item for item in found if cursor is None or id_of(item) < cursor][:limit])
        else:
            jobs = self._newest(where, limit, cursor)
        return Page(jobs, jobs[-1].id if len(jobs) == limit else None)

    def _newest(self, where: JobFilter, limit: int, cursor: str | None) -> list[Job]:
        partitions = [f"id#{number:02x}" for number in range(self._spread)]
        homes = self._merged(partitions, limit, cursor or "~", cursor)
        jobs: list[Job] = []
        while len(jobs) < limit:
            some = list(islice(homes, limit))
            if not some:
                break
            records = {id_of(home): home for home in some if pointed(home) is None}
            due = {id_of(item): item for item in self._due([home for home in some if pointed(home)])}
            items = [item for home in some if (item := records.get(id_of(home)) or due.get(id_of(home)))]
            jobs += self.jobs([item for item in items if _matches(item, where)])
        return jobs[:limit]

    def _find_ended(self, where: JobFilter, limit: int, cursor: str | None) -> Page:
        if cursor is not None and not _LINE.fullmatch(cursor):
            raise ValueError(f"{cursor!r} is no cursor")
        partitions = [f"{where.state}#{number:02x}" for number in range(lines(self._spread))]
        ended = self._merged(partitions, limit, cursor or "~", cursor)
        jobs: list[Job] = []
        last = None
        while len(jobs) < limit and (some := list(islice(ended, limit - len(jobs)))):
            items = {id_of(item): item for item in self.items([id_of(line) for line in some])}
            there = [(line, items[id_of(line)]) for line in some if id_of(line) in items]
            # A job that was retried has left the list, or will have.
            kept = [(line, item) for line, item in there if _matches(item, where)]
            jobs += self.jobs([item for _, item in kept])
            last = some[-1]["SK"]["S"]
        return Page(jobs, last if len(jobs) == limit else None)

    def _merged(self, partitions: Iterable[str], limit: int, high: str, beyond: str | None) -> Iterator[Item]:
        """The items of these partitions as one stream, the highest sort key first, those below `beyond`."""

        size = max(5, limit // self._spread * 2)
        pages = [self._client.pages(pk, high=high, limit=size, backward=True) for pk in partitions]
        firsts = self._each(lambda rest: next(rest, []), pages)
        streams = [chain(first, chain.from_iterable(rest)) for first, rest in zip(firsts, pages, strict=True)]
        found = merge(*streams, key=lambda item: str(item["SK"]["S"]), reverse=True)
        return (item for item in found if item["SK"]["S"] != beyond)

    def _active(self, where: JobFilter) -> Iterable[Item]:
        """Due items that match. No snapshot: one that moves while we walk counts once, or not at all."""
        found: dict[str, Item] = {}
        for range_ in self._slots.all():
            if where.queue in (None, range_.slot.queue):
                for shard in range(range_.shards):
                    for page in self._client.pages(range_.slot.partition(shard), low="scheduled#", limit=1000):
                        found.update({id_of(item): item for item in page if is_ours(item) and _matches(item, where)})
        return found.values()

    # ------------------------------------------------------------------------------------- numbers

    def count(self, where: JobFilter) -> dict[State, int]:
        counts: dict[State, int] = {}
        if where.state is None or not where.state.final:
            for item in self._active(where):
                state = State(item["status"]["S"])
                counts[state] = counts.get(state, 0) + 1
        if where.state is None or where.state.final:
            for states in self._each(lambda number: self._ended(number, where), range(self._spread)):
                for state in states:
                    counts[state] = counts.get(state, 0) + 1
        return counts

    def _ended(self, number: int, where: JobFilter) -> list[State]:
        """The states of the records in one partition that match."""
        pages = self._client.pages(f"id#{number:02x}", limit=1000)
        records = (item for page in pages for item in page if pointed(item) is None)
        return [State(item["status"]["S"]) for item in records if _matches(item, where)]

    def events(self, job_id: str) -> list[Event]:
        pages = self._client.pages(f"events#{job_id}", limit=1000) if UUID.fullmatch(job_id) else ()
        return [event_from(item) for page in pages for item in page]


_DEFAULTS = {"tenant": "default", "queue": "default"}
_ATTRIBUTES = {"state": "status", "task": "job_type"}


def _matches(item: Item, where: JobFilter) -> bool:
    def value(field: str) -> Any:
        return item.get(_ATTRIBUTES.get(field, field), {}).get("S", _DEFAULTS.get(field))

    return all(value(field) == wanted for field, wanted in where._asdict().items() if wanted is not None)


class Costs:
    """The costs of one table."""

    def __init__(self, client: Client, table: Table, each: Each) -> None:
        self._client = client
        self._table = table
        self._each = each
        self._days: set[str] = set()  # that were written down by this process

    def expect(self, job: Job) -> None:
        """Write down that there are jobs of this day, before the first one's line."""
        day = day_of(job.finished_at)
        if job.state.final and job.cost_micros > 0 and job.finished_at is not None and day not in self._days:
            ttl = value_of(int(job.finished_at.timestamp()) + COST_KEPT)
            self._client.write([put(self._table, Place("costs", day), {"ttl": ttl})])
            self._days.add(day)

    def read(self, since: datetime, until: datetime, tenant: str | None) -> dict[tuple[str, str], int]:
        pages = self._client.pages("costs", low=day_of(since), high=day_of(until), limit=1000)
        days = [item["SK"]["S"] for page in pages for item in page]
        numbers = range(lines(self._table.spread))
        found: dict[tuple[str, str], int] = {}
        for part in self._each(
            lambda pk: self._lines(pk, tenant), [f"cost#{day}#{number:02x}" for day in days for number in numbers]
        ):
            for item in part:
                at = plain(item)
                if text_of(since) <= at["finished_at"] < text_of(until):
                    key = (at["tenant"], at["task"])
                    found[key] = found.get(key, 0) + int(at["cost_micros"])
        return found

    def _lines(self, pk: str, tenant: str | None) -> Sequence[Item]:
        low, high = (" ", ALL) if tenant is None else (f"{part_of(tenant)}#", f"{part_of(tenant)}$")
        return [item for page in self._client.pages(pk, low=low, high=high, limit=1000) for item in page]
