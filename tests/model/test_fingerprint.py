"""One kind of failure has one fingerprint, whatever varies from job to job; another kind has another."""

import time

import pytest

from treadle.model import JobError
from treadle.model.fingerprint import FINGERPRINT, fingerprint, user_frame, without_values

TRACE = """Traceback (most recent call last):
  File "/srv/{release}/shop/mail.py", line {line}, in send_receipt
    client.post(url)
  File "/srv/venv/lib/python3.11/site-packages/httpx/_client.py", line 1150, in post
    raise ReadTimeout
httpx.ReadTimeout: too slow
"""


PRINTED = TRACE.format(release="r1", line=7)


def an_error(message: str = "boom", kind: str = "ValueError", release: str = "r1", line: int = 7) -> JobError:
    return JobError(kind, message, TRACE.format(release=release, line=line), 1, "2026-11-18T00:00:00+00:00")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 17 is gone", "order 4711 is gone"),
        ("no user 'ada' here", "no user 'it is \"grace\"' here"),
        ('no user "ada"', 'no user "bob"'),
        ("job 0199e0c5-6f3b-7d41-9c1e-2b7f5f0a8c11 lost", "job abcdabcd-1111-7d41-9c1e-2b7f5f0a8c11 lost"),
        ("cus_8f3Kd92 has no card", "cus_1aa has no card"),
        ("at 2026-11-18T12:00:00+01:00 too late", "at 2025-01-01T00:00:00Z too late"),
        ("10.0.0.1:5432 refused", "db7.internal:5433 refused"),
        ("line one\n  and two", "line one and two"),
        ("no answer for ada@example.org", "no answer for grace.hopper+1@navy.example"),
        ("took 3.5 s of 3", "took 10.25 s of 11"),
    ],
)
def test_numbers_ids_and_quoted_values_do_not_count(one: str, other: str) -> None:
    assert fingerprint(an_error(one)) == fingerprint(an_error(other))
    assert FINGERPRINT.fullmatch(fingerprint(an_error(one)))


def test_words_type_and_place_do_count() -> None:
    kinds = [
        an_error("it can't be read"),
        an_error("it can't be written"),
        an_error("it can't be read", kind="OSError"),
        an_error("it can't be read")._replace(traceback=PRINTED.replace("send_receipt", "send_reminder")),
        an_error("it can't be read")._replace(traceback=""),
    ]
    assert len({fingerprint(kind) for kind in kinds}) == len(kinds)


def test_the_next_release_has_the_same_one_at_another_line_of_another_folder() -> None:
    assert fingerprint(an_error(release="r2", line=99)) == fingerprint(an_error())


def test_the_place_is_the_innermost_of_your_own_code_in_the_last_traceback() -> None:
    assert user_frame(PRINTED) == "mail.py:send_receipt"
    chained = f"{PRINTED}\nThe above exception was the direct cause of it:\n\n{PRINTED.replace('mail.py', 'sms.py')}"
    assert user_frame(chained) == "sms.py:send_receipt"
    library = 'Traceback (most recent call last):\n  File "/usr/lib/python3.11/json/decoder.py", line 3, in decode\n'
    assert user_frame(library) == "decoder.py:decode"
    assert user_frame("Crashed") == ""


def test_a_message_without_its_values_can_still_be_read() -> None:
    assert without_values("user 'ada' has 3 cards, id=0x7f, isn't known") == "user ? has # cards, id=#, isn't known"


def test_a_hostile_message_takes_no_time() -> None:
    began = time.process_time()
    for message in ("a" * 100_000, "'" * 100_000, "1" * 100_000, "a." * 50_000, "\"'`" * 30_000, "\ud800" * 1000):
        fingerprint(an_error(message))
    assert time.process_time() - began < 0.5
