"""app.override: another store in the place of the app's own for a while, as tests need it."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from types import TracebackType
from typing import Any, Generic, TypeVar

from treadle.app.store import Store, StoreInForce
from treadle.errors import ConfigError, NotPossible
from treadle.model.clock import Clock

A = TypeVar("A")
F = TypeVar("F", bound=Callable[..., Any])


class Override(Generic[A]):
    """What `app.override(...)` returns: a context manager that gives the app, or a decorator of functions."""

    def __init__(
        self,
        app: A,
        store: Store,
        running_workers: Callable[[], list[str]],
        settings: Mapping[str, Any],
        clock: Clock | None,
    ) -> None:
        self._app = app
        self._store = store
        self._running_workers = running_workers
        self._settings = settings
        self._clock = clock
        self._put: StoreInForce | None = None

    def __enter__(self) -> A:
        if self._put is not None:
            raise NotPossible("override: this one holds already; call app.override(…) once more to nest them")
        if workers := self._running_workers():
            raise NotPossible(
                f"override: worker {workers[0]} of this app runs, and would go on with the store that it has; stop it, "
                "or start it inside the override"
            )
        self._put = self._store.put(self._settings, self._clock)
        return self._app

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        put, self._put = self._put, None
        workers = self._running_workers()
        if put is not None:
            self._store.take_away(put)
        if workers and error is None:
            raise NotPossible(
                f"override: worker {workers[0]} was started inside and still runs; stop it before the end"
            )

    def __call__(self, function: F, /) -> F:
        """The function, with this override around each of its calls; an async one too."""
        if inspect.isclass(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(
                f"override: {function.__qualname__} must be a function, `def` or `async def`, without a `yield`; "
                "elsewhere write `with app.override(…):`, in unittest's setUp self.enterContext(app.override(…))"
            )
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def acall(*args: Any, **kwargs: Any) -> Any:
                with self._again():
                    return await function(*args, **kwargs)

            return acall  # type: ignore[return-value] # it is called as the function is

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._again():
                return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    def _again(self) -> "Override[A]":
        return Override(self._app, self._store, self._running_workers, self._settings, self._clock)
