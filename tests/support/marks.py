"""Which stores a test runs on. Without a mark it has SQLite alone: it is about Python, and no store has a part in it.

    @any_store
    def test_a_key_is_held_until_its_job_has_ended(app): ...

A test that proves a promise of the stores, or a requirement of an application that lives on another one, says so.
The marks to select by come from that by themselves: `pytest -m sqlite`, `-m postgres`, `-m dynamodb`, `-m server` (it
needs one) and `-m slow` (it starts processes; others say so by hand).
"""

from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType

import pytest

from tests.support import stores

any_store = pytest.mark.usefixtures("any_store")
sql_stores = pytest.mark.parametrize("engine_kind", stores.SQL)
postgres_only = pytest.mark.parametrize("engine_kind", ["postgres"])
dynamodb_only = pytest.mark.parametrize("engine_kind", ["dynamodb"])

SERVERS = {
    "shared_postgres": "postgres", "fresh_database": "postgres", "Cluster": "postgres", "postgres_shop": "postgres",
    "shared_dynamodb": "dynamodb", "DynamoServer": "dynamodb",
}  # fmt: skip
"""What a test or its fixtures mention if they start a server, and of which store."""
PROCESSES = {"process", "spawn", "neighbour", "together"}
"""Fixtures that start processes."""


def mark(item: pytest.Function) -> None:
    """Mark a test by the store it is given, else by that of its folder."""
    kind = engine_of(item)
    name = "postgres" if kind in stores.SECOND else "dynamodb" if kind in stores.DYNAMO else kind
    if name is not None and name != "sqlite":
        item.add_marker("server")
    if not PROCESSES.isdisjoint(item.fixturenames):
        item.add_marker("slow")
    name = name or next((each for each in stores.KINDS if each in item.path.parts), None)
    if name is not None:
        item.add_marker(name)


def engine_of(item: pytest.Function) -> str | None:
    """The kind of store this test is given, None if it has none."""
    given = item.callspec.params if hasattr(item, "callspec") else {}
    if kind := given.get("engine_kind") or given.get("any_store"):
        return str(kind)
    if library := given.get("library"):  # of tests/transactions, named or given as it is
        return "sqlite" if "sqlite" in getattr(library, "name", library) else "postgres"
    started = [SERVERS[word] for function in _functions(item) for word in _words(function.__code__) & SERVERS.keys()]
    return started[0] if started else "sqlite" if "engine_kind" in item.fixturenames else None


def _functions(item: pytest.Function) -> Iterator[Callable[..., object]]:
    """The test and the fixtures it uses."""
    yield item.function
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        if hasattr(definitions[-1].func, "__code__"):
            yield definitions[-1].func


@cache
def _words(code: CodeType) -> frozenset[str]:
    """Every name and text that a function mentions, its inner functions included."""
    inner = [_words(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    texts = [constant for constant in code.co_consts if isinstance(constant, str)]
    return frozenset(code.co_names).union(texts, *inner)
