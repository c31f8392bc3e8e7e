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
def published() -> frozenset[str]:
    """What the documentation's own programs import, as `module:name`."""
    blocks = (block for page in PAGES for block in CODE.findall(page.read_text("utf-8")))
    return frozenset(one for block in blocks for one in imports(block))


def is_public(imported: str) -> bool:
    """Whether a page imports just this, or its module lists the name in `__all__` and a page imports from there."""
    module, _, name = imported.partition(":")
    known = {one.rstrip(":").replace(":", ".") for one in published()} | {one.partition(":")[0] for one in published()}
    if module not in known or "._" in imported or name.startswith("_"):
        return False
    return imported in published() or not name or name in getattr(importlib.import_module(module), "__all__", ())


def private(source: str) -> list[str]:
    """What a program imports that nobody promises to keep."""
    return sorted({one for one in imports(source) if not is_public(one)})


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
        ("from treadle.builtin.sql_cleanup import seconds", "treadle.builtin.sql_cleanup:seconds"),
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
