"""webhook.deliver: what a receiver's answer means for the job."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.builtin.webhooks import LOCAL, SECRET, Deliver, after_run, send
from treadle import Reason, Retry, State, Treadle
from treadle.builtin import webhook_deliver
from treadle.testing import FakeClock, fakes, run_until_idle
from treadle.testing.fakes.webhook_server import WebhookReceiver


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with fakes.webhook() as server:
        yield server


@pytest.fixture
def deliver(app: Treadle) -> Deliver:
    return webhook_deliver.register(app, {"default": SECRET}, **LOCAL)


@pytest.mark.parametrize(
    ("status", "state", "words"),
    [
        (201, State.SUCCEEDED, ""),
        (204, State.SUCCEEDED, ""),
        (302, State.PENDING, "redirects are not followed"),
        (400, State.PENDING, "the receiver answered 400: it is bad"),
        (401, State.PENDING, "answered 401"),
        (404, State.PENDING, "answered 404"),
        (410, State.FAILED, "answered 410: it is bad; the endpoint is gone"),
        (429, State.PENDING, "answered 429"),
        (500, State.PENDING, "answered 500"),
    ],
)
def test_what_an_answer_means(
    status: int, state: State, words: str, app: Treadle, deliver: Deliver, receiver: WebhookReceiver
) -> None:
    receiver.answer(status, b"" if status == 204 else b"it is\r\n\0bad", {"Location": f"{receiver.url}/elsewhere"})
    job = after_run(app, send(deliver, receiver))
    assert (job.state, len(receiver.requests)) == (state, 1)
    assert job.error is None if not words else words in job.error.message
    assert (job.reason is Reason.PERMANENT) is (status == 410)


def test_an_error_shows_the_first_two_hundred_characters_of_the_answer(
    app: Treadle, deliver: Deliver, receiver: WebhookReceiver
) -> None:
    receiver.answer(500, b"x" * 5000)
    job = after_run(app, send(deliver, receiver))
    assert job.error.message == "the receiver answered 500: " + "x" * 200 + "..."
    assert job.error.type.endswith("NotDelivered")


@pytest.mark.parametrize(
    ("status", "asked", "waits"),
    [
        (429, "7200", 7200),
        (503, "Thu, 01 Jan 2026 13:00:00 GMT", 3600),
        (429, "1", 10),  # the task's own delay is the least
        (429, "99999999", 86_400),
        (429, "soon", 10),
        (500, "7200", 10),
    ],
)
def test_a_receiver_may_ask_us_to_wait(
    status: int, asked: str, waits: int, app: Treadle, clock: FakeClock, deliver: Deliver, receiver: WebhookReceiver
) -> None:
    receiver.fail_next(status, headers={"Retry-After": asked})
    job = after_run(app, send(deliver, receiver))
    assert (job.state, job.failures) == (State.PENDING, 1)
    assert job.due_at == clock.now() + timedelta(seconds=waits)


def test_those_who_were_asked_to_wait_do_not_all_come_back_at_once(
    app: Treadle, clock: FakeClock, receiver: WebhookReceiver
) -> None:
    receiver.answer(503, headers={"Retry-After": "600"})
    task = webhook_deliver.register(app, {"default": SECRET}, allow=["127.0.0.1"], retry=Retry(base=1, jitter=60))
    jobs = [send(task, receiver) for _ in range(5)]
    run_until_idle(app)
    waits = [(app.get(job.id).due_at - clock.now()).total_seconds() for job in jobs]
    assert len(set(waits)) > 1
    assert all(600 <= wait <= 660 for wait in waits)


def test_a_status_counts_although_the_answer_does_not_end(
    app: Treadle, clock: FakeClock, deliver: Deliver, receiver: WebhookReceiver
) -> None:
    cut = {"Content-Length": "1000", "Connection": "close"}
    receiver.fail_next(200, headers=cut)
    receiver.fail_next(410, headers=cut)
    receiver.fail_next(429, headers={**cut, "Retry-After": "3000"})
    taken, gone, later = (after_run(app, send(deliver, receiver)) for _ in range(3))
    assert (taken.state, gone.reason, later.state) == (State.SUCCEEDED, Reason.PERMANENT, State.PENDING)
    assert later.due_at == clock.now() + timedelta(seconds=3000)
