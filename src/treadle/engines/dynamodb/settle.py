"""Writing changes: each behind its fence, in one transaction with its key, its event and the job that follows it."""

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from treadle.engines.dynamodb.audit import event_parts
from treadle.engines.dynamodb.caller_items import CallerItems, first_of
from treadle.engines.dynamodb.client import MAX_TRIES, SHORT_RETRY, Client
from treadle.engines.dynamodb.connection import ConditionFailed, Throttled
from treadle.engines.dynamodb.cursors import Cursors
from treadle.engines.dynamodb.enqueue import EnqueueWriter
from treadle.engines.dynamodb.items import (
    AFTER_MEMOS,
    MEMO,
    Item,
    ItemKey,
    beside,
    cost_key,
    day_of,
    holder_of,
    id_key,
    key_of,
    pointer,
    text_of,
    value_of,
)
from treadle.engines.dynamodb.pieces import job_pieces, large_texts
from treadle.engines.dynamodb.pools import Memory, Pools
from treadle.engines.dynamodb.queries import Reader
from treadle.engines.dynamodb.ranges import Ranges
from treadle.engines.dynamodb.rows import attributes_of
from treadle.engines.dynamodb.writes import (
    Part,
    TableInfo,
    Test,
    delete,
    free_key,
    list_parts,
    put,
    revision_is,
    state_is,
    take_key,
    update,
)
from treadle.engines.fence import fits, judge
from treadle.engines.scripts import Items, ItemScript
from treadle.engines.values import APPLIED, Ruling, Verdict
from treadle.errors import EngineError
from treadle.model import Change, Fence, Job, State, lifecycle
from treadle.model.change import Write

ENDS_PER_TRANSACTION = 10
MAX_RESULT_CHARS = 600  # of a job that ends together with others
PLACED_BY = ("due_at", "queue", "lane", "priority", "task_version")
COST_LIFETIME = 400 * 86_400  # seconds for which the cost of an ended job is kept


class Settler:
    """Writes changes into one table."""

    def __init__(
        self,
        client: Client,
        table: TableInfo,
        reader: Reader,
        ranges: Ranges,
        cursors: Cursors,
        pools: Pools,
        last_keys: Memory[ItemKey],
        enqueuer: EnqueueWriter,
        cost_days: "CostDays",
    ) -> None:
        self._client = client
        self._table = table
        self._reader = reader
        self._ranges = ranges
        self._cursors = cursors
        self._pools = pools
        self._last_keys = last_keys
        self._enqueuer = enqueuer
        self._cost_days = cost_days

    def settle_all(self, changes: Sequence[Change], now: datetime) -> list[Verdict]:
        """Write these changes, several at once; a verdict for each, in order."""
        free = [change for change in changes if not change.takes_key]
        deadline = time.monotonic() + SHORT_RETRY  # for all of them: behind a throttled partition each has one try
        found = dict.fromkeys(self._end_together([change for change in free if _is_plain_end(change)], now), APPLIED)
        rest = [change for change in free if change.before.id not in found]
        verdicts = self._pools.each(lambda change: self.settle(change, now, deadline), rest)
        found |= {change.before.id: verdict for change, verdict in zip(rest, verdicts, strict=True)}
        for change in changes:
            if change.takes_key:  # one after the other: of two that want one key the first gets it
                found[change.before.id] = self.settle(change, now, time.monotonic() + SHORT_RETRY)
        return [found[change.before.id] for change in changes]

    def _end_together(self, changes: Sequence[Change], now: datetime) -> list[str]:
        """Write these ends, several in a transaction; the ids of those that were written so."""
        size = ENDS_PER_TRANSACTION
        groups = [changes[start : start + size] for start in range(0, len(changes), size)]
        return [id_ for ids in self._pools.each(lambda group: self._end(group, now), groups) for id_ in ids]

    def _end(self, changes: Sequence[Change], now: datetime) -> list[str]:
        """Write these ends in one transaction; none if it is refused: then each has to be looked at alone."""
        ids = [change.before.id for change in changes]
        keys = [self._last_keys.get(id_) for id_ in ids]
        if len(changes) == 1 or None in keys:
            return []
        try:
            parts = [
                part for change, key in zip(changes, keys, strict=True) if key for part in self._parts(change, key, now)
            ]
            self._client.write(parts, retry_for=SHORT_RETRY, give_way=True)
        except (ConditionFailed, Throttled, ValueError):
            return []
        for id_ in ids:
            self._last_keys.drop(id_)
        return ids

    def settle(self, change: Change, now: datetime, deadline: float) -> Verdict:
        """Write one change, or say why not."""
        try:
            return self._settle(change, now, deadline)
        except Throttled:
            return Verdict(Ruling.BUSY)
        except ValueError as error:
            return Verdict(Ruling.REFUSED, why=str(error))

    def _settle(self, change: Change, now: datetime, deadline: float) -> Verdict:
        other: str | None = None  # the job that has its key
        id_ = change.before.id
        key = self._last_keys.get(id_) or self._compared_key(change)
        for _ in range(MAX_TRIES):
            if key is None or not _lease_is_past(change, now):
                return judge(change, self._reader.get([id_])[0])
            refused = self._write(change, key, now, other, deadline - time.monotonic())
            if refused is None:
                return Verdict(Ruling.APPLIED)
            if 0 not in refused:  # its key belongs to another job
                holder = next((holder_of(item) for item in refused.values() if item), None)
                if other is not None or (change.takes_key and not self._is_gone(holder)):
                    return Verdict(Ruling.REFUSED, holder=holder, why=f"key {change.after.key!r} is taken")
                other = holder or ""  # a record of another program need not say whose it is
                continue
            there = self._compared_key(change)
            if there == key:
                [current] = self._reader.get([id_])
                again = _asked_again(change, current)
                if again is None:
                    return judge(change, current)
                change = again
            key = there
        return Verdict(Ruling.BUSY)

    def _compared_key(self, change: Change) -> ItemKey | None:
        """The item that the change compares, as the table has it now."""
        if change.before.state.final and change.fence is Fence.REVISION:
            return id_key(change.before.id, self._table.spread)
        return self._reader.due_key(change.before.id, change.before.due_at)

    def _is_gone(self, holder: str | None) -> bool:
        return holder is not None and self._reader.get([holder]) == [None]

    def _write(
        self, change: Change, key: ItemKey, now: datetime, other: str | None, retry_for: float
    ) -> Mapping[int, Item | None] | None:
        """Write a change; None if that was done, else which parts were refused."""
        once = change.fence is not Fence.HOLDER  # the holder's repeat is known by its token
        parts = self._parts(change, key, now, other)
        follow = self._enqueuer.parts(change.follow.stored_at(now), now) if change.follow is not None else []
        try:
            self._client.write([*parts, *follow], retry_for=retry_for, once=once)
        except ConditionFailed as failed:
            if min(failed.which) < len(parts):
                return failed.which
            try:  # the job that was to follow is there already, or its key is taken
                self._client.write(parts, retry_for=retry_for, once=once)
            except ConditionFailed as failed_again:
                return failed_again.which
        if change.after.state is not State.RUNNING:
            self._last_keys.drop(change.before.id)
        if change.write is Write.DELETE:
            pages = self._client.pages(beside(change.before.id), low=MEMO, high=AFTER_MEMOS)
            self._client.delete([key_of(memo) for page in pages for memo in page])
        return None

    def _parts(self, change: Change, key: ItemKey, now: datetime, other: str | None = None) -> list[Part]:
        before, after = change.before, change.after
        stays = all(getattr(before, field) == getattr(after, field) for field in PLACED_BY)
        new = key
        if not after.state.final and (before.state.final or not stays):
            new = self._ranges.due_key(self._table, after)
        self._cursors.move_back(new)
        self._cost_days.note(after)
        return change_parts(self._table, change, key, new, now, other)

    def put_back(self, job: Job, now: datetime) -> None:
        """Give back a job that we have claimed and should not have, as its holder would."""
        release = lifecycle.settle(job, lifecycle.Released(), now)
        self.settle(release, now, time.monotonic() + SHORT_RETRY)

    # ------------------------------------------------------------------ in the caller's transaction

    def script(self, change: Change, now: datetime) -> ItemScript[Verdict]:
        """The items of a change. Its key is read, not remembered: nobody tries again if it is wrong."""
        key, id_ = self._compared_key(change), change.before.id
        listed = CallerItems((yield Items()))
        if listed.job(id_) is not None:
            raise EngineError(f"tx: job {id_} is new in this list: enqueue it as it should be, instead of changing it")
        if key is not None and listed.writes(key):
            raise EngineError(f"tx: job {id_} is settled in this list already")
        current = self._reader.at(id_, key)
        if current is None or key is None or not fits(change, current, now):
            return judge(change, current)
        try:
            parts = [*self._parts(change, key, now), *self._following(change, listed, now)]
        except ValueError as error:
            return Verdict(Ruling.REFUSED, why=str(error))
        yield listed.adding(parts)
        return Verdict(Ruling.APPLIED)

    def _following(self, change: Change, listed: CallerItems, now: datetime) -> list[Part]:
        """The job that is stored with the change, if its id and its key are free."""
        if change.follow is None:
            return []
        follow = change.follow.stored_at(now)
        first, dead = first_of(follow, listed, self._reader, now)
        return [] if first is not None else self._enqueuer.parts(follow, now, dead)


def _is_plain_end(change: Change) -> bool:
    """Whether a change is the end of a job by its holder, and few small items write it."""
    after = change.after
    small = len(after.result_json or "") <= MAX_RESULT_CHARS and after.error is None
    return change.fence is Fence.HOLDER and after.state.final and change.follow is None and small


def _lease_is_past(change: Change, now: datetime) -> bool:
    """Whether a lease that is to be taken away is past by the clock."""
    if change.fence is not Fence.RECOVERY:
        return True
    return change.before.lease_until is not None and change.before.lease_until <= now


def _asked_again(change: Change, current: Job | None) -> Change | None:
    """A cancel request for the job as it is now, whoever holds it; None if it is not a request, or too late."""
    if change.write is not Write.REQUEST_CANCEL or current is None or current.state is not State.RUNNING:
        return None
    return lifecycle.cancel(current, change.at, actor=change.actor, note=change.note)


# ------------------------------------------------------------------------------------ what is written


def fence(change: Change) -> list[Test]:
    """What the item must still be like: the whole fence, in one place.

    Without the token a zombie settles a job that was claimed again. Without the revision a retry buries a cancel
    request. Without the lease a recovery takes a job whose lease was renewed since it was read.
    """
    before = change.before
    if change.fence in (Fence.REVISION, Fence.RUNNING):
        return [state_is(before.state), revision_is(before.revision)]
    tests = [state_is(State.RUNNING), revision_is(before.revision)]
    tests.append(("lease_token", "=", {"S": before.lease_token or ""}))
    if change.fence is Fence.RECOVERY:
        tests.append(("lock_expires_at", "=", {"S": text_of(before.lease_until)}))
    return tests


def change_parts(
    table: TableInfo, change: Change, old: ItemKey, new: ItemKey, now: datetime, other: str | None = None
) -> list[Part]:
    """A change: `old` is where its item is, `new` where its due item will be (the same if it stays).

    `other` is another job that was found to have the key. A job that wants the key takes it only because that one is
    gone. A job that would free it leaves it alone; it cannot come to hold it meanwhile, because that raises its
    revision, which the fence compares.
    """
    before, after = change.before, change.after
    parts = _item_parts(table, change, old, new)
    if change.takes_key:
        parts.append(take_key(table, after, now, other))
    elif change.frees_key and other is None:
        parts.append(free_key(table, before))
    if change.audited(table.audit_all):
        parts += event_parts(table, change.event)
    left = None if change.write is Write.DELETE else after
    parts += list_parts(table, before, left)
    parts += cost_parts(table, before, left)
    return [*parts, *_piece_parts(table, before, after)]


def _item_parts(table: TableInfo, change: Change, old: ItemKey, new: ItemKey) -> list[Part]:
    """The due item and the id item; the first part carries the fence."""
    if change.write is Write.ADOPT:
        raise ValueError("a job that comes from another table is adopted by itself")
    after, tests = change.after, fence(change)
    home = id_key(after.id, table.spread)
    match change.write:
        case Write.FINISH:
            return [delete(table, old, tests), put(table, home, attributes_of(after))]
        case Write.REVIVE:
            return [put(table, home, pointer(new), tests), put(table, new, attributes_of(after))]
        case Write.REQUEST_CANCEL:
            sets = {"cancel_requested": value_of(True), "revision": value_of(after.revision)}
            return [update(table, old, sets, (), tests)]
        case Write.DELETE:
            due = [] if old == home else [delete(table, home)]
            return [delete(table, old, tests), *due]
        case Write.REQUEUE | Write.REPLACE if old == new:
            return [put(table, old, attributes_of(after), tests)]
        case Write.REQUEUE | Write.REPLACE:
            moved = put(table, new, attributes_of(after))
            return [delete(table, old, tests), moved, update(table, home, pointer(new))]


def _piece_parts(table: TableInfo, before: Job, after: Job) -> Iterator[Part]:
    """The pieces of large texts that have changed: the new ones are put, the old ones deleted."""
    was, now = large_texts(before), large_texts(after)
    changed = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    old, new = job_pieces(before, changed), job_pieces(after, changed)
    yield from (put(table, key, piece) for key, piece in new.items())
    yield from (delete(table, key) for key in old if key not in new)


def cost_parts(table: TableInfo, before: Job | None, after: Job | None) -> Iterator[Part]:
    """What an ended job has cost. A job that is retried has not ended: it counts when it ends again.

    Without an `after` the job is deleted, and what it has cost with it; without a `before` it is new.
    """
    if before is not None and before.state.final and before.cost_micros > 0:
        yield delete(table, cost_key(before, table.spread))
    if after is not None and after.state.final and after.cost_micros > 0 and after.finished_at is not None:
        fields = {
            "tenant": after.tenant,
            "task": after.task,
            "cost_micros": after.cost_micros,
            "ttl": int(after.finished_at.timestamp()) + COST_LIFETIME,
            "finished_at": after.finished_at,
        }
        yield put(table, cost_key(after, table.spread), {name: value_of(value) for name, value in fields.items()})


class CostDays:
    """The list of days on which jobs with a cost have ended."""

    def __init__(self, client: Client, table: TableInfo) -> None:
        self._client = client
        self._table = table
        self._written: set[str] = set()  # by this process

    def note(self, job: Job) -> None:
        """Write down that there are costs on this day, before the first of them is written."""
        day = day_of(job.finished_at)
        if job.state.final and job.cost_micros > 0 and job.finished_at is not None and day not in self._written:
            ttl = value_of(int(job.finished_at.timestamp()) + COST_LIFETIME)
            self._client.write([put(self._table, ItemKey("costs", day), {"ttl": ttl})])
            self._written.add(day)
