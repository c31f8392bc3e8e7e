"""The examples use treadle as its users do: by names that the documentation publishes."""

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.processes import ROOT

PROGRAMS = sorted((ROOT / "examples").rglob("*.py"))
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
CODE = re.compile(r"^```py(?:thon)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RETURNED = {"treadle.builtin.sql_cleanup:Deleted"}  # by SqlCleanup.run(), which a page shows


def imports(source: str) -> Iterator[str]:
    """What a program imports of treadle, as `module:name`, or `module:` for a whole module."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found = [f"{one.name}:" for one in names]
            case ast.ImportFrom(module=str(module), names=names):
                found = [f"{module}:{one.name}" for one in names]
            case _:
                continue
        yield from (one for one in found if re.match(r"treadle[.:]", one))


@cache
def shown() -> str:
    return "\n".join(page.read_text("utf-8") for page in PAGES)


@cache
def published() -> frozenset[str]:
    """The modules that the documentation's own programs import from."""
    found = {one for block in CODE.findall(shown()) for one in imports(block)}
    modules = {one.partition(":")[0] for one in found}
    return frozenset(modules | {one.rstrip(":").replace(":", ".") for one in found})


def is_public(imported: str) -> bool:
    """Whether the module is published, and the name is too: its `__all__` lists it, or a page shows it."""
    module, _, name = imported.partition(":")
    if module not in published() or "._" in imported or ":_" in imported:
        return False
    if not name or re.search(rf"\b{name}\b", shown()):
        return True
    return name in getattr(importlib.import_module(module), "__all__", ())


def private(source: str) -> list[str]:
    """What a program imports that nobody promises to keep."""
    return sorted({one for one in imports(source) if not is_public(one)} - RETURNED)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.relative_to(ROOT / "examples").as_posix())
def test_a_program_imports_what_the_documentation_publishes(program: Path) -> None:
    assert private(program.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ("from treadle.engines import connect", "treadle.engines:connect"),
        ("import treadle.worker.loop", "treadle.worker.loop:"),
        ("from treadle.app.treadle import Treadle", "treadle.app.treadle:Treadle"),
        ("from treadle import _MODULES", "treadle:_MODULES"),
        ("from treadle.testing.fakes import http_fake", "treadle.testing.fakes:http_fake"),
        ("def later():\n    from treadle.model import lifecycle", "treadle.model:lifecycle"),
    ],
)
def test_an_import_of_something_private_is_found(planted: str, found: str) -> None:
    program = (ROOT / "examples" / "chat_server" / "chatServer" / "services" / "job_service.py").read_text("utf-8")
    assert private(program) == []
    assert private(f"{program}\n{planted}\n") == [found]


@pytest.mark.parametrize(
    "name", ["treadle:Treadle", "treadle:Claimed", "treadle.profiles:chat_server", "treadle.testing:fakes"]
)
def test_what_applications_need_is_public(name: str) -> None:
    assert is_public(name)
