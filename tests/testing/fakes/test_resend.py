"""The stand-in for Resend, over plain HTTP."""

from typing import Any

import httpx2
import pytest

from treadle.testing import fakes
from treadle.testing.fakes import ResendServer

MAIL = {"from": "Shop <shop@example.org>", "to": ["ada@example.org"], "subject": "Thanks", "text": "We have it."}


def post(http: httpx2.Client, server: ResendServer, mail: Any = MAIL, *, key: str | None = None) -> httpx2.Response:
    headers = {"Authorization": "Bearer re_fake", **({} if key is None else {"Idempotency-Key": key})}
    return http.post(f"{server.url}/emails", json=mail, headers=headers)


def test_a_mail_is_sent_and_can_be_looked_up(http: httpx2.Client) -> None:
    with fakes.resend() as server:
        answer = post(http, server)
        [mail] = server.sent
        assert (answer.status_code, answer.json()) == (200, {"id": mail["id"]})
        assert (mail["subject"], mail["to"]) == ("Thanks", ["ada@example.org"])
        found = http.get(f"{server.url}/emails/{mail['id']}", headers={"Authorization": "Bearer re_fake"})
        assert (found.json()["object"], found.json()["id"]) == ("email", mail["id"])


def test_a_key_sends_once_in_its_24_hours_and_not_for_another_mail(http: httpx2.Client) -> None:
    with fakes.resend() as server:
        first = post(http, server, key="job-7").json()
        server.clock.advance(hours=23, minutes=59)
        assert post(http, server, key="job-7").json() == first
        other = post(http, server, {**MAIL, "subject": "Other"}, key="job-7")
        assert (other.status_code, other.json()["name"]) == (409, "invalid_idempotent_request")
        assert len(server.sent) == 1
        server.clock.advance(minutes=1)
        assert post(http, server, key="job-7").json() != first
        assert [mail["idempotency_key"] for mail in server.sent] == ["job-7", "job-7"]


def test_an_answer_that_was_lost_is_given_again_with_the_key(http: httpx2.Client) -> None:
    with fakes.resend() as server:
        server.drop_next()
        with pytest.raises(httpx2.RemoteProtocolError):
            post(http, server, key="job-7")
        assert post(http, server, key="job-7").json() == {"id": server.sent[0]["id"]}
        assert len(server.sent) == 1


def test_a_refused_mail_uses_up_no_key(http: httpx2.Client) -> None:
    with fakes.resend() as server:
        assert post(http, server, {**MAIL, "to": []}, key="job-7").status_code == 422
        assert post(http, server, key="job-7").status_code == 200
        assert post(http, server, key="k" * 257).json()["name"] == "invalid_idempotency_key"


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        ({"from": None}, "missing_required_field", "Missing `from` field."),
        ({"subject": ""}, "missing_required_field", "Missing `subject` field."),
        ({"text": None}, "missing_required_field", "Missing `html` or `text` field."),
        ({"from": "shop"}, "invalid_from_address", "Invalid `from` field."),
        ({"to": ["ada@example.org", "bob"]}, "validation_error", "Invalid `to` field."),
        ({"to": ["ada@example.org"] * 51}, "validation_error", "at most 50 addresses"),
    ],
)
def test_what_is_no_mail_is_refused_by_its_field(
    http: httpx2.Client, change: dict[str, Any], name: str, words: str
) -> None:
    with fakes.resend() as server:
        answer = post(http, server, {**MAIL, **change})
        assert (answer.status_code, answer.json()["statusCode"], answer.json()["name"]) == (422, 422, name)
        assert words in answer.json()["message"]
        assert server.sent == []


def test_a_failure_has_the_vendors_shape_and_headers(http: httpx2.Client) -> None:
    with fakes.resend() as server:
        server.fail_next(status=429, headers={"Retry-After": "2"})
        answer = post(http, server)
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "2")
        assert answer.json()["name"] == "rate_limit_exceeded"
        server.fail_next(status=429, error="daily_quota_exceeded")
        assert post(http, server).json()["name"] == "daily_quota_exceeded"


def test_only_its_key_opens_it(http: httpx2.Client) -> None:
    with fakes.resend(api_key="re_other") as server:
        assert post(http, server).json()["name"] == "invalid_api_key"
        assert http.post(f"{server.url}/emails", json=MAIL).json()["name"] == "missing_api_key"
        headers = {"Authorization": "Bearer re_other"}
        assert http.get(f"{server.url}/domains", headers=headers).json()["name"] == "not_found"
        assert http.delete(f"{server.url}/emails", headers=headers).json()["name"] == "method_not_allowed"
        assert http.post(f"{server.url}/emails", content=b"{", headers=headers).json()["message"] == (
            "the body is not valid JSON"
        )


def test_a_batch_is_sent_whole_or_not_at_all(http: httpx2.Client) -> None:
    headers = {"Authorization": "Bearer re_fake"}
    with fakes.resend() as server:
        answer = http.post(f"{server.url}/emails/batch", json=[MAIL, MAIL], headers=headers)
        assert [one["id"] for one in answer.json()["data"]] == [mail["id"] for mail in server.sent]
        refused = http.post(f"{server.url}/emails/batch", json=[MAIL, {}], headers=headers)
        assert (refused.status_code, len(server.sent)) == (422, 2)
        assert http.post(f"{server.url}/emails/batch", json=[], headers=headers).status_code == 422
