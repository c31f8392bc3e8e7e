"""A receiver of webhooks: keeps what comes, and answers as told."""

import ssl
from collections.abc import Mapping
from typing import Any

from treadle.testing.clock import FakeClock
from treadle.testing.fakes.http_fake import FakeReply, FakeRequest, HttpFake


class WebhookReceiver(HttpFake):
    """Takes every method at every path below `url`. `received` holds the requests that were taken."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._received: list[FakeRequest] = []
        self._reply = FakeReply(200, b"ok")

    @property
    def received(self) -> list[FakeRequest]:
        """The requests that were answered with the usual answer, or dropped after they had been taken."""
        with self._changed:
            return list(self._received)

    def answer(self, status: int = 200, body: Any = b"ok", headers: Mapping[str, str] | None = None) -> None:
        """Answer every request from now on with this; `fail_next` is for the next few."""
        with self._changed:
            self._reply = FakeReply(status, body, headers or {})

    def error(self, status: int, code: str, message: str) -> bytes:
        return (message or code or f"status {status}").encode()

    def _routed(self, request: FakeRequest) -> FakeReply:
        self._received.append(request)
        return self._reply

    def _forget(self) -> None:
        super()._forget()
        self._received.clear()


def webhook(*, port: int = 0, clock: FakeClock | None = None, tls: ssl.SSLContext | None = None) -> WebhookReceiver:
    """A receiver of webhooks and of any other HTTP request; see `received`."""
    return WebhookReceiver(port=port, clock=clock, tls=tls)
