"""What a measured process counts, and how it tells the process that started it: one JSON document a line.

Only the standard library is used: a peer's process, in a venv without treadle, reports in the same way.
"""

import json
import os
import resource
import sys
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

PERIOD = 0.02  # seconds between two looks at the count


class Meter:
    """Counts the jobs that this process has started, and reports while it works.

    A handler calls `mark(moment)`, an append that threads may do at the same time. It costs a tenth of a
    microsecond, and no lock.
    """

    def __init__(self) -> None:
        self.starts = array("d")
        self.waits = array("d")
        self.mark = self.starts.append
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def mark_sent(self, sent: float) -> None:
        """Note a job that was enqueued at `sent`, seconds since 1970."""
        now = time.time()
        self.waits.append(now - sent)
        self.mark(now)

    def begin(self) -> None:
        """Say that the work can begin, and report from now on."""
        tell(ready=True, cpu=time.process_time())
        self._thread.start()

    def end(self, **more: Any) -> None:
        """The last report: everything that was counted."""
        cpu = time.process_time()
        self._done.set()
        self._thread.join()
        tell(
            end=True,
            ran=len(self.starts),
            cpu=cpu,
            first=min(self.starts, default=0.0),
            last=max(self.starts, default=0.0),
            starts=thinned(self.starts),
            waits=thinned(self.waits),
            rss=resident(),
            **more,
        )

    def _watch(self) -> None:
        seen = 0
        while not self._done.wait(PERIOD):
            if (ran := len(self.starts)) != seen:
                seen = ran
                tell(ran=ran, cpu=time.process_time())


def tell(**facts: Any) -> None:
    """One line to the process that started us, which may be gone."""
    try:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(1)


def first_line() -> str:
    """The first line of our standard input; what follows stays there."""
    found = b""
    while not found.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            os._exit(1)
        found += byte
    return found.decode()


def stop_when_told(stop: Callable[[], None]) -> None:
    """Call `stop` when our standard input is closed: we are told to stop, or whoever started us is gone."""

    def wait() -> None:
        while os.read(0, 4096):  # not sys.stdin: its lock, held by a daemon thread, would spoil a clean exit
            pass
        stop()

    threading.Thread(target=wait, daemon=True).start()


def thinned(values: Sequence[float], most: int = 20_000) -> list[float]:
    """At most that many of the values, evenly taken."""
    step = max(1, -(-len(values) // most))
    return [round(value, 6) for value in values[::step]]


def resident() -> int:
    """The most memory this process has had, in bytes."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share (0 to 1) of the values does not exceed; 0 without values."""
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))] if ordered else 0.0
