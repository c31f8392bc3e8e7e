"""Every page of the dashboard: who may ask for it, that looking changes nothing, and what strange forms are told."""

import ast
import random
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.server.conftest import Client, Login
from tests.server.endpoints import PUBLIC, Place, place_in, routes_of
from tests.server.test_scopes import everything
from treadle import Treadle
from treadle.server.api import Server
from treadle.server.dashboard.page import HERE, PAGES

FREE = {("GET", "/login"), ("POST", "/login"), ("POST", "/logout"), ("GET", "/static/{name}")}
CHECKS = {("POST", "/schedules/check")}  # posts that say what a form would do, and change nothing
APP = {"app", "whole", "every_queue", "tasks", "_app"}  # of a caller: the app, or a part of it
PASSED_ON = ["page.py: caller.tasks"]  # to the caller that the endpoints are given
FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture
def place(app: Treadle) -> Place:
    return place_in(app)


def pages_of(server: Server, method: str) -> list[str]:
    """The addresses that this method reaches, but those that need nobody."""
    return sorted(path for one, path in routes_of(server.api, pages=True) if one == method and (one, path) not in FREE)


def test_every_page_needs_somebody_who_may_read_and_every_act_one_who_may_operate(server: Server) -> None:
    for (method, path), scope in routes_of(server.api, pages=True).items():
        if (method, path) in FREE:
            assert scope == PUBLIC, path
        else:
            assert scope == ("read" if method == "GET" or (method, path) in CHECKS else "operate"), path
            assert method in ("GET", "POST"), path


def test_every_page_of_the_frame_is_there(admin: Client, place: Place) -> None:
    for path, name, _ in PAGES:
        answer = admin.ask("GET", f"/{path}")
        assert answer.status_code == 200, path
        assert f"<h1>{name}</h1>" in answer.text, path


def test_pages_read_and_act_by_the_endpoints_of_the_api_alone() -> None:
    """No page goes round them to the app: what it needs and the API lacks is added to the API first."""
    around = []
    for path in sorted(HERE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "caller" and node.attr in APP:
                around.append(f"{path.name}: caller.{node.attr}")
    assert around == PASSED_ON


def test_nobody_is_led_to_sign_in_and_then_to_the_page_they_wanted(nobody: Client, server: Server) -> None:
    for path in pages_of(server, "GET"):
        answer = nobody.ask("GET", f"/{path}")
        assert answer.status_code == 303, path
        assert answer.headers["location"].startswith("/login"), path
    answer = nobody.ask("GET", "//jobs?state=failed")
    assert answer.headers["location"] == "/login?next=%2Fjobs%3Fstate%3Dfailed"


def test_looking_at_pages_changes_nothing(app: Treadle, admin: Client, server: Server, place: Place) -> None:
    before = everything(app)
    for path in pages_of(server, "GET"):
        for query in ("", "?act=retry", "?act=cancel", "?act=delete", "?act=pause", "?act=run", "?act=drain"):
            answer = admin.ask("GET", f"/{path.format(**place._asdict())}{query}")
            assert answer.status_code < 500, path
    assert everything(app) == before


def test_who_may_only_read_is_refused_every_act(app: Treadle, login: Login, server: Server, place: Place) -> None:
    reader, before = login("read"), everything(app)
    for path in pages_of(server, "POST"):
        if ("POST", path) in CHECKS:
            continue
        answer = reader.ask("POST", f"/{path.format(**place._asdict())}", content="reason=x", headers=FORM)
        assert answer.status_code == 403, path
        assert "this needs the scope operate" in answer.text, path
    assert everything(app) == before


def test_a_form_of_another_site_is_refused(app: Treadle, admin: Client, server: Server, place: Place) -> None:
    before = everything(app)
    for path in pages_of(server, "POST"):
        headers = {**FORM, "Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
        answer = admin.ask("POST", f"/{path.format(**place._asdict())}", content="reason=x", headers=headers)
        assert answer.status_code == 403, path
    assert everything(app) == before


STRANGE: list[Any] = [
    b"", b"=", b"&&&", b"reason", b"a" * 10_000, b"%", b"%zz=%zz", b"\xff\xfe=\xff", b"%ff=%fe", b"id=" * 2000,
    b"reason=%00", b"payload={", b"payload=null&revision=x", b"cron=*&every=1h", b"queue=%0a&task=%0d", b"until=never",
    b"token=&token=", b"ids=x&ids=y&action=retry", b"action=explode&confirm=x", b"revision=99999999999999999999",
    b"payload=" + b"[" * 3000, b"name=%3Cscript%3Ealert(1)%3C/script%3E", b"next=//evil.example", b"expect=-1",
]  # fmt: skip


@pytest.mark.parametrize("body", STRANGE, ids=lambda body: repr(body[:24]))
def test_a_strange_form_is_a_page_that_says_so(admin: Client, server: Server, place: Place, body: bytes) -> None:
    for path in [*pages_of(server, "POST"), "/login"]:
        answer = admin.ask("POST", f"/{path.format(**place._asdict())}", content=body, headers=FORM)
        assert answer.status_code < 500, path
        assert "Traceback" not in answer.text, path
        assert "<script>alert" not in answer.text, path


def test_strange_addresses_are_pages_too(admin: Client, server: Server, place: Place) -> None:
    rand = random.Random(5)
    names = ("state", "queue", "task", "tenant", "cursor", "since", "before", "act", "q", "span", "name", "fingerprint")
    values = (
        "",
        "x",
        "\x00",
        "é",
        "'--",
        "<b>",
        "9" * 400,
        "../..",
        "%",
        "-1",
        "null",
        "\ud7ff",
        "2026-02-30",
        "🎈" * 50,
    )
    for path in pages_of(server, "GET"):
        for _ in range(12):
            query = {rand.choice(names): rand.choice(values) for _ in range(3)}
            answer = admin.ask("GET", f"/{path.format(**place._asdict())}", params=query)
            assert answer.status_code < 500, (path, query)


def test_files_are_kept_for_ever_and_named_by_what_is_in_them(http: TestClient, nobody: Client) -> None:
    page = nobody.ask("GET", "//login").text
    address = page.split('rel="stylesheet" href="')[1].split('"')[0]
    answer = http.get(address)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/css; charset=utf-8")
    assert "immutable" in answer.headers["cache-control"]
    assert nobody.ask("GET", "//static/..%2fpage.py").status_code == 404
