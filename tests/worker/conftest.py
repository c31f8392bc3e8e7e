"""Apps on a store of their own, by the real clock, and workers in processes that do not outlive their test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.workbench import Process
from treadle import Treadle
from treadle.engines.postgres import notify


@pytest.fixture(autouse=True)
def _quick_to_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener looks a little more often whether it should stop: closing an app must not be half of a test's time."""
    monkeypatch.setattr(notify, "STOP_INTERVAL", 0.02)


@pytest.fixture
def make_app(store_url: str) -> Iterator[Callable[..., Treadle]]:
    """Opens apps on the same store, as other processes would."""
    opened: list[Treadle] = []

    def open_app(**settings: object) -> Treadle:
        opened.append(Treadle(store_url, **settings))
        return opened[-1]

    yield open_app
    for app in opened:
        app.close()


@pytest.fixture
def app(make_app: Callable[..., Treadle]) -> Treadle:
    return make_app()


@pytest.fixture
def process(store_url: str, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """`process(lease=1)`: a worker in a process of its own; its tasks are those of worker_process.py."""
    started: list[Process] = []

    def start(**options: Any) -> Process:
        started.append(Process(store_url, tmp_path / f"process-{len(started)}", **options))
        return started[-1]

    yield start
    for each in started:
        each.end()
