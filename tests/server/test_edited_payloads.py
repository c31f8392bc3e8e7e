"""Edit and retry: another payload for a job that ended or waits, checked, compared and set, and noted."""

import pytest

from tests.server.conftest import Client, Login
from tests.support.marks import any_store
from treadle import Treadle
from treadle.server.api import Server
from treadle.testing import run_until_idle


@pytest.fixture
def failed(app: Treadle) -> str:
    job = app.enqueue("give_up", {"why": "typo"}).id
    run_until_idle(app)
    return job


@any_store
def test_a_failed_job_is_retried_with_another_payload(app: Treadle, admin: Client, failed: str) -> None:
    seen = admin.get(f"/jobs/{failed}")["job"]
    body = {"payload": {"why": "still no"}, "revision": seen["revision"], "reason": "fixed by hand"}
    retried = admin.post(f"/jobs/{failed}/retry", body)["job"]
    assert (retried["state"], retried["payload"], retried["id"]) == ("pending", {"why": "still no"}, failed)
    run_until_idle(app)
    shown = admin.get(f"/jobs/{failed}")
    assert shown["job"]["error"]["message"] == "still no"
    [event] = [one for one in shown["events"] if one["kind"] == "retried"]
    assert event["note"] == "payload edited: fixed by hand"  # and nothing of what is in it
    stale = admin.post(f"/jobs/{failed}/retry", body, 409)
    assert "has changed since" in stale["detail"]
    assert "look at it again" in stale["detail"]
    assert admin.get(f"/jobs/{failed}")["job"] == shown["job"]


@any_store
def test_a_waiting_job_is_given_another_payload(app: Treadle, admin: Client) -> None:
    job = app.enqueue("greet", {"name": "Ada"}).id
    before = app.get(job).revision
    edited = admin.patch(f"/jobs/{job}", {"payload": {"name": "Grace"}, "priority": 3})["job"]
    assert (edited["payload"], edited["priority"]) == ({"name": "Grace"}, 3)
    assert app.events(job)[-1].note == "priority 0 to 3, payload edited"
    admin.patch(f"/jobs/{job}", {"payload": {"name": "Bob"}, "revision": before}, 409)
    assert "so already" in admin.patch(f"/jobs/{job}", {"payload": {"name": "Grace"}}, 409)["detail"]
    run_until_idle(app)
    assert app.get(job).result == "hello Grace"
    late = admin.patch(f"/jobs/{job}", {"payload": {"name": "Bob"}}, 409)["detail"]
    assert "is succeeded" in late


def test_a_payload_that_does_not_fit_its_task_is_refused_by_its_names(app: Treadle, admin: Client, failed: str) -> None:
    waiting = app.enqueue("greet", {"name": "Ada"}).id
    before = app.get(failed), app.get(waiting)
    for payload, name in (({"why": 3}, "why: "), ({}, "why: "), ({"why": "x", "age": 3}, "age: "), ([], "payload: ")):
        answer = admin.post(f"/jobs/{failed}/retry", {"payload": payload}, 422)
        assert (answer["error"], answer["field"]) == ("InvalidPayload", "payload")
        assert name in answer["detail"]
    assert "name: " in admin.patch(f"/jobs/{waiting}", {"payload": {"name": []}}, 422)["detail"]
    assert "leave it out" in admin.patch(f"/jobs/{waiting}", {"payload": None}, 422)["detail"]
    assert (app.get(failed), app.get(waiting)) == before


def test_an_app_without_tasks_takes_any_payload_and_one_with_others_none(
    make_app, app: Treadle, admin: Client, server: Server, failed: str
) -> None:
    elsewhere = app.enqueue("elsewhere", {"a": 1}, checked=False).id
    assert "no task 'elsewhere'" in admin.patch(f"/jobs/{elsewhere}", {"payload": {"a": 2}}, 422)["detail"]
    server.serve_app(make_app(unknown_payloads="show"))
    assert admin.patch(f"/jobs/{elsewhere}", {"payload": [2]})["job"]["payload"] == [2]
    assert admin.post(f"/jobs/{failed}/retry", {"payload": {"x": "y"}})["job"]["payload"] == {"x": "y"}
    answer = admin.patch(f"/jobs/{elsewhere}", {"payload": "a\x00b"}, 422)
    assert (answer["field"], "NUL" in answer["detail"]) == ("payload", True)


def test_a_bound_token_edits_no_payload_of_others(app: Treadle, login: Login, failed: str) -> None:
    for bound in (login("operate", tenant="acme"), login("operate", queues=["mail"])):
        bound.post(f"/jobs/{failed}/retry", {"payload": {"why": "mine"}}, 404)
    assert app.get(failed).payload == {"why": "typo"}


def test_an_edited_payload_is_of_the_version_that_checked_it(make_app) -> None:
    app = make_app()
    old = app.enqueue("mail", {"to": "ada"}, checked=False)
    app.register("mail", lambda to: to, version=4)
    acme = app.tenant("default")
    assert acme.edit(old, payload={"to": "bob"}).task_version == 4
