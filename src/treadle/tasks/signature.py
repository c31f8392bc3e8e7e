"""How an error shows the signature of a handler."""

import inspect
import re
from typing import Any, get_type_hints

PLACE = re.compile(r"('[^']*'|\"[^\"]*\")|(?:\b\w+\.|<locals>\.)+")  # of a type, as in `app.models.Order`; not in text


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
