"""The thread that calls the hooks of claims and ends: what a hook does, and how long it takes, keeps no job waiting."""

import asyncio
import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

log = logging.getLogger("treadle.hooks")

MAX_WAITING = 1_000  # turns of a worker that hooks may be behind; what comes then is not told
CLOSE_TIMEOUT = 5.0  # seconds that a worker which stops waits for its hooks


class HookCall(NamedTuple):
    """Hooks, and what makes the values that each is called with."""

    hooks: Sequence[Callable[[Any], object]]
    values: Callable[[], Sequence[Any]]


class HookThread:
    """Calls hooks in order, one after the other; async ones run on the worker's event loop, and are waited for."""

    def __init__(
        self, event_loop: Callable[[], asyncio.AbstractEventLoop | None], logger: logging.Logger | None = None
    ) -> None:
        self._event_loop = event_loop
        self._log = logger or log
        self._calls: deque[HookCall] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._missed = 0

    def call(self, hooks: Sequence[Callable[[Any], object]], values: Callable[[], Sequence[Any]]) -> None:
        """Call these hooks soon, with each of the values. The thread starts with the first call."""
        if not hooks:
            return
        with self._changed:
            if len(self._calls) >= MAX_WAITING:
                self._missed += 1
                if self._missed == 1:
                    self._log.warning("hooks are slower than the jobs: some claims and ends are not told to them")
                return
            self._calls.append(HookCall(hooks, values))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="treadle-hooks", daemon=True)
                self._thread.start()
            self._changed.notify()

    def finish(self) -> None:
        """Let the thread call what waits, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def close(self) -> None:
        """Wait until what was to be called has been; a hook that never ends is left behind."""
        self.finish()
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT)
            if self._thread.is_alive():
                self._log.error("a hook did not end within %g s: the worker stops without it", CLOSE_TIMEOUT)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._calls and not self._closed:
                    self._changed.wait()
                if not self._calls:
                    return
                call = self._calls.popleft()
            try:
                values = call.values()
            except Exception:  # a row that is no job: the worker has said so already
                self._log.exception("hooks were not called")
                continue
            for value in values:
                for hook in call.hooks:
                    self._tell(hook, value)

    def _tell(self, hook: Callable[[Any], object], value: Any) -> None:
        try:
            answer = hook(value)
            if inspect.iscoroutine(answer):
                loop = self._event_loop()
                if loop is None or loop.is_closed():
                    answer.close()
                    raise RuntimeError("the event loop is closed")
                error = asyncio.run_coroutine_threadsafe(_error_of(answer), loop).result()
                if error is not None:
                    raise error
        except BaseException:  # SystemExit of a hook ends neither this thread nor the worker
            self._log.exception("hook %s failed", getattr(hook, "__qualname__", hook))


async def _error_of(hook: Coroutine[Any, Any, object]) -> BaseException | None:
    """What it raises, as a value: raised in a task, SystemExit would end the worker's event loop."""
    try:
        await hook
    except BaseException as error:
        return error
    return None
