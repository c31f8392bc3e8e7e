"""`/jobs` on every store: what an operator and a program do with jobs over HTTP."""

import pytest

from tests.server.conftest import Client, Login
from tests.support.marks import any_store
from treadle import Treadle
from treadle.server.api import Server
from treadle.testing import FakeClock, run_until_idle

UNKNOWN = "0199e0c5-6f3b-7d41-9c1e-2b7f5f0a8c11"


def greeted(client: Client, name: str = "Ada", **more: object) -> dict:
    return client.post("/jobs", {"task": "greet", "payload": {"name": name}, **more}, 201)["job"]


@any_store
def test_a_job_is_stored_run_and_looked_at(app: Treadle, admin: Client) -> None:
    job = greeted(admin)
    assert (job["state"], job["task"], job["payload"], job["queue"]) == ("pending", "greet", {"name": "Ada"}, "default")
    run_until_idle(app)
    shown = admin.get(f"/jobs/{job['id']}")
    assert (shown["job"]["state"], shown["job"]["result"]) == ("succeeded", "hello Ada")
    assert admin.get(f"/jobs/{job['id'].upper()}")["job"] == shown["job"]
    assert admin.get(f"/jobs/{job['id'][:13]}")["job"] == shown["job"]
    assert [obstacle["kind"] for obstacle in admin.get(f"/jobs/{job['id']}/why")["obstacles"]] == ["ended"]


@any_store
def test_a_job_is_stored_with_all_that_a_program_may_say(app: Treadle, admin: Client, clock: FakeClock) -> None:
    job = greeted(
        admin, tenant="acme", queue="slow", lane="customers", priority=7, key="k1", unique="active",
        run_after="5m", expires_at="2026-01-02T00:00Z", timeout="30s",
    )  # fmt: skip
    stored = app.get(job["id"])
    assert (stored.tenant, stored.queue, stored.lane, stored.priority, stored.key, stored.timeout) == (
        "acme", "slow", "customers", 7, "k1", 30.0,
    )  # fmt: skip
    assert (stored.due_at - clock.now()).total_seconds() == 300
    assert f"{stored.expires_at:%F %H:%M}" == "2026-01-02 00:00"
    assert greeted(admin, "Grace", tenant="acme", key="k1", unique="active")["id"] == job["id"]


def test_a_job_belongs_to_the_trace_of_the_request_and_a_broken_one_is_ignored(app: Treadle, admin: Client) -> None:
    def traced(**headers: str) -> str | None:
        answer = admin.ask("POST", "/jobs", json={"task": "greet", "payload": {"name": "Ada"}}, headers=headers)
        assert answer.status_code == 201
        return app.get(answer.json()["job"]["id"]).trace

    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert traced(traceparent=trace, tracestate="vendor=1") == f"{trace} vendor=1"
    assert traced(traceparent=trace) == trace
    assert traced(traceparent="rubbish", tracestate="vendor=1") is traced() is None


@any_store
def test_jobs_are_found_by_every_filter(app: Treadle, admin: Client, clock: FakeClock) -> None:
    old = greeted(admin, "old")["id"]
    run_until_idle(app)
    clock.advance(hours=2)
    failed = admin.post("/jobs", {"task": "send", "payload": {"to": "ada"}, "tenant": "acme"}, 201)["job"]["id"]
    run_until_idle(app, queues=["mail"])
    clock.advance(minutes=1)
    waiting = greeted(admin, "Grace", key="k1", unique="active", queue="slow")["id"]

    def found(**query: object) -> list[str]:
        return [job["id"] for job in admin.get("/jobs", **query)["jobs"]]

    assert found() == [waiting, failed, old]
    assert found(state="failed") == found(task="send") == found(tenant="acme") == found(queue="mail") == [failed]
    assert found(error="ConnectionError") == [failed]
    assert found(state="succeeded") == found(before="1h") == found(before="2026-01-01T13:00Z") == [old]
    assert found(key="k1", task="greet") == found(queue="slow") == [waiting]
    assert found(since="1h") == [waiting, failed]
    assert found(state="failed", since="30s") == []
    assert found(state="pending", task="greet", queue="slow", tenant="default", since="1h") == [waiting]


@any_store
def test_pages_of_300_jobs_have_no_gap_and_none_twice(app: Treadle, admin: Client) -> None:
    made = {receipt.job.id for receipt in app.tasks["greet"].enqueue_many([(f"n{i}",) for i in range(300)])}
    for query in ({}, {"state": "pending"}, {"queue": "default"}, {"since": "1h"}):
        seen: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = admin.get("/jobs", limit=37, **query, **cursor)
            seen += [job["id"] for job in page["jobs"]]
            if page["cursor"] is None:
                break
            cursor = {"cursor": page["cursor"]}
        assert len(seen) == 300, query
        assert set(seen) == made, query
    assert len(admin.get("/jobs", limit=500)["jobs"]) == 300


@any_store
def test_a_failed_job_is_retried_cancelled_and_deleted(app: Treadle, admin: Client, login: Login) -> None:
    ops = login("operate", label="ops")
    job = admin.post("/jobs", {"task": "send", "payload": {"to": "ada"}}, 201)["job"]["id"]
    run_until_idle(app, queues=["mail"])
    retried = ops.post(f"/jobs/{job}/retry", {"reason": "it is back"})["job"]
    assert retried["state"] == "pending"
    cancelled = ops.post(f"/jobs/{job}/cancel", {"reason": "typo"})["job"]
    assert cancelled["state"] == "cancelled"
    again = ops.post(f"/jobs/{job}/cancel", {}, 409)
    assert again["error"] == "NotPossible"
    kept = ops.post(f"/jobs/{job}/retry", {"keep_attempts": True})["job"]
    assert kept["max_attempts"] > retried["max_attempts"] or kept["failures"] == 0
    events = admin.get(f"/jobs/{job}")["events"]
    assert [(event["kind"], event["actor"], event["note"]) for event in events if event["actor"] == "token ops"] == [
        ("retried", "token ops", "it is back"), ("cancelled", "token ops", "typo"), ("retried", "token ops", ""),
    ]  # fmt: skip
    assert ops.delete(f"/jobs/{job}", reason="a password was in it")["job"]["id"] == job
    admin.get(f"/jobs/{job}", 404)
    [gone] = [event for event in admin.get("/audit", job=job)["events"] if event["kind"] == "deleted"]
    assert (gone["actor"], gone["note"]) == ("token ops", "task send: a password was in it")


@any_store
def test_a_waiting_job_is_edited_and_let_run_now(app: Treadle, admin: Client, clock: FakeClock) -> None:
    job = greeted(admin, run_after="1h")
    [due] = [one for one in admin.get(f"/jobs/{job['id']}/why")["obstacles"] if one["kind"] == "due"]
    assert "in 60 min" in due["text"]
    edited = admin.patch(f"/jobs/{job['id']}", {"queue": "slow", "lane": "l", "priority": -3, "run_after": "2h"})["job"]
    assert (edited["queue"], edited["lane"], edited["priority"]) == ("slow", "l", -3)
    assert (app.get(job["id"]).due_at - clock.now()).total_seconds() == 7200
    assert admin.post(f"/jobs/{job['id']}/run-now")["job"]["due_at"] == clock.now().isoformat()
    assert admin.patch(f"/jobs/{job['id']}", {}, 422)["field"] == "edit"


@any_store
@pytest.mark.parametrize("act", ["retry", "cancel", "run-now", "edit", "delete"])
def test_an_act_on_a_revision_that_has_passed_is_refused(admin: Client, act: str) -> None:
    job = greeted(admin, run_after="1h")
    if act == "retry":
        admin.post(f"/jobs/{job['id']}/cancel")
    seen = admin.get(f"/jobs/{job['id']}")["job"]["revision"]

    def do(revision: int, expect: int) -> dict:
        if act == "edit":
            return admin.patch(f"/jobs/{job['id']}", {"priority": 1, "revision": revision}, expect)
        if act == "delete":
            return admin.delete(f"/jobs/{job['id']}", expect, revision=revision)
        return admin.post(f"/jobs/{job['id']}/{act}", {"revision": revision}, expect)

    for other in (seen - 1, seen + 1, 2**70):
        assert "has changed since" in do(other, 409)["detail"]
    do(seen, 200)


@any_store
def test_a_job_that_is_not_there_is_a_404_with_a_way_out(admin: Client) -> None:
    for path in (f"/jobs/{UNKNOWN}", f"/jobs/{UNKNOWN}/why", "/jobs/0199e0c5"):
        answer = admin.get(path, 404)
        assert (answer["error"], "pruned" in answer["detail"]) == ("JobNotFound", True)
    for act in ("retry", "cancel", "run-now"):
        admin.post(f"/jobs/{UNKNOWN}/{act}", {}, 404)
    admin.patch(f"/jobs/{UNKNOWN}", {"priority": 1}, 404)
    admin.delete(f"/jobs/{UNKNOWN}", 404)
    assert admin.get("/jobs/nobody", 422)["field"] == "id"


@any_store
def test_the_first_digits_that_fit_several_jobs_are_not_enough(admin: Client) -> None:
    first, second = greeted(admin)["id"], greeted(admin)["id"]
    answer = admin.get(f"/jobs/{first[:8]}", 422)
    assert answer["field"] == "id"
    assert first in answer["detail"]
    assert second in answer["detail"]


@any_store
def test_an_idempotency_key_makes_one_job_of_repeats(app: Treadle, login: Login) -> None:
    producer = login("enqueue", label="shop")
    key = {"Idempotency-Key": "order 17"}
    body = {"task": "greet", "payload": {"name": "Ada"}}
    ids = {producer.post("/jobs", body, 201, headers=key)["job"]["id"] for _ in range(3)}
    assert len(ids) == 1
    assert producer.post("/jobs", body, 201)["job"]["id"] not in ids
    assert producer.post("/jobs", body, 201, headers={"Idempotency-Key": "order 18"})["job"]["id"] not in ids
    assert login("enqueue", label="other").post("/jobs", body, 201, headers=key)["job"]["id"] not in ids
    assert len(app.find().jobs) == 4


@any_store
@pytest.mark.parametrize(
    "other",
    [
        {"payload": {"name": "Grace"}},
        {"payload": {"name": "Ada", "polite": True}},
        {"task": "whatever"},
        {"tenant": "a"},
    ],
    ids=str,
)
def test_an_idempotency_key_of_another_request_is_refused(admin: Client, app: Treadle, other: dict) -> None:
    key, body = {"Idempotency-Key": "order 17"}, {"task": "greet", "payload": {"name": "Ada"}}
    admin.post("/jobs", body, 201, headers=key)
    answer = admin.post("/jobs", {**body, **other}, 422, headers=key)
    assert answer["field"] == "Idempotency-Key"
    assert "another request" in answer["detail"]
    assert len(app.find().jobs) == 1


@any_store
def test_a_repeat_is_one_though_an_operator_has_edited_the_payload_meanwhile(admin: Client, app: Treadle) -> None:
    key, body = {"Idempotency-Key": "order 17"}, {"task": "greet", "payload": {"name": "Ada"}}
    made = admin.post("/jobs", body, 201, headers=key)["job"]["id"]
    admin.patch(f"/jobs/{made}", {"priority": 3})
    other = {**body, "payload": {"name": "Grace"}}
    admin.post("/jobs", other, 422, headers=key)
    admin.patch(f"/jobs/{made}", {"payload": {"name": "Bob"}})
    assert admin.post("/jobs", body, 201, headers=key)["job"]["id"] == made
    assert admin.post("/jobs", {**body, "tenant": "a"}, 422, headers=key)["field"] == "Idempotency-Key"


def test_the_payload_is_checked_against_the_task(admin: Client, app: Treadle) -> None:
    assert admin.post("/jobs", {"task": "gret"}, 422)["detail"] == (
        "no task 'gret' is registered here (did you mean 'greet'?)"
    )
    for payload in ({}, {"name": 5}, {"name": "Ada", "age": 3}, [], "Ada", None):
        answer = admin.post("/jobs", {"task": "greet", "payload": payload}, 422)
        assert (answer["error"], answer["field"]) == ("InvalidPayload", "payload")
    assert app.find().jobs == []


def test_a_server_without_an_app_stores_jobs_of_any_task(make_app, server: Server, login: Login) -> None:
    server.serve_app(make_app())
    job = login("admin").post("/jobs", {"task": "elsewhere", "payload": {"a": 1}}, 201)["job"]
    assert (job["task"], job["payload"]) == ("elsewhere", "***")  # nobody can say what is secret in it
    server.serve_app(make_app(unknown_payloads="show"))
    assert login("admin").get(f"/jobs/{job['id']}")["job"]["payload"] == {"a": 1}


def test_enqueueing_over_the_api_can_be_closed(make_app, server: Server, login: Login) -> None:
    server.serve_app(make_app(enqueue_allow=["cli"]))
    answer = login("admin").post("/jobs", {"task": "greet", "payload": {"name": "Ada"}}, 403)
    assert "enqueue_allow" in answer["detail"]


def test_a_program_that_only_enqueues_learns_the_id_and_no_more(login: Login, admin: Client, app: Treadle) -> None:
    body = {"task": "greet", "payload": {"name": "a secret of somebody else"}, "key": "k1", "unique": "ever"}
    theirs = admin.post("/jobs", body, 201)["job"]
    run_until_idle(app)
    answer = login("enqueue").post("/jobs", {**body, "payload": {"name": "x"}}, 201)
    assert answer == {"job": {"id": theirs["id"]}}


def test_a_long_key_is_found_again(admin: Client) -> None:
    key, job = "k" * 1000, {"task": "greet", "payload": {"name": "Ada"}}
    made = admin.post("/jobs", {**job, "key": key}, 201)["job"]["id"]
    assert [one["id"] for one in admin.get("/jobs", key=key)["jobs"]] == [made]
    assert admin.post("/jobs/bulk", {"action": "cancel", "filter": {"key": key}})["found"] == 1
    assert admin.post("/jobs", {**job, "key": f"{key}k"}, 422)["field"] == "key"
