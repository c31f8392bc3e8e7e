"""A clock for tests."""

import threading
from datetime import UTC, datetime, timedelta


class FakeClock:
    """A clock that stands still until it is moved.

    >>> clock = FakeClock()
    >>> before = clock.now()
    >>> clock.advance(minutes=5)
    >>> (clock.now() - before).total_seconds()
    300.0
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, 12, tzinfo=UTC)) -> None:
        self._now = start
        self._lock = threading.Lock()

    def now(self) -> datetime:
        """Where it stands, in UTC."""
        return self._now

    def advance(self, **duration: float) -> None:
        """Move forward by a timedelta's keywords: `advance(minutes=5)`."""
        with self._lock:
            self._now += timedelta(**duration)
