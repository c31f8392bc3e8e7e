"""The pages of schedules: what each says, what its forms do, and what they are refused."""

import html
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.server.conftest import Client, Login
from tests.server.reading import text
from tests.server.test_scopes import everything
from treadle import Treadle
from treadle.model.records import Schedule
from treadle.testing import FakeClock, run_until_idle

Post = Callable[..., Any]


@pytest.fixture
def nightly(app: Treadle) -> Schedule:
    return app.schedules.create(
        "nightly", "greet", {"name": "Ada"}, cron="30 2 * * *", tz="Europe/Stockholm", actor="ada"
    )


def text_of(page: Any) -> str:
    """What somebody reads on a page, on one line."""
    main = page.text.partition("<main")[2].partition("</main>")[0]
    return text(main.partition(">")[2])


def read(client: Client, path: str, expect: int = 200) -> str:
    page = client.ask("GET", f"/{path}")
    assert page.status_code == expect, page.text
    return text_of(page)


def post(client: Client, path: str, **fields: str) -> Any:
    return client.ask("POST", f"/{path}", data=fields)


def row_of(page: Any, name: str) -> str:
    """The row of a schedule in the list."""
    [row] = [one for one in page.text.split("<tr role") if f">{name}</a>" in one]
    return text("<tr" + row.partition("</tr>")[0])


# ---------------------------------------------------------------------------------------------- looking


@pytest.mark.covers("002-U2.a")
def test_a_row_says_when_in_words_and_as_it_is_spelt_what_comes_and_what_was(
    app: Treadle, admin: Client, nightly: Schedule, clock: FakeClock
) -> None:
    app.schedules.create("often", "greet", {"name": "Ada"}, every="15m")
    clock.advance(minutes=20)
    run_until_idle(app)
    page = admin.ask("GET", "//schedules")
    row = row_of(page, "nightly")
    for said in (
        "At 02:30 every day",
        "30 2 * * *",
        "Europe/Stockholm",
        "in 13 h 10 min",
        "Fri 02:30 +01:00",
        "never yet",
    ):
        assert said in row, said
    assert 'aria-label="nightly makes jobs"' in page.text
    assert "2026-01-02 01:30:00 UTC" in page.text  # the exact instant, to hover over
    often = row_of(page, "often")
    for said in ("Every 15 min", "every 15m", "in 10 min", "succeeded"):
        assert said in often, said
    assert f"/jobs/{app.schedules.get('often').last_job}" in page.text
    assert "2 schedules, 2 on. The next fires in 10 min ." in text_of(page)


def test_the_list_is_sorted_by_the_next_run_or_by_name_and_can_be_narrowed(
    app: Treadle, admin: Client, clock: FakeClock
) -> None:
    for name, task, payload, every in (
        ("a", "greet", {"name": "x"}, "3h"),
        ("b", "send", {"to": "x"}, "1h"),
        ("c", "greet", {"name": "x"}, "100m"),
    ):
        app.schedules.create(name, task, payload, every=every)
    app.schedules.create("d", "greet", {"name": "x"}, every="30m", enabled=False, actor="ada", reason="not yet")
    clock.advance(minutes=61)
    run_until_idle(app, queues=["mail"])

    def names(query: str) -> list[str]:
        return re.findall(
            r'data-row id="schedule-[^"]+">.*?class="plain" href="/schedules/(\w)"',
            admin.ask("GET", f"//schedules{query}").text,
            re.S,
        )

    assert names("") == ["c", "b", "a", "d"]
    assert names("?by=name") == ["a", "b", "c", "d"]
    assert names("?show=failing") == ["b"]
    assert names("?show=off") == ["d"]
    assert "b failed last time" in read(admin, "/schedules")
    assert "by ada, 1 h 1 min ago : not yet" in read(admin, "/schedules?show=off")


def test_more_than_a_page_of_schedules_is_told_by_name(app: Treadle, admin: Client) -> None:
    for number in range(53):
        app.schedules.create(f"s{number:02}", "greet", {"name": "Ada"}, every="1h")
    page = admin.ask("GET", "//schedules")
    assert "50 schedules by name, of more" in text_of(page)
    following = html.unescape(re.findall(r'href="([^"]+cursor=[^"]+)">Next page', page.text)[0])
    rest = admin.ask("GET", f"/{following}")
    assert [name for name in ("s49", "s50", "s52") if f">{name}<" in rest.text] == ["s50", "s52"]
    assert "That is the last page" in text_of(rest)


def test_no_schedule_teaches_how_to_have_one(admin: Client, login: Login) -> None:
    page = read(admin, "/schedules")
    assert "There is no schedule yet." in page
    assert "treadle schedules create nightly" in page
    assert "@app.task(cron=" in page
    assert "New schedule" in page
    assert "New schedule" not in read(login("read"), "/schedules")


def test_a_change_of_the_clock_is_told_where_it_moves_a_run(app: Treadle, admin: Client, clock: FakeClock) -> None:
    clock.advance(days=86)  # 28 March 2026, 12:00 UTC
    app.schedules.create("nightly", "greet", {"name": "Ada"}, cron="30 2 * * *", tz="Europe/Stockholm")
    app.schedules.create("hourly", "greet", {"name": "Ada"}, cron="30 * * * *", tz="Europe/Stockholm")
    page = read(admin, "/schedules/nightly")
    assert "Sun 29 March 03:00 +02:00 29 March 01:00 Clocks are set forward: its time does not exist that day." in page
    assert "Mon 30 March 02:30 +02:00 30 March 00:30" in page
    assert "clocks change: Sun 29 March 03:00" in read(admin, "/schedules")
    assert "Clocks are set forward" not in read(admin, "/schedules/hourly")
    clock.advance(days=210, hours=11, minutes=50)  # 24 October 2026, 23:50 UTC: clocks are set back at 01:00
    app.schedules.disable("nightly")
    app.schedules.enable("nightly")
    assert (
        "25 October 02:30 +02:00 25 October 00:30 Clocks are set back: this time comes twice. It runs once, the first"
        in read(admin, "/schedules/nightly")
    )
    hourly = read(admin, "/schedules/hourly")
    assert "25 October 00:30 Clocks are set back: this time comes twice, and both run. This is the first." in hourly
    assert (
        "02:30 +01:00 25 October 01:30 Clocks are set back: this time comes twice, and both run. This is the second."
        in hourly
    )


def test_what_keeps_a_schedule_from_running_is_said(
    app: Treadle, admin: Client, nightly: Schedule, clock: FakeClock
) -> None:
    app.pause(queue="default", reason="disk", actor="ada")
    assert "will wait: queue default is paused" in read(admin, "/schedules")
    assert "Its jobs will wait: queue default is paused" in read(admin, "/schedules/nightly")
    clock.advance(days=1)
    assert "overdue" in read(admin, "/schedules")
    assert "It is overdue. A worker makes its jobs" in read(admin, "/schedules/nightly")
    app.schedules.disable("nightly", actor="ada", reason="too slow")
    page = read(admin, "/schedules/nightly")
    assert "ada switched it off now : too slow." in page
    assert "overdue" not in page


def test_a_row_that_another_program_wrote_badly_is_still_a_row(app: Treadle, admin: Client, nightly: Schedule) -> None:
    app.engine.save(nightly.evolve(cron="99 * * * *", revision=nightly.revision + 1), before=nightly)
    assert "It cannot be read: cron: minute: '99' is out of range" in read(admin, "/schedules")


# ----------------------------------------------------------------------------------------------- acting


def test_a_switch_acts_and_leads_back_to_where_it_stood(app: Treadle, admin: Client, nightly: Schedule) -> None:
    answer = post(admin, f"/schedules/{nightly.id}/switch", on="0", back="/schedules?by=name")
    assert (answer.status_code, answer.headers["location"]) == (303, "/schedules?by=name")
    assert not app.schedules.get("nightly").enabled
    answer = post(admin, "/schedules/nightly/switch", on="1", reason="wanted again", back="//evil.example")
    assert answer.headers["location"] == "/schedules"
    assert app.schedules.get("nightly").enabled
    event = app.schedules.events("nightly")[-1]
    assert (event.kind, event.actor, event.note) == ("enabled", "token admin-0", "schedule nightly: wanted again")
    history = read(admin, "/schedules/nightly")
    assert "token admin-0 switched it on wanted again" in history
    assert "ada created it" in history


def test_run_now_is_previewed_and_then_makes_one_job(app: Treadle, admin: Client, nightly: Schedule) -> None:
    preview = read(admin, "/schedules/nightly?act=run")
    assert "This makes one job of greet on queue default" in preview
    assert "treadle schedules run nightly" in preview
    assert app.find().jobs == []
    answer = post(admin, f"/schedules/{nightly.id}/run", reason="tonight's was lost", back="/schedules/nightly")
    [job] = app.find().jobs
    assert answer.headers["location"].startswith(f"/schedules/nightly?ran={job.id}&sure=")
    assert f"/jobs/{job.id}" in admin.ask("GET", f"/{answer.headers['location']}").text


def test_a_run_that_may_not_overlap_is_refused_in_the_words_of_the_api(app: Treadle, admin: Client) -> None:
    app.schedules.create("single", "greet", {"name": "Ada"}, every="1h", overlap="skip")
    post(admin, "/schedules/single/run")
    answer = post(admin, "/schedules/single/run", reason="once more")
    assert answer.status_code == 409
    assert "is held by job" in text_of(answer)
    assert 'value="once more"' in answer.text
    assert len(app.find().jobs) == 1


@pytest.mark.covers("002-U2.c")
def test_deleting_asks_first_and_wants_to_know_why(app: Treadle, admin: Client, nightly: Schedule) -> None:
    asked = read(admin, "/schedules/nightly?act=delete")
    assert "nothing brings it back" in asked
    assert "treadle schedules delete nightly" in asked
    for reason in ("", "  "):
        answer = post(admin, "/schedules/nightly/delete", reason=reason)
        assert answer.status_code == 422
        assert "Say why" in text_of(answer)
    assert app.schedules.get("nightly") == nightly
    answer = post(admin, "/schedules/nightly/delete", reason="not needed")
    assert answer.headers["location"].startswith("/schedules?deleted=nightly&sure=")
    assert "nightly is deleted" in read(admin, answer.headers["location"])
    assert [*app.schedules.list()] == []
    assert app.schedules.events("nightly")[-1].note == "schedule nightly: not needed"
    read(admin, "/schedules/nightly", 404)


def test_who_may_only_read_sees_commands_and_no_buttons(app: Treadle, login: Login, nightly: Schedule) -> None:
    reader, before = login("read"), everything(app)
    for path in ("//schedules", "//schedules/nightly", "//schedules/nightly?act=delete"):
        page = reader.ask("GET", path)
        main = page.text.partition("<main")[2]
        assert 'method="post"' not in main, path
        assert "treadle schedules" in main, path
    form = reader.ask("GET", "//schedules/nightly/edit")
    assert "Save changes" not in form.text
    assert post(reader, "/schedules/check", name="x", cron="* * * * *", when="cron").status_code == 200
    assert everything(app) == before


def test_bound_tokens_see_and_touch_their_own_schedules_only(app: Treadle, login: Login) -> None:
    app.schedules.create("ours", "greet", {"name": "Ada"}, every="1h", tenant="acme")
    theirs = app.schedules.create("theirs", "send", {"to": "x"}, every="1h", tenant="globex")
    for client in (login("operate", tenant="acme"), login("operate", queues=["default"])):
        page = client.ask("GET", "//schedules")
        assert ">ours<" in page.text
        assert "theirs" not in page.text
        read(client, f"/schedules/{theirs.id}", 404)
        read(client, f"/schedules/{theirs.id}/edit", 404)
        for act in ("switch", "run", "delete", "edit"):
            assert post(client, f"/schedules/{theirs.id}/{act}", reason="mine", on="0").status_code == 404, act
        assert post(client, "/schedules/check", id=theirs.id, when="every", every="1h").status_code == 404
    assert app.schedules.get(theirs.id) == theirs


def test_a_schedule_of_another_tenant_is_acted_on_by_its_id(app: Treadle, admin: Client, nightly: Schedule) -> None:
    other = app.schedules.create("nightly", "greet", {"name": "Ada"}, every="1h", tenant="acme")
    page = admin.ask("GET", "//schedules")
    assert f"/schedules/{other.id}/switch" in page.text
    assert 'href="/schedules/nightly?tenant=acme"' in page.text
    assert 'href="/schedules/nightly/edit?tenant=acme"' in admin.ask("GET", "//schedules/nightly?tenant=acme").text
    assert "Every 1 h" in read(admin, "/schedules/nightly?tenant=acme")
    assert 'value="1h"' in admin.ask("GET", "//schedules/nightly/edit?tenant=acme").text
    assert "treadle schedules run nightly --tenant acme" in read(admin, f"/schedules/{other.id}?act=run")
    post(admin, f"/schedules/{other.id}/switch", on="0")
    assert app.schedules.get("nightly").enabled
    assert not app.schedules.get(other.id).enabled


@pytest.mark.parametrize("name", ["new", "check", "..", "a/b", "a b", "-x", "<b>", "50%", "ünï", "a?b#c", "x: y"])
def test_any_name_has_a_page(app: Treadle, admin: Client, name: str) -> None:
    app.schedules.create(name, "greet", {"name": "Ada"}, every="1h", actor="ada", reason="why: not")
    page = admin.ask("GET", "//schedules")
    assert "<b>" not in page.text.partition("<tbody")[2].partition("</tbody>")[0]
    [address] = re.findall(r'class="plain" href="(/schedules/[^"]+)"', page.text)
    found = admin.ask("GET", f"/{address}")
    assert f"<h1>{html.escape(name)}</h1>" in found.text
    assert "ada created it why: not" in text_of(found)
