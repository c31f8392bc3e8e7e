"""Takes secret payload fields out of what leaves the process: by the name of the field, and by its value anywhere."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from treadle.tasks.secrets import MASK, hide

NUMBERS_OF_FRAMES = ("lineno", "colno")  # a line may have the number of somebody's PIN


class Redaction:
    """What must not be seen of one job: the fields of these names, at any depth, and their values wherever they are.

    `values` are further ones, such as those of the task's own secrets.
    """

    def __init__(self, fields: Collection[str], payload: Any, values: Collection[str] = ()) -> None:
        self._fields = frozenset(field.lower() for field in fields)
        named = _leaves(payload, self._fields) if self._fields else ()
        self._secrets: frozenset[str | int | float] = frozenset((*named, *values))
        words = {str(secret) for secret in self._secrets}
        self._words = sorted(filter(str.strip, words), key=len, reverse=True)  # one may be a part of another

    def __call__(self, value: Any) -> Any:
        """This data without them. What is not plain data becomes its `repr`, which is looked through, too."""
        match value:
            case None | bool():
                return value
            case str():
                return self.text(value)
            case int() | float():
                return MASK if value in self._secrets or str(value) in self._words else value
            case Mapping():
                return {self.text(str(key)): self._field(str(key), item) for key, item in value.items()}
            case list() | tuple() | set() | frozenset():
                return [self(item) for item in value]
            case _:
                return self.text(_shown(value))

    def text(self, text: str) -> str:
        """This text without the values."""
        return hide(text, self._words)

    def _field(self, name: str, value: Any) -> Any:
        if name.lower() in self._fields:
            return MASK
        return value if name in NUMBERS_OF_FRAMES and isinstance(value, int) else self(value)


def _leaves(value: Any, fields: frozenset[str], hidden: bool = False) -> Iterator[str | int | float]:
    """Text and numbers in the fields of these names; a truth value says nothing, and is everywhere."""
    match value:
        case None | bool():
            return
        case Mapping():
            for name, item in value.items():
                yield from _leaves(item, fields, hidden or str(name).lower() in fields)
        case list():
            for item in value:
                yield from _leaves(item, fields, hidden)
        case str() | int() | float() if hidden:
            yield value


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # it is another program's object
        return f"<{type(value).__qualname__} that cannot be printed>"
