"""email.send with Resend: one mail by the job's key, for as long as Resend remembers keys."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.builtin.mailing import MAIL, MINUTELY, attempted, mailer, to_resend
from tests.support.marks import any_store
from treadle import ConfigError, Job, Reason, Retry, State, Treadle
from treadle.builtin.email_send import Email, Resend
from treadle.testing import FakeClock, FakeContext, fakes
from treadle.testing.fakes import ResendServer


@pytest.fixture
def server(clock: FakeClock) -> Iterator[ResendServer]:
    with fakes.resend(clock=clock) as running:
        yield running


def ended(app: Treadle, server: ResendServer, mail: dict[str, Any] = MAIL, **options: Any) -> Job:
    return attempted(app, mailer(app, to_resend(server), **options).enqueue(Email(**mail)))


def test_the_mail_is_asked_for_as_resend_wants_it(app: Treadle, server: ResendServer) -> None:
    mail = {
        "to": ["Zoë <zoe@example.org>"], "cc": "cid@example.org", "bcc": ["dan@example.org"], "subject": "Grüße",
        "text": "hi", "html": "<p>hi</p>", "reply_to": '"Help, Desk" <help@example.org>', "headers": {"X-Order": "7"},
        "sender": "Ops <ops@example.org>",
    }  # fmt: skip
    job = ended(app, server, mail)
    [sent] = server.sent
    assert job.result == {"provider": "resend", "message_id": sent["id"]}
    del sent["id"], sent["created_at"]
    lists = {"cc": ["cid@example.org"], "reply_to": ['"Help, Desk" <help@example.org>']}
    assert sent == {"from": mail.pop("sender"), **mail, **lists, "idempotency_key": job.id}


@any_store
@pytest.mark.parametrize("trouble", ["drop", "drop before", 500, 502, 503, 504])
def test_a_request_without_a_clear_answer_is_repeated_with_the_same_key(
    app: Treadle, clock: FakeClock, server: ResendServer, trouble: str | int
) -> None:
    if isinstance(trouble, int):
        server.fail_next(trouble)
    else:
        server.drop_next(before="before" in trouble)
    job = ended(app, server)
    assert job.state is State.PENDING
    clock.advance(minutes=1)
    job = attempted(app, job)
    assert (job.state, len(server.sent)) == (State.SUCCEEDED, 1)
    assert job.result["message_id"] == server.sent[0]["id"]


def test_a_worker_that_wakes_up_late_sends_no_second_mail(app: Treadle, server: ResendServer) -> None:
    """It froze before its request, and another one has sent the mail meanwhile."""
    job = ended(app, server)
    assert app.tasks["email.send"](FakeContext(job=job), Email(**MAIL)) == job.result
    assert (len(server.requests), len(server.sent)) == (2, 1)


ENDS = {"park": (State.FAILED, 1, None), "send": (State.SUCCEEDED, 2, None), "skip": (State.SUCCEEDED, 1, True)}


@any_store
@pytest.mark.parametrize("policy", ENDS)
def test_once_resend_may_have_forgotten_the_key_the_policy_decides(
    app: Treadle, clock: FakeClock, server: ResendServer, policy: str
) -> None:
    server.drop_next()
    daily = Retry(max_attempts=3, base="1d", cap="1d", jitter=0)
    job = ended(app, server, on_ambiguous=policy, retry=daily)
    assert (job.state, len(server.sent)) == (State.PENDING, 1)
    clock.advance(days=1)
    job = attempted(app, job)
    state, mails, unconfirmed = ENDS[policy]
    assert (job.state, len(server.sent)) == (state, mails)
    if policy != "park":
        assert job.result.get("unconfirmed") is unconfirmed
        assert (job.result["message_id"] is None) == bool(unconfirmed)


@pytest.mark.parametrize(("minutes", "state"), [(23 * 60 - 1, State.SUCCEEDED), (23 * 60, State.FAILED)])
def test_the_key_counts_from_the_first_try_and_an_hour_is_kept_in_reserve(
    app: Treadle, clock: FakeClock, server: ResendServer, minutes: int, state: State
) -> None:
    server.drop_next(2)
    job = ended(app, server)
    clock.advance(minutes=1)
    assert attempted(app, job).state is State.PENDING
    clock.advance(minutes=minutes - 1)
    assert attempted(app, job).state is state
    assert len(server.sent) == 1


@pytest.mark.parametrize("policy", ["park", "skip"])
@pytest.mark.parametrize("status", [401, 429])
def test_a_clear_refusal_after_a_lost_answer_leaves_the_doubt(
    app: Treadle, clock: FakeClock, server: ResendServer, status: int, policy: str
) -> None:
    """The refusal says nothing of the first try, and Resend has forgotten its key a day later."""
    server.drop_next()
    job = ended(app, server, on_ambiguous=policy)
    server.fail_next(status, headers={"Retry-After": "86400"})
    clock.advance(minutes=1)
    job = attempted(app, job)
    clock.advance(days=1)
    if job.state is State.FAILED:
        app.retry(job)
    job = attempted(app, job)
    assert len(server.sent) == 1
    if policy == "park":
        assert (job.state, job.error.type) == (State.FAILED, "treadle.errors.Parked")
        assert "an earlier attempt began it at 2026-01-01 12:00:00 UTC" in job.error.message
    else:
        assert (job.state, job.result["unconfirmed"]) == (State.SUCCEEDED, True)


@pytest.mark.parametrize("policy", ["park", "skip"])
def test_a_day_of_clear_refusals_costs_none_of_the_hours_of_a_later_doubt(
    app: Treadle, clock: FakeClock, server: ResendServer, policy: str
) -> None:
    server.fail_next(429, headers={"Retry-After": "86400"})
    job = ended(app, server, on_ambiguous=policy)
    clock.advance(days=1)
    server.drop_next()
    assert attempted(app, job).state is State.PENDING
    clock.advance(hours=22)
    job = attempted(app, job)
    assert (job.state, job.result, len(server.sent)) == (
        State.SUCCEEDED, {"provider": "resend", "message_id": server.sent[0]["id"]}, 1
    )  # fmt: skip


@pytest.mark.parametrize("asked", ["0", "1", "Thu, 01 Jan 2015 00:00:00 GMT"])
def test_a_429_waits_at_least_as_long_as_the_task_does_itself(
    app: Treadle, clock: FakeClock, server: ResendServer, asked: str
) -> None:
    server.fail_next(429, headers={"Retry-After": asked}, times=2)
    job = ended(app, server, retry=Retry(max_attempts=3, base=60, cap=600, jitter=0))
    assert (job.due_at - clock.now()).total_seconds() == 60
    clock.advance(minutes=1)
    assert (attempted(app, job).due_at - clock.now()).total_seconds() == 120


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 451])
def test_a_4xx_fails_the_job_at_once(app: Treadle, server: ResendServer, status: int) -> None:
    server.fail_next(status)
    job = ended(app, server)
    assert (job.state, job.reason, job.attempt) == (State.FAILED, Reason.PERMANENT, 1)
    assert str(status) in job.error.message
    assert server.sent == []


def test_a_refused_key_names_the_setting(app: Treadle, server: ResendServer) -> None:
    task = mailer(app, to_resend(server, api_key="re_canary"))
    job = attempted(app, task.enqueue(Email(**MAIL)))
    assert job.error.message == "Resend refused the API key (403 invalid_api_key): look at Resend(api_key=...)"


def test_a_429_waits_as_long_as_resend_asks_for(app: Treadle, clock: FakeClock, server: ResendServer) -> None:
    server.fail_next(429, headers={"Retry-After": "500"})
    job = ended(app, server)
    clock.advance(seconds=499)
    assert attempted(app, job).state is State.PENDING
    clock.advance(seconds=1)
    assert attempted(app, job).state is State.SUCCEEDED
    assert len(server.requests) == 2


@pytest.mark.parametrize(("status", "headers"), [(429, {}), (429, {"Retry-After": "soon"}), (408, {})])
def test_a_429_without_a_time_and_a_408_wait_as_the_task_says(
    app: Treadle, clock: FakeClock, server: ResendServer, status: int, headers: dict[str, str]
) -> None:
    server.fail_next(status, headers=headers)
    job = ended(app, server)
    assert (job.due_at - clock.now()).total_seconds() == MINUTELY.base
    clock.advance(minutes=1)
    assert attempted(app, job).state is State.SUCCEEDED


def test_a_wait_is_never_longer_than_a_day(app: Treadle, clock: FakeClock, server: ResendServer) -> None:
    server.fail_next(429, headers={"Retry-After": "9" * 9})
    assert (ended(app, server).due_at - clock.now()).days == 1


def test_a_mail_that_another_attempt_is_still_sending_is_asked_for_again(
    app: Treadle, clock: FakeClock, server: ResendServer
) -> None:
    server.fail_next(409, error="concurrent_idempotent_requests")
    job = ended(app, server)
    assert job.state is State.PENDING
    clock.advance(minutes=1)
    assert attempted(app, job).state is State.SUCCEEDED


def test_a_mail_that_may_have_been_sent_keeps_its_sender(make_app: Any, clock: FakeClock, server: ResendServer) -> None:
    """Resend would refuse other content with the same key."""
    first, second = make_app(), make_app()
    server.drop_next()
    job = ended(first, server)
    mailer(second, to_resend(server, sender="new@example.org"))
    clock.advance(minutes=1)
    job = attempted(second, job)
    assert (job.state, [mail["from"] for mail in server.sent]) == (State.SUCCEEDED, ["shop@example.org"])


def test_a_sender_that_was_refused_can_be_changed(make_app: Any, clock: FakeClock, server: ResendServer) -> None:
    first, second, third = make_app(), make_app(), make_app()
    server.fail_next(403)
    job = ended(first, server)
    mailer(second, to_resend(server, sender="Shop <new@example.org>"))
    second.retry(job)
    server.drop_next()
    job = attempted(second, job)
    mailer(third, to_resend(server, sender="third@example.org"))
    clock.advance(minutes=1)
    job = attempted(third, job)
    assert (job.state, [mail["from"] for mail in server.sent]) == (State.SUCCEEDED, ["Shop <new@example.org>"])


def test_other_content_with_the_same_key_is_never_sent(app: Treadle, server: ResendServer) -> None:
    server.fail_next(409, error="invalid_idempotent_request")
    job = ended(app, server)
    assert (job.reason, server.sent) == (Reason.PERMANENT, [])
    assert "with other content" in job.error.message


def test_a_server_that_is_away_spends_the_attempts(app: Treadle, clock: FakeClock, server: ResendServer) -> None:
    task = mailer(app, to_resend(server))
    server.close()
    job = task.enqueue(Email(**MAIL))
    for _ in range(3):
        job = attempted(app, job)
        clock.advance(minutes=1)
    assert (job.reason, job.failures, job.error.type) == (
        Reason.EXHAUSTED, 3, "treadle.errors.Unreachable"
    )  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[" * 200_000, [], {}, {"id": None}, {"id": [1]}, {"id": "x" * 300_000}, b'{"id": "\xff"}'],
    ids=lambda body: repr(body)[:20],
)
def test_an_answer_without_an_id_may_be_of_another_service_and_is_asked_for_again(
    app: Treadle, clock: FakeClock, server: ResendServer, body: Any
) -> None:
    server.fail_next(200, body=body)
    job = ended(app, server)
    assert job.state is State.PENDING
    assert job.error.message == f"{server.url} answered 200 without an id; is it Resend's API?"
    clock.advance(minutes=1)
    assert (attempted(app, job).state, len(server.sent)) == (State.SUCCEEDED, 1)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"api_key": ""}, "api_key"), ({"api_key": "re_canary\r\nX: y"}, "api_key"), ({"api_key": "canäry"}, "api_key"),
        ({"api_key": None}, "api_key"), ({"sender": "nobody"}, "sender"), ({"url": "api.resend.com"}, "url"),
        ({"url": "https://u:canary@example.org"}, "url"), ({"url": "https://canary.example.org:99999"}, "url"),
        ({"url": "https://canary.example.org/a b"}, "url"), ({"url": "https://canäry.example.org"}, "url"),
        ({"url": "http://canary.example.org"}, "url"), ({"url": "http://10.0.0.1:80"}, "url"), ({"url": None}, "url"),
        ({"url": "https://canary.example.org?a=b"}, "url"), ({"url": "https://example.org#a"}, "url"),
        ({"url": "http://127.0.0.1.example.org"}, "url"), ({"url": "https://example.org:0"}, "url"),
        ({"timeout": True}, "timeout"), ({"timeout": 601}, "timeout"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_by_its_name(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=rf"^Resend: {field}: ") as refused:
        Resend(**{"api_key": "re_fake", **given})
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost", "[::1]:25"])
def test_http_is_for_this_machine_alone(host: str) -> None:
    assert host in repr(Resend("re_fake", url=f"http://{host}/"))
    with pytest.raises(ConfigError, match="must begin with https://; http:// is for this machine alone"):
        Resend("re_fake", url="http://mail.example.org")
