"""What every worker does between its claims: recover leases, expire jobs, fire schedules, prune, seal, count.

There is no leader. Every write compares what was there, so what two workers do at once is done once.
"""

import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence

from treadle.engines.contract import Engine
from treadle.errors import EngineError
from treadle.model import Change, Job
from treadle.model.records import Schedule
from treadle.schedules.firing import Scheduler
from treadle.worker.config import WorkerConfig
from treadle.worker.maintenance.budgets import BUDGET_INTERVAL, Budgets
from treadle.worker.maintenance.minutes import MINUTES_INTERVAL, PRUNE_MINUTES_INTERVAL, Minutes
from treadle.worker.maintenance.presence import Presence
from treadle.worker.maintenance.pruning import FORGET_INTERVAL, PRUNE_INTERVAL, Pruning
from treadle.worker.maintenance.recovery import Recovery
from treadle.worker.maintenance.sealing import SEAL_INTERVAL, Sealing

log = logging.getLogger("treadle.maintenance")

RETRY_AFTER = 5.0  # seconds until a chore that failed is tried again


class Maintenance:
    """The chores of one worker; the engine thread calls `run_due` between its turns."""

    def __init__(
        self,
        engine: Engine,
        config: WorkerConfig,
        tasks: Iterable[str],
        *,
        presence: Presence,
        minutes: Minutes,
        holds: Callable[[Job], bool],
        recovered: Callable[[Change], None],
        declared: Sequence[Schedule] | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        """`holds` says whether the worker itself holds a job's lease; `recovered` hears of jobs that were recovered."""
        self.presence = presence
        self._config = config
        self._log = logger or log
        self._recovery = Recovery(engine, config, holds=holds, recovered=recovered, logger=logger)
        self._scheduler = Scheduler(
            engine,
            config.name,
            declared,
            interval=config.schedule_interval,
            enabled=config.schedules,
            disable_gone=config.disable_gone,
            logger=logger,
        )
        presence.on_return = self._scheduler.bring_again
        pruning, sealing = Pruning(engine, config, tasks, self._log), Sealing(engine)
        chores = [
            ("heartbeat", presence.beat, config.heartbeat),
            ("prune", pruning.prune, PRUNE_INTERVAL),
            ("forget", pruning.forget, FORGET_INTERVAL),
            ("seal", sealing.seal_due, SEAL_INTERVAL),
            ("minutes", minutes.write, MINUTES_INTERVAL),
            ("old minutes", minutes.prune, PRUNE_MINUTES_INTERVAL),
        ]
        if config.budgets:
            chores.append(("budgets", Budgets(engine, config.budgets, self._log).enforce, BUDGET_INTERVAL))
        self._chores: dict[str, Callable[[], float]] = {name: chore for name, chore, _ in chores}
        self._due = {name: time.monotonic() + _first_delay(name, interval) for name, _, interval in chores}

    def note_latency(self, seconds: float) -> None:
        """The store took so long to answer, or did not answer at all (infinity)."""
        self._recovery.note_latency(seconds)

    def due_at(self, *, stopping: bool) -> float:
        """When there is something to do, on the monotonic clock."""
        if stopping:
            return self.presence.stopping_at()
        return min(self._recovery.due_at, self._scheduler.due_at, *self._due.values())

    def announce(self) -> None:
        """Say that this worker is here, before its first job is its own."""
        self._run_chores()

    def run_due(self, *, stopping: bool) -> bool:
        """Do the chores that are due; whether there may be a new job. A worker that stops only says so."""
        if stopping:
            self.presence.say_stopping()
            return False
        self._recover()
        begun = time.monotonic()
        made = self._fire()
        self._run_chores()
        self.note_latency(time.monotonic() - begun)  # a store that kept us waiting kept the holders waiting too
        return made

    def _recover(self) -> None:
        """Recover expired leases. What goes wrong there does not keep schedules and chores from their turn."""
        try:
            self._recovery.run_due()
        except EngineError as error:
            self._log.warning("expired leases were not all recovered: %s", error)
            self.note_latency(float("inf"))

    def _fire(self) -> bool:
        """Fire the schedules that are due; whether that made a job. What goes wrong there stays there."""
        try:
            return self._scheduler.run_due()
        except EngineError as error:
            self._log.warning("schedules were not looked at: %s", error)
        except Exception:
            self._log.exception("schedules were not looked at")
        return False

    def _run_chores(self) -> None:
        """Each chore says in how many seconds it is due again. One that fails harms no other."""
        for name, chore in self._chores.items():
            if time.monotonic() >= self._due[name]:
                again = min(RETRY_AFTER, self._config.heartbeat) if name == "heartbeat" else RETRY_AFTER
                try:
                    again = chore()
                except EngineError as error:
                    self._log.warning("%s: not done, next try in %g s: %s", name, again, error)
                except Exception:
                    self._log.exception("%s: not done, next try in %g s", name, again)
                self._due[name] = time.monotonic() + again


def _first_delay(name: str, interval: float) -> float:
    """Seconds until a chore's first time: at once for the heartbeat, else spread, so that workers take turns."""
    if name == "minutes":  # there is nothing to count yet
        return interval
    return 0.0 if name == "heartbeat" else random.uniform(0, interval)  # noqa: S311
