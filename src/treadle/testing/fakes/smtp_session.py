"""One connection of the SMTP stand-in: the conversation, command by command."""

import base64
from collections.abc import Callable
from email import message_from_bytes, policy
from email.message import EmailMessage
from socketserver import StreamRequestHandler
from typing import Any, NamedTuple

from treadle.testing.fakes.listener import Listener

LONGEST_LINE = 1000  # of a message, its end included: RFC 5321, 4.5.3.1.6

TEXTS = {
    421: "4.3.2 Service not available, closing transmission channel",
    450: "4.2.1 Mailbox busy",
    451: "4.7.1 Greylisted, please try again later",
    452: "4.3.1 Insufficient system storage",
    535: "5.7.8 Authentication credentials invalid",
    550: "5.1.1 Mailbox unavailable",
    552: "5.3.4 Message size exceeds fixed limit",
    554: "5.7.1 Transaction failed",
}


class ReceivedMail(NamedTuple):
    """A mail that the server answered for, or would have: envelope and message."""

    sender: str
    recipients: list[str]
    data: bytes
    user: str  # who logged in; empty if nobody did

    @property
    def message(self) -> EmailMessage:
        """The message, parsed: `message["Message-ID"]`, `message.get_body()`."""
        parsed: EmailMessage = message_from_bytes(self.data.replace(b"\r\n", b"\n"), policy=policy.default)
        return parsed


class SmtpSession(StreamRequestHandler):
    """One connection: commands, one a line, until QUIT."""

    disable_nagle_algorithm = True
    server: Listener

    def handle(self) -> None:
        self.fake: Any = self.server.fake
        self.user, self.encrypted, self.greeted = "", False, False
        self.sender: str | None = None
        self.recipients: list[str] = []
        reply = self._meet("CONNECT", lambda: "220 treadle.test ESMTP")
        while self._tell(reply):
            line = self.rfile.readline(4096)
            verb, _, rest = line.decode("utf-8", "replace").strip().partition(" ")
            if not line or verb.upper() == "QUIT":
                self._tell("221 2.0.0 Bye" if line else None)
                return
            method = getattr(self, f"_do_{verb.lower()}", None)
            reply = method(rest.strip()) if method else "500 5.5.2 Command not recognized"

    def _meet(self, command: str, act: Callable[[], str]) -> str | None:
        reply: str | None = self.fake.meet(command, act)
        return reply

    def _tell(self, reply: str | None) -> bool:
        """Whether the conversation goes on."""
        if reply is None:
            return False
        if reply:
            self.wfile.write(reply.encode() + b"\r\n")
        return not reply.startswith("421")

    def _do_helo(self, _: str) -> str:
        self._greet()
        return "250 treadle.test"

    def _do_ehlo(self, _: str) -> str:
        self._greet()
        offered = ["8BITMIME", "SMTPUTF8", f"SIZE {self.fake.max_size}", "ENHANCEDSTATUSCODES"]
        if self.fake.starttls and not self.encrypted:
            offered.append("STARTTLS")
        if self.fake.user:
            offered.append("AUTH PLAIN LOGIN")
        names = ["treadle.test", *offered]
        return "\r\n".join(f"250{'-' if name != names[-1] else ' '}{name}" for name in names)

    def _greet(self) -> None:
        self.greeted, self.sender, self.recipients = True, None, []

    def _do_starttls(self, _: str) -> str:
        if self.fake.starttls is None or self.encrypted:
            return "502 5.5.1 STARTTLS is not available"
        self._tell("220 2.0.0 Ready to start TLS")
        self.request = self.server.replaced(self.request, self.fake.starttls)
        self._greet()
        self.encrypted, self.greeted, self.user = True, False, ""
        self.setup()
        return ""

    def _do_auth(self, rest: str) -> str | None:
        method, _, given = rest.partition(" ")
        if method.upper() == "PLAIN":
            _, user, password = [*self._secret(given, "").split("\0"), "", ""][:3]
        elif method.upper() == "LOGIN":
            user, password = self._secret(given, "VXNlcm5hbWU6"), self._secret("", "UGFzc3dvcmQ6")
        else:
            return "504 5.5.4 This method of authentication is not known"
        return self._meet(f"AUTH {user}", lambda: self._log_in(user, password))

    def _secret(self, given: str, prompt: str) -> str:
        """What the client gave with the command, or gives when it is asked."""
        if not given:
            self._tell(f"334 {prompt}")
            given = self.rfile.readline(4096).decode().strip()
        return base64.b64decode(given + "==").decode("utf-8", "replace")

    def _log_in(self, user: str, password: str) -> str:
        if not self.fake.user or (user, password) != (self.fake.user, self.fake.password):
            return f"535 {TEXTS[535]}"
        self.user = user
        return "235 2.7.0 Authentication successful"

    def _do_mail(self, rest: str) -> str | None:
        address, options = _address(rest, "FROM:")
        if address is None:
            return "501 5.5.4 Syntax: MAIL FROM:<address>"
        if self.fake.user and not self.user:
            return "530 5.7.0 Authentication required"
        if self.sender is not None or not self.greeted:
            return "503 5.5.1 Nested MAIL command" if self.greeted else "503 5.5.1 Send HELO first"
        size = next((word[5:] for word in options.upper().split() if word.startswith("SIZE=")), "0")
        if size.isdigit() and int(size) > self.fake.max_size:
            return f"552 {TEXTS[552]}"
        reply = self._meet(f"MAIL {address}", lambda: "250 2.1.0 Ok")
        if reply and reply.startswith("250"):
            self.sender = address
        return reply

    def _do_rcpt(self, rest: str) -> str | None:
        if self.sender is None:
            return "503 5.5.1 Send MAIL first"
        address, _ = _address(rest, "TO:")
        if not address:
            return "501 5.5.4 Syntax: RCPT TO:<address>"
        reply = self._meet(f"RCPT {address}", lambda: self.fake.refusal_of(address) or "250 2.1.5 Ok")
        if reply and reply.startswith("250"):
            self.recipients.append(address)
        return reply

    def _do_data(self, _: str) -> str | None:
        if not self.recipients or self.sender is None:
            return "503 5.5.1 Send RCPT first"
        self._tell("354 End data with <CR><LF>.<CR><LF>")
        lines: list[bytes] = []
        while (line := self.rfile.readline()) != b".\r\n":
            if not line:
                return None  # the client went away: the message is not whole
            lines.append(line.removeprefix(b"."))
        data, mail = b"".join(lines), (self.sender, self.recipients)
        self.sender, self.recipients = None, []
        if max(map(len, lines), default=0) > LONGEST_LINE:
            return "500 5.5.2 Line too long"
        if len(data) > self.fake.max_size:
            return f"552 {TEXTS[552]}"
        return self._meet("MESSAGE", lambda: self.fake.keep(ReceivedMail(*mail, data, self.user)))

    def _do_rset(self, _: str) -> str:
        self.sender, self.recipients = None, []
        return "250 2.0.0 Ok"

    def _do_noop(self, _: str) -> str:
        return "250 2.0.0 Ok"

    def _do_vrfy(self, _: str) -> str:
        return "252 2.5.2 Cannot verify"


def _address(rest: str, keyword: str) -> tuple[str | None, str]:
    """The address of `FROM:<address> OPTIONS` and the options; None if this is none."""
    given = rest[len(keyword) :].strip()
    if not rest.upper().startswith(keyword) or not given.startswith("<") or ">" not in given:
        return None, ""
    address, _, options = given[1:].partition(">")
    return address, options
