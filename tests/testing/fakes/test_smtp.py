"""The stand-in for a mail server, spoken to by the standard library."""

import smtplib
import ssl
from email.message import EmailMessage

import pytest

from tests.testing.fakes.certificates import certificate
from treadle.testing import fakes
from treadle.testing.fakes import SmtpServer


def mail(to: str = "ada@example.org") -> EmailMessage:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "shop@example.org", to, "Überweisung"
    message["Message-ID"] = "<job-7@example.org>"
    message.set_content("Grüße\n.a line that begins with a dot\n")
    message.add_alternative("<p>Grüße</p>", subtype="html")
    return message


def send(server: SmtpServer, message: EmailMessage) -> dict[str, tuple[int, bytes]]:
    with smtplib.SMTP(server.host, server.port, timeout=5) as client:
        return client.send_message(message)


def test_a_mail_arrives_as_it_was_written() -> None:
    with fakes.smtp() as server:
        assert send(server, mail("ada@example.org, bob@example.org")) == {}
        [received] = server.sent
        assert (received.sender, received.recipients) == ("shop@example.org", ["ada@example.org", "bob@example.org"])
        assert received.message["Message-ID"] == "<job-7@example.org>"
        assert received.message["Subject"] == "Überweisung"
        plain = received.message.get_body(("plain",))
        assert plain is not None
        assert plain.get_content() == "Grüße\n.a line that begins with a dot\n"
        assert received.message.is_multipart()
        assert server.url == f"smtp://127.0.0.1:{server.port}"


def test_a_mailbox_that_is_refused_gets_nothing_and_the_others_do() -> None:
    with fakes.smtp() as server:
        server.refuse("bob@*")
        refused = send(server, mail("ada@example.org, Bob@example.org"))
        assert refused["Bob@example.org"][0] == 550
        assert [received.recipients for received in server.sent] == [["ada@example.org"]]
        with pytest.raises(smtplib.SMTPRecipientsRefused):
            send(server, mail("bob@example.org"))
        server.accept("bob@*")
        assert send(server, mail("bob@example.org")) == {}


def test_a_greylisted_sender_comes_again() -> None:
    with fakes.smtp() as server:
        server.greylist()
        with pytest.raises(smtplib.SMTPRecipientsRefused) as refused:
            send(server, mail())
        assert refused.value.recipients["ada@example.org"][0] == 451
        send(server, mail())
        assert len(server.sent) == 1


def test_a_connection_that_ends_after_the_message_leaves_the_mail_there() -> None:
    with fakes.smtp() as server:
        server.drop_next()
        with pytest.raises(smtplib.SMTPServerDisconnected):
            send(server, mail())
        assert len(server.sent) == 1
        server.drop_next(before=True)
        with pytest.raises(smtplib.SMTPServerDisconnected):
            send(server, mail())
        assert len(server.sent) == 1


def test_a_message_is_refused_and_so_is_any_command() -> None:
    with fakes.smtp() as server:
        server.fail_next(554, error="5.7.1 Spam")
        with pytest.raises(smtplib.SMTPDataError) as refused:
            send(server, mail())
        assert (refused.value.smtp_code, refused.value.smtp_error) == (554, b"5.7.1 Spam")
        server.fail_next(452, on="MAIL *")
        with pytest.raises(smtplib.SMTPSenderRefused):
            send(server, mail())
        server.fail_next(421, on="CONNECT")
        with pytest.raises(smtplib.SMTPConnectError):
            send(server, mail())
        assert server.sent == []
        send(server, mail())


def test_a_server_with_a_login_asks_for_it() -> None:
    with fakes.smtp(user="shop", password="hush") as server:
        with pytest.raises(smtplib.SMTPSenderRefused, match="Authentication required"):
            send(server, mail())
        with smtplib.SMTP(server.host, server.port, timeout=5) as client:
            with pytest.raises(smtplib.SMTPAuthenticationError):
                client.login("shop", "wrong")
            client.login("shop", "hush")
            client.send_message(mail())
        with smtplib.SMTP(server.host, server.port, timeout=5) as client:
            client.ehlo()
            client.user, client.password = "shop", "hush"
            client.auth("LOGIN", client.auth_login)
            client.send_message(mail())
        assert [received.user for received in server.sent] == ["shop", "shop"]


def test_a_connection_is_encrypted_on_request(tmp_path: object) -> None:
    server_side, client_side = certificate()
    with fakes.smtp(starttls=server_side) as server, smtplib.SMTP(server.host, server.port, timeout=5) as client:
        client.starttls(context=client_side)
        client.send_message(mail())
        assert isinstance(client.sock, ssl.SSLSocket)
        assert len(server.sent) == 1


def test_a_message_that_is_too_large_is_refused() -> None:
    with fakes.smtp(max_size=100) as server:
        with pytest.raises(smtplib.SMTPSenderRefused, match="exceeds"):
            send(server, mail())
        with smtplib.SMTP(server.host, server.port, timeout=5) as client:
            client.helo()
            client.does_esmtp = False  # it does not say how large the message is
            with pytest.raises(smtplib.SMTPDataError, match="exceeds"):
                client.sendmail("shop@example.org", ["ada@example.org"], "x" * 200)
        assert server.sent == []


def test_commands_out_of_order_are_told_so() -> None:
    with fakes.smtp() as server, smtplib.SMTP(server.host, server.port, timeout=5) as client:
        client.ehlo()
        assert client.docmd("RCPT", "TO:<ada@example.org>")[0] == 503
        assert client.docmd("DATA")[0] == 503
        assert client.docmd("MAIL", "FROM:ada")[0] == 501
        assert client.docmd("BREW", "coffee")[0] == 500
        assert client.docmd("MAIL", "FROM:<>")[0] == 250
        assert client.docmd("MAIL", "FROM:<>")[0] == 503
        assert client.docmd("RSET")[0] == 250
        assert client.docmd("STARTTLS")[0] == 502
