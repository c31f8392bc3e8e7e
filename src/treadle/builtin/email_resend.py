"""Resend: one request with an idempotency key, which Resend remembers for 24 hours."""

import json
from datetime import timedelta
from typing import Any

from treadle.builtin.email_message import Email
from treadle.builtin.email_transport import (
    OutgoingMail,
    SentEmail,
    checked_secret,
    checked_timeout,
    checked_url,
    default_sender,
    failure,
    fields_of,
)
from treadle.builtin.http_calls import TIMEOUT, HttpReply, call, shortened
from treadle.errors import Ambiguous, GiveUp
from treadle.model.clock import Duration
from treadle.model.memo import MemoState
from treadle.tasks.context import Context
from treadle.tasks.once import memos_of

KEY_KEPT = timedelta(hours=23)  # Resend says 24: an hour is left for clocks that differ
LONGEST_ID = 200  # characters


class Resend:
    """Sends with Resend; `sender` is who a mail is from that names none."""

    provider = "resend"

    def __init__(
        self, api_key: str, *, sender: str = "", url: str = "https://api.resend.com", timeout: Duration = TIMEOUT
    ) -> None:
        checked_secret("Resend", api_key=api_key)
        self._api_key = api_key
        self.sender = default_sender("Resend", sender)
        self._url = checked_url("Resend", "url", url)
        self._timeout = checked_timeout("Resend", timeout)

    def __repr__(self) -> str:
        return f"Resend(sender={str(self.sender or '')!r}, url={self._url!r})"

    def check(self, email: Email) -> None:
        """Resend takes all that an Email can hold."""

    def send(self, ctx: Context, mail: OutgoingMail) -> SentEmail:
        """Repeat it with the job's key while Resend remembers the key; then `on_ambiguous` decides."""
        memo = memos_of(ctx).get("send")
        doubt = memo.began_at if memo is not None and memo.state is MemoState.BEGUN else None
        remembered = doubt is None or mail.now() < doubt + KEY_KEPT
        policy = "send" if remembered else mail.on_ambiguous
        sent: SentEmail | None = ctx.once("send", self._post, mail, on_ambiguous=policy)
        return sent or {"provider": self.provider, "message_id": None, "unconfirmed": True}

    def _post(self, mail: OutgoingMail) -> SentEmail:
        headers = {
            "Authorization": f"Bearer {self._api_key}",
            "Content-Type": "application/json",
            "Idempotency-Key": mail.job.id,
        }
        body = json.dumps(_body(mail)).encode()
        answer = call("POST", f"{self._url}/emails", body, headers, timeout=self._timeout)
        if answer.status // 100 == 2:
            id = fields_of(answer).get("id")
            if isinstance(id, str) and len(id) <= LONGEST_ID:
                return {"provider": self.provider, "message_id": id}
            raise Ambiguous(f"{self._url} answered {answer.status} without an id; is it Resend's API?")
        raise self._failure(answer, mail)

    def _failure(self, answer: HttpReply, mail: OutgoingMail) -> Exception:
        fields = fields_of(answer)
        code = str(fields.get("name", ""))
        words = shortened(f"{code} {fields.get('message', '')}".strip() or answer.text, self._api_key)
        if answer.status in (401, 403) and "api_key" in code:
            return GiveUp(f"Resend refused the API key ({answer.status} {code}): look at Resend(api_key=...)")
        if answer.status == 409 and code == "concurrent_idempotent_requests":
            return Ambiguous(f"Resend is still busy with an earlier attempt of this job: {words}")
        if answer.status == 409:
            return GiveUp(
                f"Resend has taken this job's mail before, with other content: {words}. It is not sent again. "
                "Something that the transport adds, such as the sender, has changed between two attempts"
            )
        return failure(answer, "Resend", words, mail)


def _body(mail: OutgoingMail) -> dict[str, Any]:
    email = mail.email
    lists = {name: [str(one) for one in email.recipients(name)] for name in ("to", "cc", "bcc", "reply_to")}
    optional = {**lists, "text": email.text, "html": email.html, "headers": email.headers}
    given = {name: value for name, value in optional.items() if value}
    return {"from": str(mail.sender), "subject": email.subject, **given}
