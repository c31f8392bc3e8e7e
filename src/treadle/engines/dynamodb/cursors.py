"""Where claims begin in each range, instead of walking over everything that runs."""

import threading
import time
from typing import NamedTuple

BELIEVED = 1.0  # seconds that a cursor counts: what was released or recovered lies before it


class Cursor(NamedTuple):
    """Up to this sort key everything was running when we looked, and until when that is believed."""

    sk: str
    until: float


class Cursors:
    """Where claims begin in each range, instead of walking over everything that runs."""

    def __init__(self) -> None:
        self._cursors: dict[str, Cursor] = {}
        self._lock = threading.Lock()

    def start(self, pk: str) -> str:
        cursor = self._cursors.get(pk)
        return cursor.sk if cursor is not None and time.monotonic() < cursor.until else "scheduled#"

    def advance(self, pk: str, sk: str, seconds: float) -> None:
        with self._lock:
            if self.start(pk) == "scheduled#":
                self._cursors[pk] = Cursor(sk, time.monotonic() + seconds)
            else:
                self._cursors[pk] = self._cursors[pk]._replace(sk=sk)

    def back(self, pk: str, sk: str) -> None:
        """A job was put at this place: look there again."""
        with self._lock:
            if pk in self._cursors and self._cursors[pk].sk >= sk:
                del self._cursors[pk]
