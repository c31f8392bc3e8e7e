"""The headers of a mail as a mail server receives them: nothing that was given can become a line of its own."""

import random
import re
from collections.abc import Iterator
from email.header import decode_header, make_header
from email.utils import getaddresses
from typing import Any

import pytest

from tests.builtin.mailing import MAIL, attempted, mailer, to_smtp
from treadle import State, Treadle
from treadle.builtin.email_message import MailAddress
from treadle.builtin.email_send import Email
from treadle.testing import fakes
from treadle.testing.fakes import SmtpServer

EVIL = "=?utf-8?q?foo=0D=0ABcc=3A_eve=40example.org=0D=0A=0D=0Aanother_text?="
PIECES = [*"abc XYZ éüß漢字🙂,.;'()[]:@=?_-!#", "=?utf-8?q?", "=0D=0A", "?= ", " =?utf-8?b?Cg==?= "]
PIECES += ["\u200b", "\u202e", "word " * 9]
OWN = {"From", "To", "Cc", "Reply-To", "Subject", "Date", "Message-ID", "X-Note", "MIME-Version", "Content-Type",
       "Content-Transfer-Encoding"}  # fmt: skip


@pytest.fixture
def server() -> Iterator[SmtpServer]:
    with fakes.smtp() as running:
        yield running


def lines_of(data: bytes) -> list[bytes]:
    head, _, _ = data.partition(b"\r\n\r\n")
    return head.split(b"\r\n")


def names_of(data: bytes) -> list[str]:
    """The names of the headers, in the bytes that came."""
    return [line.partition(b":")[0].decode() for line in lines_of(data) if not line.startswith((b" ", b"\t"))]


def texts_of(data: bytes) -> dict[str, str]:
    """The headers by name, unfolded and not decoded."""
    lines = data.decode().partition("\r\n\r\n")[0].replace("\r\n ", " ").split("\r\n")
    return {name: text.removeprefix(" ") for name, _, text in (line.partition(":") for line in lines)}


def shown(text: str) -> str:
    """What a reader is shown, without white space: encoded words are folded at it."""
    return unspaced(str(make_header(decode_header(text))))


def unspaced(text: str) -> str:
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize(
    "given",
    [
        {"subject": EVIL}, {"subject": f"Grüße {EVIL}"}, {"subject": EVIL.replace("=0D", "")},
        {"to": f"{EVIL} <ada@example.org>"}, {"to": f'"{EVIL}" <ada@example.org>'},
        {"cc": f"Zoë {EVIL} <zoe@example.org>"}, {"reply_to": f"{EVIL} <ada@example.org>"},
        {"sender": f"{EVIL} <shop@example.org>"}, {"headers": {"X-Note": EVIL}},
        {"headers": {"X-Note": f"ë {EVIL}"}}, {"headers": {"Orig-Date": f"ë {EVIL}"}},
    ],
    ids=str,
)  # fmt: skip
def test_an_encoded_line_break_in_a_header_stays_in_its_header(
    app: Treadle, server: SmtpServer, given: dict[str, Any]
) -> None:
    job = attempted(app, mailer(app, to_smtp(server)).enqueue(Email(**{**MAIL, **given})))
    assert job.state is State.SUCCEEDED
    [got] = server.sent
    assert set(names_of(got.data)) <= OWN | set(given.get("headers", {}))
    assert got.data.partition(b"\r\n\r\n")[2] == b"We have it.\r\n"
    assert got.recipients == [
        MailAddress.of(str({**MAIL, **given}["to"])).address,
        *["zoe@example.org"] * ("cc" in given),
    ]
    assert shown(texts_of(got.data)["Subject"]) == unspaced(str({**MAIL, **given}["subject"]))


def some(rnd: random.Random, sizes: list[int]) -> str:
    return "".join(rnd.choice(PIECES) for _ in range(rnd.choice(sizes)))


def test_whatever_names_and_subjects_hold_they_arrive_as_they_were_given(app: Treadle, server: SmtpServer) -> None:
    rnd = random.Random(5)
    task = mailer(app, to_smtp(server))
    mails = []
    while len(mails) < 60:
        to = [f'"{some(rnd, [3, 10, 30])[:300]}" <a{number}@example.org>' for number in range(rnd.choice([1, 2, 6]))]
        mails.append(
            {"to": to, "subject": some(rnd, [1, 3, 60, 150])[:900], "headers": {"X-Note": some(rnd, [3, 60])[:900]}}
        )
    jobs = [task.enqueue(Email(**{**MAIL, **mail})) for mail in mails]
    attempted(app, jobs[-1])
    by_id = {got.message["Message-ID"].strip("<>").partition("@")[0]: got for got in server.sent}
    for job, mail in zip(jobs, mails, strict=True):
        got = by_id[job.id]
        assert len(names_of(got.data)) == len(set(names_of(got.data)))
        assert set(names_of(got.data)) <= OWN
        assert got.data.isascii()
        assert max(map(len, lines_of(got.data))) <= 998
        people = [MailAddress.of(text) for text in mail["to"]]
        assert got.recipients == [one.address for one in people]
        texts = texts_of(got.data)
        listed = getaddresses([texts["To"]])
        assert [address for _, address in listed] == got.recipients
        assert [shown(name) for name, _ in listed] == [unspaced(one.name) for one in people]
        assert shown(texts["Subject"]) == unspaced(str(mail["subject"]))
