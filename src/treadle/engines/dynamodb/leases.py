"""Leases: renewed by their holders, and found when they are past; with them, pending jobs that have expired."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain, islice

from treadle.engines.dynamodb.client import SHORT_RETRY, Client, retry_delays
from treadle.engines.dynamodb.connection import ConditionFailed, Throttled
from treadle.engines.dynamodb.cursors import FIRST_DUE
from treadle.engines.dynamodb.items import (
    AFTER_MEMOS,
    MEMO,
    Item,
    ItemKey,
    Value,
    beside,
    id_of,
    key_of,
    list_partitions,
    moment_of,
    plain,
    text_of,
    time_of,
    value_of,
)
from treadle.engines.dynamodb.pools import Each, Memory, Pools
from treadle.engines.dynamodb.queries import Reader
from treadle.engines.dynamodb.ranges import Ranges
from treadle.engines.dynamodb.rows import is_ours
from treadle.engines.dynamodb.writes import ABSENT, Part, TableInfo, Test, put, state_is, update
from treadle.engines.rows import renewal_of
from treadle.engines.values import Lease, Renewal, RenewalResult
from treadle.errors import EngineUnavailable
from treadle.model import Job, State
from treadle.model.memo import Memo, MemoState

LEASE_PAGE = 200
DEEP_PAGES = 5  # that one scan walks beyond the head of a range
QUIET_PAGES = 2  # without a running job, after which the head of a range is over
SCAN_INTERVAL = timedelta(seconds=2)  # between two scans, when no lease is known to end earlier


class Leases:
    """The leases of one table.

    In `real_time` a renewal never shortens a lease, and a scan waits until something can have run out. A test's clock
    goes back and jumps, so under one neither holds.
    """

    def __init__(
        self,
        client: Client,
        table: TableInfo,
        reader: Reader,
        ranges: Ranges,
        pools: Pools,
        last_keys: Memory[ItemKey],
        skew: float,
        *,
        real_time: bool,
    ) -> None:
        self._client = client
        self._table = table
        self._reader = reader
        self._pools = pools
        self._last_keys = last_keys
        self._real_time = real_time
        self._past_leases = LeaseScan(client, ranges, skew, pools.each)
        self._expired_jobs = ExpiryScan(client, reader, table, pools.each)

    # --------------------------------------------------------------------------------------- past ones

    def expect(self, moment: datetime) -> None:
        """A lease ends, or a job expires, at this time."""
        self._past_leases.expect(moment)

    def expired(self, limit: int, now: datetime) -> list[Job]:
        if self._real_time and not self._past_leases.due(now):
            return []
        past = list(islice(self._past_leases.past(now), limit))
        for item in past:
            self._last_keys.put(id_of(item), key_of(item))
        jobs = self._reader.jobs(past)
        jobs += islice(self._expired_jobs.past(limit, now), limit - len(jobs))
        if jobs:
            self.expect(now)
        return jobs

    # ---------------------------------------------------------------------------------------- renewals

    def extend(self, leases: Sequence[Lease], until: Callable[[], datetime], *, forward: bool) -> list[RenewalResult]:
        """Renew these, several at once; `until` gives each try its new end. With `forward` the end never moves back."""
        deadline = time.monotonic() + SHORT_RETRY  # for all of them: none waits for many
        forward = forward and self._real_time
        renew = self._renew
        return self._pools.each(lambda lease: renew(lease, until, deadline, forward=forward), leases, pool="renewals")

    def cancel_requests(self, job_ids: Sequence[str]) -> set[str]:
        """Which of these running jobs somebody has asked to stop: one read of the items, where we know their places."""
        keys = [key for id_ in job_ids if (key := self._last_keys.get(id_)) is not None]
        items = list(self._client.get(keys).values()) if keys else []
        found = {id_of(item) for item in items}
        items += self._reader.items([id_ for id_ in job_ids if id_ not in found])
        return {id_of(item) for item in items if item.get("cancel_requested") and _runs(item)}

    def _renew(self, lease: Lease, until: Callable[[], datetime], deadline: float, *, forward: bool) -> RenewalResult:
        trouble: EngineUnavailable | None = None
        for delay in retry_delays(deadline - time.monotonic()):
            try:
                return self._try(lease, until(), forward=forward)
            except EngineUnavailable as error:
                trouble = error
                time.sleep(delay)
        if trouble is not None and not isinstance(trouble, Throttled):
            raise trouble
        return RenewalResult(lease.job_id, Renewal.MISSED)

    def _try(self, lease: Lease, until: datetime, *, forward: bool) -> RenewalResult:
        _, token, started_at, progress, cost = renewal_of(lease, lambda moment: moment)
        memos = [memo_part(self._table, lease.job_id, memo) for memo in lease.memos]
        fields = {"started_at": started_at, "progress": progress, "cost_micros": cost, "lock_expires_at": until}
        sets: dict[str, Value] = {name: value_of(value) for name, value in fields.items() if value is not None}
        key = self._last_keys.get(lease.job_id)
        for last in (False, True):
            key = self._reader.due_key(lease.job_id) if last or key is None else key
            item = self._renewed(key, token, sets, memos, forward=forward) if key is not None else None
            if item is not None:
                return RenewalResult(lease.job_id, Renewal.RENEWED, bool(item.get("cancel_requested")))
        self._last_keys.drop(lease.job_id)
        return RenewalResult(lease.job_id, Renewal.LOST)

    def memos(self, job_id: str) -> list[Memo]:
        """What this job remembers, by name."""
        pages = self._client.pages(beside(job_id), low=MEMO, high=AFTER_MEMOS)
        return [memo_of(item) for page in pages for item in page]

    def _renewed(
        self, key: ItemKey, token: str, sets: Mapping[str, Value], memos: Sequence[Part] = (), *, forward: bool
    ) -> Item | None:
        """The item as the renewal leaves it; None if it is gone, or another's."""
        if memos:
            return self._remembered(key, token, sets, memos)
        body = renewal_part(self._table, key, token, sets, forward=forward)["Update"]
        body |= {"ReturnValues": "ALL_NEW", "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        try:
            return self._client.call("UpdateItem", body, retry_for=0)["Attributes"]  # type: ignore[no-any-return]
        except ConditionFailed as failed:
            item = failed.which[0] or {}
        if item.get("lease_token") != {"S": token} or item["status"]["S"] != State.RUNNING:
            return None
        # A later renewal was first, and its end stands; what else the attempt reports is still written.
        rest = {name: value for name, value in sets.items() if name != "lock_expires_at"}
        return self._renewed(key, token, rest, forward=forward) if rest and rest != sets else item

    def _remembered(self, key: ItemKey, token: str, sets: Mapping[str, Value], memos: Sequence[Part]) -> Item | None:
        """The item after a renewal that comes with memos, in one transaction; None if it is gone, or another's.

        A memo that is done stays as it is, and the others are written.
        """
        left = list(memos)
        while True:
            renewal = renewal_part(self._table, key, token, sets, forward=False)
            try:
                self._client.write([renewal, *left], retry_for=0, once=True)
                return self._client.get([key]).get(key, {})
            except ConditionFailed as failed:
                if 0 in failed.which:
                    return None
                left = [memo for number, memo in enumerate(left, 1) if number not in failed.which]


def memo_part(table: TableInfo, job_id: str, memo: Memo) -> Part:
    """A memo, written unless the one that is there is done."""
    fields = {"kind": memo.kind, "state": memo.state.value, "attempt": memo.attempt}
    times = {"began_at": memo.began_at, "at": memo.at}
    value = {} if memo.value_json is None else {"value": memo.value_json}
    item = {name: value_of(what) for name, what in {**fields, **times, **value}.items()}
    unfinished: list[list[Test]] = [
        [("state", "=", {"S": state})] for state in MemoState if state is not MemoState.DONE
    ]
    return put(table, ItemKey(beside(job_id), f"{MEMO}{memo.name}"), item, [ABSENT], *unfinished)


def memo_of(item: Item) -> Memo:
    at = plain(item)
    name, state = at["SK"].removeprefix(MEMO), MemoState(at["state"])
    return Memo(
        name, at["kind"], state, int(at["attempt"]), moment_of(at["began_at"]), moment_of(at["at"]), at.get("value")
    )


def renewal_part(table: TableInfo, key: ItemKey, token: str, sets: Mapping[str, Value], *, forward: bool) -> Part:
    """A lease, renewed by its holder; with `forward`, not to an earlier end than it has."""
    tests: list[Test] = [state_is(State.RUNNING), ("lease_token", "=", {"S": token})]
    if forward and "lock_expires_at" in sets:
        tests.append(("lock_expires_at", "<=", sets["lock_expires_at"]))
    return update(table, key, sets, (), tests)


class LeaseScan:
    """Finds running jobs whose lease is past.

    Jobs are claimed from the head of a range, so running jobs are near the head: a walk from there ends after two pages
    without one. Each scan also walks a few pages beyond, and so passes through the rest of the range in time. Between
    scans it is known when the earliest lease ends, and there is nothing to find before.
    """

    def __init__(self, client: Client, ranges: Ranges, skew: float, each: Each) -> None:
        self._client = client
        self._ranges = ranges
        self._skew = timedelta(seconds=skew)
        self._each = each
        self._deep: dict[str, str] = {}  # by partition: how far the walk beyond the head has come
        self._last: datetime | None = None
        self._next: datetime | None = None

    def expect(self, moment: datetime) -> None:
        """Scan again at this time, if not earlier."""
        if self._next is not None:
            self._next = min(self._next, moment)

    def due(self, now: datetime) -> bool:
        return self._next is None or self._last is None or now >= self._next or now < self._last

    def past(self, now: datetime) -> Iterator[Item]:
        """Running jobs whose lease is past; the skew is for clocks that differ."""
        self._last, self._next = now, now + SCAN_INTERVAL
        limit = text_of(now - self._skew)
        ranges = [range_ for range_ in self._ranges.all() if not range_.slot.shared]  # where nothing runs
        partitions = [range_.slot.partition(shard) for range_ in ranges for shard in range(range_.shards)]
        found = self._each(lambda pk: self._running_in(pk, now), partitions)
        if partitions and all(running is None for running in found):
            raise Throttled("no range can be read just now; repeating is safe")
        for running in found:
            for item in running or ():
                until = plain(item).get("lock_expires_at", "")
                if until <= limit:
                    yield item
                else:
                    self.expect((time_of(until) or now) + self._skew)

    def _running_in(self, pk: str, now: datetime) -> list[Item] | None:
        """What runs in a partition; None if it is throttled, which must not keep us from the others."""
        try:
            return list(self._running(pk, now))
        except Throttled:
            return None

    def _running(self, pk: str, now: datetime) -> Iterator[Item]:
        high, quiet, last = f"scheduled#{text_of(now)}#~", 0, ""
        for page in self._pages(pk, FIRST_DUE, high):
            running = [item for item in page if _runs(item)]
            yield from running
            quiet = 0 if running else quiet + 1
            last = page[-1]["SK"]["S"] if page else last
            if quiet >= QUIET_PAGES:
                break
        else:
            return
        pages = list(islice(self._pages(pk, max(last, self._deep.get(pk, "")), high), DEEP_PAGES))
        beyond = [item for page in pages for item in page if item["SK"]["S"] > last]
        yield from filter(_runs, beyond)
        self._deep[pk] = beyond[-1]["SK"]["S"] if beyond and len(pages) == DEEP_PAGES else ""  # from the start again

    def _pages(self, pk: str, low: str, high: str) -> Iterator[list[Item]]:
        return self._client.pages(pk, low=low, high=high, limit=LEASE_PAGE, retry_for=SHORT_RETRY)


def _runs(item: Item) -> bool:
    return item.get("status", {}).get("S") == State.RUNNING and is_ours(item)


class ExpiryScan:
    """Finds pending jobs whose time to start is over."""

    def __init__(self, client: Client, reader: Reader, table: TableInfo, each: Each) -> None:
        self._client = client
        self._reader = reader
        self._table = table
        self._each = each

    def past(self, limit: int, now: datetime) -> Iterator[Job]:
        """Pending jobs whose expires_at is past; entries of jobs that have ended are deleted on the way."""
        high, size = f"{text_of(now)}#~", min(limit, LEASE_PAGE)
        lists = [f"expires#{number:02x}" for number in range(list_partitions(self._table.spread))]
        pages = [self._client.pages(pk, high=high, limit=size) for pk in lists]
        firsts = self._each(lambda rest: next(rest, []), pages)
        for page in chain(firsts, chain.from_iterable(pages)):
            jobs = {job.id: job for job in self._reader.get([id_of(entry) for entry in page]) if job}
            for entry in page:
                job = jobs.get(id_of(entry))
                if job is None or job.state.final:
                    self._client.delete([key_of(entry)])
                elif job.state is State.PENDING and job.expires_at is not None and job.expires_at <= now:
                    yield job
