"""The stand-in for Gmail, over plain HTTP; `python3 dev.py oracles gmail` asks it with Google's own client."""

import base64
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from treadle.testing import fakes
from treadle.testing.fakes import GmailServer

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def server() -> Iterator[GmailServer]:
    with fakes.gmail() as server:
        yield server


@pytest.fixture
def ask(server: GmailServer, http: httpx2.Client) -> Ask:
    def ask(path: str, status: int = 200, **query: Any) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {server.access_token()}"}
        answer = http.get(f"{server.url}/gmail/v1/users/me/{path}", params=query, headers=headers)
        assert answer.status_code == status, answer.text
        body: dict[str, Any] = answer.json()
        return body

    return ask


def found(answer: dict[str, Any]) -> list[str]:
    return [message["id"] for message in answer.get("messages", [])]


def test_a_refresh_token_gives_a_token_for_an_hour(server: GmailServer, http: httpx2.Client) -> None:
    form = {
        "grant_type": "refresh_token",
        "refresh_token": server.mailbox.refresh_token,
        "client_id": "fake-client",
        "client_secret": "fake-secret",
    }
    given = http.post(server.token_uri, data=form).json()
    assert (given["token_type"], given["expires_in"]) == ("Bearer", 3599)
    headers = {"Authorization": f"Bearer {given['access_token']}"}
    url = f"{server.url}/gmail/v1/users/me/profile"
    assert http.get(url, headers=headers).json()["emailAddress"] == "user@example.org"
    server.clock.advance(hours=1)
    late = http.get(url, headers=headers)
    assert (late.status_code, late.json()["error"]["status"]) == (401, "UNAUTHENTICATED")
    assert http.post(server.token_uri, data={**form, "client_secret": "x"}).json()["error"] == "invalid_client"
    assert http.post(server.token_uri, data={**form, "grant_type": "x"}).json()["error"] == "unsupported_grant_type"
    server.revoke()
    revoked = http.post(server.token_uri, data=form)
    assert (revoked.status_code, revoked.json()["error"]) == (400, "invalid_grant")


def test_messages_are_listed_newest_first_and_without_junk(server: GmailServer, ask: Ask) -> None:
    first, second = server.add_message("First"), server.add_message("Second")
    early = server.add_message("Early", at=datetime(2020, 1, 1, tzinfo=UTC))
    junk = server.add_message("Junk", labels=["SPAM"])
    assert found(ask("messages")) == [second, first, early]
    assert found(ask("messages", includeSpamTrash="true")) == [junk, second, first, early]
    assert found(ask("messages", q="in:spam")) == [junk]
    page = ask("messages", maxResults="1")
    server.mailbox.delete_message(second)
    assert found(ask("messages", maxResults="1", pageToken=page["nextPageToken"])) == [first]
    assert ask("messages", status=400, pageToken="next")["error"]["message"] == "Invalid pageToken"


def test_a_search_finds_by_age_and_by_words(server: GmailServer, ask: Ask) -> None:
    old = server.add_message("Old news")
    server.clock.advance(days=11)
    new = server.add_message("Big news", html="<p>From <b>Ada</b></p>")
    assert found(ask("messages", q="newer_than:10d")) == [new]
    assert found(ask("messages", q="-newer_than:10d")) == [old]
    assert found(ask("messages", q='"big news"')) == [new]
    assert found(ask("messages", q="before:2026/01/02")) == [old]
    assert found(ask("messages", q=f"after:{int(server.clock.now().timestamp()) - 60}")) == [new]


@pytest.mark.parametrize("query", ["filename:pdf", "newer_than:ten", "after:yesterday", "is:odd"])
def test_a_search_that_it_does_not_know_is_refused(ask: Ask, query: str) -> None:
    assert "error" in ask("messages", status=400, q=query)


def test_a_message_is_read_with_the_headers_that_were_asked_for(server: GmailServer, ask: Ask) -> None:
    id = server.add_message("Hello", "A text\nin lines", headers={"List-Unsubscribe": "<https://example.org>"})
    full = ask(f"messages/{id}")
    assert base64.urlsafe_b64decode(full["payload"]["body"]["data"]) == b"A text\nin lines\n"
    assert (full["snippet"], full["labelIds"]) == ("A text in lines", ["INBOX", "UNREAD"])
    some = ask(f"messages/{id}", format="metadata", metadataHeaders=["subject", "List-Unsubscribe"])
    assert [one["name"] for one in some["payload"]["headers"]] == ["Subject", "List-Unsubscribe"]
    assert len(ask(f"messages/{id}", format="metadata")["payload"]["headers"]) > 2
    assert ask("messages/0", status=404)["error"]["status"] == "NOT_FOUND"
    ask(f"messages/{id}", status=400, format="short")


def test_history_tells_what_was_done_since(server: GmailServer, ask: Ask) -> None:
    start = ask("profile")["historyId"]
    id = server.add_message("Hello")
    server.mailbox.change_labels(id, add=["STARRED", "INBOX"], remove=["SENT"])
    answer = ask("history", startHistoryId=start)
    assert [line["id"] > start for line in answer["history"]] == [True, True]
    assert answer["history"][0]["messagesAdded"][0]["message"]["id"] == id
    assert answer["history"][1]["labelsAdded"][0]["labelIds"] == ["STARRED"]
    assert answer["historyId"] == ask("profile")["historyId"]
    starred = ask("history", startHistoryId=start, labelId="STARRED")["history"]
    assert [one for one in starred if "messagesAdded" in one] == []
    ask("history", status=400)


def test_history_ends_after_a_week_or_at_once(server: GmailServer, ask: Ask) -> None:
    start = ask("profile")["historyId"]
    server.add_message("Hello")
    server.clock.advance(days=7)
    assert ask("history", status=404, startHistoryId=start)["error"]["code"] == 404
    now = ask("profile")["historyId"]
    assert "history" not in ask("history", startHistoryId=now)
    server.mailbox.expire_history()
    ask("history", status=404, startHistoryId=now)
    assert "history" not in ask("history", startHistoryId=ask("profile")["historyId"])


def test_each_mailbox_is_its_own(server: GmailServer, http: httpx2.Client, ask: Ask) -> None:
    bob = server.add_mailbox("bob@example.org")
    label = bob.add_label("Work")
    id = bob.add_message("For Bob", labels=["INBOX", label])
    assert found(ask("messages")) == []
    ask(f"messages/{id}", status=404)
    ask(f"labels/{label}", status=404)
    headers = {"Authorization": f"Bearer {server.access_token(bob)}"}
    there = http.get(f"{server.url}/gmail/v1/users/bob@example.org/labels/{label}", headers=headers).json()
    assert (there["name"], there["messagesTotal"]) == ("Work", 1)
    with pytest.raises(ValueError, match="labels: Nowhere is not in this mailbox"):
        bob.add_message(labels=["Nowhere"])


def test_what_was_received_stays_when_requests_are_forgotten(server: GmailServer, ask: Ask) -> None:
    server.add_message("Hello")
    server.clear()
    assert len(found(ask("messages"))) == 1
    assert len(server.requests) == 1
