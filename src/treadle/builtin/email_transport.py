"""What the transports of `email.send` share: what they are given, what they return, how an answer ends an attempt."""

import ipaddress
import json
import re
import ssl
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple, NotRequired, Protocol, TypedDict

from treadle.builtin.email_message import Email, MailAddress
from treadle.builtin.http_calls import HttpReply, HttpUrl
from treadle.errors import Ambiguous, ConfigError, GiveUp, InvalidInput, RetryLater
from treadle.tasks.context import Context, OnAmbiguous

LONGEST_WAIT = 24 * 3600.0  # seconds, whatever a service asks for
LONGEST_WORDS = 300  # characters of what a service says, in an error
_PRINTABLE = re.compile(r"[!-~]+")


class NotTaken(Exception):
    """The service did not take the mail this time; a later attempt may do better."""


class SentEmail(TypedDict):
    """The result of a job: who sent the mail, and by which id it is known there."""

    provider: str
    message_id: str | None
    refused: NotRequired[dict[str, str]]
    """Recipients that the mail server refused for good, and its words. The others have the mail."""
    unconfirmed: NotRequired[bool]
    """True: nobody knows whether it was sent, and `on_ambiguous="skip"` took it as sent."""


class OutgoingMail(NamedTuple):
    """A mail on its way: `sender` is who it is from, `job_id` what it is known by on every attempt."""

    email: Email
    sender: MailAddress
    job_id: str
    now: Callable[[], datetime]
    on_ambiguous: OnAmbiguous
    own_wait: float = 0.0  # seconds that the job's own policy waits if this attempt fails

    @property
    def message_id(self) -> str:
        """The Message-ID: the same on every attempt of the job."""
        return f"<{self.job_id}@{self.sender.domain}>"


class MailTransport(Protocol):
    """A way to send mail: Smtp, Graph or Resend."""

    provider: str
    sender: MailAddress | None  # of a mail that names none

    def check(self, email: Email) -> None:
        """Refuse by a ValueError what this transport cannot send."""

    def send(self, ctx: Context, mail: OutgoingMail) -> SentEmail:
        """Send it once for this job, as far as the service allows."""


@cache
def usual_tls() -> ssl.SSLContext:
    """Trusts whom the system trusts. To load all their certificates takes longer than to send a mail."""
    return ssl.create_default_context()


def default_sender(provider: str, sender: str) -> MailAddress | None:
    """The sender given to a transport; ConfigError if it is not an address."""
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


def checked_timeout(provider: str, timeout: float) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= 600:
        raise ConfigError(f"{provider}: timeout: {timeout!r} must be a number of seconds, more than 0 and at most 600")
    return float(timeout)


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


def shortened(text: str, *secrets: str) -> str:
    """What a service says, on one line, without these secrets."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):  # one may be a part of another
        text = text.replace(secret, "***")
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_WORDS else f"{line[:LONGEST_WORDS]}..."


def failure(answer: HttpReply, service: str, words: str, mail: OutgoingMail) -> Exception:
    """The error that ends the attempt as this answer asks for; nobody knows what a 5xx has done."""
    problem = f"{service} answered {answer.status}: {words}"
    if answer.status >= 500:
        return Ambiguous(problem)
    wait = answer.retry_after(mail.now()) if answer.status == 429 else None
    if wait is not None:
        return RetryLater(problem, after=max(mail.own_wait, min(wait, LONGEST_WAIT)))
    return NotTaken(problem) if answer.status in (408, 429) else GiveUp(problem)
