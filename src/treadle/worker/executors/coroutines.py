"""Async handlers: a task on the event loop each."""

import asyncio
import sys
from collections.abc import Callable
from contextvars import copy_context
from datetime import datetime
from time import monotonic
from typing import Any

from treadle.model.lifecycle import Outcome
from treadle.tasks.context import running_attempt
from treadle.worker.attempt import Attempt
from treadle.worker.executors import Call
from treadle.worker.outcomes import arguments_of, ended_by, succeeded

_EAGER: dict[str, Any] = {"eager_start": True} if sys.version_info >= (3, 12) else {}


class CoroutineExecutor:
    """Runs coroutines on the loop it was made in; stopping one is cancelling its task.

    `done` is told once of each attempt: how it ended, or None when its end is nobody's business any more.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        done: Callable[[Attempt, Outcome | None], None],
        now: Callable[[], datetime],
    ) -> None:
        self._loop = loop
        self._done = done
        self._now = now
        self._context = copy_context()  # each handler starts from this one: what a job sets, the next does not see
        self.fresh: list[Attempt] = []  # whose tasks have not taken their first step

    def start(self, call: Call) -> None:
        """Start an attempt; call it from the loop. If it stays fresh, `look_at_fresh` in the next round of the loop."""
        attempt = call.attempt
        # The attempt keeps its task: the loop itself has only weak references.
        attempt.task = asyncio.Task(self._run(call), loop=self._loop, context=self._context.copy(), **_EAGER)
        if not attempt.begun:
            self.fresh.append(attempt)

    def look_at_fresh(self) -> None:
        """Tell of tasks that were cancelled, by whomever, before their first step: `_run` tells of all others."""
        fresh, self.fresh = self.fresh, []
        for attempt in fresh:
            if attempt.begun or attempt.task is None:
                continue
            if attempt.task.done():
                self._done(attempt, ended_by(asyncio.CancelledError(), attempt, self._now()))
            else:
                self.fresh.append(attempt)

    async def _run(self, call: Call) -> None:
        attempt, task, context, hooks = call
        attempt.begun = True
        running_attempt.set(attempt)  # this context is the task's own
        arguments = arguments_of(call, self._now)
        if not isinstance(arguments, dict):
            return self._done(attempt, arguments)
        attempt.started_at, began = attempt.started_at or self._now(), monotonic()
        outcome: Outcome | None
        try:
            running = call.arun(arguments) if hooks else task.run(context, arguments)
            outcome = succeeded(await running, attempt, self._now)
        except BaseException as error:  # whatever a handler raises ends its attempt and nothing else, SystemExit too
            if self._loop.is_closed():
                raise  # nobody raised it: this abandoned coroutine is being thrown away
            outcome = ended_by(error, attempt, self._now())
        attempt.run_time = monotonic() - began
        return self._done(attempt, outcome)
