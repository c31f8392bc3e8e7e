"""webhook.deliver: what a receiver gets, where it may be, and that nothing secret is left behind."""

import base64
import hashlib
import hmac
import json
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.builtin.webhooks import KEY, LOCAL, SECRET, Deliver, after_run, send
from tests.support import forks, processes
from tests.support.marks import any_store
from tests.support.workbench import ended, working
from tests.testing.fakes.certificates import certificate
from treadle import ConfigError, InvalidPayload, Reason, Retry, State, Treadle
from treadle.builtin import webhook_deliver
from treadle.builtin.webhook_deliver import RETRY, WebhookDelivery
from treadle.builtin.webhook_signature import new_secret, verify
from treadle.testing import FakeClock, fakes, run_until_idle
from treadle.testing.fakes import FakeRequest
from treadle.testing.fakes.webhook_server import WebhookReceiver


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with fakes.webhook() as server:
        yield server


@pytest.fixture
def deliver(app: Treadle) -> Deliver:
    return webhook_deliver.register(app, {"default": SECRET}, **LOCAL)


def is_signed(request: FakeRequest, key: bytes = KEY) -> bool:
    """Whether the first signature is what the text of the standard says."""
    content = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
    expected = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    return request.headers["webhook-signature"].split(" ")[0] == f"v1,{expected}"


def leads_to(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Let names lead to these addresses, one answer after the other; which names were asked for."""
    real, left, asked = socket.getaddrinfo, list(answers), []

    def getaddrinfo(host: str, port: int, *given: Any, **options: Any) -> Any:
        if host[0].isdigit():
            return real(host, port, *given, **options)
        asked.append(host)
        found = left.pop(0) if len(left) > 1 else left[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in found]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


def test_a_receiver_gets_the_event_with_a_signature_that_it_can_verify(
    app: Treadle, clock: FakeClock, deliver: Deliver, receiver: WebhookReceiver
) -> None:
    job = send(deliver, receiver, {"order": 7, "name": "Zoë"})
    done = after_run(app, job)
    [request] = receiver.received
    assert (done.state, done.result["status"], sorted(done.result)) == (State.SUCCEEDED, 200, ["ms", "status"])
    assert (request.method, request.path, request.headers["content-type"]) == ("POST", "/hooks", "application/json")
    created = "2026-01-01T12:00:00.000000Z"
    assert request.json() == {"type": "order.paid", "timestamp": created, "data": {"order": 7, "name": "Zoë"}}
    assert request.headers["webhook-id"] == job.id
    assert request.headers["webhook-timestamp"] == str(int(clock.now().timestamp()))
    assert is_signed(request)
    assert verify(request.headers, request.body, SECRET, clock.now()) == job.id


@any_store
def test_each_attempt_has_the_same_id_and_body_and_a_time_of_its_own(app: Treadle, receiver: WebhookReceiver) -> None:
    task = webhook_deliver.register(app, {"default": SECRET}, allow=["127.0.0.1"], retry=Retry(base=0, jitter=0))
    receiver.fail_next(500)
    receiver.drop_next(before=True)
    job = send(task, receiver, {"z": 1, "a": [1.5, None, "é"], "n": 10**20})
    done = after_run(app, job)
    requests = receiver.requests
    assert (done.state, done.attempt, len(requests)) == (State.SUCCEEDED, 3, 3)
    assert len({(request.headers["webhook-id"], request.body) for request in requests}) == 1
    assert all(map(is_signed, requests))
    assert requests[0].json()["data"] == {"z": 1, "a": [1.5, None, "é"], "n": 10**20}


def test_the_time_of_an_attempt_is_the_stores_and_the_time_of_the_event_stays(
    app: Treadle, clock: FakeClock, deliver: Deliver, receiver: WebhookReceiver
) -> None:
    receiver.fail_next(500)
    job = send(deliver, receiver)
    run_until_idle(app)
    clock.advance(seconds=10)
    run_until_idle(app)
    first, second = (int(request.headers["webhook-timestamp"]) for request in receiver.requests)
    assert second - first == 10
    assert [request.json()["timestamp"] for request in receiver.requests] == ["2026-01-01T12:00:00.000000Z"] * 2
    assert app.get(job.id).state is State.SUCCEEDED


def test_it_is_tried_for_almost_two_days_unless_the_task_is_told_otherwise(
    app: Treadle, receiver: WebhookReceiver
) -> None:
    usual = webhook_deliver.register(app, {"default": SECRET})
    other = webhook_deliver.register(app, {"default": SECRET}, name="quick", retry=Retry(max_attempts=2), lane="hooks")
    assert [send(task, receiver).retry.max_attempts for task in (usual, other)] == [14, 2]
    assert send(other, receiver).lane == "hooks"
    assert timedelta(hours=40) < timedelta(seconds=sum(RETRY.delay(k, 0) for k in range(1, 14))) < timedelta(hours=42)


# ------------------------------------------------------------------------------------------------- addresses


def test_a_local_address_ends_the_job_and_nothing_is_sent(app: Treadle, receiver: WebhookReceiver) -> None:
    task = webhook_deliver.register(app, {"default": SECRET})
    job = after_run(app, send(task, receiver))
    assert (job.state, job.reason, receiver.requests) == (State.FAILED, Reason.PERMANENT, [])
    assert job.error.message.startswith("url: 127.0.0.1 leads to a loopback address, and nobody has allowed it; ")


def test_a_name_that_leads_elsewhere_a_moment_later_is_called_where_it_was_checked(
    app: Treadle, deliver: Deliver, receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = leads_to(monkeypatch, ["127.0.0.1"], ["127.0.0.2"])
    url = receiver.url.replace("127.0.0.1", "rebinding.example")
    job = after_run(app, deliver.enqueue(url=url, event="a", data=1))
    assert (job.state, asked) == (State.SUCCEEDED, ["rebinding.example"])
    assert receiver.received[0].headers["Host"].startswith("rebinding.example:")
    again = after_run(app, deliver.enqueue(url=url, event="a", data=1))  # now it leads to what is not allowed
    assert (again.reason, len(receiver.requests)) == (Reason.PERMANENT, 1)


def test_the_next_address_is_tried_only_if_the_one_before_cannot_be_reached(
    app: Treadle, receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = webhook_deliver.register(app, {"default": SECRET}, allow=["hooks.example"])
    url = receiver.url.replace("127.0.0.1", "hooks.example")
    leads_to(monkeypatch, ["127.0.0.2", "127.0.0.1"])  # nothing listens at the first
    assert after_run(app, task.enqueue(url=url, event="a", data=1)).state is State.SUCCEEDED
    leads_to(monkeypatch, ["127.0.0.1", "127.1"])  # the same server twice
    receiver.drop_next()
    job = after_run(app, task.enqueue(url=url, event="a", data=1))
    assert (job.state, len(receiver.requests)) == (State.PENDING, 2)
    assert "hooks.example did not answer" in job.error.message


def test_a_name_that_is_not_found_and_a_port_where_nobody_listens_are_tried_again(
    app: Treadle, receiver: WebhookReceiver
) -> None:
    task = webhook_deliver.register(app, {"default": SECRET}, allow=["127.0.0.1"])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    jobs = [
        task.enqueue(url="https://nowhere.invalid/", event="a", data=1),
        task.enqueue(url=f"http://127.0.0.1:{port}/", event="a", data=1),
    ]
    run_until_idle(app)
    assert [app.get(job.id).state for job in jobs] == [State.PENDING] * 2


def test_https_is_checked_with_the_context_that_was_given(app: Treadle) -> None:
    server_side, client_side = certificate()
    with fakes.webhook(tls=server_side) as server:
        trusting = webhook_deliver.register(app, {"default": SECRET}, tls=client_side, **LOCAL)
        wary = webhook_deliver.register(app, {"default": SECRET}, name="wary", **LOCAL)
        assert after_run(app, send(trusting, server)).state is State.SUCCEEDED
        assert "CERTIFICATE_VERIFY_FAILED" in after_run(app, send(wary, server)).error.message
        assert len(server.requests) == 1


def test_a_receiver_that_does_not_answer_is_left_in_time(app: Treadle, receiver: WebhookReceiver) -> None:
    task = webhook_deliver.register(app, {"default": SECRET}, answer_within="200ms", **LOCAL)
    receiver.delay_next(60)
    job = after_run(app, send(task, receiver))
    assert (job.state, len(receiver.received)) == (State.PENDING, 1)
    assert job.error.message == "127.0.0.1 did not answer within 0.2 s"


# --------------------------------------------------------------------------------------------------- secrets


def test_an_endpoint_is_signed_with_its_own_secrets_all_of_them_during_a_change(
    app: Treadle, clock: FakeClock, receiver: WebhookReceiver
) -> None:
    new, old = new_secret(), new_secret()
    task = webhook_deliver.register(app, {"default": SECRET, "shop": [new, old]}, **LOCAL)
    after_run(app, send(task, receiver, endpoint="shop"))
    [request] = receiver.received
    assert request.headers["webhook-signature"].count("v1,") == 2
    assert is_signed(request, base64.b64decode(new.removeprefix("whsec_")))
    for secret in (new, old):
        verify(request.headers, request.body, secret, clock.now())


def test_a_function_finds_the_secrets_at_each_attempt(
    app: Treadle, clock: FakeClock, receiver: WebhookReceiver
) -> None:
    kept: dict[str, str] = {}
    task = webhook_deliver.register(app, kept.get, **LOCAL)
    gone = after_run(app, send(task, receiver, endpoint="shop"))
    assert (gone.reason, gone.error.message[:37]) == (Reason.PERMANENT, "endpoint: 'shop' has no secret; give ")
    for wrong in ("hush", ["hush"], 5):
        kept["shop"] = wrong  # type: ignore[assignment]
        refused = after_run(app, send(task, receiver, endpoint="shop"))
        assert (refused.state, refused.reason) == (State.FAILED, Reason.PERMANENT)
        assert refused.error.message.startswith("endpoint 'shop': secrets: a secret must be text that begins with")
        assert "hush" not in refused.error.message
    kept["shop"] = SECRET
    assert after_run(app, send(task, receiver, endpoint="shop")).state is State.SUCCEEDED
    assert is_signed(receiver.received[0])


def test_no_secret_is_in_rows_errors_logs_or_texts_although_the_receiver_repeats_it(
    app: Treadle, deliver: Deliver, receiver: WebhookReceiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    receiver.answer(500, f"no: {SECRET} {KEY.decode()}".encode())
    jobs = [send(deliver, receiver), send(deliver, receiver)]
    receiver.fail_next(410, body=SECRET.encode())
    run_until_idle(app)
    assert {app.get(job.id).state for job in jobs} == {State.FAILED, State.PENDING}
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    texts = [caplog.text, *map(repr, (app.get(jobs[0].id), app.events(jobs[0].id), deliver, vars(deliver)))]
    texts.append(repr(WebhookDelivery(app, {"default": SECRET})))
    for form in (SECRET, SECRET.removeprefix("whsec_")):
        assert form.encode() not in stored
        assert not any(form in text for text in texts)
    assert jobs[0].id.encode() in stored or jobs[0].id.replace("-", "").encode() in stored  # it was looked at


# ------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"url": "ftp://example.org"}, "url: .*https://"),
        ({"url": "https://ada:hush@example.org"}, "url: .*user or a password"),
        ({"url": 5}, "url"),
        ({"event": ""}, "event: .*1 to 200"),
        ({"event": "a\nb"}, "event: .*printable"),
        ({"endpoint": "shop"}, "endpoint: .*'shop' has no secret here; known: default"),
        ({"secret": "x"}, "secret"),
        ({"data": ...}, "data"),
    ],
)
def test_a_payload_that_cannot_be_sent_is_refused_by_its_field(changed: Any, words: str, deliver: Deliver) -> None:
    payload = {"url": "https://example.org", "event": "a", "data": None, **changed}
    if payload["data"] is ...:
        del payload["data"]
    with pytest.raises(InvalidPayload, match=words):
        deliver.enqueue_payload(payload)


@pytest.mark.parametrize(
    ("secrets", "options", "words"),
    [
        ({}, {}, "secrets: there are none"),
        (SECRET, {}, "secrets: must be a dict"),
        ({"": SECRET}, {}, "endpoint: '' is not a valid name"),
        ({5: SECRET}, {}, "webhook.deliver: endpoint: 5 is not a valid name"),
        ({"shop": 5}, {}, "endpoint 'shop': secrets: a secret must be text"),
        ({"default": SECRET}, {"tls": True}, "webhook.deliver: tls: True must be an ssl.SSLContext"),
        ({"shop": "hush"}, {}, "endpoint 'shop': secrets: a secret must be text that begins with whsec_"),
        ({"shop": []}, {}, "endpoint 'shop': secrets: 0 are given"),
        ({"default": SECRET}, {"allow": "10.0.0.1"}, "webhook.deliver: allow: '10.0.0.1' is not a list; write allow="),
        ({"default": SECRET}, {"allow": 5}, "allow: 5 is not a list"),
        ({"default": SECRET}, {"answer_within": 0}, "answer_within: 0 must be more than 0"),
        ({"default": SECRET}, {"answer_within": "1h"}, "at most 600 s"),
        ({"default": SECRET}, {"answer_within": "soon"}, "answer_within"),
        ({"default": SECRET}, {"colour": 1}, "unknown option colour"),
        ({"default": SECRET}, {"allowed": []}, "unknown option allowed; did you mean 'allow'"),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_registered(
    secrets: Any, options: Any, words: str, app: Treadle
) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        webhook_deliver.register(app, secrets, **options)
    assert "hush" not in str(refused.value)
    assert "webhook.deliver" not in app.tasks


# ----------------------------------------------------------------------------------------------- a crash


WORKER = """
import sys
from treadle import Treadle
from treadle.builtin import webhook_deliver

app = Treadle(sys.argv[1])
webhook_deliver.register(app, {"default": sys.argv[2]}, allow=["127.0.0.1"])
app.run_worker(lease=1.0, poll=0.05)
"""


def test_a_worker_that_is_killed_after_the_receiver_got_it_sends_it_again_with_the_same_id(
    make_app: Callable[..., Treadle], store_url: str
) -> None:
    app = make_app(clock=None)
    task = webhook_deliver.register(app, {"default": SECRET}, **LOCAL)
    with closing(app), fakes.webhook() as server:
        server.delay_next(60)
        command = [sys.executable, "-c", WORKER, store_url, SECRET]
        job = send(task, server, {"order": 7})
        with forks.Popen(command, env=processes.environment(), stderr=subprocess.DEVNULL) as doomed:
            try:
                server.wait_until(lambda: len(server.received) == 1, timeout=30)
            finally:
                doomed.send_signal(signal.SIGKILL)
        with working(app, lease=1.0):
            [done] = ended(app, job)
        first, second = server.received
    assert (done.state, done.attempt, done.crashes) == (State.SUCCEEDED, 2, 1)
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == job.id
    assert first.body == second.body
    assert json.loads(first.body)["data"] == {"order": 7}
    now = datetime.fromtimestamp(int(second.headers["webhook-timestamp"]), UTC)
    assert verify(second.headers, second.body, SECRET, now) == job.id
