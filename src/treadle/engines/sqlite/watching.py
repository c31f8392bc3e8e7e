"""Noticing at once what another process writes to the file: the system tells of changes of its write-ahead log.

A log changes a moment before its commit can be seen, so after such a change the file's version is looked at in short
steps. All of it only makes a waiting worker quicker: whatever is missed here, the regular look finds.
"""

import os
import select
import selectors
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from treadle.errors import EngineError

LINGER = 5.0  # seconds that the thread stays without anybody who waits
STEP = 0.0005  # seconds between two looks after a change of the log
LONGEST_COMMIT = 0.02  # seconds from a change of the log to the last such look


class ChangeSource(Protocol):
    """What the system tells of one file: `fd` becomes readable when it changes."""

    fd: int

    def arm(self) -> None:
        """Forget the changes so far, and see to it that the next one is told, also of a file made anew."""
        ...

    def close(self) -> None: ...


class FileWatch:
    """A thread that wakes who waits for this file when another process has written to it.

    It acts only while somebody waits, and ends when nobody has waited for a while.
    """

    def __init__(self, path: str, look: Callable[[], object], wake: Callable[[], None]) -> None:
        self.pid = os.getpid()  # the child of a fork has no such thread: it needs a watch of its own
        self._path = path
        self._look = look
        self._wake = wake
        self._seen: object = None
        self._wanted = threading.Event()
        self._stopped = False
        self._lock = threading.Lock()  # over the thread and what it has open
        self._thread: threading.Thread | None = None
        self._source: ChangeSource | None = None
        self._stop: tuple[int, int] = (-1, -1)  # a pipe

    def begin(self, seen: object) -> None:
        """Somebody waits, and has seen this version."""
        with self._lock:
            self._seen = seen
            self._wanted.set()
            if self._thread is None and not self._stopped:
                self._start()

    def end(self) -> None:
        """Nobody waits any more."""
        self._wanted.clear()

    def close(self) -> None:
        """End the thread; the next wait needs a new watch."""
        if self.pid != os.getpid():  # and maybe the lock is held by a thread that is not here
            self._release()
            return
        with self._lock:
            self._stopped = True
            thread = self._thread
            if thread is not None:
                self._wanted.set()
                os.write(self._stop[1], b".")
        if thread is not None:
            thread.join()

    def _start(self) -> None:
        self._source = open_source(self._path)
        if self._source is not None:
            self._source.arm()
            self._stop = os.pipe()
            self._thread = threading.Thread(target=self._run, args=(self._source,), name="treadle-watch", daemon=True)
            self._thread.start()

    def _release(self) -> None:
        """Close what is open."""
        if self._source is not None:
            self._source.close()
            os.close(self._stop[0])
            os.close(self._stop[1])
        self._source = self._thread = None

    def _run(self, source: ChangeSource) -> None:
        with selectors.DefaultSelector() as selector:  # select.select takes no descriptor above 1,023
            for fd in (source.fd, self._stop[0]):
                selector.register(fd, selectors.EVENT_READ)
            while self._still_wanted(source):
                ready = {key.fd for key, _ in selector.select(LINGER)}
                source.arm()  # before the look: a change that comes after it is told again
                if source.fd in ready:
                    self._await_commit()

    def _still_wanted(self, source: ChangeSource) -> bool:
        """Wait until somebody waits; False if nobody does for a while, and the thread is to end."""
        if not self._wanted.is_set():
            self._wanted.wait(LINGER)
            source.arm()  # our own writes meanwhile are no news
        with self._lock:  # or somebody who begins now would count on a thread that ends
            if self._wanted.is_set() and not self._stopped:
                return True
            self._release()
            return False

    def _await_commit(self) -> None:
        """Look in short steps until the commit behind this change can be seen, and wake who waits for it."""
        until = time.monotonic() + LONGEST_COMMIT
        while self._wanted.is_set() and not self._stopped and time.monotonic() < until:
            try:
                version = self._look()
            except EngineError:
                return
            if version != self._seen:
                self._seen = version
                self._wake()
                return
            time.sleep(STEP)


def open_source(path: str) -> ChangeSource | None:
    """What tells of changes of this file, where the system has such a thing."""
    try:
        if sys.platform == "linux":
            return Inotify(path)
        if hasattr(select, "kqueue"):
            return Kqueue(path)
    except (OSError, AttributeError):
        pass  # as many as this user may have are in use, or the C library has no such call
    return None


class Inotify:
    """Linux."""

    MODIFIED, REMOVED = 0x2, 0x8000  # IN_MODIFY; IN_IGNORED, the last word of a file that is gone

    def __init__(self, path: str) -> None:
        import ctypes  # noqa: PLC0415 - heavy, and only a worker needs it

        self._libc = ctypes.CDLL(None, use_errno=True)
        self._path = os.fsencode(path)
        self._watched = False
        self.fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")

    def arm(self) -> None:
        with suppress(BlockingIOError):
            self._watched = self._watched and not _removed(os.read(self.fd, 65536), self.REMOVED)
        if not self._watched:
            self._watched = self._libc.inotify_add_watch(self.fd, self._path, self.MODIFIED) >= 0

    def close(self) -> None:
        os.close(self.fd)


def _removed(events: bytes, mask: int) -> bool:
    """Whether one of these events of inotify has this bit: four numbers each, and a name of so many bytes."""
    place = 0
    while place < len(events):
        _, bits, _, length = struct.unpack_from("iIII", events, place)
        if bits & mask:
            return True
        place += 16 + length
    return False


class Kqueue:
    """macOS and the BSDs. Not tested: our machines run Linux."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._queue = select.kqueue()  # type: ignore[attr-defined,unused-ignore]
        self._file = -1
        self.fd: int = self._queue.fileno()

    def arm(self) -> None:
        gone = select.KQ_NOTE_DELETE | select.KQ_NOTE_RENAME  # type: ignore[attr-defined,unused-ignore]
        if any(event.fflags & gone for event in self._queue.control(None, 16, 0)):
            self._close_file()
        if self._file >= 0 or not os.path.exists(self._path):
            return
        self._file = os.open(self._path, os.O_RDONLY | getattr(os, "O_EVTONLY", 0))
        wanted = select.kevent(  # type: ignore[attr-defined,unused-ignore]
            self._file,
            filter=select.KQ_FILTER_VNODE,  # type: ignore[attr-defined,unused-ignore]
            flags=select.KQ_EV_ADD | select.KQ_EV_CLEAR,  # type: ignore[attr-defined,unused-ignore]
            fflags=gone | select.KQ_NOTE_WRITE | select.KQ_NOTE_EXTEND,  # type: ignore[attr-defined,unused-ignore]
        )
        self._queue.control([wanted], 0)

    def close(self) -> None:
        self._close_file()
        self._queue.close()

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
