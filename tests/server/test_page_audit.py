"""The page of the audit trail: acts in words, filters, and the state of the seals."""

import re
from collections.abc import Callable
from html import unescape

import pytest

from tests.server import reading
from tests.server.conftest import Client, Login
from tests.server.reading import text as words
from treadle import Treadle
from treadle.testing import FakeClock, run_until_idle


@pytest.fixture
def acts(app: Treadle, tick: Callable[[], None]) -> Treadle:
    """What people have done to a job, a schedule and a queue, and what a worker has."""
    app.schedules.create("nightly", "greet", {"name": "Ada"}, every="1h", actor="ada")
    tick()
    app.cancel(app.enqueue("greet", {"name": "Ada"}, tenant="acme").id, actor="ada", reason="sent by hand")
    tick()
    app.pause(queue="mail", actor="grace", reason="the relay: it is away")
    tick()
    app.enqueue("give_up", {"why": "no such order"})
    run_until_idle(app)
    return app


def page(client: Client, expect: int = 200, **query: object) -> str:
    return unescape(reading.page(client, "/audit", expect, **query))


def rows(text: str) -> list[str]:
    return [words(row) for row in re.findall(r'<tr id="e-.*?</tr>', text, re.DOTALL)]


def acts_in(text: str) -> list[str]:
    """The rows without their times, and without those of the tokens that look."""
    return [row.partition(" ago ")[2] or row.removeprefix("now ") for row in rows(text) if "token" not in row]


def test_acts_are_told_in_words_with_their_reasons_newest_first(acts: Treadle, admin: Client) -> None:
    [give_up] = [job.id for job in acts.find(task="give_up").jobs]
    [cancelled] = [job.id for job in acts.find(task="greet").jobs]
    text = page(admin)
    assert acts_in(text) == [
        f"testing gave up on job {give_up} no such order default",
        "grace paused queue mail the relay: it is away all",
        f"ada cancelled job {cancelled} sent by hand acme",
        "ada created schedule nightly default",
    ]
    assert f'href="/jobs/{cancelled}"' in text
    assert 'href="/schedules/nightly"' in text
    assert 'href="/queues"' in text


def test_the_schedule_of_another_tenant_is_led_to_and_one_without_an_address_is_named(
    app: Treadle, admin: Client
) -> None:
    app.tenant("acme").schedules.create("rows: all", "greet", {"name": "Ada"}, every="1h")
    app.tenant("acme").schedules.create("nightly", "greet", {"name": "Ada"}, every="1h")
    app.schedules.create("a/b", "greet", {"name": "Ada"}, every="1h")
    text = page(admin)
    links = re.findall(r'href="(/schedules/[^"]+)">([^<]+)<', text)
    assert sorted(links) == [
        ("/schedules/nightly?tenant=acme", "schedule nightly"),
        ("/schedules/rows%3A%20all?tenant=acme", "schedule rows: all"),
    ]
    for address, name in links:
        found = admin.ask("GET", f"/{address}")
        assert f"<h1>{name.removeprefix('schedule ')}</h1>" in found.text
        assert "tenant acme" in words(found.text)
    assert "created schedule a/b" in text


def test_a_filter_leaves_what_fits_and_says_how_far_it_looked(acts: Treadle, admin: Client, clock: FakeClock) -> None:
    text = page(admin, actor="ada")
    assert len(rows(text)) == 2
    assert "Of the last 7 days" in words(text)
    assert "treadle audit --actor ada --since 7d" in text
    assert acts_in(page(admin, kind="paused")) == ["grace paused queue mail the relay: it is away all"]
    assert len(rows(page(admin, tenant="acme"))) == 1
    job = acts.find(task="greet").jobs[0].id
    assert len(rows(page(admin, job=job))) == 1
    clock.advance(days=8)
    assert rows(page(admin, actor="ada")) == []
    assert len(rows(page(admin, actor="ada", since="ever"))) == 2
    assert len(rows(page(admin, actor="ada", since="9d", until="1d"))) == 2
    assert rows(page(admin, actor="ada", since="1d")) == []


def test_what_was_done_by_hand_is_told_without_what_workers_do(acts: Treadle, admin: Client) -> None:
    text = page(admin, by="hand")
    job = acts.find(task="greet").jobs[0].id
    assert acts_in(text) == [
        "grace paused queue mail the relay: it is away all",
        f"ada cancelled job {job} sent by hand acme",
        "ada created schedule nightly default",
    ]
    assert "treadle audit --by-hand --since 7d" in text
    assert len(rows(page(admin, by="hand", actor="ada"))) == 2


def test_a_filter_that_is_wrong_is_told_with_what_was_typed(admin: Client) -> None:
    text = page(admin, 422, since="soon", actor="ada")
    assert "'soon' is no time" in text
    assert re.search(r'name="since" value="soon"[^>]*aria-invalid="true"', text)
    assert 'name="actor" value="ada"' in text
    assert "not a valid cursor" in page(admin, 422, cursor="x")


def test_pages_follow_each_other_and_hold_each_act_once(app: Treadle, admin: Client, clock: FakeClock) -> None:
    for place in range(70):
        app.pause(queue=f"q{place}", actor="ada")
        clock.advance(seconds=1)
    seen: list[str] = []
    text = page(admin, actor="ada")
    while True:
        seen += re.findall(r"queue (q\d+)</a>", text)
        following = re.search(r'href="/(audit\?[^"]*)" rel="next"', text)
        if following is None:
            break
        text = unescape(admin.ask("GET", f"//{following[1]}").text)
    assert seen == [f"q{place}" for place in reversed(range(70))]


def test_the_seals_are_read_only_when_asked(acts: Treadle, admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("nobody asked")

    monkeypatch.setattr(Treadle, "verify_audit", refuse)
    assert "verify=1#seals" in page(admin)


def test_the_state_of_the_seals_is_told_plainly(acts: Treadle, admin: Client, clock: FakeClock) -> None:
    assert "Nothing is sealed yet;" in words(page(admin, verify="1"))
    acts.seal_audit()
    sound = words(page(admin, verify="1"))
    assert "Sound: " in sound
    assert "Every event is sealed." in sound
    acts.pause(queue="other")
    assert "1 event is not sealed yet" in words(page(admin, verify="1"))
    assert "treadle audit verify" in sound


def test_a_broken_seal_is_told_with_its_tenant_first(acts: Treadle, admin: Client) -> None:
    acts.seal_audit()
    with acts.engine.file.write() as writer:  # type: ignore[attr-defined]
        writer.execute("update treadle_events set note = 'nothing happened' where note = 'sent by hand'")
    text = page(admin, verify="1")
    assert "The record is broken: 1 problem in the seals of 1 tenant." in words(text)
    assert "Tenant acme : seal 1: an event was edited or moved" in words(text)
    assert words(text).index("acme broken") < words(text).index("default sound")
    assert "Sound:" not in text


def test_a_token_of_a_tenant_sees_its_own(acts: Treadle, login: Login) -> None:
    acts.seal_audit()
    text = page(login("read", tenant="acme"), verify="1")
    job = acts.find(task="greet").jobs[0].id
    assert acts_in(text) == [f"ada cancelled job {job} sent by hand"]
    assert "grace" not in text
    assert 'name="tenant"' not in text
    assert "in the seals of" not in text
    assert page(login("read", tenant="acme"), 422, tenant="birch")


def test_a_token_of_a_queue_is_told_why_not(acts: Treadle, login: Login) -> None:
    text = page(login("read", queues=["mail"]), 403)
    assert "<h1>Audit</h1>" in text
    assert "your token is bound to some of them" in text
    assert "grace" not in text


def test_what_people_write_is_text(app: Treadle, admin: Client) -> None:
    app.pause(queue="mail", actor="<b>ada", reason="<script>alert(1)</script>")
    app.schedules.create("<img src=x>", "greet", {"name": "Ada"}, every="1h")
    answer = admin.ask("GET", "//audit")
    assert "<script>alert" not in answer.text
    assert "<img" not in answer.text
    assert "<b>ada" not in answer.text
