"""Microsoft Graph: mail of an application, drafted and then sent."""

import re
import secrets
import ssl
import uuid
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, ClassVar

from treadle.testing.clock import FakeClock
from treadle.testing.fakes.graph_filter import matcher
from treadle.testing.fakes.http_fake import FakeReply, FakeRequest, HttpFake, Refusal

TOKEN_LIFETIME = 3599  # seconds
ALWAYS_CHANGEABLE = {"isRead", "categories", "flag", "importance", "inferenceClassification"}
SHOWN_ON_REQUEST = {"singleValueExtendedProperties": "$expand", "internetMessageHeaders": "$select"}
FIXED = ("id", "_immutable", "_user", "isDraft", "parentFolderId")
LISTS = ("toRecipients", "ccRecipients", "bccRecipients", "replyTo", "categories")
TIMES = ("createdDateTime", "lastModifiedDateTime", "receivedDateTime", "sentDateTime")
NO_RECIPIENTS = "At least one recipient is not valid., A message can't be sent because it contains no recipients."

USUAL = {
    400: ("ErrorInvalidRequest", "The request is invalid."),
    401: ("InvalidAuthenticationToken", "Access token is empty."),
    403: ("ErrorAccessDenied", "Access is denied. Check credentials and try again."),
    404: ("ErrorItemNotFound", "The specified object was not found in the store."),
    405: ("Request_BadRequest", "Specified HTTP method is not allowed for the request target."),
    429: ("TooManyRequests", "Please retry again later."),
    503: ("serviceNotAvailable", "The service is temporarily unavailable."),
    504: ("gatewayTimeout", "The service did not answer in time."),
}


class GraphServer(HttpFake):
    """Mailboxes below `url` + "/v1.0", tokens at `url`/{tenant}/oauth2/v2.0/token. `sent` holds what left them."""

    routes: ClassVar[tuple[tuple[str, str, str], ...]] = (
        ("POST", r"/([^/]+)/oauth2/v2\.0/token", "_token"),
        ("GET", r"/([^/]+)/v2\.0/\.well-known/openid-configuration", "_openid"),
        ("POST", r"/v1\.0/users/([^/]+)/sendMail", "_send_mail"),
        ("POST", r"/v1\.0/users/([^/]+)/messages", "_draft"),
        ("GET", r"/v1\.0/users/([^/]+)/messages", "_list"),
        ("GET", r"/v1\.0/users/([^/]+)/mailFolders/([^/]+)/messages", "_list"),
        ("POST", r"/v1\.0/users/([^/]+)/messages/([^/]+)/send", "_send"),
        ("GET", r"/v1\.0/users/([^/]+)/messages/([^/]+)", "_get"),
        ("PATCH", r"/v1\.0/users/([^/]+)/messages/([^/]+)", "_change"),
        ("DELETE", r"/v1\.0/users/([^/]+)/messages/([^/]+)", "_delete"),
    )
    spared = ("* /*/oauth2/*", "* /*/.well-known/*")

    def __init__(
        self,
        *,
        tenant: str = "fake-tenant",
        client_id: str = "fake-client",
        client_secret: str = "fake-secret",  # noqa: S107 - it opens nothing
        mailboxes: Iterable[str] = (),
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.tenant, self.client_id, self.client_secret = tenant, client_id, client_secret
        self.mailboxes = {mailbox.lower() for mailbox in mailboxes}
        self.sent_copy_after = 0.0  # seconds of the clock until a sent message is found in SentItems
        self._tokens: dict[str, datetime] = {}
        self._messages: list[dict[str, Any]] = []
        self._sent: list[dict[str, Any]] = []

    @property
    def sent(self) -> list[dict[str, Any]]:
        """What left, in its order: messages as Graph shows them, with the mailbox as `_user`."""
        with self._changed:
            return [dict(message) for message in self._sent]

    @property
    def drafts(self) -> list[dict[str, Any]]:
        """What was created and not sent."""
        with self._changed:
            return [dict(message) for message in self._messages if message["isDraft"]]

    def expire_tokens(self) -> None:
        """Answer 401 to every token given out so far."""
        with self._changed:
            self._tokens.clear()

    def error(self, status: int, code: str, message: str) -> dict[str, Any]:
        usual = USUAL.get(status, ("generalException", "An error occurred."))
        about = {"date": _stamp(self.clock.now())[:-1], "request-id": str(uuid.uuid4())}
        return {"error": {"code": code or usual[0], "message": message or usual[1], "innerError": about}}

    def check(self, request: FakeRequest) -> None:
        if not request.path.startswith("/v1.0/"):
            return
        until = self._tokens.get(request.bearer())
        if until is None:
            raise Refusal(401, "", "IDX14100: JWT is not well formed." if request.bearer() else "")
        if until <= self.clock.now():
            raise Refusal(401, "", "Lifetime validation failed, the token is expired.")

    def _token(self, request: FakeRequest, tenant: str) -> FakeReply:
        form = request.form()
        if tenant != self.tenant:
            return _token_error(400, "invalid_request", 90002, f"Tenant '{tenant}' not found.")
        if form.get("grant_type") != "client_credentials":
            return _token_error(400, "unsupported_grant_type", 70003, "The app requested an unsupported grant type.")
        if form.get("client_id") != self.client_id:
            return _token_error(400, "unauthorized_client", 700016, "Application was not found in the directory.")
        if form.get("client_secret") != self.client_secret:
            return _token_error(401, "invalid_client", 7000215, "Invalid client secret provided.")
        if not form.get("scope", "").endswith("/.default"):
            return _token_error(400, "invalid_scope", 1002012, "The scope must end with /.default.")
        token = "fake." + secrets.token_urlsafe(24)
        self._tokens[token] = self.clock.now() + timedelta(seconds=TOKEN_LIFETIME)
        lifetime = {"expires_in": TOKEN_LIFETIME, "ext_expires_in": TOKEN_LIFETIME}
        return FakeReply(200, {"token_type": "Bearer", **lifetime, "access_token": token})

    def _openid(self, _: FakeRequest, tenant: str) -> FakeReply:
        base = f"{self.url}/{tenant}"
        endpoints = {"token_endpoint": f"{base}/oauth2/v2.0/token", "issuer": f"{base}/v2.0"}
        return FakeReply(200, {**endpoints, "authorization_endpoint": f"{base}/oauth2/v2.0/authorize"})

    def _draft(self, request: FakeRequest, user: str) -> FakeReply:
        message = self._made(user, request.json())
        self._messages.append(message)
        return FakeReply(201, self._shown(message, request))

    def _send_mail(self, request: FakeRequest, user: str) -> FakeReply:
        given = request.json()
        # The parameters of an action are found in any case: the SDK writes "Message".
        asked = {name[:1].lower() + name[1:]: value for name, value in given.items()} if isinstance(given, dict) else {}
        if not isinstance(asked.get("message"), dict):
            raise Refusal(400, "ErrorInvalidParameter", "Required parameter is missing: Message.")
        message = self._made(user, asked["message"])
        self._leave(message)
        if asked.get("saveToSentItems", True):
            self._messages.append(message)
        return FakeReply(202)

    def _send(self, _: FakeRequest, user: str, id: str) -> FakeReply:
        message = self._found(user, id)
        if not message["isDraft"]:
            raise Refusal(400, "", "The message is not a draft; it was sent already.")
        self._leave(message)
        return FakeReply(202)

    def _get(self, request: FakeRequest, user: str, id: str) -> FakeReply:
        return FakeReply(200, self._shown(self._found(user, id), request))

    def _change(self, request: FakeRequest, user: str, id: str) -> FakeReply:
        message, asked = self._found(user, id), request.json()
        _check(asked)
        if not message["isDraft"] and set(asked) - ALWAYS_CHANGEABLE:
            raise Refusal(400, "ErrorInvalidPropertyUpdateSentMessage", "The property of a sent message is read-only.")
        fixed = {name: message[name] for name in FIXED}
        message.update({**asked, **fixed}, lastModifiedDateTime=_stamp(self.clock.now()))
        return FakeReply(200, self._shown(message, request))

    def _delete(self, _: FakeRequest, user: str, id: str) -> FakeReply:
        self._messages.remove(self._found(user, id))
        return FakeReply(204)

    def _list(self, request: FakeRequest, user: str, folder: str = "") -> FakeReply:
        fits = matcher(request.query.get("$filter", ""))
        found = [message for message in self._there(user) if fits(message) and _in_folder(message, folder)]
        top, skip = (int(request.query.get(name, default)) for name, default in (("$top", "10"), ("$skip", "0")))
        answer: dict[str, Any] = {"@odata.context": f"{self.url}/v1.0/$metadata#users('{user}')/messages"}
        answer["value"] = [self._shown(message, request) for message in found[::-1][skip : skip + top]]
        if skip + top < len(found):
            others = "".join(f"{name}={value}&" for name, value in request.query.items() if name != "$skip")
            answer["@odata.nextLink"] = f"{self.url}{request.path}?{others}$skip={skip + top}".replace(" ", "%20")
        return FakeReply(200, answer)

    def _made(self, user: str, asked: Any) -> dict[str, Any]:
        self._there(user)
        _check(asked)
        now = _stamp(self.clock.now())
        lists: dict[str, Any] = {
            name: [] for name in ("toRecipients", "ccRecipients", "bccRecipients", "replyTo", "categories")
        }
        times = dict.fromkeys(("createdDateTime", "lastModifiedDateTime", "receivedDateTime", "sentDateTime"), now)
        made = {"id": _id("AAMk"), "_immutable": _id("AAkA"), "_user": user, "isDraft": True, "isRead": True}
        own = {"internetMessageId": f"<{uuid.uuid4().hex}@fake.prod.outlook.com>", "parentFolderId": "drafts"}
        body = {"subject": "", "body": {"contentType": "text", "content": ""}, "importance": "normal"}
        attached = {"hasAttachments": bool(asked.get("attachments")), "conversationId": _id("AAQk")}
        return {**lists, **times, **own, **body, **attached, **asked, **made}

    def _leave(self, message: dict[str, Any]) -> None:
        people = [*message["toRecipients"], *message["ccRecipients"], *message["bccRecipients"]]
        if not people or not all("@" in (one.get("emailAddress") or {}).get("address", "") for one in people):
            raise Refusal(400, "ErrorInvalidRecipients", NO_RECIPIENTS)
        now = self.clock.now()
        message.update(isDraft=False, parentFolderId="sentitems", id=_id("AAMk"), sentDateTime=_stamp(now))
        message["_there_from"] = now + timedelta(seconds=self.sent_copy_after)
        self._sent.append(message)

    def _there(self, user: str) -> list[dict[str, Any]]:
        """What can be found in this mailbox now."""
        if self.mailboxes and user.lower() not in self.mailboxes:
            raise Refusal(404, "ErrorInvalidUser", f"The requested user '{user}' is invalid.")
        now = self.clock.now()
        mine: Callable[[dict[str, Any]], bool] = lambda message: message["_user"].lower() == user.lower()  # noqa: E731
        return [message for message in self._messages if mine(message) and message.get("_there_from", now) <= now]

    def _found(self, user: str, id: str) -> dict[str, Any]:
        for message in self._there(user):
            if id in (message["id"], message["_immutable"]):
                return message
        raise Refusal(404, "", "")

    def _shown(self, message: dict[str, Any], request: FakeRequest) -> dict[str, Any]:
        shown = {name: value for name, value in message.items() if not name.startswith("_")}
        for name, option in SHOWN_ON_REQUEST.items():
            if name not in request.query.get(option, ""):
                shown.pop(name, None)
        if "immutableid" in request.headers.get("Prefer", "").lower():
            shown["id"] = message["_immutable"]
        wanted = {name for name in request.query.get("$select", "").split(",") if name}
        expanded = set(re.findall(r"^\w+", request.query.get("$expand", "")))
        return {name: value for name, value in shown.items() if not wanted or name in wanted | expanded | {"id"}}

    def _forget(self) -> None:
        super()._forget()
        self._messages.clear()
        self._sent.clear()


def _check(asked: Any) -> None:
    """Refuse what no message has."""
    if not isinstance(asked, dict):
        raise Refusal(400, "", "The body must be a message; MIME is not known to this stand-in.")
    for name in {*LISTS, "singleValueExtendedProperties"} & set(asked):
        kind = str if name == "categories" else dict
        if not isinstance(asked[name], list) or not all(isinstance(one, kind) for one in asked[name]):
            raise Refusal(400, "RequestBodyRead", f"{name}: cannot be read; send a list of {kind.__name__}")


def _in_folder(message: dict[str, Any], folder: str) -> bool:
    return not folder or message["parentFolderId"].lower() == folder.lower()


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _id(start: str) -> str:
    return f"{start}{secrets.token_urlsafe(24)}AAA="


def _token_error(status: int, error: str, code: int, text: str) -> FakeReply:
    about = {"error_description": f"AADSTS{code}: {text}", "error_codes": [code]}
    return FakeReply(status, {"error": error, **about, "trace_id": str(uuid.uuid4())})


def graph(
    *,
    tenant: str = "fake-tenant",
    client_id: str = "fake-client",
    client_secret: str = "fake-secret",  # noqa: S107 - it opens nothing
    mailboxes: Iterable[str] = (),
    port: int = 0,
    clock: FakeClock | None = None,
    tls: ssl.SSLContext | None = None,
) -> GraphServer:
    """Microsoft Graph's mail, and its token endpoint; see `sent` and `drafts`. With `mailboxes` there are no others."""
    known = {"tenant": tenant, "client_id": client_id, "client_secret": client_secret}
    return GraphServer(**known, mailboxes=mailboxes, port=port, clock=clock, tls=tls)
