"""What a type checker knows of `@app.task`: the kinds of handlers, and what becomes of each."""

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from treadle.tasks.context import Context
from treadle.tasks.task import ContextTask, Task

P = ParamSpec("P")
R = TypeVar("R")


class HandlerClass(Protocol):
    """A class whose objects handle one job each."""

    @property
    def handle(self) -> Callable[..., Any]: ...


class Untyped:
    """Nobody's type: only a parameter without one, or of `Any` or `object`, takes it, and that is not a Context."""


class Decorator(Protocol):
    """What `app.task(...)` returns: it wraps a function, whose Context parameter callers do not pass."""

    @overload
    def __call__(self, handler: type[HandlerClass], /) -> Task[..., Any]: ...  # type: ignore[overload-overlap] # as meant
    @overload
    def __call__(self, handler: Callable[Concatenate[Untyped, P], R], /) -> Task[..., R]: ...
    @overload
    def __call__(self, handler: Callable[Concatenate[Context, P], R], /) -> ContextTask[P, R]: ...
    @overload
    def __call__(self, handler: Callable[P, R], /) -> Task[P, R]: ...
