"""What every request passes before anything else: limits, the Host and Origin checks, the headers of every answer."""

import asyncio
import ipaddress
import re
import threading
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders

from treadle.server.problems import ANSWERED, Refused, problem

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]

MAX_BODY = (1 << 20) + (64 << 10)  # bytes: the largest payload, and what stands around it
MAX_DEPTH = 64
MAX_QUERY = 8 << 10
BODY_TIME = 30.0  # seconds within which a body must have come
MOST_DIGITS = 12  # of a Content-Length
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
AT_ONE_ADDRESS = 10  # callers that may use their whole rate from one address
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")

HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer, browsers send `Origin: null` with forms of our own pages
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]*)?")
_ORIGIN = re.compile(r"https?://(?P<host>[^/?#@\s]+)")

# A string that does not end reaches to the end: were one looked for again at each of its quotes, a megabyte of quotes
# would take hours.
_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?|[\[\]{}]', re.DOTALL)


class Guard:
    """An ASGI middleware. `hosts` are the names by which the server may be asked, beside those of this machine."""

    def __init__(self, app: App, *, hosts: Collection[str] = (), rate: float = 50.0, burst: int = 200) -> None:
        self._app = app
        self._hosts = {name.lower() for name in (*LOCAL_HOSTS, *hosts)}
        self._rate = RateLimit(rate, burst)
        self._address_rate = RateLimit(rate * AT_ONE_ADDRESS, burst * AT_ONE_ADDRESS)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self._check(scope)
            body = await _read(scope, receive)
        except Refused as error:
            answer = problem(error.status, error.detail, error.headers, **error.fields)
            await answer(scope, receive, send_guarded)
            return
        try:
            await self._app(scope, body, send_guarded)
        except Exception:
            if ANSWERED not in scope:  # else it is answered and in the log, and the HTTP server need not write it again
                raise

    def _check(self, scope: Any) -> None:
        headers = Headers(scope=scope)
        if _CONTROL.search(scope["path"]):  # no name of ours holds one
            raise Refused(404, "there is nothing at this address")
        if len(scope.get("query_string", b"")) > MAX_QUERY:
            raise Refused(414, f"the query is longer than {MAX_QUERY:,} bytes", field="query", limit=MAX_QUERY)
        self._check_host(scope, headers)
        self._check_rate(scope, headers)
        if scope["method"] not in SAFE_METHODS:
            _check_origin(headers)

    def _check_host(self, scope: Any, headers: Headers) -> None:
        """A page of another name must not reach a server of this machine by letting its name point here.

        The very address at which it was reached is no name: probes and other machines ask by it.
        """
        hosts = headers.getlist("host")
        found = _HOST.fullmatch(hosts[0].lower()) if len(hosts) == 1 else None
        allowed = found is not None and (found["name"] in self._hosts or found["name"] == _address(scope))
        if not allowed and "*" not in self._hosts:
            raise Refused(421, "this server does not answer to that Host; allow it with --allow-host", field="Host")

    def _check_rate(self, scope: Any, headers: Headers) -> None:
        address = str((scope.get("client") or ["-"])[0])
        who = headers.get("authorization") or headers.get("cookie") or address
        if wait := max(self._rate.wait(who), self._address_rate.wait(address)):
            seconds = f"{max(1, round(wait))}"
            raise Refused(429, f"too many requests; try again in {seconds} s", {"Retry-After": seconds})


def _address(scope: Any) -> str:
    """The address of ours at which a request came in, as a Host has it; empty if that is a name, or not known."""
    try:
        address = ipaddress.ip_address(str((scope.get("server") or [""])[0]))
    except ValueError:
        return ""
    return f"[{address}]" if address.version == 6 else str(address)


def _check_origin(headers: Headers) -> None:
    """No page of another site may change anything, whatever cookies the browser sends along."""
    sites = set(headers.getlist("sec-fetch-site"))
    origins = [_ORIGIN.fullmatch(origin.lower()) for origin in headers.getlist("origin")]
    own = headers.get("host", "").lower()
    if not sites <= {"same-origin", "none"} or any(origin is None or origin["host"] != own for origin in origins):
        raise Refused(403, "a change must come from this server's own pages, or from a program", field="Origin")


async def _read(scope: Any, receive: Receive) -> Receive:
    """The body, read whole within its limits; what gives it to the app."""
    headers = Headers(scope=scope)
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or len(length) > MOST_DIGITS or int(length) > MAX_BODY:
        raise _too_large()
    try:
        async with asyncio.timeout(BODY_TIME):
            body = await _body(receive) if scope["method"] not in SAFE_METHODS else b""
    except TimeoutError:
        raise Refused(408, f"the body did not come within {BODY_TIME:g} s; send it again", field="body") from None
    if body and not _is_form(scope, headers):
        _check_json(headers, body)
    given = False

    async def replay() -> Message:
        nonlocal given
        if given or scope["method"] in SAFE_METHODS:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _body(receive: Receive) -> bytes:
    parts, size, more = list[bytes](), 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "the request was cut off; send it again", field="body")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY:
            raise _too_large()
        more = message.get("more_body", False)
    return b"".join(parts)


def _too_large() -> Refused:
    return Refused(413, f"the body is larger than {MAX_BODY:,} bytes", field="body", limit=MAX_BODY)


def _is_form(scope: Any, headers: Headers) -> bool:
    """Whether it is a form of a page of ours: the API takes JSON alone."""
    path = str(scope["path"]).removeprefix(scope.get("root_path", ""))
    return not path.startswith("/api/") and _kind(headers) == "application/x-www-form-urlencoded"


def _kind(headers: Headers) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _check_json(headers: Headers, body: bytes) -> None:
    """Refuse what is not said to be JSON, and what is nested too deep to be read. Unknown bytes are seen when it is."""
    if _kind(headers) != "application/json":
        raise Refused(415, "send JSON, with Content-Type: application/json", field="Content-Type")
    deep = most = 0
    for bracket in _STRING_OR_BRACKET.findall(body):
        if bracket in (b"[", b"{"):
            deep += 1
            most = max(most, deep)
        elif bracket in (b"]", b"}"):
            deep -= 1
    if most > MAX_DEPTH:
        raise Refused(422, f"the body is nested deeper than {MAX_DEPTH} levels", field="body", limit=MAX_DEPTH)


class RateLimit:
    """A bucket for each caller: `burst` requests at once, then `rate` a second."""

    MOST = 10_000  # callers that are remembered
    ROUNDING = 1e-6  # seconds

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._lock = threading.Lock()
        self._full_at: dict[int, float] = {}  # by caller: when the bucket is full again

    def wait(self, caller: str, now: float | None = None) -> float:
        """Seconds that this caller must wait; 0 lets the request pass."""
        now = time.monotonic() if now is None else now
        with self._lock:
            if len(self._full_at) >= self.MOST:
                self._full_at = {key: at for key, at in self._full_at.items() if at > now}
            if len(self._full_at) >= self.MOST:
                self._full_at.clear()
            key = hash(caller)  # a token is not kept in memory longer than its request
            full = max(self._full_at.get(key, now), now) + 1 / self._rate
            wait = full - now - self._burst / self._rate
            if wait > self.ROUNDING:
                return wait
            self._full_at[key] = full
            return 0.0
