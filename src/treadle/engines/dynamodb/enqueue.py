"""Storing new jobs: many in one transaction, or each in its own where an id or a key is taken."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from treadle.engines.batches import write_halved
from treadle.engines.dynamodb.audit import event_parts
from treadle.engines.dynamodb.caller_items import CallerItems, first_of
from treadle.engines.dynamodb.client import MAX_ITEMS, MAX_TRIES, SHORT_RETRY, Client
from treadle.engines.dynamodb.connection import ConditionFailed, Throttled
from treadle.engines.dynamodb.items import Item, ItemKey, id_key, pointer, target_of
from treadle.engines.dynamodb.pieces import LARGE_FIELDS, job_pieces
from treadle.engines.dynamodb.pools import Pools
from treadle.engines.dynamodb.queries import Reader
from treadle.engines.dynamodb.ranges import Ranges
from treadle.engines.dynamodb.rows import attributes_of
from treadle.engines.dynamodb.writes import ABSENT, Part, TableInfo, list_parts, put, take_key
from treadle.engines.scripts import Items, ItemScript
from treadle.engines.values import Receipt
from treadle.model import Event, EventKind, Job

JOBS_PER_TRANSACTION = 25
MAX_PAYLOAD_CHARS = 1_000_000  # of all jobs in one transaction; DynamoDB takes 4 MB in all


class NotTogether(Exception):
    """These jobs cannot be stored in one transaction."""


class EnqueueWriter:
    """Stores jobs in one table; `expect` notes when a job will expire."""

    def __init__(
        self,
        client: Client,
        table: TableInfo,
        reader: Reader,
        ranges: Ranges,
        pools: Pools,
        expect: Callable[[datetime], None],
    ) -> None:
        self._client = client
        self._table = table
        self._reader = reader
        self._ranges = ranges
        self._pools = pools
        self._expect = expect

    def enqueue(self, jobs: Sequence[Job], now: datetime) -> list[Receipt]:
        """Store these jobs; a receipt for each, in order. Of two jobs with one id the second finds the first."""
        new: dict[str, Job] = {}
        for job in jobs:
            new.setdefault(job.id, job.stored_at(now))
        stored = self._store(list(new.values()), now)
        receipts: list[Receipt] = []
        for job in jobs:
            receipts.append(stored[job.id])
            stored[job.id] = stored[job.id]._replace(created=False)
        return receipts

    def _store(self, jobs: Sequence[Job], now: datetime) -> dict[str, Receipt]:
        """A receipt for each of these jobs, by id."""
        plain = [job for job in jobs if job.key is None]
        groups = [plain[start : start + JOBS_PER_TRANSACTION] for start in range(0, len(plain), JOBS_PER_TRANSACTION)]
        receipts: dict[str, Receipt] = {}
        for group, some in zip(groups, self._pools.each(lambda group: self._receipts(group, now), groups), strict=True):
            receipts.update({job.id: receipt for job, receipt in zip(group, some, strict=True)})
        for job in jobs:
            if job.key is not None:  # one after the other: of two with one key the first is first
                [receipts[job.id]] = self._receipts([job], now)
        return receipts

    def _receipts(self, jobs: Sequence[Job], now: datetime) -> list[Receipt]:
        """Store these in one transaction; if that is refused, in halves, so that a bad value falls alone."""

        def write(some: Sequence[Job]) -> list[Receipt]:
            return [self._alone(some[0], now)] if len(some) == 1 else self._together(some, now)

        return write_halved(jobs, write, _refused, (ValueError, NotTogether))

    def _together(self, jobs: Sequence[Job], now: datetime) -> list[Receipt]:
        try:
            parts = [part for job in jobs for part in self.parts(job, now)]
            if len(parts) > MAX_ITEMS or sum(len(job.payload_json) for job in jobs) > MAX_PAYLOAD_CHARS:
                raise NotTogether
            self._client.write(parts, retry_for=SHORT_RETRY)
        except (ConditionFailed, Throttled) as error:
            raise NotTogether from error
        return [Receipt(job, created=True) for job in jobs]

    def _alone(self, job: Job, now: datetime) -> Receipt:
        dead: str | None = None
        for _ in range(MAX_TRIES):
            try:
                self._client.write(self.parts(job, now, dead))
                return Receipt(job, created=True)
            except ConditionFailed as failed:
                first, dead = self.first(job, failed.which)
            if first is not None:
                return Receipt(first, created=False)
        raise Throttled(f"{self._client.where}: job {job.id} or its key keeps changing; repeating is safe")

    def first(self, job: Job, which: Mapping[int, Item | None], begin: int = 0) -> tuple[Job | None, str | None]:
        """The job that has the id or the key of this one, whose parts, beginning at `begin`, were refused.

        And where the key points: if the job there is gone, the key is not trusted. ValueError if a job of another task
        has a key that does not name its task.
        """
        if begin + ID_PART in which:
            return self._reader.get([job.id])[0], None
        record = which.get(begin + KEY_PART)
        if not record:
            return None, None
        first = self._reader.target(record)
        if first is not None and (problem := not_ours(job, first)):
            raise ValueError(problem)
        return first, target_of(record)

    def parts(self, job: Job, now: datetime, dead: str | None = None) -> list[Part]:
        """What a new job writes, in a slot that everybody knows."""
        if job.expires_at is not None:
            self._expect(job.expires_at)
        return job_parts(self._table, job, self._ranges.due_key(self._table, job), now, dead)

    # ------------------------------------------------------------------ in the caller's transaction

    def script(self, jobs: Sequence[Job], now: datetime) -> ItemScript[list[Receipt]]:
        receipts: list[Receipt] = []
        for job in jobs:
            listed = CallerItems((yield Items()))
            new = job.stored_at(now)
            first, dead = first_of(new, listed, self._reader, now)
            if first is not None:
                problem = not_ours(new, first)
                receipts.append(_refused(new, ValueError(problem)) if problem else Receipt(first, created=False))
                continue
            try:
                parts = self.parts(new, now, dead)
            except ValueError as error:
                receipts.append(_refused(job, error))
                continue
            yield listed.adding(parts)
            receipts.append(Receipt(new, created=True))
        return receipts


def not_ours(job: Job, first: Job) -> str:
    """What is wrong if a job of another task has the key; "" if it is of the same task."""
    if first.task == job.task or first.id == job.id:
        return ""
    return (
        f"key: {job.key!r} is the record of a job of task {first.task!r}; "
        "of keys that begin with scheduled-job# and end with a date each task needs its own"
    )


def _refused(job: Job, error: Exception) -> Receipt:
    return Receipt(job, created=False, refused=str(error))


# ------------------------------------------------------------------------------------ what is written

ID_PART, KEY_PART = 0, 2  # the parts of a new job that may be refused


def job_parts(table: TableInfo, job: Job, key: ItemKey, now: datetime, dead: str | None = None) -> list[Part]:
    """A new job: the id item that proves it, the due item, and what goes with them."""
    parts = [
        put(table, id_key(job.id, table.spread), pointer(key), [ABSENT]),
        put(table, key, attributes_of(job)),
    ]
    if job.key is not None:
        parts.append(take_key(table, job, now, dead))
    parts += list_parts(table, None, job)
    if table.audit_all:
        parts += event_parts(table, Event(job.id, 0, now, EventKind.ENQUEUED, "enqueue", "", job.tenant))
    return [*parts, *(put(table, piece_key, piece) for piece_key, piece in job_pieces(job, LARGE_FIELDS).items())]
