"""An event loop for a whole process, which ends although a handler will not."""

import asyncio
from collections.abc import Coroutine
from typing import Any


def run_to_the_end(main: Coroutine[Any, Any, None]) -> None:
    """Run this on an event loop of its own.

    Not asyncio.run, which cancels every task and waits for it: a handler that will not stop must not keep the process.
    """
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(main)
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined] # abandoned on purpose
        loop.close()
