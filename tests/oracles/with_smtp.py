"""aiosmtpd, a mail server that others wrote: the same conversations are held with it and with the stand-in."""

import smtplib
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope

from treadle.testing import fakes
from treadle.testing.fakes import SmtpServer

LARGEST = 100_000
TALKS = (
    "NOOP|VRFY ada|RSET|BREW me|MAIL FROM:<a@example.org>",
    "EHLO me|RCPT TO:<b@example.org>|DATA|MAIL FROM:<a@example.org>|MAIL FROM:<a@example.org>|RCPT TO:<b@example.org>",
    "EHLO me|MAIL FROM:<a@example.org> SIZE=1000|RCPT TO:<refused@example.org>|DATA|RSET|RCPT TO:<b@example.org>",
    "EHLO me|MAIL FROM:<>|RCPT TO:<b@example.org>|EHLO me|NOOP|MAIL FROM:<a@example.org>",
    "EHLO me|MAIL FROM:|MAIL TO:<a@example.org>|RCPT FROM:<b@example.org>|MAIL FROM:<a@example.org> SIZE=99999999",
    "EHLO me|MAIL FROM:<a@example.org>|RCPT TO:<b@example.org>|RCPT TO:<c@example.org>|NOOP|QUIT",
)


class Kept:
    """What aiosmtpd calls: keeps the envelopes, and refuses one mailbox."""

    def __init__(self) -> None:
        self.sent: list[Envelope] = []

    async def handle_RCPT(self, server: Any, session: Any, envelope: Envelope, address: str, options: Any) -> str:  # noqa: N802
        if address.startswith("refused"):
            return "550 5.1.1 Mailbox unavailable"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Envelope) -> str:  # noqa: N802
        self.sent.append(envelope)
        return "250 OK"


@contextmanager
def theirs(**options: Any) -> Iterator[tuple[Kept, int]]:
    kept = Kept()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    controller = Controller(
        kept, hostname="127.0.0.1", port=port, data_size_limit=LARGEST, enable_SMTPUTF8=True, **options
    )
    controller.start()
    try:
        yield kept, port
    finally:
        controller.stop()


@contextmanager
def ours(**options: Any) -> Iterator[SmtpServer]:
    with fakes.smtp(max_size=LARGEST, **options) as server:
        server.refuse("refused@*")
        yield server


def codes(port: int, talk: str) -> list[int]:
    with smtplib.SMTP("127.0.0.1", port, timeout=5) as client:
        said = [client.docmd(line)[0] for line in talk.split("|")]
        client.close()
    return said


def test_every_command_is_answered_with_the_same_code() -> None:
    with ours() as server, theirs() as (_, port):
        for talk in TALKS:
            assert codes(server.port, talk) == codes(port, talk), (talk, codes(server.port, talk), codes(port, talk))


def test_a_message_arrives_byte_by_byte_the_same() -> None:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "shop@example.org", "ada@example.org, bob@example.org", "Grüße"
    message.set_content(".\n..\n.x\n\n" + "long " * 190 + "\nGrüße\n", cte="8bit")
    message.add_attachment(bytes(range(256)), maintype="application", subtype="octet-stream")
    data = message.as_bytes(policy=message.policy.clone(linesep="\r\n"))
    with ours() as server, theirs() as (kept, port):
        for one in (server.port, port):
            with smtplib.SMTP("127.0.0.1", one, timeout=5) as client:
                client.sendmail("shop@example.org", ["ada@example.org", "bob@example.org"], data)
        [mine], [other] = server.sent, kept.sent
        assert (mine.sender, mine.recipients) == (other.mail_from, other.rcpt_tos)
        assert mine.data == other.original_content


def test_a_line_that_is_too_long_and_a_message_that_is_too_large_are_refused_alike() -> None:
    with ours() as server, theirs() as (kept, port):
        outcomes = [
            [refusal(one, text) for text in ("x" * 998, "x" * 1100, "x\r\n" * 40_000)] for one in (server.port, port)
        ]
        assert outcomes[0] == outcomes[1] == [250, 500, 552], outcomes
        assert len(server.sent) == len(kept.sent) == 1


def refusal(port: int, text: str) -> int:
    with smtplib.SMTP("127.0.0.1", port, timeout=10) as client:
        client.ehlo()
        client.mail("a@example.org")
        client.rcpt("b@example.org")
        return client.data(text)[0]


def test_a_login_is_asked_for_and_checked_alike() -> None:
    def knows(_: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        return AuthResult(success=(data.login, data.password) == (b"shop", b"hush"), handled=False)

    outcomes = []
    options = {"auth_required": True, "auth_require_tls": False, "authenticator": knows}
    with ours(user="shop", password="hush") as server, theirs(**options) as (_, port):
        for one in (server.port, port):
            outcomes.append(
                [outcome(one, method, password) for method in ("plain", "login") for password in ("hush", "no")]
            )
            assert codes(one, "EHLO me|MAIL FROM:<a@example.org>") == [250, 530]
    assert outcomes[0] == outcomes[1] == [235, 535, 235, 535]


def outcome(port: int, method: str, password: str) -> int:
    with smtplib.SMTP("127.0.0.1", port, timeout=5) as client:
        client.ehlo()
        assert method.upper() in client.esmtp_features["auth"].upper()
        client.user, client.password = "shop", password
        says: Callable[..., Any] = getattr(client, f"auth_{method}")
        try:
            return client.auth(method.upper(), says)[0]
        except smtplib.SMTPAuthenticationError as refused:
            return refused.smtp_code
