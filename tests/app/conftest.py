"""An application to test with: a clock that moves when told, a store of its own."""

from collections.abc import Callable, Iterator

import pytest

from treadle import Treadle
from treadle.testing import FakeClock


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
