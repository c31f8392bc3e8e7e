"""A mail server, over SMTP. It has no memory of what it took: the receipt is the job's own."""

import re
import smtplib
import socket
import ssl
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, NotRequired, TypedDict, get_args

from treadle.builtin.arguments import checked_tls, errors_of
from treadle.builtin.email_message import Email
from treadle.builtin.email_mime import mime_message
from treadle.builtin.email_smtp_session import TimedReplies, TimedRepliesTls
from treadle.builtin.email_transport import (
    OutgoingMail,
    SentEmail,
    checked_secret,
    checked_timeout,
    default_sender,
)
from treadle.builtin.http_calls import TIMEOUT, shortened, usual_tls
from treadle.errors import Ambiguous, ConfigError, GiveUp, NotDelivered, Unreachable
from treadle.model.clock import Duration
from treadle.tasks.context import Context

Security = Literal["starttls", "tls", "plain"]
PORTS = {"starttls": 587, "tls": 465, "plain": 25}
LOOK_AT_PORT = "; look at port and security= of Smtp(...)"
END = b".\r\n"  # of the message: a server delivers nothing before it


class Undelivered(TypedDict):
    """What became of each recipient that does not have the mail, in the server's words."""

    refused: dict[str, str]
    put_off: dict[str, str]
    unconfirmed: NotRequired[bool]


class Smtp:
    """Sends over a mail server; `sender` is who a mail is from that names none.

    `security` is "starttls", "tls" (from the first byte) or "plain"; without a `port` it is 587, 465 or 25.
    """

    provider = "smtp"

    def __init__(
        self,
        host: str,
        port: int = 0,
        *,
        user: str = "",
        password: str = "",
        security: Security = "starttls",
        sender: str = "",
        timeout: Duration = TIMEOUT,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if not isinstance(host, str) or not re.fullmatch(r"[A-Za-z0-9.:_-]+", host):
            raise ConfigError(f"Smtp: host: {host!r} must be the name of a mail server, such as mail.example.org")
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 65536:
            raise ConfigError(f"Smtp: port: {port!r} must be a whole number from 1 to 65,535, or left out")
        if security not in get_args(Security):
            raise ConfigError(f"Smtp: security: {security!r} must be 'starttls', 'tls' or 'plain'")
        if bool(user) != bool(password):
            missing = "password" if user else "user"
            raise ConfigError(f"Smtp: {missing}: is missing; a login needs user and password")
        if user:
            if not isinstance(password, str) or not password.isascii() or not password.isprintable():
                raise ConfigError("Smtp: password: must be text of printable ASCII; it is not shown here")
            checked_secret("Smtp", user=user)
        self._host, self._port, self._security = host, port or PORTS[security], security
        self._user, self._password = user, password
        known = (password, f"\0{user}\0{password}")
        self._secrets = (password, *(b64encode(text.encode()).decode() for text in known if user))
        self._timeout = checked_timeout("Smtp", timeout)
        with errors_of("Smtp"):
            self._tls = checked_tls(tls)
        self.sender = default_sender("Smtp", sender)

    def __repr__(self) -> str:
        at = f"{self._host!r}, {self._port}, security={self._security!r}"
        return f"Smtp({at}, user={self._user!r}, sender={str(self.sender or '')!r})"

    def check(self, email: Email) -> None:
        """SMTP takes all that an Email can hold."""

    def send(self, ctx: Context, mail: OutgoingMail) -> SentEmail:
        """Give it to everybody in one go; whoever is put off gets it in a further go, and nobody gets it twice."""
        result: SentEmail = {"provider": self.provider, "message_id": mail.message_id}
        waiting, refused, tried, go = mail.email.envelope(), dict[str, str](), list[int](), 0
        while waiting:
            go += 1
            name = "send" if go == 1 else f"send {go}"
            others = len(mail.email.envelope()) - len(waiting) - len(refused)
            try:
                undelivered: Undelivered | None = ctx.once(
                    name, self._deliver, mail, waiting, go, tried, on_ambiguous=mail.on_ambiguous
                )
            except (GiveUp, NotDelivered, Ambiguous) as error:
                raise type(error)(f"{error}{self._others(others, result)}") from None
            undelivered = undelivered or {"refused": {}, "put_off": {}, "unconfirmed": True}
            if undelivered.get("unconfirmed"):
                result["unconfirmed"] = True
            refused.update(undelivered["refused"])
            waiting = list(undelivered["put_off"])
            if waiting and go in tried:
                others = len(mail.email.envelope()) - len(waiting) - len(refused)
                raise NotDelivered(
                    f"{self._list(undelivered['put_off'])}. These are tried again{self._others(others, result)}"
                )
        if refused:
            result["refused"] = refused
        return result

    def _deliver(self, mail: OutgoingMail, recipients: list[str], go: int, tried: list[int]) -> Undelivered:
        tried.append(go)
        data = re.sub(rb"(?m)^\.", b"..", mime_message(mail).as_bytes().rstrip(b"\r\n") + b"\r\n")
        with self._session() as server:
            size = [f"size={len(data)}"] if server.has_extn("size") else []
            self._expect(server.mail(mail.sender.address, size), "MAIL FROM", mail.sender.address)
            undelivered = self._recipients(server, recipients, first=go == 1)
            if len(undelivered["put_off"]) + len(undelivered["refused"]) == len(recipients):
                return undelivered
            self._expect(server.docmd("DATA"), "DATA", "the message", accepted=354)
            server.send(data)
            try:
                server.send(END)
                code, text = server.getreply()
            except (OSError, smtplib.SMTPException) as error:
                return self._doubt(mail, undelivered, f"did not answer for the message: {self._words(error)}")
            if code // 100 not in (2, 4, 5):
                return self._doubt(mail, undelivered, "gave no answer that can be read for the message")
            self._expect((code, text), "the message", mail.message_id)
            return undelivered

    def _others(self, number: int, result: SentEmail) -> str:
        went = "may have gone" if result.get("unconfirmed") else "went"
        others = "1 other" if number == 1 else f"{number} others"
        return f". The mail {went} to {others}, and is not repeated for them" if number else ""

    def _doubt(self, mail: OutgoingMail, undelivered: Undelivered, why: str) -> Undelivered:
        """The whole message is with the server, which did not say whether it took it."""
        if mail.on_ambiguous == "skip":  # it is known of some that they do not have it
            return {**undelivered, "unconfirmed": True}
        raise Ambiguous(f"{self._host} {why}")

    @contextmanager
    def _session(self) -> Iterator[smtplib.SMTP]:
        """A connection, logged in; its errors as what they mean to the job, as long as the message has not ended."""
        context = self._tls or usual_tls()
        server: smtplib.SMTP | None = None
        try:
            if self._security == "tls":
                server = TimedRepliesTls(self._host, self._port, timeout=self._timeout, context=context)
            else:
                server = TimedReplies(self._host, self._port, timeout=self._timeout)
            if self._security == "starttls":
                server.starttls(context=context)
            server.ehlo_or_helo_if_needed()
            if server.sock is not None:  # the end of a message shall not wait for a full packet
                server.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._user:
                self._log_in(server)
            yield server
        except smtplib.SMTPNotSupportedError as error:
            raise GiveUp(
                f"{self._host} does not offer what Smtp(security=, user=) asks for: {self._words(error)}"
            ) from None
        except smtplib.SMTPResponseException as error:
            if not 200 <= error.smtp_code < 600:
                problem = f"{self._host}:{self._port} does not speak SMTP: {self._words(error)}"
                raise NotDelivered(f"{problem}{LOOK_AT_PORT}") from None
            self._expect((error.smtp_code, error.smtp_error), "the connection", self._host)
            raise NotDelivered(f"{self._host}: {self._words(error)}") from None
        except (OSError, smtplib.SMTPException) as error:
            hint = LOOK_AT_PORT if _is_of_another_protocol(error, greeted=server is not None) else ""
            raise Unreachable(f"{self._host}:{self._port} cannot be reached: {self._words(error)}{hint}") from None
        finally:
            if server is not None:
                with suppress(OSError, smtplib.SMTPException):
                    server.putcmd("QUIT")  # its answer would change nothing, and may be long in coming
                server.close()

    def _log_in(self, server: smtplib.SMTP) -> None:
        try:
            server.login(self._user, self._password)
        except smtplib.SMTPAuthenticationError as error:  # the server's words may repeat what it was told
            problem = f"{self._host} refused the login of {self._user} ({error.smtp_code})"
            if error.smtp_code < 500:
                raise NotDelivered(problem) from None
            raise GiveUp(f"{problem}: look at Smtp(user=, password=)") from None
        except smtplib.SMTPException as error:
            if type(error) is not smtplib.SMTPException:
                raise
            raise GiveUp(f"{self._host} offers no way to log in that is known here: {self._words(error)}") from None

    def _recipients(self, server: smtplib.SMTP, recipients: list[str], *, first: bool) -> Undelivered:
        """Name them to the server; an error if nobody is left to send to, unless others have had the mail before."""
        undelivered: Undelivered = {"refused": {}, "put_off": {}}
        for address in recipients:
            code, text = server.rcpt(address)
            if code >= 500:
                undelivered["refused"][address] = self._quoted(code, text)
            elif code // 100 != 2:
                undelivered["put_off"][address] = self._quoted(code, text)
        if len(undelivered["refused"]) == len(recipients) and first:
            raise GiveUp(f"every recipient is refused: {self._list(undelivered['refused'])}")
        if undelivered["put_off"] and len(undelivered["refused"]) + len(undelivered["put_off"]) == len(recipients):
            raise NotDelivered(f"every recipient is put off: {self._list(undelivered['put_off'])}")
        return undelivered

    def _expect(self, answer: tuple[int, Any], what: str, about: str, accepted: int = 0) -> None:
        """Go on after this answer, give up after a 5xx, try later after all else."""
        code, text = answer
        if code == accepted or (not accepted and code // 100 == 2):
            return
        problem = f"the mail server answered {what} of {about} with {self._quoted(code, text)}"
        raise GiveUp(problem) if code >= 500 else NotDelivered(problem)

    def _quoted(self, code: int, text: object) -> str:
        words = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return shortened(f"{code} {words}", *self._secrets)

    def _words(self, error: Exception) -> str:
        return shortened(f"{type(error).__name__}: {error}", *self._secrets)

    def _list(self, people: dict[str, str]) -> str:
        return shortened("; ".join(f"{address}: {words}" for address, words in people.items()), *self._secrets)


def _is_of_another_protocol(error: Exception, *, greeted: bool) -> bool:
    """Whether one side may speak TLS and the other not: what it says is no TLS, or it waits for us to begin."""
    if isinstance(error, ssl.SSLError):
        return not isinstance(error, ssl.SSLCertVerificationError)
    return not greeted and isinstance(error, TimeoutError | smtplib.SMTPServerDisconnected)
