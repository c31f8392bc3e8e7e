"""The slots of a worker: which claimed jobs run, which wait, and how a handler that will not end is dealt with.

Everything here belongs to the event loop's thread, except `_done_in_thread`, and the engine thread's looks at
`abandoned` and `has_backlog`.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from treadle.engines.contract import Engine
from treadle.errors import UnknownTask
from treadle.model import Reason
from treadle.model.lifecycle import FailedForGood, Outcome, Released, Snoozed
from treadle.tasks.context import Context, StopReason
from treadle.tasks.task import Task
from treadle.worker.attempt import Attempt
from treadle.worker.config import WorkerConfig
from treadle.worker.executors import Call
from treadle.worker.executors.coroutines import CoroutineExecutor
from treadle.worker.executors.threads import ThreadExecutor
from treadle.worker.outcomes import error_from, timed_out
from treadle.worker.settle_in_transaction import asettle_in, settle_in

log = logging.getLogger("treadle.worker")

LONGEST_WAIT = 1.0  # seconds a claimed job may wait for a slot before it is given back


class Slots:
    """Starts attempts while there is room; `report` is told each attempt's outcome once, None for nothing to write."""

    def __init__(
        self,
        engine: Engine,
        tasks: Mapping[str, Task[Any, Any]],
        *,
        config: WorkerConfig,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[Attempt, Outcome | None], None],
        request_start: Callable[[Attempt], None],
        stop_exhausted: Callable[[], None],
        logger: logging.Logger | None = None,
    ) -> None:
        self.running: set[Attempt] = set()
        self.waiting: deque[Attempt] = deque()
        self.abandoned = 0  # slots whose handlers did not end in the grace time and still run
        self._suspects: deque[Attempt] = deque()
        self._suspect: Attempt | None = None
        self._closed = False
        self._freed = asyncio.Event()
        self._engine, self._tasks, self._loop = engine, tasks, loop
        self._size, self._lease, self._grace = config.concurrency, config.lease, config.grace
        self._start = request_start if config.start_first else self.launch
        self._logger, self._log = logger, logger or log
        self._report, self._request_start, self._stop_exhausted = report, request_start, stop_exhausted
        self._on_loop = CoroutineExecutor(loop, self._done_on_loop, engine.now)
        self._in_threads = ThreadExecutor("treadle", self._done_in_thread, engine.now)

    @property
    def has_backlog(self) -> bool:
        """Whether claimed jobs wait for a slot; read by the engine thread."""
        return bool(self.waiting or self._suspects)

    def add(self, attempts: list[Attempt]) -> None:
        """Take newly claimed jobs; start what there is room for."""
        for attempt in attempts:
            (self._suspects if attempt.job.suspect else self.waiting).append(attempt)
        if self._closed:
            self.close()
        else:
            self._fill()

    def launch(self, attempt: Attempt) -> None:
        """Start one attempt whose slot is already counted, if it has half its lease left."""
        job = attempt.job
        if self._closed or attempt.stop_reason is not None or attempt.lease_ends - time.monotonic() < self._lease / 2:
            self._end(attempt, Released())
            return
        task = self._tasks.get(job.task)
        if task is None:
            why = UnknownTask(job.task, self._tasks)
            error = error_from(why, attempt, self._engine.now())
            message = f"No handler registered for job_type: {job.task} ({why.hint})"  # in the words of requirement 000
            self._end(attempt, FailedForGood(Reason.UNKNOWN_TASK, error._replace(message=message)))
            return
        if job.timeout is not None:
            attempt.alarm = self._loop.call_later(job.timeout, self._time_out, attempt)
        settles = partial(settle_in, self._engine), partial(asettle_in, self._engine)
        context = Context(attempt, *settles, self._logger)
        call = Call(attempt, task, context)
        (self._on_loop if task.is_async else self._in_threads).start(call)

    def free_lost(self, attempt: Attempt) -> None:
        """Free the slot of an attempt whose lease was lost before it started: there is nothing to write."""
        self._end(attempt, None)

    def interrupt(self, attempt: Attempt) -> None:
        """Stop a coroutine that was told to stop; a thread sees `ctx.cancelled`. A lost one gets the grace time."""
        if attempt in self.running:
            if attempt.stop is not None:
                attempt.stop()
            if attempt.stop_reason is StopReason.LOST:
                if attempt.alarm is not None:
                    attempt.alarm.cancel()
                attempt.alarm = self._loop.call_later(self._grace, self._abandon, attempt, None)

    def release_late(self, suspects: bool = True) -> None:
        """Give back what has waited too long for a slot: another worker may be free.

        `suspects` are put off for a while, or this worker would claim the same ones again before the jobs behind them.
        A worker run with until_idle keeps them: put off, they would not be due when it looks whether anything is.
        """
        late = time.monotonic() - LONGEST_WAIT
        while self.waiting and self.waiting[0].queued_at < late:
            self._report(self.waiting.popleft(), Released())
        while suspects and self._suspects and self._suspects[0].queued_at < late:
            self._report(self._suspects.popleft(), Snoozed(LONGEST_WAIT))

    def close(self) -> None:
        """Start nothing more, and give back what waits."""
        self._closed = True
        for attempt in (*self.waiting, *self._suspects):
            self._report(attempt, Released())
        self.waiting.clear()
        self._suspects.clear()

    async def drain(self, grace: float, hurry: asyncio.Event) -> None:
        """Let what runs finish for `grace` seconds, then stop it; what still goes on is released and spends nothing."""
        await self._quiet(grace, hurry)
        for attempt in tuple(self.running):
            attempt.request_stop(StopReason.SHUTDOWN)
            self.interrupt(attempt)
        await self._quiet(min(1.0, grace), None)  # a moment for coroutines to clean up

    def abandon_all(self) -> None:
        """Release what still runs: the worker will not be there to see it end."""
        for attempt in tuple(self.running):
            attempt.request_stop(StopReason.SHUTDOWN)
            self._abandon(attempt, Released())

    async def _quiet(self, timeout: float, hurry: asyncio.Event | None) -> None:
        deadline = time.monotonic() + timeout
        while self.running and (left := deadline - time.monotonic()) > 0 and not (hurry and hurry.is_set()):
            self._freed.clear()
            waits = [asyncio.ensure_future(event.wait()) for event in (self._freed, hurry) if event is not None]
            await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()

    def _fill(self) -> None:
        while len(self.running) < self._size and not self._closed:
            if self._suspects and self._suspect is None:
                # One suspect at a time, its start written first: should it take the process down, it is the one to pay.
                self._suspect = attempt = self._suspects.popleft()
                self.running.add(attempt)
                self._request_start(attempt)
            elif self.waiting:
                attempt = self.waiting.popleft()
                self.running.add(attempt)
                self._start(attempt)
            else:
                return

    def _time_out(self, attempt: Attempt) -> None:
        """Tell a handler that its time is up; one that goes on past the grace time loses its slot."""
        if attempt in self.running and attempt.stop_reason in (None, StopReason.CANCEL):
            if attempt.stop_reason is None:
                attempt.request_stop(StopReason.TIMEOUT)
            self.interrupt(attempt)
            outcome = timed_out(attempt, self._engine.now())
            attempt.alarm = self._loop.call_later(self._grace, self._abandon, attempt, outcome)

    def _abandon(self, attempt: Attempt, outcome: Outcome | None) -> None:
        """Settle the job although its handler still runs; nothing the handler does counts any more."""
        if attempt not in self.running or attempt.abandoned:
            return
        attempt.abandoned = True
        self.abandoned += 1
        if self._suspect is attempt:  # it is over; what it does to the process now, nobody else pays for
            self._suspect = None
            self._loop.call_soon(self._fill)
        self._report(attempt, outcome)
        if self.abandoned * 2 > self._size and not self._closed:
            self._log.critical("%d handlers did not end when told to: the worker stops", self.abandoned)
            self._stop_exhausted()

    def _done_on_loop(self, attempt: Attempt, outcome: Outcome | None) -> None:
        if not attempt.abandoned:
            self._report(attempt, outcome)
        self._loop.call_soon(self._free, attempt)

    def _done_in_thread(self, attempt: Attempt, outcome: Outcome | None) -> None:
        if not attempt.abandoned:
            self._report(attempt, outcome)
        try:
            self._loop.call_soon_threadsafe(self._free, attempt)
        except RuntimeError:  # the loop is closed: the worker has stopped and nobody waits for the slot
            self._log.info("job %s: its handler ended after its worker", attempt.job.id)

    def _end(self, attempt: Attempt, outcome: Outcome | None) -> None:
        self._report(attempt, outcome)
        self._loop.call_soon(self._free, attempt)  # not at once: five hundred of them would be one deep recursion

    def _free(self, attempt: Attempt) -> None:
        """Give the attempt's slot to the next one."""
        if attempt.alarm is not None:
            attempt.alarm.cancel()
        if attempt.abandoned:
            self.abandoned -= 1
        self.running.discard(attempt)
        if self._suspect is attempt:
            self._suspect = None
        self._freed.set()
        self._fill()
