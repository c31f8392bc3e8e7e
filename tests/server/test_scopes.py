"""Who may ask what: every endpoint with every scope, and with every token that is none."""

import json
from collections.abc import Iterator

import pytest

from tests.server.conftest import Client, Login
from tests.server.endpoints import ENDPOINTS, PUBLIC, STREAM, Endpoint, Place, place_in, routes_of
from treadle import Treadle
from treadle.app.tokens import GRANTS
from treadle.server.api import Server
from treadle.server.caller import SIGNED_IN
from treadle.testing import FakeClock

ASKED = [endpoint for endpoint in ENDPOINTS if endpoint.scope != PUBLIC]
each = pytest.mark.parametrize("endpoint", ENDPOINTS, ids=str)


@pytest.fixture
def place(app: Treadle) -> Iterator[Place]:
    return place_in(app)


def ask(client: Client, endpoint: Endpoint, place: Place) -> int:
    request = {} if endpoint.body is None else {"json": endpoint.body}
    return client.ask(endpoint.method, f"/{endpoint.url(place)}", params=endpoint.query, **request).status_code


def test_every_route_of_the_server_says_which_scope_it_needs(server: Server) -> None:
    """A new endpoint fails here until endpoints.py has it, and says the scope that its code says."""
    assert routes_of(server.api) == {(one.method, one.path): one.scope for one in ENDPOINTS}


def test_what_needs_no_scope_is_known() -> None:
    public = {str(one) for one in ENDPOINTS if one.scope == PUBLIC}
    assert public == {
        "GET /healthz", "GET /readyz", "GET /api/v1/openapi.json", "POST /api/v1/session",
        "DELETE /api/v1/session",
    }  # fmt: skip


@pytest.mark.parametrize("scope", GRANTS)
def test_a_scope_reaches_what_it_allows_and_nothing_else(
    app: Treadle, server: Server, login: Login, place: Place, scope: str
) -> None:
    client = login(scope)
    server.api.state.stopping = True  # a stream ends with its first line
    for endpoint in ENDPOINTS:
        before = everything(app)
        allowed = endpoint.scope in (PUBLIC, SIGNED_IN, *GRANTS[scope])
        expected = endpoint.status if allowed else 403
        if endpoint.path == "/readyz":
            expected = 503
        assert ask(client, endpoint, place) == expected, endpoint
        if not allowed:
            assert everything(app) == before, endpoint


def everything(app: Treadle) -> object:
    """What a request could have changed."""
    return (app.find().jobs, [*app.schedules.list()], app.pauses(), app.tokens.list(), app.audit())


def test_a_refusal_names_the_scope_that_is_missing(login: Login) -> None:
    answer = login("read").post("/pauses", {"queue": "mail"}, 403)
    assert answer["detail"] == "this needs the scope operate; your token has: read"
    assert answer["scope"] == "operate"


@pytest.mark.parametrize(
    "header",
    [
        "", "Bearer", "Bearer ", "Bearer  ", "Basic YWRtaW46YWRtaW4=", "Digest x", "Bearer treadle_", "Bearer null",
        "bearer treadle_" + "A" * 43, "Bearer " + "x" * 5000, "Bearer \xff\xfe", "Bearer ../../etc/passwd",
        "Bearer ' or '1'='1", "Bearer {}", "treadle_" + "A" * 43,
    ],
    ids=lambda header: header[:20].encode("ascii", "replace").decode(),
)  # fmt: skip
def test_no_endpoint_answers_a_token_that_is_none(nobody: Client, place: Place, header: str) -> None:
    for endpoint in ASKED:
        request = {} if endpoint.body is None else {"json": endpoint.body}
        headers = {"Authorization": header.encode("latin-1")} if header else {}
        answer = nobody.ask(endpoint.method, f"/{endpoint.url(place)}", headers=headers, **request)
        assert answer.status_code == 401, endpoint
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "treadle tokens create" in answer.json()["detail"]


def test_no_endpoint_answers_a_token_that_was_revoked_or_has_expired(
    app: Treadle, login: Login, place: Place, clock: FakeClock
) -> None:
    revoked, expired = login("admin", label="revoked"), login("admin", expires="1h")
    usable = login("admin")
    app.tokens.revoke("revoked")
    clock.advance(hours=1)
    for endpoint in ASKED:
        assert ask(revoked, endpoint, place) == ask(expired, endpoint, place) == 401, endpoint
    assert usable.get("/session")["scopes"] == ["admin", "enqueue", "operate", "read"]


def test_the_hash_of_a_token_is_not_a_token(app: Treadle, http, login: Login) -> None:
    login("admin")
    [token] = app.tokens.list()
    for text in (token.hash, token.name, f"treadle_{token.hash}"):
        Client(http, text).get("/session", 401)


def test_a_token_is_not_taken_from_anywhere_but_its_header(app: Treadle, nobody: Client) -> None:
    made = app.tokens.create("ci", scopes=["admin"])
    for query in ("token", "access_token", "code", "authorization"):
        assert nobody.ask("GET", "/session", params={query: made.secret}).status_code == 401
    for header in ("X-Api-Key", "X-Token", "Token", "Proxy-Authorization"):
        assert nobody.ask("GET", "/session", headers={header: f"Bearer {made.secret}"}).status_code == 401
    assert nobody.ask("GET", "/session", headers={"Cookie": f"treadle_session={made.secret}"}).status_code == 401
    assert nobody.ask("POST", "/jobs", json={"token": made.secret}).status_code == 401


def test_the_scheme_of_a_token_may_be_written_in_any_case(app: Treadle, nobody: Client) -> None:
    made = app.tokens.create("ci", scopes=["read"])
    for scheme in ("Bearer", "bearer", "BEARER"):
        answer = nobody.ask("GET", "/session", headers={"Authorization": f"{scheme} {made.secret}"})
        assert json.loads(answer.text)["actor"] == "token ci"


def test_the_stream_is_asked_for_as_everything_else(nobody: Client) -> None:
    assert STREAM.scope == "read"
    assert nobody.ask("GET", f"/{STREAM.path}").status_code == 401
