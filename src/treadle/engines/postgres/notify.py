"""Notifications as hints: a thread with its own connection listens, and wakes the threads that wait.

Polling finds every job without them. Through a pooler in transaction mode LISTEN silently does nothing: set
`listen_url` to a direct connection, or rely on polling.
"""

import logging
import os
import threading
import time
from collections.abc import Callable

import psycopg

from treadle.engines.postgres.wire import Connection
from treadle.engines.waiting import Waiters
from treadle.errors import EngineError
from treadle.model.backoff import Backoff

log = logging.getLogger("treadle.postgres")

ECHO_DELAY = 0.01  # seconds; senders notify at most this often, so a notification wakes once more after that time
STOP_INTERVAL = 0.25  # seconds between two checks whether the thread should stop
_RECONNECT_DELAY = Backoff(0.5, 30.0)


class Notifications:
    """Sends a notification now and then; wakes the waiters for each one received, and once more an ECHO_DELAY later."""

    def __init__(self, connect: Callable[[], Connection], channel: str) -> None:
        self.channel = channel
        self.waiters = Waiters()
        self._connect = connect
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._stop = threading.Event()
        self._listening = threading.Event()
        self._notified = threading.Event()
        self._sent_at = 0.0
        self._echo_at = float("inf")

    def wait(self, timeout: float, interrupt: threading.Event | None) -> bool:
        """Whether there may be something to claim, or `interrupt` was set, within so many seconds."""
        self._start()
        return self.waiters.wait(timeout, interrupt)

    def wake(self) -> None:
        """Wake the waiting threads of this process."""
        self.waiters.wake()

    def channel_to_notify(self) -> str | None:
        """The channel for a notification about new jobs; None if one was sent just now."""
        if time.monotonic() - self._sent_at <= ECHO_DELAY / 2:
            return None
        self._sent_at = time.monotonic()
        return self.channel

    def receives(self, send: Callable[[], object], *, within: float = 2.0) -> bool:
        """Whether a notification that `send` sends arrives here."""
        self._start()
        if not self._listening.wait(within):
            return False
        self._notified.clear()
        send()
        return self._notified.wait(within)

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread is not None and self._process == os.getpid():
            self._thread.join()

    def _start(self) -> None:
        with self._lock:
            if self._process != os.getpid():  # after a fork: the threads stay with the parent
                self._process, self._thread = os.getpid(), None
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._serve, name="treadle-listener", daemon=True)
                self._thread.start()

    def _serve(self) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                with self._connect() as connection:
                    connection.execute(f"listen {self.channel}")
                    self._listening.set()
                    self.wake()  # for the jobs that came while nobody listened
                    failures = 0
                    self._listen(connection)
            except (EngineError, psycopg.Error) as error:
                self._listening.clear()
                failures += 1
                wait = _RECONNECT_DELAY.spread(failures)
                log.info("not listening, next try in %.1f s; polling goes on: %s", wait, error)
                self._stop.wait(wait)

    def _listen(self, connection: Connection) -> None:
        while not self._stop.is_set():
            timeout = min(STOP_INTERVAL, max(0.0, self._echo_at - time.monotonic()))
            if connection.notified(timeout):
                self._notified.set()
                self._echo_at = time.monotonic() + ECHO_DELAY
                self.wake()
            if time.monotonic() >= self._echo_at:
                self._echo_at = float("inf")
                self.wake()
