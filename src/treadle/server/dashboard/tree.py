"""A value as a tree that can be folded, with its types; never more of it than a page has room for."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from treadle.server.dashboard.schema_form import resolved, without_null
from treadle.tasks.secrets import MASK

MOST_NODES, DEEPEST, MOST_TEXT = 300, 16, 24_000
LONG = 160  # characters: a longer text is folded
LONGEST = 4_000  # characters that are shown of one text
OPEN_TO = 2  # levels that are open, if they hold few
FEW = 12

_NAMES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "array": "list", "object": "object"}


class Node(NamedTuple):
    """One value: a leaf has a `text`, all others have nodes. `cut`: how many of them are not shown."""

    key: str
    kind: str  # text, number, secret, list, object
    type: str
    text: str = ""
    long: bool = False
    nodes: Sequence["Node"] = ()
    cut: int = 0
    open: bool = False


class Tree(NamedTuple):
    """The nodes at the top, and whether all of it is shown."""

    nodes: Sequence[Node]
    whole: bool


def tree_of(value: Any, schema: Mapping[str, Any] | None = None) -> Tree:
    """The tree of a value; its types are those of the schema, if there is one."""
    maker = _TreeMaker(schema or {})
    node = maker.node("", value, schema or {}, 0)
    inner = node.kind in ("object", "list") and node.nodes
    return Tree(node.nodes if inner else [node], maker.whole)


class _TreeMaker:
    """Makes the nodes, as long as there is room."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._defs = schema.get("$defs") or {}
        self._nodes, self._text = MOST_NODES, MOST_TEXT
        self.whole = True

    def node(self, key: str, value: Any, given: Any, depth: int) -> Node:
        name = str(given.get("$ref", "")).rpartition("/")[2] if isinstance(given, Mapping) else ""
        inner, _ = without_null(resolved(given, self._defs)[0])
        name = name or str(inner.get("$ref", "")).rpartition("/")[2]
        schema, _ = resolved(inner, self._defs)
        self._nodes -= 1
        if value == MASK:
            return Node(key[:200], "secret", "secret, never shown")
        if not isinstance(value, dict | list):
            return self._leaf(key, value, schema)
        items, title = _within(value, schema, name)
        room = depth < DEEPEST and self._nodes > 0
        nodes = list(self._some(items, depth)) if room else []
        cut = len(value) - len(nodes)
        self.whole &= not cut
        kind = "list" if isinstance(value, list) else "object"
        unfolded = depth <= OPEN_TO and len(value) <= FEW
        return Node(key[:200], kind, title, nodes=nodes, cut=cut, open=unfolded)

    def _some(self, items: Iterator[tuple[str, Any, Any]], depth: int) -> Iterator[Node]:
        for key, value, schema in items:
            if self._nodes <= 0 or self._text <= 0:
                return
            self._text -= len(key[:200])
            yield self.node(key, value, schema, depth + 1)

    def _leaf(self, key: str, value: Any, schema: Mapping[str, Any]) -> Node:
        text = value if isinstance(value, str) else json.dumps(value)
        room = max(0, min(LONGEST, self._text))
        self.whole &= len(text) <= room
        shown = text[:room]
        self._text -= len(shown)
        kind = "text" if isinstance(value, str) else "number"
        name = _leaf_type(value, schema)
        if len(text) > LONG:
            name += f", {len(text):,} characters"
        return Node(key[:200], kind, name, shown, len(text) > LONG, cut=len(text) - len(shown))


def _within(value: Any, schema: Mapping[str, Any], name: str) -> tuple[Iterator[tuple[str, Any, Any]], str]:
    """The values in a list or an object, each with its key and schema; and what it is."""
    if isinstance(value, list):
        one = schema.get("items") or {}
        of = str(one.get("$ref", "")).rpartition("/")[2] if isinstance(one, Mapping) else ""
        of = of or _NAMES.get(str(one.get("type")) if isinstance(one, Mapping) else "", "")
        return ((str(place), item, one) for place, item in enumerate(value)), f"list of {len(value):,} {of}".strip()
    known, other = schema.get("properties") or {}, schema.get("additionalProperties")
    fields = f"{name or 'object'}, {len(value):,} {'field' if len(value) == 1 else 'fields'}"
    return ((key, item, known.get(key, other)) for key, item in value.items()), fields


def _leaf_type(value: Any, schema: Mapping[str, Any]) -> str:
    if value is None:
        return ""
    name = schema.get("format") or _NAMES.get(str(schema.get("type")), "")
    if schema.get("enum"):
        name = "one of " + ", ".join(map(str, schema["enum"][:6]))
    return str(name or type(value).__name__)
