"""`/events`: the status as it changes, for as long as somebody may listen."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from treadle import Treadle
from treadle.server import Principal, asgi
from treadle.server.api import Server

pytestmark = pytest.mark.usefixtures("_quick")


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks come by the hundredth of a second."""
    monkeypatch.setattr("treadle.server.stream.INTERVAL", 0.01)
    monkeypatch.setattr("treadle.server.stream.QUIET", 0.05)


class Listener:
    """A client that listens, as an HTTP server would serve it."""

    def __init__(self, server: Server, token: str) -> None:
        self._server, self._token = server, token
        self._sent: asyncio.Queue[Any] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.status = 0

    async def start(self) -> None:
        headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {self._token}".encode())]
        scope = {
            "type": "http", "method": "GET", "path": "/api/v1/events", "headers": headers, "query_string": b"",
            "scheme": "http", "root_path": "", "client": None, "server": None, "asgi": {"spec_version": "2.4"},
        }  # fmt: skip
        given = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Any:
            if given:
                return given.pop()
            await self._gone.wait()
            return {"type": "http.disconnect"}

        self._task = asyncio.create_task(self._server(scope, receive, self._sent.put))
        self.status = (await self._next())["status"]

    async def _next(self) -> Any:
        return await asyncio.wait_for(self._sent.get(), 10)

    async def line(self) -> str:
        """What comes next."""
        return (await self._next()).get("body", b"").decode()

    async def event(self) -> Any:
        """The next event that is one: its name and data."""
        while True:
            text = await self.line()
            if text.startswith("id:"):
                _, event, data = text.strip().split("\n")
                return event.removeprefix("event: "), json.loads(data.removeprefix("data: "))
            assert text.startswith(":"), text

    async def ended(self) -> None:
        """Wait until the server has ended it."""
        assert self._task is not None
        await asyncio.wait_for(asyncio.shield(self._task), 10)

    async def hang_up(self) -> None:
        self._gone.set()
        await self.ended()


@asynccontextmanager
async def listening(server: Server, token: str) -> AsyncIterator[Listener]:
    listener = Listener(server, token)
    await listener.start()
    yield listener
    await listener.hang_up()


def test_the_status_is_told_at_once_and_when_it_changes(app: Treadle) -> None:
    server, token = asgi(app), app.tokens.create("ada", scopes=["read"]).secret

    async def listen() -> None:
        async with listening(server, token) as listener:
            kind, first = await listener.event()
            assert (kind, first["total"]["waiting"]) == ("status", 0)
            assert (await listener.line()) == ": still here\n\n"
            await app.aenqueue("greet", {"name": "Ada"})
            kind, second = await listener.event()
            assert (kind, second["total"]["waiting"]) == ("status", 1)
        assert not server.api.state.streams.open

    asyncio.run(listen())


def test_a_tenant_hears_of_its_own_jobs(app: Treadle) -> None:
    server, token = asgi(app), app.tokens.create("ada", scopes=["read"], tenant="acme").secret

    async def listen() -> None:
        async with listening(server, token) as listener:
            await listener.event()
            await app.aenqueue("greet", {"name": "Ada"}, tenant="birch")
            await app.aenqueue("greet", {"name": "Ada"}, tenant="acme")
            _, told = await listener.event()
            assert told["total"]["waiting"] == 1

    asyncio.run(listen())


def test_streams_end_when_the_server_stops(app: Treadle) -> None:
    server, token = asgi(app), app.tokens.create("ada", scopes=["read"]).secret

    async def listen() -> None:
        listener = Listener(server, token)
        await listener.start()
        await listener.event()
        server.stop()
        await listener.ended()

    asyncio.run(listen())


def test_a_stream_ends_when_its_token_is_revoked(app: Treadle) -> None:
    server, token = asgi(app), app.tokens.create("ada", scopes=["read"]).secret

    async def listen() -> None:
        listener = Listener(server, token)
        await listener.start()
        await listener.event()
        await app.tokens.arevoke("ada")
        await listener.ended()

    asyncio.run(listen())


def test_one_look_serves_all_who_listen(app: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.server.stream.INTERVAL", 0.3)
    server, token = asgi(app), app.tokens.create("ada", scopes=["read"]).secret
    looks = 0
    tally = app.engine.tally

    def counted(**options: Any) -> Any:
        nonlocal looks
        looks += 1
        return tally(**options)

    monkeypatch.setattr(app.engine, "tally", counted)

    async def listen() -> None:
        listeners = [Listener(server, token) for _ in range(10)]
        for listener in listeners:
            await listener.start()
        for listener in listeners:
            await listener.event()
        await asyncio.gather(*(listener.hang_up() for listener in listeners))

    asyncio.run(listen())
    assert looks <= 4  # and not ten times as many


def test_there_are_only_so_many_streams(app: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.server.stream.MOST_STREAMS", 2)
    server, token = asgi(app), app.tokens.create("ada", scopes=["read"]).secret

    async def listen() -> None:
        async with listening(server, token) as one, listening(server, token) as two:
            await one.event()
            await two.event()
            third = Listener(server, token)
            await third.start()
            assert third.status == 503
            assert "2 streams are open" in await third.line()
        async with listening(server, token) as again:
            assert again.status == 200

    asyncio.run(listen())


def test_a_store_that_goes_away_is_told_and_the_stream_goes_on(app: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    from treadle import EngineUnavailable

    server = asgi(app, auth=lambda _: Principal.of("ada", ["read"]))
    tally = app.engine.tally

    def away(**_: Any) -> Any:
        raise EngineUnavailable("postgresql://shop:hunter2@db does not answer")

    async def listen() -> None:
        async with listening(server, "") as listener:
            await listener.event()
            monkeypatch.setattr(app.engine, "tally", away)
            assert await listener.event() == ("trouble", {"detail": "the job store does not answer"})
            monkeypatch.setattr(app.engine, "tally", tally)
            assert (await listener.event())[0] == "status"

    asyncio.run(listen())
