"""`asgi(app, auth=…)` in an ASGI application of the user's own, under a path, with their own sign-in."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fastapi import FastAPI, Request
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from tests.server.conftest import NO_LIMIT, Client
from treadle import ConfigError, Treadle
from treadle.server import Principal, asgi
from treadle.server.auth import COOKIE, StoreAuth

PEOPLE = {
    "ada": Principal.of("ada", ["admin"]),
    "grace": Principal.of("grace", ["read"], tenant="acme"),
    "bob": Principal.of("bob", ["operate"], queues=["mail"]),
}
AT = "/ops/jobs"


def sync_auth(request: Request) -> Principal | None:
    return PEOPLE.get(request.headers.get("X-User", ""))


async def async_auth(request: Request) -> Principal | None:
    return PEOPLE.get(request.headers.get("X-User", ""))


class AuthObject:
    """An object that can be called, and waits."""

    async def __call__(self, request: Request) -> Principal | None:
        return PEOPLE.get(request.headers.get("X-User", ""))


Auth = Callable[[Request], Principal | Awaitable[Principal | None] | None]


def mounted(app: Treadle, auth: Auth | None, kind: type = Starlette, **options: Any) -> TestClient:
    served = asgi(app, auth=auth, **{**NO_LIMIT, **options})
    if kind is FastAPI:
        outer: Any = FastAPI()
        outer.mount(AT, served)
    else:
        outer = Starlette(routes=[Mount(AT, served)])
    return TestClient(outer, "http://localhost", raise_server_exceptions=False, follow_redirects=False)


@pytest.mark.parametrize("kind", [Starlette, FastAPI])
@pytest.mark.parametrize("auth", [sync_auth, async_auth, AuthObject()], ids=["sync", "async", "object"])
def test_the_api_is_served_under_a_path_with_the_users_own_sign_in(app: Treadle, auth: Auth, kind: type) -> None:
    http = mounted(app, auth, kind)

    def ask(method: str, path: str, user: str = "", **request: Any) -> Any:
        return http.request(method, f"{AT}/api/v1{path}", headers={"X-User": user}, **request)

    assert ask("GET", "/jobs").status_code == 401
    assert ask("GET", "/jobs", "nobody").status_code == 401
    made = ask("POST", "/jobs", "ada", json={"task": "greet", "payload": {"name": "Ada"}, "tenant": "acme"})
    assert made.status_code == 201
    id_ = made.json()["job"]["id"]
    assert ask("GET", f"/jobs/{id_}", "grace").json()["job"]["id"] == id_
    assert ask("POST", f"/jobs/{id_}/cancel", "grace", json={}).status_code == 403
    assert ask("GET", f"/jobs/{id_}", "bob").status_code == 404
    assert ask("GET", "/session", "bob").json() == {
        "actor": "bob", "scopes": ["operate", "read"], "tenant": None, "queues": ["mail"],
    }  # fmt: skip
    assert ask("POST", f"/jobs/{id_}/cancel", "ada", json={}).json()["job"]["state"] == "cancelled"
    assert [event.actor for event in app.audit(kind="cancelled")] == ["ada"]
    assert http.get(f"{AT}/healthz").json() == {"ok": True}
    assert http.get("/api/v1/jobs", headers={"X-User": "ada"}).status_code == 404
    assert http.get(f"{AT}/api/v1/openapi.json").json()["servers"] == [{"url": AT}]


def test_tokens_and_sessions_of_the_store_mean_nothing_there(app: Treadle) -> None:
    http = mounted(app, sync_auth)
    made = app.tokens.create("ci", scopes=["admin"])
    assert http.get(f"{AT}/api/v1/jobs", headers={"Authorization": f"Bearer {made.secret}"}).status_code == 401
    cookie = StoreAuth(app, b"s" * 32).session_of(PEOPLE["ada"])
    assert http.get(f"{AT}/api/v1/jobs", headers={"Cookie": f"{COOKIE}={cookie}"}).status_code == 401
    answer = http.post(f"{AT}/api/v1/session", json={"token": made.secret})
    assert (answer.status_code, "application around" in answer.json()["detail"]) == (404, True)
    assert http.get(f"{AT}/login", params={"code": "x"}).status_code == 404


def test_the_link_leads_to_where_it_is_mounted(app: Treadle) -> None:
    served = asgi(app, **NO_LIMIT)
    assert isinstance(served.auth, StoreAuth)
    code = served.auth.new_link()
    http = TestClient(Starlette(routes=[Mount(AT, served)]), "http://localhost", follow_redirects=False)
    answer = http.get(f"{AT}/login", params={"code": code})
    assert answer.headers["location"] == f"{AT}/"
    assert http.get(f"{AT}/api/v1/session").json()["actor"] == "console"


def test_the_names_of_the_application_are_given(app: Treadle) -> None:
    at_home = mounted(app, sync_auth, hosts=["jobs.example"])
    at_home.base_url = "https://jobs.example"
    assert at_home.get(f"{AT}/healthz").status_code == 200
    away = mounted(app, sync_auth)
    away.base_url = "https://jobs.example"
    assert away.get(f"{AT}/healthz").status_code == 421


@pytest.mark.parametrize("scopes", ["read", ["root"], ["read", "Admin"]])
def test_a_scope_that_does_not_exist_is_refused_where_it_is_written(scopes: Any) -> None:
    with pytest.raises(ConfigError, match="scopes"):
        Principal.of("ada", scopes)


def test_an_auth_that_refuses_in_its_own_way_is_heard(app: Treadle) -> None:
    from fastapi import HTTPException

    def auth(request: Request) -> Principal | None:
        raise HTTPException(418, "tea first", {"X-Why": "tea"})

    answer = mounted(app, auth).get(f"{AT}/api/v1/jobs")
    assert (answer.status_code, answer.headers["content-type"]) == (418, "application/problem+json")
    assert (answer.json()["detail"], answer.headers["x-why"]) == ("tea first", "tea")


def test_nothing_is_opened_before_the_first_request(tmp_path) -> None:
    app = Treadle(f"sqlite:///{tmp_path}/not/there.db")
    asgi(app)
    assert not app._store.opened


def test_several_apps_are_served_side_by_side(app: Treadle) -> None:
    other = Treadle("sqlite:///:memory:")
    http = TestClient(
        Starlette(routes=[Mount("/a", asgi(app, auth=sync_auth)), Mount("/b", asgi(other, auth=sync_auth))]),
        "http://localhost",
    )
    app.enqueue("greet", {"name": "Ada"})
    headers = {"X-User": "ada"}
    assert len(http.get("/a/api/v1/jobs", headers=headers).json()["jobs"]) == 1
    assert http.get("/b/api/v1/tasks", headers=headers).json() == {"tasks": []}


def test_the_clients_of_these_tests_are_checked_as_all_are(app: Treadle) -> None:
    http = mounted(app, sync_auth)
    Client(http).ask("GET", f"/{AT}/api/v1/jobs")
