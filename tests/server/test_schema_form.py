"""The form that is made from a JSON Schema: its fields, and what is read of what was typed."""

import json
import re
from typing import Any

import pytest

from treadle.server.dashboard.schema_form import ABSENT, FormField, at_fields, form_of, read

MODEL: dict[str, Any] = {
    "$defs": {
        "Address": {
            "type": "object", "title": "Address", "required": ["street"],
            "properties": {
                "street": {"type": "string", "maxLength": 80},
                "country": {"type": "string", "default": "SE", "pattern": "^[A-Z]{2}$"},
            },
        },
        "Node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}},
        "Colour": {"enum": ["red", "blue"], "type": "string"},
    },
    "type": "object",
    "required": ["number", "address", "agreed", "maybe"],
    "properties": {
        "number": {"type": "integer", "minimum": 1, "description": "Of the invoice."},
        "total": {"type": "number", "exclusiveMinimum": 0},
        "address": {"$ref": "#/$defs/Address"},
        "lines": {"type": "array", "items": {"type": "string"}, "default": []},
        "urgent": {"type": "boolean", "default": False},
        "agreed": {"type": "boolean"},
        "maybe": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "colour": {"allOf": [{"$ref": "#/$defs/Colour"}], "default": "red"},
        "kind": {"const": "invoice"},
        "mixed": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "node": {"$ref": "#/$defs/Node"},
        "password": {"type": "string", "format": "password", "writeOnly": True},
        "a.b": {"type": "string"},
        "c[0]/~": {"type": "string"},
        "größe": {"type": "string"},
    },
}  # fmt: skip
PAYLOAD: dict[str, Any] = {
    "number": 7, "total": 1.5, "address": {"street": "Kungsgatan"}, "lines": ["one"], "urgent": False, "agreed": True,
    "maybe": None, "note": "x", "colour": "blue", "kind": "invoice", "mixed": 3, "node": {"next": None},
    "password": "***", "a.b": "dot", "c[0]/~": "bracket", "größe": "groß",
}  # fmt: skip


def fields(form: FormField) -> dict[str, FormField]:
    return {field.name: field for field in form.each()}


def sent(form: FormField, **typed: str) -> dict[str, list[str]]:
    """What a browser sends of a form as it is shown, with what was typed instead."""
    found: dict[str, list[str]] = {}
    for field in form.each():
        if field.kind == "flag":
            found[field.name] = ["false", "true"] if field.shown == "true" else ["false"]
        elif field.kind != "group":
            found[field.name] = ["\r\n".join(re.split("\r\n|\r|\n", field.shown))]
    return found | {f"p/{name}": [value] for name, value in typed.items()}


def typed(form: FormField, **values: str) -> Any:
    payload, problems = read(form, sent(form, **values))
    assert problems == []
    return payload


def test_each_shape_has_a_field_of_its_own() -> None:
    made = fields(form_of(MODEL, PAYLOAD))
    assert {name: field.kind for name, field in made.items()} == {
        "p": "group", "p/number": "number", "p/total": "number", "p/address": "group", "p/address/street": "text",
        "p/address/country": "text", "p/lines": "json", "p/urgent": "flag", "p/agreed": "flag", "p/maybe": "choice",
        "p/note": "text", "p/colour": "choice", "p/kind": "choice", "p/mixed": "json", "p/node": "group",
        "p/node/next": "json", "p/password": "text", "p/a.b": "text", "p/c[0]~1~0": "text", "p/größe": "text",
    }  # fmt: skip
    assert len({field.id for field in made.values()}) == len(made)
    assert made["p/number"].help == "Of the invoice."
    assert made["p/number"].hints == ["a whole number", "at least 1"]
    assert made["p/total"].hints == ["a number", "more than 0"]
    assert made["p/address/street"].hints == ["at most 80 characters"]
    assert made["p/address/country"].hints == ["fits ^[A-Z]{2}$"]
    assert made["p/address/country"].empty == 'Empty: left out; the default is "SE".'
    assert made["p/note"].empty == "Empty: left out; the default is null."
    assert [choice.text for choice in made["p/colour"].choices] == ["left out", "red", "blue"]
    assert [choice.text for choice in made["p/maybe"].choices] == ["null", "true", "false"]
    assert (made["p/address/street"].required, made["p/address/country"].required) == (True, False)


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        (MODEL, PAYLOAD),
        (MODEL, {}),
        (MODEL, {"number": "seven", "address": [], "unknown": {"deep": [1]}, "note": "", "urgent": "yes", "colour": 3}),
        (MODEL, {"address": {"street": None, "more": 1}, "lines": "x", "total": True, "agreed": None, "maybe": 0}),
        (MODEL, [1, 2]), (MODEL, "***"), (MODEL, "text"), (MODEL, None), (None, {"a": 1}), ({}, {"a": [1, {}]}),
        (True, 3),
        ({"type": "object", "properties": {"t": {"type": "string"}}}, {"t": "a\r\nb\n\nc \r d"}),
        ({"type": "object", "properties": {"t": {"type": "string"}}}, {"t": "  \ttabs & <b>'\"</b> "}),
        ({"type": "object", "properties": {"n": {"type": "number"}}}, {"n": 1.0}),
        ({"type": "object", "properties": {"n": {"type": "integer"}}}, {"n": 10**30}),
        ({"type": "object", "properties": {"n": {"type": ["string", "null"]}}}, {"n": None}),
        ({"type": "object", "additionalProperties": True, "properties": {"n": {}}}, {"n": 1, "m": 2}),
        ({"type": "object", "properties": {"n": {"enum": [1, "1", None]}}}, {"n": "1"}),
        ({"type": "object", "properties": {"n": {"anyOf": [{"const": 1}, {"const": 2}, {"type": "null"}]}}}, {"n": 2}),
    ],
)  # fmt: skip
def test_a_form_that_is_sent_as_it_was_shown_gives_the_very_payload(schema: Any, payload: Any) -> None:
    form = form_of(schema if isinstance(schema, dict) else None, payload)
    found = typed(form)
    assert json.dumps(found, sort_keys=True) == json.dumps(payload, sort_keys=True)


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("number", "8", 8), ("number", " 8 ", 8), ("number", "eight", "eight"), ("number", "8.5", 8.5),
        ("number", "9" * 5000, "9" * 5000), ("number", "true", "true"), ("number", "", ABSENT),
        ("number", "NaN", "NaN"), ("total", "1e3", 1000.0), ("total", "", ABSENT), ("total", "2", 2),
        ("note", "", ABSENT), ("note", " ", " "), ("note", "null", "null"), ("note", "<script>", "<script>"),
        ("colour", '"red"', "red"), ("colour", "", ABSENT), ("colour", "green", "green"), ("maybe", "true", True),
        ("maybe", "", None), ("mixed", '"x"', "x"), ("mixed", "", ABSENT), ("lines", "[]", []), ("lines", "", ABSENT),
        ("urgent", "true", True), ("agreed", "false", False), ("password", "new", "new"), ("password", "", "***"),
        ("a.b", "other", "other"), ("größe", "klein", "klein"),
    ],
)  # fmt: skip
def test_what_was_typed_is_read(field: str, text: str, value: Any) -> None:
    payload = typed(form_of(MODEL, PAYLOAD), **{field: text})
    assert payload.get(field, ABSENT) == value
    assert type(payload.get(field, ABSENT)) is type(value)
    rest = {name: it for name, it in PAYLOAD.items() if name != field}
    assert {name: it for name, it in payload.items() if name != field} == rest


def test_the_parts_of_an_object_are_read_into_it() -> None:
    form = form_of(MODEL, PAYLOAD)
    assert typed(form, **{"address/country": "DE"})["address"] == {"street": "Kungsgatan", "country": "DE"}
    assert typed(form, **{"address/street": ""})["address"] == {"street": ""}
    empty = form_of(MODEL, {"number": 1})
    assert typed(empty, **{"address/country": "DE"})["address"] == {"country": "DE"}
    assert "address" not in typed(empty)


def test_json_that_cannot_be_read_is_named_at_its_field() -> None:
    form = form_of(MODEL, PAYLOAD)
    for text in ("[", "{'a': 1}", "NaN", '{"a": 1, "a": 2}', "[" * 100_000, "9" * 5000):
        _, problems = read(form, sent(form, lines=text))
        assert [one.field for one in problems] == ["payload.lines"], text[:20]
        assert "is not valid JSON" in problems[0].problem
    _, problems = read(form, sent(form, lines="[", mixed="{"))
    assert [one.field for one in problems] == ["payload.lines", "payload.mixed"]


def test_keys_that_the_schema_does_not_name_can_be_changed_and_removed() -> None:
    form = form_of(MODEL, {"number": 1, "nmuber": 2})
    assert fields(form)["p"].kind in ("group", "rest")
    [rest] = [field for field in form.each() if field.kind == "rest"]
    lists = sent(form)
    assert json.loads(lists[rest.name][0]) == {"nmuber": 2}
    assert read(form, {**lists, rest.name: [""]})[0] == {"number": 1}
    assert read(form, {**lists, rest.name: ['{"x": 3}']})[0] == {"number": 1, "x": 3}
    assert read(form, {**lists, rest.name: ['{"number": 3}']})[0] == {"number": 1}
    _, problems = read(form, {**lists, rest.name: ["[3]"]})
    assert problems[0].problem == "its other keys must be a JSON object"


def test_a_schema_that_holds_itself_ends() -> None:
    tree = {
        "$defs": {"T": {"type": "object", "properties": {"t": {"$ref": "#/$defs/T"}, "name": {"type": "string"}}}},
        "$ref": "#/$defs/T",
    }
    made = fields(form_of(tree, {"t": {"t": {"name": "x"}}}))
    assert {name: field.kind for name, field in made.items()} == {"p": "group", "p/t": "json", "p/name": "text"}
    for bad in ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, {"$ref": "#/nowhere"}, {"$ref": 3}):
        assert form_of(bad, {}).kind == "json"


def test_a_deep_or_wide_schema_falls_back_to_json() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(100):
        deep = {"type": "object", "properties": {"a": deep}}
    assert max(len(field.name) for field in form_of(deep, {}).each()) < 20
    wide = {"type": "object", "properties": {f"f{n}": {"type": "string"} for n in range(500)}}
    assert form_of(wide, {"f1": "x"}).kind == "json"
    assert typed(form_of(wide, {"f1": "x"})) == {"f1": "x"}


def test_a_secret_is_never_in_the_form() -> None:
    for schema in (MODEL, {"type": "object", "properties": {"password": {"type": "string"}}}):
        made = fields(form_of(schema, {"password": "***"}))["p/password"]
        assert (made.secret, made.shown) == (True, "")
    inner = fields(form_of({"type": "object", "properties": {"card": {"type": "object"}}}, {"card": {"no": "***"}}))
    assert any("where you leave it, the secret stays" in hint for hint in inner["p/card"].hints)


def test_problems_are_told_at_the_field_that_they_are_about() -> None:
    form = form_of(MODEL, PAYLOAD)
    given = [
        ("payload.number", "a"), ("payload.address.street", "b"), ("payload.address", "c"), ("payload", "d"),
        ("payload.lines.0", "e"), ("payload.a.b", "f"), ("payload.nowhere", "g"), ("lines", "h"),
        ("payload.mixed.int", "i"), ("payload.c[0]/~", "j"), ("payload.numbers", "k"),
    ]  # fmt: skip
    assert at_fields(form, [{"field": field, "problem": problem} for field, problem in given]) == {
        "p/number": ["a"], "p/address/street": ["b"], "p/address": ["c"], "p": ["d", "nowhere: g", "numbers: k"],
        "p/lines": ["0: e", "h"], "p/a.b": ["f"], "p/mixed": ["int: i"], "p/c[0]~1~0": ["j"],
    }  # fmt: skip


def test_fields_that_were_not_sent_stay_as_they_are() -> None:
    form = form_of(MODEL, PAYLOAD)
    assert read(form, {}) == (PAYLOAD, [])
    assert read(form, {"p/number": ["8"], "elsewhere": ["x"]})[0] == {**PAYLOAD, "number": 8}
