"""Each import rule of pyproject.toml bites: it names the import that was planted against it, and none without one."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.processes import ROOT

PLANTED = {
    "Rooms: imports run one way": ("model", "treadle.tasks"),
    "Engines do not know each other": ("engines/sqlite", "treadle.engines.postgres"),
    "Only connect opens an engine": ("tasks", "treadle.engines.sqlite"),
    "The model is pure: no engine's driver, no thread pool, no socket": ("model", "sqlite3"),
    "Surfaces speak to the app": ("cli", "treadle.worker"),
    "Profiles are values: they open nothing and run nothing": ("profiles", "treadle.engines"),
}
"""By rule, a room and what must not be imported there."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the source, to be spoilt."""
    copy = tmp_path / "src"
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def test_every_rule_has_an_import_planted_against_it() -> None:
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert {rule["name"] for rule in rules} == set(PLANTED)


def test_nothing_breaks_a_rule(source: Path) -> None:
    said = linted(source)
    assert broken(said) == set()
    assert f"Contracts: {len(PLANTED)} kept, 0 broken." in said


@pytest.mark.parametrize("rule", PLANTED)
def test_a_forbidden_import_breaks_its_rule_and_is_named(source: Path, rule: str) -> None:
    room, forbidden = PLANTED[rule]
    with (source / "treadle" / room / "__init__.py").open("a") as module:
        module.write(f"\nimport {forbidden}\n")
    said = linted(source)
    assert rule in broken(said)
    importer = f"treadle.{room.replace('/', '.')}"
    assert f"{importer} -> {forbidden}" in said.partition("Broken contracts")[2]


def linted(source: Path) -> str:
    """What lint-imports says of this source; without colours and with long lines."""
    command = [
        Path(sys.executable).parent / "lint-imports",
        "--no-cache",
        "--no-logo",
        "--config",
        ROOT / "pyproject.toml",
    ]
    place = {"PYTHONPATH": str(source), "COLUMNS": "200", "NO_COLOR": "1"}
    return subprocess.run(command, cwd=source, env=place, capture_output=True, text=True, check=False).stdout


def broken(said: str) -> set[str]:
    """The rules that lint-imports calls broken."""
    return set(re.findall(r"^(.+) BROKEN", said, re.MULTILINE))
