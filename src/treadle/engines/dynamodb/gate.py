"""The gate: which pauses hold, and how a claim is kept from committing behind one.

The version of the gate rises with every pause that is saved or dropped, in the same transaction. It lies in a
partition that every claim reads anyway, so reading it costs nothing. A claim that checks the gate is a transaction: it
commits only if one of the copies of the version is not newer than the version it has read. A pause is saved first, then
the copies are raised one by one. So when `save` returns, a claim that has read the gate before cannot commit. No claim
waits. A busy copy does not hold up others either: a claim checks another one, and a pause needs each for a moment.

A table that is never paused does not pay for that. It has no version, and claims on it are plain updates, sent within
GATE_LIFETIME seconds of the read. The first pause of a table waits until those are over: it alone relies on clocks.
"""

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import NamedTuple

from treadle.engines.dynamodb.client import MAX_SORT_KEY, Client
from treadle.engines.dynamodb.connection import CONNECT_TIMEOUT, READ_TIMEOUT, ConditionFailed
from treadle.engines.dynamodb.items import GATE, ItemKey, plain, value_of
from treadle.engines.dynamodb.pools import Each
from treadle.engines.dynamodb.ranges import Ranges
from treadle.engines.dynamodb.rows import record_from
from treadle.engines.dynamodb.writes import ABSENT, Part, TableInfo, check, update
from treadle.model.records import Gate, Pause

GATE_COPIES = 8
GATE_LIFETIME = 2.0  # seconds for which a claim may trust that a table has no gate
MAX_REQUEST_TIME = CONNECT_TIMEOUT + READ_TIMEOUT  # seconds that a request may be under way


class GateReading(NamedTuple):
    """The gate as it was read: its version (None: nothing was ever paused), what it blocks, and when it was read."""

    version: int | None
    gate: Gate
    at: float

    @property
    def armed(self) -> bool:
        return self.version is not None

    @property
    def left(self) -> float:
        """Seconds for which a claim may still trust that there is no gate."""
        return self.at + GATE_LIFETIME - time.monotonic()


class GateRaise(NamedTuple):
    """The part that raises the version, the version it becomes, and whether every claim is known to check it."""

    part: Part
    version: int
    ready: bool


class RunningClaims:
    """The claims of this process that are not over yet."""

    def __init__(self) -> None:
        self._claims: set[object] = set()
        self._changed = threading.Condition()

    @contextmanager
    def claim(self) -> Iterator[None]:
        one = object()
        with self._changed:
            self._claims.add(one)
        try:
            yield
        finally:
            with self._changed:
                self._claims.discard(one)
                self._changed.notify_all()

    def wait(self) -> None:
        """Return when the claims that run now are over."""
        with self._changed:
            begun = set(self._claims)
            self._changed.wait_for(lambda: not begun & self._claims, MAX_REQUEST_TIME)


RUNNING_CLAIMS = RunningClaims()


class PauseGate:
    """The gate of one table.

    In `real_time` the first pause of a table waits as long as a claim of any process may take. Under a test's clock it
    waits for the claims of this process, and not for the time.
    """

    def __init__(self, client: Client, table: TableInfo, ranges: Ranges, each: Each, *, real_time: bool) -> None:
        self._client = client
        self._table = table
        self._ranges = ranges
        self._each = each
        self._real_time = real_time
        self._known: tuple[int, Sequence[Pause]] = (0, ())  # the pauses as they were at this version

    # ------------------------------------------------------------------------------------- for claims

    def seen(self, now: datetime) -> GateReading:
        """The gate as it was when the slots were read last."""
        version, asked = self._ranges.gate
        return self._reading(version, asked, now)

    def read(self, now: datetime) -> GateReading:
        """The gate as it is now."""
        asked = time.monotonic()
        item = self._client.get([GATE]).get(GATE)
        return self._reading(None if item is None else int(item["version"]["N"]), asked, now)

    def _reading(self, version: int | None, asked: float, now: datetime) -> GateReading:
        if version is None:
            self._known = (0, ())
            return GateReading(None, Gate(), asked)
        known, pauses = self._known
        if known != version:  # read after the version, so every pause that raised it is among them
            pages = self._client.pages("pauses", high=MAX_SORT_KEY, limit=1000)
            pauses = [record_from(Pause, item) for page in pages for item in page]
            self._known = (version, pauses)
        return GateReading(version, Gate.at(pauses, now), asked)

    def check(self, reading: GateReading) -> Part:
        """Holds as long as no pause was saved or dropped since this reading."""
        older = [("version", "<=", value_of(reading.version or 0))]
        copy = _copy(random.randrange(GATE_COPIES))  # noqa: S311 - spreads the claims
        return check(self._table, copy, [ABSENT], older)

    # ------------------------------------------------------------------------------------- for pauses

    def raised(self) -> GateRaise:
        """What raises the version by one, if it is still the one read now."""
        at = plain(self._client.get([GATE]).get(GATE, {}))
        version, ready = int(at.get("version", 0)), bool(at.get("ready", False))
        sets = {"version": value_of(version + 1), "ready": value_of(ready)}
        same = ("version", "=", value_of(version)) if at else ABSENT
        return GateRaise(update(self._table, GATE, sets, (), [same]), version + 1, ready)

    def close(self, raised: GateRaise) -> None:
        """Return when no claim can commit that has not seen this version."""
        self._each(lambda number: self._raise(number, raised.version), range(GATE_COPIES))
        if not raised.ready:  # claims may be under way that do not know of a gate
            if self._real_time:
                time.sleep(GATE_LIFETIME + MAX_REQUEST_TIME)
            else:
                RUNNING_CLAIMS.wait()
            self._client.write([update(self._table, GATE, {"ready": value_of(True)})])

    def _raise(self, number: int, version: int) -> None:
        raised = {"version": value_of(version)}
        with suppress(ConditionFailed):  # it is newer already
            older = [("version", "<", raised["version"])]
            self._client.write([update(self._table, _copy(number), raised, (), [ABSENT], older)])


def _copy(number: int) -> ItemKey:
    return ItemKey(f"gate#{number}", "gate")
