"""A server on a store, and pages of it in Chromium. Tests here are coroutines: `page = await site.open("/jobs")`.

Every page is watched: a line in its console, a script that fails and a breach of its security policy end the test.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from tests.browser.stories import STORIES, night_app, night_clock
from tests.server.conftest import NO_LIMIT, with_tasks
from tests.support.chromium import OPTIONS, chromium
from tests.support.server import wait_until
from treadle import Treadle
from treadle.server import asgi
from treadle.server.api import Server
from treadle.testing import FakeClock

DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


class Loop:
    """The one loop that the browser and every test of it run on."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)


class Site:
    """A treadle server, an app with tasks behind it, and browsers that look at it."""

    def __init__(self, app: Treadle, clock: FakeClock, url: str, browser: Browser, server: Server) -> None:
        self.app, self.clock, self.url, self.server = app, clock, url, server
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self.complaints: list[str] = []
        self._forgiven: list[str] = []
        self._tokens = 0

    def token(self, *scopes: str, **bound: Any) -> str:
        """A new token of these scopes, maybe bound to a tenant and queues."""
        self._tokens += 1
        return self.app.tokens.create(f"token-{self._tokens}", scopes=scopes or ("admin",), **bound).secret

    async def browser(
        self, *scopes: str, dark: bool = False, phone: bool = False, options: dict[str, Any] | None = None, **bound: Any
    ) -> BrowserContext:
        """A browser that is signed in with a new token; pages of it share that session."""
        context = await self.nobody(dark=dark, phone=phone, **(options or {}))
        answer = await context.request.post(
            f"{self.url}/login", form={"token": self.token(*scopes, **bound)}, headers={"Origin": self.url}
        )
        assert answer.ok, await answer.text()
        return context

    async def nobody(self, *, dark: bool = False, phone: bool = False, **options: Any) -> BrowserContext:
        """A browser in which nobody is signed in."""
        context = await self._browser.new_context(
            base_url=self.url,
            viewport=PHONE if phone else DESK,
            color_scheme="dark" if dark else "light",
            **options,
        )
        context.set_default_timeout(15_000)
        context.on("console", lambda message: self._hear(f"{message.type}: {message.text}"))
        context.on("weberror", lambda error: self._hear(str(error.error)))
        self._contexts.append(context)
        return context

    async def open(self, path: str, *scopes: str, **options: Any) -> Page:
        """A page, signed in with a new token: admin unless scopes are given."""
        page = await (await self.browser(*scopes, **options)).new_page()
        await page.goto(path)
        return page

    def forgive(self, text: str) -> None:
        """Expect lines with this text in the console, now or later: a browser says in its own time what was refused."""
        self._forgiven.append(text)
        self.complaints[:] = [line for line in self.complaints if text not in line]

    def _hear(self, complaint: str) -> None:
        if not any(text in complaint for text in self._forgiven):
            self.complaints.append(complaint)

    async def close(self) -> None:
        for context in self._contexts:
            with suppress(Exception):
                await context.close()


class Nights:
    """Stores of stories, one file each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stores: dict[str, tuple[Treadle, FakeClock]] = {}

    def told(self, story: str) -> tuple[Treadle, FakeClock]:
        if story not in self._stores:
            clock = night_clock()
            app, relay = night_app(f"sqlite:///{self._folder}/{story}.db", clock)
            STORIES[story](app, relay, clock)
            self._stores[story] = app, clock
        return self._stores[story]

    def close(self) -> None:
        for app, _ in self._stores.values():
            app.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs on the browser's loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    pyfuncitem._request.getfixturevalue("loop").run(pyfuncitem.obj(**wanted))
    return True


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.loop.close()


@pytest.fixture(scope="session")
def chrome(loop: Loop) -> Iterator[Browser]:
    """One Chromium for all tests; each has contexts of its own."""
    playwright = loop.run(async_playwright().start())
    browser = loop.run(playwright.chromium.launch(executable_path=chromium(), args=OPTIONS))
    yield browser
    loop.run(browser.close())
    loop.run(playwright.stop())


@pytest.fixture(scope="session")
def served() -> Iterator[tuple[Server, str]]:
    """A server on a free port; each test gives it its own app."""
    server = asgi(Treadle("sqlite:///:memory:"), **NO_LIMIT)
    config = uvicorn.Config(
        server, host="127.0.0.1", port=0, log_level="error", lifespan="on", timeout_graceful_shutdown=1
    )
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    wait_until(lambda: running.started, "the server has started")
    port = running.servers[0].sockets[0].getsockname()[1]
    yield server, f"http://127.0.0.1:{port}"
    running.should_exit = True
    thread.join(30)


@pytest.fixture(scope="session")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nights]:
    """The stores of tests/browser/stories.py, for tests that only look: each is told once, when it is asked for."""
    made = Nights(tmp_path_factory.mktemp("nights"))
    yield made
    made.close()


@pytest.fixture
def night(nights: Nights, served: tuple[Server, str], chrome: Browser, loop: Loop) -> Iterator[Callable[[str], Site]]:
    """The server on a story that others look at too: `night("failing")`."""
    server, url = served
    made: list[Site] = []

    def tell(story: str) -> Site:
        app, clock = nights.told(story)
        server.serve_app(app)
        made.append(Site(app, clock, url, chrome, server))
        return made[-1]

    yield tell
    for site in made:
        loop.run(site.close())
    server.serve_app(Treadle("sqlite:///:memory:"))
    assert not [line for site in made for line in site.complaints], "a page has complained in its console"


@pytest.fixture
def site(store_url: str, served: tuple[Server, str], chrome: Browser, clock: FakeClock, loop: Loop) -> Iterator[Site]:
    """The server on an empty store with the tasks of tests/server/conftest.py, and no worker."""
    server, url = served
    app = with_tasks(Treadle(store_url, clock=clock))
    server.serve_app(app)
    made = Site(app, clock, url, chrome, server)
    yield made
    loop.run(made.close())
    server.serve_app(Treadle("sqlite:///:memory:"))
    app.close()
    assert not made.complaints, "a page has complained in its console"
