"""The operator of the backend (002) at the command line: its profile, its words and flags."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.making import claim
from treadle import Treadle
from treadle.testing import run_until_idle

BACKEND = """
from treadle.profiles import backend
from treadle import GiveUp, Treadle

app = Treadle(profile=backend.PROFILE)


@app.task
def stale_session_cleanup() -> int:
    return 3


@app.task
def webhook_delivery_prune(retention_hours: int = 168) -> None:
    raise GiveUp(f"no table for {retention_hours} h")
"""
SESSIONS, WEBHOOKS = "stale_session_cleanup", "webhook_delivery_prune"


@pytest.fixture(params=["postgres"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    """Only this engine: the backend has no other."""
    return request.param


@pytest.fixture
def ayb(call: Callable[..., Any], project: Path, store_url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The command line of the backend."""
    (project / "backend.py").write_text(BACKEND)
    monkeypatch.setenv("TREADLE_APP", "backend:app")
    monkeypatch.setenv("TREADLE_URL", store_url)
    monkeypatch.syspath_prepend(project)
    return call


def backend() -> Treadle:
    """The server's own app, which makes the jobs."""
    return importlib.import_module("backend").app


@pytest.fixture
def jobs(ayb: Callable[..., Any]) -> dict[str, str]:
    """A completed job, a failed one and two that are queued; their ids."""
    app = backend()
    made = {"completed": app.enqueue(SESSIONS), "failed": app.enqueue(WEBHOOKS)}
    run_until_idle(app)
    made |= {"queued": app.enqueue(SESSIONS), "other": app.enqueue(WEBHOOKS)}
    app.close()
    return {name: job.id for name, job in made.items()}


@pytest.mark.covers("002-L1.a", "002-T1.m")
def test_jobs_are_listed_by_state_and_type_up_to_a_limit_and_as_json(ayb, jobs):
    def listed(*options: str) -> list[str]:
        answer = ayb("jobs", "list", "--json", *options)
        assert answer.code == 0, answer.err
        return [job["id"] for job in answer.json["jobs"]]

    assert listed() == [jobs[name] for name in ("other", "queued", "failed", "completed")]
    assert listed("--state", "queued") == [jobs["other"], jobs["queued"]]
    assert listed("--state", "completed") == [jobs["completed"]]
    for option in ("--type", "--job-type", "--task"):
        assert listed(option, WEBHOOKS) == [jobs["other"], jobs["failed"]]
        assert listed(option, WEBHOOKS, "--state", "failed") == [jobs["failed"]]
    assert listed("--limit", "1") == [jobs["other"]]
    assert listed("--type", SESSIONS, "--limit", "1") == [jobs["queued"]]
    [failed] = ayb("jobs", "list", "--state", "failed", "--json").json["jobs"]
    assert (failed["type"], failed["state"], failed["last_error"]) == (WEBHOOKS, "failed", "no table for 168 h")
    lines = ayb("jobs", "list", "--type", WEBHOOKS).out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [[jobs["other"], "queued"], [jobs["failed"], "failed"]]


@pytest.mark.covers("002-L1.b", "002-L1.c", "002-T1.m")
def test_a_failed_job_is_retried_and_a_queued_one_is_canceled(ayb, jobs):
    again = ayb("jobs", "retry", jobs["failed"], "--json").json["job"]
    assert (again["id"], again["state"]) == (jobs["failed"], "queued")
    assert ayb("jobs", "retry", jobs["queued"]).code == 1
    gone = ayb("jobs", "cancel", jobs["queued"], "--json").json["job"]
    assert (gone["state"], gone["canceled_at"] is None) == ("canceled", False)
    assert ayb("jobs", "cancel", jobs["completed"]).code == 1
    claim(backend().engine, 1)
    [running] = ayb("jobs", "list", "--state", "running", "--json").json["jobs"]
    assert ayb("jobs", "cancel", running["id"]).code == 1
    counts = ayb("jobs", "count", "--json").json["counts"]
    assert counts == {"queued": 1, "running": 1, "completed": 1, "failed": 0, "canceled": 1}


@pytest.mark.covers("002-L2.a", "002-L2.b", "002-L2.c", "002-D3.a", "002-D6.c")
def test_users_enqueue_nothing_but_schedules_are_made_changed_switched_and_deleted(ayb):
    for words in (("enqueue", SESSIONS), ("enqueue", SESSIONS, "{}", "--unchecked")):
        refused = ayb(*words)
        assert (refused.code, refused.out) == (1, "")
        assert "enqueue_allow" in refused.err
    assert sum(backend().count().values()) == 0

    flags = ("--name", "prune", "--job-type", WEBHOOKS, "--cron", "0 3 * * *", "--timezone", "Europe/Berlin")
    made = ayb("schedules", "create", *flags, "--payload", '{"retention_hours": 24}', "--enabled", "false", "--json")
    assert made.code == 0, made.err
    prune = made.json["schedule"]
    assert (prune["name"], prune["job_type"], prune["cron_expr"]) == ("prune", WEBHOOKS, "0 3 * * *")
    assert (prune["timezone"], prune["payload"], prune["enabled"]) == ("Europe/Berlin", {"retention_hours": 24}, False)

    def listed() -> dict[str, Any]:
        [schedule] = ayb("schedules", "list", "--json").json["schedules"]
        return schedule

    assert listed() == prune
    assert "prune" in ayb("schedules", "list").out
    changed = ("--payload", '{"retention_hours": 48}', "--cron", "0 4 * * *", "--timezone", "UTC")
    assert ayb("schedules", "update", prune["id"], *changed).code == 0
    assert (listed()["payload"], listed()["cron_expr"], listed()["timezone"]) == (
        {"retention_hours": 48}, "0 4 * * *", "UTC",
    )  # fmt: skip
    assert ayb("schedules", "update", prune["id"]).code == 2
    assert listed()["id"] == prune["id"]
    assert ayb("schedules", "enable", prune["id"]).code == 0
    assert (listed()["enabled"], listed()["next_run_at"] is None) == (True, False)
    assert ayb("schedules", "disable", prune["id"]).code == 0
    assert listed()["enabled"] is False
    assert ayb("schedules", "delete", prune["id"]).code == 0
    assert json.loads(ayb("schedules", "list", "--json").out) == {"schedules": [], "cursor": None}


@pytest.mark.covers("002-D3.a")
def test_what_users_may_not_enqueue_the_built_ins_schedules_make_all_the_same(ayb):
    ayb("schedules", "create", "--name", "sessions", "--job-type", SESSIONS, "--cron", "0 * * * *")
    app = backend()
    job, sessions = app.schedules.run("sessions"), app.schedules.get("sessions")
    assert run_until_idle(app) == [app.get(job.id)]
    [done] = ayb("jobs", "list", "--json").json["jobs"]
    assert (done["state"], done["schedule_id"], done["type"]) == ("completed", sessions.id, SESSIONS)
    app.close()
