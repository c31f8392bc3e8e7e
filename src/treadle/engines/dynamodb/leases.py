"""Renewing leases: a conditional update each, that no late answer puts back."""

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import chain, islice

from treadle.engines.dynamodb.client import BRIEFLY, Client, Crowded, Failed, pauses
from treadle.engines.dynamodb.items import Item, Place, Value, id_of, lines, place_of, plain, text_of, time_of, value_of
from treadle.engines.dynamodb.pools import Each, Memory
from treadle.engines.dynamodb.queries import Reader
from treadle.engines.dynamodb.ranges import Slots
from treadle.engines.dynamodb.rows import is_ours
from treadle.engines.dynamodb.writes import Part, Table, Test, state_is, update
from treadle.engines.rows import renewal_of
from treadle.engines.values import Lease, Renewal, RenewalResult
from treadle.errors import EngineUnavailable
from treadle.model import Job, State


class Renewing:
    """Renews leases in one table."""

    def __init__(self, client: Client, table: Table, reader: Reader, places: Memory[Place]) -> None:
        self._client = client
        self._table = table
        self._reader = reader
        self._places = places

    def renew(self, held: Lease, until: Callable[[], datetime], deadline: float, *, forward: bool) -> RenewalResult:
        """Renew one lease. Each try counts from its own time; with `forward` what arrives late puts nothing back."""
        trouble: EngineUnavailable | None = None
        for pause in pauses(deadline - time.monotonic()):
            try:
                return self._try(held, until(), forward=forward)
            except EngineUnavailable as error:
                trouble = error
                time.sleep(pause)
        if trouble is not None and not isinstance(trouble, Crowded):
            raise trouble
        return RenewalResult(held.job_id, Renewal.MISSED)

    def _try(self, held: Lease, until: datetime, *, forward: bool) -> RenewalResult:
        _, token, started_at, progress, cost = renewal_of(held, lambda moment: moment)
        told = {"started_at": started_at, "progress": progress, "cost_micros": cost, "lock_expires_at": until}
        sets: dict[str, Value] = {name: value_of(value) for name, value in told.items() if value is not None}
        place = self._places.get(held.job_id)
        for last in (False, True):
            place = self._reader.place(held.job_id) if last or place is None else place
            item = self._renewed(place, token, sets, forward=forward) if place is not None else None
            if item is not None:
                return RenewalResult(held.job_id, Renewal.RENEWED, bool(item.get("cancel_requested")))
        self._places.drop(held.job_id)
        return RenewalResult(held.job_id, Renewal.LOST)

    def _renewed(self, place: Place, token: str, sets: Mapping[str, Value], *, forward: bool) -> Item | None:
        """The item as the renewal leaves it; None if it is not there any more, or not ours."""
        said = renewal(self._table, place, token, sets, forward=forward)["Update"]
        said |= {"ReturnValues": "ALL_NEW", "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        try:
            return self._client.call("UpdateItem", said, patience=0)["Attributes"]  # type: ignore[no-any-return]
        except Failed as failed:
            item = failed.which[0] or {}
        if item.get("lease_token") != {"S": token} or item["status"]["S"] != State.RUNNING:
            return None
        # A later renewal was here first, and its end stands; what else there is to tell still counts.
        rest = {name: value for name, value in sets.items() if name != "lock_expires_at"}
        return self._renewed(place, token, rest, forward=forward) if rest and rest != sets else item


PAGE = 200
DEEP = 5  # pages beyond, a look
QUIET = 2  # pages without a running job after which a walk from the head ends
SELDOM = timedelta(seconds=2)  # between two looks when nothing is known to run out earlier


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
        found = self._each(lambda pk: self._patiently(pk, now), ranges)
        if ranges and all(running is None for running in found):
            raise Crowded("no range can be read just now; repeating is safe")
        for running in found:
            for item in running or ():
                until = plain(item).get("lock_expires_at", "")
                if until <= limit:
                    yield item
                else:
                    self.expect((time_of(until) or now) + self._skew)

    def _patiently(self, pk: str, now: datetime) -> list[Item] | None:
        """What runs in a range; None if it is too crowded to look, which must not keep us from the others."""
        try:
            return list(self._running(pk, now))
        except Crowded:
            return None

    def _running(self, pk: str, now: datetime) -> Iterator[Item]:
        high, quiet, last = f"scheduled#{text_of(now)}#~", 0, ""
        for page in self._client.pages(pk, low="scheduled#", high=high, limit=PAGE, patience=BRIEFLY):
            running = [item for item in page if _runs(item)]
            yield from running
            quiet = 0 if running else quiet + 1
            last = page[-1]["SK"]["S"] if page else last
            if quiet >= QUIET:
                break
        else:
            return
        deep = self._client.pages(pk, low=max(last, self._deep.get(pk, "")), high=high, limit=PAGE, patience=BRIEFLY)
        pages = list(islice(deep, DEEP))
        beyond = [item for page in pages for item in page if item["SK"]["S"] > last]
        yield from filter(_runs, beyond)
        self._deep[pk] = beyond[-1]["SK"]["S"] if beyond and len(pages) == DEEP else ""  # from the start again


def _runs(item: Item) -> bool:
    return item.get("status", {}).get("S") == State.RUNNING and is_ours(item)


class Expiry:
    """Finds pending jobs whose time to start is over."""

    def __init__(self, client: Client, reader: Reader, table: Table, each: Each) -> None:
        self._client = client
        self._reader = reader
        self._table = table
        self._each = each

    def past(self, limit: int, now: datetime) -> Iterator[Job]:
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


def renewal(table: Table, place: Place, token: str, sets: Mapping[str, Value], *, forward: bool) -> Part:
    """A lease, renewed by its holder; `forward`: not to an earlier end than it has."""
    tests: list[Test] = [state_is(State.RUNNING), ("lease_token", "=", {"S": token})]
    if forward and "lock_expires_at" in sets:
        tests.append(("lock_expires_at", "<=", sets["lock_expires_at"]))
    return update(table, place, sets, (), tests)
