"""A worker's row in the list of live workers: what it serves, which tasks it knows, and that it is still there."""

import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

from treadle.engines.contract import RecordStore
from treadle.engines.values import OVERWRITE
from treadle.model.records import MEMORY, VERSION, Drain, WorkerInfo, missed_after, twin_name
from treadle.model.text import printable
from treadle.worker.config import WorkerConfig

log = logging.getLogger("treadle.worker")

STATM = Path("/proc/self/statm")


class Presence:
    """What one worker reports of itself: the `tasks` it knows with their versions, how many jobs are `running` here."""

    def __init__(
        self,
        engine: RecordStore,
        config: WorkerConfig,
        tasks: Callable[[], Mapping[str, int]],
        running: Callable[[], int],
        *,
        drain: Callable[[], None] = lambda: None,
        logger: logging.Logger | None = None,
    ) -> None:
        """`drain` is called when an operator has asked this worker to stop."""
        self._engine = engine
        self._config = config
        self._tasks = tasks
        self._running = running
        self._drain = drain
        self.on_return: Callable[[], None] = lambda: None  # called when this worker may have been taken for gone
        self._log = logger or log
        self._name = config.name  # another one, while a live worker of another process has this name
        self._started_at: datetime | None = None
        self._stopping = False
        self._beaten_at = self._steady_since = float("-inf")
        self._alone = False  # no other worker is on the list, not even a dead one

    def beat(self) -> float:
        """Say that this worker is alive; in how many seconds it is to say so again."""
        now = self._engine.now()
        if self._started_at is not None and not self._stopping:
            self._obey_drain()
        self._avoid_twin(now)
        self._started_at = self._started_at or now
        info = self._info(now)
        if self._beaten_at > float("-inf") and self._was_away():
            self.on_return()
        self._engine.save(info, before=OVERWRITE)
        if self._config.fail_unknown:
            self._alone = all(one.name == info.name for one in self._engine.records(WorkerInfo))
        if time.monotonic() - self._beaten_at > 2 * self._config.heartbeat:  # the first one, or one that came late
            self._steady_since = time.monotonic()
        self._beaten_at = time.monotonic()
        return self._config.heartbeat

    @property
    def age(self) -> float | None:
        """How many seconds ago the store took the last beat; None before the first."""
        return None if self._beaten_at == float("-inf") else time.monotonic() - self._beaten_at

    @property
    def is_current(self) -> bool:
        """Whether the list of live workers can be believed: the store has taken beats for long enough."""
        now, heartbeat = time.monotonic(), self._config.heartbeat
        steady = now - self._beaten_at < 2 * heartbeat and now - self._steady_since > missed_after(heartbeat)
        return self._alone or steady

    def stopping_at(self) -> float:
        """When a worker that stops is to say so, for the first time or again."""
        return self._beaten_at + self._config.heartbeat if self._stopping else 0.0

    def say_stopping(self) -> None:
        """Say that this worker takes no more jobs, and that it is still there."""
        if not self._stopping or time.monotonic() - self._beaten_at >= self._config.heartbeat:
            self._stopping = True
            self.beat()

    def leave(self) -> None:
        """Take this worker off the list."""
        self._engine.drop(self._info(self._started_at or self._engine.now()))
        for request in self._engine.records(Drain, name=self._name):
            self._engine.drop(request)

    def _was_away(self) -> bool:
        """Whether its last beat is too long ago, or lost with the store that had it: a file that was removed."""
        late = time.monotonic() - self._beaten_at > missed_after(self._config.heartbeat)
        return late or not self._engine.records(WorkerInfo, name=self._name)

    def _obey_drain(self) -> None:
        """Stop if somebody has asked this very worker to; a request to one of its name that is gone is cleared away."""
        for request in self._engine.records(Drain, name=self._name):
            if request.since == self._started_at:
                why = f": {printable(request.reason)}" if request.reason else ""
                self._log.info("%s asks this worker to stop%s", request.actor, why)
                self._drain()
            elif not any(one.started_at == request.since for one in self._engine.records(WorkerInfo)):
                self._engine.drop(request)

    def _avoid_twin(self, now: datetime) -> None:
        """Be listed under another name while a live worker of another process has ours, or each would hide the other.

        A worker that was killed and started again meets its own old row, which is soon taken for dead.
        """
        wanted, mine = self._config.name, (socket.gethostname(), os.getpid())
        there = self._engine.records(WorkerInfo, name=wanted)
        twin = next((one for one in there if (one.host, one.pid) != mine and one.alive(now)), None)
        if twin is not None and self._name == wanted:  # also later: two that start at once do not see each other
            self._name = twin_name(wanted, os.getpid())
            self._log.warning(
                "another worker is called %s (%s, process %s, seen %.0f s ago): unless it was just killed, give one of "
                "them another --name; until then this one is listed as %s",
                wanted, twin.host, twin.pid, (now - twin.seen_at).total_seconds(), self._name,
            )  # fmt: skip
        elif twin is None and self._name != wanted:
            self._engine.drop(self._info(now))
            self._name = wanted

    def _info(self, now: datetime) -> WorkerInfo:
        config = self._config
        return WorkerInfo(
            name=self._name,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=list(config.queues),
            lanes=None if config.lanes is None else list(config.lanes),
            tasks={**self._tasks(), **_about_itself(config.version)},
            concurrency=config.concurrency,
            running=self._running(),
            stopping=self._stopping,
            started_at=self._started_at or now,
            seen_at=now,
            period=config.heartbeat,
        )


def _about_itself(version: str) -> dict[str, int]:
    """The version of this treadle and the memory of this process, as they stand among a worker's tasks."""
    facts = {f"{VERSION}{version}": 1} if version else {}
    held = memory()
    return facts if held is None else {**facts, MEMORY: held}


def memory() -> int | None:
    """How many bytes this process holds in memory, or where only that is told, the most it ever held; None: unknown."""
    try:
        return int(STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):  # it is not Linux
        pass
    try:
        import resource  # noqa: PLC0415 - Windows has none
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
