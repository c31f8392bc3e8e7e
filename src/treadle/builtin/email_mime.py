"""A mail as it goes over the wire. Headers are built here, and nothing that was given is parsed as one."""

from email import policy
from email.header import Header
from email.message import EmailMessage
from email.utils import format_datetime

from treadle.builtin.email_message import MailAddress
from treadle.builtin.email_transport import OutgoingMail

LONGEST_ENCODED_LINE = 75  # characters
FIRST_LINE_LESS = 20  # of them, for the name of the header

_POLICY = policy.SMTP.clone(cte_type="7bit", refold_source="none")


def mime_message(mail: OutgoingMail) -> EmailMessage:
    """The mail in 7 bits, without those who get a blind copy.

    `message[name] = text` would parse the text: an encoded word in it, such as =?utf-8?q?=0D=0ABcc:_x?=, would become
    a line of its own.
    """
    email, message = mail.email, EmailMessage(_POLICY)
    people = {"From": [mail.sender], "To": email.recipients("to"), "Cc": email.recipients("cc")}
    for name, listed in {**people, "Reply-To": email.recipients("reply_to")}.items():
        if listed:
            message.set_raw(name, ",\r\n ".join(_person(one) for one in listed))
    message.set_raw("Subject", _words(email.subject))
    message.set_raw("Date", format_datetime(mail.now()))
    message.set_raw("Message-ID", mail.message_id)
    for name, value in email.headers.items():
        message.set_raw(name, value if value.isascii() else _encoded(value))
    if email.text:
        message.set_content(email.text)
    if email.html and email.text:
        message.add_alternative(email.html, subtype="html")
    elif email.html:
        message.set_content(email.html, subtype="html")
    return message


def _person(one: MailAddress) -> str:
    return str(one) if _is_plain(one.name) else f"{_encoded(one.name)}\r\n <{one.address}>"


def _words(text: str) -> str:
    return text if _is_plain(text) else _encoded(text)


def _is_plain(text: str) -> bool:
    """Whether it goes as it is: a reader would take =? for the beginning of an encoded word."""
    return text.isascii() and "=?" not in text


def _encoded(text: str) -> str:
    header = Header(text, "utf-8", maxlinelen=LONGEST_ENCODED_LINE, header_name="X" * FIRST_LINE_LESS)
    return header.encode(linesep="\r\n")
