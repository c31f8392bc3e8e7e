"""Whether what is written of a payload is what will be read: decided once for a task, checked where it is in doubt.

Most types are beyond doubt, and their payloads cost nothing here. The others (fields that are left out of JSON,
serializers and validators in code, most unions, unusual keys) are read back once when they are enqueued, and compared.
An instance of a subclass is in doubt too: Pydantic writes the fields of the class that is annotated.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

Schema = Mapping[str, Any]

_CERTAIN = {
    "str", "int", "float", "bool", "none", "datetime", "date", "time", "timedelta", "uuid", "decimal", "bytes", "url",
}  # fmt: skip
_APART = {"str", "int", "float", "bool", "none"}  # each has a form in JSON that is not another's
_KEYS = {"str", "int", "uuid", "datetime", "date"}  # what is read back from the text of a key
_CHOICES = (str, int, bool, type(None))
_OPEN = {"any"}
OBJECTS = {"model-fields", "dataclass-args", "typed-dict"}


class RoundTrip(NamedTuple):
    """What one must know of a payload's types before its JSON is trusted."""

    by_alias: bool  # whether keys are written as the aliases say; otherwise as the fields are called
    doubtful: bool  # whether each payload is to be read back
    loose: frozenset[str]  # the keys of the payload that take any data, or "" for all: JSON's own forms are expected
    classes: tuple[type, ...]  # the models and dataclasses in it: an instance of a subclass is in doubt
    hints: Mapping[str, str]  # why a field may not arrive, and the way out, by its name

    def in_doubt(self) -> bool:
        """Whether a payload is to be read back: for its types, or because they have got subclasses by now."""
        return self.doubtful or any(map(type.__subclasses__, self.classes))


def round_trip(schema: Schema) -> RoundTrip:
    """What a schema of Pydantic says of the way there and back."""
    whole, loose = _Doubts(), set()
    whole.look(schema)
    top = schema["schema"] if schema["type"] == "definitions" else schema
    parts = top["fields"] if top["type"] == "typed-dict" else {}
    for name, field in parts.items():
        part = _Doubts(whole.named)
        part.look(field["schema"])
        if part.loose:
            loose.add(name)
    if whole.loose and not parts:
        loose.add("")
    by_alias = whole.reads_aliases or not whole.reads_names or whole.functions
    doubtful = whole.doubtful or (by_alias and not whole.reads_aliases)
    return RoundTrip(by_alias, doubtful, frozenset(loose), tuple(whole.classes), whole.hints)


class _Doubts:
    """A walk through a schema that gathers what is not certain in it."""

    def __init__(self, named: Mapping[str, Schema] | None = None) -> None:
        self.named: dict[str, Schema] = dict(named or {})
        self.doubtful = self.loose = self.functions = False
        self.reads_aliases = self.reads_names = True
        self.classes: dict[type, None] = {}
        self.hints: dict[str, str] = {}
        self._seen: set[str] = set()

    def look(self, schema: Schema, config: Mapping[str, Any] | None = None) -> None:
        """Look at a schema and all that is in it; `config` is that of the model around it."""
        kind = schema["type"]
        config = schema.get("config") or config or {}
        if "serialization" in schema or any(name.startswith(("ser_json", "val_json")) for name in config):
            self.doubtful = True
        if schema.get("extra_behavior") == "allow" or config.get("extra_fields_behavior") == "allow":
            self.loose = True
        if kind in _OPEN:
            self.loose = True
        elif kind in ("literal", "enum"):
            self.doubtful |= not _named_by_value(schema, _CHOICES)
        elif kind in OBJECTS:
            self._look_at_fields(schema, config)
        elif kind not in _CERTAIN:
            self._look_within(kind, schema, config)

    def _look_within(self, kind: str, schema: Schema, config: Mapping[str, Any]) -> None:
        match kind:
            case "nullable" | "default":
                self.look(schema["schema"], config)
            case "list" | "set" | "frozenset" | "tuple":
                items = schema.get("items_schema", {"type": "any"})
                for item in [items] if isinstance(items, Mapping) else items:
                    self.doubtful |= "set" in kind and item["type"] not in _CERTAIN  # a list is not an item of one
                    self.look(item, config)
            case "dict":
                self._look_at_keys(schema.get("keys_schema", {"type": "any"}), config)
                self.look(schema.get("values_schema", {"type": "any"}), config)
            case "model" | "dataclass":
                self.classes[schema["cls"]] = None
                self.doubtful |= bool(schema.get("custom_init") or schema.get("post_init"))
                self.look(schema["schema"], config)
            case "definitions":
                self.named.update({part["ref"]: part for part in schema["definitions"]})
                self.look(schema["schema"], config)
            case "definition-ref":
                if schema["schema_ref"] not in self._seen:
                    self._seen.add(schema["schema_ref"])
                    self.look(self.named.get(schema["schema_ref"], {"type": "unknown"}), config)
            case "union" | "tagged-union":
                self._look_at_choices(schema, config)
            case _:  # code, or what a later Pydantic brings
                self.doubtful = self.functions = True
                if isinstance(schema.get("schema"), Mapping):
                    self.look(schema["schema"], config)

    def _look_at_choices(self, schema: Schema, config: Mapping[str, Any]) -> None:
        choices = schema["choices"]
        parts = [part[0] if isinstance(part, tuple) else part for part in _values(choices)]
        self.doubtful |= schema["type"] == "union" and not all(part["type"] in _APART for part in parts)
        for part in parts:
            self.look(part, config)

    def _look_at_keys(self, keys: Schema, config: Mapping[str, Any]) -> None:
        if keys["type"] in ("enum", "literal"):
            self.doubtful |= not _named_by_value(keys, (str,))
        elif keys["type"] not in _KEYS | _OPEN:
            self.doubtful = True
        self.look(keys, config)

    def _look_at_fields(self, schema: Schema, config: Mapping[str, Any]) -> None:
        for name, field in fields_in(schema):
            if field.get("serialization_exclude") or "serialization_exclude_if" in field:
                self.doubtful = True
                self.hints[name] = (
                    f"its exclude keeps {name} out of JSON; take that away, or make it a parameter of its own"
                )
            elif field.get("init_only") or field.get("init") is False:
                self.doubtful = True
                self.hints[name] = f"{name} is not both a field and an argument of its class; make it an ordinary field"
            else:
                self._look_at_alias(name, field, config)
            self.look(field["schema"], config)

    def _look_at_alias(self, name: str, field: Schema, config: Mapping[str, Any]) -> None:
        read = read_as(name, field.get("validation_alias"), config)
        written = field.get("serialization_alias", name)
        self.reads_names &= name in read
        if written not in read:
            self.reads_aliases = False
            hint = f"{name} is written as {written!r}, which is not how it is read; give it one alias for both"
            self.hints.update(dict.fromkeys([name, *_names_in(field.get("validation_alias"))], hint))


class PayloadKey(NamedTuple):
    """A key of a payload that is an object."""

    name: str
    read_as: frozenset[str]
    required: bool


def payload_keys(schema: Schema, named: Mapping[str, Schema] | None = None) -> list[PayloadKey] | None:
    """The keys that a schema reads; None if it takes other keys too, or is not known to read any."""
    kind, named = schema["type"], named or {}
    config = schema.get("config") or {}
    if schema.get("extra_behavior") == "allow" or config.get("extra_fields_behavior") == "allow":
        return None
    if kind in _CERTAIN | {"list", "set", "frozenset", "tuple", "literal", "enum"}:
        return [PayloadKey("payload", frozenset(), required=True)]  # it is not an object
    if kind in ("model", "dataclass"):
        inner = schema["schema"]
        return payload_keys({**inner, "config": config} if inner["type"] in OBJECTS else inner, named)
    if kind in OBJECTS:
        return [_payload_key(name, field, config) for name, field in fields_in(schema)]
    if kind == "definitions":
        return payload_keys(schema["schema"], {part["ref"]: part for part in schema["definitions"]})
    if kind == "definition-ref":
        return payload_keys(named.get(schema["schema_ref"], {"type": "any"}), named)
    return payload_keys(schema["schema"], named) if isinstance(schema.get("schema"), Mapping) else None


def _payload_key(name: str, field: Schema, config: Mapping[str, Any]) -> PayloadKey:
    required = field.get("required", field["schema"]["type"] != "default")
    return PayloadKey(name, frozenset(read_as(name, field.get("validation_alias"), config)), bool(required))


def difference(given: Any, read: Any, trip: RoundTrip) -> tuple[str, str] | None:
    """Where the payload that is read back is not the one given, and what is wrong there; None if it is the same."""
    if _equal(given, read):
        return None
    if not trip.loose or "" in trip.loose or not isinstance(given, dict):
        return _compare(given, read, "", loose="" in trip.loose)
    found = (_compare(given[name], read.get(name), name, loose=name in trip.loose) for name in given)
    return next(filter(None, found), None)


def _compare(given: Any, read: Any, path: str, *, loose: bool) -> tuple[str, str] | None:
    own = _attributes(given)
    if own is not None:
        return _compare_objects(given, read, own, path, loose=loose)
    found: Iterable[tuple[str, str] | None] = ()
    if isinstance(given, dict) and isinstance(read, dict):
        if len(given) != len(read):
            return path, "some of its keys are one in JSON"
        if not loose and given.keys() != read.keys():
            return path, "its keys would arrive as others"
        found = (
            _compare(value, read[name], f"{path}.{name}" if path else str(name), loose=loose)
            for name, value in given.items()
            if name in read
        )
    elif isinstance(given, list | tuple) and isinstance(read, list | tuple):
        if len(given) != len(read) or (type(given) is not type(read) and not loose):
            return path, f"it would arrive as {type(read).__name__}, of {len(read)} items"
        pairs = zip(given, read, strict=True)
        found = (_compare(one, other, f"{path}.{at}", loose=loose) for at, (one, other) in enumerate(pairs))
    elif not _alike(given, read, loose=loose):
        kind = type(read).__name__ if type(read) is not type(given) else "another value"
        return path, f"it would arrive as {kind}"
    return next(filter(None, found), None)


def _compare_objects(
    given: Any, read: Any, own: Mapping[str, Any], path: str, *, loose: bool
) -> tuple[str, str] | None:
    there = _attributes(read)
    if there is None or not isinstance(given, type(read)):
        return None if loose else (path, f"it would arrive as {type(read).__name__}, not as {type(given).__name__}")
    if lost := [name for name in own if name not in there]:
        kind, taken = type(given).__name__, type(read).__name__
        return path, (
            f"the task takes {taken}, and this is a {kind}: its {', '.join(lost)} would be lost; "
            f"annotate {kind}, or {taken} | {kind}"
        )
    found = (_compare(own[name], there[name], f"{path}.{name}" if path else name, loose=loose) for name in there)
    return next(filter(None, found), None)


def _attributes(value: Any) -> Mapping[str, Any] | None:
    """The fields of a model or a dataclass with their values; None of anything else."""
    if isinstance(value, type):
        return None
    if hasattr(type(value), "model_fields"):
        return {name: value.__dict__[name] for name in type(value).model_fields if name in value.__dict__}
    if is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    return None


def _alike(given: Any, read: Any, *, loose: bool) -> bool:
    """Whether two values are the same, or cannot be compared; `loose`: or another kind in JSON by nature."""
    kind: Any = type(given)
    if kind.__eq__ is object.__eq__ or (loose and kind is not type(read)):
        return True
    return _equal(given, read) is not False or given != given  # noqa: PLR0124 - NaN is not what it is


def _equal(one: Any, other: Any) -> bool | None:
    """Whether two values are equal; None if they will not say, as arrays do."""
    try:
        return bool(one == other)
    except Exception:
        return None


def _named_by_value(schema: Schema, kinds: tuple[type, ...]) -> bool:
    """Whether all choices of an enum or a literal are of these kinds, so that their JSON names them."""
    values = schema["expected"] if schema["type"] == "literal" else [member.value for member in schema["members"]]
    return all(type(value) in kinds for value in values)


def read_as(name: str, alias: Any, config: Mapping[str, Any]) -> set[str]:
    """The keys under which a field is read."""
    if alias is None:
        return {name}
    paths = [[alias]] if isinstance(alias, str) else [alias] if isinstance(alias[0], str) else alias
    read = {path[0] for path in paths if len(path) == 1} if config.get("validate_by_alias") is not False else set()
    return read | {name} if config.get("validate_by_name") or config.get("populate_by_name") else read


def _names_in(alias: Any) -> list[str]:
    """All names in an alias, a path or a choice of them."""
    return (
        [alias]
        if isinstance(alias, str)
        else [name for part in alias for name in _names_in(part)]
        if isinstance(alias, list)
        else []
    )


def fields_in(schema: Schema) -> Iterable[tuple[str, Schema]]:
    found = schema["fields"]
    return found.items() if isinstance(found, Mapping) else [(field["name"], field) for field in found]


def _values(choices: Any) -> Iterable[Any]:
    return choices.values() if isinstance(choices, Mapping) else choices
