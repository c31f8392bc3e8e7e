"""The numbers on the tabs of the page of jobs."""

import re
from typing import Any

import pytest

from tests.server import reading
from tests.server.conftest import Client
from tests.support.marks import any_store
from treadle import Retry, Treadle
from treadle.testing import run_until_idle


def page(client: Client, **query: Any) -> str:
    return reading.page(client, "/jobs", **query)


def tab(text: str, word: str) -> str:
    """The number on a tab; nothing if it has none."""
    [shown] = re.findall(rf">{word}(?: <span>([^<]*)</span>)?</a>", text)
    return str(shown)


@pytest.fixture
def waiting(app: Treadle) -> Treadle:
    """Of each of two tenants one job is due, two are scheduled, and three are tried again later."""

    @app.task(retry=Retry(max_attempts=5, base=3600.0))
    def stumble(name: str) -> None:
        raise ConnectionError(name)

    tenants = ("default", "acme")
    for tenant in tenants:
        stumble.using(tenant=tenant).enqueue_many([("Ada",), ("Grace",), ("Edsger",)])
    run_until_idle(app)
    for tenant in tenants:
        app.tasks["greet"].using(tenant=tenant).enqueue("Ada")
        app.tasks["greet"].using(tenant=tenant, run_after="2h").enqueue_many([("Ada",), ("Grace",)])
    return app


@any_store
def test_the_tabs_of_scheduled_and_of_retrying_jobs_have_counts(waiting: Treadle, admin: Client) -> None:
    for where, times in (({}, 2), ({"tenant": "acme"}, 1), ({"task": "greet", "state": "scheduled"}, 2)):
        shown, other = page(admin, **where), 0 if "task" in where else 3
        assert [tab(shown, word) for word in ("Pending", "Scheduled", "Retrying", "Running")] == [
            str(times * (3 + other)), str(times * 2), str(times * other), "0"
        ]  # fmt: skip
        assert "are counted among" not in shown
    assert "All <b>4</b> that match" in page(admin, state="scheduled")
    assert tab(page(admin, since="1h"), "Scheduled") == ""


@any_store
def test_beside_too_many_pending_jobs_they_are_counted_among_some_of_them(
    app: Treadle, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.app.queries.MOST_COUNTED", 2)
    for name in ("Ada", "Grace", "Edsger"):
        app.tasks["greet"].using(run_after="2h").enqueue(name)
    for where in ({}, {"queue": "default"}):
        shown = page(admin, **where)
        assert (tab(shown, "Pending")[0], tab(shown, "Scheduled"), tab(shown, "Retrying")) == ("~", "2+", "")
        assert "Scheduled and Retrying are counted among 50,000 of the pending jobs." in shown
