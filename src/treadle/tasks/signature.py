"""The signature of a handler: how it is read, and how an error shows it."""

import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from treadle.errors import ConfigError
from treadle.tasks.context import Context

PLACE = re.compile(r"('[^']*'|\"[^\"]*\")|(?:\b\w+\.|<locals>\.)+")  # of a type, as in `app.models.Order`; not in text


def signature_of(handler: Callable[..., Any], name: str) -> inspect.Signature:
    """The handler's signature, its annotations evaluated; ConfigError if one cannot be."""
    try:
        return inspect.signature(handler, eval_str=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise ConfigError(
            f"task {name!r}: an annotation cannot be resolved ({error}); define its type at module level"
        ) from error


def is_context(parameter: inspect.Parameter) -> bool:
    """Whether this parameter is given the Context: annotated `Context`, or `Context | None` with a default."""
    kind = parameter.annotation
    return kind is Context or (Context in get_args(kind) and set(get_args(kind)) <= {Context, type(None)})


def is_whole(parameter: inspect.Parameter, model: type | None) -> bool:
    """Whether this only parameter is the whole payload rather than one key of it."""
    if model is not None or parameter.name in ("payload", "job"):
        return True
    kind = parameter.annotation
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return isinstance(kind, type) and hasattr(kind, "model_fields") and hasattr(kind, "model_validate")


def as_called(name: str, signature: inspect.Signature) -> str:
    """A task with its parameters, as an error shows it: types by their own names, without validators.

    >>> as_called("greet", inspect.signature(lambda name, times=1: None))
    'greet(name, times=1)'
    """
    given = {p.name: p.annotation for p in signature.parameters.values() if p.annotation is not p.empty}
    plain = get_type_hints(type("Given", (), {"__annotations__": given}))  # it takes Annotated off, however deep
    taken = [
        p.replace(annotation=_Shown(plain[p.name])) if p.name in plain else p for p in signature.parameters.values()
    ]
    return f"{name}{signature.replace(parameters=taken, return_annotation=signature.empty)}"


class _Shown:
    """An annotation that is shown without the modules of its types."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def __repr__(self) -> str:
        return PLACE.sub(lambda found: found[1] or "", inspect.formatannotation(self._kind))
