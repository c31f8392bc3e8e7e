"""Stand-ins for the services that jobs talk to: real servers on 127.0.0.1, which misbehave on request.

with fakes.resend() as server:
    server.drop_next()  # the mail leaves, and the connection is closed without an answer
    ...
    assert len(server.sent) == 1

Each is checked against its vendor's own client: `python3 dev.py oracles`.
"""

from treadle.testing.fakes.faults import Fake, RunningClock
from treadle.testing.fakes.gmail_mailbox import GmailMailbox
from treadle.testing.fakes.gmail_server import GmailServer, gmail
from treadle.testing.fakes.graph_server import GraphServer, graph
from treadle.testing.fakes.http_fake import FakeReply, FakeRequest, HttpFake, Refusal
from treadle.testing.fakes.llm_server import LlmServer, llm
from treadle.testing.fakes.resend_server import ResendServer, resend
from treadle.testing.fakes.sentry_server import SentryServer, sentry
from treadle.testing.fakes.slack_server import SlackServer, slack
from treadle.testing.fakes.smtp_server import SmtpServer, smtp
from treadle.testing.fakes.smtp_session import ReceivedMail
from treadle.testing.fakes.webhook_server import WebhookReceiver, webhook

__all__ = [
    "Fake", "FakeReply", "FakeRequest", "GmailMailbox", "GmailServer", "GraphServer", "HttpFake", "LlmServer",
    "ReceivedMail", "Refusal", "ResendServer", "RunningClock", "SentryServer", "SlackServer", "SmtpServer",
    "WebhookReceiver", "gmail", "graph", "llm", "resend", "sentry", "slack", "smtp", "webhook",
]  # fmt: skip
