"""A form that is sent when the session has ended is kept, asks to sign in, and does nothing until it is sent again."""

from html.parser import HTMLParser
from typing import Any

import pytest

from tests.server.conftest import NO_LIMIT, Client
from tests.server.endpoints import place_in, routes_of
from tests.server.test_scopes import everything
from treadle import Treadle
from treadle.server import asgi
from treadle.server.api import Server
from treadle.server.auth import COOKIE
from treadle.server.dashboard.posted import MOST_FIELDS

RUN = "//schedules/nightly/run?x=1"


class Fields(HTMLParser):
    """The forms of a page: where each goes, and its hidden fields."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.forms: list[tuple[str, list[tuple[str, str]]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.forms.append((given["action"], []))
        if tag == "input" and given.get("type") == "hidden":
            self.forms[-1][1].append((given["name"], given["value"]))


@pytest.fixture(autouse=True)
def _there(app: Treadle) -> None:
    place_in(app)


def send(client: Client, path: str, fields: Any, **headers: str) -> Any:
    return client.ask("POST", path, data=fields, headers=headers)


def test_what_was_sent_comes_back_to_be_sent_again(app: Treadle, nobody: Client) -> None:
    sent = {"reason": 'why? "because" <b>', "ids": ["a", "b"], "empty": ""}
    before = everything(app)
    answer = send(nobody, RUN, sent)
    assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
    [(action, fields)] = Fields(answer.text).forms
    assert action == "/login"
    assert ("again", "/schedules/nightly/run?x=1") in fields

    again = send(nobody, "//login", {**listed(fields), "token": "treadle_wrong"})
    assert again.status_code == 401
    assert Fields(again.text).forms == [(action, fields)]
    assert everything(app) == before

    secret = app.tokens.create("ada", scopes=["operate"]).secret
    before = everything(app)
    signed_in = send(nobody, "//login", {**listed(fields), "token": secret})
    assert signed_in.status_code == 200
    assert secret not in signed_in.text
    [(action, fields)] = Fields(signed_in.text).forms
    assert (action, listed(fields)) == ("/schedules/nightly/run?x=1", {**sent, "ids": ["a", "b"]})
    assert everything(app) == before

    cookie = signed_in.headers["set-cookie"].partition(";")[0]
    assert cookie.startswith(COOKIE)
    assert send(nobody, f"/{action.partition('?')[0]}", listed(fields), Cookie=cookie).status_code == 303
    assert app.find(task="greet").jobs


def listed(fields: list[tuple[str, str]]) -> dict[str, Any]:
    """The fields as a form has them: one that comes twice is a list."""
    found: dict[str, Any] = {}
    for name, value in fields:
        found[name] = (
            [*found[name], value]
            if isinstance(found.get(name), list)
            else [found[name], value]
            if name in found
            else value
        )
    return found


def test_every_act_keeps_its_form(server: Server, nobody: Client) -> None:
    acts = [path for method, path in routes_of(server.api, pages=True) if method == "POST"]
    for path in sorted({*acts} - {"/login", "/logout"}):
        answer = send(nobody, f"/{path.format(name='nightly', job_id='x')}", {"reason": "a reason of mine"})
        assert (answer.status_code, "a reason of mine" in answer.text) == (401, True), path


@pytest.mark.parametrize(
    "again", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:x", "/a\tb"]
)
def test_a_form_is_kept_for_no_other_site(app: Treadle, nobody: Client, again: str) -> None:
    secret = app.tokens.create("ada", scopes=["operate"]).secret
    answer = send(nobody, "//login", {"token": secret, "again": again, "kept.reason": "x"})
    assert (answer.status_code, answer.headers.get("location")) == (303, "/")


def test_another_site_cannot_have_a_form_kept(app: Treadle, nobody: Client) -> None:
    secret = app.tokens.create("ada", scopes=["operate"]).secret
    for origin in ("https://evil.example", "null"):
        form = {"token": secret, "again": "/schedules/nightly/run", "kept.reason": "x"}
        answer = send(nobody, "//login", form, Origin=origin)
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


def test_the_largest_form_fits_beside_the_token(app: Treadle, nobody: Client) -> None:
    answer = send(nobody, RUN, {"ids": [f"{place}" for place in range(MOST_FIELDS)]})
    [(_, fields)] = Fields(answer.text).forms
    secret = app.tokens.create("ada", scopes=["operate"]).secret
    signed_in = send(nobody, "//login", {**listed(fields), "token": secret})
    assert signed_in.status_code == 200
    assert len(Fields(signed_in.text).forms[0][1]) == MOST_FIELDS


def test_a_program_is_told_as_before(nobody: Client) -> None:
    answer = nobody.ask("POST", "/schedules/nightly/run", json={})
    assert (answer.status_code, answer.headers["content-type"]) == (401, "application/problem+json")


def test_where_the_application_around_signs_in_the_form_is_kept_alone(app: Treadle) -> None:
    from starlette.testclient import TestClient

    http = TestClient(asgi(app, auth=lambda request: None, **NO_LIMIT), "http://localhost", follow_redirects=False)
    answer = http.post("/schedules/nightly/run", data={"reason": "why"})
    assert answer.status_code == 401
    assert Fields(answer.text).forms == [("/schedules/nightly/run", [("reason", "why")])]
