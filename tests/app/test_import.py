"""`import treadle` is light: whoever only enqueues should not wait for what only workers and terminals need."""

import json
import subprocess
import sys
from importlib import import_module

import pytest

import treadle

HEAVY = [
    "pydantic", "pydantic_core", "pydantic_settings", "typer", "rich", "click", "psycopg", "botocore", "urllib3",
    "sqlite3", "asyncio", "ssl", "socket", "subprocess", "secrets", "urllib.parse", "zoneinfo",
    "opentelemetry",
]  # fmt: skip
LAZY = [
    "treadle.worker", "treadle.cli", "treadle.schedules", "treadle.transactions", "treadle.app.settings",
    "treadle.engines.sqlite", "treadle.engines.postgres", "treadle.engines.dynamodb",
]  # fmt: skip


def loaded_after(statement: str) -> set[str]:
    """The modules a fresh Python has loaded after this statement."""
    code = f"import sys; {statement}; import json; print(json.dumps(sorted(set(sys.modules) - {{'json'}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout))


@pytest.fixture(scope="module", params=["import treadle", "from treadle import Treadle", "from treadle import *"])
def loaded(request: pytest.FixtureRequest) -> set[str]:
    return loaded_after(request.param)


@pytest.mark.parametrize("name", HEAVY)
def test_importing_treadle_loads_nothing_heavy(loaded: set[str], name: str) -> None:
    assert name not in loaded


@pytest.mark.parametrize("name", LAZY)
def test_importing_treadle_loads_no_worker_and_no_engine(loaded: set[str], name: str) -> None:
    assert name not in loaded


def test_importing_treadle_alone_loads_none_of_its_parts() -> None:
    loaded = loaded_after("import treadle")
    assert {name for name in loaded if name.startswith("treadle.")} == set()


def test_an_app_loads_fewer_modules_than_asyncio() -> None:
    loaded, asyncio = loaded_after("from treadle import Treadle"), loaded_after("import asyncio")
    ours = {name for name in loaded if name.partition(".")[0] == "treadle"}
    print(f"{len(loaded)} modules, {len(ours)} of them treadle's; asyncio: {len(asyncio)}")
    assert len(ours) < 48
    assert len(loaded - ours) < len(asyncio)


def test_a_name_that_is_not_public_is_not_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        treadle.nothing  # noqa: B018
    assert set(treadle.__all__) <= set(dir(treadle))


def test_a_name_is_what_its_module_has() -> None:
    for module, names in treadle._MODULES.items():
        for name in names:
            assert getattr(treadle, name) is getattr(import_module(f"treadle.{module}"), name)
    assert sorted(treadle._MODULE_OF) == sorted(treadle.__all__)


def test_every_public_name_is_there() -> None:
    code = "import treadle; assert all(hasattr(treadle, name) for name in treadle.__all__); print(treadle.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip()
