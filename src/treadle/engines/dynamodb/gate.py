"""The gate: which pauses hold, and how a claim is kept from committing behind one.

The version of the gate rises with every pause that is saved or dropped, in the same transaction. It lies where every
claim looks anyway, so reading it costs nothing. A claim that minds the gate is a transaction with a check that one of
the copies of the version is no newer than what it has read; a pause is saved, then the copies are raised one by one.
So when `save` returns, whatever was read before it can commit no more. No claim waits, and a busy copy holds up nobody:
a claim takes another, and a pause needs each only for a moment.

Who never pauses does not pay for that. A table without a version has never had a pause, and claims there are plain
updates, sent within GATE_READ seconds of the look. The first pause of a table waits until those are over: it alone
rests on clocks.
"""

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import NamedTuple

from treadle.engines.dynamodb.client import ALL, ANSWER, CONNECT, Client, Failed
from treadle.engines.dynamodb.items import GATE, Place, plain, value_of
from treadle.engines.dynamodb.pools import Each
from treadle.engines.dynamodb.ranges import Slots
from treadle.engines.dynamodb.rows import record_from
from treadle.engines.dynamodb.writes import ABSENT, Part, Table, check, update
from treadle.model.records import Gate, Pause

COPIES = 8
GATE_READ = 2.0  # seconds that it is believed that a table has no gate
LONGEST = CONNECT + ANSWER  # seconds that a request may be under way


class Reading(NamedTuple):
    """The gate as it was read: its version (None: nothing was ever paused), what is shut, and when it was asked for."""

    version: int | None
    gate: Gate
    at: float

    @property
    def armed(self) -> bool:
        return self.version is not None

    @property
    def left(self) -> float:
        """Seconds for which it may be believed that there is no gate."""
        return self.at + GATE_READ - time.monotonic()


class Raised(NamedTuple):
    """What raises the version, and to what; `ready`: everybody is known to mind it."""

    part: Part
    version: int
    ready: bool


class Underway:
    """The claims of this process that are not over yet. Under a clock for tests these are waited for, and no time."""

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
        """Return when those are over that are under way now."""
        with self._changed:
            begun = set(self._claims)
            self._changed.wait_for(lambda: not begun & self._claims, LONGEST)


UNDERWAY = Underway()


class Keeper:
    """The gate of one table. A `patient` one waits, when it is the first to pause, as long as a claim may take."""

    def __init__(self, client: Client, table: Table, slots: Slots, each: Each, *, patient: bool) -> None:
        self._client = client
        self._table = table
        self._slots = slots
        self._each = each
        self._patient = patient
        self._known: tuple[int, Sequence[Pause]] = (0, ())  # the pauses as they were at this version

    # ------------------------------------------------------------------------------------- for claims

    def seen(self, now: datetime) -> Reading:
        """The gate as it was when the slots were read last."""
        version, asked = self._slots.gate
        return self._reading(version, asked, now)

    def look(self, now: datetime) -> Reading:
        """The gate as it is now."""
        asked = time.monotonic()
        item = self._client.get([GATE]).get(GATE)
        return self._reading(None if item is None else int(item["version"]["N"]), asked, now)

    def _reading(self, version: int | None, asked: float, now: datetime) -> Reading:
        if version is None:
            self._known = (0, ())
            return Reading(None, Gate(), asked)
        known, pauses = self._known
        if known != version:  # read after the version: what was paused before it rose is among them
            pages = self._client.pages("pauses", high=ALL, limit=1000)
            pauses = [record_from(Pause, item) for page in pages for item in page]
            self._known = (version, pauses)
        return Reading(version, Gate.at(pauses, now), asked)

    def check(self, reading: Reading) -> Part:
        """Holds as long as nobody has been told since that something is paused."""
        older = [("version", "<=", value_of(reading.version or 0))]
        return check(self._table, _copy(random.randrange(COPIES)), [ABSENT], older)  # noqa: S311 - spreads the claims

    # ------------------------------------------------------------------------------------- for pauses

    def raised(self) -> Raised:
        """What raises the version by one, if it is still the one read now."""
        at = plain(self._client.get([GATE]).get(GATE, {}))
        version, ready = int(at.get("version", 0)), bool(at.get("ready", False))
        sets = {"version": value_of(version + 1), "ready": value_of(ready)}
        same = ("version", "=", value_of(version)) if at else ABSENT
        return Raised(update(self._table, GATE, sets, (), [same]), version + 1, ready)

    def close(self, raised: Raised) -> None:
        """Return when no claim commits any more that has not seen this version."""
        self._each(lambda number: self._raise(number, raised.version), range(COPIES))
        if not raised.ready:  # there may be claims on their way that know of no gate
            if self._patient:
                time.sleep(GATE_READ + LONGEST)
            else:
                UNDERWAY.wait()
            self._client.write([update(self._table, GATE, {"ready": value_of(True)})])

    def _raise(self, number: int, version: int) -> None:
        said = {"version": value_of(version)}
        with suppress(Failed):  # it is newer already
            older = [("version", "<", said["version"])]
            self._client.write([update(self._table, _copy(number), said, (), [ABSENT], older)])


def _copy(number: int) -> Place:
    return Place(f"gate#{number}", "gate")
