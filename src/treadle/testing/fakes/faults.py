"""What all stand-ins share: they start and stop, misbehave on request, and can be waited for."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any, Literal, Self

from treadle.testing.clock import FakeClock


class RunningClock(FakeClock):
    """A clock that goes by itself from now on, for servers that a real process speaks to; it can be moved, too."""

    def __init__(self) -> None:
        super().__init__(datetime.now(UTC))
        self._since = time.monotonic()

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=time.monotonic() - self._since)


@dataclass
class Fault:
    """What goes wrong next, at the requests that `on` matches, `times` times."""

    kind: Literal["fail", "drop", "delay"]
    times: int
    on: str
    before: bool = False
    seconds: float = 0.0
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    body: Any = None


class Fake(ABC):
    """A server on 127.0.0.1 that runs in threads of this process between `start` and `close`, or inside `with`."""

    spared: tuple[str, ...] = ()  # requests that a fault meets only if its `on` is meant for them

    def __init__(self, *, port: int = 0, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self._wanted_port = port
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._faults: list[Fault] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    @abstractmethod
    def start(self) -> None:
        """Listen on the port that was asked for, or on a free one."""

    @abstractmethod
    def close(self) -> None:
        """Stop listening and end every connection."""

    @property
    def closing(self) -> bool:
        """Whether `close` was called."""
        return self._closing.is_set()

    def fail_next(
        self,
        status: int = 500,
        *,
        headers: Mapping[str, str] | None = None,
        times: int = 1,
        error: str = "",
        body: Any = None,
        on: str = "",
    ) -> None:
        """Answer the next `times` requests with this status; nothing else happens.

        The body has the vendor's shape, with `error` as its code, unless `body` is given. `on` narrows it down to some
        requests: "POST /emails", "*/send".
        """
        self._add(Fault("fail", times, on, status=status, headers=headers or {}, error=error, body=body))

    def drop_next(self, times: int = 1, *, before: bool = False, on: str = "") -> None:
        """Do what the next request asks for, and close the connection without an answer; `before`: do nothing."""
        self._add(Fault("drop", times, on, before))

    def delay_next(self, seconds: float, times: int = 1, *, before: bool = False, on: str = "") -> None:
        """Do what the next request asks for, and answer only after these real seconds; `before`: wait first."""
        self._add(Fault("delay", times, on, before, seconds))

    def wait_until(self, test: Callable[[], bool], timeout: float = 10.0) -> None:
        """Return as soon as `test()` holds; asked again after each request. TimeoutError after `timeout` seconds."""
        end = time.monotonic() + timeout
        while not test():  # without the lock: it may ask this server something
            if time.monotonic() >= end:
                raise TimeoutError(f"what was waited for did not happen within {timeout:g} s")
            with self._changed:
                self._changed.wait(0.02)

    def clear(self) -> None:
        """Forget what was received, and faults that have not met a request."""
        with self._changed:
            self._faults.clear()
            self._forget()

    @abstractmethod
    def _forget(self) -> None:
        """Forget what was received; the lock is held."""

    def _add(self, fault: Fault) -> None:
        if fault.times < 1:
            raise ValueError(f"times: {fault.times} is not possible; give 1 or more")
        with self._changed:
            self._faults.append(fault)

    def _take(self, name: str) -> tuple[Fault | None, Fault | None]:
        """The delay of this request, and the failure or drop; each the oldest that fits, and used up by this."""
        with self._changed:
            fitting = [fault for fault in self._faults if self._fits(fault, name)]
            delay = next((fault for fault in fitting if fault.kind == "delay"), None)
            other = next((fault for fault in fitting if fault.kind != "delay"), None)
            for fault in filter(None, (delay, other)):
                fault.times -= 1
                if fault.times == 0:
                    self._faults.remove(fault)
            return delay, other

    def _fits(self, fault: Fault, name: str) -> bool:
        if fault.on:
            return fnmatchcase(name, fault.on)
        return not any(fnmatchcase(name, spared) for spared in self.spared)
