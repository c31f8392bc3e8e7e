"""Async faces: a blocking method, awaited."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


def async_face(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """The method for async code, with the same arguments and answer: it runs in a thread, and the loop goes on."""

    @wraps(method)
    async def face(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        from asyncio import to_thread  # noqa: PLC0415 - a process that only enqueues does not need it

        return await to_thread(getattr(self, method.__name__), *args, **kwargs)  # as a subclass has it

    face.__name__ = f"a{method.__name__}"
    face.__doc__ = f"`{method.__name__}` for async code."
    return face
