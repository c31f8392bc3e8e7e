"""standardwebhooks, which verifies what the receiver kept, and Apprise, which posts to it."""

import json
from datetime import UTC, datetime

import apprise
import httpx2
from standardwebhooks.webhooks import Webhook

from treadle.testing import fakes

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_a_signature_is_valid_for_what_was_kept() -> None:
    body, now = json.dumps({"type": "job.failed", "data": {"text": "Grüße"}}), datetime.now(UTC)
    signed = {"webhook-id": "msg_7", "webhook-timestamp": str(int(now.timestamp()))}
    signed["webhook-signature"] = Webhook(SECRET).sign("msg_7", now, body)
    with fakes.webhook() as server:
        httpx2.post(f"{server.url}/hook", content=body.encode(), headers=signed)
        [request] = server.received
        headers = {name.lower(): value for name, value in request.headers.items()}
        assert Webhook(SECRET).verify(request.body, headers) == json.loads(body)


def test_a_notification_arrives_and_one_that_is_refused_is_told() -> None:
    with fakes.webhook() as server:
        notify = apprise.Apprise()
        notify.add(f"{server.url.replace('http', 'json', 1)}/alerts")
        assert notify.notify(title="Failed", body="a job failed")
        [request] = server.received
        assert (request.method, request.path.rstrip("/")) == ("POST", "/alerts")
        assert (request.json()["title"], request.json()["message"]) == ("Failed", "a job failed")
        server.fail_next(500)
        assert not notify.notify(body="again")
