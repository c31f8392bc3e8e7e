"""Google's own description of Gmail, which comes with its client: every answer must be what it describes."""

import json
import re
from importlib.resources import files
from typing import Any

DOCUMENT = json.loads(files("googleapiclient").joinpath("discovery_cache/documents/gmail.v1.json").read_text("utf-8"))
KINDS = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict}


def response_of(method_id: str) -> str:
    """The name of the schema of a method's answer."""
    resource: dict[str, Any] = DOCUMENT
    *path, method = method_id.split(".")[1:]
    for name in path:
        resource = resource["resources"][name]
    ref: str = resource["methods"][method]["response"]["$ref"]
    return ref


def check(value: Any, schema: dict[str, Any], where: str) -> None:
    """Raise AssertionError if the value has a field that is not described, or one of another kind."""
    schema = DOCUMENT["schemas"][schema["$ref"]] if "$ref" in schema else schema
    kind = KINDS[schema["type"]]
    assert isinstance(value, kind), f"{where} is {value!r}, not {kind.__name__}"
    if kind is dict:
        unknown = set(value) - set(schema["properties"])
        assert not unknown, f"{where} has {unknown}"
        for name, one in value.items():
            check(one, schema["properties"][name], f"{where}.{name}")
    if kind is list:
        for one in value:
            check(one, schema["items"], f"{where}[]")
    assert value in schema.get("enum", [value]), f"{where} is {value!r}, not one of {schema['enum']}"
    if schema.get("format") in ("uint64", "int64"):
        assert 0 <= int(value) < 2**64, f"{where} is {value!r}"
    if schema.get("format") == "byte":
        assert re.fullmatch("[A-Za-z0-9_-]*={0,2}", value), f"{where} is not base64 for addresses"
