"""Sign-in of browsers: a link that works once, a token, cookies that cannot be made up, and the way out."""

import base64
import json
from http.cookies import SimpleCookie
from typing import Any

import pytest

from tests.server.conftest import Client, Login
from treadle import Treadle
from treadle.server.api import Server
from treadle.server.auth import COOKIE, StoreAuth
from treadle.testing import FakeClock


@pytest.fixture
def auth(server: Server) -> StoreAuth:
    assert isinstance(server.auth, StoreAuth)
    return server.auth


def cookie_of(answer: Any) -> SimpleCookie:
    return SimpleCookie(answer.headers["set-cookie"])


def with_cookie(client: Client, value: str | bytes) -> int:
    cookie = value if isinstance(value, bytes) else f"{COOKIE}={value}".encode()
    return int(client.ask("GET", "/session", headers={"Cookie": cookie}).status_code)


def test_the_link_signs_in_once(nobody: Client, auth: StoreAuth) -> None:
    code = auth.new_link()
    answer = nobody.ask("GET", "//login", params={"code": code})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    value = cookie_of(answer)[COOKIE].value
    session = nobody.ask("GET", "/session", headers={"Cookie": f"{COOKIE}={value}"}).json()
    assert session == {
        "actor": "console", "scopes": ["admin", "enqueue", "operate", "read"], "tenant": None, "queues": None,
    }  # fmt: skip
    again = nobody.ask("GET", "//login", params={"code": code})
    assert (again.status_code, "set-cookie" in again.headers) == (401, False)


def test_the_link_is_good_for_fifteen_minutes(nobody: Client, auth: StoreAuth, clock: FakeClock) -> None:
    code = auth.new_link()
    clock.advance(minutes=15)
    assert nobody.ask("GET", "//login", params={"code": code}).status_code == 401


@pytest.mark.parametrize("code", ["", "x", "é", "\x00", "x" * 100, "x" * 101, "' or 1=1", "null"])
def test_a_link_that_was_not_printed_signs_nobody_in(nobody: Client, auth: StoreAuth, code: str) -> None:
    auth.new_link()
    answer = nobody.ask("GET", "//login", params={"code": code})
    assert answer.status_code in (401, 422)
    assert "set-cookie" not in answer.headers


def test_the_cookie_is_for_the_browser_alone(nobody: Client, app: Treadle) -> None:
    made = app.tokens.create("ada", scopes=["read"])
    answer = nobody.ask("POST", "/session", json={"token": made.secret})
    assert (answer.status_code, answer.content) == (204, b"")
    morsel = cookie_of(answer)[COOKIE]
    assert (morsel["httponly"], morsel["samesite"].lower(), morsel["path"], morsel["max-age"]) == (
        True, "strict", "/", "43200",
    )  # fmt: skip
    assert not morsel["secure"]
    assert made.secret not in answer.headers["set-cookie"]
    secure = nobody.http.post("https://localhost/api/v1/session", json={"token": made.secret})
    assert cookie_of(secure)[COOKIE]["secure"] is True


def test_a_session_has_the_rights_of_its_token(nobody: Client, app: Treadle) -> None:
    made = app.tokens.create("ada", scopes=["read", "operate"], tenant="acme", queues=["mail", "slow"])
    cookie = cookie_of(nobody.ask("POST", "/session", json={"token": made.secret}))[COOKIE].value
    headers = {"Cookie": f"other=1; {COOKIE}={cookie}; third=3"}
    assert nobody.ask("GET", "/session", headers=headers).json() == {
        "actor": "token ada", "scopes": ["operate", "read"], "tenant": "acme", "queues": ["mail", "slow"],
    }  # fmt: skip
    assert nobody.ask("POST", "/jobs", json={"task": "greet"}, headers=headers).status_code == 403
    assert nobody.ask("POST", "/pauses", json={"queue": "mail"}, headers=headers).status_code == 201


def test_a_session_of_a_token_with_many_queues_works(nobody: Client, app: Treadle) -> None:
    made = app.tokens.create("ada", scopes=["read"], queues=[f"a long name of a queue {n}" for n in range(100)])
    cookie = cookie_of(nobody.ask("POST", "/session", json={"token": made.secret}))[COOKIE].value
    assert with_cookie(nobody, cookie) == 200
    assert len(cookie) < 300


def test_a_session_ends_when_its_token_does(nobody: Client, app: Treadle, clock: FakeClock) -> None:
    cookies = []
    for label, expires in (("revoked", None), ("short", "1h"), ("long", None)):
        made = app.tokens.create(label, scopes=["read"], expires=expires)
        cookies.append(cookie_of(nobody.ask("POST", "/session", json={"token": made.secret}))[COOKIE].value)
    assert [with_cookie(nobody, cookie) for cookie in cookies] == [200, 200, 200]
    app.tokens.revoke("revoked")
    assert [with_cookie(nobody, cookie) for cookie in cookies] == [401, 200, 200]
    clock.advance(hours=1)
    assert [with_cookie(nobody, cookie) for cookie in cookies] == [401, 401, 200]
    clock.advance(hours=11)
    assert [with_cookie(nobody, cookie) for cookie in cookies] == [401, 401, 401]


def test_nobody_signs_in_with_a_token_that_is_none(nobody: Client, app: Treadle) -> None:
    made = app.tokens.create("ada", scopes=["admin"])
    app.tokens.revoke("ada")
    for token in (made.secret, "", "treadle_", "x" * 10_000, made.token.hash):
        answer = nobody.ask("POST", "/session", json={"token": token})
        assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)


def test_a_cookie_that_was_tampered_with_is_refused(nobody: Client, app: Treadle) -> None:
    app.tokens.create("boss", scopes=["admin"])
    [boss] = [token.name for token in app.tokens.list()]
    made = app.tokens.create("ada", scopes=["read"])
    cookie = cookie_of(nobody.ask("POST", "/session", json={"token": made.secret}))[COOKIE].value
    text, _, signature = cookie.partition(".")
    name, until = json.loads(base64.urlsafe_b64decode(text))
    assert with_cookie(nobody, cookie) == 200

    def forged(*data: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(data).encode()).decode()

    for other in (
        f"{forged(boss, until)}.{signature}", f"{forged(None, until)}.{signature}", f"{forged(name, 1e12)}.{signature}",
        text, f"{text}.", f".{signature}", f"{text}.{signature[:-1]}", f"{text}.{signature}0", ".",
        f"{text}.{signature.upper()}", f"{text[:-1]}.{signature}", f"A{text}.{signature}", f"{text}.{'0' * 64}",
        f"{text}.{signature}.{signature}",
    ):  # fmt: skip
        assert with_cookie(nobody, other) == 401, other


@pytest.mark.parametrize(
    "cookie",
    [
        b"treadle_session=\xff\xfe.\xff", "treadle_session=é.é".encode(), b"treadle_session", b"treadle_session=",
        b"=", b";;;;", b"treadle_session=" + b"A" * 20_000, b"treadle_session=a.b; treadle_session=c.d", b"\x01\x02",
        b"treadle_session=$Version=1", b'treadle_session="quoted.\\"cookie"', b"treadle_session=[].0", b"a" * 60_000,
    ],
    ids=lambda cookie: repr(cookie[:30]),
)  # fmt: skip
def test_hostile_cookies_are_nobodys(nobody: Client, cookie: bytes) -> None:
    assert with_cookie(nobody, cookie) == 401


def test_a_cookie_of_another_server_is_refused(nobody: Client, app: Treadle, auth: StoreAuth) -> None:
    who = auth.take_link(auth.new_link())
    assert who is not None
    assert with_cookie(nobody, auth.session_of(who)) == 200
    assert with_cookie(nobody, StoreAuth(app, b"another secret of 32 bytes......").session_of(who)) == 401


def test_servers_of_one_secret_share_their_sessions(app: Treadle) -> None:
    one, other = StoreAuth(app, b"s" * 32), StoreAuth(app, b"s" * 32)
    who = one.take_link(one.new_link())
    assert who is not None
    assert other.by_session(one.session_of(who)) == who


def test_a_bad_token_is_not_saved_by_a_good_cookie(nobody: Client, auth: StoreAuth) -> None:
    who = auth.take_link(auth.new_link())
    assert who is not None
    headers = {"Authorization": "Bearer treadle_wrong", "Cookie": f"{COOKIE}={auth.session_of(who)}"}
    assert nobody.ask("GET", "/session", headers=headers).status_code == 401


def test_signing_out_takes_the_cookie_away(nobody: Client) -> None:
    answer = nobody.ask("DELETE", "/session")
    assert answer.status_code == 204
    morsel = cookie_of(answer)[COOKIE]
    assert (morsel.value, morsel["max-age"], morsel["samesite"].lower()) == ("", "0", "strict")


def test_the_actor_of_a_session_is_in_the_audit_trail(nobody: Client, app: Treadle, auth: StoreAuth) -> None:
    who = auth.take_link(auth.new_link())
    assert who is not None
    headers = {"Cookie": f"{COOKIE}={auth.session_of(who)}"}
    assert nobody.ask("POST", "/pauses", json={"queue": "mail"}, headers=headers).status_code == 201
    assert [event.actor for event in app.audit(kind="paused")] == ["console"]


def test_a_session_cannot_be_confirmed_into_being(login: Login, server: Server, nobody: Client) -> None:
    """What signs confirmations must not sign sessions."""
    confirm = login("operate").post("/jobs/bulk", {"action": "cancel", "filter": {"queue": "q"}})["confirm"]
    text, signature = confirm.split("-")
    assert with_cookie(nobody, f"{text}.{signature}") == 401
