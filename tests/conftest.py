"""Nothing set around a test, and a store for it: SQLite, or each kind in turn if it is about stores; with no skips."""

import gc
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

import dev
from tests.support import django_env, marks, sizes, stores
from tests.support.server import heed_signals
from treadle import Treadle
from treadle.engines import connect
from treadle.engines.contract import Engine
from treadle.testing import FakeClock

pytest_plugins = ["tests.support.covers"]

MEMORY, ENOUGH = Path("/dev/shm"), 4 << 30  # stores and servers lie there if it has room: many files come and go


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Settings come from the test alone: an empty working directory and no TREADLE_ variable but provision's own.

    The log is as loud afterwards as before: a command run in this process sets it up for a process of its own.
    """
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.upper().startswith("TREADLE_") and not name.upper().startswith("TREADLE_TEST_"):
            monkeypatch.delenv(name)
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--long"):  # test modules, and the processes that tests start, look there
        os.environ[sizes.LONG] = "1"
    heed_signals()  # some tests send SIGINT to processes they start, and these inherit what we ignore
    if "PYTHONPYCACHEPREFIX" not in os.environ:  # pytest was started by hand; dev.py has seen to it otherwise
        dev.keep_bytecode()
    if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ENOUGH:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--engine", choices=stores.KINDS, help="only tests on this store, and those without one")
    parser.addoption(
        "--all-servers", action="store_true", help="the whole conformance suite on the servers for a second opinion too"
    )
    parser.addoption("--long", action="store_true", help="races, crowds, walks and generated inputs at full size")


LONG = {
    "test_cost", "test_django", "test_django_docs", "test_django_shop", "test_django_worker", "test_failover",
    "test_fastapi_app", "test_faults", "test_interleavings", "test_leases", "test_network", "test_nightly_report",
    "test_prefetch", "test_script", "test_server", "test_upgrades",
}  # fmt: skip
"""Files with few tests that take long, or wait: begun last, they would keep one core idle at the end."""


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by their store.

    Files with slow tests come first, then those with many: xdist hands out whole files, and none shall be left over.
    """
    for item in items:
        marks.mark(item)
    if engine := config.getoption("--engine"):
        others = [kind for kind in stores.KINDS if kind != engine]
        left = [item for item in items if any(map(item.get_closest_marker, others))]
        out = set(left)
        items[:] = [item for item in items if item not in out]
        config.hook.pytest_deselected(items=left)
    weights: dict[Path, tuple[bool, int]] = {}
    for item in items:
        slow, number = weights.get(item.path, (False, 0))
        slow = slow or item.path.stem in LONG or item.get_closest_marker("slow") is not None
        weights[item.path] = (slow, number + 1)
    items.sort(key=lambda item: (weights[item.path], str(item.path)), reverse=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests stay where they are: to look through them for garbage again and again took a tenth."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was left out; here, because under xdist only this file is loaded where the summary is written."""
    for kind in stores.missing():
        terminalreporter.write_line(f"not run: conformance on {kind}, for its binaries are not on this machine")
    if not django_env.other_pythons():
        terminalreporter.write_line("not run: Django 6, for there is no Python 3.12 or 3.13 on this machine")
    if not config.getoption("--long"):
        terminalreporter.write_line("in part: races, crowds and walks; run python3 dev.py test --long")
    if not config.getoption("--all-servers"):
        names = ", ".join(stores.SLOW)
        terminalreporter.write_line(
            f"not run: most of what {names} are asked; run python3 dev.py test tests/engines/conformance --all-servers"
        )


@pytest.fixture(params=stores.KINDS)
def any_store(request: pytest.FixtureRequest) -> str:
    """Each kind of store; a test that is about stores asks for them with the mark of this name."""
    return request.param


@pytest.fixture
def engine_kind(request: pytest.FixtureRequest) -> str:
    """SQLite, unless the test is about stores; a folder or a test about one store names it here."""
    return request.getfixturevalue("any_store") if "any_store" in request.fixturenames else "sqlite"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store_url(engine_kind: str, tmp_path: Path) -> Iterator[str]:
    """An empty store; several engines and processes may open it."""
    with stores.empty_store(engine_kind, tmp_path) as url:
        yield url


@pytest.fixture
def make_engine(store_url: str, clock: FakeClock) -> Iterator[Callable[..., Engine]]:
    """Opens further engines on the same store, as other processes would."""
    opened: list[Engine] = []

    def open_engine(**options: object) -> Engine:
        opened.append(connect(store_url, clock=clock.now, **options))
        return opened[-1]

    yield open_engine
    for engine in opened:
        engine.close()


@pytest.fixture
def engine(make_engine: Callable[..., Engine]) -> Engine:
    return make_engine()


@pytest.fixture
def make_app(store_url: str, clock: FakeClock) -> Iterator[Callable[..., Treadle]]:
    """Opens apps on the same store, as other processes would."""
    opened: list[Treadle] = []

    def open_app(**settings: object) -> Treadle:
        opened.append(Treadle(store_url, **{"clock": clock, **settings}))
        return opened[-1]

    yield open_app
    for app in opened:
        app.close()


@pytest.fixture
def app(make_app: Callable[..., Treadle]) -> Treadle:
    return make_app()
