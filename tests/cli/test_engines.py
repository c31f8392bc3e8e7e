"""The commands about schedules, pauses, workers and the audit trail, on every engine."""

import pytest

from tests.support.marks import any_store
from treadle import Treadle

pytestmark = any_store

OPERATING = """
from treadle import Context, GiveUp, Treadle

app = Treadle()


@app.task
def spend(ctx: Context, micros: int) -> None:
    ctx.add_cost(micros)


@app.task
def give_up() -> None:
    raise GiveUp("no luck")
"""


@pytest.fixture
def store(call, project, store_url, monkeypatch):
    """`call`, with an app on a store of each engine in turn."""
    (project / "operating.py").write_text(OPERATING)
    monkeypatch.setenv("TREADLE_APP", "operating:app")
    monkeypatch.setenv("TREADLE_URL", store_url)
    assert call("migrate").code == 0
    return call


@pytest.mark.covers("002-L2")
def test_a_schedule_is_made_listed_changed_switched_run_and_deleted(store):
    words = ("--task", "spend", "--payload", '{"micros": 5}', "--cron", "30 2 * * *", "--tz", "Europe/Berlin")
    made = store("schedules", "create", "nightly", *words, "--enabled", "false", "--overlap", "skip", "--json").json
    assert store("schedules", "list", "--json").json == {"schedules": [made["schedule"]], "cursor": None}
    assert store("schedules", "enable", "nightly", "--json").json["schedule"]["enabled"] is True
    changed = store("schedules", "update", "nightly", "--every", "15m", "--jitter", "1s", "--json").json["schedule"]
    assert (changed["cron"], changed["every"], changed["jitter"], changed["revision"]) == (None, 900.0, 1.0, 2)
    job = store("schedules", "run", "nightly", "--json").json["job"]
    assert (job["schedule"], job["payload"]) == ("nightly", {"micros": 5})
    assert store("schedules", "run", "nightly").code == 1  # it must not overlap
    assert len(store("schedules", "preview", "nightly", "-n", "2", "--json").json["runs"]) == 2
    assert store("schedules", "disable", "nightly", "--json").json["schedule"]["enabled"] is False
    assert store("schedules", "delete", "nightly").code == 0
    assert store("schedules", "list").out.startswith("no schedules")
    told = [event["kind"] for event in store("audit", "--json").json["events"]]
    assert told == ["deleted", "disabled", "run_requested", "run_requested", "changed", "enabled", "created"]


def test_a_queue_is_paused_and_why_says_so_until_it_is_resumed(store):
    id = store("enqueue", "spend", '{"micros": 1}', "--json").json["id"]
    assert store("pause", "--queue", "default", "--reason", "deploy", "--wait").code == 0
    assert store("pause", "--tenant", "acme", "--until", "2h").code == 0
    assert {pause["scope"] for pause in store("pauses", "--json").json["pauses"]} == {"queue default", "tenant acme"}
    assert store("worker", "--until-idle").code == 0
    assert store("jobs", "show", id, "--json").json["job"]["state"] == "pending"
    assert [found["kind"] for found in store("why", id, "--json").json["obstacles"]] == ["paused", "no_worker"]
    assert store("resume", "--queue", "default").out == "resumed: queue default; still paused: tenant acme\n"
    assert store("worker", "--until-idle").code == 0
    assert store("jobs", "show", id, "--json").json["job"]["state"] == "succeeded"
    assert "it has ended: succeeded" in store("why", id).out


def test_what_was_done_and_spent_is_accounted_for(store, store_url, monkeypatch):
    store("enqueue", "spend", '{"micros": 1250000}', "--tenant", "acme")
    store("enqueue", "give_up")
    assert store("worker", "--until-idle").code == 0
    assert store("workers", "--json").json == {"workers": []}  # it has left
    assert store("costs", "--json").json["costs"] == [
        {"tenant": "acme", "task": "spend", "micros": 1_250_000, "units": "1.25"}
    ]
    [event] = store("audit", "--json").json["events"]
    assert (event["kind"], event["tenant"], event["note"]) == ("failed", "default", "no luck")
    app = Treadle(store_url)
    assert app.seal_audit() == 1
    app.close()
    trail = store("audit", "verify", "--json").json
    assert (trail["sound"], trail["unsealed"], [one["events"] for one in trail["tenants"]]) == (True, 0, [1])
    assert store("audit", "--json").json["events"] == [event]
    monkeypatch.setenv("TREADLE_KEEP_SUCCEEDED", "0")
    assert store("prune", "--json").json["deleted"] == 1
    assert store("jobs", "count", "--json").json["counts"] == {
        "pending": 0, "running": 0, "succeeded": 0, "failed": 1, "cancelled": 0
    }  # fmt: skip
