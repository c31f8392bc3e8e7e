"""sentry-sdk."""

from collections.abc import Iterator
from contextlib import contextmanager

import sentry_sdk
from sentry_sdk.crons import capture_checkin
from sentry_sdk.envelope import Envelope

from treadle.testing import fakes
from treadle.testing.fakes import SentryServer
from treadle.testing.fakes.sentry_server import parsed


@contextmanager
def serving() -> Iterator[SentryServer]:
    with fakes.sentry() as server:
        sentry_sdk.init(server.dsn, traces_sample_rate=1.0, default_integrations=False, shutdown_timeout=0)
        yield server
        sentry_sdk.get_client().close(timeout=0)


def failing() -> None:
    try:
        raise RuntimeError("boom\nbang")
    except RuntimeError:
        sentry_sdk.capture_exception()


def test_an_event_a_trace_a_check_in_and_an_attachment_arrive() -> None:
    with serving() as server:
        with sentry_sdk.isolation_scope() as scope, sentry_sdk.start_transaction(name="work", op="queue.process"):
            scope.add_attachment(bytes=b"a\n{}\nb", filename="log.txt")
            scope.set_context("job", {"job_id": "7"})
            failing()
        capture_checkin(monitor_slug="nightly", status="ok")
        sentry_sdk.flush(5)
        [event] = server.events
        assert event["exception"]["values"][0]["value"] == "boom\nbang"
        assert event["contexts"]["job"]["job_id"] == "7"
        assert [one["transaction"] for one in server.items("transaction")] == ["work"]
        assert [one["monitor_slug"] for one in server.items("check_in")] == ["nightly"]
        assert server.packed


def test_an_envelope_is_taken_apart_as_the_client_does_it() -> None:
    with serving() as server:
        sentry_sdk.get_isolation_scope().add_attachment(bytes=b"a\n{}\nb", filename="log.txt")
        failing()
        capture_checkin(monitor_slug="nightly", status="ok")
        sentry_sdk.flush(5)
        assert server.raw
        for body in server.raw:
            theirs = Envelope.deserialize(body)
            header, items = parsed(body)
            assert header == theirs.headers
            assert [(one.type, one.body) for one in items] == [(one.type, one.get_bytes()) for one in theirs.items]
        assert "attachment" in [item.type for body in server.raw for item in parsed(body)[1]]
        sentry_sdk.get_isolation_scope().clear()


def test_a_client_that_is_told_to_wait_sends_nothing_more() -> None:
    with serving() as server:
        server.fail_next(429, headers={"Retry-After": "60"})
        failing()
        sentry_sdk.flush(5)
        assert (len(server.requests), server.events) == (1, [])
        failing()
        sentry_sdk.flush(5)
        assert server.events == []


def test_a_limit_for_one_kind_leaves_the_others() -> None:
    with serving() as server:
        server.fail_next(429, headers={"X-Sentry-Rate-Limits": "60:transaction:organization"})
        failing()
        sentry_sdk.flush(5)
        with sentry_sdk.start_transaction(name="work", op="queue.process"):
            failing()
        sentry_sdk.flush(5)
        assert (len(server.events), server.items("transaction")) == (1, [])
