"""Which mails email.send accepts: addresses, one-line headers, and how many; all of it before a job is stored."""

import pytest
from pydantic import ValidationError

from treadle.builtin.email_message import LONGEST_LINE, Email, MailAddress


def email(**fields: object) -> Email:
    return Email(**{"to": "ada@example.org", "subject": "Thanks", "text": "We have it.", **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "address", "name", "written"),
    [
        ("ada@example.org", "ada@example.org", "", "ada@example.org"),
        (" ada@example.org ", "ada@example.org", "", "ada@example.org"),
        ("<ada@example.org>", "ada@example.org", "", "ada@example.org"),
        ("Ada Lovelace <ada@example.org>", "ada@example.org", "Ada Lovelace", "Ada Lovelace <ada@example.org>"),
        ("J. R. Ada <a@b>", "a@b", "J. R. Ada", '"J. R. Ada" <a@b>'),
        ('"Lovelace, Ada" <ada@example.org>', "ada@example.org", "Lovelace, Ada", '"Lovelace, Ada" <ada@example.org>'),
        ("Zoë <o'neil+x@mail.example.co>", "o'neil+x@mail.example.co", "Zoë", "Zoë <o'neil+x@mail.example.co>"),
        ("root@localhost", "root@localhost", "", "root@localhost"),
        ("a@xn--bcher-kva.example", "a@xn--bcher-kva.example", "", "a@xn--bcher-kva.example"),
    ],
)
def test_an_address_is_read_with_and_without_a_name(text: str, address: str, name: str, written: str) -> None:
    read = MailAddress.of(text)
    assert (read.address, read.name, str(read)) == (address, name, written)
    assert MailAddress.of(str(read)) == read


@pytest.mark.parametrize(
    "text",
    [
        "", "ada", "@example.org", "ada@", "ada@@example.org", "a da@example.org",
        "ada@example..org", ".ada@example.org",
        "ada@-example.org", "a..b@example.org", "ada@example.org, bob@example.org",
        "<ada@example.org", "ada@example.org>",
        "Ada <ada>", "Lovelace, Ada <ada@example.org>", 'A"b <ada@example.org>', "Ada <a@b> <c@d>",
        "ada@bücher.example",
        "ada@example.org\r\nBcc: eve@example.org", "Ada\n <ada@example.org>", "ada\0@example.org",
        "x" * 65 + "@example.org",
        "a@" + ".".join(["x" * 60] * 5), "n" * 1000 + " <ada@example.org>", "ada@example.org\u2028",
    ],
)  # fmt: skip
@pytest.mark.parametrize("field", ["to", "cc", "bcc", "reply_to", "sender"])
def test_what_is_no_address_is_refused_in_every_field_by_its_name(text: str, field: str) -> None:
    given = text if field == "sender" else ["bob@example.org", text]
    with pytest.raises(ValidationError) as refused:
        email(**{field: given})
    assert refused.value.errors()[0]["loc"][0] == field


@pytest.mark.parametrize("broken", ["a\nb", "a\r\nBcc: eve@example.org", "a\rb", "a\0b", "a\tb", "a\x85b", "a\u2029b"])
@pytest.mark.parametrize("place", ["subject", "header"])
def test_no_line_break_gets_into_a_header(broken: str, place: str) -> None:
    with pytest.raises(ValidationError, match="holds a line break or a control character; remove it"):
        email(**({"subject": broken} if place == "subject" else {"headers": {"X-Order": broken}}))


@pytest.mark.parametrize(
    "name",
    [
        "From", "to", "CC", "Bcc", "Subject", "Message-ID", "Date", "Sender", "Reply-To", "Return-Path", "Received",
        "MIME-Version", "Content-Type", "content-transfer-encoding", "Resent-To", "DKIM-Signature", "ARC-Seal",
    ],
)  # fmt: skip
def test_headers_that_the_task_writes_itself_are_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="is set by the task itself"):
        email(headers={name: "x"})


@pytest.mark.parametrize("name", ["", "X Order", "X:Order", "X-Örder", "X-\n", "x" * 77])
def test_a_header_has_a_name_that_a_mail_can_carry(name: str) -> None:
    with pytest.raises(ValidationError, match="is not a name of a header"):
        email(headers={name: "x"})


def test_a_mail_has_a_text_or_html_and_somebody_to_go_to() -> None:
    assert email(text=None, html="<p>hi</p>").html == "<p>hi</p>"
    for fields, words in (
        ({"text": None}, "text: is missing, and so is html"),
        ({"text": "", "html": ""}, "text: is missing, and so is html"),
        ({"to": []}, "to: is empty"),
        ({"attachments": []}, "Extra inputs are not permitted"),
    ):
        with pytest.raises(ValidationError, match=words):
            email(**fields)


def test_limits_hold_up_to_the_number_that_the_error_names() -> None:
    fifty = [f"a{number}@example.org" for number in range(50)]
    assert len(email(to=fifty[:20], cc=fifty[20:30], bcc=fifty[30:], reply_to=fifty).envelope()) == 50
    assert email(subject="x" * LONGEST_LINE, headers={f"X-{number}": "v" for number in range(20)}).headers
    for fields, words in (
        ({"cc": fifty}, "to: holds 51 addresses, with cc and bcc; the limit is 50"),
        ({"reply_to": [*fifty, "b@example.org"]}, "reply_to: holds 51 addresses; the limit is 50"),
        ({"subject": "x" * (LONGEST_LINE + 1)}, "is 901 characters long; the limit is 900"),
        ({"headers": {"X-A": "x" * (LONGEST_LINE + 1)}}, "'X-A' is 901 characters long; the limit is 900"),
        ({"headers": {f"X-{number}": "v" for number in range(21)}}, "are 21; the limit is 20"),
        ({"headers": {"X-A": "1", "x-a": "2"}}, "one name is there twice"),
    ):
        with pytest.raises(ValidationError, match=words):
            email(**fields)


def test_somebody_who_is_named_twice_gets_one_mail() -> None:
    mail = email(cc=["Ada <ada@example.org>", "bob@example.org"], bcc="bob@example.org")
    assert mail.envelope() == ["ada@example.org", "bob@example.org"]
