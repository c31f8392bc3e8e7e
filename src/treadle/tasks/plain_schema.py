"""Which payloads Pydantic writes as JSON in the very text that Python's own encoder would write.

Then one call into Pydantic does for three passes over the data. A shape is plain if all its parts are known to be: what
is not named here is not.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

Schema = Mapping[str, Any]

_LEAVES = {"str", "bool", "none", "datetime", "date", "time", "uuid", "decimal"}
_NUMBERS = {"int": 0, "float": 0.0}
_CHOICES = (str, int, bool, type(None))


class PlainShape(NamedTuple):
    """What one must know of a plain payload to write it."""

    kinds: frozenset[str]  # which of "int", "float" and "model" occur in it
    numbers: Mapping[str, float]  # the keys of the payload that are a number each, with a zero of their kind
    certain: bool  # whether a valid payload holds nothing but what its shape says, if its numbers are numbers


def plain_shape(schema: Schema) -> PlainShape | None:
    """The plain shape that a schema of Pydantic describes, if it is one.

    Pydantic takes an Enum for a number whatever its value is, and never looks at a model that is made already. So it is
    certain of numbers at the top, which one can look at, and of nothing else that holds a number or a model.
    """
    kinds = _kinds(schema, {}, in_model=False)
    if kinds is None:
        return None
    fields = schema["fields"] if schema["type"] == "typed-dict" else {}
    numbers = {name: _NUMBERS[kind] for name, field in fields.items() if (kind := field["schema"]["type"]) in _NUMBERS}
    within = [_kinds(field["schema"], {}, in_model=False) for name, field in fields.items() if name not in numbers]
    return PlainShape(kinds, numbers, not any(within) if fields else not kinds)


def _kinds(schema: Schema, named: Mapping[str, Schema], *, in_model: bool) -> frozenset[str] | None:
    """Which of "int", "float" and "model" occur in a shape; None if it is not plain. Schemas may be `named` elsewhere.

    A model's attribute may have been assigned anything. Pydantic writes some of that as a float where Python would
    refuse it: a shape with a float in a model is not plain.
    """
    kind = schema["type"]
    if "serialization" in schema or _writes_its_own_way(schema.get("config") or {}):
        return None
    if kind in _LEAVES:
        return frozenset()
    if kind in _NUMBERS:
        return None if kind == "float" and in_model else frozenset({kind})
    if kind in ("literal", "enum"):
        return frozenset() if _plain_choices(schema, in_model) else None
    if kind == "definitions":
        named = {part["ref"]: part for part in schema["definitions"]}
    parts = _parts(schema, named)
    if kind == "definition-ref":  # what holds itself has no end, and is not plain
        named = {name: part for name, part in named.items() if name != schema["schema_ref"]}
    found = frozenset({kind}) if kind == "model" else frozenset()
    for part in parts:
        kinds = None if part is None else _kinds(part, named, in_model=in_model or kind == "model")
        if kinds is None:
            return None
        found |= kinds
    return found


def _writes_its_own_way(config: Mapping[str, Any]) -> bool:
    return config.get("extra_fields_behavior") == "allow" or any(name.startswith("ser_json") for name in config)


def _plain_choices(schema: Schema, in_model: bool) -> bool:
    """Whether these values are text or whole numbers; a literal in a model may have been assigned anything."""
    if schema["type"] == "literal":
        return not in_model and all(type(value) in _CHOICES for value in schema["expected"])
    return all(type(member.value) in _CHOICES for member in schema["members"])


def _parts(schema: Schema, named: Mapping[str, Schema]) -> Iterable[Schema | None]:
    """The shapes within this one; None stands for one that is not plain."""
    match schema["type"]:
        case "nullable" | "default" | "definitions":
            return [schema["schema"]]
        case "list":
            return [schema.get("items_schema")]
        case "dict":
            keys = schema.get("keys_schema")
            return [keys if keys and keys["type"] == "str" else None, schema.get("values_schema")]
        case "model":
            return [None if schema.get("root_model") else schema["schema"]]
        case "model-fields" | "typed-dict":
            return _fields(schema)
        case "definition-ref":
            return [named.get(schema["schema_ref"])]
        case _:
            return [None]


def _fields(schema: Schema) -> Iterable[Schema | None]:
    """The shapes of an object's fields, if all its keys are known and no two are alike."""
    fields: Mapping[str, Schema] = schema["fields"]
    if schema.get("computed_fields") or schema.get("extra_behavior") == "allow" or "extras_schema" in schema:
        return [None]
    keys = {field.get("serialization_alias", name) for name, field in fields.items()}
    return [None] if len(keys) < len(fields) else [field["schema"] for field in fields.values()]
