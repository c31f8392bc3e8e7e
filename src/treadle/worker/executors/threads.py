"""Plain functions: a thread each, kept for the next one."""

import asyncio
import inspect
import threading
from collections.abc import Callable
from contextvars import copy_context
from datetime import datetime
from queue import Empty, SimpleQueue
from time import monotonic

from treadle.model.lifecycle import Outcome
from treadle.tasks.context import running_attempt
from treadle.worker.attempt import Attempt
from treadle.worker.executors import Call
from treadle.worker.outcomes import arguments_of, ended_by, succeeded

IDLE = 30.0  # seconds a thread without work is kept


class ThreadExecutor:
    """Runs handlers in daemon threads: as many as there are attempts, so one that never ends blocks no other.

    `done` is told once of each attempt, in its thread: how it ended, or None when its end is nobody's business any
    more. It may answer with the next call, and the thread goes on with that one: no other thread has to wake up.
    """

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        done: Callable[[Attempt, Outcome | None], Call | None],
        now: Callable[[], datetime],
    ) -> None:
        self._name = name
        self._loop = loop
        self._done = done
        self._now = now
        self._context = copy_context()
        self._calls: SimpleQueue[Call] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0

    def start(self, call: Call) -> None:
        """Start an attempt in an idle thread, or in a new one."""
        with self._lock:
            fresh = self._idle == 0
            if not fresh:
                self._idle -= 1
        self._calls.put(call)
        if fresh:
            threading.Thread(target=self._work, name=f"{self._name}-handler", daemon=True).start()

    def _work(self) -> None:
        while True:
            try:
                call: Call | None = self._calls.get(timeout=IDLE)
            except Empty:
                with self._lock:
                    if self._idle:  # nobody has counted on this thread since
                        self._idle -= 1
                        return
                continue
            while call is not None:
                call = self._context.copy().run(self._run, call)
            with self._lock:
                self._idle += 1

    def _run(self, call: Call) -> Call | None:
        attempt = call.attempt
        running_attempt.set(attempt)  # this context is the call's own
        arguments = arguments_of(call, self._now)
        if not isinstance(arguments, dict):
            return self._done(attempt, arguments)
        attempt.begun = True
        if (
            attempt.forbidden
        ):  # looked at after `begun` is set, as slots.py does it the other way round: one of us sees it
            return self._done(attempt, None)
        attempt.started_at, began = attempt.started_at or self._now(), monotonic()
        outcome: Outcome | None
        try:
            value = call.run(arguments, self._loop)
            if inspect.iscoroutine(value):  # a plain function around an async one
                value = asyncio.run(value)
            outcome = succeeded(value, attempt, self._now)
        except BaseException as error:  # SystemExit in a handler must not cost the worker a thread
            outcome = ended_by(error, attempt, self._now())
        attempt.run_time = monotonic() - began
        return self._done(attempt, outcome)
