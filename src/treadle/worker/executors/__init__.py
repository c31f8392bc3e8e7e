"""Where handlers run: on the event loop, or in threads. An executor starts attempts and says how they ended."""

from typing import NamedTuple

from treadle.tasks.context import Context
from treadle.tasks.definition import Definition
from treadle.worker.attempt import Attempt


class Call(NamedTuple):
    """An attempt ready to run; with a context, if its handler takes one."""

    attempt: Attempt
    task: Definition
    context: Context | None
