"""Two people at one thing: what somebody has not seen is not undone, and who was first is named."""

import re
from html import unescape
from typing import Any

import pytest

from tests.server.conftest import Client
from tests.server.reading import form_fields, page, post, text
from tests.support.marks import any_store
from treadle import NotPossible, Treadle
from treadle.model.records import NOT_PAUSED, Schedule
from treadle.testing import FakeClock

STOP = "a migration: do not resume"


def form(shown: str, id: str) -> dict[str, str]:
    """What a browser would send of the form of this id."""
    start = shown.index("<form", shown.index(f'id="{id}"') - 60)
    return form_fields(shown[start:])


# -------------------------------------------------------------------------------------------- pauses


@any_store
def test_a_pause_is_changed_and_lifted_only_as_it_was_seen(app: Treadle, clock: FakeClock) -> None:
    first = app.pause(queue="mail", revision=NOT_PAUSED)
    with pytest.raises(NotPossible, match="queue mail was paused by api since you looked; look at it again"):
        app.pause(queue="mail", revision=NOT_PAUSED)
    second = app.pause(queue="mail", actor="carl", reason=STOP, revision=first.revision, until="1h")
    for act in (app.pause, app.resume):
        with pytest.raises(NotPossible, match=f"was paused by carl since you looked: {STOP}"):
            act(queue="mail", revision=first.revision)
    clock.advance(hours=2)
    with pytest.raises(NotPossible, match="queue mail is not paused any more"):
        app.pause(queue="mail", revision=second.revision)
    third = app.pause(queue="mail", revision=NOT_PAUSED)
    assert app.resume(queue="mail", revision=third.revision) == third
    assert app.pauses() == []


def test_the_api_takes_the_revision_of_a_pause(app: Treadle, admin: Client) -> None:
    made = admin.post("/pauses", {"queue": "mail", "revision": -1}, 201)["pause"]
    admin.post("/pauses", {"queue": "mail", "revision": -1}, 409)
    admin.post("/pauses/resume", {"queue": "mail", "revision": made["revision"] + 1}, 409)
    admin.post("/pauses/resume", {"queue": "mail", "revision": made["revision"]})
    assert app.pauses() == []


def test_a_form_that_is_older_than_a_pause_does_not_lift_it(app: Treadle, admin: Client) -> None:
    app.pause(queue="mail", actor="ada", reason="deploy")
    seen = page(admin, "/queues", act="resume", queue="mail")
    assert "It is paused by ada" in text(seen)
    app.resume(queue="mail", actor="ada")
    stands = app.pause(queue="mail", actor="carl", reason=STOP)
    refused = post(admin, "/queues/resume", {**form(seen, "resume"), "reason": "deployed"}, 409).text
    assert f"Queue mail was paused by carl since you looked: {STOP}" in text(refused)
    assert 'value="deployed"' in refused
    assert app.pauses() == [stands]
    post(admin, "/queues/resume", form(refused, "resume"))  # it is seen now
    assert app.pauses() == []


def test_a_form_that_saw_no_pause_does_not_replace_one(app: Treadle, admin: Client) -> None:
    seen = form(page(admin, "/queues", act="pause", queue="mail", until="1m"), "pause")
    stands = app.pause(queue="mail", actor="carl", reason=STOP)
    refused = post(admin, "/queues/pause", seen, 409).text
    assert f"Queue mail was paused by carl since you looked: {STOP}" in text(refused)
    assert app.pauses() == [stands]
    opened = page(admin, "/queues", act="pause", queue="mail", until="1m")
    for shown in (refused, opened):
        assert "Queue mail is already paused by carl" in text(shown)
        assert form(shown, "pause")["revision"] == str(stands.revision)
    post(admin, "/queues/pause", form(refused, "pause"))
    [replaced] = app.pauses()
    assert (replaced.actor, replaced.revision) == ("token admin-0", stands.revision + 1)


def test_a_pause_that_stands_is_told_while_somebody_types_its_name(app: Treadle, admin: Client) -> None:
    app.pause(tenant="acme", actor="carl", reason=STOP)
    checked = post(admin, "/queues/check", {"tenant": "acme", "revision": "-1"}, 200).text
    [part] = re.findall(r'data-check="standing".*?</div>', checked)
    assert f"Tenant acme is already paused by carl now : {STOP}." in text(unescape(part))
    for other in ({"queue": "acme"}, {"tenant": "acme", "task": "send"}, {"everything": "1"}, {}):
        checked = post(admin, "/queues/check", other, 200).text
        assert "is already paused" not in checked, other
        assert form(checked, "pause")["revision"] == "-1"
    preview: dict[str, Any] = form(page(admin, "/queues", act="pause", queue="mail"), "pause")
    page(admin, "/queues", act="pause", **preview)  # the button Preview sends all of it


# ------------------------------------------------------------------------------------------ schedules

EDIT = "/schedules/nightly/edit"


def opened(client: Client) -> dict[str, str]:
    """The form of the schedule nightly, as it is now."""
    shown = page(client, EDIT)
    return form_fields(shown[shown.index('<form class="form"') :])


@pytest.fixture
def nightly(app: Treadle) -> Schedule:
    return app.schedules.create("nightly", "whatever", {"a": 1, "b": 1}, every="1d", actor="ada")


@pytest.mark.parametrize(
    ("others", "mine", "told", "kept"),
    [
        ({"payload": {"a": 2, "b": 1}}, {"payload": '{"a": 1, "b": 2}'}, '"a": 2', "&#34;b&#34;: 2"),
        ({"every": "2h"}, {"every": "3h"}, "It is 2h now", 'value="3h"'),
        ({"cron": "1 2 * * *"}, {"every": "3h"}, "It is 1 2 * * *, UTC now", 'value="3h"'),
        ({"queue": "slow"}, {"queue": "mail"}, "It is slow now", 'value="mail"'),
    ],
)
def test_an_edit_does_not_go_over_what_somebody_else_has_changed(
    app: Treadle, admin: Client, nightly: Schedule, others: dict[str, Any], mine: dict[str, str], told: str, kept: str
) -> None:
    form = opened(admin)
    there = app.schedules.update("nightly", **others, actor="carl", reason="the nights are short")
    refused = post(admin, f"/schedules/{form['id']}/edit", {**form, **mine, "reason": "mine"}, 409).text
    assert app.schedules.get("nightly") == there
    read = text(refused)
    assert "Somebody has changed this schedule since you opened it. The last was carl" in read
    assert "the nights are short" in read
    assert told.lower() in read.lower()
    assert kept in refused
    assert f'href="{EDIT}">Load it anew' in refused
    again = form_fields(refused[refused.index('<form class="form"') :])
    post(admin, f"/schedules/{form['id']}/edit", again)  # it is seen now
    assert app.schedules.events("nightly")[-1].note == "schedule nightly: mine"


def test_what_somebody_else_has_changed_elsewhere_stays(app: Treadle, admin: Client, nightly: Schedule) -> None:
    form = opened(admin)
    app.schedules.update("nightly", every="2h", queue="mail", actor="carl")
    post(admin, f"/schedules/{form['id']}/edit", {**form, "payload": '{"a": 5}', "queue": "mail"})
    found = app.schedules.get("nightly")
    assert (found.every, found.queue, found.payload) == (7200, "mail", {"a": 5})


def test_an_edit_of_a_schedule_that_was_made_anew_is_refused(
    app: Treadle, admin: Client, nightly: Schedule, clock: FakeClock
) -> None:
    form = opened(admin)
    clock.advance(minutes=1)
    app.schedules.delete("nightly")
    there = app.schedules.create("nightly", "greet", {"name": "Ada"}, every="5h")
    for path in (f"/schedules/{form['id']}/edit", EDIT):
        post(admin, path, {**form, "queue": "mail"}, 404)
    assert app.schedules.get("nightly") == there
