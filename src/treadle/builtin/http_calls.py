"""One HTTP request and its answer, for built-in tasks: what was never sent, and what nobody knows of."""

import http.client
import ipaddress
import math
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from io import BufferedReader, RawIOBase
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

from treadle.errors import Ambiguous, InvalidInput, Unreachable
from treadle.model import Job
from treadle.tasks.secrets import hide

LARGEST_ANSWER = 1 << 20  # bytes; what comes after them is not read
LARGEST_HEAD = 1 << 18  # bytes beside them: of headers, and of what chunks need
SHORT_ANSWER = 4096  # bytes of the body that are read where the status is enough
LONGEST_URL = 8_000  # characters
TIMEOUT = 30.0  # seconds for all of it, however slowly the answer comes
CONNECT_TIMEOUT = 10.0  # seconds of them for the connection to one address
LONGEST_WAIT = 86_400.0  # seconds, whatever a server asks for
LONGEST_WORDS = 300  # characters of what a server says, in an error

_URL = re.compile(r"[!-~]+")
_HOST = re.compile(r"[A-Za-z0-9._-]+")
_HOST_AND_PATH = re.compile(r"(localhost|[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+)(:[0-9]+)?(?=[/?#]|$)[^?#]*")
LONGEST_SHOWN = 100  # characters of a URL, in an error


class HttpReply(NamedTuple):
    """What came back; `headers` finds a name in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text, whatever its bytes."""
        return self.body.decode("utf-8", "replace")

    def retry_after(self, now: datetime) -> float | None:
        """How many seconds the server asks us to wait; None if it does not say, or not so that it can be read."""
        given = self.headers.get("Retry-After", "").strip()
        if given.isascii() and given.isdigit():
            seconds = float(given)
            return seconds if math.isfinite(seconds) else None
        with suppress(ValueError, OverflowError):
            until = parsedate_to_datetime(given)
            return max(0.0, (until.replace(tzinfo=until.tzinfo or UTC) - now).total_seconds())
        return None


class HttpUrl(NamedTuple):
    """An http or https URL, taken apart."""

    secure: bool
    host: str
    port: int
    target: str  # path and query

    @classmethod
    def of(cls, url: str) -> "HttpUrl":
        """InvalidInput for what is not one; the message does not repeat the URL, which may hold a secret."""
        if not isinstance(url, str) or not _URL.fullmatch(url) or len(url) > LONGEST_URL:
            ways = "write https://example.org/path, other characters percent-encoded and names as punycode"
            raise InvalidInput("url", f"must be at most {LONGEST_URL:,} ASCII characters without spaces; {ways}")
        try:
            place = urlsplit(url)
            host, port = place.hostname or "", place.port
        except ValueError:
            raise InvalidInput("url", "its port must be from 1 to 65535, and an IPv6 address in brackets") from None
        if shown := _without_scheme(url):
            raise InvalidInput("url", f"{shown!r} has no https://; write https://{shown}")
        if place.scheme not in ("http", "https"):
            raise InvalidInput("url", f"must begin with https:// or http://, not with {place.scheme[:20] + ':'!r}")
        if "@" in place.netloc:
            raise InvalidInput("url", "must not hold a user or a password")
        if port == 0:
            raise InvalidInput("url", "its port must be from 1 to 65535")
        if not _is_host(host):
            raise InvalidInput("url", "has no host, or one that cannot be a name; write https://example.org/path")
        secure = place.scheme == "https"
        path = f"{place.path or '/'}?{place.query}" if place.query else place.path or "/"
        return cls(secure, host, port or (443 if secure else 80), path)


def call(
    method: str,
    url: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    *,
    timeout: float = TIMEOUT,
    address: str | None = None,
    tls: ssl.SSLContext | None = None,
    whole: bool = True,
) -> HttpReply:
    """Send one request on a connection of its own; redirects are answers like any other.

    `timeout` is for all of it but the look-up of the name. `address` is the IP address to connect to, instead of what
    the name of the host leads to: the certificate and the Host header are still the name's. With `whole=False` the
    status is enough: the body of a success is not read, and that of a failure only as far as it comes. Unreachable if
    the request cannot have arrived, Ambiguous if it may have, InvalidInput if the URL or a header is not one. No error
    repeats what the server has sent.
    """
    place = HttpUrl.of(url)
    connection = _Connection(place, time.monotonic() + timeout, address, tls)
    try:
        try:
            connection.connect()
        except (OSError, ValueError) as error:  # a certificate's error is an OSError, a name that is too long is not
            raise Unreachable(f"{place.host} cannot be reached: {_words(error)}") from None
        try:
            connection.request(method, place.target, body, {"User-Agent": "treadle", **(headers or {})})
        except ValueError:  # nothing is sent before all headers are there; the message would show the value
            raise InvalidInput("headers", "a name or a value has a line break, or is not Latin-1") from None
        except OSError as error:
            raise _unanswered(place, timeout, error) from None
        try:
            answer = connection.getresponse()
            content = _whole_body(connection, answer) if whole else _start_of_body(answer)
        except OSError as error:
            raise _unanswered(place, timeout, error) from None
        except http.client.IncompleteRead:
            raise Ambiguous(f"{place.host}: its answer ended too early") from None
        except (http.client.HTTPException, ValueError):  # their messages repeat what the server has sent
            raise Ambiguous(f"{place.host}: its answer is not HTTP") from None
        return HttpReply(answer.status, cast("Mapping[str, str]", answer.headers), content)
    finally:
        connection.hang_up()


@cache
def usual_tls() -> ssl.SSLContext:
    """Trusts whom the system trusts. To load all their certificates takes longer than a request."""
    return ssl.create_default_context()


def wait_asked(answer: HttpReply, job: Job, now: datetime) -> float | None:
    """Seconds to wait as Retry-After asks: at least the job's own delay, at most a day; None if nothing is asked."""
    asked = answer.retry_after(now)
    own = job.retry.delay(job.failures + 1, 0.0)
    return None if asked is None else max(own, min(asked, LONGEST_WAIT))


def shortened(text: str, *secrets: str, longest: int = LONGEST_WORDS) -> str:
    """What a server says, on one line, without these secrets."""
    known = sorted(filter(None, secrets), key=len, reverse=True)  # one may be a part of another
    printable = "".join(char if char.isprintable() else " " for char in hide(text, known))
    line = " ".join(printable.split())
    return line if len(line) <= longest else f"{line[:longest]}..."


def _unanswered(place: HttpUrl, timeout: float, error: OSError) -> Ambiguous:
    if isinstance(error, TimeoutError):
        return Ambiguous(f"{place.host} did not answer within {round(timeout, 1):g} s")
    return Ambiguous(f"{place.host} did not answer: {_words(error)}")


def _whole_body(connection: "_Connection", answer: http.client.HTTPResponse) -> bytes:
    if connection.peer_closed():  # before the body: http.client takes the headers that came for all of them
        raise http.client.IncompleteRead(b"")
    content = answer.read(LARGEST_ANSWER)
    if answer.length and len(content) < LARGEST_ANSWER:
        raise http.client.IncompleteRead(b"")
    return content


def _start_of_body(answer: http.client.HTTPResponse) -> bytes:
    """What comes of it, for an error to show; nothing of a success, which may go on for ever."""
    content = bytearray()
    if not 200 <= answer.status < 300:
        with suppress(OSError, http.client.HTTPException, ValueError):
            while len(content) < SHORT_ANSWER and (more := answer.read1(SHORT_ANSWER)):
                content += more
    return bytes(content[:SHORT_ANSWER])


class _Answer(http.client.HTTPResponse):
    """The final answer: what a server says before it, such as 103 Early Hints, is read over."""

    def begin(self) -> None:
        super().begin()
        while 100 <= self.status < 200:
            self.headers = self.msg = None  # type: ignore[assignment] # so it begins again
            super().begin()


class _Connection(http.client.HTTPConnection):
    """To the address that was checked, not to what the name leads to a moment later; until a deadline."""

    response_class = _Answer

    def __init__(self, place: HttpUrl, deadline: float, address: str | None, tls: ssl.SSLContext | None) -> None:
        self._tls = (tls or usual_tls()) if place.secure else None
        self._address = address
        self._deadline = deadline
        self._opened: socket.socket | None = None
        self._stream: _TimedSocket | None = None
        self.default_port = 443 if place.secure else 80  # http.client leaves it out of the Host header
        super().__init__(place.host, place.port)

    def connect(self) -> None:
        failure: OSError | None = None
        for family, address in self._addresses():
            opened = socket.socket(family, socket.SOCK_STREAM)
            try:
                opened.settimeout(min(CONNECT_TIMEOUT, _left(self._deadline)))
                opened.connect(address)
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    opened = self._tls.wrap_socket(opened, server_hostname=self.host)
            except OSError as error:
                opened.close()
                failure = error
            except BaseException:
                opened.close()
                raise
            else:
                self._opened, self._stream = opened, _TimedSocket(opened, self._deadline)
                self.sock = cast("socket.socket", self._stream)
                return
        raise failure or OSError("the name leads nowhere")

    def peer_closed(self) -> bool:
        """Whether the end of what the server sends has been read."""
        return self._stream is not None and self._stream.reader.ended

    def hang_up(self) -> None:
        """Close it; http.client closes its side of a connection while the answer is still to be read."""
        self.close()
        if self._opened is not None:
            self._opened.close()

    def _addresses(self) -> Iterator[tuple[int, Any]]:
        """Where to connect, in turn; no name is looked up if the address was given."""
        flags = 0 if self._address is None else socket.AI_NUMERICHOST
        for family, _, _, _, address in socket.getaddrinfo(
            self._address or self.host, self.port, type=socket.SOCK_STREAM, flags=flags
        ):
            yield family, address


class _TimedSocket:
    """A socket that sends and reads until a deadline, not for so long each time: a peer may drip."""

    def __init__(self, opened: socket.socket, deadline: float) -> None:
        self._socket, self._deadline = opened, deadline
        self.reader = _TimedReader(opened, deadline)

    def sendall(self, data: bytes) -> None:
        self._socket.settimeout(_left(self._deadline))
        self._socket.sendall(data)

    def makefile(self, _mode: str) -> BufferedReader:
        """What http.client reads its answer from; always of bytes."""
        return BufferedReader(self.reader)

    def close(self) -> None:
        """The connection closes it, when the answer has been read."""


class _TimedReader(RawIOBase):
    """Reads until a deadline, and no more than an answer may have: http.client itself would read without a limit."""

    def __init__(self, opened: socket.socket, deadline: float) -> None:
        self._socket, self._deadline = opened, deadline
        self._room = LARGEST_ANSWER + LARGEST_HEAD
        self.ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._room <= 0:
            raise http.client.HTTPException("the answer is too large")
        self._socket.settimeout(_left(self._deadline))
        count = self._socket.recv_into(memoryview(buffer)[: self._room])
        self._room -= count
        self.ended = not count
        return count


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _without_scheme(url: str) -> str:
    """A URL that begins with its host, without its query, which may hold a secret; empty for any other."""
    found = _HOST_AND_PATH.match(url)
    return found[0][:LONGEST_SHOWN] if found is not None and "@" not in url else ""


def _is_host(host: str) -> bool:
    if ":" in host:
        with suppress(ValueError):
            return ipaddress.ip_address(host).version == 6
        return False
    return _HOST.fullmatch(host) is not None


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
