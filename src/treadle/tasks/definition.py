"""A handler under a name: what its payload is, how it is called, what its jobs take for granted."""

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any

from treadle.engines.values import ClaimedJob
from treadle.errors import ConfigError
from treadle.model import check_name, check_priority, check_retry
from treadle.tasks.context import Context
from treadle.tasks.options import Options
from treadle.tasks.payload import Payload


class Definition:
    """A function, or a class with `handle`, under a name; it knows no store."""

    def __init__(self, name: str, handler: Callable[..., Any], options: Options) -> None:
        check_name("task", name)
        check_retry(options.retry)
        check_priority(options.priority)
        self.name = name
        self.handler = handler
        self.options = options
        self.warned: set[str] = set()  # the options of which somebody has been warned

    @cached_property
    def payload(self) -> Payload:
        """How arguments become JSON and back; made on first use, so that importing tasks stays quick."""
        if inspect.isclass(self.handler):
            declared = getattr(self.handler, "payload_model", None)
            model = declared() if callable(declared) and not isinstance(declared, type) else declared
            return Payload(self._instance_method, self.name, model, self.options.secret)
        return Payload(self.handler, self.name, secret=self.options.secret)

    @cached_property
    def is_async(self) -> bool:
        """Whether the handler runs on the event loop rather than in a thread."""
        target = self._class_method if inspect.isclass(self.handler) else self.handler
        called = getattr(type(target), "__call__", None)  # noqa: B004 - of an object with `async def __call__`
        return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(called)

    @property
    def takes_context(self) -> bool:
        """Whether the handler has a parameter for its Context."""
        return self.payload.context_parameter is not None

    def arguments(self, claimed: ClaimedJob) -> dict[str, Any]:
        """The handler's arguments in the payload of a claimed job. Only a handler that wants the job has it made."""
        payload: Any = self.payload
        arguments: dict[str, Any] = payload.decode(claimed.job() if payload.wants_job else claimed)
        return arguments

    def run(self, context: Context | None, arguments: dict[str, Any]) -> Any:
        """Call the handler with decoded arguments; a coroutine if it is async. `context`: if it takes one."""
        if self.payload.context_parameter is not None:
            arguments = {**arguments, self.payload.context_parameter: context}
        target: Any = self.handler
        return target().handle(**arguments) if isinstance(target, type) else target(**arguments)

    @property
    def _class_method(self) -> Any:
        method = getattr(self.handler, "handle", None)
        if method is None:
            raise ConfigError(f"task {self.name!r}: class {self.handler.__name__} needs a method handle(self, payload)")
        return method

    @property
    def _instance_method(self) -> Any:
        """`handle` as seen on an instance, without making one."""
        handler: Any = self.handler
        self._class_method  # noqa: B018 - says clearly if there is none
        return object.__new__(handler).handle


def check_handler(name: str, handler: Callable[..., Any]) -> None:
    """ConfigError for a function whose arguments no payload can fill; what it costs is paid at import."""
    if not inspect.isfunction(handler) or hasattr(handler, "__wrapped__"):  # its parameters may be a decorator's
        return
    if name == "<lambda>":
        raise ConfigError("a lambda has no name for its task; write app.register('name', lambda …), or a function")
    code = handler.__code__
    parameters = code.co_varnames[: code.co_argcount]
    if parameters[:1] in (("self",), ("cls",)) and "." in handler.__qualname__.rpartition("<locals>.")[2]:
        raise ConfigError(
            f"task {name!r}: {handler.__qualname__} is a method, and no payload holds its object; write a function, "
            "or decorate a class that has a method handle(self, payload)"
        )
    if code.co_posonlyargcount or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        raise ConfigError(
            f"task {name!r}: {handler.__qualname__}{inspect.signature(handler)}: *args, **kwargs and positional-only "
            "parameters cannot be filled from JSON; name each parameter"
        )
