"""What the built-in tasks share in `register(...)`: arguments that are wrong, and the options of a task."""

import inspect
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from treadle.app.treadle import SCHEDULING, Treadle
from treadle.errors import ConfigError, InvalidInput, InvalidTiming
from treadle.model import check_name
from treadle.model.clock import Duration, seconds
from treadle.tasks.registry import OPTIONS, unknown_option
from treadle.tasks.task import Task


@contextmanager
def errors_of(where: str) -> Iterator[None]:
    """What is refused in here is a ConfigError that begins with these words."""
    try:
        yield
    except (ConfigError, InvalidInput) as error:
        raise ConfigError(f"{where}: {error}") from None


def check_names(field: str, named: Mapping[str, object]) -> None:
    """Refuse a mapping with a key that cannot be a name."""
    for name in named:
        check_name(field, name)


def checked_seconds(field: str, given: Duration, most: float) -> float:
    """A duration in seconds, more than 0 and at most `most`."""
    found = seconds(given, field)
    if not 0 < found <= most:
        raise InvalidTiming(f"{field}: {given!r} must be more than 0 and at most {most:g} s")
    return found


def checked_tls(given: object) -> ssl.SSLContext | None:
    """What certificates are checked with, if it was given."""
    if given is None or isinstance(given, ssl.SSLContext):
        return given
    raise ConfigError(f"tls: {given!r} must be an ssl.SSLContext; without it, what the system trusts is trusted")


def listed(field: str, given: Any, example: str) -> tuple[Any, ...]:
    """The items of a list; a text is not one, although Python can go through its letters."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ConfigError(f"{field}: {given!r} is not a list; write {field}={example}")
    return tuple(given)


def add_task(
    app: Treadle, name: str, handler: Callable[..., Any], register: Callable[..., Any], options: Mapping[str, Any]
) -> Task[..., Any]:
    """Register the handler; an option that is not known is compared with what this `register` takes, too."""
    parameters = list(inspect.signature(register).parameters.values())[1:]
    own = [one.name for one in parameters if one.kind is not inspect.Parameter.VAR_KEYWORD]
    if unknown := sorted(options.keys() - {*OPTIONS, *SCHEDULING}):
        raise unknown_option(name, unknown, (*own, *OPTIONS, *SCHEDULING))
    return app.register(name, handler, **options)
