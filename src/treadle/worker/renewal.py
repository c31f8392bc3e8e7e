"""Lease renewal: a thread renews the leases of a worker, whatever the event loop is doing."""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from treadle.engines.contract import LeaseStore
from treadle.engines.values import Lease, Renewal
from treadle.errors import EngineError
from treadle.tasks.context import StopReason
from treadle.worker.attempt import Attempt

log = logging.getLogger("treadle.renewal")

MARGIN = 0.2  # of a lease: an attempt is given up this long before somebody else may take its job


class LeaseRenewal:
    """Renews every lease / 3; asks attempts to stop that are cancelled, or lost.

    `held` lists the attempts; `request_stop` reaches an attempt's handler; `note_latency` hears how long a call took.
    """

    def __init__(
        self,
        engine: LeaseStore,
        lease: float,
        *,
        held: Callable[[], Sequence[Attempt]],
        request_stop: Callable[[Attempt, StopReason], None],
        note_latency: Callable[[float], None],
        logger: logging.Logger | None = None,
    ) -> None:
        self._engine = engine
        self._lease = lease
        self._held = held
        self._request_stop = request_stop
        self._note_latency = note_latency
        self._log = logger or log
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._renew_always, name="treadle-renewal", daemon=True),
            threading.Thread(target=self._watch, name="treadle-renewal-watch", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _watch(self) -> None:
        """Give up in time, however long a renewal may hang in the store."""
        while not self._stop.wait(min(1.0, self._lease / 20)):
            try:
                self.give_up_unrenewed(self._held())
            except Exception:
                self._log.exception("leases not watched")

    def _renew_always(self) -> None:
        wait = self._lease / 3
        while not self._stop.wait(wait):
            wait = self._lease / 3
            try:
                if not self.renew(self._held()):
                    wait = min(0.1, self._lease / 10)  # as soon as it is free, before a recoverer looks
            except EngineError as error:
                self._log.warning("leases not renewed: %s", error)
                wait = min(1.0, self._lease / 10)
            except Exception:
                self._log.exception("leases not renewed")

    def renew(self, attempts: Sequence[Attempt], *, some: bool = False) -> bool:
        """Renew these leases once, and pass on what the store says of them; False if it was too busy for some.

        `some`: they are not all that is held, so that they say nothing of the store when it is too busy for them.
        """
        if not attempts:
            return True
        asked = time.monotonic()
        leases = [Lease(a.id, a.claimed.token, a.started_at, a.progress, a.cost_micros) for a in attempts]
        try:
            answers = self._engine.extend(leases, lease=self._lease)
        finally:
            self._note_latency(time.monotonic() - asked)
        busy = [answer.renewal in (Renewal.BUSY, Renewal.MISSED) for answer in answers]
        if all(busy) and not some:
            self._note_latency(float("inf"))  # nobody could renew: the other holders need time too
        for attempt, lease, answer in zip(attempts, leases, answers, strict=True):
            match answer.renewal:
                case Renewal.RENEWED:
                    attempt.progress_written = lease.progress
                    attempt.start_written = lease.started_at is not None
                    attempt.lease_ends = asked + self._lease  # from before the call: never later than the store's
                    if answer.cancel_requested and attempt.stop_reason is None:
                        self._request_stop(attempt, StopReason.CANCEL)
                case Renewal.BUSY:  # locked: nobody can take it now, and recoverers wait a period for us
                    attempt.lease_ends = max(attempt.lease_ends, time.monotonic() + self._lease)
                case Renewal.MISSED:
                    pass
                case Renewal.LOST:
                    self._request_stop(attempt, StopReason.LOST)
        return not any(busy)

    def give_up_unrenewed(self, attempts: Sequence[Attempt]) -> None:
        """Give up what could not be renewed, before its lease can pass on.

        An attempt that has ended only waits to be written, and that write is fenced: it may still arrive in time.
        """
        limit = time.monotonic() + self._lease * MARGIN
        for attempt in attempts:
            if attempt.lease_ends < limit and attempt.stop_reason is not StopReason.LOST and not attempt.ended:
                self._log.error("job %s: its lease could not be renewed, the attempt is given up", attempt.id)
                self._request_stop(attempt, StopReason.LOST)
