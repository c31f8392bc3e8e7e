"""Where handlers run: on the event loop, or in threads. An executor starts attempts and says how they ended."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from treadle.tasks.context import Context
from treadle.tasks.definition import Definition
from treadle.tasks.hooks import RunHook, ainside, inside
from treadle.worker.attempt import Attempt


class Call(NamedTuple):
    """An attempt ready to run; with a context, if its handler takes one."""

    attempt: Attempt
    task: Definition
    context: Context | None
    hooks: Sequence[RunHook] = ()  # around the handler

    def run(self, arguments: dict[str, Any], loop: asyncio.AbstractEventLoop) -> Any:
        """Call a plain function, inside the hooks; async hooks take their steps on the loop."""
        if not self.hooks:
            return self.task.run(self.context, arguments)
        return inside(self.hooks, self.context, lambda context: self.task.run(context, arguments), loop)

    async def arun(self, arguments: dict[str, Any]) -> Any:
        """Await a coroutine, inside the hooks."""
        return await ainside(self.hooks, self.context, lambda context: self.task.run(context, arguments))
