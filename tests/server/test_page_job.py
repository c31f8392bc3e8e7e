"""The page of a job: what it says, what can be done there, and that an edit is refused or done as the API does it."""

import html
import re
from typing import Any

import pytest
from pydantic import BaseModel, Field, SecretStr

from tests.server import reading
from tests.server.conftest import Client, Login
from tests.server.reading import form_fields
from tests.server.reading import text as words
from treadle import Treadle
from treadle.engines.values import Claim
from treadle.model import Event
from treadle.server.api import Server
from treadle.testing import run_until_idle

XSS = "<script>alert(1)</script>"


class Address(BaseModel):
    street: str = Field(max_length=10)
    country: str = Field("SE", pattern="^[A-Z]{2}$")


class Invoice(BaseModel):
    number: int = Field(ge=1)
    address: Address
    lines: list[str] = []


@pytest.fixture
def bill(app: Treadle) -> str:
    """A job that has failed, of a task with a nested model."""

    @app.task(queue="billing")
    def bill(invoice: Invoice) -> None:
        raise ValueError(f"invoice {invoice.number} has no lines")

    job = app.enqueue("bill", {"number": 7, "address": {"street": "Kungsgatan"}}).id
    app.cancel(job, actor="ada", reason="by mistake")
    return job


def page(client: Client, job: str, expect: int = 200, **query: Any) -> str:
    return reading.page(client, f"/jobs/{job}", expect, **query)


def post(client: Client, path: str, expect: int = 303, **fields: Any) -> Any:
    return reading.post(client, f"/jobs/{path}", fields, expect)


def form_in(text: str) -> dict[str, str]:
    """What a browser would send of the form that is open in a page."""
    return form_fields(text[text.index('id="act"') :])


# ------------------------------------------------------------------------------------------- looking


def test_a_failed_job_says_what_went_wrong_and_what_to_do(app: Treadle, admin: Client) -> None:
    job = app.enqueue("send", {"to": "ada"}, key="mail:ada").id
    run_until_idle(app, queues=["mail"])
    text = page(admin, job)
    assert "ConnectionError: ada does not answer" in words(text)
    assert "Traceback (most recent call last)" in text
    assert "It had one attempt." in text
    assert f"treadle jobs retry {job}" in text
    assert "mail:ada" in text
    assert 'aria-label="Created at' in text
    assert "Cancel: it has ended: there is nothing to cancel" in words(text)
    assert len(re.findall("<h1>", text)) == 1


def test_a_waiting_job_says_why_it_does_not_run_and_how_to_change_that(app: Treadle, admin: Client) -> None:
    job = app.enqueue("greet", {"name": "Ada"}, queue="mail", run_after="1h").id
    app.pause(queue="mail", actor="grace", reason="the relay is down")
    text = words(page(admin, job))
    assert text.index("Queue mail is paused by grace") < text.index("It is due at")
    assert "treadle resume --queue mail" in text
    assert f"treadle jobs run-now {job}" in text
    assert "treadle worker --queue mail" in text


def test_the_first_digits_of_an_id_are_enough(app: Treadle, admin: Client) -> None:
    job = app.enqueue("greet", {"name": "Ada"}).id
    assert job in page(admin, job[:12])
    text = page(admin, "0190aaaa-0000-7000-8000-000000000000", 404)
    assert "there is no job" in text
    assert page(admin, "x" * 300, 422)


def test_jobs_of_others_are_not_there(app: Treadle, login: Login) -> None:
    job = app.enqueue("greet", {"name": "Ada"}, tenant="acme").id
    for bound in (login("operate", tenant="globex"), login("operate", queues=["mail"])):
        assert "Ada" not in page(bound, job, 404)
        for act in ("retry", "edit", "cancel", "run-now", "delete"):
            post(bound, f"{job}/{act}", 404, reason="x", revision=0)
    assert "Ada" in page(login("read", tenant="acme"), job)
    assert page(login("operate", queues=["default"]), job, act="edit")


def test_who_may_only_read_sees_commands_and_no_buttons(app: Treadle, login: Login) -> None:
    job = app.enqueue("greet", {"name": "Ada"}).id
    for query in ({}, {"act": "edit"}, {"act": "delete"}):
        text = page(login("read"), job, **query)
        assert f"treadle jobs cancel {job}" in text
        assert 'id="act"' not in text
        assert "Cancel…" not in text


def test_what_is_typed_by_others_stays_text(app: Treadle, admin: Client) -> None:
    job = app.enqueue("send", {"to": XSS}, key=XSS).id
    run_until_idle(app, queues=["mail"])
    app.retry(job, actor=XSS, reason=XSS)
    run_until_idle(app, queues=["mail"])
    strange = app.enqueue("whatever", {XSS: {f"'\"{XSS}": XSS}}, lane="<b>").id
    app.edit(strange, priority=3, actor=XSS, reason=XSS)
    for one, act in ((job, None), (job, "edit"), (job, "retry"), (strange, None), (strange, "edit")):
        text = page(admin, one, **({"act": act} if act else {}))
        assert "<script>alert" not in text
        assert html.escape(XSS) in text


@pytest.mark.parametrize("act", [None, "edit", "retry"])
def test_huge_and_deep_payloads_make_a_small_page(app: Treadle, admin: Client, act: str | None) -> None:
    deep: Any = "the end"
    for level in range(100):
        deep = {"down": deep} if level % 2 else [deep, level]
    wide = {f"key {n}": {"n": n, "text": "&<>" * 300} for n in range(900)}
    for payload in (deep, wide, ["x"] * 100_000, {"t": '"&' * 300_000}, [[]] * 5000, {"&" * 9000: 1}):
        job = app.enqueue("whatever", payload).id
        text = page(admin, job, **({"act": act} if act else {}))
        assert len(text.encode()) < 150_000
        assert "not all of it" in text or len(str(payload)) < 10_000
        assert f"treadle jobs show {job}" in text


def test_a_long_story_makes_a_small_page(app: Treadle, admin: Client) -> None:
    job = app.enqueue("send", {"to": "x" * 900}).id
    for _ in range(90):
        run_until_idle(app, queues=["mail"])
        app.retry(job, actor="ada", reason="again " * 50)
    text = page(admin, job)
    assert len(text.encode()) < 150_000
    assert "65 earlier attempts" in text
    assert "82 earlier attempts. " in text  # of the timeline, in words
    assert "These are the newest 60; earlier events are not shown here." in text


def test_the_page_reads_no_more_events_than_it_shows(
    app: Treadle, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = app.enqueue("send", {"to": "ada"}).id
    for _ in range(40):
        run_until_idle(app, queues=["mail"])
        app.retry(job, actor="ada")
    asked: list[int | None] = []
    events = app.engine.events

    def counted(job_id: str, *, latest: int | None = None) -> list[Event]:
        asked.append(latest)
        return events(job_id, latest=latest)

    monkeypatch.setattr(app.engine, "events", counted)
    page(admin, job)
    assert asked == [61]
    answer = admin.get(f"/jobs/{job}", events=10)
    whole = admin.get(f"/jobs/{job}")
    assert answer["events"] == whole["events"][-10:]
    assert (len(whole["events"]), answer["attempts"]) == (80, whole["attempts"][-len(answer["attempts"]) :])
    assert [one["number"] for one in answer["attempts"]] == [
        37,
        38,
        39,
        40,
    ]  # that 36 failed is the first event: of its beginning nothing is read
    admin.get(f"/jobs/{job}", 422, events=0)


def test_the_links_of_the_page_lead_somewhere(app: Treadle, admin: Client) -> None:
    app.schedules.create("mails / daily", "send", {"to": "ada"}, every="1h", tenant="acme")
    job = app.schedules.run("mails / daily", tenant="acme").id
    run_until_idle(app, queues=["mail"])
    text = page(admin, job)
    links = {html.unescape(link) for link in re.findall(r'<a [^>]*href="(/[^"]*)"', text[text.index('id="why"') :])}
    assert [link for link in links if link.startswith("/schedules/")]
    assert len(links) > 8
    for link in links:
        assert admin.ask("GET", f"/{link}").status_code == 200, link
    app.schedules.delete("mails / daily", tenant="acme")
    assert "mails / daily deleted" in words(page(admin, job))


# -------------------------------------------------------------------------------------------- acting


def test_acts_are_previewed_and_then_done(app: Treadle, admin: Client) -> None:
    job = app.enqueue("greet", {"name": "Ada"}, run_after="1h").id
    assert "It is due at once" in page(admin, job, act="run-now")
    assert (
        post(admin, f"{job}/run-now", **form_in(page(admin, job, act="run-now"))).headers["location"] == f"/jobs/{job}"
    )
    post(admin, f"{job}/cancel", **{**form_in(page(admin, job, act="cancel")), "reason": "not wanted"})
    assert app.events(job)[-1].note == "not wanted"
    post(admin, f"{job}/retry", **{**form_in(page(admin, job, act="retry")), "attempts": "one"})
    assert app.get(job).state == "pending"
    assert app.get(job).failures == app.get(job).max_attempts - 1
    text = page(admin, job, act="retry")
    assert "This cannot be done now: it waits to be run." in words(text)
    assert "<form" not in text[text.index('id="act"') : text.index('id="why"')]


def test_a_running_job_is_asked_to_stop(app: Treadle, admin: Client) -> None:
    job = app.enqueue("greet", {"name": "Ada"}).id
    app.engine.turn([], Claim("token", "loom-1", 1, 60.0))
    assert "asks it to stop" in words(page(admin, job, act="cancel"))
    post(admin, f"{job}/cancel", **form_in(page(admin, job, act="cancel")))
    text = words(page(admin, job))
    assert "it was asked to stop" in text
    assert "Cancel: it was asked to stop already" in text
    assert "is running; cancel it" in post(admin, f"{job}/delete", 409, reason="x").text


def test_a_delete_demands_a_reason_and_leaves_a_page_that_tells_it(app: Treadle, admin: Client, login: Login) -> None:
    job = app.enqueue("greet", {"name": "Ada"}).id
    refused = post(admin, f"{job}/delete", 422, revision=app.get(job).revision)
    assert "say why" in refused.text
    assert 'aria-invalid="true"' in refused.text
    assert post(admin, f"{job}/delete", reason="a test").headers["location"] == f"/jobs/{job}"
    text = words(page(admin, job))
    assert "This job was deleted" in text
    assert "a test" in text
    assert page(login("read", tenant="acme"), job, 404)
    assert page(login("read", queues=["default"]), job, 404)


def test_an_act_on_a_job_that_was_changed_meanwhile_says_who_changed_it(app: Treadle, admin: Client) -> None:
    job = app.enqueue("greet", {"name": "Ada"}).id
    form = {**form_in(page(admin, job, act="edit")), "p/name": "Grace", "reason": "a <typo>"}
    app.edit(job, priority=5, actor="bob", reason="urgent")
    text = post(admin, f"{job}/edit", 409, **form).text
    assert "Somebody has changed this job meanwhile" in text
    assert "bob changed" in words(text)
    assert "priority 0 to 5: urgent" in words(text)
    assert form_in(text)["p/name"] == "Grace"
    assert form_in(text)["reason"] == "a <typo>"
    assert "Load it anew" in text
    assert app.get(job).payload == {"name": "Ada"}
    assert "Somebody has changed" in post(admin, f"{job}/edit", 409, **form_in(text)).text
    post(admin, f"{job}/edit", **form_in(text), over=str(app.get(job).revision))
    assert (app.get(job).payload, app.get(job).priority) == ({"name": "Grace"}, 0)


# ------------------------------------------------------------------------------------------- editing


def test_a_form_of_the_tasks_schema_edits_and_retries(app: Treadle, admin: Client, bill: str) -> None:
    form = form_in(page(admin, bill, act="edit"))
    assert form["p/number"] == "7"
    assert form["p/address/street"] == "Kungsgatan"
    typed = {"p/number": "0", "p/address/street": "Kungsgatan 1 b", "p/address/country": "se", "p/lines": "[3]"}
    answer = post(admin, f"{bill}/edit", 422, **{**form, **typed, "reason": "fixed"})
    again = form_in(answer.text)
    assert {name: again[name] for name in typed} == typed
    assert again["reason"] == "fixed"
    for name, problem in (
        ("p/number", "greater than or equal to 1"), ("p/address/street", "at most 10 characters"),
        ("p/address/country", "should match pattern"), ("p/lines", "0: Input should be a valid string"),
    ):  # fmt: skip
        field = re.search(rf'id="(f\d+)" name="{re.escape(name)}"[^>]*aria-invalid="true"', answer.text)
        assert field, name
        error = re.search(rf'id="{field[1]}-err" role="alert">(.*?)</p>', answer.text)
        assert error, name
        assert problem in words(error[1])
    assert app.get(bill).state == "cancelled"
    good = {"p/number": "8", "p/address/street": "Storgatan", "p/address/country": "DE", "p/lines": '["x"]'}
    post(admin, f"{bill}/edit", **{**again, **good})
    job = app.get(bill)
    assert (job.state, job.payload) == (
        "pending", {"number": 8, "address": {"street": "Storgatan", "country": "DE"}, "lines": ["x"]},
    )  # fmt: skip
    assert app.events(bill)[-1].note == "payload edited: fixed"


def test_json_that_cannot_be_read_is_said_at_its_field(admin: Client, app: Treadle, bill: str) -> None:
    form = {**form_in(page(admin, bill, act="edit")), "p/lines": '["one",'}
    text = post(admin, f"{bill}/edit", 422, **form).text
    assert "is not valid JSON" in text
    assert form_in(text)["p/lines"] == '["one",'
    assert app.get(bill).state == "cancelled"


def test_an_unchanged_form_retries_with_the_payload_that_is_there(app: Treadle, admin: Client, bill: str) -> None:
    before = app.get(bill).payload_json
    post(admin, f"{bill}/edit", **form_in(page(admin, bill, act="edit")))
    assert (app.get(bill).payload_json, app.get(bill).state) == (before, "pending")
    assert app.events(bill)[-1].note == ""


def test_where_a_waiting_job_waits_can_be_changed(app: Treadle, admin: Client) -> None:
    job = app.enqueue("greet", {"name": "Ada"}, lane="slow").id
    form = form_in(page(admin, job, act="edit"))
    text = post(admin, f"{job}/edit", 422, **{**form, "run_after": "soon"}).text
    assert re.search('name="run_after"[^>]*aria-invalid="true"', text)
    assert form_in(text)["run_after"] == "soon"
    assert "nothing is named" in words(post(admin, f"{job}/edit", 422, **form).text)
    post(admin, f"{job}/edit", **{**form, "queue": "mail", "lane": "", "priority": "4", "run_after": "1h"})
    changed = app.get(job)
    assert (changed.queue, changed.lane, changed.priority, changed.payload) == ("mail", "", 4, {"name": "Ada"})
    assert changed.due_at > changed.created_at
    form = form_in(page(admin, job, act="edit"))
    assert "is not a whole number" in post(admin, f"{job}/edit", 422, **{**form, "priority": "high"}).text


def test_a_secret_stays_where_it_is_left_and_is_shown_nowhere(app: Treadle, admin: Client, secrets: list[str]) -> None:
    class Login(BaseModel):
        user: str
        password: SecretStr

    @app.task
    def log_in(login: Login) -> None:
        raise ValueError("no")

    @app.task(secret=["card.number"])
    def charge(card: dict[str, str], cents: int) -> None:
        raise ValueError("no")

    secrets += ["canary-1", "canary-2", "canary-3"]
    job = app.enqueue("log_in", {"user": "ada", "password": "canary-1"}).id
    card = app.enqueue("charge", {"card": {"number": "canary-2"}, "cents": 5}).id
    form = form_in(page(admin, job, act="edit"))
    assert form["p/password"] == ""
    post(admin, f"{job}/edit", **{**form, "p/user": "grace"})
    assert app.get(job).payload == {"user": "grace", "password": "canary-1"}
    form = form_in(page(admin, card, act="edit"))
    post(admin, f"{card}/edit", **{**form, "p/cents": "6"})
    assert app.get(card).payload == {"card": {"number": "canary-2"}, "cents": 6}
    form = form_in(page(admin, card, act="edit"))
    moved = '{"number": "***", "other": "***"}'
    assert "give the value itself" in post(admin, f"{card}/edit", 422, **{**form, "p/card": moved}).text
    form = form_in(page(admin, job, act="edit"))
    text = post(admin, f"{job}/edit", 422, **{**form, "p/password": "canary-3", "priority": "x"}).text
    assert form_in(text)["p/password"] == ""
    post(admin, f"{job}/edit", **{**form, "p/password": "canary-3"})
    assert app.get(job).payload["password"] == "canary-3"


def test_a_server_without_an_app_takes_json(make_app: Any, app: Treadle, admin: Client, server: Server) -> None:
    job = app.enqueue("send", {"to": "ada"}).id
    server.serve_app(make_app(unknown_payloads="show"))
    text = page(admin, job, act="edit")
    assert "the worker that runs it checks the payload" in text
    form = form_in(text)
    assert "is not valid JSON" in post(admin, f"{job}/edit", 422, **{**form, "p": "{"}).text
    post(admin, f"{job}/edit", **{**form, "p": '{"to": "bob"}'})
    assert app.get(job).payload == {"to": "bob"}


def test_a_task_that_the_server_does_not_know_cannot_be_given_another_payload(app: Treadle, admin: Client) -> None:
    job = app.enqueue("elsewhere", {"a": 1}, checked=False).id
    text = words(page(admin, job, act="edit"))
    assert "the server's app has no task elsewhere" in text
    post(admin, f"{job}/edit", **{**form_in(page(admin, job, act="edit")), "priority": "2"})
    assert app.get(job).priority == 2
    app.cancel(job)
    assert "Edit and retry: the server's app has no task elsewhere" in words(page(admin, job))


def test_an_edit_without_a_revision_is_refused(app: Treadle, admin: Client) -> None:
    job = app.enqueue("greet", {"name": "Ada"}).id
    assert "load the page again" in post(admin, f"{job}/edit", 422, **{"p/name": "Grace"}).text
    assert app.get(job).payload == {"name": "Ada"}


def test_the_api_says_which_part_of_a_payload_is_wrong(admin: Client, bill: str) -> None:
    body = {"payload": {"number": 0, "address": {"street": 3}}}
    answer = admin.post(f"/jobs/{bill}/retry", body, 422)
    assert [one["field"] for one in answer["problems"]] == ["payload.number", "payload.address.street"]
    assert answer["problems"][0]["problem"] == "Input should be greater than or equal to 1"
    new = admin.post("/jobs", {"task": "bill", **body}, 422)
    assert new["problems"] == answer["problems"]


def test_the_api_tells_of_one_task(admin: Client) -> None:
    [task] = admin.get("/tasks", name="greet")["tasks"]
    assert task["payload_schema"]["required"] == ["name"]
    assert admin.get("/tasks", name="nosuch")["tasks"] == []
