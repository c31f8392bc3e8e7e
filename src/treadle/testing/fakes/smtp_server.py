"""SMTP: a mail server that receives, and may refuse a mailbox, put off a sender, or hang up."""

import ssl
from collections.abc import Callable
from fnmatch import fnmatchcase

from treadle.testing.clock import FakeClock
from treadle.testing.fakes.faults import Fake, Fault
from treadle.testing.fakes.listener import Listener
from treadle.testing.fakes.smtp_session import TEXTS, ReceivedMail, SmtpSession


class SmtpServer(Fake):
    """`host`, `port` and `url` to connect to, `sent` for what came.

    A fault without `on` meets the message, after its last line. `on` names a command otherwise: "RCPT bob@*", "MAIL *",
    "CONNECT", "AUTH *".
    """

    host = "127.0.0.1"

    def __init__(
        self,
        *,
        user: str = "",
        password: str = "",
        max_size: int = 10_000_000,
        port: int = 0,
        clock: FakeClock | None = None,
        starttls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(port=port, clock=clock)
        self.user, self.password, self.max_size, self.starttls = user, password, max_size, starttls
        self._sent: list[ReceivedMail] = []
        self._refused: dict[str, tuple[int, str]] = {}
        self._server: Listener | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
        if self._server is None:
            raise RuntimeError("this server has no port yet; use it in a `with` block, or call start()")
        return self._server.port

    @property
    def url(self) -> str:
        """Such as smtp://127.0.0.1:2525."""
        return f"smtp://{self.host}:{self.port}"

    @property
    def sent(self) -> list[ReceivedMail]:
        """The mails that were received whole, in their order."""
        with self._changed:
            return list(self._sent)

    def refuse(self, address: str, status: int = 550, text: str = "") -> None:
        """Refuse this mailbox from now on; `address` may hold *. 550 is for good, 450 and 451 for now."""
        with self._changed:
            self._refused[address] = status, text or TEXTS.get(status, "5.0.0 Refused")

    def accept(self, address: str) -> None:
        """Take mail for this mailbox again."""
        with self._changed:
            del self._refused[address]

    def greylist(self, times: int = 1) -> None:
        """Put off the next `times` recipients with 451."""
        self.fail_next(451, times=times, on="RCPT *")

    def start(self) -> None:
        self._closing.clear()
        self._server = Listener(self, SmtpSession, self._wanted_port)
        self._wanted_port = self._server.port

    def close(self) -> None:
        self._closing.set()
        if self._server is not None:
            self._server.end()
            self._server = None

    def refusal_of(self, address: str) -> str:
        """The answer to a recipient that is refused, else an empty string."""
        with self._changed:
            for pattern, (status, text) in self._refused.items():
                if fnmatchcase(address.lower(), pattern.lower()):
                    return f"{status} {text}"
        return ""

    def meet(self, command: str, act: Callable[[], str]) -> str | None:
        """What `act` answers, or what a fault makes of it; None closes the connection."""
        delay, fault = self._take(command)
        if delay and delay.before and self._closing.wait(delay.seconds):
            return None
        if fault and fault.kind == "drop" and fault.before:
            return None
        if fault and fault.kind == "fail":
            reply = f"{fault.status} {fault.error or TEXTS.get(fault.status, '4.0.0 Failed')}"
        else:
            with self._changed:
                reply = act()
                self._changed.notify_all()
        if delay and not delay.before and self._closing.wait(delay.seconds):
            return None
        return None if fault and fault.kind == "drop" else reply

    def keep(self, mail: ReceivedMail) -> str:
        """Keep it, and answer for it."""
        self._sent.append(mail)
        return f"250 2.0.0 Ok: queued as {len(self._sent)}"

    def _fits(self, fault: Fault, name: str) -> bool:
        return fnmatchcase(name, fault.on or "MESSAGE")

    def _forget(self) -> None:
        self._sent.clear()
        self._refused.clear()


def smtp(
    *,
    user: str = "",
    password: str = "",
    max_size: int = 10_000_000,
    port: int = 0,
    clock: FakeClock | None = None,
    starttls: ssl.SSLContext | None = None,
) -> SmtpServer:
    """A mail server: connect to `host` and `port`; see `sent`. With `user` it asks for a login."""
    return SmtpServer(user=user, password=password, max_size=max_size, port=port, clock=clock, starttls=starttls)
