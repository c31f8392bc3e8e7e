"""email.send over a mail server: what goes over the wire, who is refused or put off, and what an error means."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from tests.builtin.mailing import MAIL, SENDER, attempted, mailer, to_smtp
from tests.support.marks import any_store
from tests.testing.fakes.certificates import certificate
from treadle import ConfigError, Job, Reason, State, Treadle
from treadle.builtin.email_send import Email, Smtp
from treadle.testing import FakeClock, fakes
from treadle.testing.fakes import SmtpServer
from treadle.testing.fakes.listener import Listener
from treadle.testing.fakes.smtp_session import SmtpSession

THREE = {**MAIL, "to": ["ada@example.org", "bob@example.org"], "bcc": "cid@example.org"}


@pytest.fixture
def server() -> Iterator[SmtpServer]:
    with fakes.smtp() as running:
        yield running


def ended(app: Treadle, server: SmtpServer, mail: dict[str, Any] = MAIL, **options: Any) -> Job:
    return attempted(app, mailer(app, to_smtp(server, **options)).enqueue(Email(**mail)))


def test_the_mail_arrives_as_it_was_meant(app: Treadle, clock: FakeClock, server: SmtpServer) -> None:
    link = "https://example.org/" + "u" * 300
    text = ".first\n" + "long " * 400 + "\nZoë\r.\r\nend"
    mail = Email(
        to=["Zoë <zoe@example.org>", "Bob <bob@example.org>"], cc="cid@example.org", bcc=["dan@example.org"],
        reply_to='"Help, Desk" <help@example.org>', subject="Grüße " * 20, text=text, html="<p>Zoë</p>",
        headers={"List-Unsubscribe": f"<{link}>", "X-Note": "Grüße"},
    )  # fmt: skip
    job = attempted(app, mailer(app, to_smtp(server, sender='"Shop, Inc." <shop@example.org>')).enqueue(mail))
    [got] = server.sent
    assert job.result == {"provider": "smtp", "message_id": f"<{job.id}@example.org>"}
    assert got.sender == "shop@example.org"
    assert got.recipients == ["zoe@example.org", "bob@example.org", "cid@example.org", "dan@example.org"]
    assert b"dan@" not in got.data
    assert got.data.isascii()
    assert max(map(len, got.data.split(b"\r\n"))) < 998
    assert b"\n" not in got.data.replace(b"\r\n", b"")
    assert b"\r" not in got.data.replace(b"\r\n", b"")
    message = got.message
    assert message["Message-ID"] == f"<{job.id}@example.org>"
    assert [str(address) for address in message["From"].addresses] == ['"Shop, Inc." <shop@example.org>']
    assert [each.display_name for each in message["To"].addresses] == ["Zoë", "Bob"]
    assert (message["Cc"], message["Reply-To"]) == ("cid@example.org", '"Help, Desk" <help@example.org>')
    assert message["Date"].datetime == clock.now()
    assert (message["List-Unsubscribe"], message["X-Note"]) == (f"<{link}>", "Grüße")
    assert message["Subject"].split() == ["Grüße"] * 20
    assert f"List-Unsubscribe: <{link}>\r\n".encode() in got.data  # not encoded: programs read it
    kinds = [part.get_content_type() for part in message.walk()]
    assert kinds == ["multipart/alternative", "text/plain", "text/html"]
    assert message.get_body(["plain"]).get_content().rstrip() == text.replace("\r\n", "\n").replace("\r", "\n")
    assert message.get_body(["html"]).get_content().rstrip() == "<p>Zoë</p>"


def test_html_alone_needs_no_text(app: Treadle, server: SmtpServer) -> None:
    ended(app, server, {**MAIL, "text": None, "html": "<p>hi</p>"})
    assert server.sent[0].message.get_content_type() == "text/html"


def test_it_logs_in_over_an_encrypted_connection(app: Treadle) -> None:
    server_side, client_side = certificate()
    with fakes.smtp(user="shop", password="hush hush", starttls=server_side) as server:
        job = ended(app, server, user="shop", password="hush hush", security="starttls", tls=client_side)
        assert (job.state, server.sent[0].user) == (State.SUCCEEDED, "shop")


class EncryptedSmtpServer(SmtpServer):
    """Speaks TLS from the first byte, as on port 465."""

    def start(self) -> None:
        self._server = Listener(self, SmtpSession, 0, certificate()[0])


def test_a_connection_can_be_encrypted_from_the_first_byte(app: Treadle) -> None:
    with EncryptedSmtpServer(user="shop", password="hush") as server:
        job = ended(app, server, user="shop", password="hush", security="tls", tls=certificate()[1])
        assert (job.state, server.sent[0].user) == (State.SUCCEEDED, "shop")


def test_without_encryption_or_with_a_wrong_certificate_nothing_is_sent(app: Treadle, server: SmtpServer) -> None:
    job = ended(app, server, user="shop", password="hush", security="starttls")
    assert (job.reason, job.attempt) == (Reason.PERMANENT, 1)
    assert "does not offer what Smtp(security=, user=) asks for" in job.error.message
    server_side, _ = certificate()
    with fakes.smtp(starttls=server_side) as unknown:
        task = mailer(app, to_smtp(unknown, security="starttls"), name="unknown")
        job = attempted(app, task.enqueue(Email(**MAIL)))
        assert (job.state, job.error.type) == (State.PENDING, "treadle.errors.Unreachable")
        assert "CERTIFICATE_VERIFY_FAILED" in job.error.message
        assert unknown.sent == server.sent == []


def test_a_refused_login_names_the_setting_and_is_not_repeated(app: Treadle) -> None:
    with fakes.smtp(user="shop", password="hush") as server:
        job = ended(app, server, user="shop", password="wrong-canary")
    assert (job.state, job.reason, job.attempt) == (State.FAILED, Reason.PERMANENT, 1)
    assert "look at Smtp(user=, password=)" in job.error.message
    assert "canary" not in repr(job)


@pytest.mark.parametrize(
    ("status", "on", "failed"),
    [
        (421, "CONNECT", False), (554, "CONNECT", True), (451, "MAIL *", False), (550, "MAIL *", True),
        (451, "RCPT *", False), (550, "RCPT *", True), (452, "", False), (554, "", True), (454, "AUTH *", False),
    ],
)  # fmt: skip
def test_a_5xx_ends_the_job_and_a_4xx_is_tried_again(
    app: Treadle, clock: FakeClock, status: int, on: str, failed: bool
) -> None:
    with fakes.smtp(user="shop", password="hush") as server:
        server.fail_next(status, on=on, times=2 if on == "AUTH *" else 1)  # a login is tried in two ways
        job = ended(app, server, user="shop", password="hush")
        assert (job.state, job.attempt) == (State.FAILED if failed else State.PENDING, 1)
        assert str(status) in job.error.message
        assert server.sent == []
        clock.advance(minutes=1)
        after = attempted(app, job)
    assert (after.state, len(server.sent)) == ((State.FAILED, 0) if failed else (State.SUCCEEDED, 1))


def test_a_server_that_cannot_be_reached_or_hangs_up_early_is_tried_until_the_attempts_are_spent(
    app: Treadle, clock: FakeClock, server: SmtpServer
) -> None:
    server.drop_next(before=True, on="CONNECT")
    job = ended(app, server)
    assert (job.state, job.error.type) == (State.PENDING, "treadle.errors.Unreachable")
    server.drop_next(on="RCPT *")
    clock.advance(minutes=1)
    assert attempted(app, job).error.type == "treadle.errors.Unreachable"
    server.close()
    clock.advance(minutes=1)
    job = attempted(app, job)
    assert (job.state, job.reason, job.failures) == (State.FAILED, Reason.EXHAUSTED, 3)
    assert "cannot be reached" in job.error.message


def test_one_who_is_refused_does_not_keep_the_mail_from_the_others(app: Treadle, server: SmtpServer) -> None:
    server.refuse("bob@*")
    job = ended(app, server, THREE)
    assert [got.recipients for got in server.sent] == [["ada@example.org", "cid@example.org"]]
    assert job.result["refused"] == {"bob@example.org": "550 5.1.1 Mailbox unavailable"}
    server.refuse("*")
    job = attempted(app, app.enqueue("email.send", THREE))
    assert (job.reason, job.attempt, len(server.sent)) == (Reason.PERMANENT, 1, 1)
    assert "every recipient is refused: ada@example.org: 550" in job.error.message


@any_store
def test_one_who_is_put_off_gets_it_later_and_the_others_do_not_get_it_again(
    app: Treadle, clock: FakeClock, server: SmtpServer
) -> None:
    server.refuse("bob@*", 450)
    server.refuse("cid@*", 451)
    job = ended(app, server, THREE)
    assert job.state is State.PENDING
    assert "bob@example.org: 450" in job.error.message
    assert job.error.message.endswith("These are tried again. The mail went to 1 other, and is not repeated for them")
    server.accept("bob@*")
    clock.advance(minutes=1)
    assert attempted(app, job).state is State.PENDING
    server.accept("cid@*")
    server.refuse("cid@*", 550)
    clock.advance(minutes=1)
    job = attempted(app, job)
    assert [got.recipients for got in server.sent] == [["ada@example.org"], ["bob@example.org"]]
    assert {got.message["Message-ID"] for got in server.sent} == {f"<{job.id}@example.org>"}
    assert (job.state, job.result["refused"].keys()) == (State.SUCCEEDED, {"cid@example.org"})


def test_one_who_is_put_off_to_the_end_fails_the_job_although_the_others_have_it(
    app: Treadle, clock: FakeClock, server: SmtpServer
) -> None:
    server.refuse("bob@*", 450)
    job = ended(app, server, THREE)
    for _ in range(2):
        clock.advance(minutes=1)
        job = attempted(app, job)
    assert (job.reason, len(server.sent)) == (Reason.EXHAUSTED, 1)
    assert "every recipient is put off: bob@example.org" in job.error.message
    server.accept("bob@*")
    app.retry(job)
    assert attempted(app, job).state is State.SUCCEEDED  # and nobody else got it again
    assert [got.recipients for got in server.sent] == [["ada@example.org", "cid@example.org"], ["bob@example.org"]]


ENDS = {"park": (State.FAILED, 1, None), "send": (State.SUCCEEDED, 2, None), "skip": (State.SUCCEEDED, 1, True)}


@any_store
@pytest.mark.parametrize("policy", ENDS)
def test_an_answer_that_does_not_come_is_settled_as_the_policy_says(
    app: Treadle, clock: FakeClock, server: SmtpServer, policy: str
) -> None:
    server.drop_next()
    job = attempted(app, mailer(app, to_smtp(server), on_ambiguous=policy).enqueue(Email(**MAIL)))
    clock.advance(minutes=1)
    job = attempted(app, job)
    state, mails, unconfirmed = ENDS[policy]
    assert (job.state, len(server.sent)) == (state, mails)
    if policy == "park":
        assert (job.error.type, job.reason) == ("treadle.errors.Parked", Reason.PERMANENT)
        assert "did not answer for the message" in job.error.message
    else:
        assert (job.result["message_id"], job.result.get("unconfirmed")) == (f"<{job.id}@example.org>", unconfirmed)


def test_skip_takes_as_sent_only_what_may_have_been_sent(app: Treadle, clock: FakeClock, server: SmtpServer) -> None:
    """Of some it is known that they do not have the mail, although nobody knows of the others."""
    server.refuse("bob@*", 450)
    server.refuse("cid@*", 550)
    server.drop_next()
    job = attempted(app, mailer(app, to_smtp(server), on_ambiguous="skip").enqueue(Email(**THREE)))
    assert job.state is State.PENDING
    assert "These are tried again. The mail may have gone to 1 other" in job.error.message
    server.accept("bob@*")
    clock.advance(minutes=1)
    job = attempted(app, job)
    assert [got.recipients for got in server.sent] == [["ada@example.org"], ["bob@example.org"]]
    assert (job.state, job.result["unconfirmed"], list(job.result["refused"])) == (
        State.SUCCEEDED, True, ["cid@example.org"]
    )  # fmt: skip


@pytest.mark.parametrize("trouble", ["refused", "put off", "away", "drop"])
def test_an_error_about_the_last_recipients_says_that_others_have_the_mail(
    app: Treadle, clock: FakeClock, server: SmtpServer, trouble: str
) -> None:
    server.refuse("bob@*", 450)
    job = ended(app, server, THREE)
    if trouble == "refused":
        server.fail_next(550, on="MAIL *")
    elif trouble == "away":
        server.close()
    elif trouble == "drop":
        server.accept("bob@*")
        server.drop_next()
    clock.advance(minutes=1)
    job = attempted(app, job)
    assert job.state is (State.FAILED if trouble in ("refused", "drop") else State.PENDING)
    assert job.error.message.endswith(". The mail went to 2 others, and is not repeated for them")


@pytest.mark.parametrize("status", [354, 199, 650])
def test_a_senseless_answer_to_the_whole_message_leaves_it_in_doubt(
    app: Treadle, server: SmtpServer, status: int
) -> None:
    server.fail_next(status)
    job = ended(app, server)
    assert (job.state, job.error.type) == (State.FAILED, "treadle.errors.Parked")
    assert "gave no answer that can be read for the message" in job.error.message


@pytest.mark.parametrize(
    ("serves", "security", "words"),
    [
        ("smtp", "tls", "cannot be reached: SSLError: "),
        ("tls", "plain", "cannot be reached: "),
        ("http", "plain", "does not speak SMTP: "),
    ],
)
def test_a_port_of_another_protocol_is_said_with_what_to_look_at(
    app: Treadle, serves: str, security: str, words: str
) -> None:
    with ExitStack() as stack:
        if serves == "http":
            port = stack.enter_context(greeting(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
        elif serves == "tls":
            port = int(stack.enter_context(fakes.webhook(tls=certificate()[0])).url.rpartition(":")[2])
        else:
            port = stack.enter_context(fakes.smtp()).port
        way = Smtp("127.0.0.1", port, security=security, sender=SENDER, timeout="500ms")
        job = attempted(app, mailer(app, way).enqueue(Email(**MAIL)))
    assert job.state is State.PENDING
    assert f"127.0.0.1:{port} {words}" in job.error.message
    assert job.error.message.endswith("look at port and security= of Smtp(...)")


@contextmanager
def greeting(line: bytes) -> Iterator[int]:
    """A port that says this to whoever comes."""

    def greet(listener: socket.socket) -> None:
        with suppress(OSError):
            client, _ = listener.accept()
            with client:
                client.sendall(line)
                client.recv(1000)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=greet, args=(listener,))
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


class OddSession(SmtpSession):
    def _do_ehlo(self, _: str) -> str:
        self._greet()
        piece = {"endless": b"250-again\r\n" * 200, "drip": b"2"}.get(self.fake.greeting, b"")
        while piece and not self.fake.closing:
            try:
                self.wfile.write(piece)
            except OSError:
                break
            self.fake._closing.wait(0.02 if self.fake.greeting == "drip" else 0)
        return f"250-treadle.test\r\n250 {self.fake.greeting}"


class OddSmtpServer(SmtpServer):
    """Greets in a way of its own."""

    def __init__(self, greeting: str) -> None:
        super().__init__()
        self.greeting = greeting

    def start(self) -> None:
        self._server = Listener(self, OddSession, 0)


def test_a_server_without_a_known_way_to_log_in_ends_the_job(app: Treadle) -> None:
    with OddSmtpServer("AUTH FOO") as server:
        job = ended(app, server, user="shop", password="canary")
    assert (job.reason, job.attempt) == (Reason.PERMANENT, 1)
    assert "offers no way to log in that is known here" in job.error.message


@pytest.mark.parametrize(("greeting", "timeout"), [("endless", 600), ("drip", 0.2)])
def test_an_answer_without_an_end_is_given_up_on(app: Treadle, greeting: str, timeout: float) -> None:
    """Too long, or too slow: each piece comes before the timeout, the whole never does."""
    with OddSmtpServer(greeting) as server:
        job = ended(app, server, timeout=timeout)
    assert (job.state, job.error.type) == (State.PENDING, "treadle.errors.Unreachable")
    assert ("longer than 65,536 bytes" if greeting == "endless" else "timed out") in job.error.message


def test_a_slow_server_is_given_up_on_after_the_timeout(app: Treadle, server: SmtpServer) -> None:
    server.delay_next(60, on="CONNECT")
    job = ended(app, server, timeout=0.1)
    assert (job.state, job.error.type) == (State.PENDING, "treadle.errors.Unreachable")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"host": ""}, "host"), ({"host": "a b"}, "host"), ({"host": "smtp://a"}, "host"), ({"port": 65536}, "port"),
        ({"port": True}, "port"), ({"security": "ssl"}, "security"), ({"user": "u"}, "password"),
        ({"password": "canary"}, "user"), ({"user": "u", "password": "canäry"}, "password"),
        ({"timeout": 0}, "timeout"),
        ({"user": "u\n", "password": "canary"}, "user"), ({"sender": "nobody"}, "sender"),
        ({"timeout": "soon"}, "timeout"), ({"tls": True}, "tls"), ({"sender": 5}, "sender"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_by_its_name(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=rf"^Smtp: {field}: ") as refused:
        Smtp(**{"host": "mail.example.org", **given})
    assert "can\u00e4ry" not in str(refused.value)
    assert "canary" not in str(refused.value)


def test_tls_is_checked_unless_one_says_otherwise(app: Treadle) -> None:
    """The standard library's own default would take any certificate."""
    server_side, _ = certificate()
    with fakes.smtp(starttls=server_side) as server:
        unchecked = ssl.create_default_context()
        unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
        assert ended(app, server, security="starttls", tls=unchecked).state is State.SUCCEEDED
