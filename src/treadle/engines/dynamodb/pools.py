"""Several calls at once, and what a process remembers between calls."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")
V = TypeVar("V")

Each = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]
"""Does a work for each of these things, several at once."""

MAX_CALLS = 16  # in flight at once, for one operation on many jobs
MAX_REMEMBERED = 100_000  # names


class Pools:
    """Threads for calls that need not wait for each other.

    Renewals have a separate pool, because they must not wait behind calls that a throttled partition holds up.
    """

    def __init__(self) -> None:
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._process = 0
        self._lock = threading.Lock()

    def each(self, work: Callable[[T], R], things: Sequence[T], *, pool: str = "calls") -> list[R]:
        """Do the work for each thing, several at once; the first error is raised when all have ended."""
        if len(things) <= 1:
            return [work(thing) for thing in things]
        with self._lock:
            if self._process != os.getpid():  # threads do not survive a fork
                self._pools, self._process = {}, os.getpid()
            if pool not in self._pools:
                self._pools[pool] = ThreadPoolExecutor(MAX_CALLS, f"treadle-{pool}")
            futures = [self._pools[pool].submit(work, thing) for thing in things]
        errors = [error for future in futures if (error := future.exception())]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]

    def close(self) -> None:
        with self._lock:
            if self._process == os.getpid():
                for threads in self._pools.values():
                    threads.shutdown(wait=False)
            self._pools = {}


class Memory(Generic[V]):
    """What was put into it last, by name."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str) -> V | None:
        return self._found.get(name)

    def put(self, name: str, value: V) -> None:
        with self._lock:
            self._found[name] = value
            while len(self._found) > MAX_REMEMBERED:
                self._found.popitem(last=False)

    def drop(self, name: str) -> None:
        with self._lock:
            self._found.pop(name, None)
