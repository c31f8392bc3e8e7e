"""Stand-ins that speak HTTP: routes, replies in the vendor's shape, every request kept."""

import json
import re
import ssl
from abc import abstractmethod
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from treadle.testing.clock import FakeClock
from treadle.testing.fakes.faults import Fake
from treadle.testing.fakes.listener import Listener


class FakeRequest(NamedTuple):
    """A request as it came. `headers` finds a name in any case; `query` has the last value of each name."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    query_string: str = ""

    def values(self, name: str) -> list[str]:
        """Every value that the query has for this name."""
        return [value for key, value in parse_qsl(self.query_string, keep_blank_values=True) if key == name]

    def json(self) -> Any:
        """The body as JSON; the client is told if it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise Refusal(400, "", "the body is not valid JSON") from None

    def form(self) -> dict[str, str]:
        """The body as a form."""
        return dict(parse_qsl(self.body.decode("utf-8", "replace"), keep_blank_values=True))

    def bearer(self) -> str:
        """The token of the Authorization header, or an empty string."""
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        return token.strip() if kind.lower() == "bearer" else ""


class FakeReply(NamedTuple):
    """What is answered: bytes as they are, None as nothing, all else as JSON."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = {}

    def packed(self) -> tuple[bytes, dict[str, str]]:
        """The body's bytes, and the headers with its length and type."""
        raw = self.body is None or isinstance(self.body, bytes)
        data = (self.body or b"") if raw else json.dumps(self.body).encode()
        kind = {} if raw else {"Content-Type": "application/json; charset=utf-8"}
        return data, {"Content-Length": str(len(data)), **kind, **self.headers}


class Refusal(Exception):
    """The request is refused, with the vendor's code and words."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers


class HttpFake(Fake):
    """A stand-in for an HTTP API. `routes` leads from a method and a pattern of the path to the name of a method."""

    routes: ClassVar[tuple[tuple[str, str, str], ...]] = ()

    def __init__(self, *, port: int = 0, clock: FakeClock | None = None, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(port=port, clock=clock)
        self._tls = tls
        self._requests: list[FakeRequest] = []
        self._server: Listener | None = None

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end."""
        if self._server is None:
            raise RuntimeError("this server has no address yet; use it in a `with` block, or call start()")
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._server.port}"

    @property
    def requests(self) -> list[FakeRequest]:
        """Every request so far, those that failed and were dropped, too."""
        with self._changed:
            return list(self._requests)

    def start(self) -> None:
        self._closing.clear()
        self._server = Listener(self, _Handler, self._wanted_port, self._tls)
        self._wanted_port = self._server.port  # after a close, start() comes back there

    def close(self) -> None:
        self._closing.set()
        if self._server is not None:
            self._server.end()
            self._server = None

    def respond(self, request: FakeRequest) -> FakeReply | None:
        """Answer this request, whatever is to go wrong with it; None closes the connection."""
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()
        delay, fault = self._take(f"{request.method} {request.path}")
        if delay and delay.before and self._closing.wait(delay.seconds):
            return None
        if fault and fault.kind == "drop" and fault.before:
            return None
        if fault and fault.kind == "fail":
            body = self.error_for(request, fault.status, fault.error, "") if fault.body is None else fault.body
            reply = FakeReply(fault.status, body, fault.headers)
        else:
            with self._changed:
                reply = self._routed(request)
                self._changed.notify_all()
        if delay and not delay.before and self._closing.wait(delay.seconds):
            return None
        return None if fault and fault.kind == "drop" else reply

    @abstractmethod
    def error(self, status: int, code: str, message: str) -> Any:
        """The body of an error as this vendor writes it; an empty code or message means the usual one."""

    def error_for(self, _: FakeRequest, status: int, code: str, message: str) -> Any:
        """The same where it depends on the request."""
        return self.error(status, code, message)

    def check(self, request: FakeRequest) -> None:
        """Refuse a request that may not come in at all."""

    def _routed(self, request: FakeRequest) -> FakeReply:
        found = [(method, name, re.fullmatch(path, request.path)) for method, path, name in self.routes]
        methods = {method: (name, match.groups()) for method, name, match in found if match}
        try:
            self.check(request)
            if request.method not in methods:
                raise Refusal(405 if methods else 404, "", "")
            name, parts = methods[request.method]
            reply: FakeReply = getattr(self, name)(request, *map(unquote, parts))
        except Refusal as refused:
            body = self.error_for(request, refused.status, refused.code, refused.message)
            return FakeReply(refused.status, body, refused.headers)
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
        ) as error:  # a field of another type
            return FakeReply(400, self.error_for(request, 400, "", f"this stand-in cannot read the request: {error!r}"))
        return reply

    def _forget(self) -> None:
        self._requests.clear()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "treadle-fake", ""
    disable_nagle_algorithm = True
    wbufsize = -1
    server: Listener

    def do(self) -> None:
        address = urlsplit(self.path)
        body = self._body()
        query = dict(parse_qsl(address.query, keep_blank_values=True))
        headers: Any = self.headers  # a Message: a mapping that finds a name in any case
        reply = self.server.fake.respond(FakeRequest(self.command, address.path, query, headers, body, address.query))
        if reply is None:
            self.close_connection = True
            return
        data, fields = reply.packed()
        self.send_response(reply.status)
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do  # noqa: N815 - as http.server wants it

    def _body(self) -> bytes:
        """As many bytes as the client says, or what comes in chunks."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers
        return body

    def log_message(self, *_: object) -> None:
        """Tests have their own output."""
