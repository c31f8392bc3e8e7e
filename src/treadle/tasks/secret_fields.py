"""Where in a payload's types there are secrets: Pydantic's SecretStr, SecretBytes and Secret[...], however deep."""

from collections.abc import Iterable, Mapping
from typing import Any

from treadle.tasks.round_trip import OBJECTS, fields_in, read_as
from treadle.tasks.secrets import ANY_DEPTH, ANY_KEY, ITEM, Path

Schema = Mapping[str, Any]

_SAME_PLACE = ("schema", "lax_schema", "strict_schema", "json_schema", "python_schema")


class SecretFields:
    """A walk through a schema of Pydantic: the `paths` of its secrets, and the `aliases` of all fields by name."""

    def __init__(self, schema: Schema) -> None:
        self.paths: dict[Path, None] = {}
        self.aliases: dict[str, set[str]] = {}
        self._named: dict[str, Schema] = {}
        self._around: dict[str, Path] = {}  # the named schemas around this place, and where each began
        self._circles: set[Path] = set()
        self._look(schema, (), {})
        for start in self._circles:  # what holds itself may do so at any depth
            below = [path for path in self.paths if path[: len(start)] == start]
            self.paths.update(dict.fromkeys((*start, ANY_DEPTH, *path[len(start) :]) for path in below))

    def _look(self, schema: Schema, path: Path, config: Mapping[str, Any]) -> None:
        if _is_secret(schema):
            self.paths[path] = None
            return
        config = schema.get("config") or config
        kind = schema["type"]
        if kind in OBJECTS:
            self._look_at_fields(schema, path, config)
        elif kind == "definition-ref":
            self._look_at_named(schema["schema_ref"], path, config)
        else:
            self._named.update({part["ref"]: part for part in schema.get("definitions", ()) if "ref" in part})
            whole = kind == "json"  # a text that holds it
            for part, inner in _parts(schema, path):
                self._look(part, path if whole else inner, config)

    def _look_at_fields(self, schema: Schema, path: Path, config: Mapping[str, Any]) -> None:
        for name, field in fields_in(schema):
            keys = {name, field.get("serialization_alias", name)}
            for alias in (field.get("alias"), field.get("validation_alias")):
                keys |= read_as(name, alias, config)
            self.aliases.setdefault(name, set()).update(keys)
            for key in keys:
                self._look(field["schema"], (*path, key), config)
        if isinstance(extras := schema.get("extras_schema"), Mapping):
            self._look(extras, (*path, ANY_KEY), config)

    def _look_at_named(self, name: str, path: Path, config: Mapping[str, Any]) -> None:
        if name in self._around:
            self._circles.add(self._around[name])
        elif name in self._named:
            self._around[name] = path
            self._look(self._named[name], path, config)
            del self._around[name]


def _is_secret(schema: Schema) -> bool:
    function = schema.get("serialization", {}).get("function")
    return getattr(function, "__module__", "") == "pydantic.types" and "secret" in getattr(function, "__name__", "")


def _parts(schema: Schema, path: Path) -> Iterable[tuple[Schema, Path]]:
    """The schemas within this one, each with its place."""
    for name in _SAME_PLACE:
        if isinstance(part := schema.get(name), Mapping):
            yield part, path
    choices = schema.get("choices", schema.get("steps", ()))
    for part in choices.values() if isinstance(choices, Mapping) else choices:
        if isinstance(part := part[0] if isinstance(part, tuple) else part, Mapping):
            yield part, path
    items = schema.get("items_schema", ())
    for part in [items] if isinstance(items, Mapping) else items:
        yield part, (*path, ITEM)
    if isinstance(part := schema.get("keys_schema"), Mapping):
        yield part, path
    if isinstance(part := schema.get("values_schema"), Mapping):
        yield part, (*path, ANY_KEY)
