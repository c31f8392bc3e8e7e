"""What an operator looks for over HTTP: by lane, text and kind of error; in numbers; attempt by attempt."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.server.conftest import Client
from tests.support.marks import any_store, dynamodb_only, sql_stores
from treadle import Treadle
from treadle.app import queries
from treadle.engines.dynamodb import lists
from treadle.testing import FakeClock, run_until_idle


def ids(client: Client, **query: object) -> list[str]:
    return [job["id"] for job in client.get("/jobs", **query)["jobs"]]


@any_store
def test_jobs_are_found_and_counted_by_lane(app: Treadle, admin: Client) -> None:
    mine = app.enqueue("greet", {"name": "Ada"}, lane="customer-1").id
    other = app.enqueue("greet", {"name": "Bob"}).id
    assert ids(admin, lane="customer-1") == ids(admin, lane="customer-1", state="pending") == [mine]
    assert ids(admin, lane="") == [other]
    counted = admin.get("/jobs/count", lane="customer-1")
    assert (counted["counts"]["pending"], counted["total"], counted["exact"], counted["estimates"]) == (1, 1, True, [])
    assert admin.get("/jobs/count")["total"] == 2
    body = {"action": "cancel", "filter": {"lane": "customer-1"}}
    done = admin.post("/jobs/bulk", {**body, "confirm": admin.post("/jobs/bulk", body)["confirm"]})
    assert (done["done"], ids(admin, state="cancelled")) == (1, [mine])


@sql_stores
def test_a_text_is_looked_for_in_payloads_and_the_answer_says_how_far(
    app: Treadle, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = app.enqueue("whatever", {"note": "Bücher für Ada", "n": 1}).id
    app.tasks["whatever"].enqueue_many([({"n": number},) for number in range(1200)])
    last = app.enqueue("whatever", ["for ada"]).id
    assert ids(admin, text="ADA") == [last, first]
    assert ids(admin, text="bücher für") == [first]
    assert ids(admin, text="%") == ids(admin, text="ada", queue="mail") == []
    monkeypatch.setattr(queries, "MOST_READ", 1000)
    page = admin.get("/jobs", text="Bücher")
    assert (page["jobs"], page["looked"]) == ([], 1000)
    assert page["back_to"]
    rest = admin.get("/jobs", text="Bücher", cursor=page["cursor"])
    assert ([job["id"] for job in rest["jobs"]], rest["cursor"], rest["looked"]) == ([first], None, 202)
    assert admin.get("/jobs", 422, text="")["field"] == "text"


@dynamodb_only
def test_a_store_that_would_read_every_job_refuses_a_text_and_names_the_filters_that_work(admin: Client) -> None:
    refused = admin.get("/jobs", 422, text="ada")
    assert refused["field"] == "text"
    assert "the filters that work: state, task, queue" in refused["detail"]


@dynamodb_only
def test_what_has_no_index_is_looked_for_job_by_job_and_the_answer_says_how_far(
    app: Treadle, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "MOST_LOOKED", 100)
    first = app.enqueue("greet", {"name": "Ada"}, lane="left", key="a1", unique="ever")
    app.tasks["greet"].enqueue_many([("Bob",)] * 150)
    for where in ({"lane": "left"}, {"key": "a1"}, {"lane": "left", "state": "pending", "task": "greet"}):
        page = admin.get("/jobs", **where)
        assert (page["jobs"], page["looked"], page["back_to"]) == ([], 100, first.created_at.isoformat())
        rest = admin.get("/jobs", **where, cursor=page["cursor"])
        assert ([job["id"] for job in rest["jobs"]], rest["cursor"], rest["looked"]) == ([first.id], None, 51)
    page = admin.get("/jobs", task="greet", key="a1")
    assert ([job["id"] for job in page["jobs"]], page["looked"]) == ([first.id], 1)
    assert ids(admin, task="greet", key="a1", cursor=page["cursor"]) == []
    assert app.resolve_id(first.id[:13]) == first.id


@any_store
def test_numbers_beyond_the_limit_are_marked_as_estimates(
    app: Treadle, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.app.queries.MOST_COUNTED", 3)
    for number in range(3):
        app.enqueue("greet", {"name": f"n{number}"})
    counted = admin.get("/jobs/count")
    assert (counted["counts"]["pending"], counted["exact"]) == (3, True)
    app.enqueue("greet", {"name": "one more"})
    counted = admin.get("/jobs/count")
    assert counted["counts"]["pending"] >= 3
    assert (counted["exact"], "pending" in counted["estimates"], app.count()) == (
        False,
        True,
        {**app.count(), "pending": 4},
    )


@any_store
def test_failures_are_grouped_by_kind_and_a_group_is_listed_and_retried(
    app: Treadle, admin: Client, clock: FakeClock
) -> None:
    for number in range(3):
        app.enqueue("give_up", {"why": f"order {number} is 'lost {number}'"})
        run_until_idle(app)
        clock.advance(minutes=1)
    other = app.enqueue("give_up", {"why": "no such user"}).id
    run_until_idle(app)
    found = admin.get("/failures")
    assert (found["looked"], found["more"], found["cursor"], found["bucket"]) == (4, False, None, "minute")
    many, one = found["failures"]
    assert (many["failed"], many["retrying"], many["type"], many["tasks"], many["queues"]) == (
        3, 0, "treadle.errors.GiveUp", ["give_up"], ["default"],
    )  # fmt: skip
    assert (many["message"], many["frame"]) == ("order 2 is 'lost 2'", "conftest.py:give_up")
    start = datetime(2026, 1, 1, 12, tzinfo=UTC)
    minutes = [(start + timedelta(minutes=number)).isoformat() for number in range(3)]
    assert [(bucket["at"], bucket["number"]) for bucket in many["over_time"]] == [(at, 1) for at in minutes]
    assert (many["first_seen"], many["last_seen"]) == (minutes[0], minutes[2])
    assert ids(admin, fingerprint=one["fingerprint"]) == [other] == [one["job_id"]]
    assert many["job_id"] in ids(admin, fingerprint=many["fingerprint"])
    assert len(admin.get("/failures", since="90s")["failures"][0]["over_time"]) == 1
    assert admin.get("/failures", task="greet")["failures"] == admin.get("/failures", queue="mail")["failures"] == []

    body = {"action": "retry", "filter": {"fingerprint": many["fingerprint"]}}
    counted = admin.post("/jobs/bulk", body)
    assert counted["found"] == 3
    assert admin.post("/jobs/bulk", {**body, "confirm": counted["confirm"]})["done"] == 3
    assert ids(admin, state="failed") == [other]
    assert admin.get("/jobs", 422, fingerprint="zzz")["field"] == "fingerprint"
    assert admin.get("/failures", 422, cursor="zzz")["field"] == "cursor"


@any_store
def test_earlier_failures_follow_with_the_cursor_and_those_that_wait_are_counted(
    app: Treadle, admin: Client, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.app.failures.LOOK", 2)

    @app.task
    def flaky(payload: object) -> None:
        raise OSError("try again")

    for _ in range(3):
        app.enqueue("give_up", {"why": "no"})
        run_until_idle(app)
        clock.advance(minutes=1)
    app.enqueue("flaky", {})
    run_until_idle(app)
    first = admin.get("/failures")
    assert [(group["type"], group["failed"], group["retrying"]) for group in first["failures"]] == [
        ("treadle.errors.GiveUp", 2, 0), ("OSError", 0, 1),
    ]  # fmt: skip
    rest = admin.get("/failures", cursor=first["cursor"])
    assert [(group["failed"], group["retrying"]) for group in rest["failures"]] == [(1, 0)]
    assert rest["cursor"] is None


@any_store
def test_a_job_is_shown_with_its_attempts(app: Treadle, admin: Client, clock: FakeClock) -> None:
    job = app.enqueue("send", {"to": "ada"}).id
    run_until_idle(app, queues=["mail"])
    admin.post(f"/jobs/{job}/retry")
    clock.advance(minutes=1)
    run_until_idle(app, queues=["mail"])
    first, second = admin.get(f"/jobs/{job}")["attempts"]
    assert (first["number"], first["outcome"], first["error"]["message"], first["complete"]) == (
        1, "failed", "ada does not answer", False,
    )  # fmt: skip
    assert (second["number"], second["outcome"], second["complete"]) == (2, "failed", True)
    assert second["error"]["type"] == "ConnectionError"
    assert 'raise ConnectionError(f"{to} does not answer")' in second["error"]["traceback"]
    assert second["claimed_at"] == second["ended_at"] == clock.now().isoformat()
