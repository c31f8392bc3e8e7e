"""Requests and their answers: what is sent again, what is not, and what an unusable answer means."""

import http.client
import json
import re
import ssl
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from treadle.app.queries import LARGEST_PAGE
from treadle.client.address import API, ServerAddress
from treadle.client.problems import error_from
from treadle.client.values import read
from treadle.errors import ConfigError, EngineError, EngineUnavailable, InvalidInput, TreadleError
from treadle.model import json_text

TIMEOUT = 30.0  # seconds without a word
LONG_TIMEOUT = 3_600.0  # of an act on many jobs, and of reading a whole audit trail
LARGEST_ANSWER = 64 << 20  # bytes
WAITS = (0.2, 0.5)  # seconds before a request is sent again
LONGEST_WAIT = 30.0  # seconds that a server may ask us to wait
PROBLEM = "application/problem+json"
NOT_NOW = (502, 503, 504)
TOO_MANY = 429
LONGEST_PATH = 8_000  # characters of an address, its query included

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class ServerAnswer(NamedTuple):
    """What came back: the body is data if it is JSON, else None."""

    status: int
    kind: str
    headers: Mapping[str, str]
    body: Any


class Transport:
    """Asks one server, each request on a connection of its own.

    A request that changes nothing, or that may be repeated, is sent again when the server does not answer; any other is
    sent once.
    """

    def __init__(self, address: ServerAddress, token: str, *, timeout: float = TIMEOUT) -> None:
        self.address = address
        self._token = token
        self._timeout = timeout
        self.sent_at = 0.0  # by time.monotonic: when the last request was
        self._tls = ssl.create_default_context() if address.tls else None

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        return self._asked("GET", _with(path, query), None, repeatable=True)

    def get_long(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        """`get` of something that may take its time; it is asked once."""
        return self._asked("GET", _with(path, query), None, timeout=LONG_TIMEOUT)

    def pages(
        self, path: str, name: str, query: Mapping[str, Any], *, limit: int | None, cursor: str | None
    ) -> tuple[list[Any], str | None]:
        """What lies under this name in page after page, up to a limit, and the cursor to go on with."""
        found: list[Any] = []
        while True:
            some = LARGEST_PAGE if limit is None else min(limit - len(found), LARGEST_PAGE)
            page = self.get(path, {**query, "limit": some, "cursor": cursor})
            found += read(partial(list, page.get(name)))
            cursor = page.get("cursor")
            if cursor is None or (limit is not None and len(found) >= limit):
                return found, cursor

    def post(self, path: str, body: Any, *, query: Mapping[str, Any] | None = None, repeatable: bool = False) -> Any:
        return self._asked("POST", _with(path, query), body, repeatable=repeatable)

    def post_long(self, path: str, body: Any) -> Any:
        """`post` of something that may take its time."""
        return self._asked("POST", path, body, timeout=LONG_TIMEOUT)

    def patch(self, path: str, body: Any, *, query: Mapping[str, Any] | None = None) -> Any:
        return self._asked("PATCH", _with(path, query), body)

    def delete(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        return self._asked("DELETE", _with(path, query), None)

    def _asked(
        self, method: str, path: str, body: Any, *, repeatable: bool = False, timeout: float | None = None
    ) -> Any:
        """The body of the answer; the error that it is, as one of ours."""
        for wait in (*(WAITS if repeatable else ()), None):
            try:
                answer = self._send(method, path, body, timeout or self._timeout, repeatable)
            except EngineUnavailable:
                if wait is None:
                    raise
                time.sleep(wait)
                continue
            pause = _pause(answer, wait)
            if pause is None:
                return self._read(answer)
            time.sleep(pause)
        raise AssertionError  # the last round returns or raises

    def _send(self, method: str, path: str, body: Any, timeout: float, repeatable: bool) -> ServerAnswer:
        """One request and its answer; EngineUnavailable if there is none and it may be sent again."""
        connection = self._connection(timeout)
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json", "Treadle-Own-Names": "1"}
        data = None if body is None else _encoded(body)
        if data is not None:
            headers["Content-Type"] = "application/json"
        self.sent_at = time.monotonic()
        try:
            try:
                connection.connect()
            except ssl.SSLCertVerificationError as error:
                raise ConfigError(
                    f"server: the certificate of {self.address.url} is not valid ({error.verify_message}); "
                    "SSL_CERT_FILE names a file of authorities to trust"
                ) from error
            except (OSError, UnicodeError, ValueError) as error:
                raise EngineUnavailable(
                    f"{self.address.url} does not answer ({_reason(error)}); is the server up, and the URL right?"
                ) from error
            try:
                connection.request(method, f"{self.address.path}{API}{path}", data, headers)
                return _answer(connection.getresponse())
            except (OSError, http.client.HTTPException) as error:
                raise self._cut(repeatable, error) from error
        finally:
            connection.close()

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        host, port = self.address.host, self.address.port
        if self._tls is None:
            return http.client.HTTPConnection(host, port, timeout=timeout)
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=self._tls)

    def _cut(self, repeatable: bool, error: Exception) -> TreadleError:
        """The request was sent, and what came back is not an answer."""
        cut_off = isinstance(error, OSError | http.client.IncompleteRead)
        if not cut_off:
            return ConfigError(f"server: {self.address.url} does not speak HTTP ({_reason(error)}); is the URL right?")
        words = f"{self.address.url} gave no answer ({_reason(error)})"
        if repeatable:
            return EngineUnavailable(words)
        return EngineError(f"{words}; it may have been done all the same: look before you repeat it")

    def _read(self, answer: ServerAnswer) -> Any:
        """What the answer says, if it is one of a treadle."""
        if answer.kind == PROBLEM and isinstance(answer.body, dict):
            raise error_from(answer.status, answer.body, self.address.url)
        if answer.status in range(200, 300) and isinstance(answer.body, dict):
            return answer.body
        if answer.status in range(300, 400):
            where = answer.headers.get("location", "another address")
            raise ConfigError(f"server: {self.address.url} leads on to {where!r:.200}; give the address it leads to")
        if answer.status in NOT_NOW:
            raise EngineUnavailable(f"{self.address.url} answers {answer.status}: what stands before it has no server")
        if answer.status >= 500:
            raise EngineError(f"{self.address.url} answers {answer.status}; its log says more")
        kind = answer.kind or "nothing that is named"
        raise ConfigError(
            f"server: {self.address.url} is not a treadle: it answers {answer.status} with {kind:.100}; "
            "give the address of `treadle serve`"
        )


def segment(name: str) -> str:
    """A name as a part of a path; InvalidInput for one that no address can hold."""
    if not name or "/" in name or _CONTROL.search(name):
        what = "is empty" if not name else "holds a / or a control character"
        raise InvalidInput("name", f"{name!r:.100} {what}, and a server cannot be asked for it")
    return quote(name, safe="", errors="replace").replace(".", "%2E")


def _with(path: str, query: Mapping[str, Any] | None) -> str:
    given = {name: _text(value) for name, value in (query or {}).items() if value is not None}
    whole = f"{path}?{urlencode(given, errors='replace')}" if given else path
    if len(whole) > LONGEST_PATH:
        raise InvalidInput("request", f"it has {len(whole):,} characters; a server takes {LONGEST_PATH:,}: shorten it")
    return whole


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _encoded(body: Mapping[str, Any]) -> bytes:
    """A body as JSON, its payload as a store takes it; InvalidInput names the field that cannot be."""
    fields = []
    for name, value in body.items():
        try:
            text = json_text(value, name) if name == "payload" else json.dumps(value)
        except TypeError as error:
            raise InvalidInput(name, f"cannot be sent: {error}; give plain data") from None
        fields.append(f"{json.dumps(name)}: {text}")
    return f"{{{', '.join(fields)}}}".encode()


def _answer(response: http.client.HTTPResponse) -> ServerAnswer:
    data = response.read(LARGEST_ANSWER + 1)
    if len(data) > LARGEST_ANSWER:
        raise EngineError(f"the answer has more than {LARGEST_ANSWER:,} bytes; ask for fewer with --limit")
    headers = {name.lower(): value for name, value in response.getheaders()}
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return ServerAnswer(response.status, kind, headers, _data(data) if kind in ("application/json", PROBLEM) else None)


def _data(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _pause(answer: ServerAnswer, wait: float | None) -> float | None:
    """How long to wait before the request is sent again; None if it is not."""
    if wait is None or answer.status not in (TOO_MANY, *NOT_NOW):
        return None
    asked = answer.headers.get("retry-after", "")
    seconds = float(asked) if asked.isascii() and asked.isdigit() else wait
    return seconds if seconds <= LONGEST_WAIT else None


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it took too long"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
