"""HTTP/1.1 on kept connections: as much of it as a POST of JSON and its answer need.

A request is sent once. Whoever sends it decides whether it may be repeated, so nothing here repeats anything.
"""

import os
import select
import socket
import ssl
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import NamedTuple
from urllib.parse import urlsplit

MAX_KEPT = 32  # connections that wait for the next request
MAX_HEAD = 65_536  # bytes before the body of an answer
CHUNK = 65_536


class BadAnswer(OSError):
    """What came was not an answer, or not all of it."""


class Answer(NamedTuple):
    status: int
    date: str  # as the server writes it, "" if it does not
    body: bytes


@cache
def _tls() -> ssl.SSLContext:
    """What checks the servers' certificates; it takes some milliseconds to make."""
    return ssl.create_default_context()


class Wire:
    """Connections to one address; may be used from many threads, and after a fork.

    `connect_timeout` is for a connection, `answer_timeout` for a request and the whole of its answer, in seconds.
    """

    def __init__(self, url: str, connect_timeout: float, answer_timeout: float) -> None:
        parts = urlsplit(url)
        self._tls = parts.scheme.lower() == "https"
        self._name = parts.hostname or ""
        usual = 443 if self._tls else 80
        self._port = parts.port or usual
        shown = f"[{self._name}]" if ":" in self._name else self._name
        self.host = shown if self._port == usual else f"{shown}:{self._port}"  # as a request names it
        self._timeouts = connect_timeout, answer_timeout
        self._kept: list[socket.socket] = []
        self._process = os.getpid()
        weakref.finalize(self, _close_all, self._kept)  # a client that nobody closed

    def post(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """The answer to one request, which is sent once; OSError if there is none, ValueError if it cannot be sent."""
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
            raise ValueError("a header holds a line break")
        head = f"POST / HTTP/1.1\r\n{lines}Accept-Encoding: identity\r\nContent-Length: {len(body)}\r\n\r\n"
        message = head.encode("latin-1") + body
        connection = self._take()
        try:
            deadline = time.monotonic() + self._timeouts[1]
            connection.sendall(message)
            answer, keep = AnswerReader(connection, deadline).read()
        except BaseException:
            connection.close()
            raise
        if keep and len(self._kept) < MAX_KEPT:
            self._kept.append(connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        _close_all(self._kept)

    def _take(self) -> socket.socket:
        if self._process != os.getpid():  # after a fork: the connections are the parent's
            _close_all(self._kept)  # here only: to the server they stay open
            self._process = os.getpid()
        while True:
            try:
                connection = self._kept.pop()
            except IndexError:
                return self._connect()
            if _is_quiet(connection):
                connection.settimeout(self._timeouts[1])
                return connection
            connection.close()

    def _connect(self) -> socket.socket:
        connection = socket.create_connection((self._name, self._port), self._timeouts[0])
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls:
                connection = _tls().wrap_socket(connection, server_hostname=self._name)
            connection.settimeout(self._timeouts[1])
        except BaseException:
            connection.close()
            raise
        return connection


def _close_all(kept: list[socket.socket]) -> None:
    """Close these connections; another thread may take some of them meanwhile."""
    while kept:
        with suppress(IndexError):
            kept.pop().close()


def _is_quiet(connection: socket.socket) -> bool:
    """Whether nothing has come since the last answer: what comes unasked is the end of the connection."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        return not poll.poll(0)
    return not select.select([connection], [], [], 0)[0]


class AnswerReader:
    """Reads one answer from a connection, until a deadline on the monotonic clock."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self._read = b""  # what came and is not used yet

    def read(self) -> tuple[Answer, bool]:
        """The answer, and whether the connection may be used again."""
        status, head = self._head()
        while 100 <= status < 200:  # something about an answer that is still to come
            status, head = self._head()
        length = head.get(b"content-length")
        keep = head.get(b"connection", b"").lower() != b"close"
        if head.get(b"transfer-encoding", b"").lower() == b"chunked":
            body = self._chunks()
        elif length is not None:
            body = self._bytes(int(length))
        else:
            body, keep = self._rest(), False
        return Answer(status, head.get(b"date", b"").decode("latin-1"), body), keep and not self._read

    def _head(self) -> tuple[int, dict[bytes, bytes]]:
        while (end := self._read.find(b"\r\n\r\n")) < 0:
            if len(self._read) > MAX_HEAD:
                raise BadAnswer("the answer does not begin as HTTP does")
            self._more()
        first, *lines = self._read[:end].split(b"\r\n")
        self._read = self._read[end + 4 :]
        words = first.split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            raise BadAnswer("the answer does not begin as HTTP does")
        head = {}
        for line in lines:
            name, _, value = line.partition(b":")
            head[name.lower()] = value.strip()
        if words[0] == b"HTTP/1.0":
            head.setdefault(b"connection", b"close")
        return int(words[1]), head

    def _bytes(self, number: int) -> bytes:
        if len(self._read) < number:
            parts, missing = [self._read], number - len(self._read)
            while missing > 0:
                parts.append(self._received())
                missing -= len(parts[-1])
            self._read = b"".join(parts)
        body, self._read = self._read[:number], self._read[number:]
        return body

    def _chunks(self) -> bytes:
        chunks = []
        while size := int(self._line().partition(b";")[0], 16):
            chunks.append(self._bytes(size))
            self._line()
        while self._line():  # what may follow the last chunk
            pass
        return b"".join(chunks)

    def _line(self) -> bytes:
        while (end := self._read.find(b"\r\n")) < 0:
            self._more()
        line, self._read = self._read[:end], self._read[end + 2 :]
        return line

    def _rest(self) -> bytes:
        """Everything until the server closes the connection."""
        parts = [self._read]
        self._read = b""
        while part := self._receive():
            parts.append(part)
        return b"".join(parts)

    def _more(self) -> None:
        self._read += self._received()

    def _received(self) -> bytes:
        if not (part := self._receive()):
            raise BadAnswer("the connection was closed before the answer was complete")
        return part

    def _receive(self) -> bytes:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer took too long")
        self._connection.settimeout(left)
        return self._connection.recv(CHUNK)
