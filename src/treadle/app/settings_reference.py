"""What there is to know of each setting, as text, read off the fields of Settings."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from treadle.app.settings import PREFIX, Settings
from treadle.app.toml_text import toml_value
from treadle.model import State
from treadle.model.clock import span

Kind = Literal["table", "list", "duration", "number", "boolean", "text", "word"]

KINDS: Mapping[Any, Kind] = {
    dict: "table",
    list: "list",
    float: "duration",
    int: "number",
    bool: "boolean",
    str: "text",
    Literal: "word",
}
SECRET = ("url", "listen_url", "server", "token")
"""Settings that may hold a password, or are one; no message shows their values."""


class Reference(NamedTuple):
    """One setting; `default` and `example` are as in treadle.toml, None if there is no default."""

    name: str
    description: str
    default: str | None
    range: str
    example: str


def reference(name: str) -> Reference:
    """What there is to know of the setting of this name."""
    field = Settings.model_fields[name]
    default = as_written(name, field.default)
    return Reference(
        name=name,
        description=field.description or "",
        default=None if default is None else toml_value(default),
        range=range_of(name),
        example=toml_value((field.examples or [None])[0]),
    )


def markdown_table() -> str:
    """The table of docs/settings.md."""
    rows = ["| setting | default | range | example | meaning |", "|---|---|---|---|---|"]
    for name, description, default, allowed, example in map(reference, Settings.model_fields):
        shown = "–" if default is None else f"`{default}`"
        rows.append(f"| `{name}` | {shown} | {allowed} | `{name} = {example}` | {description} |")
    return "\n".join(rows) + "\n"


def variable_of(name: str) -> str:
    """The variable of the environment that sets it."""
    return f"{PREFIX}{name.upper()}"


def meant(name: object) -> str:
    """What follows a name that is not a setting: the one it resembles, or all of them."""
    near = get_close_matches(str(name), Settings.model_fields, 1)
    return f", did you mean {near[0]}?" if near else f"; known: {', '.join(Settings.model_fields)}"


def kind_of(name: str) -> Kind:
    """What kind of value it takes."""
    return _kind(Settings.model_fields[name].annotation)


def range_of(name: str) -> str:
    """Which values it may have; it reads on from "must be"."""
    field = Settings.model_fields[name]
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "range" in extra:
        return str(extra["range"])
    kind = kind_of(name)
    if kind in ("number", "duration"):
        least = next(limit.ge for limit in field.metadata if hasattr(limit, "ge"))
        most = next(limit.le for limit in field.metadata if hasattr(limit, "le"))
        return f"from {span(least)} to {span(most)}" if kind == "duration" else f"from {least:,} to {most:,}"
    if kind == "boolean":
        return "true or false"
    words = list(_words(field.annotation))
    first, last = ", ".join(words[:-1]), words[-1]
    return f"a list of {first} and {last}, or an empty one" if kind == "list" else f"{first} or {last}"


def as_written(name: str, value: Any) -> Any:
    """A value in force as treadle.toml would have it: durations as text; None if it is not set."""
    if name == "keep_tasks":
        return {task: {State(state).value: _age(age) for state, age in kept.items()} for task, kept in value.items()}
    if kind_of(name) == "duration":
        return _age(value)
    return value


def _age(seconds: float | None) -> str:
    return "forever" if seconds is None else span(seconds)


def _kind(annotation: Any) -> Kind:
    return next(KINDS[get_origin(part) or part] for part in _alternatives(annotation))


def _alternatives(annotation: Any) -> Iterator[Any]:
    """What a value may be beside None."""
    if get_origin(annotation) is Annotated:
        yield from _alternatives(get_args(annotation)[0])
    elif NoneType in get_args(annotation):
        for part in get_args(annotation):
            yield from () if part is NoneType else _alternatives(part)
    else:
        yield annotation


def _words(annotation: Any) -> Iterator[str]:
    """The words that a Literal in it allows."""
    for part in get_args(annotation):
        if isinstance(part, str):
            yield part
        else:
            yield from _words(part)
