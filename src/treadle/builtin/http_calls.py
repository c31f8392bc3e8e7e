"""One HTTP request and its answer, for built-in tasks: what was never sent, and what nobody knows of."""

import http.client
import math
import ssl
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from treadle.errors import Ambiguous

LARGEST_ANSWER = 1 << 20  # bytes; what comes after them is not read
TIMEOUT = 30.0  # seconds without a word


class Unreachable(Exception):
    """The request was not sent: the name, the connection or the certificate failed."""


class HttpAnswer(NamedTuple):
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
        with suppress(ValueError):
            until = parsedate_to_datetime(given)
            return max(0.0, (until.replace(tzinfo=until.tzinfo or UTC) - now).total_seconds())
        return None


def call(
    method: str,
    url: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    *,
    timeout: float = TIMEOUT,
    address: str | None = None,
    tls: ssl.SSLContext | None = None,
) -> HttpAnswer:
    """Send one request on a connection of its own; redirects are answers like any other.

    `address` is the IP address to connect to, instead of what the name of the host leads to: the certificate and the
    Host header are still the name's. Unreachable if the request cannot have arrived, Ambiguous if it may have.
    """
    place = urlsplit(url)
    connection = _Connection(place, timeout, address, tls)
    path = f"{place.path or '/'}?{place.query}" if place.query else place.path or "/"
    try:
        try:
            connection.connect()
        except (OSError, http.client.HTTPException, ValueError) as error:  # a certificate's error is an OSError
            raise Unreachable(f"{place.hostname} cannot be reached: {_words(error)}") from None
        try:
            connection.request(method, path, body, {"User-Agent": "treadle", **(headers or {})})
            answer = connection.getresponse()
            return HttpAnswer(answer.status, answer.headers, answer.read(LARGEST_ANSWER))
        except (OSError, http.client.HTTPException) as error:
            raise Ambiguous(f"{place.hostname} did not answer: {_words(error)}") from error
    finally:
        connection.close()


class _Connection(http.client.HTTPConnection):
    """To the address that was checked, not to what the name leads to a moment later."""

    def __init__(self, place: SplitResult, timeout: float, address: str | None, tls: ssl.SSLContext | None) -> None:
        secure = place.scheme == "https"
        self._tls = (tls or ssl.create_default_context()) if secure else None
        self._address = address
        self.default_port = 443 if secure else 80  # http.client leaves it out of the Host header
        super().__init__(place.hostname or "", place.port or self.default_port, timeout=timeout)

    def connect(self) -> None:
        name = self.host
        self.host = self._address or name
        try:
            super().connect()
        finally:
            self.host = name
        if self._tls is not None:
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=name)


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
