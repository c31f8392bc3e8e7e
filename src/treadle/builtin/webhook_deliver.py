"""`webhook.deliver`: posts an event to somebody's URL, signed as Standard Webhooks says, until it is taken.

    webhook_deliver.register(app, secrets={"default": "whsec_…"})
    app.enqueue("webhook.deliver", {"url": "https://example.org/hooks", "event": "order.paid", "data": {"order": 7}})

The receiver may get the same webhook more than once, and knows it by the header `webhook-id`: the id of the job.
"""

import json
import random
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC
from typing import Annotated, Any, TypedDict

from pydantic import AfterValidator, JsonValue

from treadle.app.treadle import Treadle
from treadle.builtin.arguments import add_task, check_names, checked_seconds, checked_tls, errors_of
from treadle.builtin.http_calls import HttpReply, HttpUrl, call, shortened, wait_asked
from treadle.builtin.webhook_guard import AddressGuard
from treadle.builtin.webhook_signature import EndpointSecrets, keys_of, sign
from treadle.errors import ConfigError, GiveUp, InvalidInput, NotDelivered, RetryLater, Unreachable
from treadle.model import Job, Retry
from treadle.model.clock import Duration
from treadle.tasks.context import Context
from treadle.tasks.task import Task

NAME = "webhook.deliver"
RETRY = Retry(max_attempts=14, base="30s", cap="12h", jitter="30s")  # for about 41 hours
ANSWER_WITHIN = "20s"
LONGEST_ANSWER_WAIT = 600.0  # seconds
LONGEST_EVENT = 200  # characters
SHOWN = 200  # characters of an answer, in an error

FindSecret = Callable[[str], EndpointSecrets | None]


class Delivery(TypedDict):
    """How it was taken: the status, and how long the receiver took to say so."""

    status: int
    ms: int


def _url(url: str) -> str:
    try:
        HttpUrl.of(url)
    except InvalidInput as error:
        raise ValueError(error.problem) from None
    return url


def _event(event: str) -> str:
    if not event.strip() or not event.isprintable() or len(event) > LONGEST_EVENT:
        raise ValueError(f"must be 1 to {LONGEST_EVENT} printable characters, such as order.paid")
    return event


Url = Annotated[str, AfterValidator(_url)]
EventName = Annotated[str, AfterValidator(_event)]


class WebhookDelivery:
    """Sends webhooks; `secrets` are those of each endpoint by its name, or a function that finds them by the name."""

    def __init__(
        self,
        app: Treadle,
        secrets: Mapping[str, EndpointSecrets] | FindSecret,
        *,
        allow: Iterable[str] = (),
        answer_within: Duration = ANSWER_WITHIN,
        tls: ssl.SSLContext | None = None,
        name: str = NAME,
    ) -> None:
        self._app, self._name = app, name
        with errors_of(name):
            self._tls = checked_tls(tls)
            self._guard = AddressGuard(allow)
            self._timeout = checked_seconds("answer_within", answer_within, LONGEST_ANSWER_WAIT)
        self._find: FindSecret
        if isinstance(secrets, Mapping):
            with errors_of(name):
                self._find = _checked(secrets).__getitem__
            self._names: list[str] | None = sorted(secrets)
        elif callable(secrets):
            self._find, self._names = secrets, None
        else:
            raise ConfigError(f'{name}: secrets: must be a dict such as {{"default": "whsec_…"}}, or a function')

    def endpoint(self, endpoint: str) -> str:
        """The name of an endpoint, if it may be one."""
        if self._names is not None and endpoint not in self._names:
            raise ValueError(f"{endpoint!r} has no secret here; known: {', '.join(self._names)}")
        return endpoint

    def deliver(self, job: Job, url: str, event: str, data: Any, endpoint: str) -> Delivery:
        """Post it once; an error says what becomes of the job."""
        secrets = self._secrets(endpoint)
        now = self._app.engine.now()
        stamp = int(now.timestamp())
        body = body_of(job, event, data)
        headers = {
            "Content-Type": "application/json",
            "webhook-id": job.id,
            "webhook-timestamp": str(stamp),
            "webhook-signature": sign(secrets, job.id, stamp, body),
        }
        began = time.monotonic()
        answer = self._post(url, body, headers)
        if 200 <= answer.status < 300:
            return {"status": answer.status, "ms": round((time.monotonic() - began) * 1000)}
        raise failure_of(answer, job, wait_asked(answer, job, now), secrets)

    def _post(self, url: str, body: bytes, headers: Mapping[str, str]) -> HttpReply:
        """To the addresses that were checked, one after the other until one can be reached."""
        end = time.monotonic() + self._timeout
        target = self._guard.target(url)
        failure = Unreachable(f"the name {target.url.host} leads to no address")
        for address in target.addresses:
            left = end - time.monotonic()
            if left <= 0:
                break
            try:
                return call("POST", url, body, headers, timeout=left, address=address, tls=self._tls, whole=False)
            except Unreachable as error:
                failure = error
        raise failure

    def _secrets(self, endpoint: str) -> list[str]:
        found = self._find(endpoint)  # of a dict it is there: the payload was checked
        if not found:
            raise GiveUp(f"endpoint: {endpoint!r} has no secret; give it one where {self._name} is registered")
        try:
            secrets = [found] if isinstance(found, str) or not isinstance(found, Iterable) else list(found)
            keys_of(secrets)
        except ConfigError as error:
            raise GiveUp(f"endpoint {endpoint!r}: {error}") from None
        return secrets


def body_of(job: Job, event: str, data: Any) -> bytes:
    """What is posted: the same bytes at each attempt of the job."""
    created = job.created_at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    body = {"type": event, "timestamp": created, "data": data}
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def failure_of(answer: HttpReply, job: Job, wait: float | None, secrets: Iterable[str]) -> Exception:
    """What becomes of a delivery that was answered with anything but success; `wait` is what the receiver asks for."""
    shown = shortened(answer.text, *secrets, longest=SHOWN)
    refusal = f"the receiver answered {answer.status}" + (f": {shown}" if shown else "")
    if answer.status == 410:
        return GiveUp(f"{refusal}; the endpoint is gone, and nothing more is sent")
    if 300 <= answer.status < 400:
        return NotDelivered(f"{refusal}; redirects are not followed: send to the URL that it leads to")
    if answer.status in (429, 503) and wait is not None:
        spread = job.retry.jitter * random.random()  # noqa: S311 - so that not all webhooks come back at once
        return RetryLater(refusal, after=wait + spread)
    return NotDelivered(refusal)


def _checked(secrets: Mapping[str, EndpointSecrets]) -> dict[str, EndpointSecrets]:
    if not secrets:
        raise ConfigError('secrets: there are none; give it {"default": "whsec_…"}')
    check_names("endpoint", secrets)
    checked: dict[str, EndpointSecrets] = {}
    for endpoint, own in secrets.items():
        with errors_of(f"endpoint {endpoint!r}"):
            checked[endpoint] = own if isinstance(own, str) or not isinstance(own, Iterable) else list(own)
            keys_of(checked[endpoint])
    return checked


def register(
    app: Treadle,
    secrets: Mapping[str, EndpointSecrets] | FindSecret,
    *,
    allow: Iterable[str] = (),
    answer_within: Duration = ANSWER_WITHIN,
    tls: ssl.SSLContext | None = None,
    name: str = NAME,
    **options: Any,
) -> Task[..., Delivery]:
    """Register the delivery of webhooks as a task; `options` are those of `app.register`, such as `retry`.

    `secrets` has the secret of each endpoint, or several while they are changed, the newest first: all of them sign.
    A function is given the endpoint's name at each attempt instead. `allow` opens hosts and networks that are not of
    the public internet. `tls` is what certificates are checked with.
    """
    delivery = WebhookDelivery(app, secrets, allow=allow, answer_within=answer_within, tls=tls, name=name)
    endpoint_name = Annotated[str, AfterValidator(delivery.endpoint)]

    def webhook_deliver(
        ctx: Context, url: Url, event: EventName, data: JsonValue, endpoint: endpoint_name = "default"
    ) -> Delivery:
        return delivery.deliver(ctx.job, url, event, data, endpoint)

    return add_task(app, name, webhook_deliver, register, {"retry": RETRY, **options})
