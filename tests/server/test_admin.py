"""`/api/admin`: what the backend's administrators do over HTTP, on PostgreSQL, in its own words."""

import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.server.conftest import NO_LIMIT, Client, Login
from tests.server.endpoints import routes_of
from tests.support.making import claim
from treadle import GiveUp, Job, Profile, Treadle
from treadle.app import queries
from treadle.profiles import backend
from treadle.server import admin as admin_api
from treadle.server import asgi
from treadle.server.api import Server
from treadle.testing import FakeClock, run_until_idle

SESSIONS, WEBHOOKS = "stale_session_cleanup", "webhook_delivery_prune"
STATES = ["queued", "running", "completed", "failed", "canceled"]
NIGHTLY = {"name": "prune", "job_type": WEBHOOKS, "cron_expr": "0 3 * * *"}
ADMIN = "//api/admin"


@pytest.fixture(params=["postgres"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    """Only this engine: the backend has no other."""
    return request.param


@pytest.fixture(scope="module")
def shared() -> Iterator[TestClient]:
    """A server of the backend, for all these tests."""
    server = asgi(Treadle("sqlite:///:memory:", profile=backend.PROFILE), **NO_LIMIT)
    with TestClient(server, "http://localhost", raise_server_exceptions=False, follow_redirects=False) as client:
        yield client


@pytest.fixture
def app(make_app: Callable[..., Treadle]) -> Treadle:
    app = make_app(profile=backend.PROFILE)

    @app.task(name=SESSIONS)
    def clean() -> None: ...

    @app.task(name=WEBHOOKS)
    def prune(retention_hours: int = 168) -> None:
        raise GiveUp(f"no table for {retention_hours} h")

    return app


@pytest.fixture
def jobs(app: Treadle) -> dict[str, Job]:
    """A job in each of the five states, by its word for it."""
    made = {"completed": app.enqueue(SESSIONS), "failed": app.enqueue(WEBHOOKS)}
    run_until_idle(app)
    made["canceled"] = app.cancel(app.enqueue(SESSIONS).id)
    made["running"] = app.enqueue(SESSIONS)
    claim(app.engine, 1)
    made["queued"] = app.enqueue(WEBHOOKS, {"retention_hours": 24})
    return {word: app.get(job.id) for word, job in made.items()}


def test_it_is_there_for_the_backends_profile_or_when_asked_for() -> None:
    def has_it(profile: Profile | None, **options: bool) -> bool:
        server = asgi(Treadle("sqlite:///:memory:", profile=profile), **options)
        return any(path.startswith("/api/admin") for _, path in routes_of(server.api))

    assert has_it(backend.PROFILE)
    assert has_it(backend.PROFILE._replace(task={}))
    assert has_it(None, admin=True)
    assert not has_it(None)
    assert not has_it(backend.PROFILE, admin=False)


@pytest.mark.covers(
    "002-A1.c", "002-A2.b", "002-A3.b", "002-A4.b", "002-A5.c", "002-A6.c", "002-A7.c", "002-A8.b"
)  # fmt: skip
def test_every_endpoint_needs_the_scope_admin(
    app: Treadle, server: Server, nobody: Client, login: Login, jobs: dict[str, Job]
) -> None:
    schedule = app.schedules.create("hourly", SESSIONS, cron="0 * * * *")
    routes = {place: scope for place, scope in routes_of(server.api).items() if place[1].startswith("/api/admin")}
    assert set(routes) == {
        ("GET", "/api/admin/jobs"), ("GET", "/api/admin/jobs/stats"), ("GET", "/api/admin/jobs/{job_id}"),
        ("POST", "/api/admin/jobs/{job_id}/retry"), ("POST", "/api/admin/jobs/{job_id}/cancel"),
        ("GET", "/api/admin/schedules"), ("POST", "/api/admin/schedules"),
        ("PUT", "/api/admin/schedules/{schedule_id}"), ("DELETE", "/api/admin/schedules/{schedule_id}"),
        ("POST", "/api/admin/schedules/{schedule_id}/enable"),
        ("POST", "/api/admin/schedules/{schedule_id}/disable"),
    }  # fmt: skip
    assert set(routes.values()) == {"admin"}
    others = [login(scope) for scope in ("read", "enqueue", "operate")]
    bound = [login("admin", tenant="default"), login("admin", queues=["default"])]
    before = (app.find().jobs, [*app.schedules.list()], len(app.audit()))
    for method, path in routes:
        url = path.format(job_id=jobs["failed"].id, schedule_id=schedule.id)
        given = {"PUT": {"enabled": False}, "POST": NIGHTLY if path == "/api/admin/schedules" else None}.get(method)
        body = {} if given is None else {"json": given}
        assert nobody.ask(method, f"/{url}", **body).status_code == 401, path
        for client in (*others, *bound):
            assert client.ask(method, f"/{url}", **body).status_code == 403, path
    assert (app.find().jobs, [*app.schedules.list()], len(app.audit())) == before


# ---------------------------------------------------------------------------------------------------- jobs


@pytest.mark.covers("002-A1.a")
def test_jobs_are_listed_by_state_and_type_in_the_backends_words(admin: Client, jobs: dict[str, Job]) -> None:
    def listed(**query: Any) -> set[str]:
        return {job["id"] for job in admin.get(f"{ADMIN}/jobs", **query)["jobs"]}

    assert listed() == {job.id for job in jobs.values()}
    for word in STATES:
        assert listed(state=word) == {jobs[word].id}
    assert listed(state="cancelled") == {jobs["canceled"].id}
    assert listed(type=WEBHOOKS) == {jobs["failed"].id, jobs["queued"].id}
    assert listed(type=WEBHOOKS, state="queued") == {jobs["queued"].id}
    assert listed(type="unheard_of") == set()
    refused = admin.get(f"{ADMIN}/jobs", 422, state="pending")
    assert (refused["field"], "queued, " in refused["detail"]) == ("state", True)
    for query in ({"task": "x"}, {"limit": 0}, {"limit": 501}, {"offset": -1}, {"offset": 10_001}, {"limit": "all"}):
        assert admin.get(f"{ADMIN}/jobs", 422, **query)["field"] == next(iter(query))


@pytest.mark.covers("002-A1.b")
def test_limit_and_offset_page_through_a_thousand_jobs_without_a_gap_or_a_double(admin: Client, app: Treadle) -> None:
    made = {receipt.job.id for receipt in app.tasks[SESSIONS].enqueue_many([{}] * 1000)}

    def pages(size: int, **query: Any) -> list[str]:
        answers = [admin.get(f"{ADMIN}/jobs", limit=size, offset=at, **query) for at in range(0, 1000 + size, size)]
        assert (answers[1]["limit"], answers[1]["offset"], answers[-1]["jobs"]) == (size, size, [])
        return [job["id"] for answer in answers for job in answer["jobs"]]

    seen = pages(125)
    assert len(seen) == len(made) == 1000
    assert set(seen) == made
    assert pages(500, state="queued", type=SESSIONS) == seen
    assert [job["id"] for job in admin.get(f"{ADMIN}/jobs", limit=3, offset=998)["jobs"]] == seen[998:]
    assert len(admin.get(f"{ADMIN}/jobs")["jobs"]) == 50


@pytest.mark.covers("002-A2.a", "002-M1.a")
def test_a_job_is_shown_with_every_field_of_its_table(admin: Client, jobs: dict[str, Job], app: Treadle) -> None:
    shown = admin.get(f"{ADMIN}/jobs/{jobs['queued'].id}")["job"]
    assert list(shown) == list(backend.PROFILE.fields)
    assert (shown["id"], shown["type"], shown["state"]) == (jobs["queued"].id, WEBHOOKS, "queued")
    assert (shown["payload"], shown["attempts"], shown["max_attempts"]) == ({"retention_hours": 24}, 0, 3)
    assert shown == app.view(jobs["queued"])
    assert admin.get(f"{ADMIN}/jobs/{jobs['failed'].id}")["job"]["last_error"] == "no table for 168 h"
    admin.get(f"{ADMIN}/jobs/0a0b0c0d-0000-7000-8000-000000000000", 404)
    assert admin.get(f"{ADMIN}/jobs/nonsense", 422)["field"] == "id"


@pytest.mark.covers("002-A3.a", "002-T1.l")
def test_a_failed_job_is_queued_again_with_all_its_attempts_and_no_other(
    admin: Client, jobs: dict[str, Job], app: Treadle
) -> None:
    again = admin.post(f"{ADMIN}/jobs/{jobs['failed'].id}/retry")["job"]
    assert (again["state"], again["run_at"]) == ("queued", app.engine.now().isoformat())
    assert app.get(jobs["failed"].id).failures == 0
    for word in ("queued", "running", "completed", "canceled"):
        refused = admin.post(f"{ADMIN}/jobs/{jobs[word].id}/retry", None, 409)
        assert re.search(f"is {word} and cannot be retried", refused["detail"])
        assert app.get(jobs[word].id) == jobs[word]
    admin.post(f"{ADMIN}/jobs/0a0b0c0d-0000-7000-8000-000000000000/retry", None, 404)
    assert app.events(jobs["failed"].id)[-1].actor.startswith("token ")


@pytest.mark.covers("002-A4.a")
def test_a_queued_job_is_canceled_and_no_other(admin: Client, jobs: dict[str, Job], app: Treadle) -> None:
    gone = admin.post(f"{ADMIN}/jobs/{jobs['queued'].id}/cancel")["job"]
    assert (gone["state"], gone["canceled_at"]) == ("canceled", app.engine.now().isoformat())
    for word in ("running", "completed", "failed", "canceled"):
        refused = admin.post(f"{ADMIN}/jobs/{jobs[word].id}/cancel", None, 409)
        assert re.search(f"is {word} and cannot be canceled", refused["detail"])
        assert app.get(jobs[word].id) == jobs[word]


@pytest.mark.covers("002-A5.a", "002-A5.b")
def test_stats_count_the_five_states_and_tell_how_long_the_oldest_has_been_queued(
    admin: Client, app: Treadle, clock: FakeClock
) -> None:
    empty = admin.get(f"{ADMIN}/jobs/stats")
    assert empty == {**dict.fromkeys(STATES, 0), "oldest_queued_age_seconds": None}
    app.enqueue(SESSIONS)
    clock.advance(seconds=90)
    app.enqueue(SESSIONS)
    app.tasks[SESSIONS].using(run_after="1h").enqueue()
    app.cancel(app.enqueue(SESSIONS).id)
    clock.advance(seconds=30)
    found = admin.get(f"{ADMIN}/jobs/stats")
    assert found == {**empty, "queued": 3, "canceled": 1, "oldest_queued_age_seconds": 120.0}


def test_stats_count_a_job_in_each_state(admin: Client, jobs: dict[str, Job]) -> None:
    found = admin.get(f"{ADMIN}/jobs/stats")
    assert {word: found[word] for word in STATES} == dict.fromkeys(STATES, len(jobs) // len(STATES))


def test_canceled_and_expired_jobs_are_counted_and_listed_without_reading_the_others(
    admin: Client, app: Treadle, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = app.tasks[SESSIONS].using(expires_at="1s").enqueue()
    clock.advance(seconds=2)
    run_until_idle(app)
    for _ in range(3):
        app.cancel(app.enqueue(SESSIONS).id)
    monkeypatch.setattr(queries, "BATCH_SIZE", 1)
    monkeypatch.setattr(queries, "MOST_READ", 1)
    found = admin.get(f"{ADMIN}/jobs/stats")
    assert (found["failed"], found["canceled"], "estimates" in found) == (1, 3, False)
    asked = []
    read = app.engine.find
    monkeypatch.setattr(app.engine, "find", lambda *of, **by: asked.append(page := read(*of, **by)) or page)
    assert [job["id"] for job in admin.get(f"{ADMIN}/jobs", state="failed")["jobs"]] == [late.id]
    assert sum(len(page.jobs) for page in asked) == 1
    monkeypatch.setattr(queries, "MOST_COUNTED", 2)
    assert admin.get(f"{ADMIN}/jobs/stats")["estimates"] == ["canceled"]


def test_a_word_that_few_jobs_have_ends_a_list_after_so_many(
    make_app: Callable[..., Treadle], server: Server, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(profile=backend.PROFILE._replace(states={**backend.PROFILE.states, "retrying": "again"}))
    server.serve_app(app)
    app.register(SESSIONS, lambda: None).enqueue_many([{}] * 6)
    monkeypatch.setattr(queries, "BATCH_SIZE", 1)
    monkeypatch.setattr(queries, "MOST_READ", 1)
    monkeypatch.setattr(admin_api, "MOST_LOOKED", 3)
    asked = []
    read = app.engine.find
    monkeypatch.setattr(app.engine, "find", lambda *of, **by: asked.append(by) or read(*of, **by))
    assert admin.get(f"{ADMIN}/jobs", state="again")["jobs"] == []
    assert len(asked) == 3


@pytest.mark.covers("002-D3.a")
def test_nothing_is_enqueued_over_the_api(admin: Client, app: Treadle) -> None:
    app.schedules.create("hourly", SESSIONS, cron="0 * * * *")
    for path in ("/jobs", "/schedules/hourly/run"):
        refused = admin.post(path, {"task": SESSIONS} if path == "/jobs" else {}, 403)
        assert "enqueue_allow" in refused["detail"]
    assert admin.ask("POST", f"{ADMIN}/jobs", json={"type": SESSIONS}).status_code == 405
    assert sum(app.count().values()) == 0


# ----------------------------------------------------------------------------------------------- schedules


@pytest.mark.covers("002-A6.a", "002-A6.b")
def test_schedules_are_made_from_the_six_fields_and_listed(admin: Client, app: Treadle, clock: FakeClock) -> None:
    more = {"timezone": "Europe/Berlin", "payload": {"retention_hours": 24}, "enabled": False}
    full = admin.post(f"{ADMIN}/schedules", {**NIGHTLY, **more}, 201)["schedule"]
    assert list(full) == [
        "id", "name", "job_type", "payload", "cron_expr", "timezone", "enabled", "max_attempts", "next_run_at",
        "last_run_at", "created_at", "updated_at",
    ]  # fmt: skip
    assert {name: full[name] for name in (*NIGHTLY, *more)} == {**NIGHTLY, **more}
    short = admin.post(f"{ADMIN}/schedules", {**NIGHTLY, "name": "again"}, 201)["schedule"]
    assert (short["timezone"], short["payload"], short["enabled"]) == ("UTC", {}, True)
    assert (short["max_attempts"], short["last_run_at"]) == (3, None)
    assert datetime.fromisoformat(short["next_run_at"]) - clock.now() <= timedelta(days=1)
    assert admin.get(f"{ADMIN}/schedules") == {"schedules": [short, full], "cursor": None}
    assert {short["id"], full["id"]} == {schedule.id for schedule in app.schedules.list()}
    admin.post(f"{ADMIN}/schedules", NIGHTLY, 409)


WRONG = [
    ("cron_expr", "nonsense"), ("cron_expr", "0 3 * * * *"), ("cron_expr", "61 * * * *"), ("cron_expr", ""),
    ("cron_expr", None), ("cron_expr", 3), ("timezone", "Mars/Base"), ("timezone", ""), ("timezone", None),
    ("payload", []), ("payload", "{}"), ("payload", None), ("payload", {"retention_hours": "soon"}),
    ("payload", {"unheard": 1}), ("enabled", "true"), ("enabled", 1), ("enabled", None),
]  # fmt: skip


@pytest.mark.covers("002-A6.b", "002-A7.a")
def test_what_is_wrong_with_a_schedule_is_refused_with_its_field(admin: Client, app: Treadle) -> None:
    made = admin.post(f"{ADMIN}/schedules", {**NIGHTLY, "name": "there"}, 201)["schedule"]
    for field, value in [*WRONG, ("name", ""), ("job_type", "unheard_of"), ("unheard", 1), ("max_attempts", 3)]:
        refused = admin.post(f"{ADMIN}/schedules", {**NIGHTLY, field: value}, 422)
        assert refused["field"].startswith(field), (field, value, refused)
    for field in NIGHTLY:
        short = {name: value for name, value in NIGHTLY.items() if name != field}
        assert admin.post(f"{ADMIN}/schedules", short, 422)["field"] == field
    for field, value in [*WRONG, ("name", "other"), ("job_type", SESSIONS)]:
        answer = admin.ask("PUT", f"{ADMIN}/schedules/{made['id']}", json={field: value})
        assert answer.status_code == 422, (field, value)
        assert answer.json()["field"].startswith(field), (field, value, answer.json())
    assert admin.ask("PUT", f"{ADMIN}/schedules/{made['id']}", json={}).status_code == 422
    assert admin.get(f"{ADMIN}/schedules")["schedules"] == [made]


@pytest.mark.covers("002-A7.a", "002-A7.b", "002-A8.a", "002-T1.l")
@pytest.mark.parametrize("by", ["id", "name"])
def test_a_schedule_is_changed_switched_and_deleted_by_its_id_or_its_name(
    admin: Client, app: Treadle, clock: FakeClock, by: str
) -> None:
    made = admin.post(f"{ADMIN}/schedules", NIGHTLY, 201)["schedule"]
    place = f"{ADMIN}/schedules/{made[by]}"
    clock.advance(minutes=5)

    def put(**change: Any) -> dict[str, Any]:
        answer = admin.ask("PUT", place, json=change)
        assert answer.status_code == 200, answer.text
        return answer.json()["schedule"]

    change = {"cron_expr": "*/10 * * * *", "timezone": "Asia/Kolkata", "payload": {"retention_hours": 1}}
    changed = put(**change)
    assert {name: changed[name] for name in change} == change
    assert (changed["id"], changed["created_at"]) == (made["id"], made["created_at"])
    assert changed["updated_at"] == clock.now().isoformat()
    assert datetime.fromisoformat(changed["next_run_at"]) - clock.now() <= timedelta(minutes=10)

    off = admin.post(f"{place}/disable")["schedule"]
    assert off["enabled"] is False
    clock.advance(hours=6)
    assert admin.post(f"{place}/enable")["schedule"]["next_run_at"] > clock.now().isoformat()
    assert put(enabled=False)["enabled"] is False
    clock.advance(hours=6)
    on = put(enabled=True)  # from disabled to enabled: what was missed stays missed
    assert timedelta() < datetime.fromisoformat(on["next_run_at"]) - clock.now() <= timedelta(minutes=10)
    assert admin.get(f"{ADMIN}/schedules")["schedules"] == [on]

    assert admin.delete(place)["schedule"] == on
    assert admin.get(f"{ADMIN}/schedules")["schedules"] == []
    for method, path in (("PUT", ""), ("DELETE", ""), ("POST", "/enable"), ("POST", "/disable")):
        body = {"json": {"enabled": True}} if method == "PUT" else {}
        assert admin.ask(method, f"{place}{path}", **body).status_code == 404, (method, path)
    assert app.schedules.events("prune")[-1].kind == "deleted"
