"""What the tests of webhook.deliver share: a secret, and how a webhook is sent and run."""

import base64
from typing import Any

from treadle import Job, Retry, Task, Treadle
from treadle.builtin.webhook_deliver import Delivery
from treadle.testing import run_until_idle
from treadle.testing.fakes.webhook_server import WebhookReceiver

KEY = b"a key of thirty-two bytes, no more"
SECRET = "whsec_" + base64.b64encode(KEY).decode()
LOCAL = {"allow": ["127.0.0.1"], "retry": Retry(max_attempts=3, base=10, jitter=0)}

Deliver = Task[..., Delivery]


def send(task: Deliver, server: WebhookReceiver, data: Any = None, **more: Any) -> Job:
    return task.enqueue_payload({"url": f"{server.url}/hooks", "event": "order.paid", "data": data, **more})


def after_run(app: Treadle, job: Job) -> Job:
    run_until_idle(app)
    return app.get(job.id)
