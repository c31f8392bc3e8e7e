"""Sentry: what arrives at an ingest of our own, byte by byte."""

import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from starlette.testclient import TestClient

from tests.support.marks import any_store
from tests.support.workbench import ended, until, working
from treadle import ConfigError, GiveUp, Retry, Snooze, Treadle
from treadle.integrations.redaction import Redaction
from treadle.integrations.sentry import instrument
from treadle.server import Principal, asgi
from treadle.tasks.secrets import MASK
from treadle.testing import FakeClock, fakes, run_until_idle
from treadle.testing.fakes import SentryServer

CARD = '4929-1180 "sécret"\n/x'  # it looks different in a repr, in JSON and in a URL
CODE = 90210443


@pytest.fixture(scope="module")
def server() -> Iterator[SentryServer]:
    """One ingest and one client for all tests, as a process has; the patches of the SDK go with it."""
    patched = (logging.Logger, "callHandlers"), (threading.Thread, "start"), (threading.Thread, "run")
    before = [(place, name, getattr(place, name)) for place, name in patched]
    ingest = fakes.sentry()
    ingest.start()
    sentry_sdk.init(
        ingest.dsn, auto_enabling_integrations=False, attach_stacktrace=True, traces_sample_rate=1.0, shutdown_timeout=0
    )
    yield ingest
    sentry_sdk.get_client().close(timeout=0)
    sentry_sdk.init(default_integrations=False)
    ingest.close()
    for place, name, value in before:
        setattr(place, name, value)


@pytest.fixture
def ingest(server: SentryServer) -> SentryServer:
    sentry_sdk.flush(5)
    server.clear()
    return server


def errors(ingest: SentryServer) -> list[dict[str, Any]]:
    sentry_sdk.flush(5)
    return ingest.items("event")


@any_store  # whose application lives on DynamoDB
@pytest.mark.covers("003-S19.a", "003-S19.b")
def test_a_failure_arrives_with_its_job_its_payload_and_its_traceback(app: Treadle, ingest: SentryServer) -> None:
    instrument(app)

    @app.task(queue="mail", retry=Retry(1))
    def send(to: str) -> None:
        raise ValueError(f"no such mailbox: {to}")

    job = app.tenant("acme").enqueue("send", {"to": "ada"})
    with working(app, queues=["mail"]):
        ended(app, job)
    [event] = errors(ingest)
    context = event["contexts"]["job"]
    assert (context["job_id"], context["task"], context["queue"], context["tenant"]) == (job.id, "send", "mail", "acme")
    assert (context["attempt"], context["failures"], context["state"]) == (1, 1, "failed")
    assert context["payload"] == {"to": "ada"}
    [error] = event["exception"]["values"]
    assert (error["type"], error["value"]) == ("ValueError", "no such mailbox: ada")
    assert error["stacktrace"]["frames"][-1]["function"] == "send"
    assert "vars" not in error["stacktrace"]["frames"][-1]
    assert event["tags"]["treadle.task"] == "send"
    assert (event["level"], event["transaction"]) == ("error", "send")


def test_redacted_fields_are_nowhere_in_the_raw_bytes(app: Treadle, ingest: SentryServer) -> None:
    instrument(app, redact={"charge": ["card"], "*": ["Code"]}, local_variables=True)
    log = logging.getLogger("shop")

    class Card:
        def __repr__(self) -> str:
            return f"<Card {CARD}>"

    @app.task(retry=Retry(2, 0, 0, 0))
    def charge(customer: dict[str, Any], amount: int) -> None:
        number, held = customer["card"], Card()
        log.warning("charging %s with %s", number, json.dumps(customer))
        log.error("cannot charge %s", number, extra={"customer": customer})
        sentry_sdk.set_extra("card", held)
        sentry_sdk.set_extra("of", [held, {"card": number}])
        with sentry_sdk.start_span(op="http", name=f"GET /cards/{number}") as span:
            span.set_data("url", f"/cards/{number}")
        sentry_sdk.capture_message(f"still charging {number!r}")
        try:
            raise KeyError(number)
        except KeyError as error:
            raise RuntimeError(f"card {number} code {customer['code']} refused for {amount}") from error

    job = app.enqueue("charge", {"customer": {"card": CARD, "code": CODE, "name": "Ada"}, "amount": 12})
    with working(app):
        ended(app, job)
    events = errors(ingest)
    last = events[-1]
    assert len([one for one in events if "exception" in one]) == 2  # of two attempts, and none of the worker's log
    assert last["contexts"]["job"]["payload"] == {
        "customer": {"card": MASK, "code": MASK, "name": "Ada"}, "amount": 12,
    }  # fmt: skip
    assert last["exception"]["values"][-1]["value"] == f"card {MASK} code {MASK} refused for 12"
    variables = last["exception"]["values"][-1]["stacktrace"]["frames"][-1]["vars"]
    assert (variables["amount"], variables["number"]) == ("12", f"'{MASK}'")
    assert variables["held"] == f"<Card {MASK}>"
    crumbs = [crumb["message"] for crumb in last["breadcrumbs"]["values"] if crumb.get("category") == "shop"]
    assert crumbs[0].startswith(f"charging {MASK}")
    assert len(events) == 6  # a log line, a message and an error, twice
    assert ingest.packed
    for body in ingest.raw:
        for form in (CARD, repr(CARD)[1:-1], json.dumps(CARD)[1:-1], "4929-1180", "sécret", "s\\u00e9cret", str(CODE)):
            assert form.encode() not in body


def test_what_is_secret_to_everybody_is_not_sent_either(app: Treadle, ingest: SentryServer) -> None:
    instrument(app)

    @app.task(secret=["customer.card", "code"], retry=Retry(1))
    def charge(customer: dict[str, str], code: int) -> None:
        sentry_sdk.set_extra("code", code)
        raise RuntimeError(f"card {customer['card']} refused")

    app.enqueue("charge", {"customer": {"card": CARD, "name": "Ada"}, "code": CODE})
    run_until_idle(app)
    [event] = errors(ingest)
    assert event["contexts"]["job"]["payload"] == {"customer": {"card": "***", "name": "Ada"}, "code": "***"}
    assert event["extra"]["code"] == MASK
    assert not any(b"4929" in body or str(CODE).encode() in body for body in ingest.raw)


def test_an_event_that_cannot_be_redacted_is_not_sent(app: Treadle, ingest: SentryServer) -> None:
    instrument(app, redact={"*": ["card"]})

    class Odd(dict[str, str]):
        def items(self) -> Any:
            raise RuntimeError("no")

    @app.task
    def charge(card: str) -> None:
        sentry_sdk.capture_event({"message": card, "extra": {"odd": Odd(a=card)}})

    app.enqueue("charge", {"card": CARD})
    run_until_idle(app)
    assert errors(ingest) == []


def test_only_failed_attempts_are_sent_and_each_once(app: Treadle, ingest: SentryServer, clock: FakeClock) -> None:
    instrument(app, payloads=False)

    @app.task(retry=Retry(2, 0, 0, 0))
    def flaky() -> None:
        raise OSError("again")

    @app.task
    def hopeless() -> None:
        raise GiveUp("no")

    tries: list[int] = []

    @app.task
    def later() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise Snooze(0)

    for name in ("flaky", "hopeless", "later"):
        app.enqueue(name, {})
    run_until_idle(app)
    seen = [(one["tags"]["treadle.task"], one["level"]) for one in errors(ingest)]
    assert sorted(seen) == [("flaky", "error"), ("flaky", "warning"), ("hopeless", "error")]
    assert all("payload" not in one["contexts"]["job"] for one in ingest.items("event"))


def test_without_retries_only_a_failure_for_good_is_sent(app: Treadle, ingest: SentryServer) -> None:
    instrument(app, retries=False)

    @app.task(retry=Retry(2, 0, 0, 0))
    async def flaky() -> None:
        raise OSError("again")

    app.enqueue("flaky", {})
    run_until_idle(app)
    assert [one["level"] for one in errors(ingest)] == ["error"]


def test_a_job_whose_worker_died_is_sent_with_what_is_known(
    app: Treadle, ingest: SentryServer, clock: FakeClock
) -> None:
    from tests.support.making import claimed, start

    instrument(app)

    @app.task(retry=Retry(1))
    def slow(card: str) -> None: ...

    job = app.enqueue("slow", {"card": "x"})
    held = claimed(app.engine, job)
    start(app.engine, held)
    clock.advance(hours=1)
    with working(app):
        ended(app, job)
        until(lambda: errors(ingest), "the event of the crash")
    [event] = ingest.items("event")
    assert event["contexts"]["job"]["job_id"] == job.id
    assert event["exception"]["values"][0]["value"]


def test_other_lines_of_treadle_are_sent_and_have_no_variables(app: Treadle, ingest: SentryServer) -> None:
    instrument(app)

    @app.hooks.on_settle
    def broken(end: Any) -> None:
        raise RuntimeError("hook")

    @app.task
    def charge(card: str) -> None: ...

    job = app.enqueue("charge", {"card": CARD})
    with working(app):
        ended(app, job)
        until(lambda: errors(ingest), "the event of the hook")
    [event] = ingest.items("event")
    assert event["logger"] == "treadle.hooks"
    assert not any(b"4929" in body for body in ingest.raw)


def test_a_schedule_checks_in_when_its_job_begins_and_ends(
    app: Treadle, ingest: SentryServer, clock: FakeClock
) -> None:
    instrument(app)
    fails = [True, False, True, True]

    @app.task(retry=Retry(2, 0, 0, 0))
    def report() -> None:
        if fails.pop(0):
            raise OSError("printer")

    app.schedules.create("Nightly report", "report", cron="0 3 * * *", tz="Europe/Berlin")
    app.schedules.create("ticker", "report", every="10s")
    app.schedules.run("Nightly report")
    run_until_idle(app)
    app.schedules.run("Nightly report")
    app.schedules.run("ticker")  # it is quicker than Sentry's clock
    fails.append(False)
    run_until_idle(app)
    sentry_sdk.flush(5)
    seen = ingest.items("check_in")
    assert {one["monitor_slug"] for one in seen} == {"nightly-report-" + seen[0]["monitor_slug"][-6:]}
    first, second = (
        [one for one in seen if one["check_in_id"] == id] for id in dict.fromkeys(one["check_in_id"] for one in seen)
    )
    assert [one["status"] for one in first] == ["in_progress", "in_progress", "ok"]
    assert [one["status"] for one in second] == ["in_progress", "in_progress", "error"]
    assert first[0]["monitor_config"] == {
        "schedule": {"type": "crontab", "value": "0 3 * * *"}, "timezone": "Europe/Berlin",
    }  # fmt: skip
    assert first[-1]["duration"] >= 0


def test_a_schedule_that_was_not_named_has_no_check_ins(app: Treadle, ingest: SentryServer) -> None:
    instrument(app, monitors=["nightly"])

    @app.task
    def report() -> None: ...

    for name in ("nightly", "hourly"):
        app.schedules.create(name, "report", every="1h")
        app.schedules.run(name)
    run_until_idle(app)
    sentry_sdk.flush(5)
    assert [(one["monitor_slug"], one["status"]) for one in ingest.items("check_in")] == [
        ("nightly", "in_progress"), ("nightly", "ok"),
    ]  # fmt: skip


def test_instrument_refuses_what_cannot_be_meant(app: Treadle) -> None:
    with pytest.raises(ConfigError, match=r"redact\['charge'\] must be a list of field names"):
        instrument(app, redact={"charge": "card"})
    instrument(app)
    with pytest.raises(ConfigError, match="instrumented already"):
        instrument(app)


def test_a_short_secret_is_redacted_as_a_word_and_a_truth_value_is_none() -> None:
    redaction = Redaction(["pin"], {"pin": 7, "a": {"PIN": ["x1", True, None]}})
    assert redaction("7 of 77, x1 or x12, True") == f"{MASK} of 77, {MASK} or x12, True"
    assert redaction({"n": 7, "lineno": 7, "7": (1, {7})}) == {"n": MASK, "lineno": 7, MASK: [1, [MASK]]}


def test_a_long_secret_that_a_message_cuts_is_redacted() -> None:
    key = "sk_live_" + "".join(map(str, range(100, 120)))
    text = Redaction(["key"], {"Key": key}).text(f"input_value='{key[:24]}...{key[-23:]}'")
    assert text == f"input_value='{MASK}...{MASK}'"


PAGES = (
    "/jobs",
    "/jobs/{id}",
    "/jobs/{id}?act=edit",
    "/failures",
    "/audit",
    "/api/v1/jobs/{id}",
    "/api/v1/failures",
    "/api/v1/audit",
)


@any_store  # whose application lives on DynamoDB
@pytest.mark.covers("003-S19.c")
def test_what_a_task_names_as_secret_is_in_no_envelope_no_event_and_no_page(app: Treadle, ingest: SentryServer) -> None:
    instrument(app)

    @app.task(secret=["card"], retry=Retry(1))
    def charge(card: str, name: str) -> None:
        raise RuntimeError(f"card {card} of {name} refused")

    job = app.enqueue("charge", {"card": "4929-1180-77", "name": "Ada"})
    run_until_idle(app)
    [event] = errors(ingest)
    assert event["contexts"]["job"]["payload"] == {"card": "***", "name": "Ada"}
    assert not [body for body in ingest.raw if b"4929-1180" in body]
    assert "of Ada refused" in app.events(job.id)[-1].note
    assert not [one for one in app.events(job.id) if "4929-1180" in repr(one)]
    with TestClient(asgi(app, auth=lambda _: Principal.of("ada", ["operate"])), "http://localhost") as http:
        for path in PAGES:
            answer = http.get(path.format(id=job.id))
            assert answer.status_code == 200, path
            assert "Ada" in answer.text, path
            assert "4929-1180" not in answer.text, path
