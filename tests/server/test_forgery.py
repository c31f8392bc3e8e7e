"""Requests that another site, another name or another program makes a browser send: refused on every route."""

import pytest

from tests.server.conftest import Client
from tests.server.endpoints import CHANGES, ENDPOINTS, Endpoint, Place, place_in
from tests.server.raw import Raw, check
from tests.server.test_scopes import everything
from treadle import Treadle
from treadle.server import asgi
from treadle.server.api import Server
from treadle.server.guard import Guard
from treadle.server.problems import Refused

FORGED = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": ""},
    {"Origin": "http://localhost.evil.example"},
    {"Origin": "http://evil.example/localhost"},
    {"Origin": "http://localhost:8080"},
    {"Origin": "http://localhost@evil.example"},
    {"Origin": "http://[::1"},
    {"Origin": "http://[evil"},
    {"Origin": "//localhost"},
    {"Origin": "localhost"},
    {"Origin": "file://localhost"},
    {"Origin": "chrome-extension://localhost"},
    {"Origin": "http://localhost, http://evil.example"},
    {"Origin": "http://127.0.0.1"},  # it was asked as localhost
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "anything"},
    {"Origin": "http://localhost", "Sec-Fetch-Site": "cross-site"},
    {"Origin": "https://evil.example", "Sec-Fetch-Site": "same-origin"},
]
FORMS = [
    "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain", "text/json",
    "text/plain; application/json", "application/jsonp", "application/octet-stream", "", "application/csp-report",
]  # fmt: skip
HOSTS = [
    "evil.example", "evil.example:80", "localhost.evil.example", "evil.example.localhost", "127.0.0.1.evil.example",
    "localhost@evil.example", "evil.example@localhost", "localhost:evil", "localhost:80:80", "", " ", "localhost.",
    "127.0.0.2", "127.1", "0", "0.0.0." + "0", "2130706433", "0x7f000001", "[::]", "[::ffff:127.0.0.1]", "::1",
    "[::1", "]",
    "localhost/", "localhost?x", "localhost#", "local\thost", "192.168.0.1", "metadata.google.internal", "testserver",
    "localhost, evil.example", "LOCALHOST.EVIL.EXAMPLE", "%6cocalhost", "[localhost]", "x" * 5000,
]  # fmt: skip


@pytest.fixture
def place(app: Treadle) -> Place:
    return place_in(app)


def ask(client: Client, endpoint: Endpoint, place: Place, **request: object) -> int:
    if endpoint.body is not None:
        request = {"json": endpoint.body, **request}
    return int(client.ask(endpoint.method, f"/{endpoint.url(place)}", params=endpoint.query, **request).status_code)


@pytest.mark.parametrize("endpoint", CHANGES, ids=str)
def test_no_page_of_another_site_changes_anything(app: Treadle, admin: Client, place: Place, endpoint) -> None:
    before = everything(app)
    for headers in FORGED:
        assert ask(admin, endpoint, place, headers=headers) == 403, headers
    assert everything(app) == before


@pytest.mark.parametrize("endpoint", [one for one in CHANGES if one.body is not None], ids=str)
def test_no_form_is_taken_for_json(app: Treadle, admin: Client, place: Place, endpoint) -> None:
    before = everything(app)
    for kind in FORMS:
        body = b'{"queue": "mail", "x": "=1"}'
        answer = admin.ask(endpoint.method, f"/{endpoint.url(place)}", content=body, headers={"Content-Type": kind})
        assert (answer.status_code, answer.json()["field"]) == (415, "Content-Type"), kind
    assert everything(app) == before


def test_programs_and_the_servers_own_pages_may_change_things(admin: Client) -> None:
    for number, headers in enumerate(
        [
            {},
            {"Origin": "http://localhost"},
            {"Origin": "HTTP://LOCALHOST"},
            {"Origin": "https://localhost"},  # behind a proxy that speaks TLS
            {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"},
            {"Sec-Fetch-Site": "none"},
            {"Content-Type": "application/json; charset=utf-8"},
            {"Content-Type": "Application/JSON"},
        ]
    ):
        content = f'{{"queue": "q{number}"}}'.encode()
        sent = {"Content-Type": "application/json", **headers}
        assert admin.ask("POST", "/pauses", content=content, headers=sent).status_code == 201, headers
    own = {"Host": "[::1]:8787", "Origin": "http://[::1]:8787"}
    assert admin.ask("POST", "/pauses", json={"queue": "q"}, headers=own).status_code == 201


def test_what_only_looks_changes_nothing(app: Treadle, admin: Client, place: Place, server) -> None:
    server.stop()  # a stream ends at once
    before = everything(app)
    for endpoint in ENDPOINTS:
        for method in ("GET", "HEAD", "OPTIONS", "TRACE"):
            if (method, endpoint.path) != ("GET", "/login"):
                admin.ask(method, f"/{endpoint.url(place)}")
    assert everything(app) == before


def test_no_other_site_is_let_in_by_cors(nobody: Client, place: Place) -> None:
    for endpoint in ENDPOINTS:
        headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": endpoint.method}
        answer = nobody.ask("OPTIONS", f"/{endpoint.url(place)}", headers=headers)
        assert answer.status_code == 405
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host[:30])
def test_no_other_name_is_answered_to(server: Server, host: str) -> None:
    with Raw(server) as raw:
        for method, path in (("GET", "/healthz"), ("GET", "/metrics"), ("POST", "/api/v1/pauses")):
            answer = raw.ask(method, path, [(b"host", host.encode())])
            check(answer, host)
            assert (answer.status, answer.json["field"]) == (421, "Host")
            assert "--allow-host" in answer.json["detail"]


def test_two_hosts_are_none_and_neither_is_none_at_all(server: Server) -> None:
    with Raw(server) as raw:
        assert raw.ask("GET", "/healthz", [(b"host", b"localhost"), (b"host", b"evil.example")]).status == 421
        assert raw.ask("GET", "/healthz", [(b"host", b"localhost")] * 2).status == 421
        assert raw.ask("GET", "/healthz", [(b"host", b"\xff\xfe")]).status == 421


def test_every_origin_that_is_sent_must_be_our_own(server: Server) -> None:
    own, other = (b"origin", b"http://localhost"), (b"origin", b"http://evil.example")
    with Raw(server) as raw:
        for origins in ([own, other], [other, own], [other, other], [own, (b"sec-fetch-site", b"cross-site")]):
            assert raw.ask("DELETE", "/api/v1/session", origins).status == 403
        assert raw.ask("DELETE", "/api/v1/session", [own, own]).status == 204


@pytest.mark.parametrize("host", ["localhost", "LocalHost:8787", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8787"])
def test_the_names_of_this_machine_are_answered_to(nobody: Client, host: str) -> None:
    assert nobody.ask("GET", "//healthz", headers={"Host": host}).status_code == 200


def test_other_names_are_answered_to_where_they_are_allowed(app: Treadle) -> None:
    guard = Guard(asgi(app).api, hosts=["Jobs.Example"])
    for host, server, allowed in [
        ("jobs.example", None, True),
        ("JOBS.example:443", None, True),
        ("x.jobs.example", None, False),
        ("10.0.0.5:8787", ("10.0.0.5", 8787), True),  # the address at which it is reached: a probe of Kubernetes
        ("10.0.0.6:8787", ("10.0.0.5", 8787), False),
        ("[fe80::1]:8787", ("fe80::1", 8787), True),
        ("[::1%25eth0]", ("::1%eth0", 80), False),
        ("evil.example", ("evil.example", 80), False),  # a name is none, whoever says so
        ("evil.example", ("/run/treadle.sock", None), False),
    ]:
        headers = [(b"host", host.encode())]
        scope = {"type": "http", "method": "GET", "path": "/", "headers": headers, "server": server, "client": None}
        assert _passes(guard, scope) is allowed, (host, server)


def _passes(guard: Guard, scope: dict) -> bool:
    try:
        guard._check(scope)
    except Refused:
        return False
    return True


def test_a_star_answers_to_every_name(app: Treadle) -> None:
    guard = Guard(asgi(app).api, hosts=["*"])
    for host in ("evil.example", "10.0.0.1", "x:1"):
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", host.encode())]}
        assert _passes(guard, scope)
