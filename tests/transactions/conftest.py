"""A shop: a store of ours with a table of the application's beside it, and every library that may write to both."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import stores
from tests.transactions.libraries import LIBRARIES, Library, Shop, onlooker, sqlite_shop
from treadle import Task, Treadle
from treadle.engines import connect
from treadle.engines.contract import Engine


@pytest.fixture(params=LIBRARIES, ids=lambda library: library.name)
def library(request: pytest.FixtureRequest) -> Library:
    """Each of them; a test of some names them: parametrize("library", ["psycopg"], indirect=True)."""
    if isinstance(request.param, str):
        return next(each for each in LIBRARIES if each.name == request.param)
    return request.param


@pytest.fixture
def engine_kind(library: Library) -> str:
    """The store is the one the library is used with; a test of one store overrides this."""
    return library.kind


@pytest.fixture(scope="session")
def postgres_shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """One for all tests, emptied between them: making one takes longer than most of them."""
    with stores.fresh_store("postgres", tmp_path_factory.mktemp("shop")) as url:
        shop = Shop(url)
        shop.furnish()
        yield shop
        onlooker(shop.server).close()


@pytest.fixture
def shop(engine_kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Shop:
    if engine_kind == "postgres":
        shop: Shop = request.getfixturevalue("postgres_shop")
        tables = [shop.people, *map(shop.named, ("jobs", "finished", "keys", "events", "schedules"))]
        shop.look("; ".join(f"delete from {table}" for table in tables))  # of a few rows, quicker than truncate
        return shop
    return sqlite_shop(tmp_path)


@pytest.fixture(scope="session")
def postgres_engine(postgres_shop: Shop) -> Iterator[Engine]:
    """One for all tests: its listener takes a while to close."""
    engine = connect(postgres_shop.url)
    yield engine
    engine.close()


@pytest.fixture
def app(shop: Shop, request: pytest.FixtureRequest) -> Iterator[Treadle]:
    app = Treadle(shop.url)
    if shop.kind == "postgres":
        app._store._in_force.engine = request.getfixturevalue("postgres_engine")  # type: ignore[misc]
        yield app
    else:
        yield app
        app.close()


@pytest.fixture
def welcome(app: Treadle) -> Task:
    @app.task
    def welcome(user: str) -> str:
        return f"welcome {user}"

    return welcome
