"""Jobs that come from another table with their past: many in one transaction, or each alone where one is refused."""

from collections.abc import Callable, Sequence
from datetime import datetime

from treadle.engines.dynamodb.audit import event_parts
from treadle.engines.dynamodb.client import MAX_ITEMS, MAX_TRIES, SHORT_RETRY, Client
from treadle.engines.dynamodb.connection import ConditionFailed, Throttled
from treadle.engines.dynamodb.items import holder_of, id_key, pointer, target_of
from treadle.engines.dynamodb.pieces import LARGE_FIELDS, job_pieces
from treadle.engines.dynamodb.pools import Pools
from treadle.engines.dynamodb.queries import Reader
from treadle.engines.dynamodb.ranges import Ranges
from treadle.engines.dynamodb.rows import attributes_of
from treadle.engines.dynamodb.settle import CostDays, cost_parts
from treadle.engines.dynamodb.writes import ABSENT, Part, TableInfo, list_parts, put, take_key
from treadle.engines.values import APPLIED, Ruling, Verdict
from treadle.model import Change

JOBS_PER_TRANSACTION = 15
MAX_TEXT_CHARS = 1_000_000  # of all payloads and results in one transaction; DynamoDB takes 4 MB in all
ID_PART, KEY_PART = 0, 1  # the parts that may be refused; without a key the event comes second


class Adopter:
    """Stores adopted jobs in one table; `expect` notes when a lease ends or a job expires."""

    def __init__(
        self,
        client: Client,
        table: TableInfo,
        reader: Reader,
        ranges: Ranges,
        pools: Pools,
        cost_days: CostDays,
        expect: Callable[[datetime], None],
    ) -> None:
        self._client = client
        self._table = table
        self._reader = reader
        self._ranges = ranges
        self._pools = pools
        self._cost_days = cost_days
        self._expect = expect

    def adopt(self, changes: Sequence[Change], now: datetime) -> list[Verdict]:
        """Write these jobs, several transactions at once; a verdict each, in order."""
        firsts: dict[object, Change] = {}  # of those with one key
        for change in changes:
            job = change.after
            firsts.setdefault((job.tenant, job.task, job.key) if change.takes_key else change.id, change)
        size, some = JOBS_PER_TRANSACTION, list(firsts.values())
        groups = [some[start : start + size] for start in range(0, len(some), size)]
        found: dict[str, Verdict] = {}
        for group, verdicts in zip(groups, self._pools.each(lambda each: self._group(each, now), groups), strict=True):
            found.update(zip((change.id for change in group), verdicts, strict=True))
        for change in changes:
            if change.id not in found:
                found[change.id] = self._alone(change, now)
        return [found[change.id] for change in changes]

    def _group(self, changes: Sequence[Change], now: datetime) -> list[Verdict]:
        try:
            parts = [part for change in changes for part in self._parts(change, now)]
            size = sum(len(change.after.payload_json) + len(change.after.result_json or "") for change in changes)
            if len(changes) > 1 and len(parts) <= MAX_ITEMS and size <= MAX_TEXT_CHARS:
                self._client.write(parts, retry_for=SHORT_RETRY)
                return [APPLIED] * len(changes)
        except (ConditionFailed, Throttled, ValueError):
            pass
        return [self._alone(change, now) for change in changes]

    def _alone(self, change: Change, now: datetime) -> Verdict:
        dead: str | None = None
        for _ in range(MAX_TRIES):
            try:
                self._client.write(self._parts(change, now, dead), retry_for=SHORT_RETRY)
                return APPLIED
            except ConditionFailed as failed:
                if ID_PART in failed.which or not change.takes_key or KEY_PART not in failed.which:
                    return Verdict(Ruling.LOST, self._reader.get([change.id])[0])
                record = failed.which[KEY_PART]
                holder = holder_of(record)
                if record and self._reader.target(record) is not None:
                    return Verdict(Ruling.REFUSED, holder=holder, why=f"key {change.after.key!r} is taken")
                dead = target_of(record) if record else None
            except Throttled:
                break
            except ValueError as error:
                return Verdict(Ruling.REFUSED, why=str(error))
        return Verdict(Ruling.BUSY)

    def _parts(self, change: Change, now: datetime, dead: str | None = None) -> list[Part]:
        """The id item and the key come first: they carry the conditions, beside the event."""
        table, job = self._table, change.after
        home = id_key(job.id, table.spread)
        for moment in (job.expires_at, job.lease_until):
            if moment is not None and not job.state.final:
                self._expect(moment)
        self._cost_days.note(job)
        due = None if job.state.final else self._ranges.due_key(table, job)
        parts = [put(table, home, attributes_of(job) if due is None else pointer(due), [ABSENT])]
        if change.takes_key:
            parts.append(take_key(table, job, now, dead))
        parts += event_parts(table, change.event, [ABSENT])
        if due is not None:
            parts.append(put(table, due, attributes_of(job)))
        parts += list_parts(table, None, job)
        parts += cost_parts(table, None, job)
        return [*parts, *(put(table, key, piece) for key, piece in job_pieces(job, LARGE_FIELDS).items())]
