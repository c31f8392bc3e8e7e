"""What stands beside the jobs, on every store: pauses, queues, workers, rates, failures, audit, costs, tokens."""

import asyncio
import re
from collections.abc import Callable

import pytest

from tests.server.conftest import Client, Login
from tests.support.marks import any_store
from treadle import Treadle, __version__
from treadle.testing import FakeClock, run_until_idle


@any_store
def test_a_queue_is_paused_and_resumed(app: Treadle, admin: Client) -> None:
    made = admin.post("/pauses", {"queue": "mail", "until": "2h", "reason": "outage"}, 201)["pause"]
    assert (made["tenant"], made["queue"], made["task"], made["scope"]) == (None, "mail", None, "queue mail")
    assert made["until"] == "2026-01-01T14:00:00+00:00"
    app.enqueue("send", {"to": "ada"})
    assert run_until_idle(app, queues=["mail"]) == []
    assert [pause["scope"] for pause in admin.get("/pauses")["pauses"]] == ["queue mail"]
    assert admin.post("/pauses/resume", {"queue": "mail", "reason": "it is back"})["pause"]["queue"] == "mail"
    assert admin.get("/pauses")["pauses"] == []
    assert "is not paused" in admin.post("/pauses/resume", {"queue": "mail"}, 409)["detail"]
    assert len(run_until_idle(app, queues=["mail"])) == 1
    assert {(event.kind.value, event.note) for event in app.audit(actor="token admin-0") if "queue" in event.note} == {
        ("paused", "queue mail: outage"), ("resumed", "queue mail: it is back"),
    }  # fmt: skip


@any_store
def test_everything_is_paused_only_by_that_word(admin: Client) -> None:
    assert admin.post("/pauses", {}, 422)["field"] == "everything"
    assert admin.post("/pauses", {"everything": True, "queue": "mail"}, 422)["field"] == "everything"
    assert admin.post("/pauses", {"queue": "mail", "until": "2020-01-01T00:00Z"}, 422)["field"] == "until"
    assert admin.post("/pauses", {"everything": True}, 201)["pause"]["scope"] == "everything"
    assert admin.post("/pauses/resume", {"everything": True})["pause"]["scope"] == "everything"


@any_store
def test_the_status_tells_queues_tasks_and_failures(app: Treadle, admin: Client) -> None:
    app.enqueue("send", {"to": "ada"})
    run_until_idle(app, queues=["mail"])
    app.enqueue("greet", {"name": "Ada"})
    status = admin.get("/status")
    assert status["ok"] is False
    assert "no worker is alive" in status["problems"][0]
    assert {(group["queue"], group["waiting"], group["failed"]) for group in admin.get("/queues")["queues"]} == {
        ("default", 1, 0), ("mail", 0, 1),
    }  # fmt: skip
    [oldest] = [group["oldest"] for group in admin.get("/queues")["queues"] if group["queue"] == "default"]
    assert oldest == app.find(state="pending").jobs[0].due_at.isoformat()
    assert status["errors"] == [{"type": "ConnectionError", "failed": 1, "retrying": 0}]
    assert status["total"]["waiting"] == 1


@any_store
def test_rates_are_what_a_worker_has_counted(make_app, app: Treadle, admin: Client) -> None:
    async def work() -> None:
        jobs = [app.enqueue("greet", {"name": "Ada"}) for _ in range(3)]
        jobs.append(app.enqueue("give_up", {"why": "no"}))
        async with app.worker(poll="50ms", name="w1"):
            for job in jobs:
                await app.await_for(job, 20)

    asyncio.run(work())
    stats = admin.get("/stats", span="5m")
    assert (stats["total"]["succeeded"], stats["total"]["failed"]) == (3, 1)
    assert {(one["queue"], one["task"], one["succeeded"]) for one in stats["tasks"]} == {
        ("default", "greet", 3), ("default", "give_up", 0),
    }  # fmt: skip
    assert [minute["succeeded"] for minute in stats["minutes"]] == [3]
    assert admin.get("/stats", task="give_up")["total"]["succeeded"] == 0
    assert admin.get("/stats", queue="nowhere")["total"]["failed"] == 0
    assert stats["total"]["run"]["p50"] is not None


@pytest.mark.parametrize("span", ["59s", "8d", "soon", "", "-1", "nan", "inf", "1e999"])
def test_rates_of_a_span_that_cannot_be_are_refused(admin: Client, span: str) -> None:
    assert admin.get("/stats", 422, span=span)["field"] == "span"


@any_store
def test_a_worker_is_seen_and_drained(app: Treadle, admin: Client) -> None:
    async def work() -> None:
        async with app.worker(poll="50ms", name="w1"):
            while not (await asyncio.to_thread(admin.get, "/workers"))["workers"]:
                await asyncio.sleep(0.02)
            [worker] = (await asyncio.to_thread(admin.get, "/workers"))["workers"]
            assert (worker["name"], worker["queues"], worker["running"]) == ("w1", ["default"], 0)
            assert "greet" in worker["tasks"]
            assert (worker["version"], worker["silent"], worker["drain"]) == (__version__, False, None)
            assert worker["memory"] > 2**20
            drained = await asyncio.to_thread(admin.post, "/workers/w1/drain", {"reason": "deploy"}, 202)
            assert drained["worker"]["name"] == "w1"

    asyncio.run(work())
    answer = admin.post("/workers/w9/drain", {}, 409)
    assert answer["detail"] == "no live worker is called 'w9'; alive: none"


def test_tasks_come_with_the_schema_of_their_payload(admin: Client) -> None:
    tasks = {task["name"]: task for task in admin.get("/tasks")["tasks"]}
    assert tasks.keys() == {"greet", "whatever", "send", "give_up", "cost"}
    schema = tasks["greet"]["payload_schema"]
    assert (schema["required"], schema["properties"]["name"]) == (["name"], {"title": "Name", "type": "string"})
    assert (tasks["send"]["queue"], tasks["send"]["retry"]["max_attempts"]) == ("mail", 1)
    assert tasks["whatever"]["payload_schema"] == {}
    assert tasks["cost"]["payload_schema"]["properties"].keys() == {"micros"}


@any_store
def test_pages_of_the_audit_trail_have_no_gap_and_none_twice(
    app: Treadle, admin: Client, tick: Callable[[], None]
) -> None:
    for number in range(40):
        app.pause(queue=f"q{number}", actor="ada" if number % 2 else "grace")
        if number % 3:
            tick()
        if number == 20:
            app.seal_audit()
    for query, number in (({}, 41), ({"actor": "ada"}, 20), ({"kind": "paused"}, 40), ({"kind": "created"}, 1)):
        seen: list[tuple[str, int]] = []
        cursor: dict[str, str] = {}
        while True:
            page = admin.get("/audit", limit=7, **query, **cursor)
            seen += [(event["job"], event["revision"]) for event in page["events"]]
            if page["cursor"] is None:
                break
            cursor = {"cursor": page["cursor"]}
        assert len(seen) == len(set(seen)) == number, query
    assert len(admin.get("/audit", since="10s", limit=500)["events"]) < 41
    assert admin.get("/audit", until="2020-01-01T00:00Z")["events"] == []
    assert admin.get("/audit", tenant="nobody")["events"] == []


@any_store
def test_costs_are_summed_by_day_tenant_and_task(app: Treadle, admin: Client) -> None:
    for tenant, micros in (("acme", 100), ("acme", 50), ("birch", 7)):
        app.enqueue("cost", {"micros": micros}, tenant=tenant)
    run_until_idle(app)
    assert admin.get("/costs")["costs"] == [
        {"tenant": "acme", "task": "cost", "micros": 150},
        {"tenant": "birch", "task": "cost", "micros": 7},
    ]
    assert admin.get("/costs", tenant="birch", days=366)["costs"] == [{"tenant": "birch", "task": "cost", "micros": 7}]
    assert admin.get("/costs", day="2025-12-31")["costs"] == []
    assert len(admin.get("/costs", day="2026-01-02", days=2)["costs"]) == 2


@pytest.mark.parametrize("query", [{"day": "0001-01-01", "days": 366}, {"day": "9999-12-31"}, {"day": "0001-01-01"}])
@any_store
def test_costs_of_the_first_and_the_last_day_there_is(admin: Client, query: dict) -> None:
    assert admin.get("/costs", **query)["costs"] == []


@any_store
def test_tokens_are_made_listed_and_revoked(admin: Client, http, secrets: list[str]) -> None:
    body = {"label": "ci", "scopes": ["enqueue"], "tenant": "acme", "queues": ["mail"], "expires": "30d"}
    made = admin.post("/tokens", body, 201)
    secrets.append(made["secret"])
    assert made["token"]["label"] == "ci"
    assert made["token"]["expires_at"] == "2026-01-31T12:00:00+00:00"
    listed = {token["label"]: token for token in admin.get("/tokens")["tokens"]}
    assert listed["ci"] == made["token"]
    assert "hash" not in listed["ci"]
    theirs = Client(http, made["secret"], secrets)
    theirs.post("/jobs", {"task": "send", "payload": {"to": "ada"}}, 201)
    assert admin.post(f"/tokens/{made['token']['name']}/revoke", {"reason": "leaked"})["token"]["revoked_at"]
    theirs.post("/jobs", {"task": "send", "payload": {"to": "ada"}}, 401)
    assert "no usable token" in admin.post("/tokens/ci/revoke", {}, 409)["detail"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"label": ""}, "label"), ({"label": "*"}, "label"), ({"label": "a\x00b"}, "label"), ({"scopes": []}, "scopes"),
        ({"scopes": ["root"]}, "scopes.0"), ({"scopes": "read"}, "scopes"), ({"queues": []}, "queues"),
        ({"queues": ["\n"]}, "queues.0"), ({"tenant": " "}, "tenant"), ({"expires": "0"}, "expires"),
        ({"expires": "2020-01-01T00:00Z"}, "expires"), ({"expires": "then"}, "expires"), ({"secret": "mine"}, "secret"),
        ({"queues": ["q"] * 5000}, "queues"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_a_token_that_cannot_be_is_refused_by_its_field(admin: Client, change: dict, field: str) -> None:
    assert admin.post("/tokens", {"label": "ci", "scopes": ["read"], **change}, 422)["field"] == field


@any_store
def test_metrics_are_what_prometheus_reads(app: Treadle, login: Login, clock: FakeClock) -> None:
    app.pause(queue='a"b\\c')
    app.enqueue("greet", {"name": "Ada"}, queue='a"b\\c')
    clock.advance(minutes=2)
    answer = login("read").ask("GET", "//metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = answer.text.splitlines()
    line = re.compile(r'[a-z_]+(\{[a-z]+="(?:[^"\\\n]|\\.)*"(,[a-z]+="(?:[^"\\\n]|\\.)*")*\})? -?[0-9.e+-]+')
    assert all(line.fullmatch(one) for one in lines if not one.startswith("#"))
    assert "treadle_up 1" in lines
    assert 'treadle_oldest_due_seconds{queue="a\\"b\\\\c"} 120' in lines
    assert "treadle_paused 1" in lines
    helped = {one.split()[2] for one in lines if one.startswith("# HELP")}
    assert {re.match("[a-z_]+", one)[0] for one in lines if not one.startswith("#")} <= helped


def test_metrics_keep_every_digit_of_a_large_number() -> None:
    from treadle.app.exposition import Metric, lines

    [_, line] = lines(Metric("m", "Help.", [({}, 12_345_678)]))
    assert line == "m 12345678\n"


def test_health_needs_no_token_and_tells_nothing(nobody: Client) -> None:
    assert nobody.get("//healthz") == {"ok": True}
    assert nobody.get("//readyz") == {"ok": True}
    assert [nobody.ask("HEAD", path).status_code for path in ("//healthz", "//readyz", "/jobs")] == [200, 200, 405]


def test_a_server_that_stops_is_alive_and_not_ready(server, nobody: Client) -> None:
    server.stop()
    assert nobody.get("//healthz") == {"ok": True}
    assert nobody.get("//readyz", 503)["detail"] == "the server is stopping"
    assert nobody.ask("HEAD", "//readyz").status_code == 503


@any_store
def test_the_overview_begins_with_what_is_wrong_and_what_to_do(
    app: Treadle, admin: Client, login: Login, clock: FakeClock
) -> None:
    app.enqueue("send", {"to": "ada"})
    clock.advance(minutes=2)
    waits = admin.get("/overview")["headline"]
    assert (waits["level"], waits["steps"][0]["act"]) == ("bad", "worker")
    run_until_idle(app, queues=["mail"])
    found = admin.get("/overview")
    assert found["headline"]["level"] == "bad"
    assert found["headline"]["sentence"].startswith("Queue mail has been failing")
    assert found["headline"]["quote"] == "ConnectionError: ada does not answer"
    assert [step["act"] for step in found["headline"]["steps"]] == ["failures", "retry"]
    theirs = login("read", tenant="acme").get("/overview")  # a tenant hears nothing of the others
    assert (theirs["headline"]["level"], theirs["rate"]["ended"], theirs["queues"]) == ("calm", 0, [])


def test_a_cron_expression_is_told_in_words_and_by_its_next_runs(admin: Client) -> None:
    found = admin.get("/cron", cron="0 3 * * *", tz="Europe/Berlin", n=2)
    assert "3" in found["words"]
    assert len(found["ticks"]) == 2
    assert admin.get("/cron", 422, cron="61 3 * * *")["field"] == "cron"
    assert admin.get("/cron", 422, cron="0 3 * * *", tz="Moon/Base")["field"] == "timezone"


def test_the_doctor_and_the_seals_are_told_over_the_api(app: Treadle, admin: Client, login: Login) -> None:
    found = admin.get("/doctor")
    assert found["ok"] == all(one["level"] != "error" for one in found["findings"])
    assert [one["level"] for one in found["findings"]] == [one.level for one in app.doctor()]
    login("read", tenant="acme").get("/doctor", 403)
    app.enqueue("greet", {"name": "Ada"})
    assert admin.get("/audit/verify")["sound"] is True
