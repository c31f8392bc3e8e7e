"""What type checkers say: nothing of right calls, something of each wrong one, and nothing of the examples."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sizes import size

ROOT = Path(__file__).resolve().parent.parent.parent
RIGHT, WRONG = "tests/tasks/typing_right.py", "tests/tasks/typing_wrong.py"
FLAGGED = {number for number, line in enumerate((ROOT / WRONG).read_text().splitlines(), 1) if "# wrong" in line}

Flags = set[tuple[str, int]]


def mypy(*paths: str) -> Flags:
    """The file and line of each complaint of mypy --strict."""
    cache = ROOT / ".cache" / "mypy-of-tests"
    out = checked(sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(cache), *paths)
    found = re.findall(r"^(\S+?):(\d+): error", out, re.MULTILINE)
    return {(path, int(line)) for path, line in found}


UNTYPED = "examples/django_shop/"  # Django has no types of its own: what mypy takes for Any, pyright does not find


def pyright(*paths: str) -> Flags:
    """The file and line of each complaint of pyright."""
    out = checked(sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, *paths)
    return {
        (str(Path(found["file"]).relative_to(ROOT)), found["range"]["start"]["line"] + 1)
        for found in json.loads(out)["generalDiagnostics"]
        if found["severity"] == "error" and UNTYPED not in found["file"]
    }


def checked(*command: str) -> str:
    env = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr  # 1: it complains
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("complaints", [mypy, pyright][: size(1, long=2)])
def test_right_calls_and_examples_pass_and_each_wrong_call_is_flagged(complaints) -> None:
    found: Flags = complaints(RIGHT, WRONG, "examples")
    assert {one for one in found if one[0] != WRONG} == set()
    assert {line for _, line in found} == FLAGGED
    assert len(FLAGGED) >= 20
