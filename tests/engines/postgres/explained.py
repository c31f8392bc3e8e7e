"""What the server does for a call of the engine: the plan of every statement of it, also of those inside functions."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import psycopg

from treadle.engines.postgres.engine import PostgresEngine

AUTO_EXPLAIN = """
load 'auto_explain';
set auto_explain.log_min_duration = 0;
set auto_explain.log_nested_statements = on;
set auto_explain.log_analyze = on;
set auto_explain.log_buffers = on;
set auto_explain.log_timing = off;
set auto_explain.log_format = json;
set client_min_messages = log;
"""

OURS = {"turn", "settle", "add_jobs", "held_jobs", "read_jobs", "enqueue"}  # functions with statements of their own

Node = dict[str, Any]


class Statement(NamedTuple):
    """How one statement was run."""

    text: str
    function: str  # and its line, if it is in one
    line: str
    scans: frozenset[str]  # names of indexes, "whole table jobs"
    rows: int  # read by scans, be they used or not
    pages: int
    cost: float  # as the planner saw it

    def __str__(self) -> str:
        place = f"{self.function} line {self.line}" if self.function else "sent"
        opening = " ".join(self.text.split())[:160]
        return f"{place}: {self.rows} rows, {self.pages} pages by {sorted(self.scans)}: {opening}"


class Explained(NamedTuple):
    """How the statements of a call were run; one that calls a function of ours is told by the statements of that."""

    statements: list[Statement]

    @property
    def scans(self) -> set[str]:
        return set().union(*(statement.scans for statement in self.statements))

    @property
    def pages(self) -> int:
        return sum(statement.pages for statement in self.statements)

    def __str__(self) -> str:
        return "\n".join(map(str, self.statements))


def explained(engine: PostgresEngine, act: Callable[[], Any], *, undo: bool = False) -> Explained:
    """Run this with one connection of the engine and tell how the server did it; `undo` what it has written."""
    engine.open()
    [connection] = engine.server._idle  # one, so that every call of `act` is seen
    notices: list[tuple[str, str]] = []

    def note(diagnostic: psycopg.errors.Diagnostic) -> None:
        notices.append((diagnostic.message_primary or "", diagnostic.context or ""))

    connection.execute(AUTO_EXPLAIN)
    if undo:
        connection.execute("begin")
    connection.add_notice_handler(note)
    try:
        act()
        # In a transaction a query is at its end, and told, when the next statement comes.
        connection.execute("set auto_explain.log_min_duration = -1")
    finally:
        connection.remove_notice_handler(note)
        if undo:
            connection.execute("rollback")
        connection.execute("set auto_explain.log_min_duration = -1; reset client_min_messages")
    return Explained([_statement(text, context) for text, context in notices if _tells(text)])


def _plan(text: str) -> Node:
    plan: Node = json.loads(text[text.index("{") :])
    return plan


def _tells(text: str) -> bool:
    """Whether this notice is the plan of a statement, and not of the call of a function, whose statements follow."""
    return " plan:\n" in text and not any(node.get("Function Name") in OURS for node in _nodes(_plan(text)["Plan"]))


def _statement(text: str, context: str) -> Statement:
    plan = _plan(text)
    top = plan["Plan"]
    run = [node for node in _nodes(top) if node.get("Actual Loops", 0)]
    return Statement(
        plan["Query Text"],
        *_place(context),
        frozenset(scan for node in run if (scan := _scan(node))),
        round(sum(_rows(node) for node in run if _scan(node))),
        top["Shared Hit Blocks"] + top["Shared Read Blocks"],
        top["Total Cost"],
    )


def _place(context: str) -> tuple[str, str]:
    """The innermost function of the context, and its line."""
    found = re.search(r"^PL/pgSQL function (?:\w+\.)?(\w+)\(.*\) line (\d+)", context, re.MULTILINE)
    return (found[1], found[2]) if found else ("", "")


def _scan(node: Node) -> str | None:
    if "Index Name" in node:
        return str(node["Index Name"])
    return f"whole table {node['Relation Name']}" if node["Node Type"] == "Seq Scan" else None


def _rows(node: Node) -> float:
    removed = sum(number for name, number in node.items() if name.startswith("Rows Removed by"))
    return float((node["Actual Rows"] + removed) * node["Actual Loops"])


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)
