"""The server's time, as far as this process knows it."""

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from treadle.engines.postgres.connection import Connections
from treadle.errors import EngineError

SYNC_INTERVAL = 600.0  # seconds without an answer of the server, after which it is asked for its time


class ClockReading(NamedTuple):
    """The server's time, and what our own clock showed at that moment."""

    server: datetime
    elapsed: float


class ServerClock:
    """Follows the server's clock from one answer to the next; a `fixed` clock of tests and simulators replaces it."""

    def __init__(self, server: Connections, fixed: Callable[[], datetime] | None = None) -> None:
        self.fixed = fixed
        self._server = server
        self._reading: ClockReading | None = None
        self._asked_at = float("-inf")

    def now(self) -> datetime:
        """The time by the last answer; the server is asked at the first call, and after a long silence."""
        if self.fixed is not None:
            return self.fixed()
        reading = self._reading or self._ask()
        if _elapsed() - max(reading.elapsed, self._asked_at) > SYNC_INTERVAL:
            self._asked_at = _elapsed()  # not again at once: while the server is away, the old reading has to do
            with suppress(EngineError):
                reading = self._ask()
        return reading.server + timedelta(seconds=_elapsed() - reading.elapsed)

    def written(self, now: datetime | None) -> datetime | None:
        """The time to send with a statement; None: the statement takes the server's own."""
        return now if now is not None or self.fixed is None else self.fixed()

    def sync(self, now: datetime) -> None:
        """Note the time that the server has just answered with."""
        if self.fixed is None:
            self._reading = ClockReading(now.astimezone(UTC), _elapsed())

    def _ask(self) -> ClockReading:
        sql = "select statement_timestamp()"
        [[now]] = self._server.run(lambda c: c.execute(sql).fetchall(), retry_for=self._server.retry_for)
        self._reading = reading = ClockReading(now.astimezone(UTC), _elapsed())
        return reading


def _elapsed() -> float:
    """Seconds on a clock that also runs while the machine sleeps, where there is one."""
    return time.clock_gettime(_CLOCK_ID) if _CLOCK_ID is not None else time.monotonic()


_CLOCK_ID: int | None = getattr(time, "CLOCK_BOOTTIME", None)
