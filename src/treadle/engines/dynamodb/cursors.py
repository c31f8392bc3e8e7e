"""Where claims begin in each range, instead of walking over everything that runs, and where they found nothing."""

import threading
import time
from collections.abc import Hashable
from datetime import datetime, timedelta
from typing import NamedTuple

from treadle.engines.dynamodb.items import ItemKey

FIRST_DUE = "scheduled#"  # no due item lies before it
CURSOR_LIFETIME = 1.0  # seconds for which a cursor is trusted: what was released or recovered lies before it
QUIET_LIFETIME = timedelta(seconds=1)  # for which a range in which a claim found nothing may be left out


class Cursor(NamedTuple):
    """Up to this sort key everything was running when a claim scanned it, and until when that is trusted."""

    sk: str
    until: float


class Cursors:
    """The cursors of one table, by partition."""

    def __init__(self) -> None:
        self._cursors: dict[str, Cursor] = {}
        self._quiet: dict[str, tuple[datetime, float]] = {}  # when a claim found nothing there, by both clocks
        self._quiet_for: Hashable = None
        self._lock = threading.Lock()

    def start(self, pk: str) -> str:
        """The sort key from which a claim scans this partition."""
        cursor = self._cursors.get(pk)
        return cursor.sk if cursor is not None and time.monotonic() < cursor.until else FIRST_DUE

    def advance(self, key: ItemKey, seconds: float) -> None:
        """Everything up to this key is running; a cursor that moves on does not live longer."""
        with self._lock:
            if self.start(key.pk) == FIRST_DUE:
                self._cursors[key.pk] = Cursor(key.sk, time.monotonic() + seconds)
            else:
                self._cursors[key.pk] = self._cursors[key.pk]._replace(sk=key.sk)

    def move_back(self, key: ItemKey) -> None:
        """A job was written at this key: scan there again."""
        with self._lock:
            self._quiet.pop(key.pk, None)
            if key.pk in self._cursors and self._cursors[key.pk].sk >= key.sk:
                del self._cursors[key.pk]

    # ------------------------------------------------------------------------------- ranges without jobs

    def ask_for(self, scope: Hashable) -> None:
        """What is noted from now on holds for claims of this scope; what was found for another is forgotten."""
        with self._lock:
            if self._quiet_for != scope:
                self._quiet, self._quiet_for = {}, scope

    def found_nothing(self, pk: str, now: datetime) -> None:
        with self._lock:
            self._quiet[pk] = (now, time.monotonic())

    def quiet_since(self, pk: str, now: datetime) -> float | None:
        """When a claim found nothing in this partition; None if it did not look of late, or a job was written since."""
        looked = self._quiet.get(pk)
        if looked is None or abs(now - looked[0]) >= QUIET_LIFETIME:
            return None
        return looked[1] if time.monotonic() - looked[1] < QUIET_LIFETIME.total_seconds() else None
