"""Where handlers run: on the event loop, or in threads. An executor starts attempts and says how they ended."""

from collections.abc import Callable
from typing import Any, NamedTuple

from treadle.model.lifecycle import Outcome
from treadle.tasks.context import Context
from treadle.tasks.task import Task
from treadle.worker.attempt import Attempt


class Call(NamedTuple):
    """An attempt ready to run."""

    attempt: Attempt
    task: Task[Any, Any]
    context: Context


Done = Callable[[Attempt, Outcome | None], None]
"""Told once for each attempt: how it ended, or None when its end is nobody's business any more."""
