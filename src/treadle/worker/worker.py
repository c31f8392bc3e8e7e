"""The worker: claims jobs, runs them, settles them.

Several threads share the work. The engine thread takes turns with the store (turns.py; loop.py decides). The thread of
the event loop fills the slots and runs coroutines; plain functions run in a pool of threads (slots.py, executors/). The
renewal thread renews leases, and its watch gives up in time what could not be renewed (renewal.py).
"""

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Self

from treadle.engines.contract import Engine
from treadle.errors import ConfigError, EngineError, EngineUnavailable
from treadle.model.records import Schedule
from treadle.model.stats import Counts
from treadle.schedules.modules import declaring
from treadle.tasks.hooks import Hooks
from treadle.tasks.loops import run_to_the_end
from treadle.tasks.secrets import marks
from treadle.tasks.task import Task, versions_of
from treadle.worker.attempt import Attempt
from treadle.worker.config import WorkerConfig
from treadle.worker.holdings import Holdings
from treadle.worker.hook_thread import HookThread
from treadle.worker.host import Host
from treadle.worker.maintenance import Maintenance
from treadle.worker.maintenance.minutes import Minutes
from treadle.worker.maintenance.presence import Presence
from treadle.worker.observers import Observers
from treadle.worker.orphans import Orphans
from treadle.worker.renewal import LeaseRenewal
from treadle.worker.slots import Slots
from treadle.worker.turns import Turns
from treadle.worker.watch import AttemptWatch

log = logging.getLogger("treadle.worker")

SAME_SIGNAL = 0.2  # seconds: `timeout` and process groups send a signal twice at once, and mean it once


class Measured(NamedTuple):
    """What a worker has counted since it started, and what it holds now."""

    slots: int
    running: int  # slots that are taken
    held: int  # jobs that it has claimed and not settled
    abandoned: int  # slots whose handlers never ended
    stopping: bool
    claimed: int
    ends: Mapping[tuple[str, str], Counts]  # by queue and task
    heartbeat_age: float | None  # seconds


class Worker:
    """Runs the jobs of these tasks until it is asked to stop: `async with worker:`, or `worker.run()`."""

    def __init__(
        self,
        engine: Engine,
        tasks: Mapping[str, Task[Any, Any]],
        config: WorkerConfig,
        logger: logging.Logger | None = None,
        *,
        hooks: Hooks | None = None,
        declared: Sequence[Schedule] | None = None,
    ) -> None:
        self.config = config
        self.exhausted = False  # whether it stopped by itself: too many handlers that never end
        self._engine = engine
        self._tasks = tasks
        self._hooks = hooks or Hooks()
        self._logger, self._log = logger, logger or log
        self._marks = declaring(declared or ())
        self._holdings = Holdings()
        self._host = Host(self._holdings, self.stop)
        self._presence = Presence(
            engine,
            config,
            lambda: versions_of(tasks) | self._marks,
            lambda: len(self._holdings),
            drain=lambda: self._host.on_loop(self._drain),
            logger=self._log,
        )
        self._hook_thread = HookThread(lambda: self._host.event_loop, logger)
        self._minutes = Minutes(engine, config)
        self._observers = observers = Observers(
            hooks or Hooks(),
            self._hook_thread,
            self._log,
            log_jobs=config.log_jobs,
            note_end=self._minutes.note,
        )
        self._maintenance = Maintenance(
            engine,
            config,
            tasks,
            presence=self._presence,
            minutes=self._minutes,
            holds=self._holdings.holds,
            recovered=observers.recovered,
            declared=declared,
            logger=logger,
        )
        self._turns = Turns(
            engine,
            config,
            tasks,
            self._host,
            holdings=self._holdings,
            maintenance=self._maintenance,
            orphans=Orphans(engine, tasks),
            observers=observers,
            logger=logger,
        )
        self._renewal = LeaseRenewal(
            engine,
            config.lease,
            held=self._renewable,
            request_stop=self._host.request_stop,
            note_latency=self._maintenance.note_latency,
            logger=logger,
        )
        self._watch = AttemptWatch(
            engine,
            config.watch,
            held=self._renewable,
            renew=partial(self._renewal.renew, some=True),
            request_stop=self._host.request_stop,
            logger=logger,
        )
        self._stop_requested = threading.Event()
        self._stop_event: asyncio.Event | None = None
        self._signalled_at = 0.0  # on the monotonic clock

    def measured(self) -> "Measured":
        """What this process has done and holds now; for any thread."""
        slots: Slots | None = getattr(self._host, "slots", None)
        return Measured(
            slots=self.config.concurrency,
            running=0 if slots is None else len(slots.running),
            held=len(self._holdings),
            abandoned=0 if slots is None else slots.abandoned,
            stopping=self._host.stopping,
            claimed=self._observers.claims,
            ends=self._minutes.totals(),
            heartbeat_age=self._presence.age,
        )

    # ----------------------------------------------------------------------------------- start and stop

    @property
    def running(self) -> bool:
        """Whether it has been started and has not stopped yet."""
        thread: threading.Thread | None = getattr(self, "_thread", None)
        return thread is not None and thread.is_alive()

    def run(self, *, until_idle: bool = False) -> None:
        """Work in this thread until `stop`, SIGTERM or SIGINT; a second signal releases at once what still runs.

        With `until_idle`, also stop when nothing is due and nothing runs, and raise if the store refuses the worker.
        """
        self._host.until_idle = until_idle
        run_to_the_end(self._run())
        if self._host.refusal is not None:
            raise self._host.refusal

    def stop(self) -> None:
        """Ask a worker that was started with `run` to stop; safe from any thread and from a signal handler."""
        self._stop_requested.set()
        if self._stop_event is not None:
            self._host.on_loop(self._stop_event.set)

    async def wait_stopped(self) -> None:
        """Wait until it is to stop: by `stop`, by an operator, by lost slots or by an error, which is raised."""
        assert self._stop_event is not None  # noqa: S101 - it is running
        while not self._stop_requested.is_set():
            await self._stop_event.wait()
        if self._host.refusal is not None:
            raise self._host.refusal

    async def _run(self) -> None:
        self._stop_event = asyncio.Event()
        if threading.current_thread() is threading.main_thread():
            self._listen_to_signals()
        async with self:
            with suppress(Exception):  # `run` raises it, when all is put in order
                await self.wait_stopped()

    def _listen_to_signals(self) -> None:
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, self._signalled)
        except NotImplementedError:
            raise ConfigError(
                "worker: event loops have no signal handlers on this system, as on Windows; use WSL or a container"
            ) from None

    def _signalled(self) -> None:
        now = time.monotonic()
        if not self._stop_requested.is_set():
            self._signalled_at = now
        elif now - self._signalled_at > SAME_SIGNAL:
            self._log.warning("second signal: what still runs is released")
            self.hurry()
        self.stop()

    def hurry(self) -> None:
        """Wait no longer for what still runs: it is released. To be called on the event loop, after `stop`."""
        self._hurry.set()

    async def __aenter__(self) -> Self:
        for task in self._tasks.values():
            self._marks |= marks(task.name, task.payload.secrets)  # a handler that cannot be called is an error now
        self._hurry = asyncio.Event()
        self._stop_event = self._stop_event or asyncio.Event()
        self._host.event_loop = asyncio.get_running_loop()
        self._host.slots = Slots(
            self._engine,
            self._tasks,
            config=self.config,
            hooks=self._hooks.run,
            loop=self._host.event_loop,
            report=self._turns.report,
            request_start=self._turns.request_start,
            stop_exhausted=self._stop_exhausted,
            logger=self._logger,
        )
        await asyncio.to_thread(self._open)
        self._thread = threading.Thread(target=self._serve, name="treadle-engine", daemon=True)
        self._renewal.start()
        self._watch.start()
        self._thread.start()
        self._log_start()
        return self

    def _open(self) -> None:
        try:
            self._engine.open()
        except EngineUnavailable as error:  # it may come yet: the engine thread goes on trying
            self._log.warning("the store is not there yet: %s", error)

    def _log_start(self) -> None:
        """Log what this worker serves, and what it may have been meant to serve."""
        config = self.config
        self._log.info("worker %s: queues %s, %d slots", config.name, ", ".join(config.queues), config.concurrency)
        self._log_care()
        for task in self._tasks.values():
            if task.options.queue not in config.queues:
                self._log.info(
                    "task %s goes to queue %s, which this worker does not serve", task.name, task.options.queue
                )
            for follow in task.options.on_end or ():
                if follow is not None and follow.task and follow.task not in self._tasks:
                    self._log.warning("task %s is followed by task %s, which is not known here", task.name, follow.task)

    def _log_care(self) -> None:
        """Log what a crash of this process costs jobs that are not retried, and which ones are kept apart."""
        tasks = self._tasks.values()
        once = [task.name for task in tasks if task.options.retry.max_attempts == 1 and not task.options.isolated]
        if once:
            self._log.info("not retried: %s; if this process dies, their jobs that have started fail", ", ".join(once))
        if apart := [task.name for task in tasks if task.options.isolated]:
            self._log.info("isolated: %s; one job of them runs here at a time", ", ".join(apart))

    async def __aexit__(self, *_: object) -> None:
        """Stop claiming, let handlers finish for the grace time, release the rest, which spends no attempt."""
        host, grace = self._host, self.config.grace
        host.stopping = True
        host.slots.close()
        if host.slots.running:
            self._log.info("stopping: jobs at work (%d) may run for %g s more", len(host.slots.running), grace)
        try:
            await host.slots.drain(grace, self._hurry)
        finally:  # also when the host gives up waiting: what runs is released, not failed
            host.slots.abandon_all()
            host.drained_at = time.monotonic()
            host.wake.set()
        try:
            await asyncio.to_thread(self._thread.join)
        finally:
            self._hook_thread.finish()
        await asyncio.to_thread(self._hook_thread.close)
        self._log.info("worker %s stopped", self.config.name)

    def _stop_exhausted(self) -> None:
        """Too many slots are abandoned to handlers that never end: only a new process gets them back."""
        self.exhausted = True
        self._drain()

    def _drain(self) -> None:
        """Take no more jobs; a worker that was started with `run` ends when those it has are done."""
        self._host.stopping = True
        self._host.slots.close()
        self.stop()

    # --------------------------------------------------------------------------------- the engine thread

    def _serve(self) -> None:
        try:
            self._maintenance.announce()
            self._turns.run()
        except Exception as error:
            self._log.critical("the worker stops: %s", error)
            self._host.stop(error)
        finally:
            self._watch.stop()
            self._renewal.stop()
            with suppress(EngineError):  # where the store does not answer one of them, nobody waits for the other
                self._presence.leave()
                self._minutes.write()

    def _renewable(self) -> list[Attempt]:
        """The attempts whose leases are renewed: none once the host has closed the loop that the handlers ran on."""
        return [] if self._host.loop_closed() else self._holdings.attempts()
