"""Waking the threads of this process that wait for jobs."""

import threading
import time
from collections.abc import Callable
from typing import Protocol

Look = Callable[[], object]
"""Reads something that changes when another process writes."""


class Watch(Protocol):
    """Calls `Waiters.hint` when another process has written, while somebody waits."""

    def begin(self, seen: object) -> None:
        """Somebody waits, to whom `look` has shown this."""
        ...

    def end(self) -> None:
        """Nobody waits any more."""
        ...


class Waiters:
    """A write of this process wakes every waiting thread, and a thread that claimed before it and is about to wait."""

    def __init__(self) -> None:
        self._writes = 0
        self._waiting: set[threading.Event] = set()
        self._thread = threading.local()

    def wake(self, *, claimed: bool = False) -> None:
        """There may be something to claim. With `claimed`, this thread's claim has already seen what was written."""
        self._writes += 1
        if claimed:
            self._thread.seen += 1
        self.hint()

    def hint(self) -> None:
        """Wake every thread that waits."""
        for woken in tuple(self._waiting):
            woken.set()

    def claiming(self) -> None:
        """This thread claims now: it sees what was written before."""
        self._thread.seen = self._writes

    def wait(
        self,
        timeout: float,
        interrupt: threading.Event | None,
        look: Look | None = None,
        every: float = 0.0,
        watch: Watch | None = None,
    ) -> bool:
        """Whether there was a write since this thread last claimed, before `timeout` seconds are over.

        With `look`, which shows the writes of other processes too, it looks `every` so many seconds; a `watch` may tell
        of them sooner.
        """
        woken = interrupt or threading.Event()
        deadline = time.monotonic() + timeout
        before = look() if look is not None else None
        self._waiting.add(woken)
        try:
            hinted = self._writes != getattr(self._thread, "seen", self._writes)
            if watch is not None and not hinted and timeout > 0:
                watch.begin(before)
            while not hinted and (left := deadline - time.monotonic()) > 0:
                hinted = woken.wait(left if look is None else min(every, left))
                hinted = hinted or (look is not None and look() != before)
            return hinted
        finally:
            self._waiting.discard(woken)
            if watch is not None and not self._waiting:
                watch.end()
            self._thread.seen = self._writes
