"""The page of the doctor: findings by level, what to do, and who it is not for."""

from html import unescape

import pytest

from tests.server import reading
from tests.server.conftest import Client, Login
from tests.server.reading import text as words
from treadle import Treadle
from treadle.engines.values import Finding


def page(client: Client, expect: int = 200) -> str:
    return unescape(reading.page(client, "/doctor", expect))


@pytest.fixture
def finds(monkeypatch: pytest.MonkeyPatch):
    """Let the doctor find this."""

    def finds(*findings: Finding) -> None:
        monkeypatch.setattr(Treadle, "doctor", lambda *_, **__: list(findings))

    return finds


def test_a_store_that_is_well_has_nothing_to_say(admin: Client, finds) -> None:
    finds(Finding("ok", "schema is up to date"))
    said = words(page(admin))
    assert "Nothing to say: the store is well" in said
    assert "As it should be Schema is up to date." in said
    assert "Warnings" not in said


def test_findings_are_told_the_worst_first_with_the_command_that_helps(admin: Client, finds) -> None:
    finds(
        Finding("ok", "synchronous=full: an enqueued job survives a power cut"),
        Finding("warning", "a schedule is gone; run `treadle migrate --check` as the role that migrates"),
        Finding("error", "3 jobs are due on queue mail, and no live worker serves it"),
    )
    text = page(admin)
    said = words(text)
    assert "One thing keeps this store from working as it should" in said
    assert said.index("3 jobs are due") < said.index("A schedule is gone") < said.index("synchronous=full: an")
    assert "<code>treadle migrate --check</code>" in text
    assert "<code>treadle doctor</code>" in text


def test_warnings_alone_are_told_as_such(admin: Client, finds) -> None:
    finds(Finding("warning", "fsync is off"), Finding("warning", "LISTEN receives nothing"))
    assert "It works; 2 things you should know" in words(page(admin))


def test_that_nobody_does_what_is_due_is_an_error(app: Treadle, admin: Client, clock) -> None:
    app.enqueue("send", {"to": "ada"})
    clock.advance(minutes=10)
    said = words(page(admin))
    assert "Errors 1 job is due and no worker is alive; start one with `treadle worker`." in said


@pytest.mark.parametrize("bound", [{"tenant": "acme"}, {"queues": ["mail"]}])
def test_a_token_that_is_bound_is_told_politely(login: Login, bound: dict) -> None:
    text = page(login("read", **bound), 403)
    assert "<h1>Doctor</h1>" in text
    assert "Ask an operator whose token is bound to nothing" in text


def test_a_finding_is_text(admin: Client, finds) -> None:
    finds(Finding("warning", "schedule <script>alert(1)</script> is gone: `treadle schedules delete '<b>`"))
    assert "<script>alert" not in admin.ask("GET", "//doctor").text
