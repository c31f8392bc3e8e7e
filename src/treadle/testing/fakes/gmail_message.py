"""A message as Gmail shows it: from the bytes of a mail to the resource `users.messages`."""

import base64
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from email.message import EmailMessage, Message
from typing import Any

LONGEST_SNIPPET = 200


@dataclass
class StoredMessage:
    """A mail in a mailbox. `order` grows by one with each mail."""

    id: str
    thread_id: str
    raw: bytes
    mail: EmailMessage
    labels: set[str]
    at: datetime
    order: int
    history_id: int = 0
    attachments: dict[str, bytes] = field(default_factory=dict)

    @property
    def sorted_by(self) -> tuple[datetime, int]:
        """Lists are sorted by this, newest first."""
        return self.at, self.order

    def named(self) -> dict[str, Any]:
        """As lists name it."""
        return {"id": self.id, "threadId": self.thread_id}

    def text(self) -> str:
        """What a reader sees, in one line."""
        body = self.mail.get_body(("plain", "html"))
        content = str(body.get_content()) if body is not None else ""
        if body is not None and body.get_content_subtype() == "html":
            content = re.sub(r"<[^>]*>", " ", content)
        return " ".join(content.split())

    def shown(self, format: str, only: Iterable[str] = ()) -> dict[str, Any]:
        """The resource: minimal, metadata (with `only` these headers), full or raw."""
        about = {
            **self.named(),
            "labelIds": sorted(self.labels),
            "snippet": self.text()[:LONGEST_SNIPPET],
            "historyId": str(self.history_id),
            "internalDate": str(int(self.at.timestamp() * 1000)),
            "sizeEstimate": len(self.raw),
        }
        if format == "raw":
            return {**about, "raw": encoded(self.raw)}
        if format == "metadata":
            wanted = {name.lower() for name in only}
            headers = [one for one in _headers(self.mail) if not wanted or one["name"].lower() in wanted]
            return {**about, "payload": {"mimeType": self.mail.get_content_type(), "headers": headers}}
        return about if format == "minimal" else {**about, "payload": self._part(self.mail, "")}

    def _part(self, part: Message, number: str) -> dict[str, Any]:
        below = list(part.iter_parts()) if isinstance(part, EmailMessage) and part.is_multipart() else []
        about = {"partId": number, "mimeType": part.get_content_type(), "filename": part.get_filename() or ""}
        shown = {**about, "headers": _headers(part), "body": {"size": 0} if below else self._body(part, number)}
        if below:
            start = f"{number}." if number else ""
            shown["parts"] = [self._part(one, f"{start}{place}") for place, one in enumerate(below)]
        return shown

    def _body(self, part: Message, number: str) -> dict[str, Any]:
        content = part.get_payload(decode=True)
        data = content if isinstance(content, bytes) else b""
        if not part.get_filename():
            return {"size": len(data), **({"data": encoded(data)} if data else {})}
        id = f"ANGjdJ-{self.id}-{number}"
        self.attachments[id] = data
        return {"size": len(data), "attachmentId": id}


def encoded(data: bytes) -> str:
    """Base64 as Gmail's API wants it: for addresses, with padding."""
    return base64.urlsafe_b64encode(data).decode()


def _headers(part: Message) -> list[dict[str, str]]:
    return [{"name": name, "value": str(value)} for name, value in part.items()]
