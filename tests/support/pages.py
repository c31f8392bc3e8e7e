"""The pages of docs/ that are printed from something else; run as a script it writes them anew.

docs/api.md is printed from the OpenAPI document of the server, docs/requirements-000.md and its like from the registry
of requirements and the marks of the tests.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.requirements import TESTS, load

DOCS = TESTS.parent / "docs"
PROGRAMS = {"000": "chat-server", "002": "backend", "003": "companion"}
"""The documents whose programs stand in examples/, each with its page."""
SHOWN = 3  # tests of a clause; the others are a number
NO_BOUND = (None, "")
PRINTED = "<!-- Printed by `python3 dev.py pages`: change what it is printed from, not this file. -->\n"


def pages() -> dict[Path, str]:
    """Each page with the text that it should have."""
    matrices = {DOCS / f"requirements-{document}.md": matrix_page(document) for document in PROGRAMS}
    return {DOCS / "api.md": api_page(), **matrices}


# --------------------------------------------------------------------------------------- the API reference


def openapi() -> dict[str, Any]:
    """What the server says of itself, with every endpoint that it can have."""
    from treadle import Treadle
    from treadle.server import asgi

    everything = {"admin": True} if "admin" in inspect.signature(asgi).parameters else {}
    return dict(asgi(Treadle("sqlite:///:memory:"), **everything).api.openapi())


def api_page() -> str:
    """The API reference: every endpoint with its parameters and the fields of its body."""
    document = openapi()
    parts = [
        PRINTED,
        "# API reference\n",
        "Every endpoint of [the server](server.md), printed from its OpenAPI document, which is served as\n"
        "`/api/v1/openapi.json`. [Endpoints](server.md#endpoints) says which scope each needs.\n",
    ]
    tags: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, endpoint in methods.items():
            tags.setdefault(endpoint.get("tags", ["other"])[0], []).append(_endpoint(document, method, path, endpoint))
    for tag, texts in tags.items():
        parts += [f"## {tag.capitalize()}\n", *texts]
    return "\n".join(parts)


def _endpoint(document: Mapping[str, Any], method: str, path: str, endpoint: Mapping[str, Any]) -> str:
    lines = [f"### `{method.upper()} {path}`\n", endpoint.get("description", endpoint["summary"]).strip() + "\n"]
    rows = [
        (one["name"], one["in"] + (", required" if one.get("required") else ""), one["schema"])
        for one in endpoint.get("parameters", ())
    ]
    rows += list(_fields(document, endpoint))
    if rows:
        lines += ["| name | in | value | |", "|---|---|---|---|"]
        lines += [
            f"| `{name}` | {place} | {_value(document, schema)} | {_text(schema)} |" for name, place, schema in rows
        ]
        lines.append("")
    answers = [status for status in endpoint["responses"] if status.isdigit() and status < "300"]
    lines.append(f"Answers {', '.join(answers) or '200'}.\n")
    return "\n".join(lines)


def _fields(document: Mapping[str, Any], endpoint: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for content in endpoint.get("requestBody", {}).get("content", {}).values():
        schema = _resolved(document, content["schema"])
        for one in _alternatives(document, schema):
            required = one.get("required", ())
            for name, field in one.get("properties", {}).items():
                yield name, "body, required" if name in required else "body", field
                for part in _alternatives(document, field):
                    yield from ((f"{name}.{inner}", "body", own) for inner, own in part.get("properties", {}).items())


def _alternatives(document: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    several = schema.get("anyOf") or schema.get("oneOf") or [schema]
    return [_resolved(document, one) for one in several]


def _resolved(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" in schema:
        return dict(document["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    return schema


def _value(document: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """What a value may be, in words: type, range, choices and default."""
    words = list(dict.fromkeys(_kind(document, one) for one in _alternatives(document, schema)))
    kinds = " or ".join(word for word in words if word != "null") or "anything"
    default = schema.get("default")
    return kinds if default in (*NO_BOUND, [], {}) else f"{kinds}; default `{default}`"


def _kind(document: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(f"`{one}`" for one in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = str(schema.get("format") or schema.get("type") or "anything")
    if kind == "array":
        return f"list of {_value(document, schema.get('items', {}))}"
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is not None and high is not None:
        return f"{kind}, {low:,} to {high:,}"
    longest = schema.get("maxLength")
    return f"{kind}, at most {longest:,} characters" if longest is not None else kind


def _text(schema: Mapping[str, Any]) -> str:
    texts = [schema, *schema.get("anyOf", ())]
    found = next((one["description"] for one in texts if one.get("description")), "")
    return " ".join(found.split()).replace("|", "\\|")


# ------------------------------------------------------------------------------------- the matrix of tests


def matrix_page(document: str) -> str:
    """Every clause of a document's requirements, with the tests that are marked to prove it."""
    marks = marked()
    rows = [row for id, row in load().items() if id.startswith(document)]
    clauses = [
        (row, letter, {test for name in (row.id, f"{row.id}.{letter}") for test in marks.get(name, ())})
        for row in rows
        for letter in row.clauses
    ]
    proved = sum(bool(tests) for _, _, tests in clauses)
    lines = [
        PRINTED,
        f"# Requirements of {document}, and their tests\n",
        f"The test matrix: what document {document} asks for, clause by clause, and the tests that prove it. Of\n"
        f"{len(clauses)} clauses {proved} have a test. `python3 dev.py requirements` runs them. The program that was\n"
        f"made from the document: [{PROGRAMS[document]}]({PROGRAMS[document]}.md).",
        "",
        "| | asks | tests |",
        "|---|---|---|",
    ]
    for row, letter, tests in clauses:
        proof = "none: it is waived" if row.clauses[letter].startswith("waived:") and not tests else _tests(tests)
        lines.append(f"| {row.id}.{letter} | {_cell(row.clauses[letter])} | {proof} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _tests(tests: Iterable[str]) -> str:
    ordered = sorted(tests)
    more = f", and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else ""
    return "<br>".join(f"`{test}`" for test in ordered[:SHOWN]) + more or "none yet"


@cache
def marked() -> Mapping[str, set[str]]:
    """The tests that carry each id, read off the source: nothing is collected for it."""
    found: dict[str, set[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.covers(" not in text:
            continue
        place = path.relative_to(TESTS).as_posix()
        for test, ids in _marks(ast.parse(text)):
            for id in ids:
                found.setdefault(id, set()).add(f"{place}::{test}" if test else place)
    return found


def _marks(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    """The marks of a module's functions; one that stands elsewhere is that of the whole module."""
    for node in tree.body:
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        inside = node.decorator_list if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else [node]
        for one in inside:
            for call in ast.walk(one):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "covers":
                    ids = [word.value for word in call.args if isinstance(word, ast.Constant)]
                    yield (node.name if function else ""), [str(id) for id in ids]  # type: ignore[attr-defined]


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
        print(f"{page.relative_to(DOCS.parent)}: {len(text.splitlines())} lines")
