"""google-api-python-client with google-auth; every answer is held against Google's description of the API."""

import base64
import email
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from google.auth.exceptions import RefreshError
from google.oauth2.credentials import Credentials
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError

from tests.oracles.discovery import check, response_of
from tests.oracles.raising import raises
from treadle.testing import fakes
from treadle.testing.fakes import GmailMailbox, GmailServer


def client(server: GmailServer, mailbox: GmailMailbox | None = None) -> Any:
    refresh = (mailbox or server.mailbox).refresh_token
    known = {"token_uri": server.token_uri, "client_id": server.client_id, "client_secret": server.client_secret}
    credentials = Credentials(None, refresh_token=refresh, **known)
    options = {"api_endpoint": server.url}
    return build("gmail", "v1", credentials=credentials, client_options=options, static_discovery=True).users()


@contextmanager
def serving() -> Iterator[tuple[GmailServer, Any]]:
    with fakes.gmail() as server:
        yield server, client(server)


def asked(request: Any) -> Any:
    """The answer, which must be as Google describes it."""
    answer = request.execute()
    check(answer, {"$ref": response_of(request.methodId)}, request.methodId)
    return answer


def test_a_token_is_taken_and_the_profile_read() -> None:
    with serving() as (server, users):
        server.add_message("Hello")
        profile = asked(users.getProfile(userId="me"))
        assert (profile["emailAddress"], profile["messagesTotal"]) == ("user@example.org", 1)
        asked(users.getProfile(userId="user@example.org"))
        assert [request.path for request in server.requests].count("/token") == 1
        with raises(HttpError) as refused:
            users.getProfile(userId="bob@example.org").execute()
        assert refused.value.status_code == 403


def test_a_revoked_permission_is_an_error_of_the_refresh() -> None:
    with serving() as (server, users):
        server.revoke()
        with raises(RefreshError) as refused:
            users.getProfile(userId="me").execute()
        assert "invalid_grant" in str(refused.value)


def test_a_token_that_ended_is_taken_anew() -> None:
    with serving() as (server, users):
        asked(users.getProfile(userId="me"))
        server.clock.advance(hours=2)
        asked(users.getProfile(userId="me"))
        assert [request.path for request in server.requests].count("/token") == 2


def test_messages_are_listed_page_by_page_while_others_come() -> None:
    with serving() as (server, users):
        ids = [server.add_message(f"Mail {number}") for number in range(5)]
        server.add_message("Junk", labels=["SPAM"])
        seen, request = [], users.messages().list(userId="me", maxResults=2)
        while request is not None:
            page = asked(request)
            seen += [one["id"] for one in page["messages"]]
            server.clock.advance(seconds=1)
            server.add_message("One more")
            request = users.messages().list_next(request, page)
        assert seen == ids[::-1]
        assert len(asked(users.messages().list(userId="me", labelIds=["SPAM"]))["messages"]) == 1
        assert "messages" not in asked(users.messages().list(userId="me", labelIds=["INBOX", "STARRED"]))


def test_messages_are_searched() -> None:
    with serving() as (server, users):
        old = server.add_message("Old", from_="ada@example.org")
        server.clock.advance(days=15)
        middle = server.add_message("Middle")
        server.clock.advance(days=5)
        new = server.add_message("New", "An invoice", from_="Bob <bob@example.org>", labels=["INBOX"])
        for query, found in (
            ("newer_than:10d", [new, middle]),
            ("in:inbox newer_than:4d", [new]),
            ("older_than:10d", [old]),
            ("from:bob", [new]),
            ("is:unread", [middle, old]),
            ("in:inbox -from:bob", [middle, old]),
            ("invoice", [new]),
            ("after:2026/01/20", [new]),
            ("subject:none", []),
            (f"rfc822msgid:{old}@mail.example.org", [old]),
            ("newer_than:10d is:unread", [middle]),
        ):
            answer = asked(users.messages().list(userId="me", q=query))
            assert [one["id"] for one in answer.get("messages", [])] == found, query


def test_a_message_has_all_its_parts_in_each_format() -> None:
    with serving() as (server, users):
        mail = email.message.EmailMessage()
        mail["From"], mail["To"], mail["Subject"] = "ada@example.org", "user@example.org", "Grüße"
        mail["List-Unsubscribe"] = "<https://example.org/stop>"
        mail.set_content("Grüße\n")
        mail.add_alternative("<p>Grüße</p>", subtype="html")
        mail.add_attachment(bytes(range(256)), maintype="application", subtype="pdf", filename="invoice.pdf")
        id = server.add_message(raw=mail.as_bytes())
        full = asked(users.messages().get(userId="me", id=id))
        text, table = full["payload"]["parts"]
        assert (full["payload"]["mimeType"], text["mimeType"]) == ("multipart/mixed", "multipart/alternative")
        assert base64.urlsafe_b64decode(text["parts"][0]["body"]["data"]).decode() == "Grüße\n"
        assert [part["partId"] for part in text["parts"]] == ["0.0", "0.1"]
        attachment = users.messages().attachments().get(userId="me", messageId=id, id=table["body"]["attachmentId"])
        assert base64.urlsafe_b64decode(asked(attachment)["data"]) == bytes(range(256))
        raw = asked(users.messages().get(userId="me", id=id, format="raw"))["raw"]
        assert base64.urlsafe_b64decode(raw) == mail.as_bytes()
        headers = ["Subject", "List-Unsubscribe"]
        metadata = asked(users.messages().get(userId="me", id=id, format="metadata", metadataHeaders=headers))
        assert {one["name"]: one["value"] for one in metadata["payload"]["headers"]} == {
            "Subject": "Grüße", "List-Unsubscribe": "<https://example.org/stop>",
        }  # fmt: skip
        assert "parts" not in metadata["payload"]
        assert "payload" not in asked(users.messages().get(userId="me", id=id, format="minimal"))
        assert full["snippet"] == "Grüße"


def test_a_thread_holds_the_answers() -> None:
    with serving() as (server, users):
        first = server.add_message("Question")
        about = asked(users.messages().get(userId="me", id=first, format="metadata", metadataHeaders=["Message-ID"]))
        answer = server.add_message("Re: Question", headers={"In-Reply-To": about["payload"]["headers"][0]["value"]})
        thread = asked(users.threads().get(userId="me", id=first))
        assert [one["id"] for one in thread["messages"]] == [first, answer]


def test_labels_are_listed_and_counted() -> None:
    with serving() as (server, users):
        own = server.mailbox.add_label("Rework")
        id = server.add_message("One")
        server.mailbox.change_labels(id, add=[own], remove=["UNREAD"])
        labels = {one["id"]: one for one in asked(users.labels().list(userId="me"))["labels"]}
        assert (labels[own]["name"], labels[own]["type"], labels["INBOX"]["type"]) == ("Rework", "user", "system")
        shown = asked(users.labels().get(userId="me", id=own))
        assert (shown["messagesTotal"], shown["messagesUnread"]) == (1, 0)


def test_history_tells_what_was_done_in_pages_and_by_kind() -> None:
    with serving() as (server, users):
        start = asked(users.getProfile(userId="me"))["historyId"]
        first, second = server.add_message("One"), server.add_message("Two")
        server.mailbox.change_labels(first, add=["STARRED"], remove=["UNREAD"])
        server.mailbox.delete_message(second)
        seen, request = [], users.history().list(userId="me", startHistoryId=start, maxResults=2)
        while request is not None:
            page = asked(request)
            seen += [kind for line in page["history"] for kind in line if kind not in ("id", "messages")]
            request = users.history().list_next(request, page)
        assert seen == ["messagesAdded", "messagesAdded", "labelsAdded", "labelsRemoved", "messagesDeleted"]
        only = asked(users.history().list(userId="me", startHistoryId=start, historyTypes=["labelAdded"]))
        assert [one["labelsAdded"][0]["labelIds"] for one in only["history"]] == [["STARRED"]]
        rest = asked(users.history().list(userId="me", startHistoryId=page["historyId"]))
        assert (rest["historyId"], "history" in rest) == (page["historyId"], False)


def test_a_history_id_that_is_too_old_is_not_found() -> None:
    with serving() as (server, users):
        old = asked(users.getProfile(userId="me"))["historyId"]
        server.add_message("One")
        server.clock.advance(days=6)
        assert asked(users.history().list(userId="me", startHistoryId=old))["history"]
        server.clock.advance(days=2)
        for start in (old, "999999"):
            with raises(HttpError) as refused:
                users.history().list(userId="me", startHistoryId=start).execute()
            assert (refused.value.status_code, refused.value.reason) == (404, "Requested entity was not found.")
        now = asked(users.getProfile(userId="me"))["historyId"]
        asked(users.history().list(userId="me", startHistoryId=now))
        server.mailbox.expire_history()
        with raises(HttpError) as refused:
            users.history().list(userId="me", startHistoryId=now).execute()
        assert refused.value.status_code == 404


def test_what_is_not_there_and_what_fails_are_errors_of_the_client() -> None:
    with serving() as (server, users):
        with raises(HttpError) as missing:
            users.messages().get(userId="me", id="0").execute()
        assert (missing.value.status_code, missing.value.error_details[0]["reason"]) == (404, "notFound")
        server.fail_next(429, headers={"Retry-After": "2"})
        with raises(HttpError) as limited:
            users.getProfile(userId="me").execute()
        assert limited.value.error_details[0]["reason"] == "rateLimitExceeded"
        assert limited.value.resp["retry-after"] == "2"
        server.fail_next(503, times=2)
        asked_again = users.getProfile(userId="me")
        asked_again._sleep = lambda _: None
        assert asked_again.execute(num_retries=2)["emailAddress"] == "user@example.org"


def test_nobody_reads_another_mailbox() -> None:
    with serving() as (server, users):
        other = server.add_mailbox("bob@example.org")
        id = other.add_message("Secret")
        assert len(asked(client(server, other).messages().list(userId="me"))["messages"]) == 1
        assert "messages" not in asked(users.messages().list(userId="me"))
        with raises(HttpError):
            users.messages().get(userId="me", id=id).execute()
