"""`import treadle` is light: whoever only enqueues should not wait for what only workers and terminals need."""

import json
import subprocess
import sys

import pytest

SLACK = 20  # our own modules, and a few of the standard library that asyncio does not bring


def loaded_after(statement: str) -> set[str]:
    """The modules a fresh Python has loaded after this statement."""
    code = f"import sys; {statement}; import json; print(json.dumps(sorted(set(sys.modules) - {{'json'}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout))


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    return loaded_after("import treadle")


@pytest.mark.parametrize("name", ["pydantic", "pydantic_core", "pydantic_settings", "typer", "rich", "click"])
def test_importing_treadle_loads_nothing_heavy(loaded: set[str], name: str) -> None:
    assert name not in loaded


def test_importing_treadle_loads_little_more_than_asyncio(loaded: set[str]) -> None:
    ours = {name for name in loaded if name.partition(".")[0] == "treadle"}
    rest = loaded - ours - loaded_after("import asyncio")
    print(f"{len(loaded)} modules: {len(ours)} of treadle, {len(rest)} beyond asyncio: {sorted(rest)}")
    assert len(ours) < 45
    assert len(rest) < 40
    assert len(loaded) < 190 + SLACK


def test_importing_treadle_loads_no_worker_and_no_engine(loaded: set[str]) -> None:
    assert not loaded & {"treadle.worker", "treadle.engines.sqlite.engine", "treadle.app.settings", "treadle.cli"}


def test_every_public_name_is_there() -> None:
    code = "import treadle; assert all(hasattr(treadle, name) for name in treadle.__all__); print(treadle.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip()
