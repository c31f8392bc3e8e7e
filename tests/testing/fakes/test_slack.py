"""The stand-in for Slack, over plain HTTP."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from treadle.testing import fakes
from treadle.testing.fakes import SlackServer

BEARER = {"Authorization": "Bearer xoxb-fake"}
ABOUT = {"event_type": "daily_summary", "event_payload": {"job_id": "7"}}


@pytest.fixture
def server() -> Iterator[SlackServer]:
    with fakes.slack() as server:
        yield server


@pytest.fixture
def call(server: SlackServer, http: httpx2.Client) -> Any:
    def call(name: str, **asked: Any) -> dict[str, Any]:
        answer = http.post(server.base_url + name, json=asked, headers=BEARER)
        assert answer.status_code == 200
        shown: dict[str, Any] = answer.json()
        return shown

    return call


def test_a_message_is_posted_as_json_and_as_a_form(server: SlackServer, http: httpx2.Client, call: Any) -> None:
    posted = call("chat.postMessage", channel="#general", text="as JSON", metadata=ABOUT, client_msg_id="7")
    form = {"channel": posted["channel"], "text": "as a form", "metadata": json.dumps(ABOUT), "token": "xoxb-fake"}
    assert http.post(f"{server.base_url}chat.postMessage", data=form).json()["ok"]
    assert [(one["text"], one["metadata"]) for one in server.messages] == [("as JSON", ABOUT), ("as a form", ABOUT)]
    assert (server.messages[0]["client_msg_id"], server.messages[0]["ts"]) == ("7", posted["ts"])
    assert len({one["ts"] for one in server.messages}) == 2


def test_a_message_is_found_by_its_metadata_if_that_is_asked_for(server: SlackServer, call: Any) -> None:
    for number in range(3):
        call("chat.postMessage", channel="general", text=str(number), metadata=ABOUT)
    page = call("conversations.history", channel="#general", limit=2, include_all_metadata=True)
    assert [(one["text"], one["metadata"]) for one in page["messages"]] == [("2", ABOUT), ("1", ABOUT)]
    cursor = page["response_metadata"]["next_cursor"]
    rest = call("conversations.history", channel="#general", cursor=cursor)
    assert ([one["text"] for one in rest["messages"]], rest["has_more"]) == (["0"], False)
    assert "metadata" not in rest["messages"][0]
    first = server.messages[0]["ts"]
    later = call("conversations.history", channel="#general", oldest=first)
    assert [one["text"] for one in later["messages"]] == ["2", "1"]


def test_a_thread_is_read_from_its_beginning(call: Any) -> None:
    top = call("chat.postMessage", channel="#general", text="top")
    call("chat.postMessage", channel="#general", text="reply", thread_ts=top["ts"])
    assert [one["text"] for one in call("conversations.history", channel="#general")["messages"]] == ["top"]
    thread = call("conversations.replies", channel="#general", ts=top["ts"])
    assert [one["text"] for one in thread["messages"]] == ["top", "reply"]


def test_a_message_is_changed_and_deleted(server: SlackServer, call: Any) -> None:
    posted = call("chat.postMessage", channel="#general", text="teh")
    where = {"channel": posted["channel"], "ts": posted["ts"]}
    assert call("chat.update", **where, text="the")["text"] == "the"
    assert server.messages[0]["text"] == "the"
    assert call("chat.delete", **where)["ok"]
    assert server.messages == []
    assert call("chat.delete", **where)["error"] == "message_not_found"


def test_users_have_a_zone_and_can_be_written_to(server: SlackServer, call: Any) -> None:
    ada = server.add_user("Ada", email="ada@example.org", tz="Asia/Tokyo")
    assert call("users.info", user=ada)["user"]["tz"] == "Asia/Tokyo"
    assert call("users.lookupByEmail", email="ada@example.org")["user"]["id"] == ada
    assert [one["id"] for one in call("users.list")["members"]] == [ada]
    direct = call("conversations.open", users=ada)["channel"]["id"]
    assert call("chat.postMessage", channel=ada, text="hello")["channel"] == direct
    assert [one["name"] for one in call("conversations.list")["channels"]] == ["general"]


@pytest.mark.parametrize(
    ("name", "asked", "error"),
    [
        ("chat.postMessage", {"channel": "#nowhere", "text": "x"}, "channel_not_found"),
        ("chat.postMessage", {"channel": "#general"}, "no_text"),
        ("chat.postMessage", {"channel": "#general", "text": "x" * 40_001}, "msg_too_long"),
        ("chat.postMessage", {"channel": "#general", "text": "x", "metadata": {"job": 7}}, "invalid_metadata_format"),
        ("users.info", {"user": "U1"}, "user_not_found"),
        ("users.lookupByEmail", {"email": "bob@example.org"}, "users_not_found"),
        ("chat.explode", {}, "unknown_method"),
    ],
)
def test_an_error_is_a_success_that_says_no(
    server: SlackServer, call: Any, name: str, asked: dict[str, Any], error: str
) -> None:
    assert call(name, **asked) == {"ok": False, "error": error}
    assert server.messages == []


def test_only_its_token_opens_it(server: SlackServer, http: httpx2.Client) -> None:
    url = f"{server.base_url}auth.test"
    assert http.post(url).json()["error"] == "not_authed"
    assert http.post(url, headers={"Authorization": "Bearer x"}).json()["error"] == "invalid_auth"
    assert http.post(url, headers={**BEARER, "Content-Type": "application/json"}).json()["ok"]
    assert http.post(url, headers=BEARER, json=[1]).json()["error"] == "invalid_json"


def test_too_many_requests_are_told_when_to_come_again(server: SlackServer, http: httpx2.Client) -> None:
    server.fail_next(429, headers={"Retry-After": "30"})
    slow_down = http.post(
        f"{server.base_url}chat.postMessage", headers=BEARER, json={"channel": "#general", "text": "x"}
    )
    assert (slow_down.status_code, slow_down.headers["Retry-After"]) == (429, "30")
    assert slow_down.json() == {"ok": False, "error": "ratelimited"}
    server.fail_next(200, error="fatal_error")
    assert http.post(f"{server.base_url}auth.test", headers=BEARER).json() == {"ok": False, "error": "fatal_error"}
