"""The stand-in for Microsoft Graph's mail, over plain HTTP."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from treadle.testing import fakes
from treadle.testing.fakes import GraphServer

OWN = "String {66f5a359-4659-4830-9070-00047ec6ac6e} Name treadle_job"
MAIL = {
    "subject": "Thanks",
    "body": {"contentType": "HTML", "content": "<p>We have it.</p>"},
    "toRecipients": [{"emailAddress": {"address": "ada@example.org"}}],
    "singleValueExtendedProperties": [{"id": OWN, "value": "Job-7"}],
}
FORM = {
    "grant_type": "client_credentials",
    "client_id": "fake-client",
    "client_secret": "fake-secret",
    "scope": "https://graph.microsoft.com/.default",
}


class Mailbox:
    """A client of one mailbox, with a token."""

    def __init__(self, server: GraphServer, http: httpx2.Client) -> None:
        self.server, self.http = server, http
        self.token = http.post(f"{server.url}/fake-tenant/oauth2/v2.0/token", data=FORM).json()["access_token"]

    def ask(self, method: str, path: str = "", *, prefer: str = "", **options: Any) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {self.token}", **({"Prefer": prefer} if prefer else {})}
        url = f"{self.server.url}/v1.0/users/shop@example.org/messages{path}"
        return self.http.request(method, url, headers=headers, **options)

    def found(self, filter: str, **more: str) -> list[dict[str, Any]]:
        answer = self.ask("GET", params={"$filter": filter, **more})
        assert answer.status_code == 200, answer.text
        messages: list[dict[str, Any]] = answer.json()["value"]
        return messages


@pytest.fixture
def server() -> Iterator[GraphServer]:
    with fakes.graph() as server:
        yield server


@pytest.fixture
def mailbox(server: GraphServer, http: httpx2.Client) -> Mailbox:
    return Mailbox(server, http)


def test_a_draft_is_sent_and_has_another_id_then(mailbox: Mailbox) -> None:
    created = mailbox.ask("POST", json=MAIL)
    draft = created.json()
    assert (created.status_code, draft["isDraft"], draft["subject"]) == (201, True, "Thanks")
    assert "singleValueExtendedProperties" not in draft
    assert [one["id"] for one in mailbox.server.drafts] == [draft["id"]]
    sent = mailbox.ask("POST", f"/{draft['id']}/send")
    assert (sent.status_code, sent.content) == (202, b"")
    gone = mailbox.ask("GET", f"/{draft['id']}")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "ErrorItemNotFound")
    assert mailbox.ask("POST", f"/{draft['id']}/send").status_code == 404
    [copy] = mailbox.found(f"internetMessageId eq '{draft['internetMessageId']}'")
    assert (copy["id"] != draft["id"], copy["isDraft"], copy["parentFolderId"]) == (True, False, "sentitems")
    assert [message["_user"] for message in mailbox.server.sent] == ["shop@example.org"]
    assert mailbox.server.drafts == []


def test_a_message_is_found_by_ones_own_id(mailbox: Mailbox) -> None:
    draft = mailbox.ask("POST", json=MAIL).json()
    mailbox.ask("POST", json={**MAIL, "singleValueExtendedProperties": [{"id": OWN, "value": "job-8"}]})
    own = f"singleValueExtendedProperties/Any(ep: ep/id eq '{OWN}' and ep/value eq 'job-7')"
    assert [one["id"] for one in mailbox.found(own)] == [draft["id"]]
    assert mailbox.found(own + " and isDraft eq false") == []
    assert mailbox.found(own.replace("Name treadle_job", "Name Treadle_job")) == []
    expand = f"singleValueExtendedProperties($filter=id eq '{OWN}')"
    [shown] = mailbox.found(own, **{"$expand": expand, "$select": "subject"})
    assert set(shown) == {"id", "subject", "singleValueExtendedProperties"}


def test_an_immutable_id_outlives_the_sending(mailbox: Mailbox) -> None:
    prefer = 'IdType="ImmutableId"'
    id = mailbox.ask("POST", json=MAIL, prefer=prefer).json()["id"]
    assert mailbox.ask("POST", f"/{id}/send", prefer=prefer).status_code == 202
    assert mailbox.ask("GET", f"/{id}", prefer=prefer).json()["isDraft"] is False
    assert mailbox.ask("POST", f"/{id}/send", prefer=prefer).status_code == 400
    assert len(mailbox.server.sent) == 1


def test_a_sent_copy_may_be_late(mailbox: Mailbox) -> None:
    mailbox.server.sent_copy_after = 30
    draft = mailbox.ask("POST", json=MAIL).json()
    mailbox.ask("POST", f"/{draft['id']}/send")
    own = f"internetMessageId eq '{draft['internetMessageId']}'"
    assert (mailbox.found(own), len(mailbox.server.sent)) == ([], 1)
    mailbox.server.clock.advance(seconds=30)
    assert len(mailbox.found(own)) == 1


def test_an_answer_that_is_lost_leaves_a_mail_that_was_sent(mailbox: Mailbox) -> None:
    draft = mailbox.ask("POST", json=MAIL).json()
    mailbox.server.drop_next(on="*/send")
    assert mailbox.ask("GET", f"/{draft['id']}").status_code == 200
    with pytest.raises(httpx2.RemoteProtocolError):
        mailbox.ask("POST", f"/{draft['id']}/send")
    assert len(mailbox.server.sent) == 1


def test_a_mail_is_sent_at_once(mailbox: Mailbox, http: httpx2.Client) -> None:
    url = f"{mailbox.server.url}/v1.0/users/shop@example.org/sendMail"
    headers = {"Authorization": f"Bearer {mailbox.token}"}
    for body, status in (({"message": MAIL}, 202), ({"message": MAIL, "saveToSentItems": False}, 202), ({}, 400)):
        assert http.post(url, json=body, headers=headers).status_code == status
    assert (len(mailbox.server.sent), len(mailbox.found("isDraft eq false"))) == (2, 1)


def test_nobody_is_no_recipient(mailbox: Mailbox) -> None:
    for people in ([], [{"emailAddress": {"address": "ada"}}]):
        id = mailbox.ask("POST", json={**MAIL, "toRecipients": people}).json()["id"]
        refused = mailbox.ask("POST", f"/{id}/send")
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "ErrorInvalidRecipients")
    assert (mailbox.server.sent, len(mailbox.server.drafts)) == ([], 2)


def test_a_draft_can_be_changed_and_deleted_and_a_sent_mail_can_not_be_changed(mailbox: Mailbox) -> None:
    id = mailbox.ask("POST", json=MAIL, prefer="IdType=ImmutableId").json()["id"]
    assert mailbox.ask("PATCH", f"/{id}", json={"subject": "Soon"}).json()["subject"] == "Soon"
    mailbox.ask("POST", f"/{id}/send")
    assert mailbox.ask("PATCH", f"/{id}", json={"subject": "Late"}).status_code == 400
    assert mailbox.ask("PATCH", f"/{id}", json={"isRead": False}).status_code == 200
    assert mailbox.ask("DELETE", f"/{id}").status_code == 204
    assert mailbox.ask("GET", f"/{id}").status_code == 404


def test_a_list_comes_in_pages_newest_first(mailbox: Mailbox) -> None:
    for number in range(5):
        mailbox.ask("POST", json={**MAIL, "subject": str(number)})
    page = mailbox.ask("GET", params={"$top": "2", "$filter": "isDraft eq true"}).json()
    subjects = [one["subject"] for one in page["value"]]
    while link := page.get("@odata.nextLink"):
        page = mailbox.http.get(link, headers={"Authorization": f"Bearer {mailbox.token}"}).json()
        subjects += [one["subject"] for one in page["value"]]
    assert subjects == ["4", "3", "2", "1", "0"]
    folder = f"{mailbox.server.url}/v1.0/users/shop@example.org/mailFolders/SentItems/messages"
    assert mailbox.http.get(folder, headers={"Authorization": f"Bearer {mailbox.token}"}).json()["value"] == []


@pytest.mark.parametrize("filter", ["startswith(subject,'x')", "isDraft eq true or isRead eq true", "isDraft"])
def test_a_filter_that_it_does_not_know_is_refused(mailbox: Mailbox, filter: str) -> None:
    refused = mailbox.ask("GET", params={"$filter": filter})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "ErrorInvalidUrlQueryFilter")


def test_a_quote_in_a_filter_is_doubled(mailbox: Mailbox) -> None:
    mailbox.ask("POST", json={**MAIL, "subject": "Ada's order"})
    assert len(mailbox.found("subject eq 'Ada''s order'")) == 1


@pytest.mark.parametrize(
    ("change", "status", "error"),
    [
        ({"client_secret": "wrong"}, 401, "invalid_client"),
        ({"client_id": "wrong"}, 400, "unauthorized_client"),
        ({"grant_type": "password"}, 400, "unsupported_grant_type"),
        ({"scope": "Mail.Send"}, 400, "invalid_scope"),
    ],
)
def test_a_token_is_given_for_the_right_credentials(
    server: GraphServer, http: httpx2.Client, change: dict[str, str], status: int, error: str
) -> None:
    refused = http.post(f"{server.url}/fake-tenant/oauth2/v2.0/token", data={**FORM, **change})
    assert (refused.status_code, refused.json()["error"]) == (status, error)
    elsewhere = http.post(f"{server.url}/other/oauth2/v2.0/token", data=FORM)
    assert elsewhere.json()["error_codes"] == [90002]


def test_a_token_ends_after_an_hour_or_when_it_is_taken_back(mailbox: Mailbox) -> None:
    mailbox.server.clock.advance(hours=1)
    late = mailbox.ask("GET")
    assert (late.status_code, late.json()["error"]["code"]) == (401, "InvalidAuthenticationToken")
    fresh = Mailbox(mailbox.server, mailbox.http)
    assert fresh.ask("GET").status_code == 200
    fresh.server.expire_tokens()
    assert fresh.ask("GET").status_code == 401


def test_a_failure_meets_the_mail_and_not_the_token(server: GraphServer, http: httpx2.Client) -> None:
    server.fail_next(429, headers={"Retry-After": "10"})
    mailbox = Mailbox(server, http)
    slow_down = mailbox.ask("POST", json=MAIL)
    assert (slow_down.status_code, slow_down.headers["Retry-After"]) == (429, "10")
    assert slow_down.json()["error"]["code"] == "TooManyRequests"
    server.fail_next(503, on="*/token")
    assert http.post(f"{server.url}/fake-tenant/oauth2/v2.0/token", data=FORM).status_code == 503


def test_a_mailbox_that_is_not_there_is_told(http: httpx2.Client) -> None:
    with fakes.graph(mailboxes=["info@example.org"]) as server:
        refused = Mailbox(server, http).ask("POST", json=MAIL)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "ErrorInvalidUser")
