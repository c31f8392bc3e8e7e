"""The form of a schedule: checked while somebody writes, made or changed, and what is refused keeps what was typed."""

import html
import json

import pytest

from tests.server import reading
from tests.server.conftest import Client, Login
from tests.server.reading import form_fields
from tests.server.test_page_schedules import post, text_of
from tests.server.test_scopes import everything
from tests.support.marks import any_store
from treadle import Treadle
from treadle.errors import NotPossible
from treadle.model.records import Schedule
from treadle.schedules.api import Schedules
from treadle.testing import FakeClock

NEW = {"name": "nightly", "task": "greet", "payload": '{"name": "Ada"}', "when": "cron", "cron": "30 2 * * *",
       "tz": "Europe/Stockholm", "overlap": "allow", "misfire": "once", "enabled": "1"}  # fmt: skip


def under(page: object, field: str) -> str:
    """What stands under a field."""
    part = page.text.partition(f'data-check="err-{field}"')[2].partition("</div>")[0]  # type: ignore[attr-defined]
    return reading.text(part.partition(">")[2])


def form_of(client: Client, path: str) -> dict[str, str]:
    """What a browser would send of the form as it was opened."""
    text = reading.page(client, path)
    return form_fields(text[text.index('<form class="form"') :])


# ------------------------------------------------------------------------------------------- checking


@pytest.mark.covers("002-U2.b")
def test_a_check_says_what_it_would_do_and_where_clocks_change(admin: Client, app: Treadle, clock: FakeClock) -> None:
    clock.advance(days=86)  # 28 March 2026
    before = everything(app)
    page = post(admin, "/schedules/check", **NEW)
    assert page.status_code == 200
    told = text_of(page)
    assert "At 02:30 every day, Europe/Stockholm." in told
    assert "Sun 29 March 03:00 +02:00 29 March 01:00 UTC Clocks are set forward" in told
    assert "Where it is now 13:00, +01:00." in told
    assert "treadle schedules create nightly --task greet" in told
    assert "--cron '30 2 * * *' --tz Europe/Stockholm --payload '{\"name\": \"Ada\"}'" in told
    assert 'class="err"' not in page.text
    assert everything(app) == before


@pytest.mark.covers("002-U2.b", "002-U3.e")
@pytest.mark.parametrize(
    ("typed", "field", "said"),
    [
        ({"cron": "30 25 * * 1-5"}, "cron", "hour: '25' is out of range. It takes 0 to 23, such as '9-17'"),
        ({"cron": "often"}, "cron", "'often' has 1 field and must have 5"),
        ({"tz": "Europe/Stokholm"}, "tz", "is not a known time zone. Did you mean 'Europe/Stockholm'?"),
        ({"when": "every", "every": "0.2s"}, "every", "is too short"),
        ({"task": "gret"}, "task", "no task 'gret' is registered here (did you mean 'greet'?)"),
        ({"payload": '{"name": 3}'}, "payload", "name: "),
        ({"payload": "{name"}, "payload", "is not valid JSON"),
        ({"payload": '{"name": "x", "name": "y"}'}, "payload", "is there twice"),
        ({"jitter": "soon"}, "jitter", "'soon'"),
        ({"timeout": "0"}, "timeout", "must be"),
        ({"overlap": "never"}, "overlap", "allow"),
        ({"name": "taken"}, "name", "there is a schedule 'taken' already"),
        ({"name": "x" * 201}, "name", "at most 200 characters"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:20],
)  # fmt: skip
def test_what_is_wrong_stands_under_its_field_and_what_was_typed_stays(
    app: Treadle, admin: Client, typed: dict[str, str], field: str, said: str
) -> None:
    app.schedules.create("taken", "greet", {"name": "Ada"}, every="1h")
    before = everything(app)
    for path, expected in (("/schedules/check", (200,)), ("/schedules/new", (422, 409))):
        page = post(admin, path, **{**NEW, **typed})
        assert page.status_code in expected, text_of(page)
        assert said in under(page, field), (path, under(page, field))
        assert "1 field needs you." in text_of(page)
        [value] = typed.values() if len(typed) == 1 else [typed["every"]]
        assert html.escape(value) in page.text.replace("&#34;", "&quot;"), path
        if field not in ("overlap", "name"):
            assert 'aria-invalid="true"' in page.text
    assert everything(app) == before


def test_everything_that_is_wrong_is_told_at_once(admin: Client) -> None:
    page = post(admin, "/schedules/check", **{**NEW, "cron": "x", "task": "gret", "jitter": "y", "payload": "{"})
    assert "4 fields need you." in text_of(page)
    for field in ("cron", "task", "jitter", "payload"):
        assert under(page, field), field


def test_what_is_not_written_yet_is_not_wrong(admin: Client) -> None:
    assert "need you" not in text_of(admin.ask("GET", "//schedules/new"))
    for typed in (
        {"cron": "@daily"},
        {"name": "a"},
        {"task": "give_up", "payload": '{"why": "x"}'},
        {"when": "every", "every": "15m"},
    ):
        page = post(admin, "/schedules/check", **{"when": "cron", "enabled": "1", **typed})
        assert "need you" not in text_of(page), typed
    page = post(admin, "/schedules/new", when="cron")
    assert page.status_code == 422
    assert under(page, "name")
    assert under(page, "task")


@pytest.mark.parametrize(
    ("typed", "fix", "fixed"),
    [
        ({"tz": "Europe/Stokholm"}, "tz=Europe/Stockholm", 'name="tz" value="Europe/Stockholm"'),
        ({"task": "gret"}, "task=greet", 'name="task" value="greet"'),
        ({"cron": "0 22-6 * * *"}, "cron=0 22-23,0-6 * * *", 'value="0 22-23,0-6 * * *"'),
    ],
    ids=str,
)  # fmt: skip
def test_a_near_miss_is_a_button_that_puts_it_right(admin: Client, typed: dict[str, str], fix: str, fixed: str) -> None:
    page = post(admin, "/schedules/check", **{**NEW, **typed})
    assert f'name="fix" value="{fix}"' in page.text
    page = post(admin, "/schedules/check", **{**NEW, **typed}, fix=fix)
    assert fixed in page.text
    assert "need you" not in text_of(page)


@any_store
def test_a_check_of_the_api_names_every_problem_and_makes_nothing(app: Treadle, admin: Client, login: Login) -> None:
    reader, before = login("read"), everything(app)
    found = reader.post("/schedules/check", {"name": "a", "task": "greet", "payload": {"name": "Ada"}, "every": "15m"})
    assert (found["words"], found["problems"]) == ("every 15m", [])
    assert [tick["at"] for tick in found["ticks"]][:2] == ["2026-01-01T12:15:00+00:00", "2026-01-01T12:30:00+00:00"]
    found = admin.post("/schedules/check", {"cron": "61 * * * *", "task": "nothing", "jitter": "x", "max_attempts": 0})
    assert [one["field"] for one in found["problems"]][:2] == ["cron", "task"]
    assert {one["field"] for one in found["problems"]} == {"cron", "task", "jitter", "max_attempts"}
    assert (found["words"], found["ticks"]) == (None, [])
    assert admin.post("/schedules/check", {"cron": "* * * * *", "every": "1h"})["problems"][0]["field"] == "schedule"
    assert admin.post("/schedules/check", {})["problems"] == []
    assert everything(app) == before


def test_a_check_keeps_to_the_queues_of_a_token(app: Treadle, login: Login) -> None:
    bound = login("read", queues=["default"])
    found = bound.post("/schedules/check", {"task": "send", "payload": {"to": "x"}, "every": "1h", "queue": "mail"})
    assert [one["field"] for one in found["problems"]] == ["queue"]
    other = app.schedules.create("other", "send", {"to": "x"}, every="1h")
    bound.post("/schedules/check", {"id": other.id}, 404)


def test_the_words_of_an_expression_may_be_asked_for_another_moment(admin: Client) -> None:
    found = admin.get("/cron", cron="30 2 * * *", tz="Europe/Stockholm", after="2026-03-28T12:00:00Z", n=1)
    assert found["ticks"] == [
        {"at": "2026-03-29T01:00:00+00:00", "local": "2026-03-29T03:00:00+02:00", "note": "moved to the end of the gap"}
    ]
    assert (
        admin.get("/cron", cron="30 2 * * *", n=1)["ticks"][0]["at"] == "2026-01-02T02:30:00+00:00"
    )  # the store's time


# --------------------------------------------------------------------------------------------- making


def test_a_schedule_is_made_as_it_was_written(app: Treadle, admin: Client) -> None:
    answer = post(
        admin,
        "/schedules/new",
        **{**NEW, "queue": "reports", "overlap": "skip", "jitter": "30s", "timeout": "5m", "reason": "wanted"},
    )
    assert (answer.status_code, answer.headers["location"]) == (303, "/schedules/nightly")
    made = app.schedules.get("nightly")
    assert (made.cron, made.every, made.timezone, made.queue, made.overlap) == (
        "30 2 * * *",
        None,
        "Europe/Stockholm",
        "reports",
        "skip",
    )
    assert (made.payload, made.jitter, made.timeout, made.enabled) == ({"name": "Ada"}, 30.0, 300.0, True)
    assert app.schedules.events("nightly")[-1].note == "schedule nightly: wanted"


def test_an_interval_leaves_the_expression_aside_and_no_tick_means_off(app: Treadle, admin: Client) -> None:
    typed = {name: value for name, value in NEW.items() if name != "enabled"}
    page = post(admin, "/schedules/check", **{**typed, "when": "every", "every": "15m", "tenant": "acme"})
    assert "--every 15m" in text_of(page)
    assert "--enabled false --tenant acme" in text_of(page)
    answer = post(admin, "/schedules/new", **{**typed, "when": "every", "every": "15m", "tenant": "acme"})
    [made] = app.schedules.list()
    assert answer.headers["location"] == "/schedules/nightly?tenant=acme"
    assert (made.cron, made.every, made.enabled, made.tenant) == (None, 900.0, False, "acme")


# -------------------------------------------------------------------------------------------- editing


@pytest.fixture
def nightly(app: Treadle) -> Schedule:
    return app.schedules.create(
        "nightly", "greet", {"name": "Ada"}, cron="30 2 * * *", tz="Europe/Stockholm", jitter="30s"
    )


def test_only_what_was_changed_is_sent(app: Treadle, admin: Client, nightly: Schedule) -> None:
    typed = form_of(admin, "/schedules/nightly/edit")
    app.schedules.update("nightly", priority=7, queue="mail")  # somebody else, meanwhile
    typed |= {"cron": "0 3 * * *", "jitter": ""}
    page = post(admin, "/schedules/check", **typed)
    assert "treadle schedules update nightly" in text_of(page)
    assert "--cron '0 3 * * *'" in text_of(page)
    assert "--queue" not in text_of(page).partition("treadle schedules")[2]
    answer = post(admin, "/schedules/nightly/edit", **{**typed, "reason": "earlier was too early"})
    assert answer.headers["location"] == "/schedules/nightly"
    after = app.schedules.get("nightly")
    assert (after.cron, after.jitter, after.timezone) == ("0 3 * * *", 0.0, "Europe/Stockholm")
    assert (after.queue, after.priority, after.payload) == ("mail", 7, {"name": "Ada"})
    assert app.schedules.events("nightly")[-1].note == "schedule nightly: earlier was too early"


def test_a_form_in_which_nothing_was_changed_changes_nothing(app: Treadle, admin: Client, nightly: Schedule) -> None:
    typed = form_of(admin, "/schedules/nightly/edit")
    assert "Nothing is changed yet." in text_of(post(admin, "/schedules/check", **typed))
    answer = post(admin, "/schedules/nightly/edit", **typed)
    assert answer.status_code == 422
    assert "nothing is to change" in text_of(answer)
    assert app.schedules.get("nightly") == nightly


def test_a_refusal_that_is_of_no_field_is_told_too(
    app: Treadle, admin: Client, nightly: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = form_of(admin, "/schedules/nightly/edit")

    def update(*_: object, **__: object) -> None:
        raise NotPossible("schedule 'nightly' keeps changing; try again")

    monkeypatch.setattr(Schedules, "update", update)
    page = post(admin, "/schedules/nightly/edit", **{**typed, "cron": "@daily"})
    assert page.status_code == 409
    assert under(page, "") == "schedule 'nightly' keeps changing. Try again"
    assert 'value="@daily"' in page.text


def test_cron_becomes_an_interval_and_the_other_way_round(app: Treadle, admin: Client, nightly: Schedule) -> None:
    typed = form_of(admin, "/schedules/nightly/edit")
    post(admin, "/schedules/nightly/edit", **{**typed, "when": "every", "every": "15m"})
    assert (app.schedules.get("nightly").cron, app.schedules.get("nightly").every) == (None, 900.0)
    typed = form_of(admin, "/schedules/nightly/edit")
    assert typed["when"] == "every"
    post(admin, "/schedules/nightly/edit", **{**typed, "when": "cron", "cron": "@daily", "tz": "UTC"})
    after = app.schedules.get("nightly")
    assert (after.cron, after.every, after.timezone) == ("@daily", None, "UTC")


@pytest.mark.parametrize(
    ("typed", "field", "said"),
    [
        ({"cron": "30 25 * * *"}, "cron", "hour: '25' is out of range"),
        ({"cron": ""}, "cron", "cannot be empty. It was '30 2 * * *'"),
        ({"queue": ""}, "queue", "cannot be empty. It was 'default'"),
        ({"payload": "{}"}, "payload", "name: "),
        ({"tz": "Moon/Base"}, "tz", "is not a known time zone"),
    ],
    ids=str,
)
def test_a_change_that_cannot_be_is_refused_at_its_field(
    app: Treadle, admin: Client, nightly: Schedule, typed: dict[str, str], field: str, said: str
) -> None:
    page = post(admin, "/schedules/nightly/edit", **{**form_of(admin, "/schedules/nightly/edit"), **typed})
    assert page.status_code == 422
    assert said in under(page, field)
    assert app.schedules.get("nightly") == nightly


def test_a_secret_of_a_payload_is_not_shown_and_stays(app: Treadle, admin: Client) -> None:
    @app.task(secret=["pin"])
    def login(user: str, pin: int) -> None: ...

    admin._secrets.append("471123589")
    app.schedules.create("in", "login", {"user": "ada", "pin": 471123589}, every="1h")
    typed = form_of(admin, "/schedules/in/edit")
    assert json.loads(typed["payload"]) == {"user": "ada", "pin": "***"}
    typed["payload"] = typed["payload"].replace("ada", "grace")
    assert not under(post(admin, "/schedules/check", **typed), "payload")
    post(admin, "/schedules/in/edit", **typed)
    assert app.schedules.get("in").payload == {"user": "grace", "pin": 471123589}


def test_what_code_declares_says_where_and_what_editing_means(app: Treadle, admin: Client, nightly: Schedule) -> None:
    app.engine.save(nightly.evolve(declared="0123 shop.tasks", revision=nightly.revision + 1), before=nightly)
    page = text_of(admin.ask("GET", "//schedules/nightly/edit"))
    assert (
        "Code declares it, in module shop.tasks . What you change here holds until that code says something new" in page
    )
    assert "the next worker that starts makes it anew" in text_of(admin.ask("GET", "//schedules/nightly?act=delete"))
    assert "in code, module shop.tasks" in text_of(admin.ask("GET", "//schedules/nightly"))
