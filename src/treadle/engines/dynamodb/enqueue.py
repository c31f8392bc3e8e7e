"""Storing new jobs: many in one transaction, or each in its own where somebody was first."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime

from treadle.engines.dynamodb.audit import trail
from treadle.engines.dynamodb.client import BATCH, BRIEFLY, TRIES, Client, Crowded, Failed
from treadle.engines.dynamodb.items import Item, Place, holder_of, id_place
from treadle.engines.dynamodb.pieces import SPILLED, job_pieces
from treadle.engines.dynamodb.pools import Pools
from treadle.engines.dynamodb.queries import Reader
from treadle.engines.dynamodb.rows import attributes_of
from treadle.engines.dynamodb.writes import ABSENT, Part, Table, list_parts, pointer, put, take_key
from treadle.engines.values import Receipt
from treadle.model import Event, EventKind, Job

TOGETHER = 25  # jobs in one transaction
LARGEST = 1_000_000  # characters of payload in it; the service takes 4 MB in all


class Storing:
    """Stores jobs in one table; `new` says what a job writes."""

    def __init__(
        self,
        client: Client,
        reader: Reader,
        pools: Pools,
        new: Callable[[Job, datetime, str | None], list[Part]],
    ) -> None:
        self._client = client
        self._reader = reader
        self._pools = pools
        self._new = new

    def store(self, jobs: Sequence[Job], now: datetime) -> dict[str, Receipt]:
        """A receipt for each of these jobs, by id."""
        plain = [job for job in jobs if job.key is None]
        groups = [plain[start : start + TOGETHER] for start in range(0, len(plain), TOGETHER)]
        receipts: dict[str, Receipt] = {}
        for told in self._pools.each(lambda group: self._together(group, now), groups):
            receipts.update(told)
        for job in jobs:
            if job.key is not None:  # one after the other: of two with one key the first is first
                receipts[job.id] = self._alone(job, now)
        return receipts

    def _together(self, jobs: Sequence[Job], now: datetime) -> dict[str, Receipt]:
        """Store these in one transaction; if that is refused, in halves."""
        if len(jobs) == 1:
            return {jobs[0].id: self._alone(jobs[0], now)}
        with suppress(Failed, ValueError, Crowded):
            parts = [part for job in jobs for part in self._new(job, now, None)]
            if len(parts) <= BATCH and sum(len(job.payload_json) for job in jobs) <= LARGEST:
                self._client.write(parts, patience=BRIEFLY)
                return {job.id: Receipt(job, created=True) for job in jobs}
        half = len(jobs) // 2
        return self._together(jobs[:half], now) | self._together(jobs[half:], now)

    def _alone(self, job: Job, now: datetime) -> Receipt:
        dead: str | None = None
        try:
            for _ in range(TRIES):
                try:
                    self._client.write(self._new(job, now, dead))
                    return Receipt(job, created=True)
                except Failed as failed:
                    first, dead = self.first(job, failed.which)
                if first is not None:
                    return Receipt(first, created=False)
        except ValueError as error:
            return Receipt(job, created=False, refused=str(error))
        raise Crowded(f"{self._client.where}: job {job.id} or its key keeps changing; repeating is safe")

    def first(self, job: Job, which: Mapping[int, Item | None], begin: int = 0) -> tuple[Job | None, str | None]:
        """Who has the id or the key of a job whose parts, the first of them at `begin`, were refused.

        And for whom the key is, if that job is gone: such a key is not trusted.
        """
        holder = job.id if begin + ID in which else holder_of(which.get(begin + KEY))
        [first] = self._reader.get([holder]) if holder else [None]
        return first, holder


# ------------------------------------------------------------------------------------------- enqueue

ID, KEY = 0, 2  # where an enqueue's parts stand that may be refused


def new_job(table: Table, job: Job, place: Place, now: datetime, dead: str | None = None) -> list[Part]:
    """A new job: the id item that proves it, the due item, and what goes with them."""
    parts = [
        put(table, id_place(job.id, table.spread), pointer(place), [ABSENT]),
        put(table, place, attributes_of(job)),
    ]
    if job.key is not None:
        parts.append(take_key(table, job, now, dead))
    parts += list_parts(table, None, job)
    if table.audit_all:
        parts += trail(table, Event(job.id, 0, now, EventKind.ENQUEUED, "enqueue", "", job.tenant))
    return [*parts, *(put(table, place, piece) for place, piece in job_pieces(job, SPILLED).items())]
