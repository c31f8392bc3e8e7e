"""What the tests of email.send share: a mail, the transports to the stand-ins, and what becomes of a job."""

from typing import Any

from treadle import Job, Retry, Task, Treadle
from treadle.builtin import email_send
from treadle.builtin.email_send import Graph, MailTransport, Resend, Smtp
from treadle.testing import run_until_idle
from treadle.testing.fakes import GraphServer, ResendServer, SmtpServer

MAIL = {"to": "ada@example.org", "subject": "Thanks", "text": "We have it."}
SENDER = "shop@example.org"
MINUTELY = Retry(max_attempts=3, base=60, cap=60, jitter=0)


def to_smtp(server: SmtpServer, **options: Any) -> Smtp:
    return Smtp(server.host, server.port, **{"security": "plain", "sender": SENDER, **options})


def to_graph(server: GraphServer, **options: Any) -> Graph:
    names = {"tenant": server.tenant, "client_id": server.client_id, "client_secret": server.client_secret}
    places = {"url": f"{server.url}/v1.0", "login": server.url}
    return Graph(**{**names, **places, "sender": SENDER, **options})


def to_resend(server: ResendServer, **options: Any) -> Resend:
    return Resend(**{"api_key": server.api_key, "url": server.url, "sender": SENDER, **options})


def transport_to(server: SmtpServer | GraphServer | ResendServer, **options: Any) -> MailTransport:
    ways: dict[type, Any] = {SmtpServer: to_smtp, GraphServer: to_graph, ResendServer: to_resend}
    return ways[type(server)](server, **options)


def mailer(app: Treadle, transports: Any, **options: Any) -> Task:
    return email_send.register(app, transports, **{"retry": MINUTELY, **options})


def attempted(app: Treadle, job: Job) -> Job:
    """The job after what is due now was run."""
    run_until_idle(app)
    return app.get(job.id)
