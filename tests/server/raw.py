"""Requests as bytes, given straight to the server: what no client library would send, and quicker than by one."""

import asyncio
import json
from typing import Any, NamedTuple, Self
from urllib.parse import unquote

from treadle.server.api import Server
from treadle.server.dashboard.page import POLICY
from treadle.server.guard import HEADERS

PROBLEM = "application/problem+json"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Raw:
    """Asks a server on an event loop of its own; close it at the end."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def ask(
        self, method: str, target: str, headers: list[tuple[bytes, bytes]] | None = None, body: bytes = b""
    ) -> Answer:
        """The answer; `target` is a path with its query, as it stands in the request line."""
        return self._loop.run_until_complete(self._ask(method, target, headers or [], body))

    async def _ask(self, method: str, target: str, headers: list[tuple[bytes, bytes]], body: bytes) -> Answer:
        path, _, query = target.partition("?")
        if b"host" not in dict(headers):
            headers = [(b"host", b"localhost"), *headers]
        scope = {
            "type": "http", "http_version": "1.1", "method": method, "scheme": "http", "root_path": "",
            "headers": headers, "path": unquote(path), "raw_path": path.encode(), "query_string": query.encode(),
            "state": {},
            "asgi": {"version": "3.0", "spec_version": "2.4"}, "server": ("localhost", 80), "client": ("tests", 1),
        }  # fmt: skip
        sent: list[Any] = []
        given = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return given.pop() if given else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await self._server(scope, receive, send)
        start, *parts = sent
        told = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
        return Answer(start["status"], told, b"".join(part.get("body", b"") for part in parts))


def check(answer: Answer, what: object) -> None:
    """What holds for every answer to whatever: no 5xx, the headers, and a refusal is a problem document, or a page."""
    assert answer.status < 500, (what, answer)
    page = answer.headers.get("content-type", "").startswith("text/html")
    wanted = {**HEADERS, **({"content-security-policy": POLICY} if page else {})}
    assert wanted.items() <= answer.headers.items(), (what, answer)
    if answer.status >= 400 and not page:
        assert answer.headers["content-type"] == PROBLEM, (what, answer)
        body = answer.json
        assert (body["status"], bool(body["detail"]), bool(body["title"])) == (answer.status, True, True), (
            what,
            answer,
        )
        if answer.status in (413, 414, 415, 421, 422):
            assert body["field"], (what, answer)
