"""`/schedules` on every store: made, looked at, changed, switched, run, previewed and removed."""

import pytest
from pydantic import SecretStr

from tests.server.conftest import Client
from tests.support.marks import any_store
from treadle import Treadle

NIGHTLY = {"name": "nightly", "task": "greet", "payload": {"name": "Ada"}, "cron": "30 2 * * *", "tz": "Europe/Berlin"}


@any_store
def test_a_schedule_lives_from_create_to_delete(app: Treadle, admin: Client) -> None:
    made = admin.post("/schedules", {**NIGHTLY, "reason": "wanted"}, 201)["schedule"]
    assert (made["name"], made["cron"], made["timezone"], made["enabled"]) == (
        "nightly", "30 2 * * *", "Europe/Berlin", True,
    )  # fmt: skip
    assert made["next_at"] == "2026-01-02T01:30:00+00:00"
    ticks = admin.get("/schedules/nightly/preview", n=3)["ticks"]
    assert [tick["local"][:16] for tick in ticks] == [f"2026-01-0{day}T02:30" for day in (2, 3, 4)]

    changed = admin.patch("/schedules/nightly", {"every": "15m", "priority": 5})["schedule"]
    assert (changed["cron"], changed["every"], changed["priority"]) == (None, 900.0, 5)
    assert admin.post("/schedules/nightly/disable", {"reason": "too slow"})["schedule"]["enabled"] is False
    assert admin.get("/schedules", enabled=False)["schedules"][0]["name"] == "nightly"
    assert admin.get("/schedules", enabled=True)["schedules"] == []
    assert admin.post("/schedules/nightly/enable")["schedule"]["enabled"] is True

    job = admin.post("/schedules/nightly/run", {"reason": "now"}, 201)["job"]
    assert (job["task"], job["payload"], job["priority"]) == ("greet", {"name": "Ada"}, 5)
    shown = admin.get("/schedules/nightly")
    assert [(event["kind"], event["note"]) for event in shown["events"]] == [
        ("created", "schedule nightly: wanted"), ("changed", "schedule nightly"),
        ("disabled", "schedule nightly: too slow"), ("enabled", "schedule nightly"),
        ("run_requested", "schedule nightly: now"),
    ]  # fmt: skip
    assert {event["actor"] for event in shown["events"]} == {"token admin-0"}

    assert admin.delete("/schedules/nightly", reason="enough")["schedule"]["name"] == "nightly"
    assert admin.get("/schedules/nightly", 404)["error"] == "ScheduleNotFound"
    assert app.get(job["id"]).task == "greet"


@any_store
def test_pages_of_schedules_have_no_gap_and_none_twice(app: Treadle, admin: Client) -> None:
    for number in range(25):
        app.schedules.create(f"s{number:02}", "greet", {"name": "Ada"}, every="1h", tenant=f"t{number % 2}")
    for query, number in (({}, 25), ({"tenant": "t0"}, 13), ({"prefix": "s1"}, 10), ({"task": "greet"}, 25)):
        seen: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = admin.get("/schedules", limit=4, **query, **cursor)
            seen += [schedule["name"] for schedule in page["schedules"]]
            if page["cursor"] is None:
                break
            cursor = {"cursor": page["cursor"]}
        assert len(seen) == len(set(seen)) == number, query


@any_store
def test_a_schedule_of_a_tenant_is_found_by_both(admin: Client) -> None:
    admin.post("/schedules", {**NIGHTLY, "tenant": "acme"}, 201)
    admin.get("/schedules/nightly", 404)
    assert admin.get("/schedules/nightly", tenant="acme")["schedule"]["tenant"] == "acme"
    assert admin.patch("/schedules/nightly", {"priority": 1}, tenant="acme")["schedule"]["priority"] == 1
    assert admin.post("/schedules/nightly/run?tenant=acme", {}, 201)["job"]["tenant"] == "acme"
    assert admin.post("/schedules/nightly/disable?tenant=acme")["schedule"]["enabled"] is False
    admin.delete("/schedules/nightly", 404)
    admin.delete("/schedules/nightly", tenant="acme")


@any_store
def test_a_second_schedule_of_one_name_is_refused(admin: Client) -> None:
    admin.post("/schedules", NIGHTLY, 201)
    assert "already" in admin.post("/schedules", NIGHTLY, 409)["detail"]


@any_store
def test_a_name_may_hold_anything_that_a_url_can_carry(admin: Client) -> None:
    for name in ("ünï çödé", "a b", "50%", "a?b", "a#b", "..", "a&b=c", "-", "ｆｕｌｌ"):
        made = admin.post("/schedules", {**NIGHTLY, "name": name}, 201)["schedule"]
        path = "".join(f"%{byte:02X}" for byte in name.encode())
        assert admin.get(f"/schedules/{path}")["schedule"]["id"] == made["id"], name
        admin.delete(f"/schedules/{path}")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"cron": "often"}, "cron"),
        ({"cron": None}, "schedule"),
        ({"tz": "Mars/Base"}, "timezone"),
        ({"cron": None, "every": "0.1s"}, "every"),
        ({"every": "1h"}, "schedule"),
        ({"payload": {"name": 3}}, "payload"),
        ({"task": "gret"}, "task"),
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"misfire": "maybe"}, "misfire"),
        ({"misfire_limit": 10**30}, "misfire_limit"),
        ({"misfire_age": "-1"}, "misfire_age"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"priority": 2**40}, "priority"),
        ({"jitter": "x"}, "jitter"),
        ({"timeout": "0"}, "timeout"),
        ({"enabled": "yes"}, "enabled"),
        ({"for_each": "users"}, "for_each"),
    ],
    ids=str,
)
def test_a_schedule_that_cannot_be_is_refused_by_its_field(admin: Client, change: dict, field: str) -> None:
    assert admin.post("/schedules", {**NIGHTLY, **change}, 422)["field"] == field
    assert admin.get("/schedules")["schedules"] == []


def test_a_change_of_nothing_is_refused(admin: Client) -> None:
    admin.post("/schedules", NIGHTLY, 201)
    assert "nothing is to change" in admin.patch("/schedules/nightly", {}, 422)["detail"]
    assert admin.patch("/schedules/nightly", {"cron": "x"}, 422)["field"] == "cron"
    for n in (0, 1001, "many"):
        assert admin.get("/schedules/nightly/preview", 422, n=n)["field"] == "n"


def test_a_secret_of_a_schedule_does_not_go_to_another_task(app: Treadle, admin: Client) -> None:
    @app.task
    def login(user: str, password: SecretStr) -> None: ...

    @app.task
    def note(user: str, password: str) -> None: ...

    admin._secrets.append("hunter2")
    for task, checked in (("login", True), ("elsewhere", False)):
        app.schedules.create(task, task, {"user": "ada", "password": "hunter2"}, every="1h", checked=checked)
        before = app.schedules.get(task)
        for payload in ({}, {"payload": {"user": "ada", "password": "***"}}):
            refused = admin.patch(f"/schedules/{task}", {"task": "note", **payload}, 422)
            assert (refused["field"], "a whole payload" in refused["detail"]) == ("payload", True)
        assert app.schedules.get(task) == before
        whole = {"task": "note", "payload": {"user": "ada", "password": "new"}}
        assert admin.patch(f"/schedules/{task}", whole)["schedule"]["payload"] == whole["payload"]
    assert admin.patch("/schedules/login", {"task": "whatever"})["schedule"]["task"] == "whatever"  # nothing to hide
