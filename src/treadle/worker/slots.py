"""The slots of a worker: which claimed jobs run, which wait, and how a handler that will not end is dealt with.

Everything here belongs to the event loop's thread, except `_done_in_thread` with what it calls, and the engine thread's
looks at `abandoned` and `has_backlog`. A thread whose handler has ended goes on with the next job by itself, if it can:
it adds that one to `running`, and the loop's thread removes what has ended. `_lock` guards the head of `waiting`.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from treadle.engines.contract import Engine
from treadle.errors import UnknownTask
from treadle.model import Reason
from treadle.model.lifecycle import FailedForGood, Outcome, Released, Snoozed
from treadle.tasks.context import Context, StopReason
from treadle.tasks.definition import Definition
from treadle.tasks.hooks import RunHook
from treadle.tasks.task import Task
from treadle.worker.attempt import Attempt
from treadle.worker.config import WorkerConfig
from treadle.worker.executors import Call
from treadle.worker.executors.coroutines import CoroutineExecutor
from treadle.worker.executors.threads import ThreadExecutor
from treadle.worker.handler_writes import HandlerWrites
from treadle.worker.outcomes import cut_off, error_from, timed_out

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
        hooks: Sequence[RunHook] = (),
        loop: asyncio.AbstractEventLoop,
        report: Callable[[Attempt, Outcome | None], None],
        request_start: Callable[[Attempt], None],
        stop_exhausted: Callable[[], None],
        logger: logging.Logger | None = None,
    ) -> None:
        self.running: set[Attempt] = set()
        self.waiting: deque[Attempt] = deque()
        self.abandoned = 0  # slots whose handlers did not end in the grace time and still run
        self._isolated: deque[Attempt] = deque()
        self._isolated_one: Attempt | None = None
        self._closed = False
        self._freed = asyncio.Event()
        self._lock = threading.Lock()
        self._ended: deque[Attempt] = deque()  # whose slots are freed together, in the next round of the loop
        self._taken: deque[Attempt] = deque()  # by threads: the next round of the loop sets their alarms
        self._round_due = False
        self._engine, self._tasks, self._loop = engine, tasks, loop
        self._size, self._lease, self._grace = config.concurrency, config.lease, config.grace
        self._start = request_start if config.start_first else self._launch
        self._start_first = config.start_first
        self._hooks = hooks
        self._logger, self._log = logger, logger or log
        self._report, self._request_start, self._stop_exhausted = report, request_start, stop_exhausted
        self._on_loop = CoroutineExecutor(loop, self._end, engine.now)
        self._in_threads = ThreadExecutor("treadle", loop, self._done_in_thread, engine.now)

    @property
    def has_backlog(self) -> bool:
        """Whether claimed jobs wait for a slot; read by the engine thread."""
        return bool(self.waiting or self._isolated)

    def add(self, attempts: list[Attempt]) -> None:
        """Take newly claimed jobs; start what there is room for."""
        for attempt in attempts:
            (self._isolated if attempt.isolated else self.waiting).append(attempt)
        if self._closed:
            self.close()
        else:
            self._fill()

    def launch(self, attempt: Attempt) -> None:
        """Start one attempt whose slot is already counted, if it may still start."""
        self._launch(attempt)
        self._look_later()

    def _launch(self, attempt: Attempt) -> None:
        if self._closed or not self._may_start(attempt):
            self._end(attempt, Released())
            return
        task = self._definition(attempt)
        if task is None:
            self._end(attempt, self._unknown(attempt))
            return
        self._set_alarm(attempt)
        (self._on_loop if task.is_async else self._in_threads).start(self._call(attempt, task))

    def _may_start(self, attempt: Attempt) -> bool:
        """Whether nobody has asked it to stop, and half its lease is left."""
        return attempt.stop_reason is None and attempt.lease_ends - time.monotonic() >= self._lease / 2

    def _definition(self, attempt: Attempt) -> Definition | None:
        try:
            return self._tasks[attempt.claimed.task].definition
        except KeyError:
            return None

    def _unknown(self, attempt: Attempt) -> Outcome:
        name = attempt.claimed.task
        why = UnknownTask(name, self._tasks)
        error = error_from(why, attempt, self._engine.now())
        message = f"No handler registered for job_type: {name} ({why.hint})"  # in the words of requirement 000
        return FailedForGood(Reason.UNKNOWN_TASK, error._replace(message=message))

    def _call(self, attempt: Attempt, task: Definition) -> Call:
        context = None
        if task.takes_context or self._hooks:
            context = Context(attempt, HandlerWrites(self._engine, attempt, self._lease), self._logger)
        return Call(attempt, task, context, self._hooks)

    def _set_alarm(self, attempt: Attempt) -> None:
        if attempt.claimed.timeout is not None:
            attempt.alarm = self._loop.call_later(attempt.claimed.timeout, self._time_out, attempt)

    def free_lost(self, attempt: Attempt) -> None:
        """Free the slot of an attempt whose lease was lost before it started: there is nothing to write."""
        self._end(attempt, None)

    def interrupt(self, attempt: Attempt) -> None:
        """Stop a coroutine that was told to stop; a thread sees `ctx.cancelled`. A lost one gets the grace time."""
        if attempt in self.running:
            if attempt.task is not None:
                attempt.task.cancel()
            if attempt.stop_reason is StopReason.LOST:
                if attempt.alarm is not None:
                    attempt.alarm.cancel()
                attempt.alarm = self._loop.call_later(self._grace, self._abandon, attempt, None)

    def release_late(self, isolated: bool = True) -> None:
        """Give back what has waited too long for a slot: another worker may be free.

        `isolated` ones are put off for a while, or this worker would claim them again before the jobs behind them.
        A worker run with until_idle keeps them: put off, they would not be due when it looks whether anything is.
        """
        late = time.monotonic() - LONGEST_WAIT
        with self._lock:
            while self.waiting and self.waiting[0].queued_at < late:
                self._report(self.waiting.popleft(), Released())
        while isolated and self._isolated and self._isolated[0].queued_at < late:
            self._report(self._isolated.popleft(), Snoozed(LONGEST_WAIT))

    def close(self) -> None:
        """Start nothing more, and give back what waits."""
        with self._lock:
            self._closed = True
            left = [*self.waiting, *self._isolated]
            self.waiting.clear()
            self._isolated.clear()
        for attempt in left:
            self._report(attempt, Released())

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
            attempt.forbidden = True
            self._abandon(attempt, cut_off(attempt, self._engine.now()))

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
            if self._isolated and self._isolated_one is None:
                # One at a time, its start written first: should it take the process down, it is the one to pay.
                self._isolated_one = attempt = self._isolated.popleft()
                self.running.add(attempt)
                self._request_start(attempt)
                continue
            with self._lock:
                if not self.waiting:
                    break
                attempt = self.waiting.popleft()
                self.running.add(attempt)
            if attempt.claimed.suspect:  # a crash after its start counts: the start is written first
                self._request_start(attempt)
            else:
                self._start(attempt)
        self._look_later()

    def _look_later(self) -> None:
        """Ask for a round after the first steps of the tasks just made: what has ended by then is freed together."""
        if self._on_loop.fresh and not self._round_due:
            self._round_due = True
            self._loop.call_soon(self._free_ended)

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
        if attempt not in self.running or attempt.abandoned or attempt.ended:  # its slot is about to be freed
            return
        attempt.abandoned = True
        self.abandoned += 1
        if self._isolated_one is attempt:  # it is over; what it does to the process now, nobody else pays for
            self._isolated_one = None
            self._loop.call_soon(self._fill)
        self._report(attempt, outcome)
        if self.abandoned * 2 > self._size and not self._closed:
            self._log.critical("%d handlers did not end when told to: the worker stops", self.abandoned)
            self._stop_exhausted()

    def _end(self, attempt: Attempt, outcome: Outcome | None) -> None:
        """Its handler has ended, or was never called."""
        if not attempt.abandoned:
            self._report(attempt, outcome)
        self._ended.append(attempt)
        if not self._round_due:  # not at once: five hundred of them would be one deep recursion
            self._round_due = True
            self._loop.call_soon(self._free_ended)

    def _done_in_thread(self, attempt: Attempt, outcome: Outcome | None) -> Call | None:
        """The same in a handler's own thread; the call that the thread goes on with, if there is one for it."""
        if not attempt.abandoned:
            self._report(attempt, outcome)
        following = None
        with suppress(Exception):  # a handler that cannot be called: the loop's thread will meet it and say so
            following = self._take_next()
        self._ended.append(attempt)
        if not self._round_due:  # one wake-up for all that end until the loop has its turn
            self._round_due = True
            try:
                self._loop.call_soon_threadsafe(self._free_ended)
            except RuntimeError:  # the loop is closed: the worker has stopped and nobody waits for the slot
                self._round_due = False
                self._log.info("job %s: its handler ended after its worker", attempt.id)
        return following

    def _take_next(self) -> Call | None:
        """Give this thread's slot to the next job, if that is one for a thread and may start; else the loop decides."""
        if self._start_first or (self._isolated and self._isolated_one is None):
            return None
        with self._lock:
            if self._closed or not self.waiting:
                return None
            attempt = self.waiting[0]
            task = self._definition(attempt)
            if task is None or task.is_async or attempt.claimed.suspect or not self._may_start(attempt):
                return None
            call = self._call(attempt, task)
            self.running.add(attempt)  # first: whoever asks it to stop must find it here or there
            self.waiting.popleft()
        if attempt.claimed.timeout is not None:
            self._taken.append(attempt)
        return call

    def _free_ended(self) -> None:
        """Give the slots of what has ended to the next ones."""
        self._round_due = False  # before the look: what ends from now on asks for a round of its own
        self._on_loop.look_at_fresh()
        while self._taken:
            attempt = self._taken.popleft()
            if not attempt.ended:
                self._set_alarm(attempt)
        while self._ended:
            attempt = self._ended.popleft()
            if attempt.alarm is not None:
                attempt.alarm.cancel()
            if attempt.abandoned:
                self.abandoned -= 1
            self.running.discard(attempt)
            if self._isolated_one is attempt:
                self._isolated_one = None
        self._freed.set()
        self._fill()
