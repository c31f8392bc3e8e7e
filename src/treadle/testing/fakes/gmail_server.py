"""Gmail, to be read: tokens, profile, messages, threads, labels and history."""

import secrets
import ssl
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from treadle.testing.clock import FakeClock
from treadle.testing.fakes.gmail_mailbox import GmailMailbox, MailboxEvent
from treadle.testing.fakes.gmail_message import StoredMessage, encoded
from treadle.testing.fakes.gmail_query import search
from treadle.testing.fakes.http_fake import FakeReply, FakeRequest, HttpFake, Refusal

TOKEN_LIFETIME = 3599  # seconds
LARGEST_PAGE = 500
USERS = r"/gmail/v1/users/([^/]+)"
FORMATS = ("minimal", "full", "raw", "metadata")
KINDS = {
    "messageAdded": "messagesAdded",
    "messageDeleted": "messagesDeleted",
    "labelAdded": "labelsAdded",
    "labelRemoved": "labelsRemoved",
}
USUAL = {
    400: ("badRequest", "INVALID_ARGUMENT", "Bad Request"),
    401: ("authError", "UNAUTHENTICATED", "Request had invalid authentication credentials."),
    403: ("forbidden", "PERMISSION_DENIED", "Delegation denied."),
    404: ("notFound", "NOT_FOUND", "Requested entity was not found."),
    429: ("rateLimitExceeded", "RESOURCE_EXHAUSTED", "Too many concurrent requests for user."),
    500: ("backendError", "INTERNAL", "Internal error encountered."),
    503: ("backendError", "UNAVAILABLE", "The service is currently unavailable."),
}


class GmailServer(HttpFake):
    """Gmail's API below `url`, tokens at `token_uri`. `mailbox` is the one there is; `add_mailbox` gives others."""

    routes: ClassVar[tuple[tuple[str, str, str], ...]] = (
        ("POST", "/token", "_token"),
        ("GET", f"{USERS}/profile", "_profile"),
        ("GET", f"{USERS}/messages", "_messages"),
        ("GET", f"{USERS}/messages/([^/]+)", "_message"),
        ("GET", f"{USERS}/messages/([^/]+)/attachments/([^/]+)", "_attachment"),
        ("GET", f"{USERS}/threads/([^/]+)", "_thread"),
        ("GET", f"{USERS}/labels", "_labels"),
        ("GET", f"{USERS}/labels/([^/]+)", "_label"),
        ("GET", f"{USERS}/history", "_history"),
    )
    spared = ("* /token",)

    def __init__(self, *, address: str, client_id: str, client_secret: str, **options: Any) -> None:
        super().__init__(**options)
        self.client_id, self.client_secret = client_id, client_secret
        self._mailboxes: dict[str, GmailMailbox] = {}
        self._tokens: dict[str, tuple[GmailMailbox, datetime]] = {}
        self.mailbox = self.add_mailbox(address)

    @property
    def token_uri(self) -> str:
        """Where a refresh token becomes an access token."""
        return f"{self.url}/token"

    def add_mailbox(self, address: str) -> GmailMailbox:
        """One more mailbox, with a `refresh_token` of its own."""
        with self._changed:
            mailbox = self._mailboxes[address.lower()] = GmailMailbox(address, self.clock, self._changed)
            return mailbox

    def add_message(self, subject: str = "", text: str = "", **more: Any) -> str:
        """A mail that came into `mailbox`; its id. See `GmailMailbox.add_message`."""
        return self.mailbox.add_message(subject, text, **more)

    def access_token(self, mailbox: GmailMailbox | None = None) -> str:
        """A token for an hour of the clock, without asking the token endpoint."""
        with self._changed:
            token = f"ya29.fake-{secrets.token_urlsafe(24)}"
            self._tokens[token] = mailbox or self.mailbox, self.clock.now() + timedelta(seconds=TOKEN_LIFETIME)
            return token

    def revoke(self, mailbox: GmailMailbox | None = None) -> None:
        """The user takes the permission back: neither the refresh token nor tokens given out are good any more."""
        with self._changed:
            (mailbox or self.mailbox).revoked = True

    def error(self, status: int, code: str, message: str) -> dict[str, Any]:
        reason, name, words = USUAL.get(status, ("backendError", "UNKNOWN", "Unknown error."))
        one = {"message": message or words, "domain": "global", "reason": code or reason}
        return {"error": {"code": status, "message": message or words, "errors": [one], "status": name}}

    def _token(self, request: FakeRequest) -> FakeReply:
        form = request.form()
        if (form.get("client_id"), form.get("client_secret")) != (self.client_id, self.client_secret):
            return FakeReply(401, {"error": "invalid_client", "error_description": "The OAuth client was not found."})
        if form.get("grant_type") != "refresh_token":
            return FakeReply(400, {"error": "unsupported_grant_type", "error_description": "Invalid grant_type."})
        given = form.get("refresh_token")
        mailbox = next(
            (one for one in self._mailboxes.values() if one.refresh_token == given and not one.revoked), None
        )
        if mailbox is None:
            revoked = "Token has been expired or revoked."
            return FakeReply(400, {"error": "invalid_grant", "error_description": revoked})
        about = {"scope": "https://www.googleapis.com/auth/gmail.modify", "token_type": "Bearer"}
        return FakeReply(200, {"access_token": self.access_token(mailbox), "expires_in": TOKEN_LIFETIME, **about})

    def _profile(self, request: FakeRequest, user: str) -> FakeReply:
        mailbox = self._of(request, user)
        threads = {message.thread_id for message in mailbox.messages.values()}
        numbers = {"messagesTotal": len(mailbox.messages), "threadsTotal": len(threads)}
        return FakeReply(200, {"emailAddress": mailbox.address, **numbers, "historyId": str(mailbox.history_id)})

    def _messages(self, request: FakeRequest, user: str) -> FakeReply:
        mailbox, wanted = self._of(request, user), set(request.values("labelIds"))
        query = request.query.get("q", "")
        found = search(query, self.clock.now())
        hidden = {"SPAM", "TRASH"} - wanted - {word[3:].upper() for word in query.split() if word.startswith("in:")}
        if request.query.get("includeSpamTrash") == "true":
            hidden = set()
        there = [one for one in mailbox.messages.values() if wanted <= one.labels and not hidden & one.labels]
        there = sorted((one for one in there if found(one)), key=lambda one: one.sorted_by, reverse=True)
        if token := request.query.get("pageToken"):
            there = [one for one in there if one.sorted_by < _place(token)]
        size = _size(request)
        more = {"nextPageToken": _token_after(there[size - 1])} if len(there) > size else {}
        shown = {"messages": [one.named() for one in there[:size]]} if there else {}
        return FakeReply(200, {**shown, **more, "resultSizeEstimate": len(there)})

    def _message(self, request: FakeRequest, user: str, id: str) -> FakeReply:
        message = self._one(self._of(request, user), id)
        return FakeReply(200, message.shown(_format(request), request.values("metadataHeaders")))

    def _attachment(self, request: FakeRequest, user: str, id: str, attachment: str) -> FakeReply:
        message = self._one(self._of(request, user), id)
        message.shown("full")  # which gives the attachments their ids
        if attachment not in message.attachments:
            raise Refusal(404, "", "")
        data = message.attachments[attachment]
        return FakeReply(200, {"size": len(data), "data": encoded(data)})

    def _thread(self, request: FakeRequest, user: str, id: str) -> FakeReply:
        messages = self._of(request, user).thread(id)
        if not messages:
            raise Refusal(404, "", "")
        shown = [one.shown(_format(request), request.values("metadataHeaders")) for one in messages]
        newest = max(one.history_id for one in messages)
        return FakeReply(200, {"id": id, "historyId": str(newest), "messages": shown})

    def _labels(self, request: FakeRequest, user: str) -> FakeReply:
        return FakeReply(200, {"labels": list(self._of(request, user).labels.values())})

    def _label(self, request: FakeRequest, user: str, id: str) -> FakeReply:
        mailbox = self._of(request, user)
        if id not in mailbox.labels:
            raise Refusal(404, "", "")
        there = [one for one in mailbox.messages.values() if id in one.labels]
        return FakeReply(200, {**mailbox.labels[id], **_counted("Total", there), **_counted("Unread", _unread(there))})

    def _history(self, request: FakeRequest, user: str) -> FakeReply:
        mailbox, start = self._of(request, user), request.query.get("pageToken") or request.query.get("startHistoryId")
        if not start or not start.isdigit():
            raise Refusal(400, "", "Invalid value for startHistoryId.")
        events = mailbox.events_since(int(start))
        if events is None:
            raise Refusal(404, "", "")
        kinds = {KINDS.get(kind, kind) for kind in request.values("historyTypes")} or set(KINDS.values())
        label = request.query.get("labelId")
        events = [one for one in events if one.kind in kinds and label in (None, *one.labels, *one.message["labelIds"])]
        size = _size(request)
        more = {"nextPageToken": str(events[size - 1].id)} if len(events) > size else {}
        shown = {"history": [_line(one) for one in events[:size]]} if events else {}
        return FakeReply(200, {**shown, **more, "historyId": str(mailbox.history_id)})

    def _of(self, request: FakeRequest, user: str) -> GmailMailbox:
        """The mailbox of the token; nobody sees another's."""
        mailbox, until = self._tokens.get(request.bearer(), (None, self.clock.now()))
        if mailbox is None or mailbox.revoked or until <= self.clock.now():
            raise Refusal(401, "", "")
        if user not in ("me", mailbox.address):
            raise Refusal(403, "", f"Delegation denied for {mailbox.address}")
        return mailbox

    def _one(self, mailbox: GmailMailbox, id: str) -> StoredMessage:
        if id not in mailbox.messages:
            raise Refusal(404, "", "")
        return mailbox.messages[id]


def _format(request: FakeRequest) -> str:
    format = request.query.get("format", "full").lower()
    if format not in FORMATS:
        raise Refusal(400, "invalidArgument", f"Invalid value at 'format': {format}")
    return format


def _size(request: FakeRequest) -> int:
    given = request.query.get("maxResults", "100")
    return min(int(given), LARGEST_PAGE) if given.isdigit() and int(given) else 100


def _token_after(message: StoredMessage) -> str:
    """The next page begins after this message, whatever comes or goes in the meantime."""
    return f"{int(message.at.timestamp() * 1_000_000)}{message.order:09}"


def _place(token: str) -> tuple[datetime, int]:
    if not token.isdigit() or len(token) <= 9:
        raise Refusal(400, "invalidArgument", "Invalid pageToken")
    return datetime.fromtimestamp(int(token[:-9]) / 1_000_000, UTC), int(token[-9:])


def _unread(messages: Iterable[StoredMessage]) -> list[StoredMessage]:
    return [message for message in messages if "UNREAD" in message.labels]


def _counted(word: str, messages: list[StoredMessage]) -> dict[str, int]:
    return {f"messages{word}": len(messages), f"threads{word}": len({one.thread_id for one in messages})}


def _line(event: MailboxEvent) -> dict[str, Any]:
    what = {"message": event.message, **({"labelIds": list(event.labels)} if event.labels else {})}
    named = {name: event.message[name] for name in ("id", "threadId")}
    return {"id": str(event.id), "messages": [named], event.kind: [what]}


def gmail(
    *,
    address: str = "user@example.org",
    client_id: str = "fake-client",
    client_secret: str = "fake-secret",  # noqa: S107 - it opens nothing
    port: int = 0,
    clock: FakeClock | None = None,
    tls: ssl.SSLContext | None = None,
) -> GmailServer:
    """A Gmail that can be read; `add_message` brings a mail, `mailbox` is what its owner can do by hand."""
    known = {"address": address, "client_id": client_id, "client_secret": client_secret}
    return GmailServer(**known, port=port, clock=clock, tls=tls)
