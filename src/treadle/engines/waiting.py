"""Waking those in this process who wait for jobs."""

import threading


class Hints:
    """A write of this process wakes who waits, and who has claimed before it and is about to wait."""

    def __init__(self) -> None:
        self._writes = 0
        self._waiting: set[threading.Event] = set()
        self._thread = threading.local()

    def wrote(self) -> None:
        """There may be something to claim."""
        self._writes += 1
        for woken in tuple(self._waiting):
            woken.set()

    def looking(self) -> None:
        """This thread claims now: what was written before, it sees."""
        self._thread.seen = self._writes

    def wait(self, timeout: float, interrupt: threading.Event | None) -> bool:
        """Whether there was a write since this thread last looked, before `timeout` is over."""
        woken = interrupt or threading.Event()
        self._waiting.add(woken)
        try:
            hinted = self._writes != getattr(self._thread, "seen", self._writes) or woken.wait(timeout)
        finally:
            self._waiting.discard(woken)
        self._thread.seen = self._writes
        return hinted
