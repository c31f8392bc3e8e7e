"""The page of failures: kinds with their counts over time, what is new, and the way to retry one."""

import re
from html import unescape

import pytest

from tests.server import reading
from tests.server.conftest import Client, Login
from tests.server.reading import text as words
from treadle import Treadle
from treadle.testing import FakeClock, run_until_idle

QUEUES = ("default", "mail")


@pytest.fixture
def night(app: Treadle, clock: FakeClock) -> Treadle:
    """An order was refused three hours ago; the mail server is away since three minutes."""
    app.enqueue("give_up", {"why": "no such order"})
    run_until_idle(app, queues=QUEUES)
    clock.advance(hours=3)
    for to in ("ada@example.org", "grace@example.org", "alan@example.org"):
        app.enqueue("send", {"to": to})
        run_until_idle(app, queues=QUEUES)
        clock.advance(minutes=1)
    return app


def page(client: Client, expect: int = 200, **query: object) -> str:
    return unescape(reading.page(client, "/failures", expect, **query))


def kinds(text: str) -> list[str]:
    """The kinds in their order, by the name of the error."""
    return re.findall(r"<h3><a[^>]*>(\w+)", text)


def of_kind(app: Treadle, name: str) -> str:
    return next(group.fingerprint for group in app.failures().groups if group.type.endswith(name))


def test_the_page_says_first_how_many_failed_of_how_many_kinds_and_what_is_new(night: Treadle, admin: Client) -> None:
    said = words(page(admin))
    assert "4 jobs failed for good. They are of 2 kinds. 1 kind is new since 15:00:00" in said
    assert "send on mail new first 3 min ago last 1 min ago" in said
    assert "give_up on default quiet first 3 h 3 min ago" in said


def test_kinds_that_are_new_and_of_one_place_are_told_as_one_cause(app: Treadle, admin: Client) -> None:
    @app.task
    def call(host: str) -> None:
        raise TimeoutError(f"{host} is away")

    for host in ("alpha", "beta"):
        app.enqueue("call", {"host": host})
    run_until_idle(app)
    said = words(page(admin))
    assert "2 have failed and will be tried again. They are of 2 kinds. All are new" in said
    assert "the same error from the same place: likely one cause" in said
    assert said.count("1 other kind is the same error from there") == 2


def test_nothing_is_called_new_where_the_look_reaches_no_further_back(night: Treadle, admin: Client) -> None:
    assert "is new" not in words(page(admin, since="1h"))
    assert "It is new" in words(page(admin, since="24h", task="send"))


def test_who_may_operate_is_led_to_the_preview_of_a_retry_beside_its_command(
    night: Treadle, admin: Client, login: Login
) -> None:
    kind = of_kind(night, "ConnectionError")
    link, command = f"/jobs?state=failed&fingerprint={kind}&act=retry", f"treadle jobs retry --fingerprint {kind}"
    assert link in page(admin)
    assert command in page(admin)
    seen = page(login("read"))
    assert link not in seen
    assert "act=retry" not in seen
    assert command in seen
    filtered = page(admin, task="send", since="2h")
    assert f"{link}&task=send&since=2h" in filtered
    assert f"{command} --task send --since 2h" in filtered


def test_a_kind_is_opened_with_the_traceback_of_its_latest_job(night: Treadle, admin: Client) -> None:
    kind = of_kind(night, "ConnectionError")
    assert "Traceback (most recent call last)" not in page(admin)
    opened = page(admin, open=kind)
    assert opened.count("Traceback (most recent call last)") == 1
    assert "<em>ConnectionError: alan@example.org does not answer</em>" in opened
    job = night.failures().groups[0].job_id
    assert f'/jobs/{job}">{job}</a>' in opened


def test_counts_over_time_are_bars_on_one_scale(night: Treadle, admin: Client) -> None:
    drawn = re.findall(r'<svg class="spark".*?</svg>', page(admin), re.DOTALL)
    assert [len(re.findall("<rect", one)) for one in drawn] == [1, 1]  # three minutes are one bar of three hours
    assert "each bar is 1 h" in words(page(admin))
    [fresh] = re.findall(r'<svg class="spark".*?</svg>', page(admin, task="send"), re.DOTALL)
    assert fresh.count("<rect") == 3


def test_kinds_are_filtered_and_ordered(night: Treadle, admin: Client) -> None:
    assert kinds(page(admin)) == kinds(page(admin, by="most")) == ["ConnectionError", "GiveUp"]
    assert kinds(page(admin, queue="default")) == kinds(page(admin, task="give_up")) == ["GiveUp"]
    assert kinds(page(admin, tenant="nobody")) == []
    assert "Nothing that fits has failed" in words(page(admin, tenant="nobody"))
    assert kinds(page(admin, task="", queue="", since="")) == ["ConnectionError", "GiveUp"]


def test_a_filter_that_is_wrong_is_told_beside_the_form_with_what_was_typed(night: Treadle, admin: Client) -> None:
    text = page(admin, 422, since="yesterday", task="send")
    assert "'yesterday' is no time" in text
    assert re.search(r'name="since" value="yesterday"[^>]*aria-invalid="true"', text)
    assert 'name="task" value="send"' in text


def test_a_bounded_look_says_so_and_goes_on(night: Treadle, admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.app.failures.LOOK", 3)
    first = page(admin)
    assert "Of the newest 3 looked at" in words(first)
    [cursor] = set(re.findall(r"cursor=([^\"&]+)", first))
    rest = admin.ask("GET", f"//failures?cursor={cursor}").text
    assert kinds(rest) == ["GiveUp"]
    assert "These failed earlier: of the 1 looked at here." in words(rest)


def test_many_kinds_are_told_by_pages(app: Treadle, admin: Client) -> None:
    for place in range(45):
        letters = chr(97 + place // 26) + chr(97 + place % 26)
        app.enqueue("give_up", {"why": f"reason {letters}"})
    run_until_idle(app)
    text = page(admin)
    assert (len(kinds(text)), "Kinds 1 to 40 of 45" in words(text)) == (40, True)
    assert len(text) < 150_000
    assert len(kinds(page(admin, skip=40))) == 5


def test_what_is_in_an_error_is_text(app: Treadle, admin: Client) -> None:
    app.enqueue("give_up", {"why": "<script>alert(1)</script>"})
    run_until_idle(app)
    answer = admin.ask("GET", "//failures", params={"open": app.failures().groups[0].fingerprint})
    assert "<script>alert" not in answer.text
    assert "&lt;script&gt;alert(1)" in answer.text


def test_a_token_of_a_tenant_sees_its_own(night: Treadle, login: Login) -> None:
    night.enqueue("give_up", {"why": "acme's"}, tenant="acme")
    run_until_idle(night)
    text = page(login("read", tenant="acme"))
    assert kinds(text) == ["GiveUp"]
    assert "1 job failed for good." in words(text)
    assert 'name="tenant"' not in text


def test_a_token_of_two_queues_is_asked_which(night: Treadle, login: Login) -> None:
    reader = login("read", queues=["mail", "other"])
    text = page(reader, 422)
    assert "/failures?queue=mail" in text
    assert "your token is bound to them" in text
    assert kinds(page(reader, queue="mail")) == ["ConnectionError"]


def test_an_empty_store_says_what_would_be_here(admin: Client) -> None:
    text = page(admin)
    assert "Nothing has failed, and nothing waits to be tried again." in words(text)
    assert "Retry(max_attempts=5)" in text
