"""Notifications as hints: a thread with a connection of its own that listens, and wakes whoever waits.

Polling finds every job without it. Through a pooler in transaction mode LISTEN silently does nothing: give a direct
`listen_url`, or live with the poll.
"""

import logging
import os
import random
import threading
import time
from collections.abc import Callable

import psycopg

from treadle.engines.postgres.connection import Connection
from treadle.errors import EngineError

log = logging.getLogger("treadle.postgres")

ECHO = 0.1  # seconds; senders notify at most this often, so a second look follows a notification after that time
GLANCE = 0.25  # seconds between two looks at whether we should stop


class Listener:
    """Sets the events of all who wait when a notification arrives, and once more an ECHO later."""

    def __init__(self, connect: Callable[[], Connection], channel: str) -> None:
        self._connect = connect
        self._channel = channel
        self._waiting: set[threading.Event] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._stop = threading.Event()
        self._listening = threading.Event()
        self._heard = threading.Event()
        self._echo_at = float("inf")

    def wait(self, timeout: float, woken: threading.Event) -> bool:
        """Whether `woken` was set, or something was heard, within so many seconds."""
        self._start()
        self._waiting.add(woken)
        try:
            return woken.wait(timeout)
        finally:
            self._waiting.discard(woken)

    def hears(self, notify: Callable[[], object], *, within: float = 2.0) -> bool:
        """Whether a notification makes its way back to us."""
        self._start()
        if not self._listening.wait(within):
            return False
        self._heard.clear()
        notify()
        return self._heard.wait(within)

    def stir(self) -> None:
        """Wake everybody in this process."""
        for woken in tuple(self._waiting):
            woken.set()

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None and self._process == os.getpid():
            self._thread.join()

    def _start(self) -> None:
        with self._lock:
            if self._process != os.getpid():  # forked: threads stay with the parent
                self._process, self._thread = os.getpid(), None
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._serve, name="treadle-listener", daemon=True)
                self._thread.start()

    def _serve(self) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                with self._connect() as connection:
                    connection.execute(f"listen {self._channel}")
                    self._listening.set()
                    self.stir()  # what came while nobody listened
                    failures = 0
                    self._listen(connection)
            except (EngineError, psycopg.Error) as error:
                self._listening.clear()
                failures += 1
                wait = min(30.0, 0.5 * 2 ** min(failures, 6)) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
                log.info("not listening, next try in %.1f s; polling goes on: %s", wait, error)
                self._stop.wait(wait)

    def _listen(self, connection: Connection) -> None:
        while not self._stop.is_set():
            patience = min(GLANCE, max(0.0, self._echo_at - time.monotonic()))
            for _ in connection.notifies(timeout=patience, stop_after=1):
                self._heard.set()
                self._echo_at = time.monotonic() + ECHO
                self.stir()
            if time.monotonic() >= self._echo_at:
                self._echo_at = float("inf")
                self.stir()
