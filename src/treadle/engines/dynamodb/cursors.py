"""Where claims begin in each range, instead of walking over everything that runs."""

import threading
import time
from typing import NamedTuple

from treadle.engines.dynamodb.items import ItemKey

FIRST_DUE = "scheduled#"  # no due item lies before it
CURSOR_LIFETIME = 1.0  # seconds for which a cursor is trusted: what was released or recovered lies before it


class Cursor(NamedTuple):
    """Up to this sort key everything was running when a claim scanned it, and until when that is trusted."""

    sk: str
    until: float


class Cursors:
    """The cursors of one table, by partition."""

    def __init__(self) -> None:
        self._cursors: dict[str, Cursor] = {}
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
            if key.pk in self._cursors and self._cursors[key.pk].sk >= key.sk:
                del self._cursors[key.pk]
