"""Resend: mail over HTTP, sent once per Idempotency-Key."""

import re
import uuid
from datetime import datetime, timedelta
from typing import Any, ClassVar, NamedTuple

from treadle.testing.clock import FakeClock
from treadle.testing.fakes.http_fake import FakeReply, FakeRequest, HttpFake, Refusal

KEPT = timedelta(hours=24)
LONGEST_KEY = 256
MOST_RECIPIENTS = 50
MOST_IN_A_BATCH = 100
ADDRESS = re.compile(r"[^@\s<>]+@[^@\s<>]+|[^<>]*<[^@\s<>]+@[^@\s<>]+>")
FORMAT = "The email address needs to follow the `email@example.com` or `Name <email@example.com>` format."

USUAL = {
    400: ("validation_error", "We found an error with one or more fields in the request."),
    401: ("missing_api_key", "Missing API key in the authorization header."),
    403: ("invalid_api_key", "API key is invalid."),
    404: ("not_found", "The requested endpoint does not exist."),
    405: ("method_not_allowed", "This endpoint does not support the specified HTTP method."),
    409: ("invalid_idempotent_request", "Same idempotency key used with a different request payload."),
    422: ("validation_error", "We found an error with one or more fields in the request."),
    429: ("rate_limit_exceeded", "Too many requests. Please limit the number of requests per second."),
    451: ("security_error", "We may have found a security issue with the request."),
}


class KeptAnswer(NamedTuple):
    """What was answered to the first request with a key."""

    path: str
    asked: Any
    answer: dict[str, Any]
    until: datetime


class ResendServer(HttpFake):
    """POST /emails, POST /emails/batch and GET /emails/{id}; `sent` holds the mails in the order of their sending."""

    routes: ClassVar[tuple[tuple[str, str, str], ...]] = (
        ("POST", "/emails", "_send"),
        ("POST", "/emails/batch", "_send_batch"),
        ("GET", r"/emails/([^/]+)", "_get"),
    )

    def __init__(self, *, api_key: str = "re_fake", port: int = 0, clock: FakeClock | None = None) -> None:
        super().__init__(port=port, clock=clock)
        self.api_key = api_key
        self._sent: list[dict[str, Any]] = []
        self._answers: dict[str, KeptAnswer] = {}

    @property
    def sent(self) -> list[dict[str, Any]]:
        """Each mail as it was asked for, with its `id`, and `idempotency_key` if it came with one."""
        with self._changed:
            return list(self._sent)

    def error(self, status: int, code: str, message: str) -> dict[str, Any]:
        usual = USUAL.get(status, ("application_error", "An unexpected error occurred."))
        return {"statusCode": status, "name": code or usual[0], "message": message or usual[1]}

    def check(self, request: FakeRequest) -> None:
        if not request.bearer():
            raise Refusal(401, "", "")
        if request.bearer() != self.api_key:
            raise Refusal(403, "", "")

    def _send(self, request: FakeRequest) -> FakeReply:
        asked = request.json()
        return self._once(request, asked, lambda: {"id": self._deliver(request, _valid(asked))})

    def _send_batch(self, request: FakeRequest) -> FakeReply:
        asked = request.json()
        if not isinstance(asked, list) or not 1 <= len(asked) <= MOST_IN_A_BATCH:
            raise Refusal(422, "", f"The batch must hold 1 to {MOST_IN_A_BATCH} emails.")
        mails = [_valid(mail) for mail in asked]
        return self._once(request, asked, lambda: {"data": [{"id": self._deliver(request, mail)} for mail in mails]})

    def _get(self, _: FakeRequest, id: str) -> FakeReply:
        mail = next((mail for mail in self._sent if mail["id"] == id), None)
        if mail is None:
            raise Refusal(404, "", "Email not found")
        shown = {"object": "email", "last_event": "sent", "html": None, "text": None, "cc": [], "bcc": [], **mail}
        shown.pop("idempotency_key", None)
        return FakeReply(200, {**shown, "to": _list(mail["to"])})

    def _once(self, request: FakeRequest, asked: Any, act: Any) -> FakeReply:
        """Do it, unless a request with this key did it in the last 24 hours."""
        key = request.headers.get("Idempotency-Key")
        if key is None:
            return FakeReply(200, act())
        if not 1 <= len(key) <= LONGEST_KEY:
            raise Refusal(400, "invalid_idempotency_key", "The key must be between 1-256 chars.")
        kept = self._answers.get(key)
        if kept is None or kept.until <= self.clock.now():
            kept = self._answers[key] = KeptAnswer(request.path, asked, act(), self.clock.now() + KEPT)
        if (kept.path, kept.asked) != (request.path, asked):
            raise Refusal(409, "", "")
        return FakeReply(200, kept.answer)

    def _deliver(self, request: FakeRequest, mail: dict[str, Any]) -> str:
        key = request.headers.get("Idempotency-Key")
        stamped = {**mail, "id": str(uuid.uuid4()), "created_at": self.clock.now().isoformat()}
        self._sent.append(stamped if key is None else {**stamped, "idempotency_key": key})
        return str(stamped["id"])

    def _forget(self) -> None:
        super()._forget()
        self._sent.clear()
        self._answers.clear()


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _valid(mail: Any) -> dict[str, Any]:
    if not isinstance(mail, dict):
        raise Refusal(422, "", "The request body must be an object.")
    for name in ("from", "to", "subject"):
        if not mail.get(name):
            raise Refusal(422, "missing_required_field", f"Missing `{name}` field.")
    if not any(mail.get(name) for name in ("html", "text", "template")):
        raise Refusal(422, "missing_required_field", "Missing `html` or `text` field.")
    for name in ("from", "to", "cc", "bcc", "reply_to"):
        for address in _list(mail.get(name) or []):
            if not isinstance(address, str) or not ADDRESS.fullmatch(address.strip()):
                code = "invalid_from_address" if name == "from" else "validation_error"
                raise Refusal(422, code, f"Invalid `{name}` field. {FORMAT}")
    if len(_list(mail["to"])) > MOST_RECIPIENTS:
        raise Refusal(422, "", f"The `to` field must have at most {MOST_RECIPIENTS} addresses.")
    return mail


def resend(*, api_key: str = "re_fake", port: int = 0, clock: FakeClock | None = None) -> ResendServer:
    """A Resend: point your client's base URL at `url`; see `sent`. Keys are kept for 24 hours of `clock`."""
    return ResendServer(api_key=api_key, port=port, clock=clock)
