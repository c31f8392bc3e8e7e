"""Async handlers: a task on the event loop each."""

import asyncio
import sys
from collections.abc import Callable
from contextvars import copy_context
from datetime import datetime
from functools import partial
from typing import Any

from treadle.model.lifecycle import Outcome
from treadle.worker.attempt import Attempt
from treadle.worker.executors import Call, Done
from treadle.worker.outcomes import arguments_of, ended_by, succeeded

_EAGER: dict[str, Any] = {"eager_start": True} if sys.version_info >= (3, 12) else {}


class CoroutineExecutor:
    """Runs coroutines on the loop it was made in; stopping one is cancelling its task."""

    def __init__(self, loop: asyncio.AbstractEventLoop, done: Done, now: Callable[[], datetime]) -> None:
        self._loop = loop
        self._done = done
        self._now = now
        self._context = copy_context()  # each handler starts from this one: what a job sets, the next does not see
        self._running: set[asyncio.Task[None]] = set()  # the loop itself keeps only weak references

    def start(self, call: Call) -> None:
        """Start an attempt; call it from the loop."""
        task: asyncio.Task[None] = asyncio.Task(
            self._run(call), loop=self._loop, context=self._context.copy(), **_EAGER
        )
        if not task.done():
            call.attempt.stop = task.cancel
            self._running.add(task)
            task.add_done_callback(partial(self._ended, call.attempt))

    def _ended(self, attempt: Attempt, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if task.cancelled():  # before its first step: _run has caught every other cancellation and told of it
            self._done(attempt, ended_by(asyncio.CancelledError(), attempt, self._now()))

    async def _run(self, call: Call) -> None:
        attempt = call.attempt
        arguments = arguments_of(call, self._now())
        if not isinstance(arguments, dict):
            return self._done(attempt, arguments)
        attempt.started_at = attempt.started_at or self._now()
        outcome: Outcome | None
        try:
            outcome = succeeded(await call.task.run(call.context, arguments), attempt, self._now())
        except BaseException as error:  # whatever a handler raises ends its attempt and nothing else, SystemExit too
            if self._loop.is_closed():
                raise  # nobody raised it: this abandoned coroutine is being thrown away
            outcome = ended_by(error, attempt, self._now())
        return self._done(attempt, outcome)
