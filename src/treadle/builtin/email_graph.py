"""Microsoft Graph: a draft is made and then sent. A draft that has been sent is one no more, so one can look."""

import json
import threading
from collections import deque
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from treadle.builtin.email_message import Email, MailAddress
from treadle.builtin.email_transport import (
    OutgoingMail,
    SentEmail,
    checked_secret,
    checked_timeout,
    checked_url,
    default_sender,
    failure,
    fields_of,
    is_secret,
)
from treadle.builtin.http_calls import TIMEOUT, HttpReply, call, shortened
from treadle.errors import Ambiguous, GiveUp, NotDelivered, Parked, Unreachable
from treadle.model.clock import Duration
from treadle.model.memo import MemoState
from treadle.tasks.context import Context
from treadle.tasks.once import memos_of

MOST_HEADERS = 5
DRAFT = "draft "  # and a number: the memo of the draft's id
SPARE = timedelta(minutes=5)  # a token is replaced so long before its end
LONGEST_TOKEN = 86_400  # seconds that one is used for, whatever its answer says
TOKENS_HIDDEN = 10  # the last ones, which an error may still repeat
GONE = "the draft is gone, and the mail is not among the sent ones"
UNREADABLE = "Graph gave no answer that can be read; this is looked at again"
PERMISSIONS = "; look at the permissions of Graph(client_id=...): it needs Mail.ReadWrite and Mail.Send"
IMMUTABLE = {"Prefer": 'IdType="ImmutableId"'}  # the id of a draft stays that of the mail which was sent


class AccessToken(NamedTuple):
    """What opens the API, and until when."""

    value: str
    until: datetime


class DraftGone(NotDelivered):
    """The draft was deleted before it was sent; a new one can be made."""


class Graph:
    """Sends from mailboxes of a tenant as an application; `sender` is the mailbox of a mail that names none.

    The application needs the permissions Mail.ReadWrite and Mail.Send.
    """

    provider = "graph"

    def __init__(
        self,
        tenant: str,
        client_id: str,
        client_secret: str,
        *,
        sender: str = "",
        url: str = "https://graph.microsoft.com/v1.0",
        login: str = "https://login.microsoftonline.com",
        timeout: Duration = TIMEOUT,
    ) -> None:
        checked_secret("Graph", tenant=tenant, client_id=client_id, client_secret=client_secret)
        self._tenant, self._client_id, self._client_secret = tenant, client_id, client_secret
        self.sender = default_sender("Graph", sender)
        self._url, self._login = checked_url("Graph", "url", url), checked_url("Graph", "login", login)
        self._timeout = checked_timeout("Graph", timeout)
        self._token: AccessToken | None = None
        self._given = deque[str](maxlen=TOKENS_HIDDEN)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Graph({self._tenant!r}, {self._client_id!r}, sender={str(self.sender or '')!r}, url={self._url!r})"

    def check(self, email: Email) -> None:
        """Graph takes headers of one's own only, and few of them."""
        for name in email.headers:
            if not name.lower().startswith("x-"):
                raise ValueError(f"headers: {name!r} cannot be sent by Graph; it takes names that start with X-")
        if len(email.headers) > MOST_HEADERS:
            raise ValueError(f"headers: are {len(email.headers)}; Graph takes {MOST_HEADERS}")

    def send(self, ctx: Context, mail: OutgoingMail) -> SentEmail:
        """Make the draft, send it, and look before anything is done again."""
        memos = memos_of(ctx)
        begun = "send" in memos and memos["send"].state is MemoState.BEGUN
        draft = _Draft(self, mail, in_doubt=begun, final=ctx.job.failures + 1 >= ctx.job.max_attempts)
        number = sum(memo.name.startswith(DRAFT) for memo in memos.values()) or 1
        try:
            return self._send(ctx, draft, number)
        except DraftGone:
            return self._send(ctx, draft, number + 1)

    def _send(self, ctx: Context, draft: "_Draft", number: int) -> SentEmail:
        id = ctx.once(f"{DRAFT}{number}", draft.create, look=draft.find)
        sent: SentEmail = ctx.once("send", draft.send, id, look=lambda: draft.look(id))
        return sent

    def request(
        self, mail: OutgoingMail, method: str, path: str, body: object = None, query: dict[str, str] | None = None
    ) -> HttpReply:
        """One request with a token; once more with a new one if it is refused."""
        url = f"{self._url}{path}" + (f"?{urlencode(query, quote_via=quote)}" if query else "")
        data = b"" if body is None else json.dumps(body).encode()
        kind = {} if body is None else {"Content-Type": "application/json"}
        for again in (False, True):
            token = self._access_token(mail)
            headers = {"Authorization": f"Bearer {token}", **IMMUTABLE, **kind}
            answer = call(method, url, data, headers, timeout=self._timeout)
            if answer.status != 401 or again:
                return answer
            self._forget(token)
        raise AssertionError("not reached")

    def words(self, answer: HttpReply) -> str:
        """What Graph says is wrong."""
        error = fields_of(answer).get("error")
        problem = f"{error.get('code', '')}: {error.get('message', '')}" if isinstance(error, dict) else answer.text
        with self._lock:
            words = shortened(problem, self._client_secret, *self._given)
        return f"{words}{PERMISSIONS}" if answer.status in (401, 403) else words

    def _forget(self, token: str) -> None:
        with self._lock:
            if self._token is not None and self._token.value == token:
                self._token = None

    def _access_token(self, mail: OutgoingMail) -> str:
        with self._lock:
            if self._token is None or self._token.until <= mail.now():
                self._token = self._new_token(mail)
                self._given.append(self._token.value)
            return self._token.value

    def _new_token(self, mail: OutgoingMail) -> AccessToken:
        form = {
            "grant_type": "client_credentials",
            "client_id": self._client_id,
            "client_secret": self._client_secret,
            "scope": "https://graph.microsoft.com/.default",
        }
        url = f"{self._login}/{quote(self._tenant, safe='')}/oauth2/v2.0/token"
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        try:
            answer = call("POST", url, urlencode(form).encode(), kind, timeout=self._timeout)
        except Ambiguous as error:  # no mail is on its way yet
            raise Unreachable(f"no token from {url}: {error}") from None
        fields = fields_of(answer)
        if answer.status == 200:
            return _token(fields, url, mail.now())
        given = fields.get("error_codes")
        codes = [f"AADSTS{code}" for code in given if isinstance(code, int)] if isinstance(given, list) else []
        words = shortened(f"{fields.get('error', '')} {', '.join(codes)}".strip(), self._client_secret)
        if answer.status >= 500:
            raise NotDelivered(f"no token: {url} answered {answer.status} {words}")
        if answer.status in (400, 401, 403):
            raise GiveUp(
                f"no token: {answer.status} {words}: look at the tenant, client_id and client_secret of Graph(...)"
            )
        raise failure(answer, "the token endpoint", words, mail)


class _Draft:
    """One mail's draft: made, found again, sent."""

    def __init__(self, graph: Graph, mail: OutgoingMail, *, in_doubt: bool, final: bool) -> None:
        self._graph, self._mail, self._in_doubt, self._final = graph, mail, in_doubt, final
        self._messages = f"/users/{quote(mail.sender.address, safe='@')}/messages"
        self._done: SentEmail = {"provider": graph.provider, "message_id": mail.message_id}

    def create(self) -> str:
        answer = self._request("POST", "", _draft_of(self._mail))
        id = fields_of(answer).get("id")
        if not isinstance(id, str) or not id:
            raise Ambiguous("Graph made a draft and did not tell its id")
        return id

    def find(self) -> str | None:
        """The id of the draft that an earlier attempt has made, if there is one."""
        wanted = self._mail.message_id.replace("'", "''")
        query = {"$filter": f"internetMessageId eq '{wanted}'", "$select": "id", "$top": "1"}
        found = fields_of(self._request("GET", "", query=query)).get("value")
        if found == []:
            return None
        first = found[0] if isinstance(found, list) else None
        id = first.get("id") if isinstance(first, dict) else None
        if not isinstance(id, str) or not id:
            raise NotDelivered(UNREADABLE)
        return id

    def send(self, id: str) -> SentEmail:
        answer = self._answer("POST", f"/{quote(id, safe='')}/send")
        if answer.status // 100 == 2:
            return self._done
        if answer.status in (400, 404, 409):  # it may have been sent meanwhile, or deleted
            is_draft = self._is_draft(id)
            if is_draft is False:
                return self._done
            if is_draft is None and not self._in_doubt:
                raise DraftGone("the draft was deleted before it was sent; a new one is made")
            if is_draft is None:
                raise Ambiguous(GONE)
        raise failure(answer, "Graph", self._graph.words(answer), self._mail)

    def look(self, id: str) -> SentEmail | None:
        """What `send` returns if the draft was sent, None if it still is one."""
        is_draft = self._is_draft(id)
        if is_draft is None:
            return self._without_a_trace()
        return None if is_draft else self._done

    def _is_draft(self, id: str) -> bool | None:
        """None if it is not there."""
        answer = self._answer("GET", f"/{quote(id, safe='')}", query={"$select": "isDraft"})
        if answer.status == 404:
            return None
        if answer.status // 100 != 2:
            raise failure(answer, "Graph", self._graph.words(answer), self._mail)
        is_draft = fields_of(answer).get("isDraft")
        if not isinstance(is_draft, bool):
            raise NotDelivered(UNREADABLE)
        return is_draft

    def _without_a_trace(self) -> SentEmail:
        """The draft is gone and the mail is not there: it comes a moment after it is sent, or was deleted."""
        if not self._final:
            raise NotDelivered(f"{GONE} yet: this is looked at again")
        if self._mail.on_ambiguous == "skip":
            return {**self._done, "unconfirmed": True}
        if self._mail.on_ambiguous == "send":
            return self.send(self.create())
        raise Parked(
            f"nobody knows whether it was sent: {GONE}. Somebody may have deleted it. Ask the recipient; to send it "
            "again, enqueue it again"
        )

    def _request(self, method: str, path: str, body: object = None, query: dict[str, str] | None = None) -> HttpReply:
        answer = self._answer(method, path, body, query)
        if answer.status // 100 != 2:
            raise failure(answer, "Graph", self._graph.words(answer), self._mail)
        return answer

    def _answer(self, method: str, path: str, body: object = None, query: dict[str, str] | None = None) -> HttpReply:
        return self._graph.request(self._mail, method, self._messages + path, body, query)


def _token(fields: dict[str, Any], url: str, now: datetime) -> AccessToken:
    """The token of an answer; NotDelivered if it holds none that can be sent back."""
    token, lifetime = fields.get("access_token"), fields.get("expires_in", 0)
    if isinstance(lifetime, str) and lifetime.isascii() and lifetime.isdigit():
        lifetime = int(lifetime[:9])
    if not is_secret(token) or isinstance(lifetime, bool) or not isinstance(lifetime, int):
        raise NotDelivered(f"no token: {url} answered 200 without one that can be read; is it Microsoft's login?")
    return AccessToken(str(token), now + max(timedelta(seconds=min(lifetime, LONGEST_TOKEN)) - SPARE, timedelta()))


def _draft_of(mail: OutgoingMail) -> dict[str, Any]:
    email = mail.email
    kind, content = ("html", email.html) if email.html else ("text", email.text)
    lists = {"toRecipients": "to", "ccRecipients": "cc", "bccRecipients": "bcc", "replyTo": "reply_to"}
    people = {there: [_person(one) for one in email.recipients(here)] for there, here in lists.items()}
    headers = [{"name": name, "value": value} for name, value in email.headers.items()]
    draft: dict[str, Any] = {
        "subject": email.subject,
        "body": {"contentType": kind, "content": content},
        "internetMessageId": mail.message_id,
        **people,
    }
    if mail.sender.name:
        draft["from"] = _person(mail.sender)
    if headers:
        draft["internetMessageHeaders"] = headers
    return draft


def _person(one: MailAddress) -> dict[str, dict[str, str]]:
    return {"emailAddress": {"address": one.address, **({"name": one.name} if one.name else {})}}
