"""Requests that no client of a vendor would send: each is answered as the vendor writes errors, and none breaks it."""

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from treadle.testing import fakes
from treadle.testing.fakes import HttpFake

SHAPES: list[Any] = [None, 0, "x", [], {}, [None], [{}], {"x": None}, ["x"], [[]], True]
NAMES = (
    "from", "to", "cc", "subject", "text", "html", "toRecipients", "message", "body", "singleValueExtendedProperties",
    "channel", "metadata", "blocks", "ts", "limit", "cursor", "oldest", "user", "users", "messages", "model",
    "max_tokens", "tools", "response_format", "attachments", "saveToSentItems",
)  # fmt: skip
DRAFTS = "/v1.0/users/a@b.c/messages"
PLACES: list[tuple[Callable[[], HttpFake], str, tuple[str, ...]]] = [
    (fakes.resend, "POST", ("/emails", "/emails/batch")),
    (fakes.graph, "POST", (DRAFTS, "/v1.0/users/a@b.c/sendMail", "/t/oauth2/v2.0/token")),
    (fakes.graph, "PATCH", (DRAFTS + "/{draft}",)),
    (fakes.slack, "POST", tuple(f"/api/{name}" for name in (
        "chat.postMessage", "chat.update", "conversations.history", "conversations.open", "users.info",
    ))),
    (fakes.sentry, "POST", ("/api/42/envelope/",)),
    (fakes.gmail, "POST", ("/token",)),
    (fakes.llm, "POST", ("/v1/chat/completions", "/v1/messages")),
]  # fmt: skip
QUERIES = (
    "q=%22", "q=-", "q=after:99999999999999", "maxResults=x", "pageToken=1", "pageToken=" + "9" * 40,
    "startHistoryId=-1", "startHistoryId=1&pageToken=x", "%24top=x", "%24skip=-1", "%24filter=%27", "%24expand=(",
    "limit=x", "cursor=x", "oldest=x",
)  # fmt: skip
OWN = "singleValueExtendedProperties/any(p:p/id%20eq%20'x'%20and%20p/value%20eq%20'x')"
AFTERWARDS = {
    "GraphServer": f"{DRAFTS}?%24filter={OWN}",
    "SlackServer": "/api/conversations.history?channel=general",
}
READ = [
    (fakes.gmail, "/gmail/v1/users/me/messages"),
    (fakes.gmail, "/gmail/v1/users/me/history"),
    (fakes.graph, "/v1.0/users/a@b.c/messages"),
    (fakes.slack, "/api/conversations.history?channel=general&x=x"),
]


def token(server: Any, http: httpx2.Client) -> dict[str, str]:
    """What opens this stand-in."""
    if isinstance(server, fakes.GraphServer):
        form = {"client_id": "fake-client", "client_secret": "fake-secret", "grant_type": "client_credentials"}
        scope = {"scope": "https://graph.microsoft.com/.default"}
        given = http.post(f"{server.url}/fake-tenant/oauth2/v2.0/token", data={**form, **scope})
        secret = given.json()["access_token"]
    else:
        secret = server.access_token() if isinstance(server, fakes.GmailServer) else vars(server).get("token")
    bearer = secret or vars(server).get("api_key") or "x"
    others = {"anthropic-version": "1", "X-Sentry-Auth": "Sentry sentry_key=public"}
    return {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json", **others}


@pytest.mark.parametrize(("make", "method", "paths"), PLACES, ids=lambda value: getattr(value, "__name__", None))
def test_a_body_of_another_shape_is_refused_or_taken(
    make: Callable[[], HttpFake], method: str, paths: tuple[str, ...], http: httpx2.Client
) -> None:
    bodies = [b"", b"{", b"\xff", *(json.dumps(shape).encode() for shape in SHAPES)]
    bodies += [
        json.dumps({**dict.fromkeys(NAMES, "a@b.c"), name: shape}).encode() for name in NAMES for shape in SHAPES
    ]
    bodies += [json.dumps(dict.fromkeys(NAMES, shape)).encode() for shape in SHAPES]
    with make() as server:
        headers = token(server, http)
        draft = ""
        if "{draft}" in paths[0]:
            draft = http.post(f"{server.url}/v1.0/users/a@b.c/messages", json={}, headers=headers).json()["id"]
        for path in paths:
            for body in bodies:
                answer = http.request(method, server.url + path.format(draft=draft), content=body, headers=headers)
                assert answer.status_code < 500, (path, body, answer.text)
        if then := AFTERWARDS.get(type(server).__name__):
            answer = http.get(server.url + then, headers={"Authorization": headers["Authorization"]})
            assert (answer.status_code, answer.json().get("ok", True)) == (200, True), answer.text


@pytest.mark.parametrize(("make", "path"), READ)
def test_an_odd_query_is_refused_or_taken(make: Callable[[], HttpFake], path: str, http: httpx2.Client) -> None:
    with make() as server:
        headers = token(server, http)
        for query in QUERIES:
            answer = http.get(f"{server.url}{path}{'&' if '?' in path else '?'}{query}", headers=headers)
            assert answer.status_code < 500, (query, answer.text)
