"""Old rows: finished jobs past their retention, audit events likewise, workers and pauses that are long gone."""

import logging
from collections.abc import Iterable
from datetime import timedelta

from treadle.engines.contract import Engine
from treadle.model.records import Pause, WorkerInfo
from treadle.worker.config import WorkerConfig
from treadle.worker.maintenance.sealing import prune_old_events

PRUNE_INTERVAL = 60.0  # seconds
FORGET_INTERVAL = 3600.0
MORE_AFTER = 0.1  # seconds, when there is more: the jobs come first
PRUNE_BATCH = 200
SEALS_AT_ONCE = 20
KEEP_GONE = timedelta(days=1)  # workers that were not heard of, and pauses that are over


class Pruning:
    """Deletes what is past its retention; any worker does it for its own tasks."""

    def __init__(self, engine: Engine, config: WorkerConfig, tasks: Iterable[str], logger: logging.Logger) -> None:
        self._engine, self._config, self._tasks, self._log = engine, config, tasks, logger

    def prune(self) -> float:
        """Delete old jobs of our own tasks: how long those of another program are kept, its own workers know."""
        keep = self._config.keep._replace(only=frozenset(self._tasks))
        deleted = self._engine.prune(keep, limit=PRUNE_BATCH)
        if deleted:
            self._log.info("deleted %d old job%s", deleted, "s" * (deleted != 1))
        return MORE_AFTER if deleted >= PRUNE_BATCH else PRUNE_INTERVAL

    def forget(self) -> float:
        """Delete old events, and the rows of workers and pauses that are long gone."""
        if prune_old_events(self._engine, self._config.keep_audit, limit=SEALS_AT_ONCE) == SEALS_AT_ONCE:
            return MORE_AFTER
        now = self._engine.now()
        for worker in self._engine.records(WorkerInfo):
            if now - worker.seen_at > KEEP_GONE:
                self._engine.drop(worker)
        for pause in self._engine.records(Pause):
            if pause.until is not None and now - pause.until > KEEP_GONE:
                self._engine.drop(pause)
        return FORGET_INTERVAL
