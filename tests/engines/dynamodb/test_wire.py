"""HTTP on kept connections: whatever form an answer has, whenever a connection ends, in threads and after a fork."""

import contextlib
import gc
import os
import socket
import ssl
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import pytest

from treadle.engines.dynamodb import wire
from treadle.engines.dynamodb.wire import BadAnswer, Wire

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
CUT = object()  # instead of an answer, the end of the connection
HEADERS = {"Host": "localhost", "X-Amz-Target": "Query"}


class Server:
    """Gives the answers of a list, each in pieces, whichever connection asks; then PLAIN."""

    def __init__(self):
        self.answers: deque = deque()
        self.requests: list[bytes] = []
        self.connections: list[socket.socket] = []
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection):
        with connection, contextlib.suppress(OSError, ValueError):  # the client is gone, or speaks TLS
            waiting = b""
            while True:
                while b"\r\n\r\n" not in waiting:
                    if not (received := connection.recv(65_536)):
                        return
                    waiting += received
                head, _, waiting = waiting.partition(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                while len(waiting) < length:
                    waiting += connection.recv(65_536)
                self.requests.append(head + b"\r\n\r\n" + waiting[:length])
                waiting = waiting[length:]
                answer = self.answers.popleft() if self.answers else [PLAIN]
                for piece in [answer] if isinstance(answer, bytes) else answer:
                    if piece is CUT:
                        return
                    connection.sendall(piece)
                    time.sleep(0.001)

    def close(self):
        self.listening.close()
        for connection in self.connections:
            connection.close()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture
def kept(server):
    kept = Wire(server.url, 2.0, 5.0)
    yield kept
    kept.close()


def body_of(answer):
    return answer.status, answer.body


def test_a_request_is_a_post_with_its_headers_and_its_body(server, kept):
    assert body_of(kept.post(HEADERS, b'{"a":1}')) == (200, b"{}")
    [request] = server.requests
    head, _, body = request.partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST / HTTP/1.1", b"Host: localhost", b"X-Amz-Target: Query", b"Accept-Encoding: identity",
        b"Content-Length: 7",
    ]  # fmt: skip
    assert body == b'{"a":1}'


def test_a_connection_is_kept_for_the_next_request(server, kept):
    for _ in range(5):
        kept.post(HEADERS, b"")
    assert len(server.connections) == 1


@pytest.mark.parametrize(
    ("pieces", "body"),
    [
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"], b"hello"),
        ([b"HTTP/1.1 200 OK\r\nContent-Len", b"gth:5\r\n\r", b"\nhe", b"llo"], b"hello"),
        ([b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n"], b""),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", b"6;x=y\r\n world\r\n0\r\n\r\n"],
         b"hello world"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\nA", b"\r\n01234", b"56789\r\n0\r\nTrailer: 1\r\n\r\n"],
         b"0123456789"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"], b"ok"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n", b"x" * 300_000], b"x" * 300_000),
    ],
)  # fmt: skip
def test_an_answer_is_read_whatever_its_form_and_the_connection_is_kept(server, kept, pieces, body):
    server.answers.append(pieces)
    assert body_of(kept.post(HEADERS, b"{}")) == (200, body)
    assert body_of(kept.post(HEADERS, b"{}")) == (200, b"{}")
    assert len(server.connections) == 1


@pytest.mark.parametrize(
    ("pieces", "body"),
    [
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok", CUT], b"ok"),
        ([b"HTTP/1.1 200 OK\r\n\r\nuntil", b" the end", CUT], b"until the end"),
        ([b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"], b"ok"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more that nobody asked for"], b"ok"),
    ],
)
def test_a_connection_that_is_over_is_not_used_again(server, kept, pieces, body):
    server.answers.append(pieces)
    assert body_of(kept.post(HEADERS, b"{}")) == (200, body)
    assert body_of(kept.post(HEADERS, b"{}")) == (200, b"{}")
    assert len(server.connections) == 2


def test_the_status_and_the_date_are_told(server, kept):
    server.answers.append(
        b"HTTP/1.1 400 Bad Request\r\nDate: Thu, 01 Jan 2026 12:00:00 GMT\r\nContent-Length: 0\r\n\r\n"
    )
    assert kept.post(HEADERS, b"{}") == (400, "Thu, 01 Jan 2026 12:00:00 GMT", b"")


@pytest.mark.parametrize(
    "pieces",
    [
        [CUT],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", CUT],
        [b"HTTP/1.1 200 OK\r\nContent-Le", CUT],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", CUT],
        [b"220 smtp.example.com ready\r\n\r\n", CUT],
        [b"HTTP/1.1 what\r\n\r\n", CUT],
        [b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", CUT],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", CUT],
        [b"x" * 100_000, CUT],
    ],
)
def test_half_an_answer_is_an_error_and_the_request_is_sent_once(server, kept, pieces):
    server.answers.append(pieces)
    with pytest.raises((OSError, ValueError)):
        kept.post(HEADERS, b"{}")
    assert len(server.requests) == 1
    assert body_of(kept.post(HEADERS, b"{}")) == (200, b"{}")


def test_a_connection_that_the_server_has_closed_meanwhile_is_not_tried(server, kept):
    kept.post(HEADERS, b"{}")
    server.connections[0].shutdown(socket.SHUT_RDWR)
    deadline = time.monotonic() + 5
    while wire._is_quiet(kept._kept[0]) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert body_of(kept.post(HEADERS, b"{}")) == (200, b"{}")
    assert len(server.connections) == 2


def test_an_answer_that_comes_in_drops_has_one_deadline(server):
    server.answers.append([b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n", *[b"x"] * 5_000])
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        Wire(server.url, 2.0, 0.2).post(HEADERS, b"{}")
    assert time.monotonic() - begun < 2.0


def test_a_header_with_a_line_break_is_refused_before_anything_is_sent(server, kept):
    for value in ("a\r\nX-Other: b", "a\n", "a\r"):
        with pytest.raises(ValueError, match="line break"):
            kept.post({"X-Amz-Security-Token": value}, b"{}")
    assert server.requests == []


def test_threads_have_separate_connections_and_few_are_kept(server, kept, monkeypatch):
    monkeypatch.setattr(wire, "MAX_KEPT", 3)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: kept.post(HEADERS, b"{}").body, range(100)))
    assert answers == [b"{}"] * 100
    assert len(kept._kept) <= 3


def test_a_fork_does_not_share_connections_with_its_parent(server, kept):
    kept.post(HEADERS, b"{}")
    child = os.fork()
    if not child:
        try:
            os._exit(0 if kept.post(HEADERS, b"child").body == b"{}" else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert kept.post(HEADERS, b"parent").body == b"{}"
    assert len(server.connections) == 2


@pytest.mark.parametrize("closed", [False, True], ids=["never closed", "used again after it was closed"])
def test_connections_are_closed_with_the_last_reference_to_their_owner(server, closed):
    owner = Wire(server.url, 2.0, 5.0)
    owner.post(HEADERS, b"{}")
    if closed:
        owner.close()
        owner.post(HEADERS, b"{}")
    kept = list(owner._kept)
    assert len(kept) == 1

    del owner
    gc.collect()

    assert [connection.fileno() for connection in kept] == [-1]


def test_nobody_there_is_an_os_error():
    with pytest.raises(OSError, match="refused"):
        Wire("http://127.0.0.1:1", 2.0, 5.0).post(HEADERS, b"{}")


# --------------------------------------------------------------------------------------------------------- tls


def test_a_server_must_show_a_certificate_for_its_name(server):
    context = wire._tls()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    named = []

    class Context:
        def wrap_socket(self, connection, server_hostname):
            named.append(server_hostname)
            return connection

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(wire, "_tls", Context)
        over_tls = Wire(server.url.replace("http:", "https:"), 2.0, 5.0)
        assert body_of(over_tls.post(HEADERS, b"{}")) == (200, b"{}")
        over_tls.close()
    assert named == ["127.0.0.1"]


def test_a_server_that_speaks_no_tls_is_an_os_error(server):
    server.answers.append(PLAIN)
    with pytest.raises(OSError):  # noqa: PT011 - whatever the library says
        Wire(server.url.replace("http:", "https:"), 0.5, 0.5).post(HEADERS, b"{}")


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://dynamodb.eu-central-1.amazonaws.com", "dynamodb.eu-central-1.amazonaws.com"),
        ("https://localhost:443", "localhost"),
        ("http://localhost:80/", "localhost"),
        ("http://localhost:8000", "localhost:8000"),
        ("HTTPS://localhost:80", "localhost:80"),
        ("http://[::1]:8000", "[::1]:8000"),
    ],
)
def test_a_host_is_named_with_its_port_unless_that_is_the_usual_one(url, host):
    assert Wire(url, 2.0, 5.0).host == host


def test_what_is_no_answer_is_an_os_error():
    assert issubclass(BadAnswer, OSError)
