"""Reading jobs: by id, in numbers, and what they have cost.

Every read is consistent and none goes through an index, so nothing here is stale.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from heapq import merge
from itertools import chain, groupby, islice
from typing import Any

from treadle.engines.batches import MOST_QUEUES, merged_tallies
from treadle.engines.dynamodb.client import LARGEST_PAGE, MAX_SORT_KEY, MAX_TRIES, Client
from treadle.engines.dynamodb.cursors import FIRST_DUE
from treadle.engines.dynamodb.items import (
    PLAIN,
    Item,
    ItemKey,
    day_of,
    holder_of,
    id_key,
    id_of,
    key_of,
    list_partitions,
    plain,
    pointed_key,
    target_of,
    text_of,
)
from treadle.engines.dynamodb.pieces import joined, large_names, piece_keys
from treadle.engines.dynamodb.pools import Each
from treadle.engines.dynamodb.ranges import Range, Ranges
from treadle.engines.dynamodb.rows import foreign_job, is_ours, job_from, tenant_range
from treadle.engines.values import LISTED, Count, JobFilter, Tally
from treadle.errors import EngineError
from treadle.model import UUID, Job, Reason, State


class Reader:
    """Reads the jobs of one table."""

    def __init__(self, client: Client, ranges: Ranges, spread: int, each: Each) -> None:
        self._client = client
        self._ranges = ranges
        self._spread = spread
        self._each = each

    # -------------------------------------------------------------------------------------- by id

    def get(self, ids: Sequence[str]) -> list[Job | None]:
        wanted = [id_ for id_ in dict.fromkeys(ids) if UUID.fullmatch(id_)]
        jobs: dict[str, Job] = {}
        for _ in range(MAX_TRIES):
            found = {id_of(item): item for item in self.items(wanted)}
            jobs |= {job.id: job for job in self.jobs(list(found.values()))}
            # A job that moved while its pieces were read is not where it was: find it again.
            wanted = [id_ for id_ in found if id_ not in jobs]
            if not wanted:
                break
        return [jobs.get(id_) for id_ in ids]

    def items(self, ids: Sequence[str]) -> list[Item]:
        """The due items or records of these jobs."""
        homes = self._client.get([id_key(id_, self._spread) for id_ in ids])
        return self.due(list(homes.values()))

    def due(self, homes: Sequence[Item]) -> list[Item]:
        """The due items or records that these id items stand for."""
        found: list[Item] = []
        for _ in range(MAX_TRIES):
            found += [home for home in homes if pointed_key(home) is None]
            due = self._client.get([key for home in homes if (key := pointed_key(home))])
            found += due.values()
            # A due item that is not where its id item says has been moved meanwhile: read that one again.
            moved = [id_of(home) for home in homes if (key := pointed_key(home)) and key not in due]
            if not moved:
                break
            homes = list(self._client.get([id_key(id_, self._spread) for id_ in moved]).values())
        return found

    def due_key(self, job_id: str, due_at: datetime | None = None) -> ItemKey | None:
        """Where the due item of a job is; None if it has none.

        The job of another program has no id item, but its key follows from its due time.
        """
        if not UUID.fullmatch(job_id):
            return None
        home = id_key(job_id, self._spread)
        item = self._client.get([home]).get(home)
        if item is None and due_at is not None:
            return ItemKey(PLAIN.partition(0), f"scheduled#{text_of(due_at)}#{job_id}")
        return None if item is None else pointed_key(item)

    def at(self, job_id: str, key: ItemKey | None) -> Job | None:
        """The job of this id; the job of another program has no id item, but may be at this key."""
        [job] = self.get([job_id])
        if job is not None or key is None:
            return job
        item = self._client.get([key]).get(key)
        return next(iter(self.jobs([item])), None) if item is not None and is_ours(item) else None

    def holder(self, unique: ItemKey, now: datetime) -> tuple[Job | None, str | None]:
        """The job that holds this unique key; or, if that job is gone, where the key pointed."""
        item = self._client.get([unique]).get(unique)
        if item is None or ("until" in item and item["until"]["S"] <= text_of(now)):
            return None, None
        job = self.target(item)
        return job, target_of(item) if job is None else None

    def target(self, item: Item) -> Job | None:
        """The job that a unique key's item points at; that of another program lies there in that program's words."""
        holder, key = holder_of(item), pointed_key(item)
        [job] = self.get([holder]) if holder else [None]
        if job is not None or key is None or "job" in item:
            return job
        there = self._client.get([key]).get(key)
        return None if there is None else foreign_job(there)

    def jobs(self, items: Sequence[Item], bare: bool = False) -> list[Job]:
        """The jobs in these items, with the texts that lie in pieces; jobs that were pruned meanwhile are left out."""
        items = [_without_pieces(item) for item in items] if bare else items
        for _ in range(MAX_TRIES):
            wanted = {
                (id_of(item), name): piece_keys(id_of(item), item, name) for item in items for name in large_names(item)
            }
            pieces = self._client.get([key for keys in wanted.values() for key in keys]) if wanted else {}
            torn = {job_id for (job_id, _), keys in wanted.items() if any(key not in pieces for key in keys)}
            if not torn:
                break
            items = self._again(items, torn)
        else:
            raise EngineError(f"job {min(torn)}: a part of its payload, result or error is missing from the table")
        texts: dict[str, dict[str, str]] = {}
        for (job_id, name), keys in wanted.items():
            texts.setdefault(job_id, {})[name] = joined([pieces[key] for key in keys])
        return [job_from(item, texts.get(id_of(item))) for item in items]

    def _again(self, items: Sequence[Item], torn: set[str]) -> list[Item]:
        """These items; those of `torn` read again, because they were replaced or pruned between two reads."""
        now = self._client.get([key_of(item) for item in items if id_of(item) in torn])
        kept = [item if id_of(item) not in torn else now.get(key_of(item)) for item in items]
        return [item for item in kept if item is not None]

    # -------------------------------------------------------------------------------------- walks

    def merged(self, partitions: Iterable[str], limit: int, high: str, beyond: str | None) -> Iterator[Item]:
        """The items of these partitions as one stream, the highest sort key first, those below `beyond`."""
        size = max(5, limit // self._spread * 2)
        pages = [self._client.pages(pk, high=high, limit=size, backward=True, growing=True) for pk in partitions]
        firsts = self._each(lambda rest: next(rest, []), pages)
        streams = [chain(first, chain.from_iterable(rest)) for first, rest in zip(firsts, pages, strict=True)]
        found = merge(*streams, key=lambda item: str(item["SK"]["S"]), reverse=True)
        return (item for item in found if item["SK"]["S"] != beyond)

    def _active(self, where: JobFilter) -> Iterable[Item]:
        """Due items that match. This is not a snapshot: a job that moves meanwhile counts once, or not at all."""
        found = {id_of(item): item for item in self.due_items(where.queue) if matches(item, where)}
        return found.values()

    # ------------------------------------------------------------------------------------- numbers

    def count(self, where: JobFilter, now: datetime) -> dict[State, Count]:
        counts: Counter[State] = Counter()
        labels: Counter[str] = Counter()
        moment = text_of(now)
        if where.state is None or not where.state.final:
            for item in self._active(where):
                counts[State(item["status"]["S"])] += 1
                labels.update(_label(item, moment))
        if where.state is None or where.state.final:
            for states in self._each(lambda number: self._ended(number, where), range(self._spread)):
                counts.update(states)
        return {
            state: Count(number, labels=labels if state is State.PENDING else None) for state, number in counts.items()
        }

    def estimate(self, where: JobFilter, limit: int, now: datetime) -> dict[State, Count]:
        """How many match among `limit` due items, and of those that have ended among the `limit` newest jobs."""
        wanted = [where.state] if where.state is not None else list(State)
        counts: dict[State, Count] = {}
        if any(not state.final for state in wanted):
            counts |= self._seen(self.due_items(where.queue), where, limit, now)
        if any(state.final for state in wanted):
            partitions = [f"id#{number:02x}" for number in range(self._spread)]
            ended = self._seen(self.merged(partitions, limit, "~", None), where, limit, now)
            counts |= {state: count for state, count in ended.items() if state.final}
        return {state: count for state, count in counts.items() if state in wanted and (count or not count.exact)}

    def _seen(self, items: Iterable[Item], where: JobFilter, limit: int, now: datetime) -> dict[State, Count]:
        """How many of the first of these items match, by state; a job that is met twice counts once."""
        where, looked, moment = where._replace(state=None), 0, text_of(now)
        found: dict[State, dict[str, Sequence[str]]] = {state: {} for state in State}
        for item in islice(items, limit + 1):
            looked += 1
            if "status" in item and matches(item, where):
                found[State(item["status"]["S"])][id_of(item)] = _label(item, moment)
        return {
            state: Count.up_to(limit, len(jobs), exact=looked <= limit, labels=Counter(chain(*jobs.values())))
            for state, jobs in found.items()
        }

    def _ended(self, number: int, where: JobFilter) -> list[State]:
        """The states of the records in one partition that match."""
        pages = self._client.pages(f"id#{number:02x}", limit=1000)
        records = (item for page in pages for item in page if pointed_key(item) is None)
        return [State(item["status"]["S"]) for item in records if matches(item, where)]

    def tally(self, since: datetime, limit: int, tenant: str | None, now: datetime) -> list[Tally]:
        """How many jobs wait, run, and have ended since then, as far as a bounded look sees.

        Succeeded jobs lie by the time they were made: of those made before `since` none is seen.
        """
        where = JobFilter(tenant=tenant)
        items = [item for item in self._live(limit) if matches(item, where)]
        for state in LISTED:
            items += [item for item in self._ended_since(state, since, limit) if matches(item, where)]
        items += [item for item in self._succeeded_since(since, limit) if matches(item, where)]
        jobs = self.jobs(items, bare=True)
        return merged_tallies(_tally(job, now) for job in jobs)

    def _live(self, limit: int) -> Iterator[Item]:
        """Due items, up to `limit` of each queue, those due first of each slot first."""
        ranges = groupby(self._ranges.all(), key=lambda range_: range_.slot.queue)
        for _, slots in islice(ranges, MOST_QUEUES):
            yield from islice(self._due_items(slots), limit)

    def due_items(self, queue: str | None, size: int = LARGEST_PAGE) -> Iterator[Item]:
        """Due items of a queue, or of all, read so many at a time."""
        ranges = [range_ for range_ in self._ranges.all() if queue in (None, range_.slot.queue)]
        return self._due_items(ranges, min(size, LARGEST_PAGE))

    def _due_items(self, ranges: Iterable[Range], size: int = LARGEST_PAGE) -> Iterator[Item]:
        for range_ in ranges:
            low = " " if range_.slot.shared else FIRST_DUE
            for pk in map(range_.slot.partition, range(range_.shards)):
                for page in self._client.pages(pk, low=low, high=MAX_SORT_KEY, limit=size):
                    yield from (item for item in page if is_ours(item))

    def _ended_since(self, state: State, since: datetime, limit: int) -> list[Item]:
        """The latest of the jobs that failed, or were cancelled."""
        partitions = [f"{state}#{number:02x}" for number in range(list_partitions(self._spread))]
        latest = islice(self.merged(partitions, limit, "~", None), limit)
        ids = [id_of(entry) for entry in latest if entry["SK"]["S"] >= text_of(since)]
        return [item for item in self.items(ids) if item["status"]["S"] == state]

    def _succeeded_since(self, since: datetime, limit: int) -> list[Item]:
        """Of the latest jobs that were made, those that have succeeded."""
        partitions = [f"id#{number:02x}" for number in range(self._spread)]
        homes = islice(self.merged(partitions, limit, "~", None), limit)
        ended = [home for home in homes if home.get("status", {}).get("S") == State.SUCCEEDED]
        return [home for home in ended if home["completed_at"]["S"] >= text_of(since)]

    # --------------------------------------------------------------------------------------- costs

    def costs(self, since: datetime, until: datetime, tenant: str | None) -> dict[tuple[str, str], int]:
        """What ended jobs have cost. It lies by the day they ended, and a list says which days have any."""
        pages = self._client.pages("costs", low=day_of(since), high=day_of(until), limit=1000)
        days = [item["SK"]["S"] for page in pages for item in page]
        numbers = range(list_partitions(self._spread))
        partitions = [f"cost#{day}#{number:02x}" for day in days for number in numbers]
        found: dict[tuple[str, str], int] = {}
        for items in self._each(lambda pk: self._costs_in(pk, tenant), partitions):
            for values in map(plain, items):
                if text_of(since) <= values["finished_at"] < text_of(until):
                    group = (values["tenant"], values["task"])
                    found[group] = found.get(group, 0) + int(values["cost_micros"])
        return found

    def _costs_in(self, pk: str, tenant: str | None) -> list[Item]:
        low, high = (" ", MAX_SORT_KEY) if tenant is None else tenant_range(tenant)
        return [item for page in self._client.pages(pk, low=low, high=high, limit=1000) for item in page]


def _without_pieces(item: Item) -> Item:
    """An item as if its payload and its result were small: nobody reads them here."""
    return {name: value for name, value in item.items() if name not in ("payload_size", "result_size")}


def _tally(job: Job, now: datetime) -> Tally:
    shows_error = job.state is State.FAILED or (job.state is State.PENDING and job.failures > 0)
    error = job.error.type if shows_error and job.error is not None else ""
    due = job.state is State.PENDING and job.due_at <= now
    at = job.claimed_at if job.state is State.RUNNING else job.finished_at if job.state.final else job.due_at
    return Tally(job.queue, job.task, job.state, error, 1, int(due), at or job.due_at)


def _label(item: Item, now: str) -> Sequence[str]:
    """What Job.label says of a pending job; nothing of another."""
    if item["status"]["S"] != State.PENDING:
        return ()
    if item.get("attempts", {}).get("N", "0") != "0":
        return ("retrying",)
    return ("scheduled",) if item["scheduled_for"]["S"] > now else ("pending",)


_DEFAULTS = {"tenant": "default", "queue": "default", "lane": ""}
_ATTRIBUTES = {"state": "status", "task": "job_type"}


def matches(item: Item, where: JobFilter) -> bool:
    def value(field: str) -> Any:
        return item.get(_ATTRIBUTES.get(field, field), {}).get("S", _DEFAULTS.get(field))

    if where.expired is not None and where.expired != (value("reason") == Reason.EXPIRED):
        return False
    fields = where._replace(expired=None)._asdict().items()
    return all(value(field) == wanted for field, wanted in fields if wanted is not None)
