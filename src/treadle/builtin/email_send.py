"""`email.send`: sends a mail over SMTP, Microsoft Graph or Resend, once for a job however often the job runs.

email_send.register(app, Smtp("mail.example.org", user="shop", password=..., sender="shop@example.org"))
app.enqueue("email.send", {"to": "ada@example.org", "subject": "Welcome", "text": "Good to see you."})
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from treadle.app.treadle import Treadle
from treadle.builtin.arguments import add_task, check_names, errors_of
from treadle.builtin.email_graph import Graph
from treadle.builtin.email_message import Email, MailAddress
from treadle.builtin.email_resend import Resend
from treadle.builtin.email_smtp import Smtp
from treadle.builtin.email_transport import MailTransport, OutgoingMail, SentEmail
from treadle.errors import ConfigError, GiveUp
from treadle.model.memo import MemoState
from treadle.tasks.context import Context, OnAmbiguous, check_on_ambiguous
from treadle.tasks.once import memos_of
from treadle.tasks.task import Task

__all__ = ["Email", "Graph", "MailTransport", "Resend", "SentEmail", "Smtp", "register"]

NAME = "email.send"
DEFAULT = "default"
WAY = "way "  # and a number: the memo of the provider and sender that a job has begun with


class EmailSender:
    """Sends mails of an app by the transports it was given."""

    def __init__(
        self,
        app: Treadle,
        transports: MailTransport | Mapping[str, MailTransport],
        *,
        on_ambiguous: OnAmbiguous = "park",
        name: str = NAME,
    ) -> None:
        known = dict(transports) if isinstance(transports, Mapping) else {DEFAULT: transports}
        if not known:
            raise ConfigError(
                f'{name}: no transport is given; give it Smtp("mail.example.org"), Graph(...) or Resend(...)'
            )
        with errors_of(name):
            check_names("transport", known)
            check_on_ambiguous(on_ambiguous)
        for key, transport in known.items():
            if not callable(getattr(transport, "send", None)) or not hasattr(transport, "provider"):
                raise ConfigError(
                    f"{name}: transport {key!r} must be a Smtp, Graph or Resend, not {type(transport).__name__}"
                )
        self._app, self._transports, self._on_ambiguous = app, known, on_ambiguous
        self._usual = DEFAULT if DEFAULT in known else next(iter(known)) if len(known) == 1 else None

    def checked(self, email: Email) -> Email:
        """The mail, if a transport here can send it; ValueError if not."""
        transport = self._transport(email)
        self._from(email, transport)
        transport.check(email)
        return email

    def send(self, ctx: Context, email: Email) -> SentEmail:
        transport = self._transport(email)
        sender = self._same_way(ctx, transport.provider, self._from(email, transport))
        mail = OutgoingMail(email, sender, ctx.job, self._app.engine.now, self._on_ambiguous)
        return transport.send(ctx, mail)

    def _same_way(self, ctx: Context, provider: str, sender: MailAddress) -> MailAddress:
        """The sender to go on with: a mail that has been sent, or may have been, goes no other way from then on."""
        memos = memos_of(ctx).values()
        ways = {int(memo.name.removeprefix(WAY)): memo for memo in memos if memo.name.startswith(WAY)}
        latest = max((number for number, memo in ways.items() if memo.value_json), default=0)
        if latest:
            earlier, address, name = json.loads(ways[latest].value_json or "")
            if (earlier, address, name) == (provider, *sender):
                return sender
            if any(memo.state is not MemoState.UNDONE for memo in memos if not memo.name.startswith(WAY)):
                if earlier != provider:
                    raise GiveUp(
                        f"this mail was begun with {earlier} and may have been sent; {provider}, which has its place "
                        f"now, cannot know. Register {earlier} again and retry the job, or enqueue the mail anew"
                    )
                return MailAddress(address, name)
        ctx.once(f"{WAY}{latest + 1}", lambda: [provider, *sender], on_ambiguous="send")
        return sender

    def _transport(self, email: Email) -> MailTransport:
        name = self._usual if email.transport is None else email.transport
        known = ", ".join(sorted(self._transports))
        if name is None:
            raise ValueError(f"transport: is missing; give one of {known}")
        if name not in self._transports:
            raise ValueError(f"transport: {name!r} is not registered here; known: {known}")
        return self._transports[name]

    def _from(self, email: Email, transport: MailTransport) -> MailAddress:
        sender = MailAddress.of(email.sender) if email.sender else transport.sender
        if sender is None:
            raise ValueError("sender: is missing; give it here, or sender= where the transport is registered")
        return sender


def register(
    app: Treadle,
    transports: MailTransport | Mapping[str, MailTransport],
    *,
    on_ambiguous: OnAmbiguous = "park",
    name: str = NAME,
    **options: Any,
) -> Task[..., SentEmail]:
    """Register a task that sends mail; `options` are those of `app.register`, such as `retry`.

    `transports` is one, or several by name: then the payload's `transport` says which, and "default" is the usual one.
    `on_ambiguous` says what follows if nobody can find out whether a mail was sent, as in `ctx.once`.
    """
    sender = EmailSender(app, transports, on_ambiguous=on_ambiguous, name=name)

    def email_send(ctx: Context, email: Annotated[Email, AfterValidator(sender.checked)]) -> SentEmail:
        return sender.send(ctx, email)

    return add_task(app, name, email_send, register, options)
