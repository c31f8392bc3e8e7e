"""A token that is bound to a tenant or to queues sees, changes and infers nothing else."""

from typing import Any

import pytest

from tests.server.conftest import Client, Login
from tests.support.marks import any_store
from treadle import State, Treadle, Unique
from treadle.engines.values import OVERWRITE
from treadle.model import new_ids
from treadle.model.records import WorkerInfo
from treadle.testing import run_until_idle

UNKNOWN = "0199e0c5-6f3b-7d41-9c1e-2b7f5f0a8c11"
ALL = ("read", "enqueue", "operate")


class Foreign:
    """What belongs to others: a job that waits, one that has failed, a schedule and a pause."""

    def __init__(self, app: Treadle, **where: Any) -> None:
        tenant, queue = where.get("tenant", "default"), where.get("queue", "default")
        self.tenant, self.queue = tenant, queue
        ids = new_ids(3)
        self.waiting = app.enqueue("greet", {"name": "canary-payload"}, tenant=tenant, queue=queue, id=ids[0]).id
        self.key = app.enqueue("greet", {"name": "x"}, tenant=tenant, queue=queue, key="canary-key", unique="active").id
        self.failed = app.enqueue("send", {"to": "canary-error"}, tenant=tenant, queue=queue).id
        run_until_idle(app, queues=[queue])
        self.waiting = app.enqueue("greet", {"name": "canary-payload"}, tenant=tenant, queue=queue).id
        app.schedules.create("canary-schedule", "greet", {"name": "Ada"}, every="1h", tenant=tenant, queue=queue)
        app.pause(tenant=tenant, queue=queue, task="canary-task", reason="canary-reason")
        self.app = app

    def unchanged(self) -> object:
        own = {"tenant": self.tenant, "queue": self.queue}
        schedules = self.app.schedules.list(tenant=self.tenant, prefix="canary")
        return self.app.find(**own).jobs, schedules, [one for one in self.app.pauses() if one.task == "canary-task"]


BOUND = {
    "tenant": ({"tenant": "acme"}, {"tenant": "birch"}),
    "queue": ({"queues": ["mail"]}, {"queue": "secret"}),
    "both": ({"tenant": "acme", "queues": ["mail"]}, {"tenant": "acme", "queue": "secret"}),
}


@pytest.fixture(params=BOUND)
def bound(request: pytest.FixtureRequest, login: Login, secrets: list[str]) -> Client:
    client = login(*ALL, label="bound", **BOUND[request.param][0])
    client.foreign = BOUND[request.param][1]  # type: ignore[attr-defined]
    client.kind = request.param  # type: ignore[attr-defined]
    return client


@pytest.fixture
def foreign(app: Treadle, bound: Client, secrets: list[str]) -> Foreign:
    made = Foreign(app, **bound.foreign)  # type: ignore[attr-defined]
    secrets += ["canary", made.waiting, made.failed]  # no answer may name them from here on
    return made


def same(
    client: Client, method: str, path: str, theirs: str, unknown: str, whole_ids: Any = None, **request: Any
) -> None:
    """The answer for something of others is, to the letter, the one for something that is not there."""
    secrets, client._secrets = client._secrets, []  # the answer repeats what was asked for
    answers = [client.ask(method, path.format(one), **request) for one in (theirs, unknown)]
    client._secrets = secrets
    assert [answer.status_code for answer in answers] == [404, 404], answers[0].text
    texts = [
        answer.text.replace(one, "as given").replace(whole, "whole")
        for answer, one, whole in zip(answers, (theirs, unknown), whole_ids or (theirs, unknown), strict=True)
    ]
    assert texts[0] == texts[1]


@any_store
def test_a_foreign_job_is_answered_as_one_that_is_not_there(bound: Client, foreign: Foreign) -> None:
    before = foreign.unchanged()
    for change in (str, str.upper, lambda id_: id_.replace("-", ""), lambda id_: id_[:-1]):
        for job in (foreign.waiting, foreign.failed):
            same(bound, "GET", "/jobs/{}", change(job), change(UNKNOWN), (job, UNKNOWN))
    pair = (foreign.waiting, UNKNOWN)
    same(bound, "GET", "/jobs/{}/why", *pair)
    for act in ("retry", "cancel", "run-now"):
        same(bound, "POST", f"/jobs/{{}}/{act}", *pair, json={})
    same(bound, "PATCH", "/jobs/{}", *pair, json={"priority": 1})
    same(bound, "DELETE", "/jobs/{}", *pair)
    assert foreign.unchanged() == before


@any_store
def test_the_first_digits_of_foreign_ids_tell_nothing(app: Treadle, bound: Client, foreign: Foreign) -> None:
    own = {name: value[0] if name == "queues" else value for name, value in BOUND[bound.kind][0].items()}  # type: ignore[attr-defined]
    if "queues" in own:
        own["queue"] = own.pop("queues")
    mine = app.enqueue("greet", {"name": "Ada"}, **own)
    for digits in (8, 13, 18):
        shown = bound.ask("GET", f"/jobs/{mine.id[:digits]}")
        assert shown.status_code == 200, shown.text  # though ids of others begin so, too
        assert shown.json()["job"]["id"] == mine.id


@any_store
def test_lists_hold_what_is_theirs_alone(app: Treadle, bound: Client, foreign: Foreign) -> None:
    for query in ({}, {"state": "failed"}, {"key": "canary"}, {"error": "ConnectionError"}, {"task": "greet"}):
        page = bound.get("/jobs", **query)
        assert (page["jobs"], page["cursor"]) == ([], None)
    assert bound.get("/schedules")["schedules"] == []
    assert bound.get("/schedules")["cursor"] is None
    assert bound.get("/pauses")["pauses"] == []


@any_store
def test_pages_of_schedules_tell_nothing_of_others(app: Treadle, bound: Client, foreign: Foreign) -> None:
    own = BOUND[bound.kind][0]  # type: ignore[attr-defined]
    for number in range(3):
        queue = own["queues"][0] if "queues" in own else "default"
        app.schedules.create(f"b{number}", "greet", {"name": "A"}, every="1h", tenant=own.get("tenant"), queue=queue)
        app.schedules.create(
            f"canary{number}", "greet", {"name": "A"}, every="1h", tenant=foreign.tenant, queue=foreign.queue
        )
    seen, cursor = [], {}
    while True:
        page = bound.get("/schedules", limit=2, **cursor)
        seen.append([schedule["name"] for schedule in page["schedules"]])
        if page["cursor"] is None:
            break
        cursor = {"cursor": page["cursor"]}
    assert seen == [["b0", "b1"], ["b2"]]


@any_store
def test_a_foreign_schedule_is_answered_as_one_that_is_not_there(bound: Client, foreign: Foreign) -> None:
    before = foreign.unchanged()
    names = ("canary-schedule", "nobody-schedule")
    same(bound, "GET", "/schedules/{}", *names)
    same(bound, "GET", "/schedules/{}/preview", *names)
    same(bound, "PATCH", "/schedules/{}", *names, json={"priority": 1})
    for act in ("enable", "disable", "run"):
        same(bound, "POST", f"/schedules/{{}}/{act}", *names, json={})
    same(bound, "DELETE", "/schedules/{}", *names)
    assert foreign.unchanged() == before
    bound.get("/schedules/canari-schedule", 404)  # no "did you mean canary-schedule?"


@any_store
def test_many_jobs_are_their_own_only(app: Treadle, bound: Client, foreign: Foreign) -> None:
    before = foreign.unchanged()
    for action in ("cancel", "delete", "retry"):
        body = {"action": action, "filter": {"everything": True}}
        looked = bound.post("/jobs/bulk", body)
        assert (looked["found"], looked["first"]) == (0, [])
        assert bound.post("/jobs/bulk", {**body, "confirm": looked["confirm"]})["done"] == 0
        texts = []
        for id_ in (foreign.waiting, UNKNOWN):
            secrets, bound._secrets = bound._secrets, []
            answer = bound.post("/jobs/bulk", {"action": action, "filter": {"ids": [id_]}}, 404)
            bound._secrets = secrets
            texts.append(str(answer).replace(id_, "X"))
        assert texts[0] == texts[1]
    assert foreign.unchanged() == before


@any_store
def test_pauses_are_their_own_only(app: Treadle, bound: Client, foreign: Foreign) -> None:
    before = foreign.unchanged()
    own = BOUND[bound.kind][0]  # type: ignore[attr-defined]
    bound.post("/pauses/resume", {"task": "another-task"}, 409)  # and no list of what others have paused
    theirs = {"task": "canary-task", **({"queue": foreign.queue} if "queues" in own else {"tenant": foreign.tenant})}
    for path in ("/pauses", "/pauses/resume"):
        bound.post(path, theirs, 422)
    made = bound.post("/pauses", {"task": "mine"}, 201)["pause"]
    assert made["tenant"] == own.get("tenant")
    assert made["queue"] == (own["queues"][0] if "queues" in own else None)
    bound.post("/pauses/resume", {"task": "mine"})
    if "queues" in own:
        assert bound.post("/pauses", {"everything": True}, 422)["field"] == "everything"
    assert foreign.unchanged() == before


@any_store
def test_what_is_told_of_the_whole_store_is_not_told_to_them(bound: Client, foreign: Foreign) -> None:
    for path in ("/stats", "/workers", "//metrics"):
        assert "bound" in bound.get(path, 403)["detail"]
    for path in ("/tokens",):
        bound.get(path, 403)
    bound.post("/workers/w1/drain", {}, 403)
    assert bound.get("/failures")["failures"] == []
    assert bound.get("/jobs/count")["total"] == 0
    assert bound.get("/queues")["queues"] == []
    for path in ("/status", "/audit", "/costs", "/budgets", "/events"):
        if bound.kind == "tenant" and path != "/events":  # type: ignore[attr-defined]
            lists = [one for one in bound.get(path).values() if isinstance(one, list) and one]
            assert [one for one in lists if "token bound" not in str(one)] == [], path  # that it was made is theirs
        elif bound.kind != "tenant":  # type: ignore[attr-defined]
            assert "bound" in bound.get(path, 403)["detail"]


def test_an_admin_who_is_bound_makes_no_tokens(login: Login, app: Treadle) -> None:
    for where in ({"tenant": "acme"}, {"queues": ["mail"]}):
        client = login("admin", **where)
        known = app.tokens.list()
        client.post("/tokens", {"label": "more", "scopes": ["admin"]}, 403)
        client.get("/tokens", 403)
        client.post(f"/tokens/{known[0].name}/revoke", {}, 403)
        assert app.tokens.list() == known


@any_store
def test_what_they_store_is_theirs(app: Treadle, bound: Client, foreign: Foreign) -> None:
    own = BOUND[bound.kind][0]  # type: ignore[attr-defined]
    body = {"task": "greet", "payload": {"name": "Ada"}}
    made = app.get(bound.post("/jobs", body, 201)["job"]["id"])
    assert made.tenant == own.get("tenant", "default")
    assert made.queue == (own["queues"][0] if "queues" in own else "default")
    scheduled = bound.post("/schedules", {**body, "name": "mine", "every": "1h"}, 201)["schedule"]
    assert scheduled["tenant"] == made.tenant
    assert scheduled["queue"] == made.queue
    if "tenant" in own:
        assert bound.post("/jobs", {**body, "tenant": "somebody"}, 422)["field"] == "tenant"
        assert bound.get("/jobs", 422, tenant="somebody")["field"] == "tenant"
    if "queues" in own:
        bound._secrets.remove("canary")
        assert bound.post("/jobs", {**body, "queue": "elsewhere"}, 422)["field"] == "queue"
        assert bound.get("/jobs", 422, queue="elsewhere")["field"] == "queue"
        assert bound.patch(f"/jobs/{made.id}", {"queue": "elsewhere"}, 422)["field"] == "queue"
        assert bound.patch("/schedules/mine", {"queue": "elsewhere"}, 422)["field"] == "queue"
        bulk = {"action": "cancel", "filter": {"queue": "elsewhere"}}
        assert bound.post("/jobs/bulk", bulk, 422)["field"] == "queue"


def test_a_token_of_several_queues_names_one_of_them(app: Treadle, login: Login) -> None:
    client = login(*ALL, queues=["mail", "slow"])
    job = app.enqueue("greet", {"name": "Ada"}, queue="slow")
    answer = client.get("/jobs", 422)
    assert answer["detail"] == "queue: name one of mail, slow: your token is bound to them"
    assert [one["id"] for one in client.get("/jobs", queue="slow")["jobs"]] == [job.id]
    assert client.get(f"/jobs/{job.id[:8]}")["job"]["id"] == job.id
    body = {"task": "greet", "payload": {"name": "Ada"}}
    client.post("/jobs", body, 422)
    assert client.post("/jobs", {**body, "queue": "mail"}, 201)["job"]["queue"] == "mail"
    assert client.post("/jobs", {"task": "send", "payload": {"to": "x"}}, 201)["job"]["queue"] == "mail"  # its own


@any_store
def test_the_key_of_a_job_on_another_queue_is_taken_and_tells_no_more(app: Treadle, login: Login) -> None:
    client = login(*ALL, queues=["mail"])
    theirs = app.enqueue("greet", {"name": "canary"}, queue="secret", key="k", unique="active")
    client._secrets.extend(["canary", theirs.id, "secret"])
    body = {"task": "greet", "payload": {"name": "Ada"}, "key": "k", "unique": "active"}
    answer = client.post("/jobs", body, 409)
    assert answer["error"] == "KeyTaken"
    ever = {**body, "key": "ended", "unique": "ever"}
    ended = app.enqueue("greet", {"name": "canary"}, queue="other", key="ended", unique="ever")
    run_until_idle(app, queues=["other"])
    for policy in ("first", "raise"):
        answer = client.post("/jobs", {**ever, "on_conflict": policy}, 409)
        assert (answer["error"], ended.id in answer["detail"]) == ("KeyTaken", False)
    mine = client.post("/jobs", {**ever, "key": "mine"}, 201)["job"]["id"]
    assert mine in client.post("/jobs", {**ever, "key": "mine", "on_conflict": "raise"}, 409)["detail"]


def test_the_job_that_keeps_a_schedule_from_running_is_not_named_if_it_is_on_another_queue(
    app: Treadle, login: Login
) -> None:
    client = login(*ALL, queues=["mail"])
    app.schedules.create("moved", "greet", {"name": "Ada"}, every="1h", overlap="skip", queue="secret")
    client._secrets.append(app.schedules.run("moved").id)
    app.schedules.update("moved", queue="mail")
    assert client.post("/schedules/moved/run", {}, 409)["error"] == "KeyTaken"


def test_who_may_only_enqueue_is_not_told_the_names_of_tasks(login: Login) -> None:
    client = login("enqueue")
    client._secrets += ["greet", "known tasks"]
    for name in ("gree", "zzzzzz"):
        answer = client.post("/jobs", {"task": name}, 422)
        assert (answer["field"], answer["error"]) == ("task", "UnknownTask")


@any_store
def test_the_key_of_a_tenant_is_free_for_another(app: Treadle, login: Login) -> None:
    client = login(*ALL, tenant="acme")
    theirs = app.enqueue("greet", {"name": "canary"}, tenant="birch", key="k", unique="ever")
    body = {"task": "greet", "payload": {"name": "Ada"}, "key": "k", "unique": "ever"}
    assert client.post("/jobs", body, 201)["job"]["id"] != theirs.id


@any_store
def test_an_idempotency_key_is_the_callers_own(app: Treadle, login: Login) -> None:
    """Also if two callers have the same name, as tokens may."""
    body, key = {"task": "greet", "payload": {"name": "Ada"}}, {"Idempotency-Key": "1"}
    callers = [
        login(*ALL, label="ci"), login(*ALL, label="ci", tenant="acme"), login(*ALL, label="ci", tenant="birch"),
        login(*ALL, label="ci", queues=["mail"]), login(*ALL, label="ci", queues=["slow"]),
        login(*ALL, label="ci", tenant="None"), login(*ALL, label="other"), login(*ALL, label="ci"),
    ]  # fmt: skip
    ids = [caller.post("/jobs", body, 201, headers=key)["job"]["id"] for caller in callers]
    assert len(set(ids)) == len(callers)
    assert [caller.post("/jobs", body, 201, headers=key)["job"]["id"] for caller in callers] == ids
    assert app.count()[State.PENDING] == len(callers)


def test_a_job_on_another_queue_is_not_replaced(app: Treadle, login: Login) -> None:
    @app.task(unique=Unique("pending", on_conflict="replace"))
    def latest(name: str) -> None: ...

    theirs = latest.using(queue="secret", key="k").enqueue("canary")
    login(*ALL, queues=["mail"]).post("/jobs", {"task": "latest", "payload": {"name": "Ada"}, "key": "k"}, 409)
    assert app.get(theirs.id) == theirs


@any_store
def test_why_a_job_waits_tells_nothing_of_other_queues(app: Treadle, login: Login) -> None:
    client = login(*ALL, queues=["mail"])
    mine = app.enqueue("greet", {"name": "Ada"}, queue="mail")
    now = app.engine.now()
    worker = WorkerInfo("canary-worker", "host", 1, ["secret"], None, {"greet": 1}, 10, 0, False, now, now, 60.0)
    app.engine.save(worker, before=OVERWRITE)
    client._secrets.extend(["canary", "secret"])
    assert [one["kind"] for one in client.get(f"/jobs/{mine.id}/why")["obstacles"]] == ["next"]
    app.pause(queue="mail")
    assert [one["kind"] for one in client.get(f"/jobs/{mine.id}/why")["obstacles"]] == ["paused"]


@any_store
def test_a_retry_that_another_queue_prevents_does_not_name_the_job(app: Treadle, login: Login) -> None:
    client = login(*ALL, queues=["mail"])
    mine = app.enqueue("greet", {"name": "Ada"}, queue="mail", key="k", unique="active")
    app.cancel(mine.id)
    theirs = app.enqueue("greet", {"name": "Ada"}, queue="other", key="k", unique="active")
    client._secrets.append(theirs.id)
    assert "taken" in client.post(f"/jobs/{mine.id}/retry", {}, 409)["detail"]
    bulk = {"action": "retry", "filter": {"ids": [mine.id]}}
    done = client.post("/jobs/bulk", {**bulk, "confirm": client.post("/jobs/bulk", bulk)["confirm"]})
    assert (done["not_possible"], "taken" in done["problems"][0]["why"]) == (1, True)
