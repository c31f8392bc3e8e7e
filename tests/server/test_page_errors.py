"""What no page may answer with: raw JSON, or an error of the server for something that somebody typed."""

import re

import pytest
from starlette.testclient import TestClient

from tests.server.conftest import Client
from treadle import Treadle
from treadle.server import overview

HALF = ('{"a": "\\ud800"}', '{"\\ud800": 1}', '{"name": "\\ud800"}')
TOO_LARGE = ('{"name": 1e999}', '{"name": -1e999}', "[1e400]")


@pytest.mark.parametrize("payload", [*HALF, *TOO_LARGE])
@pytest.mark.parametrize("task", ["", "greet", "whatever"])
def test_a_payload_that_no_store_holds_is_refused_at_its_field(
    app: Treadle, admin: Client, payload: str, task: str
) -> None:
    typed = {"name": "x", "task": task, "when": "every", "every": "1d", "payload": payload}
    assert admin.ask("POST", "//schedules/check", data=typed).status_code == 200
    made = admin.ask("POST", "//schedules/new", data=typed)
    assert made.status_code == 422
    assert "payload" in made.text
    assert app.schedules.list() == []


def test_a_number_that_is_too_large_is_told_in_words(admin: Client) -> None:
    typed = {"name": "x", "task": "greet", "when": "every", "every": "1d", "payload": '{"name": 1e999}'}
    assert "the number 1e999 is too large" in admin.ask("POST", "//schedules/check", data=typed).text
    headers = {"content-type": "application/json"}
    refused = admin.ask("POST", "/jobs", content='{"task": "greet", "payload": {"name": 1e999}}', headers=headers)
    assert refused.json()["detail"] == "body: is not valid JSON: the number 1e999 is too large"


@pytest.mark.parametrize("cursor", ["\x00", "x", "a/b/c", "\x7f"])
def test_a_cursor_that_is_none_is_a_page_that_says_so(admin: Client, cursor: str) -> None:
    for path in ("/schedules", "/jobs", "/failures", "/audit"):
        answer = admin.ask("GET", f"/{path}", params={"cursor": cursor})
        assert answer.status_code == 422, path
        assert answer.headers["content-type"].startswith("text/html"), path


def test_a_bug_of_ours_is_a_page_with_the_number_under_which_it_is_logged(
    app: Treadle, http: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("postgresql://shop:hunter2@db/shop")

    secret = app.tokens.create("ada", scopes=["admin"]).secret
    monkeypatch.setattr(overview, "look", broken)
    answer = http.get("/", headers={"Authorization": f"Bearer {secret}"})
    assert (answer.status_code, answer.headers["content-type"]) == (500, "text/html; charset=utf-8")
    [number] = re.findall(r"an error of the server; its log has more under (\w+)", answer.text)
    assert 'class="rail"' not in answer.text
    assert "hunter2" not in answer.text
    [record] = [record for record in caplog.records if record.name == "treadle.server"]
    assert number in record.getMessage()
    assert record.exc_info is not None
    caplog.clear()
