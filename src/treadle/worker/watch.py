"""The watch over what runs: within a second cancellations reach their handlers, and readers see starts and progress.

Lease renewal brings both as well, but only every third of a lease. The watch is a thread of its own, so that a look
which hangs in the store never delays a renewal. It does nothing for jobs that end within one interval.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from treadle.engines.contract import LeaseStore
from treadle.errors import EngineError
from treadle.tasks.context import StopReason
from treadle.worker.attempt import Attempt

log = logging.getLogger("treadle.watch")

MAX_LOOK = 100  # attempts in one look: with more, each is looked at less often


class AttemptWatch:
    """Looks at the attempts that run longer than an interval; `renew` writes what they report."""

    def __init__(
        self,
        engine: LeaseStore,
        interval: float,
        *,
        held: Callable[[], Sequence[Attempt]],
        renew: Callable[[Sequence[Attempt]], bool],
        request_stop: Callable[[Attempt, StopReason], None],
        logger: logging.Logger | None = None,
    ) -> None:
        self._engine = engine
        self._interval = interval
        self._held, self._renew, self._request_stop = held, renew, request_stop
        self._log = logger or log
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="treadle-cancel-watch", daemon=True)
        self._next = 0  # where the next look begins, if there are more attempts than one look takes

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end. Nobody waits for it: it may hang in the store, and holds nothing."""
        self._stop.set()

    def _watch(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self.look(self._held())
            except EngineError as error:  # the renewal says so too, and louder
                self._log.debug("no look at what runs: %s", error)
            except Exception:
                self._log.exception("no look at what runs")

    def look(self, attempts: Sequence[Attempt]) -> None:
        """Write what is new, and pass on who was cancelled."""
        since = time.monotonic() - self._interval
        running = [one for one in attempts if one.queued_at <= since and one.stop_reason is None and not one.ended]
        reporting: list[Attempt] = []
        silent: list[Attempt] = []
        for attempt in running:
            stored = attempt.progress is attempt.progress_written and (attempt.start_written or not attempt.started_at)
            (silent if stored else reporting).append(attempt)
        if reporting:
            self._renew(reporting)
        if silent := self._some(silent):
            asked = self._engine.cancel_requests([attempt.id for attempt in silent])
            for attempt in silent:
                if attempt.id in asked and attempt.stop_reason is None:
                    self._request_stop(attempt, StopReason.CANCEL)

    def _some(self, attempts: list[Attempt]) -> list[Attempt]:
        """The next of these that one look takes, in turns."""
        if len(attempts) <= MAX_LOOK:
            return attempts
        first = self._next % len(attempts)
        self._next = first + MAX_LOOK
        return [*attempts, *attempts][first : first + MAX_LOOK]
