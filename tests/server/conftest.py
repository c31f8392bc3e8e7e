"""A server on a store with a few tasks, and clients with tokens, each of whose answers is checked as it comes."""

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from treadle import Context, GiveUp, Retry, Treadle
from treadle.server import asgi
from treadle.server.api import Server
from treadle.server.dashboard.page import POLICY
from treadle.server.guard import HEADERS
from treadle.testing import FakeClock

API = "/api/v1"
NO_LIMIT = {"rate": 1e9, "burst": 10**9}
PROBLEM = "application/problem+json"


class Client:
    """Asks the server with a token or without one. Every answer has its headers, is no 5xx, and tells no secret."""

    def __init__(self, http: TestClient, token: str | None = None, secrets: list[str] | None = None) -> None:
        self.http = http
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._secrets = [] if secrets is None else secrets

    def ask(self, method: str, path: str, **request: Any) -> Any:
        """The answer, whatever its status. Paths begin at the API's own prefix, unless they begin with `//`."""
        headers = {**self._headers, **request.pop("headers", {})}
        self.http.cookies.clear()
        url = path[1:] if path.startswith("//") else f"{API}{path}"
        answer = self.http.request(method, url, headers=headers, **request)
        check(answer, self._secrets)
        return answer

    def get(self, path: str, expect: int = 200, **query: Any) -> Any:
        return self._expected(self.ask("GET", path, params=query), expect)

    def post(self, path: str, body: Any = None, expect: int = 200, **more: Any) -> Any:
        return self._expected(self.ask("POST", path, json={} if body is None else body, **more), expect)

    def patch(self, path: str, body: Any, expect: int = 200, **query: Any) -> Any:
        return self._expected(self.ask("PATCH", path, json=body, params=query), expect)

    def delete(self, path: str, expect: int = 200, **query: Any) -> Any:
        return self._expected(self.ask("DELETE", path, params=query), expect)

    def _expected(self, answer: Any, status: int) -> Any:
        assert answer.status_code == status, f"{answer.request.method} {answer.request.url}: {answer.text}"
        return answer.json() if answer.content else None


def check(answer: Any, secrets: list[str]) -> None:
    """What holds for every answer: its headers, its form as a problem if it is one, and nothing secret in it."""
    what = f"{answer.request.method} {answer.request.url} -> {answer.status_code} {answer.text[:300]}"
    page = answer.headers.get("content-type", "").startswith("text/html")
    for name, value in {**HEADERS, **({"content-security-policy": POLICY} if page else {})}.items():
        assert answer.headers.get(name) == value, what
    assert "server" not in answer.headers, what
    assert answer.status_code not in range(500, 600) or answer.status_code == 503, what
    if answer.status_code >= 400 and not page:
        assert answer.headers["content-type"] == PROBLEM, what
        if answer.request.method == "HEAD":
            return
        body = answer.json()
        assert (body["status"], body["type"]) == (answer.status_code, "about:blank"), what
        assert body["title"], what
        assert body["detail"], what
        if answer.status_code == 422:
            assert body["field"], what
    text = answer.text + json.dumps(dict(answer.headers))
    assert not [secret for secret in secrets if secret in text], "an answer tells a secret"


@pytest.fixture
def app(make_app: Callable[..., Treadle]) -> Treadle:
    return with_tasks(make_app())


def with_tasks(app: Treadle) -> Treadle:
    """The app, with tasks of all kinds: typed, of any payload, on another queue, one that fails, one that gives up."""

    @app.task
    def greet(name: str, polite: bool = False) -> str:
        return f"good day {name}" if polite else f"hello {name}"

    @app.task
    def whatever(payload: Any) -> Any:
        return payload

    @app.task(queue="mail", retry=Retry(max_attempts=1))
    def send(to: str) -> None:
        raise ConnectionError(f"{to} does not answer")

    @app.task
    def give_up(why: str) -> None:
        raise GiveUp(why)

    @app.task
    def cost(ctx: Context, micros: int) -> None:
        ctx.add_cost(micros)

    return app


@pytest.fixture(scope="session")
def shared() -> Iterator[TestClient]:
    """A server that all tests use, each with its own app: to build its routes takes longer than most tests."""
    server = asgi(Treadle("sqlite:///:memory:"), **NO_LIMIT)
    with TestClient(server, "http://localhost", raise_server_exceptions=False, follow_redirects=False) as client:
        yield client


@pytest.fixture(scope="session")
def with_admin() -> Iterator[TestClient]:
    """As `shared`, with `/api/admin` too; for modules that put it in its place."""
    server = asgi(Treadle("sqlite:///:memory:"), admin=True, **NO_LIMIT)
    with TestClient(server, "http://localhost", raise_server_exceptions=False, follow_redirects=False) as client:
        yield client


@pytest.fixture
def http(shared: TestClient, app: Treadle) -> TestClient:
    """The bare client: nobody has signed in, and nothing is checked."""
    shared.cookies.clear()
    shared.app.serve_app(app)
    return shared


@pytest.fixture
def server(http: TestClient) -> Server:
    return http.app


@pytest.fixture
def secrets() -> list[str]:
    """What no answer and no log line may tell: the tokens that were made."""
    return []


@pytest.fixture(autouse=True)
def _nothing_in_the_log(secrets: list[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No log line tells a secret, whatever a test does, and none of the server's is an error."""
    caplog.set_level(logging.DEBUG, "treadle")
    yield
    lines = [(record, f"{record.getMessage()} {record.exc_text or ''}") for record in caplog.get_records("call")]
    assert not [line for _, line in lines for secret in secrets if secret in line]
    served = [line for line in lines if not line[0].name.startswith("treadle.worker")]
    assert not [line for record, line in served if record.levelno >= logging.ERROR]


Login = Callable[..., Client]


@pytest.fixture
def login(app: Treadle, http: TestClient, secrets: list[str]) -> Login:
    """A client with a new token of these scopes, maybe bound to a tenant and queues."""

    def login(*scopes: str, label: str = "", **bound: Any) -> Client:
        made = app.tokens.create(label or f"{'-'.join(scopes)}-{len(secrets)}", scopes=scopes, **bound)
        secrets.append(made.secret)
        return Client(http, made.secret, secrets)

    return login


@pytest.fixture
def admin(login: Login) -> Client:
    return login("admin")


@pytest.fixture
def nobody(http: TestClient, secrets: list[str]) -> Client:
    """A client without a token."""
    return Client(http, None, secrets)


@pytest.fixture
def tick(clock: FakeClock) -> Callable[[], None]:
    """Let a second go by, so that what is stored next is later."""
    return lambda: clock.advance(seconds=1)
