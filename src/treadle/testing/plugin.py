"""The pytest plugin: your app on a store of its own in each test, and a clock that you move.

pytest loads this module in every project that has treadle installed, so it imports nothing of ours until a fixture is
asked for. Nothing happens by itself unless pytest's ini names an app: `treadle_app = shop.jobs:app`.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from treadle import Job, Treadle
    from treadle.testing import FakeClock
    from treadle.testing.schemas import OwnSchema


def pytest_addoption(parser: pytest.Parser) -> None:
    """The two lines of pytest's ini that are ours."""
    parser.addini("treadle_app", "the app that each test runs on a store of its own: module:name", default="")
    parser.addini(
        "treadle_url",
        "where that store is: a PostgreSQL database, or $NAME of an environment variable; by default in memory",
        default="",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Where an app is named, no test may reach its real store: not even one that asks for none of our fixtures."""
    if config.getini("treadle_app"):
        config.pluginmanager.register(EveryTest(), "treadle-every-test")


class EveryTest:
    """What holds for every test of a project that names its app."""

    @pytest.fixture(autouse=True)
    def _treadle_store(self, treadle_app: "Treadle") -> None:
        """The app's store is the test's own. It is not opened before it is used."""


@pytest.fixture
def treadle_clock() -> "FakeClock":
    """The clock of the test's store: it stands still until you call `advance(minutes=5)`."""
    from treadle.testing import FakeClock  # noqa: PLC0415 - as said above

    return FakeClock()


@pytest.fixture(scope="session")
def _treadle_schema(request: pytest.FixtureRequest) -> "Iterator[OwnSchema | None]":
    """The schema of this test process on PostgreSQL, if the ini names a server; gone at the end of the run."""
    from treadle.testing.schemas import own_schema  # noqa: PLC0415

    schema = own_schema(str(request.config.getini("treadle_url")))
    yield schema
    if schema is not None:
        schema.drop()


@pytest.fixture
def treadle_url(_treadle_schema: "OwnSchema | None") -> Iterator[str]:
    """The store of this test, empty: in memory, or a schema on the server that the ini's `treadle_url` names.

    Override it for another place, such as a file: what you return is used as it is.
    """
    if _treadle_schema is None:
        yield "sqlite:///:memory:"
        return
    yield _treadle_schema.url
    _treadle_schema.empty()


@pytest.fixture
def treadle_app(request: pytest.FixtureRequest, treadle_url: str, treadle_clock: "FakeClock") -> "Iterator[Treadle]":
    """The app that the ini names, with the store and the clock of this test in the place of its own."""
    from treadle.testing.named_app import named_app  # noqa: PLC0415

    app = named_app(str(request.config.getini("treadle_app")))
    with app.override(treadle_url, clock=treadle_clock, auto_migrate=True):
        yield app


@pytest.fixture
def treadle_run(treadle_app: "Treadle") -> "Callable[..., list[Job]]":
    """`run_until_idle` of this app: `treadle_run()` runs what is due and returns the jobs after each attempt."""
    from functools import partial  # noqa: PLC0415

    from treadle.testing import run_until_idle  # noqa: PLC0415

    return partial(run_until_idle, treadle_app)


@pytest.fixture
def treadle_arun(treadle_app: "Treadle") -> "Callable[..., Awaitable[list[Job]]]":
    """`arun_until_idle` of this app, for async tests: `await treadle_arun()`."""
    from functools import partial  # noqa: PLC0415

    from treadle.testing import arun_until_idle  # noqa: PLC0415

    return partial(arun_until_idle, treadle_app)
