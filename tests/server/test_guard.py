"""What every request passes: the rate limit, the limits of bodies, the headers of every answer."""

import asyncio
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.server.conftest import Client
from tests.server.raw import Raw
from treadle import Treadle
from treadle.server import asgi
from treadle.server.api import Server
from treadle.server.guard import HEADERS, Guard, RateLimit


def test_a_caller_may_ask_in_bursts_and_then_at_a_rate() -> None:
    limit = RateLimit(rate=10, burst=3)
    assert [limit.wait("ada", now=0.0) for _ in range(3)] == [0, 0, 0]
    assert limit.wait("ada", now=0.0) == pytest.approx(0.1)
    assert limit.wait("grace", now=0.0) == 0
    assert limit.wait("ada", now=0.1) == 0
    assert limit.wait("ada", now=0.1) > 0
    assert [limit.wait("ada", now=60.0) for _ in range(4)][-1] > 0


def test_many_callers_are_forgotten_rather_than_kept() -> None:
    limit = RateLimit(rate=10, burst=3)
    for number in range(3 * RateLimit.MOST):
        limit.wait(f"caller {number}", now=number / 1000)
    assert len(limit._full_at) <= RateLimit.MOST


def test_who_asks_too_often_is_told_when_to_come_again(app: Treadle) -> None:
    token, other = (app.tokens.create(label, scopes=["read"]).secret for label in ("ada", "grace"))
    with TestClient(asgi(app, rate=0.01, burst=5), "http://localhost") as http:

        def ask(secret: str) -> Any:
            return http.get("/api/v1/session", headers={"Authorization": f"Bearer {secret}"})

        assert [ask(token).status_code for _ in range(5)] == [200] * 5
        answer = ask(token)
        assert answer.status_code == 429
        assert 50 < int(answer.headers["retry-after"]) <= 100
        assert answer.headers["content-type"] == "application/problem+json"
        assert HEADERS.items() <= dict(answer.headers).items()
        assert ask(other).status_code == 200
        guesses = [ask(f"treadle_guess{number}").status_code for number in range(60)]
        assert (guesses[0], guesses[-1]) == (401, 429)  # the address has a limit of its own


def test_a_body_that_comes_in_parts_is_counted_as_a_whole(server: Server) -> None:
    async def ask(parts: list[bytes], *, cut_off: bool = False) -> int:
        sent: list[Any] = []
        messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
        if not cut_off:
            messages[-1]["more_body"] = False

        async def receive() -> Any:
            return messages.pop(0) if messages else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/api/v1/session", "headers": headers, "query_string": b""}
        await server({**scope, "scheme": "http", "root_path": "", "client": None, "server": None}, receive, send)
        return int(sent[0]["status"])

    assert asyncio.run(ask([b'{"tok', b'en": "', b'x"}'])) == 401
    assert asyncio.run(ask([b" " * (1 << 20)] * 2)) == 413
    assert asyncio.run(ask([b'{"token": "x"}'], cut_off=True)) == 400


def test_a_bug_of_ours_is_logged_under_a_number_and_tells_nothing(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the guard it is over: the HTTP server must not write the same traceback again."""

    async def broken(request: object) -> None:
        raise RuntimeError("postgresql://shop:hunter2@db/shop")

    server.api.state.auth = broken
    with Raw(server) as raw:
        answer = raw.ask("GET", "/api/v1/jobs")
    assert answer.status == 500
    assert HEADERS.items() <= answer.headers.items()
    number = answer.json["error_id"]
    assert answer.json["detail"] == f"an error of the server; its log has more under {number}"
    assert b"hunter2" not in answer.body
    [record] = [record for record in caplog.records if record.name == "treadle.server"]
    assert number in record.getMessage()
    assert record.exc_info is not None
    caplog.clear()


def test_an_error_in_the_middle_of_an_answer_is_not_hidden() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("half of it is sent")

    async def ask() -> None:
        async def send(message: Any) -> None: ...

        async def receive() -> Any: ...

        scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"localhost")]}
        await Guard(app)(scope, receive, send)

    with pytest.raises(RuntimeError, match="half of it is sent"):
        asyncio.run(ask())


def test_there_are_no_websockets(http: TestClient) -> None:
    from starlette.websockets import WebSocketDisconnect

    with pytest.raises(WebSocketDisconnect), http.websocket_connect("/api/v1/events"):
        pass


def test_errors_have_the_headers_too(nobody: Client, admin: Client) -> None:
    """`Client` checks them with every answer; here are those of which one might not think."""
    for method, path in (("GET", "//nowhere"), ("PUT", "/jobs"), ("GET", "/jobs"), ("HEAD", "//healthz")):
        nobody.ask(method, path)
    admin.ask("GET", "/jobs", params={"limit": "x"})
    assert nobody.ask("PUT", "/jobs").headers["allow"] in ("GET", "POST")
