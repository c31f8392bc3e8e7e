"""Several calls at once, and what a process remembers of them."""

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
"""Do it for each of these, several at once."""

AT_ONCE = 16  # calls in flight for one operation on many jobs
REMEMBERED = 100_000


class Pools:
    """Threads for calls that need not wait for each other.

    Renewals have a pool of their own: they must not wait behind what a crowded partition holds up.
    """

    def __init__(self) -> None:
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._process = 0
        self._lock = threading.Lock()

    def each(self, work: Callable[[T], R], things: Sequence[T], *, pool: str = "calls") -> list[R]:
        """Do it for each of them, several at once; the first error is raised when all have ended."""
        if len(things) <= 1:
            return [work(thing) for thing in things]
        with self._lock:
            if self._process != os.getpid():  # threads do not survive a fork
                self._pools, self._process = {}, os.getpid()
            if pool not in self._pools:
                self._pools[pool] = ThreadPoolExecutor(AT_ONCE, f"treadle-{pool}")
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
    """The last of what was put into it, by name."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str) -> V | None:
        return self._found.get(name)

    def put(self, name: str, value: V) -> None:
        with self._lock:
            self._found[name] = value
            while len(self._found) > REMEMBERED:
                self._found.popitem(last=False)

    def drop(self, name: str) -> None:
        with self._lock:
            self._found.pop(name, None)
