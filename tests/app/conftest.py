"""An application to test with: nothing set around it, a clock that moves when told, a store of its own."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from treadle import Treadle
from treadle.testing import FakeClock


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Settings come from the test alone: an empty working directory and no TREADLE_ variable but provision's own."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.upper().startswith("TREADLE_") and not name.upper().startswith("TREADLE_TEST_"):
            monkeypatch.delenv(name)


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
