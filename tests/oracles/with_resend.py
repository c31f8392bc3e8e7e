"""The resend SDK."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import resend
from resend import exceptions

from tests.oracles.raising import raises
from treadle.testing import fakes
from treadle.testing.fakes import ResendServer

MAIL: Any = {
    "from": "Shop <shop@example.org>",
    "to": ["ada@example.org"],
    "subject": "Thanks",
    "html": "<p>We have it.</p>",
}


@contextmanager
def serving() -> Iterator[ResendServer]:
    with fakes.resend() as server:
        resend.api_url, resend.api_key = server.url, server.api_key
        yield server


def test_a_mail_is_sent_and_looked_up() -> None:
    with serving() as server:
        sent = resend.Emails.send({**MAIL, "cc": "bob@example.org", "headers": {"X-Job": "7"}})
        assert sent["id"] == server.sent[0]["id"]
        found = resend.Emails.get(sent["id"])
        assert (found["to"], found["subject"], found["last_event"]) == (["ada@example.org"], "Thanks", "sent")
        assert set(found) - set(resend.Email.__annotations__) - {"object"} <= {"headers", "http_headers"}, set(found)


def test_the_same_key_gives_the_same_mail_and_another_body_is_an_error() -> None:
    with serving() as server:
        first = resend.Emails.send(MAIL, {"idempotency_key": "job-7"})
        assert resend.Emails.send(MAIL, {"idempotency_key": "job-7"})["id"] == first["id"]
        with raises(exceptions.ResendError) as refused:
            resend.Emails.send({**MAIL, "subject": "Other"}, {"idempotency_key": "job-7"})
        assert (refused.value.code, refused.value.error_type) == (409, "invalid_idempotent_request")
        server.clock.advance(hours=24)
        assert resend.Emails.send(MAIL, {"idempotency_key": "job-7"})["id"] != first["id"]


def test_each_error_is_the_one_that_the_client_knows() -> None:
    with serving() as server:
        for change, kind in (
            ({"subject": ""}, exceptions.MissingRequiredFieldsError),
            ({"to": ["ada"]}, exceptions.ValidationError),
        ):
            with raises(kind) as refused:
                resend.Emails.send({**MAIL, **change})
            assert refused.value.code == 422
        for status, kind in ((429, exceptions.RateLimitError), (500, exceptions.ApplicationError)):
            server.fail_next(status, headers={"Retry-After": "2"})
            with raises(kind) as failed:
                resend.Emails.send(MAIL)
            assert {name.lower(): value for name, value in failed.value.headers.items()}["retry-after"] == "2"
        resend.api_key = "wrong"
        with raises(exceptions.InvalidApiKeyError):
            resend.Emails.send(MAIL)
        assert server.sent == []


def test_a_batch_is_sent() -> None:
    with serving() as server:
        sent = resend.Batch.send([MAIL, MAIL], {"idempotency_key": "batch-7"})
        again = resend.Batch.send([MAIL, MAIL], {"idempotency_key": "batch-7"})
        assert [one["id"] for one in sent["data"]] == [one["id"] for one in again["data"]]
        assert len(server.sent) == 2
