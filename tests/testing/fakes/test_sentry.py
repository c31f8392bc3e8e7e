"""The stand-in for Sentry, over plain HTTP; tests/integrations/test_sentry.py uses it with the SDK."""

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from treadle.testing import fakes
from treadle.testing.fakes import SentryServer

AUTH = {"X-Sentry-Auth": "Sentry sentry_version=7, sentry_key=public, sentry_client=test/1"}
EVENT = {"event_id": "9ec79c33ec9942ab8353589fcb2e04dc", "message": "boom\nbang", "level": "error"}


@pytest.fixture
def server() -> Iterator[SentryServer]:
    with fakes.sentry() as server:
        yield server


def envelope() -> bytes:
    """One item with its length, bytes that look like lines in it, one without, and an empty line between."""
    event, attached = json.dumps(EVENT).encode(), b"line\n{}\nline"
    lines = [
        json.dumps({"event_id": EVENT["event_id"]}).encode(),
        json.dumps({"type": "event", "length": len(event)}).encode(),
        event,
        b"",
        json.dumps({"type": "attachment", "length": len(attached)}).encode(),
        attached,
        b'{"type": "check_in"}',
        b'{"status": "ok"}',
    ]
    return b"\n".join(lines)


def post(http: httpx2.Client, server: SentryServer, body: bytes, **headers: str) -> httpx2.Response:
    return http.post(f"{server.url}/api/42/envelope/", content=body, headers={**AUTH, **headers})


@pytest.mark.parametrize("encoding", ["", "gzip", "deflate"])
def test_an_envelope_is_unpacked_and_taken_apart(http: httpx2.Client, server: SentryServer, encoding: str) -> None:
    packed = {"": bytes, "gzip": gzip.compress, "deflate": zlib.compress}[encoding](envelope())
    answer = post(http, server, packed, **({"Content-Encoding": encoding} if encoding else {}))
    assert (answer.status_code, answer.json()) == (200, {"id": EVENT["event_id"]})
    assert server.events == [EVENT]
    assert server.items("check_in") == [{"status": "ok"}]
    assert (server.raw, server.packed) == ([envelope()], int(bool(encoding)))


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{}\n{"type": "event", "length": 100}\n{}', b'{}\n{"no": "type"\n{}'], ids=range(4)
)
def test_what_is_no_envelope_is_refused(http: httpx2.Client, server: SentryServer, body: bytes) -> None:
    assert post(http, server, body).status_code == 400
    assert server.raw == []


@pytest.mark.parametrize(("encoding", "words"), [("gzip", "cannot be unpacked"), ("br", "send gzip or deflate")])
def test_what_cannot_be_unpacked_is_refused(
    http: httpx2.Client, server: SentryServer, encoding: str, words: str
) -> None:
    refused = post(http, server, b"not packed", **{"Content-Encoding": encoding})
    assert refused.status_code == 400
    assert words in refused.json()["detail"]


def test_only_its_key_and_project_are_let_in(http: httpx2.Client, server: SentryServer) -> None:
    assert server.dsn == server.url.replace("http://", "http://public@") + "/42"
    url: Any = f"{server.url}/api/42/envelope/"
    assert http.post(url, content=envelope()).status_code == 403
    assert http.post(f"{url}?sentry_key=public", content=envelope()).status_code == 200
    assert http.post(f"{server.url}/api/7/envelope/", content=envelope(), headers=AUTH).status_code == 403
    server.fail_next(429, headers={"Retry-After": "60"})
    assert post(http, server, envelope()).headers["Retry-After"] == "60"
    server.clear()
    assert server.raw == []
