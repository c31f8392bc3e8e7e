"""What a page says was done was done, and by whom it says: a link cannot let it say so. What was kept is not shown."""

from collections import Counter
from typing import Any

import pytest

from tests.server.conftest import Client, Login
from tests.server.reading import post, text
from treadle import Treadle
from treadle.testing import FakeClock, run_until_idle


def look(client: Client, address: str) -> str:
    """The page at an address that has its parameters already."""
    answer = client.ask("GET", f"/{address}")
    assert answer.status_code == 200, answer.text
    return str(answer.text)


def test_a_link_cannot_say_that_something_was_done(app: Treadle, admin: Client, login: Login) -> None:
    app.enqueue("greet", {"name": "Ada"})
    nightly = app.schedules.create("nightly", "greet", {"name": "Ada"}, every="1d")
    for path, never in (
        ("/jobs?did=delete&n=5000000", "are deleted"),
        ("/schedules?deleted=everything", "everything is deleted"),
        ("/schedules/nightly?ran=123", "A job is made"),
    ):
        for sure in ("", "&sure=x", "&sure=1-" + "0" * 64):
            assert never not in text(look(admin, path + sure)), path
    ran = post(admin, f"/schedules/{nightly.id}/run", {"back": "/schedules/nightly"}).headers["location"]
    assert "A job is made" in text(look(admin, ran))
    assert "A job is made" not in text(look(login("admin"), ran))
    gone = post(admin, f"/schedules/{nightly.id}/delete", {"reason": "why"}).headers["location"]
    assert "nightly is deleted" in text(look(admin, gone))
    assert "nightly is deleted" not in text(look(login("admin"), gone))
    assert "weekly is deleted" not in text(look(admin, gone.replace("nightly", "weekly")))


def test_who_did_it_is_said_to_nobody_else(app: Treadle, admin: Client, login: Login, clock: FakeClock) -> None:
    app.cancel(app.enqueue("greet", {"name": "Ada"}).id)
    counted = admin.post("/jobs/bulk", {"action": "retry", "filter": {"state": "cancelled"}})
    fields = {"action": "retry", "state": "cancelled", "confirm": counted["confirm"], "expect": "1"}
    done = post(admin, "/jobs/bulk", fields).headers["location"]
    assert "1 job waits to be run again. By token admin-0" in text(look(admin, done))
    assert "waits to be run again" not in text(look(login("admin"), done))
    assert "waits to be run again" not in text(look(admin, done.replace("n=1", "n=2")))
    clock.advance(minutes=11)
    assert "waits to be run again" not in text(look(admin, done))


def test_a_kept_form_names_what_may_be_secret_and_does_not_show_it(nobody: Client) -> None:
    sent = {"reason": "because", "p/password": "hunter2", "payload": '{"password": "hunter2"}', "was": "hunter2"}
    shown = post(nobody, "/jobs/x/edit", sent, 401).text
    read = text(shown)
    assert "because" in read
    assert "p/password kept, not shown payload kept, not shown was kept, not shown" in read
    assert "hunter2" not in read
    assert shown.count("hunter2") == 3  # in the hidden fields
    assert 'name="kept.p/password" value="hunter2"' in shown


def test_a_schedule_that_is_not_theirs_is_not_said_to_be_deleted(app: Treadle, login: Login, clock: FakeClock) -> None:
    app.schedules.create("hourly", "greet", {"name": "Ada"}, every="1h")
    clock.advance(hours=1)
    run_until_idle(app)
    [job] = app.find().jobs
    app.schedules.update("hourly", queue="mail")
    bound = login("read", queues=["default"])
    assert "hourly deleted" not in text(look(bound, f"/jobs/{job.id}"))
    app.schedules.delete("hourly")
    assert "hourly deleted" in text(look(login("read"), f"/jobs/{job.id}"))


@pytest.mark.parametrize("on", [True, False])
def test_a_page_of_schedules_asks_the_store_few_questions(
    app: Treadle, admin: Client, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, on: bool
) -> None:
    for number in range(50):
        app.schedules.create(f"s{number:02}", "greet", {"name": "Ada"}, every="1h")
    clock.advance(hours=1)
    run_until_idle(app)
    for number in range(0 if on else 50):
        app.schedules.disable(f"s{number:02}", actor="ada", reason="quiet")
    calls = Counter[str]()
    for name in ("get", "find", "count", "records", "find_schedules", "events", "unsealed", "now"):
        _counted(monkeypatch, type(app.engine), name, calls)
    shown = text(look(admin, "/schedules"))
    assert shown.count("succeeded") == 50
    assert shown.count("by ada, now : quiet") == (0 if on else 50)
    assert calls.total() < 60, calls
    assert calls["get"] == 1
    assert calls["events"] == (0 if on else 50)


def _counted(monkeypatch: pytest.MonkeyPatch, engine: type, name: str, calls: Counter[str]) -> None:
    whole = getattr(engine, name)

    def counted(self: Any, *args: Any, **options: Any) -> Any:
        calls[name] += 1
        return whole(self, *args, **options)

    monkeypatch.setattr(engine, name, counted)


def test_the_list_tells_of_the_last_job_what_is_theirs(
    app: Treadle, admin: Client, login: Login, clock: FakeClock
) -> None:
    app.schedules.create("hourly", "greet", {"name": "Ada"}, every="1h")
    clock.advance(hours=1)
    run_until_idle(app)
    app.schedules.disable("hourly", actor="ada", reason="quiet")
    [told] = admin.get("/schedules", last=True)["schedules"]
    assert (told["last"]["state"], told["last"]["id"]) == ("succeeded", told["last_job"])
    assert "payload" not in told["last"]
    assert (told["switched"]["actor"], told["switched"]["note"]) == ("ada", "schedule hourly: quiet")
    assert "last" not in admin.get("/schedules")["schedules"][0]
    assert admin.get("/schedules", 422, last=True, limit=101)["field"] == "limit"
    app.schedules.update("hourly", queue="mail")
    [told] = login("read", queues=["mail"]).get("/schedules", last=True)["schedules"]
    assert told["last"] is None
