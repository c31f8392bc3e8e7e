"""Sentry: takes envelopes, and keeps them as they came."""

import gzip
import json
import re
import zlib
from typing import Any, ClassVar, NamedTuple

from treadle.testing.clock import FakeClock
from treadle.testing.fakes.http_fake import FakeReply, FakeRequest, HttpFake, Refusal


class EnvelopeItem(NamedTuple):
    """One item of an envelope: its header and its bytes."""

    header: dict[str, Any]
    body: bytes

    @property
    def type(self) -> str:
        """Such as "event", "transaction", "check_in"."""
        return str(self.header.get("type", ""))

    def json(self) -> Any:
        """The bytes as JSON, which all items but attachments and replays are."""
        return json.loads(self.body)


class SentryServer(HttpFake):
    """`raw` holds the bodies, unpacked; `items("event")` what was in them; `packed` counts the compressed ones."""

    routes: ClassVar[tuple[tuple[str, str, str], ...]] = (("POST", r"/api/([^/]+)/envelope/", "_take_envelope"),)

    def __init__(
        self, *, key: str = "public", project: str = "42", port: int = 0, clock: FakeClock | None = None
    ) -> None:
        super().__init__(port=port, clock=clock)
        self.key, self.project = key, project
        self.packed = 0
        self._raw: list[bytes] = []

    @property
    def dsn(self) -> str:
        """For `sentry_sdk.init`."""
        return self.url.replace("://", f"://{self.key}@") + f"/{self.project}"

    @property
    def raw(self) -> list[bytes]:
        """Each envelope that was taken, unpacked: look here for what must never leave the house."""
        with self._changed:
            return list(self._raw)

    def items(self, type: str) -> list[dict[str, Any]]:
        """The items of this type, in the order in which they came."""
        return [item.json() for body in self.raw for item in parsed(body)[1] if item.type == type]

    @property
    def events(self) -> list[dict[str, Any]]:
        """The errors and messages."""
        return self.items("event")

    def error(self, status: int, code: str, message: str) -> dict[str, Any]:
        return {"detail": message or code or f"status {status}"}

    def _take_envelope(self, request: FakeRequest, project: str) -> FakeReply:
        auth = dict(re.findall(r"(sentry_\w+)=([^,\s]+)", request.headers.get("X-Sentry-Auth", "")))
        if (auth.get("sentry_key") or request.query.get("sentry_key")) != self.key or project != self.project:
            raise Refusal(403, "", "event submission rejected with_reason: ProjectId or key unknown")
        body = unpacked(request)
        try:
            header, _ = parsed(body)
        except (ValueError, TypeError) as error:
            raise Refusal(400, "", f"invalid envelope: {error}") from None
        if not isinstance(header, dict):
            raise Refusal(400, "", "invalid envelope: the first line is not an object")
        self.packed += "Content-Encoding" in request.headers
        self._raw.append(body)
        return FakeReply(200, {"id": header["event_id"]} if "event_id" in header else {})

    def _forget(self) -> None:
        super()._forget()
        self._raw.clear()
        self.packed = 0


def unpacked(request: FakeRequest) -> bytes:
    """The body without its compression."""
    encoding = request.headers.get("Content-Encoding")
    try:
        match encoding:
            case None:
                return request.body
            case "gzip":
                return gzip.decompress(request.body)
            case "deflate":
                return zlib.decompress(request.body)
            case _:
                raise Refusal(400, "", f"content encoding {encoding!r} is not known; send gzip or deflate")
    except (OSError, EOFError, zlib.error) as error:
        raise Refusal(400, "", f"the body cannot be unpacked: {error}") from None


def parsed(body: bytes) -> tuple[dict[str, Any], list[EnvelopeItem]]:
    """An envelope: a line of JSON, and for each item one more and its bytes: `length` of them, or a line."""
    first, _, rest = body.partition(b"\n")
    header, items = json.loads(first), []
    while rest:
        line, _, rest = rest.partition(b"\n")
        if not line:
            continue
        about = json.loads(line)
        length = about["length"] if "length" in about else len(rest.partition(b"\n")[0])
        if length > len(rest):
            raise ValueError(f"an item of {length} bytes, and {len(rest)} are left")
        items.append(EnvelopeItem(about, rest[:length]))
        rest = rest[length:].removeprefix(b"\n")
    return header, items


def sentry(*, key: str = "public", project: str = "42", port: int = 0, clock: FakeClock | None = None) -> SentryServer:
    """A Sentry: give `dsn` to the SDK; see `events`, `items` and `raw`."""
    return SentryServer(key=key, project=project, port=port, clock=clock)
