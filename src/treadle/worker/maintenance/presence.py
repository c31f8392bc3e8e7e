"""A worker's row in the list of live workers: what it serves, which tasks it knows, and that it is still there."""

import os
import socket
import time
from collections.abc import Callable, Mapping
from datetime import datetime

from treadle.engines.contract import RecordStore
from treadle.engines.values import OVERWRITE
from treadle.model.records import WorkerInfo, missed_after
from treadle.worker.config import WorkerConfig


class Presence:
    """What one worker reports of itself: the `tasks` it knows with their versions, how many jobs are `running` here."""

    def __init__(
        self,
        engine: RecordStore,
        config: WorkerConfig,
        tasks: Callable[[], Mapping[str, int]],
        running: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._config = config
        self._tasks = tasks
        self._running = running
        self._started_at: datetime | None = None
        self._stopping = False
        self._beaten_at = self._steady_since = float("-inf")
        self._alone = False  # no other worker is on the list, not even a dead one

    def beat(self) -> float:
        """Say that this worker is alive; in how many seconds it is to say so again."""
        now = self._engine.now()
        self._started_at = self._started_at or now
        info = self._info(now)
        self._engine.save(info, before=OVERWRITE)
        if self._config.fail_unknown:
            self._alone = all(one.name == info.name for one in self._engine.records(WorkerInfo))
        if time.monotonic() - self._beaten_at > 2 * self._config.heartbeat:  # the first one, or one that came late
            self._steady_since = time.monotonic()
        self._beaten_at = time.monotonic()
        return self._config.heartbeat

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

    def _info(self, now: datetime) -> WorkerInfo:
        config = self._config
        return WorkerInfo(
            name=config.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=list(config.queues),
            lanes=None if config.lanes is None else list(config.lanes),
            tasks=dict(self._tasks()),
            concurrency=config.concurrency,
            running=self._running(),
            stopping=self._stopping,
            started_at=self._started_at or now,
            seen_at=now,
            period=config.heartbeat,
        )
