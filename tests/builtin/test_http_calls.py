"""One request over HTTP: what was not sent, what nobody knows of, and a peer that would hold us for ever."""

import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.testing.fakes.certificates import certificate
from treadle import Ambiguous
from treadle.builtin import http_calls
from treadle.builtin.http_calls import HttpReply, HttpUrl, call
from treadle.errors import InvalidInput, Unreachable
from treadle.testing import fakes

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
OK = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def peer(speak: Callable[[socket.socket], object]) -> Iterator[str]:
    """A server of one connection that says what it likes after the request has come; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    speak(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/hook"
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)
    assert not thread.is_alive()


def says(*parts: bytes) -> Callable[[socket.socket], object]:
    return lambda connection: connection.sendall(b"".join(parts))


def drip(first: bytes, again: bytes) -> Callable[[socket.socket], object]:
    """Say a little, and again, until nobody listens; for ten seconds at most, so that a bug is seen."""

    def speak(connection: socket.socket) -> None:
        connection.sendall(first)
        connection.settimeout(0.02)
        end = time.monotonic() + 10
        while time.monotonic() < end:
            connection.sendall(again)
            with suppress(TimeoutError):
                if not connection.recv(100):
                    return

    return speak


def test_a_request_arrives_as_it_was_given_and_the_answer_comes_back() -> None:
    with fakes.webhook() as server:
        server.answer(201, {"id": 7}, {"X-Request-Id": "r1"})
        answer = call("PUT", f"{server.url}/a%20b?c=d&c=e", b"body", {"X-Key": "k", "User-Agent": "mine"})
        [request] = server.received
        assert (answer.status, answer.text, answer.headers["x-request-id"]) == (201, '{"id": 7}', "r1")
        assert (request.method, request.path, request.query_string) == ("PUT", "/a%20b", "c=d&c=e")
        assert (request.body, request.headers["X-Key"], request.headers["User-Agent"]) == (b"body", "k", "mine")
        assert request.headers["Host"] == server.url.removeprefix("http://")
        assert call("POST", server.url).status == 201
        assert server.received[1].path == "/"


def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    with fakes.webhook() as server:
        server.answer(302, b"", {"Location": f"{server.url}/elsewhere"})
        assert call("POST", f"{server.url}/here").status == 302
        assert [request.path for request in server.received] == ["/here"]


def test_what_was_surely_not_sent_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}/", "http://nowhere.invalid/", f"http://{'a' * 70}.example/"):
        with pytest.raises(Unreachable, match="cannot be reached"):
            call("POST", url, timeout=5)
    server_side, _ = certificate()
    with fakes.webhook(tls=server_side) as server:
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
            call("POST", server.url)
        assert server.requests == []


def test_a_peer_that_never_shakes_hands_is_unreachable_in_time() -> None:
    with peer(drip(b"", b"")) as url, pytest.raises(Unreachable, match="timed out"):
        call("POST", url.replace("http://", "https://"), timeout=0.2)


def test_tls_is_checked_by_the_name_although_the_address_is_given() -> None:
    server_side, client_side = certificate()
    with fakes.webhook(tls=server_side) as server:
        assert call("POST", server.url, b"x", tls=client_side).status == 200
        other = server.url.replace("127.0.0.1", "example.org")
        with pytest.raises(Unreachable, match=r"example\.org cannot be reached"):
            call("POST", other, address="127.0.0.1", tls=client_side)
        assert len(server.requests) == 1


def test_a_given_address_is_called_with_the_host_of_the_url_and_nothing_is_looked_up() -> None:
    with fakes.webhook() as server:
        url = server.url.replace("127.0.0.1", "hooks.example.invalid")
        assert call("POST", url, address="127.0.0.1").status == 200
        assert server.received[0].headers["Host"].startswith("hooks.example.invalid:")
        with pytest.raises(Unreachable):
            call("POST", url, address="localhost")  # a name is no address


@pytest.mark.parametrize(
    ("speak", "words"),
    [
        (says(), "did not answer: RemoteDisconnected"),
        (says(b"HTTP/1.1 2"), "its answer is not HTTP$"),
        (says(b"hush nonsense\r\n\r\n"), "its answer is not HTTP$"),
        (says(b"HTTP/hush 200 OK\r\n\r\n"), "its answer is not HTTP$"),
        (says(OK, b"X: " + b"y" * 70_000 + b"\r\n\r\n"), "its answer is not HTTP$"),
        (says(OK, b"Transfer-Encoding: chunked\r\n\r\n-2\r\nabc"), "its answer is not HTTP$"),
        (says(OK, b"Transfer-Encoding: chunked\r\n\r\nhush\r\nabc"), "its answer ended too early$"),
        (says(OK, b"Transfer-Encoding: chunked\r\n\r\n5\r\nhal"), "its answer ended too early$"),
        (says(OK, b"Content-Length: 10\r\n\r\nhalf"), "its answer ended too early$"),
        (says(OK, b"Content-Le"), "its answer ended too early$"),
    ],
    ids=["nothing", "half a line", "no http", "no version", "endless header", "negative chunk", "no chunk",
         "half a chunk", "half a body", "half a header"],
)  # fmt: skip
def test_an_answer_that_did_not_come_whole_is_ambiguous_and_is_not_repeated(speak: Any, words: str) -> None:
    with peer(speak) as url, pytest.raises(Ambiguous, match=r"^127\.0\.0\.1:? " + words) as refused:
        call("POST", url)
    assert "hush" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    ("speak", "status", "body"),
    [
        (says(OK, b"Content-Length: 10\r\n\r\nhalf"), 200, b""),
        (says(OK, b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n"), 200, b""),
        (says(b"HTTP/1.1 204"), 204, b""),
        (says(b"HTTP/1.1 410 Gone\r\nContent-Length: 10\r\n\r\nhalf"), 410, b"half"),
        (says(b"HTTP/1.1 429 Slow\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhal"), 429, b"hal"),
        (says(b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", b"y" * 9000), 500, b"y" * 4096),
        (says(b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 100 Go\r\n\r\n" + OK + b"\r\n"), 200, b""),
    ],
    ids=["half a body", "no chunk", "only a status", "half a refusal", "half a chunk", "negative chunk", "early hints"],
)
def test_a_status_is_enough_where_the_whole_answer_is_not_asked_for(speak: Any, status: int, body: bytes) -> None:
    with peer(speak) as url:
        answer = call("POST", url, whole=False)
    assert (answer.status, answer.body) == (status, body)


def test_a_success_whose_body_does_not_end_is_not_waited_for() -> None:
    with peer(drip(OK + b"\r\n", b".")) as url:
        assert call("POST", url, whole=False, timeout=5).status == 200
    with peer(drip(b"HTTP/1.1 410 Gone\r\n\r\n", b".")) as url:
        assert call("POST", url, whole=False, timeout=0.3).status == 410


def test_an_answer_that_was_announced_is_read_over() -> None:
    with peer(says(b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n", OK, b"Content-Length: 2\r\n\r\nok")) as url:
        assert call("POST", url).body == b"ok"


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (b"", b""),
        (b"HTTP/1.1 ", b"2"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (OK, b"X: y\r\n"),
        (OK + b"Content-Length: 1000\r\n\r\n", b"z"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nz\r\n"),
    ],
    ids=["silence", "status", "continue", "headers", "body", "chunks"],
)
def test_a_peer_that_drips_holds_us_no_longer_than_the_timeout(first: bytes, again: bytes) -> None:
    began = time.monotonic()
    with peer(drip(first, again)) as url, pytest.raises(Ambiguous, match="did not answer"):
        call("POST", url, timeout=0.3)
    assert time.monotonic() - began < 5


def test_an_answer_without_end_is_cut_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_calls, "LARGEST_ANSWER", 1000)
    for head in (b"Content-Length: 999999999\r\n\r\n", b"\r\n"):
        with peer(drip(OK + head, b"y" * 600)) as url:
            assert call("POST", url).body == b"y" * 1000


def test_no_form_of_an_answer_gets_past_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_calls, "LARGEST_ANSWER", 1000)
    monkeypatch.setattr(http_calls, "LARGEST_HEAD", 1000)
    chunked = OK + b"Transfer-Encoding: chunked\r\n"
    for first, again in ((chunked + b"\r\n-1\r\n", b"y" * 600), (chunked, b"X: y\r\n" * 30)):
        began = time.monotonic()
        with peer(drip(first, again)) as url, pytest.raises(Ambiguous, match="its answer is not HTTP"):
            call("POST", url, timeout=8)
        assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://example.org", "https:// or http://"),
        ("example.org/hook", "has no https://"),
        ("https://", "has no host"),
        ("https:///path", "has no host"),
        ("https://exa mple.org", "without spaces"),
        ("https://example.org/\r\nX: y", "without spaces"),
        ("https://exämple.org", "punycode"),
        ("https://example.org/" + "a" * 8000, "8,000"),
        ("https://example.org:0/", "from 1 to 65535"),
        ("https://example.org:65536/", "from 1 to 65535"),
        ("https://example.org:x/", "from 1 to 65535"),
        ("https://[::1/", "brackets"),
        ("https://[v1.a:b]/", "cannot be a name"),
        ("https://ada:hush@example.org/", "user or a password"),
        ("https://example.org\\@127.0.0.1/", "user or a password"),
        ("https://exa%6Dple.org/", "cannot be a name"),
        (None, "ASCII"),
        ("example.com/h", "^url: 'example.com/h' has no https://; write https://example.com/h$"),
        ("example.com:8080?token=hush", "'example.com:8080' has no https://; write https://example.com:8080$"),
        ("ada:hush@example.com/h", "must begin with https://"),
        ("javascript:hush(1)", "must begin with https://"),
    ],
)
def test_what_is_not_a_url_is_refused_by_its_field_and_is_not_repeated(url: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        call("POST", url)
    assert refused.value.field == "url"
    assert "hush" not in str(refused.value)


def test_a_url_is_taken_apart_as_it_is_sent() -> None:
    assert HttpUrl.of("https://Example.org?x=/y#z") == (True, "example.org", 443, "/?x=/y")
    assert HttpUrl.of("http://[2001:db8::1]:81/a") == (False, "2001:db8::1", 81, "/a")


def test_a_header_that_would_smuggle_a_line_is_refused_and_its_value_is_not_shown() -> None:
    with fakes.webhook() as server:
        for value in ("Bearer hush\r\nX: y", "hush €"):
            with pytest.raises(InvalidInput, match=r"^headers: ") as refused:
                call("POST", server.url, headers={"Authorization": value})
            assert "hush" not in str(refused.value)
        assert server.requests == []


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("Thu, 01 Jan 2026 12:01:00 GMT", 60.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
        ("Thu, 01 Jan 2026 12:01:00 -0000", 60.0),
        ("Thu, 01 Jan 2026 12:01:00 +99999999999999999999", None),
        ("Fri, 99 Foo 99999 99:99:99 +9999", None),
        ("9" * 400, None),
        ("-5", None),
        ("٥", None),
        ("soon", None),
        ("", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(given: str, seconds: float | None) -> None:
    assert HttpReply(429, {"Retry-After": given}, b"").retry_after(NOW) == seconds
