"""email.send as a task: transports by name, what is refused before it is stored, the audit trail, and no secrets."""

import logging
import sqlite3
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from tests.builtin.mailing import MAIL, MINUTELY, SENDER, attempted, mailer, to_graph, to_resend, to_smtp, transport_to
from tests.support.marks import any_store, postgres_only
from tests.support.stores import TABLES
from treadle import ConfigError, InvalidPayload, Reason, State, Treadle
from treadle.builtin import email_send
from treadle.builtin.email_send import Email, Graph, Resend, Smtp
from treadle.errors import TreadleError
from treadle.model import EventKind
from treadle.profiles import tenant_ops
from treadle.testing import FakeClock, fakes
from treadle.testing.fakes import GraphServer, ResendServer, SmtpServer

CANARIES = {"password": "canary-password", "api_key": "re_canary_key", "client_secret": "canary~client.secret"}
SERVICES = ["smtp", "graph", "resend"]


@pytest.fixture
def smtp() -> Iterator[SmtpServer]:
    with fakes.smtp(user="shop", password=CANARIES["password"]) as server:
        yield server


@pytest.fixture
def graph(clock: FakeClock) -> Iterator[GraphServer]:
    with fakes.graph(clock=clock, client_secret=CANARIES["client_secret"]) as server:
        yield server


@pytest.fixture
def resend(clock: FakeClock) -> Iterator[ResendServer]:
    with fakes.resend(clock=clock, api_key=CANARIES["api_key"]) as server:
        yield server


@pytest.fixture
def all_three(smtp: SmtpServer, graph: GraphServer, resend: ResendServer) -> dict[str, Any]:
    login = {"user": "shop", "password": CANARIES["password"]}
    return {"smtp": to_smtp(smtp, **login), "graph": to_graph(graph), "resend": to_resend(resend)}


def test_the_payload_says_which_transport(
    app: Treadle, all_three: dict[str, Any], smtp: SmtpServer, graph: GraphServer, resend: ResendServer
) -> None:
    task = mailer(app, all_three)
    jobs = [attempted(app, task.enqueue(Email(**MAIL, transport=name))) for name in SERVICES]
    assert [job.result["provider"] for job in jobs] == SERVICES
    assert [len(server.sent) for server in (smtp, graph, resend)] == [1, 1, 1]


def test_the_default_is_used_where_none_is_named(app: Treadle, all_three: dict[str, Any]) -> None:
    task = mailer(app, {"default": all_three["resend"], "other": all_three["graph"]})
    assert attempted(app, task.enqueue(Email(**MAIL))).result["provider"] == "resend"
    alone = mailer(app, {"newsletters": all_three["graph"]}, name="alone")
    assert attempted(app, alone.enqueue(Email(**MAIL))).result["provider"] == "graph"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "transport: is missing; give one of graph, resend, smtp"),
        ({"transport": "fax"}, "transport: 'fax' is not registered here; known: graph, resend, smtp"),
        ({"transport": ""}, "transport: '' is not registered here; known: graph, resend, smtp"),
        ({"transport": "graph", "headers": {"List-Id": "x"}}, "headers: 'List-Id' cannot be sent by Graph"),
        ({"transport": "smtp", "to": "nobody"}, "to: .*'nobody' is not an address"),
        ({"transport": "smtp", "attachments": []}, "attachments: "),
        ({"transport": "smtp", "subject": "a\r\nBcc: eve@example.org"}, "subject: .*holds a line break"),
    ],
)
def test_a_mail_that_cannot_be_sent_is_not_stored(
    app: Treadle, all_three: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    mailer(app, all_three)
    with pytest.raises(InvalidPayload, match=words):
        app.enqueue("email.send", {**MAIL, **changes})
    assert sum(app.count().values()) == 0


def test_a_mail_has_a_sender_of_its_own_or_that_of_the_transport(app: Treadle, resend: ResendServer) -> None:
    task = mailer(app, to_resend(resend, sender=""))
    with pytest.raises(InvalidPayload, match="sender: is missing; give it here, or sender= where the transport"):
        task.enqueue(Email(**MAIL))
    job = attempted(app, task.enqueue(Email(**MAIL, sender="ops@example.org")))
    assert (job.state, resend.sent[0]["from"]) == (State.SUCCEEDED, "ops@example.org")


def test_a_transport_that_is_gone_when_the_job_runs_fails_it_by_name(
    make_app: Callable[..., Treadle], all_three: dict[str, Any]
) -> None:
    first, second = make_app(), make_app()
    job = mailer(first, all_three).enqueue(Email(**MAIL, transport="smtp"))
    mailer(second, {"resend": all_three["resend"]})
    job = attempted(second, job)
    assert (job.state, job.reason) == (State.FAILED, Reason.INVALID_PAYLOAD)
    assert "'smtp' is not registered here; known: resend" in job.error.message


@pytest.mark.parametrize("trouble", ["in doubt", "sent to some"])
def test_a_mail_that_may_have_been_sent_does_not_go_out_by_another_service(
    make_app: Callable[..., Treadle], clock: FakeClock, resend: ResendServer, trouble: str
) -> None:
    first, second = make_app(), make_app()
    with fakes.smtp() as smtp:
        if trouble == "in doubt":
            smtp.drop_next()
        else:
            smtp.refuse("bob@*", 450)
        task = mailer(first, to_smtp(smtp))
        job = attempted(first, task.enqueue(Email(**{**MAIL, "to": ["ada@example.org", "bob@example.org"]})))
        mailer(second, to_resend(resend))
        if job.state is State.FAILED:
            second.retry(job)
        clock.advance(minutes=1)
        job = attempted(second, job)
        assert (job.state, job.reason, len(smtp.sent), resend.sent) == (State.FAILED, Reason.PERMANENT, 1, [])
        assert "this mail was begun with smtp and may have been sent; resend, which has its place" in job.error.message
        if trouble == "sent to some":
            smtp.accept("bob@*")
        first.retry(job)
        assert attempted(first, job).state is State.SUCCEEDED


def test_a_mail_that_was_clearly_not_sent_goes_out_by_the_service_of_today(
    make_app: Callable[..., Treadle], clock: FakeClock, graph: GraphServer, resend: ResendServer
) -> None:
    apps = [make_app() for _ in range(3)]
    with fakes.smtp() as smtp:
        smtp.refuse("*", 450)
        job = attempted(apps[0], mailer(apps[0], to_smtp(smtp)).enqueue(Email(**MAIL)))
    mailer(apps[1], to_resend(resend))
    clock.advance(minutes=1)
    resend.fail_next(429)
    attempted(apps[1], job)
    mailer(apps[2], to_graph(graph))
    clock.advance(minutes=1)
    job = attempted(apps[2], job)
    assert (job.state, job.result["provider"], len(graph.sent)) == (State.SUCCEEDED, "graph", 1)


@pytest.mark.parametrize(
    ("transports", "options", "words"),
    [
        ({}, {}, "no transport is given"),
        ({"": Smtp("a")}, {}, "transport: '' is not a valid name"),
        ({"default": "smtp://a"}, {}, "transport 'default' must be a Smtp, Graph or Resend, not str"),
        ("smtp://a", {}, "transport 'default' must be a Smtp, Graph or Resend, not str"),
        (Smtp("a"), {"on_ambiguous": "hope"}, "on_ambiguous: 'hope' must be 'park', 'send' or 'skip'"),
        (Smtp("a"), {"attempts": 3}, "unknown option attempts"),
        (Smtp("a"), {"onambiguous": "skip"}, "unknown option onambiguous; did you mean 'on_ambiguous'"),
        ({5: Smtp("a")}, {}, "transport: 5 is not a valid name"),
    ],
)
def test_a_wrong_registration_is_refused(app: Treadle, transports: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        email_send.register(app, transports, **options)
    assert "email.send" not in app.tasks


@pytest.mark.parametrize("timeout", [10, 0.5, "10s", "10m", timedelta(seconds=10)])
def test_a_transport_takes_its_timeout_as_any_duration(timeout: Any) -> None:
    for transport in (Smtp, Resend, partial(Graph, "t", "c")):
        transport("example", timeout=timeout)
        with pytest.raises(ConfigError, match="timeout: '11m' must be more than 0 and at most 600 s"):
            transport("example", timeout="11m")


# --------------------------------------------------------------------------------------------------- the trail


@postgres_only
@pytest.mark.covers("004-T12.b")
@pytest.mark.parametrize("service", SERVICES)
def test_a_sent_mail_of_the_tenant_system_is_in_the_trail_as_email_sent(
    make_app: Callable[..., Treadle], all_three: dict[str, Any], service: str
) -> None:
    app = make_app(profile=tenant_ops.PROFILE)
    email_send.register(app, all_three[service], name="EMAIL_SEND", audit=tenant_ops.EMAIL_AUDIT)
    job = app.enqueue("EMAIL_SEND", {**MAIL, "html": "<p>We have it.</p>"}, tenant="acme")
    assert attempted(app, job).state is State.SUCCEEDED
    trail = [(event.tenant, event.job_id, event.note) for event in app.audit() if event.kind is EventKind.SUCCEEDED]
    assert trail == [("acme", job.id, "EMAIL_SENT")]


@postgres_only
@pytest.mark.parametrize(("status", "exhausted"), [(503, True), (400, False)])
def test_only_spent_retries_are_in_the_trail_as_such(
    make_app: Callable[..., Treadle], clock: FakeClock, resend: ResendServer, status: int, exhausted: bool
) -> None:
    app = make_app(profile=tenant_ops.PROFILE)
    email_send.register(app, to_resend(resend), name="EMAIL_SEND", audit=tenant_ops.EMAIL_AUDIT)
    resend.fail_next(status, times=9)
    job = app.enqueue("EMAIL_SEND", MAIL, tenant="acme")
    for _ in range(4):
        attempted(app, job)
        clock.advance(minutes=10)
    assert app.get(job.id).reason is (Reason.EXHAUSTED if exhausted else Reason.PERMANENT)
    [note] = [event.note for event in app.audit() if event.kind is EventKind.FAILED]
    assert note.startswith(tenant_ops.EXHAUSTED) is exhausted
    assert f"Resend answered {status}" in note


# -------------------------------------------------------------------------------------------------- no secrets


def everything_stored(app: Treadle, url: str) -> str:
    """All rows of the store, as text."""
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as file:
            text = "\n".join(file.iterdump())
        file.close()
        return text
    server, _, schema = url.partition("?schema=")
    if schema:
        with psycopg.connect(server) as connection:
            return "\n".join(
                str(row) for table in TABLES for row in connection.execute(f"select t::text from {schema}.{table} t")
            )
    engine: Any = app.engine
    return str(engine.client.call("Scan", {"TableName": engine.client.table}))


@any_store
@pytest.mark.parametrize("trouble", ["none", "login", "500", "echo", "drop"])
def test_no_secret_is_stored_logged_or_shown(
    app: Treadle,
    store_url: str,
    clock: FakeClock,
    all_three: dict[str, Any],
    smtp: SmtpServer,
    graph: GraphServer,
    resend: ResendServer,
    caplog: pytest.LogCaptureFixture,
    trouble: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    task = mailer(app, all_three, retry=MINUTELY._replace(max_attempts=2), audit={"succeeded": "EMAIL_SENT"})
    login = b64encode(f"\0shop\0{CANARIES['password']}".encode()).decode()
    places = [
        (smtp, "AUTH *", f"{CANARIES['password']} {login}"),
        (graph, "*/messages", CANARIES["client_secret"]),
        (resend, "*", CANARIES["api_key"]),
    ]
    for server, on, told in places:
        if trouble == "login":
            server.fail_next(535 if server is smtp else 401, error="invalid_api_key", times=4, on=on)
        elif trouble == "500":
            server.fail_next(500, error=told, times=4, on="MAIL *" if server is smtp else on)
        elif trouble == "echo":  # a service that repeats what it was told
            status = 554 if server is smtp else 422
            server.fail_next(status, error=told, times=4, on=on)
        elif trouble == "drop":
            server.drop_next(2)
    jobs = [task.enqueue(Email(**MAIL, transport=name)) for name in SERVICES]
    for _ in range(2):
        jobs = [attempted(app, job) for job in jobs]
        clock.advance(minutes=1)
    assert {job.attempt for job in jobs} <= {1, 2}
    shown = [everything_stored(app, store_url), caplog.text, repr(jobs), repr(app.audit()), repr(all_three)]
    shown += [repr(app.memos(job)) for job in jobs] + [repr(app.events(job.id)) for job in jobs]
    assert "ada@example.org" in shown[0]
    secrets = [*CANARIES.values(), login, *graph._tokens]
    assert [secret for secret in secrets for text in shown if secret in text] == []


def test_a_secret_that_is_a_part_of_another_does_not_keep_it_from_being_hidden(app: Treadle) -> None:
    with fakes.smtp(user="shop", password="canary") as server:
        login = b64encode(b"\0shop\0canary").decode()  # its end is the password's own base64
        server.fail_next(550, error=f"you said {login} canary", on="MAIL *")
        task = mailer(app, to_smtp(server, user="shop", password="canary"))
        assert attempted(app, task.enqueue(Email(**MAIL))).error.message.endswith("550 you said *** ***")


@pytest.mark.parametrize(
    "transport",
    [
        Smtp("a", user="shop", password="canary"),
        Graph("t", "c", "canary"),
        Resend("canary"),
    ],
)
def test_a_transport_does_not_show_its_secret(transport: object) -> None:
    assert "canary" not in f"{transport!r} {transport!s}"


def test_parts_of_a_mail_can_be_secret(app: Treadle, resend: ResendServer, caplog: pytest.LogCaptureFixture) -> None:
    """A link that logs somebody in is in the text of the mail."""
    task = mailer(app, to_resend(resend), secret=["text", "html"])
    resend.fail_next(422, error="bad text https://example.org/login/canary")
    mail = {**MAIL, "text": "https://example.org/login/canary"}
    job = attempted(app, task.enqueue(Email(**mail)))
    assert job.state is State.FAILED
    assert "canary" not in caplog.text + repr(job.error)
    job = attempted(app, task.enqueue(Email(**mail)))
    assert (job.state, resend.sent[0]["text"], resend.sent[0]["from"]) == (State.SUCCEEDED, mail["text"], SENDER)


@pytest.mark.parametrize("service", SERVICES)
def test_two_runs_of_one_job_send_one_mail(
    app: Treadle, smtp: SmtpServer, graph: GraphServer, resend: ResendServer, service: str
) -> None:
    """An operator who retries a job that failed after the mail had left."""
    server = {"smtp": smtp, "graph": graph, "resend": resend}[service]
    login = {"user": "shop", "password": CANARIES["password"]} if service == "smtp" else {}
    transport = transport_to(server, **login)
    failing = [TreadleError("the disk is full")]

    class Stumbling:
        provider, sender = transport.provider, transport.sender

        def check(self, email: Email) -> None:
            transport.check(email)

        def send(self, ctx: Any, mail: Any) -> Any:
            sent = transport.send(ctx, mail)
            if failing:
                raise failing.pop()
            return sent

    job = mailer(app, Stumbling(), retry=MINUTELY._replace(max_attempts=1)).enqueue(Email(**MAIL))
    assert attempted(app, job).state is State.FAILED
    app.retry(job)
    job = attempted(app, job)
    assert (job.state, len(server.sent)) == (State.SUCCEEDED, 1)
    assert job.result["provider"] == service
