"""What the transports of `email.send` share: what they are given, what they return, how an answer ends an attempt."""

import ipaddress
import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple, NotRequired, Protocol, TypedDict

from treadle.builtin.arguments import checked_seconds, errors_of
from treadle.builtin.email_message import Email, MailAddress
from treadle.builtin.http_calls import HttpReply, HttpUrl, wait_asked
from treadle.errors import Ambiguous, ConfigError, GiveUp, InvalidInput, NotDelivered, RetryLater
from treadle.model import Job
from treadle.model.clock import Duration
from treadle.tasks.context import Context, OnAmbiguous

LONGEST_TIMEOUT = 600.0  # seconds
_PRINTABLE = re.compile(r"[!-~]+")


class SentEmail(TypedDict):
    """The result of a job: who sent the mail, and by which id it is known there."""

    provider: str
    message_id: str | None
    refused: NotRequired[dict[str, str]]
    """Recipients that the mail server refused for good, and its words. The others have the mail."""
    unconfirmed: NotRequired[bool]
    """True: nobody knows whether it was sent, and `on_ambiguous="skip"` took it as sent."""


class OutgoingMail(NamedTuple):
    """A mail on its way: `sender` is who it is from, its Message-ID derives from the id of the job."""

    email: Email
    sender: MailAddress
    job: Job
    now: Callable[[], datetime]
    on_ambiguous: OnAmbiguous

    @property
    def message_id(self) -> str:
        """The Message-ID: the same on every attempt of the job."""
        return f"<{self.job.id}@{self.sender.domain}>"


class MailTransport(Protocol):
    """A way to send mail: Smtp, Graph or Resend."""

    provider: str
    sender: MailAddress | None  # of a mail that names none

    def check(self, email: Email) -> None:
        """Refuse by a ValueError what this transport cannot send."""

    def send(self, ctx: Context, mail: OutgoingMail) -> SentEmail:
        """Send it once for this job, as far as the service allows."""


def default_sender(provider: str, sender: str) -> MailAddress | None:
    """The sender given to a transport; ConfigError if it is not an address."""
    if not isinstance(sender, str):
        raise ConfigError(f"{provider}: sender: {sender!r} must be text, such as shop@example.org")
    try:
        return MailAddress.of(sender) if sender else None
    except ValueError as error:
        raise ConfigError(f"{provider}: sender: {error}") from None


def checked_secret(provider: str, **given: str) -> None:
    """Refuse what can be no key or id; the error names the setting and never shows the value."""
    for name, value in given.items():
        if not is_secret(value):
            raise ConfigError(
                f"{provider}: {name}: must be text of printable ASCII, without spaces; it is not shown here"
            )


def is_secret(value: object) -> bool:
    """Whether it can be a key, an id or a token: what a header can hold."""
    return isinstance(value, str) and _PRINTABLE.fullmatch(value) is not None


def checked_timeout(provider: str, timeout: Duration) -> float:
    with errors_of(provider):
        return checked_seconds("timeout", timeout, LONGEST_TIMEOUT)


def checked_url(provider: str, name: str, url: str) -> str:
    """Without a slash at its end; http is for this machine alone, since a key or a mail would be seen on its way."""
    wrong = f"{provider}: {name}:"  # the URL is not shown: it may hold a password
    try:
        place = HttpUrl.of(url)
    except InvalidInput as error:
        raise ConfigError(f"{wrong} {error.problem}") from None
    if "?" in url or "#" in url:
        raise ConfigError(f"{wrong} must have no ? and no #; write it such as https://mail.example.org")
    if not place.secure and not _is_this_machine(place.host):
        raise ConfigError(f"{wrong} must begin with https://; http:// is for this machine alone, such as 127.0.0.1")
    return url.rstrip("/")


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def fields_of(answer: HttpReply) -> dict[str, Any]:
    """The JSON object of an answer; an empty one if it holds none."""
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def failure(answer: HttpReply, service: str, words: str, mail: OutgoingMail) -> Exception:
    """The error that ends the attempt as this answer asks for; nobody knows what a 5xx has done."""
    problem = f"{service} answered {answer.status}: {words}"
    if answer.status >= 500:
        return Ambiguous(problem)
    wait = wait_asked(answer, mail.job, mail.now()) if answer.status == 429 else None
    if wait is not None:
        return RetryLater(problem, after=wait)
    return NotDelivered(problem) if answer.status in (408, 429) else GiveUp(problem)
