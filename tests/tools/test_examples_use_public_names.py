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
CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


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
    """What the documentation's own programs import, and all that such a module lists in `__all__`."""
    found = {one for page in PAGES for block in CODE.findall(page.read_text("utf-8")) for one in imports(block)}
    listed = set()
    for module in {one.partition(":")[0] for one in found} | {one.replace(":", ".").rstrip(".") for one in found}:
        try:
            names = importlib.import_module(module).__all__
        except (ImportError, AttributeError):
            continue
        listed |= {f"{module}:{name}" for name in names}
    return frozenset(found | listed)


def private(source: str) -> list[str]:
    """What a program imports that nobody promises to keep."""
    return sorted({one for one in imports(source) if one not in published() or "._" in one or ":_" in one})


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
        ("from treadle.testing.fakes import listener", "treadle.testing.fakes:listener"),
        ("def later():\n    from treadle.model import lifecycle", "treadle.model:lifecycle"),
    ],
)
def test_an_import_of_something_private_is_found(planted: str, found: str) -> None:
    program = (ROOT / "examples" / "chat_server" / "chatServer" / "services" / "job_service.py").read_text("utf-8")
    assert private(program) == []
    assert private(f"{program}\n{planted}\n") == [found]


def test_the_documentation_publishes_what_applications_need() -> None:
    for name in ("treadle:Treadle", "treadle:Claimed", "treadle.profiles:chat_server", "treadle.testing:fakes"):
        assert name in published()
