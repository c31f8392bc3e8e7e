"""A Gmail mailbox: messages, labels, and the history of what was done to them. It speaks no HTTP."""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any

from treadle.testing.clock import FakeClock
from treadle.testing.fakes.gmail_message import StoredMessage

HISTORY_KEPT = timedelta(days=7)
SYSTEM_LABELS = (
    "INBOX", "SENT", "DRAFT", "SPAM", "TRASH", "UNREAD", "STARRED", "IMPORTANT", "CHAT", "CATEGORY_PERSONAL",
    "CATEGORY_SOCIAL", "CATEGORY_PROMOTIONS", "CATEGORY_UPDATES", "CATEGORY_FORUMS",
)  # fmt: skip


@dataclass(frozen=True)
class MailboxEvent:
    """One thing that was done: messagesAdded, messagesDeleted, labelsAdded or labelsRemoved."""

    id: int
    kind: str
    at: datetime
    message: dict[str, Any]
    labels: tuple[str, ...] = ()


class GmailMailbox:
    """What the owner of the mailbox could do by hand, as methods; each leaves its line in the history."""

    def __init__(self, address: str, clock: FakeClock, lock: threading.Condition) -> None:
        self.address, self.clock = address, clock
        self.refresh_token = f"1//fake-{address}"
        self.revoked = False
        self.history_id = 1000
        self.messages: dict[str, StoredMessage] = {}
        self.labels = {name: {"id": name, "name": name, "type": "system"} for name in SYSTEM_LABELS}
        self._events: list[MailboxEvent] = []
        self._forgotten = 0  # history ids before this one are out of date
        self._lock = lock
        self._count = 0

    def add_message(
        self,
        subject: str = "",
        text: str = "",
        *,
        from_: str = "ada@example.org",
        to: str = "",
        html: str = "",
        labels: Iterable[str] = ("INBOX", "UNREAD"),
        headers: Mapping[str, str] | None = None,
        thread_id: str = "",
        at: datetime | None = None,
        raw: bytes = b"",
    ) -> str:
        """A mail that came in; its id. `raw` is the whole mail, in place of subject, text and headers."""
        with self._lock:
            at = at or self.clock.now()
            id = f"19{int(at.timestamp()):010x}{self._count:04x}"
            if not raw:
                mail = EmailMessage()
                mail["From"], mail["To"], mail["Subject"] = from_, to or self.address, subject
                mail["Date"], mail["Message-ID"] = format_datetime(at), f"<{id}@mail.example.org>"
                for name, value in (headers or {}).items():
                    del mail[name]
                    mail[name] = value
                mail.set_content(text)
                if html:
                    mail.add_alternative(html, subtype="html")
                raw = mail.as_bytes()
            return self._keep(id, raw, set(labels), thread_id, at)

    def change_labels(self, id: str, *, add: Iterable[str] = (), remove: Iterable[str] = ()) -> None:
        """Put labels on a message and take others off."""
        with self._lock:
            message = self.messages[id]
            more, fewer = set(add) - message.labels, set(remove) & message.labels
            message.labels = (message.labels | more) - fewer
            for kind, labels in (("labelsAdded", more), ("labelsRemoved", fewer)):
                if labels:
                    self._note(kind, message, tuple(sorted(labels)))

    def delete_message(self, id: str) -> None:
        """Delete a message for good."""
        with self._lock:
            self._note("messagesDeleted", self.messages.pop(id))

    def add_label(self, name: str) -> str:
        """A label of the user's own; its id."""
        with self._lock:
            id = f"Label_{len(self.labels) - len(SYSTEM_LABELS) + 1}"
            self.labels[id] = {"id": id, "name": name, "type": "user"}
            return id

    def expire_history(self) -> None:
        """Make every history id that was given out so far out of date."""
        with self._lock:
            self._events.clear()
            self.history_id += 100
            self._forgotten = self.history_id

    def events_since(self, start: int) -> list[MailboxEvent] | None:
        """What was done after this history id, oldest first; None if that is too long ago, or has not been yet."""
        old = [event for event in self._events if event.at <= self.clock.now() - HISTORY_KEPT]
        if old:
            self._events = self._events[len(old) :]
            self._forgotten = old[-1].id
        if not self._forgotten <= start <= self.history_id:
            return None
        return [event for event in self._events if event.id > start]

    def thread(self, id: str) -> list[StoredMessage]:
        """The messages of a thread, oldest first."""
        return sorted((one for one in self.messages.values() if one.thread_id == id), key=lambda one: one.sorted_by)

    def _keep(self, id: str, raw: bytes, labels: set[str], thread_id: str, at: datetime) -> str:
        unknown = labels - set(self.labels)
        if unknown:
            raise ValueError(f"labels: {', '.join(sorted(unknown))} is not in this mailbox; add_label() gives an id")
        self._count += 1
        mail: EmailMessage = message_from_bytes(raw, policy=policy.default)
        thread = thread_id or self._thread_of(mail) or id
        self.messages[id] = StoredMessage(id, thread, raw, mail, labels, at, self._count)
        self._note("messagesAdded", self.messages[id])
        return id

    def _thread_of(self, mail: EmailMessage) -> str:
        """The thread of a message that this one answers, if that is here."""
        answered = f"{mail['In-Reply-To'] or ''} {mail['References'] or ''}".split()
        known = {str(one.mail["Message-ID"]): one.thread_id for one in self.messages.values()}
        return next((known[one] for one in answered if one in known), "")

    def _note(self, kind: str, message: StoredMessage, labels: tuple[str, ...] = ()) -> None:
        """History ids grow, and there are gaps between them."""
        self.history_id += 7
        message.history_id = self.history_id
        named = {**message.named(), "labelIds": sorted(message.labels)}
        self._events.append(MailboxEvent(self.history_id, kind, self.clock.now(), named, labels))
        self._lock.notify_all()
