"""The house: rooms, doors and words that a newcomer guesses; what docs/how-it-works.md says of the source."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from treadle.engines import contract
from treadle.engines.contract import Engine, JobStore

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "treadle"
FILES = sorted(SOURCE.rglob("*.py"))
ENGINES = ("sqlite", "postgres", "dynamodb")
DOORS = {
    "engine.py", "connection.py", "schema.py", "enqueue.py", "claim.py", "settle.py", "leases.py", "queries.py",
    "retention.py", "records.py", "audit.py", "rows.py",
}  # fmt: skip
ROOMS = {
    "app", "bench", "builtin", "cli", "client", "demo", "engines", "importers", "integrations", "model", "profiles",
    "schedules", "server", "tasks", "testing", "transactions", "worker",
}  # fmt: skip
RETIRED = {
    "What", "Member", "Membership", "Spent", "Trail", "House", "Where", "Hold", "Held", "Told", "Keeper", "Upkeep",
    "Housekeeping", "Timetable", "Crowded", "Whatever", "WHATEVER", "Hints", "said", "told", "heard", "_heard", "loud",
    "_loud", "stir", "_stir", "wrote", "shut", "filed", "strangers", "put_away", "wish", "_wish", "_heed", "_stumble",
    "_give_in", "_rest_until", "_pace", "made_id", "arrived", "strays", "walls", "patience", "looking", "operating",
    "submitting", "timetable", "expansion", "upkeep", "housekeeping", "keeper", "membership",
}  # fmt: skip
# Migrations must be called so, and tables, permissions and addresses are called like their models.
NAMED_BY_DJANGO = ("integrations/django/migrations/", "integrations/django/models.py")
MAX_LINES = 400
MAX_BRANCHES = 12


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


@cache
def trees() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text("utf-8"))) for path in FILES]


def test_the_package_root_holds_four_files_and_rooms() -> None:
    files = {path.name for path in SOURCE.iterdir() if path.suffix == ".py"}
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert files == {"__init__.py", "__main__.py", "errors.py", "edits.py"}
    assert rooms == ROOMS


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_has_the_same_doors(engine: str) -> None:
    assert DOORS - {path.name for path in (SOURCE / "engines" / engine).glob("*.py")} == set()


def test_no_file_is_longer_than_one_sitting() -> None:
    lengths = {name_of(path): len(path.read_text("utf-8").splitlines()) for path in FILES}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_no_class_name_has_two_meanings() -> None:
    """Two engines may call the same thing the same, once each. Django names some things by their classes."""
    places = defaultdict(list)
    for path, tree in trees():
        room = name_of(path).split("/")
        if name_of(path).startswith(NAMED_BY_DJANGO):
            continue
        engine = room[1] if room[0] == "engines" and room[1] in ENGINES else ""
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append((engine, name_of(path)))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert {name: where for name, where in twice.items() if len({*dict(where)} - {""}) < len(where)} == {}


def branches(function: ast.AST) -> int:
    """Ways through a function, as ruff's PLR0912 counts them and stricter: loops, conditions, handlers, cases."""
    return sum(
        isinstance(node, ast.If | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler | ast.match_case)
        for node in ast.walk(function)
    )


def test_no_function_has_more_than_twelve_branches() -> None:
    found = {}
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and branches(node) > MAX_BRANCHES:
                found[f"{name_of(path)}:{node.name}"] = branches(node)
    assert found == {}


def test_only_the_lifecycle_makes_changes() -> None:
    makers = {
        name_of(path)
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Change"
    }
    assert makers == {"model/lifecycle.py"}


def names_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield name


def test_no_retired_word_comes_back() -> None:
    found = defaultdict(set)
    for path, tree in trees():
        for name in names_in(tree):
            if name in RETIRED:
                found[name_of(path)].add(name)
    assert found == {}


def public_methods(protocol: type) -> set[str]:
    return {name for name in dir(protocol) if not name.startswith("_")}


def test_the_contract_is_small_enough_to_hold_in_the_head() -> None:
    assert len(public_methods(JobStore)) <= 16
    assert len(public_methods(Engine)) <= 36
    assert not public_methods(Engine) & {"rls", "for_tenant", "migrate_half", "half_sql", "walls", "bound"}


def test_the_contract_says_what_holds_for_every_engine() -> None:
    assert len(re.findall(r"^- ", contract.__doc__ or "", re.MULTILINE)) >= 5
