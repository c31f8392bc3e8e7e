"""What the threads of a worker share: where handlers run, whether it stops, and how to reach a handler."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from treadle.tasks.context import StopReason
from treadle.worker.attempt import Attempt
from treadle.worker.holdings import Holdings
from treadle.worker.slots import Slots


class Host:
    """The event loop and its slots, as the engine thread and the lease renewal see them."""

    slots: Slots  # there once the worker has started

    def __init__(self, holdings: Holdings, stop: Callable[[], None]) -> None:
        self.event_loop: asyncio.AbstractEventLoop | None = None
        self.stopping = False
        self.drained_at = float("inf")  # when the slots were empty or given up, on the monotonic clock
        self.until_idle = False
        self.refusal: Exception | None = None  # why the store refuses a worker run with until_idle
        self.wake = threading.Event()  # the engine thread should look again
        self._holdings = holdings
        self._stop = stop

    def loop_closed(self) -> bool:
        """Whether the program around the worker has closed the event loop that the handlers ran on."""
        return self.event_loop is None or self.event_loop.is_closed()

    def on_loop(self, call: Callable[..., object], *arguments: Any) -> None:
        """Call this on the event loop's thread."""
        with suppress(RuntimeError):  # the loop was closed under us: the engine thread will see it
            if self.event_loop is not None:
                self.event_loop.call_soon_threadsafe(call, *arguments)

    def request_stop(self, attempt: Attempt, why: StopReason) -> None:
        """Ask a handler to stop; a lost job is forgotten here and now: its writes would be refused."""
        if why is StopReason.LOST:
            self._holdings.forget(attempt)
            self.wake.set()
            if attempt.settled:  # by the handler, in its own transaction: it need not be stopped for that
                return
        attempt.request_stop(why)
        self.on_loop(self.slots.interrupt, attempt)

    def stop(self, refusal: Exception | None = None) -> None:
        """Ask the whole worker to stop; `refusal` is what its `run` raises."""
        self.refusal = refusal or self.refusal
        self._stop()
