"""A form from a JSON Schema: a field for each part of a payload that people can type, and what they typed read back.

What a field cannot say is a field of JSON, at worst the payload as a whole. A field that was left as it was shown
gives the very value it was made from, whatever that is.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from treadle.server.strict import read_json
from treadle.tasks.secrets import MASK, holds_mask

Schema = Mapping[str, Any]

ABSENT: Any = type("Absent", (), {"__repr__": lambda _: "ABSENT"})()
"""In the place of a value that is not there."""

MOST_FIELDS, DEEPEST = 120, 5
MOST_REFS = 20
_INT = re.compile(r"-?[0-9]{1,4000}")
_HINTS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "pattern": "fits {}",
    "format": "{}",
}
_SIMPLE = {"string": "text", "integer": "number", "number": "number", "boolean": "flag"}
_WORDS = {"integer": "a whole number", "number": "a number", "array": "a list", "object": "an object"}


class FieldChoice(NamedTuple):
    """One of the values that a field may have: what is sent, and what is shown."""

    sent: str
    text: str


class FormField(NamedTuple):
    """A field of the form, or a group of them. `kind`: text, lines, number, flag, choice, json, rest, group."""

    id: str
    name: str  # of the input: p and the JSON pointer of its place
    key: str
    dotted: str  # its place, as the API names it
    kind: str
    original: Any
    shown: str = ""
    required: bool = True
    nullable: bool = False
    secret: bool = False
    help: str = ""
    hints: Sequence[str] = ()
    default: Any = ABSENT
    choices: Sequence[FieldChoice] = ()
    fields: Sequence["FormField"] = ()

    @property
    def empty(self) -> str:
        """What it means to leave it empty, if that is not plain."""
        if self.secret or self.kind in ("flag", "choice"):
            return ""
        given = _empty(self)
        if given is None:
            return "Empty: null."
        if given is ABSENT and not self.required:
            default = "" if self.default is ABSENT else f"; the default is {_written(self.default)}"
            return f"Empty: left out{default}."
        return ""

    def each(self) -> Iterator["FormField"]:
        """This field, and those within it."""
        yield self
        for field in self.fields:
            yield from field.each()


class PartProblem(NamedTuple):
    """What is wrong with a place in the payload."""

    field: str
    problem: str


def form_of(schema: Schema | None, payload: Any) -> FormField:
    """The form of a payload as it is shown; one field of JSON if there is no schema, or it says too much."""
    if schema is not None:
        made = _FormMaker(schema).field("", schema, payload, _Place())
        if made.kind == "group" and sum(1 for _ in made.each()) <= MOST_FIELDS:
            return made
    return _FormMaker({}).json("payload", {}, payload, _Place())


def read(form: FormField, lists: Mapping[str, Sequence[str]]) -> tuple[Any, list[PartProblem]]:
    """The payload that was typed, and what of it cannot be read; ABSENT if there is none."""
    problems: list[PartProblem] = []
    return _read(form, lists, problems), problems


def at_fields(form: FormField, problems: Iterable[Mapping[str, str]]) -> dict[str, list[str]]:
    """The problems by the name of the field that each is about; those of no field are the form's own."""
    fields = sorted(form.each(), key=lambda field: len(field.dotted), reverse=True)
    found: dict[str, list[str]] = {}
    for one in problems:
        place = one["field"] if one["field"].split(".")[0] == "payload" else f"payload.{one['field']}"
        about = next((field for field in fields if f"{place}.".startswith(f"{field.dotted}.")), form)
        inner = place[len(about.dotted) + 1 :]
        found.setdefault(about.name, []).append(f"{inner}: {one['problem']}" if inner else one["problem"])
    return found


def resolved(schema: Any, defs: Mapping[str, Any], seen: frozenset[str] = frozenset()) -> tuple[Schema, frozenset[str]]:
    """A schema without references at its top, and those that were followed; {} for one that holds itself."""
    while isinstance(schema, Mapping) and ("$ref" in schema or _alone(schema.get("allOf"))):
        if "$ref" not in schema:
            schema = {**{name: it for name, it in schema.items() if name != "allOf"}, **schema["allOf"][0]}
            continue
        ref = str(schema["$ref"])
        target = defs.get(ref.removeprefix("#/$defs/").replace("~1", "/").replace("~0", "~"))
        if ref in seen or len(seen) > MOST_REFS or not isinstance(target, Mapping):
            return {}, seen
        seen |= {ref}
        schema = {**target, **{name: it for name, it in schema.items() if name != "$ref"}}
    return (schema if isinstance(schema, Mapping) else {}), seen


def without_null(schema: Schema) -> tuple[Schema, bool]:
    """A schema without the null that it allows beside one other shape, and whether it does."""
    kind = schema.get("type")
    if isinstance(kind, list) and "null" in kind and len(kind) == 2:
        return {**schema, "type": next(one for one in kind if one != "null")}, True
    ways = schema.get("anyOf") or schema.get("oneOf")
    if not isinstance(ways, list):
        return schema, False
    rest = [way for way in ways if not (isinstance(way, Mapping) and way.get("type") == "null")]
    if len(rest) == len(ways) or len(rest) != 1:
        return schema, len(rest) < len(ways)
    around = {name: it for name, it in schema.items() if name not in ("anyOf", "oneOf")}
    return {**rest[0], **around} if isinstance(rest[0], Mapping) else {}, True


# -------------------------------------------------------------------------------------------- making


class _Place(NamedTuple):
    """Where a field lies."""

    pointer: str = ""
    dotted: str = "payload"
    depth: int = 0
    required: bool = True
    seen: frozenset[str] = frozenset()

    def below(self, key: str, required: bool) -> "_Place":
        name = key.replace("~", "~0").replace("/", "~1")
        return _Place(f"{self.pointer}/{name}", f"{self.dotted}.{key}", self.depth + 1, required, self.seen)


class _FormMaker:
    """Makes the fields of one schema, and numbers them."""

    def __init__(self, schema: Schema) -> None:
        self._defs: Mapping[str, Any] = schema.get("$defs") or {}
        self._count = 0

    def field(self, key: str, given: Any, value: Any, place: _Place) -> FormField:
        """The field of a value of this schema."""
        outer, seen = resolved(given, self._defs, place.seen)
        inner, nullable = without_null(outer)
        schema, seen = resolved(inner, self._defs, seen)
        place = place._replace(seen=seen)
        choices = _choices(schema, self._defs)
        if choices:
            return self._choice(key, schema, value, place, choices, nullable)
        kind = schema.get("type")
        properties = schema.get("properties")
        if kind == "object" and isinstance(properties, Mapping) and properties and not nullable:
            fits = value is ABSENT or isinstance(value, dict)
            if fits and place.depth < DEEPEST and self._count < MOST_FIELDS:
                return self._group(key, schema, value, place)
        simple = _SIMPLE.get(kind) if isinstance(kind, str) else None
        if simple is None or isinstance(value, dict | list):
            return self.json(key, schema, value, place, nullable)
        if simple == "flag":
            return self._flag(key, schema, value, place, nullable)
        if simple == "text" and isinstance(value, str) and re.search(r"[\r\n]", value):
            simple = "lines"
        return self._made(key, schema, place, simple, value, _shown(value), nullable)

    def json(self, key: str, schema: Schema, value: Any, place: _Place, nullable: bool = False) -> FormField:
        """A field of JSON."""
        shown = "" if value is ABSENT else json.dumps(value, indent=2, ensure_ascii=False)
        return self._made(key, schema, place, "json", value, shown, nullable)

    def _group(self, key: str, schema: Schema, value: Any, place: _Place) -> FormField:
        there = {} if value is ABSENT else value
        required = schema.get("required") or ()
        group = self._made(key, schema, place, "group", value, "", False)
        fields = [
            self.field(name, part, there.get(name, ABSENT), place.below(name, name in required))
            for name, part in schema["properties"].items()
        ]
        rest = {name: it for name, it in there.items() if name not in schema["properties"]}
        if rest or schema.get("additionalProperties"):  # true, or what they must be like
            words = {"description": "Keys that the schema does not name. Those that you remove here are removed."}
            made = self.json("other keys", words, rest or ABSENT, place._replace(required=False))
            fields.append(made._replace(kind="rest", dotted=f"{place.dotted}.\0"))
        return group._replace(fields=fields)

    def _flag(self, key: str, schema: Schema, value: Any, place: _Place, nullable: bool) -> FormField:
        standing = schema.get("default") if value is ABSENT else value
        if isinstance(standing, bool) and not nullable and (value is not ABSENT or not place.required):
            return self._made(key, schema, place, "flag", value, _written(standing), False)
        return self._choice(key, schema, value, place, [True, False], nullable)

    def _choice(
        self, key: str, schema: Schema, value: Any, place: _Place, choices: Sequence[Any], nullable: bool
    ) -> FormField:
        """One of some values; nothing chosen is another, where that may be or is so."""
        shown = "" if value in (ABSENT, None) else _written(value)
        made = self._made(key, schema, place, "choice", value, shown, nullable)
        given = [FieldChoice(_written(one), one if isinstance(one, str) else _written(one)) for one in choices]
        if shown not in ("", *(one.sent for one in given)):
            given.append(FieldChoice(shown, f"{shown}, which is none of them"))
        if not shown or not place.required or nullable:
            given.insert(0, FieldChoice("", "null" if value is None or nullable else "left out"))
        return made._replace(choices=given)

    def _made(
        self, key: str, schema: Schema, place: _Place, kind: str, value: Any, shown: str, nullable: bool
    ) -> FormField:
        self._count += 1
        secret = value == MASK or schema.get("writeOnly") is True or schema.get("format") == "password"
        return FormField(
            f"f{self._count}",
            f"p{place.pointer}",
            key,
            place.dotted,
            kind,
            value,
            "" if secret else shown,
            place.required,
            nullable,
            secret,
            str(schema.get("description") or ""),
            _hints(schema, kind, holds_mask(value) and not secret),
            schema.get("default", ABSENT),
        )


def _choices(schema: Schema, defs: Mapping[str, Any]) -> list[Any]:
    """The values that a schema allows, if it counts them and each is a plain one."""
    found: list[Any] = []
    if "const" in schema:
        found = [schema["const"]]
    elif isinstance(schema.get("enum"), list):
        found = schema["enum"]
    elif isinstance(ways := schema.get("anyOf"), list):
        for way in ways:
            some = _choices(inner, {}) if (inner := resolved(way, defs)[0]).get("type") != "null" else [None]
            if not some:
                return []
            found = [*found, *some]
    plain = all(isinstance(one, str | int | float | bool) for one in found if one is not None)
    return [one for one in found if one is not None] if plain else []


def _hints(schema: Schema, kind: str, masked: bool) -> list[str]:
    hints = [_WORDS.get(str(schema.get("type")), "JSON")] if kind in ("json", "number") else []
    given = {name: schema[name] for name in _HINTS if schema.get(name) not in (None, "password")}
    hints += [_HINTS[name].format(it) for name, it in given.items()]
    if masked:
        hints.append(f'"{MASK}" stands for a secret: where you leave it, the secret stays')
    return hints


def _alone(ways: Any) -> bool:
    return isinstance(ways, list) and len(ways) == 1 and isinstance(ways[0], Mapping)


# ------------------------------------------------------------------------------------------- reading


def _read(field: FormField, lists: Mapping[str, Sequence[str]], problems: list[PartProblem]) -> Any:
    if field.kind == "group":
        return _read_group(field, lists, problems)
    typed = lists.get(field.name)
    if not typed or _lines(typed[-1]) == _lines(field.shown):
        return field.original
    text = _lines(typed[-1])
    if not text.strip() and field.kind != "text":
        text = ""
    if not text:
        return field.original if field.secret else _empty(field)
    if field.kind in ("json", "rest"):
        return _read_json(field, text, problems)
    if field.kind in ("choice", "flag"):
        return _read_choice(field, text)
    return _read_number(text.strip()) if field.kind == "number" else text


def _read_group(group: FormField, lists: Mapping[str, Sequence[str]], problems: list[PartProblem]) -> Any:
    found: dict[str, Any] = {}
    for field in group.fields:
        value = _read(field, lists, problems)
        if field.kind == "rest":
            if isinstance(value, dict):
                found = {**value, **found}
            elif value is not ABSENT:
                problems.append(PartProblem(group.dotted, "its other keys must be a JSON object"))
        elif value is not ABSENT:
            found[field.key] = value
    return ABSENT if not found and group.original is ABSENT else found


def _empty(field: FormField) -> Any:
    """What a field means that was made empty: left out, null or an empty text."""
    if not field.required and not (field.nullable and field.default not in (ABSENT, None)):
        return ABSENT
    if field.nullable:
        return None
    return "" if field.kind in ("text", "lines") else ABSENT


def _read_json(field: FormField, text: str, problems: list[PartProblem]) -> Any:
    try:
        return read_json(text.encode(errors="surrogatepass"))
    except json.JSONDecodeError as error:
        place = field.dotted.removesuffix(".\0")
        problems.append(PartProblem(place, f"is not valid JSON: {error}"))
        return ABSENT


def _read_choice(field: FormField, text: str) -> Any:
    """The value of a choice; what is none of them is left to the API to refuse."""
    known = field.kind == "flag" or any(choice.sent == text for choice in field.choices)
    try:
        return json.loads(text) if known else text
    except ValueError:
        return text


def _read_number(text: str) -> Any:
    """A number; what is none is left to the API to refuse."""
    if _INT.fullmatch(text):
        return int(text)
    try:
        found = read_json(text.encode(errors="surrogatepass"))
    except json.JSONDecodeError:
        return text
    return found if isinstance(found, int | float) and not isinstance(found, bool) else text


def _shown(value: Any) -> str:
    if value is ABSENT or value is None:
        return ""
    return value if isinstance(value, str) else _written(value)


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _lines(text: str) -> str:
    """A text as browsers send it: they know one kind of line end only."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
