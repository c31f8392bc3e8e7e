"""For your own tests: a clock that you move, a worker that runs what is due here and now, a context for handlers.

clock = FakeClock()
app = Treadle("sqlite:///:memory:", clock=clock)
...
welcome.using(run_after="5m").enqueue(user)
clock.advance(minutes=5)
run_until_idle(app)

The names are loaded when they are first asked for: pytest loads our plugin in every project that has treadle installed.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.testing.asserting import assert_enqueued, assert_not_enqueued
    from treadle.testing.clock import FakeClock
    from treadle.testing.context import FakeContext, Settlement
    from treadle.testing.running import arun_until_idle, run_until_idle

__all__ = [
    "FakeClock",
    "FakeContext",
    "Settlement",
    "arun_until_idle",
    "assert_enqueued",
    "assert_not_enqueued",
    "run_until_idle",
]  # fmt: skip

_MODULE_OF = {
    "FakeClock": "clock",
    "FakeContext": "context",
    "Settlement": "context",
    "arun_until_idle": "running",
    "assert_enqueued": "asserting",
    "assert_not_enqueued": "asserting",
    "run_until_idle": "running",
}


def __getattr__(name: str) -> Any:
    """The helper of this name, from the module that has it."""
    from importlib import import_module  # noqa: PLC0415 - only for a name that is not loaded yet

    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
