"""What the tests of PostgreSQL need: a proxy that does harm, shorter timeouts, servers that were not to be had."""

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.support import provision, stores
from tests.support.proxy import Proxy
from treadle import Treadle
from treadle.engines import connect
from treadle.engines.postgres.connection import Connections
from treadle.engines.postgres.engine import PostgresEngine
from treadle.engines.postgres.wire import Connection

CONNECT = 2  # seconds for a connection in these tests, where treadle waits five


@pytest.fixture(params=["postgres"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    """Only this engine, whatever else the conformance suite runs on."""
    return request.param


@pytest.fixture
def fresh_store_url(engine_kind: str, tmp_path: Path) -> Iterator[str]:
    """A schema that nobody used before or will after, for files that alter it or look at plans and pages."""
    with stores.fresh_store(engine_kind, tmp_path) as url:
        yield url


@pytest.fixture
def proxy(store_url: str) -> Iterator[Proxy]:
    """Between a far engine and the server."""
    parts = urlsplit(store_url)
    with Proxy(parts.hostname or "127.0.0.1", parts.port or 5432) as proxy:
        yield proxy


@pytest.fixture
def far_url(proxy: Proxy, store_url: str) -> str:
    """The store by way of the proxy."""
    return f"{proxy.url(store_url)}&connect_timeout={CONNECT}"


@pytest.fixture
def open_engine() -> Iterator[Callable[..., PostgresEngine]]:
    """Opens engines that go by the server's clock."""
    opened: list[PostgresEngine] = []

    def open_one(url: str, **options: object) -> PostgresEngine:
        opened.append(connect(url, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


@pytest.fixture
def far(open_engine: Callable[..., PostgresEngine], far_url: str) -> PostgresEngine:
    """An engine whose network the proxy can break; it has a connection already."""
    far = open_engine(far_url)
    far.open()
    return far


@pytest.fixture
def near(open_engine: Callable[..., PostgresEngine], store_url: str) -> PostgresEngine:
    """Another engine on the same store, which the proxy does not touch."""
    return open_engine(store_url)


@pytest.fixture
def make_app(proxy: Proxy) -> Iterator[Callable[..., Treadle]]:
    """Opens apps; all is well with the network again when they close."""
    opened: list[Treadle] = []

    def open_app(url: str, **settings: object) -> Treadle:
        opened.append(Treadle(url, **settings))
        return opened[-1]

    yield open_app
    proxy.flow()
    proxy.refuse(False)
    for app in opened:
        app.close()


@pytest.fixture
def connection(store_url: str) -> Iterator[psycopg.Connection]:
    """The application's own connection, with a transaction that stays open."""
    with psycopg.connect(store_url.partition("?")[0]) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def answer_timeout(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """`answer_timeout(1.0)`: a call waits this many seconds for an answer instead of thirty."""

    def set_timeout(seconds: float) -> None:
        monkeypatch.setattr(Connection, "answer_timeout", seconds)
        monkeypatch.setattr(Connections, "answer_timeout", seconds)

    return set_timeout


# ----------------------------------------------------------------------- what could not be run, and why

NOT_RUN = pytest.StashKey[list[str]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Set aside the tests whose server is not to be had here; they are named at the end, with the reason."""
    asking = [item for item in items if "pooler" in getattr(item, "fixturenames", ())]
    reason = provision.pgbouncer_available() if asking else ""
    if reason:
        items[:] = [item for item in items if item not in asking]
        config.hook.pytest_deselected(items=asking)
        config.stash[NOT_RUN] = [f"{item.nodeid}: not run: {reason}" for item in asking]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(NOT_RUN, []):
        terminalreporter.write_line(line, yellow=True)
