"""`/jobs/bulk`: an act on many jobs is counted first, and done by who has seen the number."""

from typing import Any

import pytest

from tests.server.conftest import Client, Login
from tests.support.marks import any_store
from treadle import State, Treadle
from treadle.testing import FakeClock, run_until_idle

BULK = "/jobs/bulk"
NOW = "1767268800"  # where the clock stands


def stored(app: Treadle, number: int = 3, **using: Any) -> list[str]:
    task = app.tasks["greet"].using(**using)
    return [receipt.job.id for receipt in task.enqueue_many([(f"n{i}",) for i in range(number)])]


def counted(client: Client, body: dict[str, Any]) -> str:
    return str(client.post(BULK, body)["confirm"])


@any_store
def test_jobs_are_counted_and_then_cancelled(app: Treadle, admin: Client) -> None:
    ids = stored(app, 12)
    kept = stored(app, 2, queue="slow")
    body = {"action": "cancel", "filter": {"queue": "default"}, "reason": "outage"}
    looked = admin.post(BULK, body)
    assert (looked["dry_run"], looked["found"], looked["done"]) == (True, 12, 0)
    assert set(looked["first"]) <= set(ids)
    assert app.count()[State.CANCELLED] == 0
    done = admin.post(BULK, {**body, "confirm": looked["confirm"]})
    assert (done["dry_run"], done["found"], done["done"], done["not_possible"]) == (False, 12, 12, 0)
    assert {job.id for job in app.find(state="cancelled").jobs} == set(ids)
    assert {job.id for job in app.find(state="pending").jobs} == set(kept)
    assert {event.note for event in app.audit(kind="cancelled")} == {"outage"}


@any_store
def test_failed_jobs_are_retried_and_ended_ones_deleted(app: Treadle, admin: Client) -> None:
    for _ in range(3):
        app.enqueue("send", {"to": "ada"})
    run_until_idle(app, queues=["mail"])
    retry = {"action": "retry", "filter": {"error": "ConnectionError", "since": "1h"}, "keep_attempts": True}
    assert admin.post(BULK, {**retry, "confirm": counted(admin, retry)})["done"] == 3
    assert app.count()[State.PENDING] == 3
    delete = {"action": "delete", "filter": {"everything": True}}
    assert admin.post(BULK, {**delete, "confirm": counted(admin, delete)})["done"] == 3
    assert app.find().jobs == []


@any_store
def test_jobs_are_meant_by_their_ids(app: Treadle, admin: Client) -> None:
    ids = stored(app)
    body = {"action": "cancel", "filter": {"ids": [ids[0].upper(), ids[2]]}}
    assert admin.post(BULK, {**body, "confirm": counted(admin, body)})["done"] == 2
    assert [app.get(id_).state for id_ in ids] == [State.CANCELLED, State.PENDING, State.CANCELLED]
    missing = {"action": "cancel", "filter": {"ids": [ids[1], "0199e0c5-6f3b-7d41-9c1e-2b7f5f0a8c11"]}}
    assert admin.post(BULK, missing)["problems"][0]["why"].startswith("there is no job 0199e0c5-")
    both = {"action": "cancel", "filter": {"ids": ids, "queue": "default"}}
    assert admin.post(BULK, both, 422)["field"] == "filter.ids"


def test_what_has_ended_meanwhile_is_reported(app: Treadle, admin: Client) -> None:
    ids = stored(app)
    body = {"action": "cancel", "filter": {"ids": ids}}
    confirm = counted(admin, body)
    app.cancel(ids[1])
    done = admin.post(BULK, {**body, "confirm": confirm})
    assert (done["done"], done["not_possible"]) == (2, 1)
    assert [problem["job_id"] for problem in done["problems"]] == [ids[1]]


@pytest.mark.parametrize(
    "altered",
    [
        {"action": "delete"},
        {"filter": {"everything": True}},
        {"filter": {"queue": "default", "state": "pending"}},
        {"filter": {"queue": "slow"}},
        {"keep_attempts": True},
    ],
    ids=str,
)
def test_a_confirmation_is_of_one_act_only(app: Treadle, admin: Client, altered: dict[str, Any]) -> None:
    stored(app)
    body = {"action": "cancel", "filter": {"queue": "default"}}
    answer = admin.post(BULK, {**body, **altered, "confirm": counted(admin, body)}, 409)
    assert "count again" in answer["detail"]
    assert app.count()[State.PENDING] == 3


def test_who_has_seen_the_number_may_say_why_then(app: Treadle, admin: Client) -> None:
    stored(app)
    body = {"action": "cancel", "filter": {"queue": "default"}}
    admin.post(BULK, {**body, "confirm": counted(admin, body), "reason": "outage"})
    assert {event.note for event in app.audit(kind="cancelled")} == {"outage"}


@any_store
def test_nothing_is_done_if_another_number_fits_by_then(app: Treadle, admin: Client) -> None:
    stored(app)
    body = {"action": "cancel", "filter": {"queue": "default"}}
    looked = admin.post(BULK, body)
    stored(app, 1)
    sure = {**body, "confirm": looked["confirm"], "expect": looked["found"]}
    refused = admin.post(BULK, sure, 409)
    assert (refused["field"], refused["found"]) == ("expect", 4)
    assert "4 fit now, not 3" in refused["detail"]
    admin.post(BULK, {**body, "expect": 3}, 409)
    assert app.count()[State.PENDING] == 4
    assert admin.post(BULK, {**sure, "expect": 4})["done"] == 4


@any_store
def test_what_would_be_refused_is_told_of_ids(app: Treadle, admin: Client) -> None:
    ids = stored(app)
    app.cancel(ids[1])
    looked = admin.post(BULK, {"action": "cancel", "filter": {"ids": ids}})
    assert (looked["found"], looked["done"], looked["not_possible"]) == (3, 0, 1)
    assert [problem["job_id"] for problem in looked["problems"]] == [ids[1]]
    assert "already ended" in looked["problems"][0]["why"]


def test_a_confirmation_of_somebody_else_is_refused(app: Treadle, admin: Client, login: Login) -> None:
    stored(app)
    body = {"action": "cancel", "filter": {"queue": "default"}}
    confirm = counted(admin, body)
    login("operate").post(BULK, {**body, "confirm": confirm}, 409)
    same_name = login("operate", label="ci", queues=["default"])
    confirm = counted(login("operate", label="ci"), body)
    same_name.post(BULK, {**body, "confirm": confirm}, 409)
    assert app.count()[State.PENDING] == 3


def test_a_confirmation_is_good_for_ten_minutes(app: Treadle, admin: Client, clock: FakeClock) -> None:
    stored(app)
    body = {"action": "cancel", "filter": {"queue": "default"}}
    confirm = counted(admin, body)
    clock.advance(minutes=10, seconds=1)
    admin.post(BULK, {**body, "confirm": confirm}, 409)
    clock.advance(minutes=-5)
    assert admin.post(BULK, {**body, "confirm": confirm})["done"] == 3


@pytest.mark.parametrize("wrong", ["", "-", "x", "0", "1-1", "9" * 200, "²-1", f"{NOW}-é", f"{NOW}-{'0' * 64}"])
def test_what_is_no_confirmation_confirms_nothing(app: Treadle, admin: Client, wrong: str) -> None:
    stored(app)
    admin.post(BULK, {"action": "cancel", "filter": {"queue": "default"}, "confirm": wrong}, 409)
    assert app.count()[State.PENDING] == 3


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"filter": {"queue": "q"}}, "action"),
        ({"action": "cancel"}, "filter"),
        ({"action": "drop", "filter": {"queue": "q"}}, "action"),
        ({"action": "cancel", "filter": {}}, "everything"),
        ({"action": "cancel", "filter": {"quue": "q"}}, "filter.quue"),
        ({"action": "cancel", "filter": {"ids": []}}, "filter.ids"),
        ({"action": "cancel", "filter": {"ids": ["x"] * 501}}, "filter.ids"),
        ({"action": "cancel", "filter": {"ids": ["nobody"]}}, "id"),
        ({"action": "cancel", "filter": {"state": "succeeded"}}, "state"),
        ({"action": "cancel", "filter": {"since": "soon"}}, "filter.since"),
        ({"action": "cancel", "filter": {"everything": 1}}, "filter.everything"),
    ],
    ids=str,
)
def test_a_wrong_act_is_refused_by_its_field(admin: Client, body: dict[str, Any], field: str) -> None:
    assert admin.post(BULK, body, 422)["field"] == field
