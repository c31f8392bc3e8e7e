"""The page of jobs: what people type to find them, what a list shows, and acts on many after a look at them."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.server import reading
from tests.server.conftest import Client, Login, with_tasks
from tests.support.marks import any_store
from treadle import State, Treadle
from treadle.app.profile import Profile
from treadle.server.dashboard import search
from treadle.testing import FakeClock, run_until_idle


def page(client: Client, expect: int = 200, **query: Any) -> str:
    return reading.page(client, "/jobs", expect, **query)


def post(client: Client, fields: Any, expect: int = 200) -> Any:
    return reading.post(client, "/jobs/bulk", fields, expect)


def lead(client: Client, **query: Any) -> str:
    answer = client.ask("GET", "//jobs", params=query)
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


def fields(text: str) -> dict[str, str]:
    """What the preview on this page would send."""
    form = text.split('id="plan"')[1].split("</form>", maxsplit=1)[0]
    found = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form))
    [action] = re.findall(r'name="action" value="(\w+)"', form)
    return {**found, "action": action}


def rows(text: str) -> list[str]:
    return re.findall(r'<tr role="row" data-row id="job-([0-9a-f-]+)"', text)


def failed(app: Treadle, number: int = 3) -> list[str]:
    ids = [app.enqueue("send", {"to": f"user{place}"}).id for place in range(number)]
    run_until_idle(app, queues=["mail"])
    return ids


def test_a_list_says_what_each_job_is_and_how_it_does(app: Treadle, admin: Client) -> None:
    app.tasks["greet"].using(tenant="acme", lane="vip", key="ada:1", run_after="2h").enqueue("Ada")
    [broken] = failed(app, 1)
    text = page(admin)
    for words in ("greet", "name: Ada", "scheduled", "tenant acme · lane vip · key ada:1", "in 2 h"):
        assert words in text
    for words in ("to: user0", "exhausted", "1 of 1", "ConnectionError", "user0 does not answer", f"…{broken[-6:]}"):
        assert words in text
    assert f'href="/jobs/{broken}"' in text
    assert ">All <span>2</span>" in text
    assert ">Failed <span>1</span>" in text
    assert rows(page(admin, state="failed")) == [broken]
    assert "treadle jobs list --state failed" in page(admin, state="failed")


def test_what_is_in_a_job_is_escaped_and_what_is_secret_is_masked(app: Treadle, admin: Client) -> None:
    @app.task(secret=["card"])
    def pay(card: str, note: str) -> None: ...

    app.enqueue("pay", {"card": "4111 1111", "note": "<script>alert(1)</script>"})
    text = page(admin)
    assert "card: ***" in text
    assert "4111" not in text
    assert "<script>alert" not in text


def test_pages_lead_to_older_and_back_to_newer_jobs(app: Treadle, admin: Client) -> None:
    made = [receipt.job.id for receipt in app.tasks["greet"].enqueue_many([(f"n{i}",) for i in range(120)])]
    seen, address, back = [], "//jobs?task=greet", []
    while address:
        text = admin.ask("GET", address).text
        assert len(text) < 150_000
        seen += rows(text)
        back.append(rows(text))
        older = re.search(r'<a href="([^"]+)" rel="next">', text)
        address = f"/{older[1].replace('&amp;', '&')}" if older else ""
    assert sorted(seen) == sorted(made)
    for before in (back[1], back[0]):
        newer = re.search(r'<a href="([^"]+)" rel="prev">', text)
        assert newer is not None
        text = admin.ask("GET", f"/{newer[1].replace('&amp;', '&')}").text
        assert rows(text) == before
    assert 'rel="prev"' not in text


def test_a_store_without_jobs_teaches_how_the_first_is_made(app: Treadle, admin: Client, login: Login) -> None:
    text = page(admin)
    assert "No jobs yet" in text
    assert "No worker is alive" in text
    assert "No worker is alive" not in page(login("read", tenant="acme"))


def test_where_nothing_fits_it_is_said_which_filter_to_drop(app: Treadle, admin: Client) -> None:
    app.enqueue("greet", {"name": "Ada"})
    text = page(admin, task="greet", queue="mail")
    assert "There are no jobs of task greet of queue mail." in text
    assert '<a class="b" href="/jobs?task=greet">Without queue:mail</a>' in text
    assert "Without task:greet" not in text


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"state": "faild"}, "&#39;faild&#39; must be one of"),
        ({"since": "yesterday"}, "&#39;yesterday&#39; is no time; write"),
        ({"fingerprint": "x"}, "must be 12 hex digits"),
        ({"cursor": "nonsense"}, "is not a valid cursor"),
        ({"queue": "x" * 300}, "at most 200 characters"),
    ],
    ids=str,
)
def test_a_filter_that_is_refused_is_said_and_can_be_dropped(admin: Client, query: dict[str, str], words: str) -> None:
    text = page(admin, 422, task="greet", **query)
    assert words in text
    assert 'aria-label="Remove task:greet"' in text


def test_an_app_with_words_of_its_own_sees_them_and_links_with_ours_lead_there(
    make_app: Callable[..., Treadle], http: TestClient
) -> None:
    app = with_tasks(make_app(profile=Profile(states={"failed": "broken", "pending": "queued"})))
    http.app.serve_app(app)
    [id_] = failed(app, 1)
    client = Client(http, app.tokens.create("reader", scopes=["read"]).secret)
    text = page(client, state="failed")
    assert rows(text) == [id_]
    assert ">Broken <span>1</span>" in text
    assert 'aria-label="Remove state:broken"' in text
    assert lead(client, q="broken") == "/jobs?state=broken"


# -------------------------------------------------------------------------------------------- searching


@pytest.mark.parametrize(
    ("text", "filters"),
    [
        ("queue:mail state:failed", {"queue": "mail", "state": "failed"}),
        ("key:order:7", {"key": "order:7"}),
        ('lane:"" since:1h', {"lane": "", "since": "1h"}),
        ("after:1h until:5m type:send", {"since": "1h", "before": "5m", "task": "send"}),
        ("QUEUE:mail", {"queue": "mail"}),
        ("failed", {"state": "failed"}),
        ("failed send", {"state": "failed", "task": "send"}),
        ("Ada Lovelace", {"text": "Ada Lovelace"}),
        ('"sync:1"', {"text": "sync:1"}),
        (r'text:"say \"hi\"" queue:a', {"text": 'say "hi"', "queue": "a"}),
        ("queue:mail 12345", {"queue": "mail", "text": "12345"}),
        ("   ", {}),
        ("xyz", {"text": "xyz"}),
        ("abc", {"text": "abc"}),
    ],
)
def test_words_are_filters_states_tasks_or_text(text: str, filters: dict[str, str]) -> None:
    assert search.read(text, states=["failed"], tasks=["send"]) == search.Reading(filters)


@pytest.mark.parametrize("text", ["0199", "0199e0c5-6f3b", " 0199e0c5-6f3b-7d41-9c1e-2b7f5f0a8c11 "])
def test_the_digits_of_an_id_mean_a_job(text: str) -> None:
    assert search.read(text) == search.Reading(job=text.strip())


@pytest.mark.parametrize(
    ("text", "field", "words", "instead"),
    [
        ("quue:mail", "quue", "did you mean queue:?", ("queue:mail", "text:quue:mail")),
        ("https://x", "https", "is no filter", ("text:https://x",)),
        ("queue:", "queue", "has no value", ()),
        ("queue: mail", "queue", "queue:mail", ()),
        ('text:""', "text", "has no value", ()),
        ("queue:a queue:b", "queue", "is there twice", ()),
        ("text:a b", "text", "text:b", ()),
        ('text:"open', "q", "close it", ()),
    ],
)
def test_words_that_mean_nothing_say_what_to_write(text: str, field: str, words: str, instead: tuple[str, ...]) -> None:
    with pytest.raises(search.Misread) as caught:
        search.read(text)
    assert caught.value.field == field
    assert words in str(caught.value)
    assert caught.value.instead == instead


@pytest.mark.parametrize("value", ["mail", "two words", 'a "quote"', "back\\slash", "", "a:b", "'"])
def test_a_filter_that_is_written_is_read_again(value: str) -> None:
    assert search.read(search.written("lane", value)) == search.Reading({"lane": value})


def test_what_is_typed_leads_to_an_address_that_can_be_shared(app: Treadle, admin: Client) -> None:
    assert lead(admin, q="state:failed send") == "/jobs?state=failed&task=send"
    assert lead(admin, q="lane:vip", queue="mail", state="failed") == "/jobs?state=failed&queue=mail&lane=vip"
    assert lead(admin, q="queue:default", queue="mail") == "/jobs?queue=default"
    assert lead(admin, q='lane:""') == "/jobs?lane="
    assert 'aria-label="Remove lane:&#34;&#34;"' in page(admin, lane="")


def test_an_id_leads_to_its_job_and_one_that_is_not_there_says_so(app: Treadle, admin: Client) -> None:
    id_ = app.enqueue("greet", {"name": "Ada"}).id
    for typed in (id_, id_.upper(), id_[:13]):
        assert lead(admin, q=typed) == f"/jobs/{id_}"
    text = page(admin, 404, q="ffff0000")
    assert "there is no job ffff0000" in text
    assert 'href="/jobs?q=text%3Affff0000"' in text


def test_words_that_mean_nothing_are_shown_again_with_those_that_are_meant(admin: Client) -> None:
    text = page(admin, 422, q="quue:<b>", state="failed")
    assert "quue: is no filter; did you mean queue:?" in text
    assert 'value="quue:&lt;b&gt;"' in text
    assert 'href="/jobs?state=failed&amp;q=queue%3A%3Cb%3E"' in text


# -------------------------------------------------------------------------------------------- acts on many


@any_store
def test_all_that_match_are_looked_at_first_and_then_retried(app: Treadle, admin: Client) -> None:
    failed(app)
    text = page(admin, state="failed", queue="mail", act="retry")
    assert "Retry 3 jobs?" in text
    assert "treadle jobs retry --state failed --queue mail --expect 3" in text
    assert app.count()[State.FAILED] == 3
    answer = post(admin, {**fields(text), "reason": "the relay is back"}, 303)
    assert answer.headers["location"].startswith("/jobs?state=failed&queue=mail&did=retry&n=3&sure=")
    assert app.count()[State.PENDING] == 3
    assert {event.note for event in app.audit(kind="retried")} == {"the relay is back"}
    assert "3 jobs wait to be run again" in admin.ask("GET", f"/{answer.headers['location']}").text


def test_a_kind_of_failure_is_retried_by_its_link(app: Treadle, admin: Client) -> None:
    failed(app)
    app.enqueue("give_up", {"why": "no"})
    run_until_idle(app)
    kinds = {group["type"].rpartition(".")[2]: group["fingerprint"] for group in admin.get("/failures")["failures"]}
    text = page(admin, state="failed", fingerprint=kinds["GiveUp"], act="retry")
    assert "Retry 1 job?" in text
    post(admin, fields(text), 303)
    assert [job.task for job in app.find(state="pending").jobs] == ["give_up"]


def test_the_preview_comes_again_if_the_number_has_changed(app: Treadle, admin: Client) -> None:
    failed(app)
    seen = fields(page(admin, state="failed", act="retry"))
    failed(app, 1)
    text = post(admin, {**seen, "reason": "again"}, 409).text
    assert "The number has changed: 4 fit now, not 3" in text
    assert "Retry 4 jobs?" in text
    assert 'value="again"' in text
    assert app.count()[State.FAILED] == 4
    post(admin, fields(text), 303)
    assert app.count()[State.PENDING] == 4


def test_a_preview_is_good_for_ten_minutes(app: Treadle, admin: Client, clock: FakeClock) -> None:
    failed(app)
    seen = fields(page(admin, state="failed", act="retry"))
    clock.advance(minutes=11)
    text = post(admin, seen, 409).text
    assert "older than 10 minutes" in text
    assert "Retry 3 jobs?" in text
    assert app.count()[State.FAILED] == 3


@any_store
def test_selected_rows_are_meant_by_their_ids(app: Treadle, admin: Client) -> None:
    ids = [app.enqueue("greet", {"name": f"n{place}"}).id for place in range(3)]
    app.cancel(ids[2])
    text = post(admin, {"of": "rows", "action": "cancel", "id": ids[1:], "state": "pending"}).text
    assert "Cancel 1 job?" in text
    assert "already ended" in text
    assert app.get(ids[1]).state is State.PENDING
    text = post(admin, {**fields(text), "id": ids[1:]}).text
    assert "1 job is cancelled" in text
    assert "1 job was refused" in text
    assert [app.get(id_).state for id_ in ids] == [State.PENDING, State.CANCELLED, State.CANCELLED]


def test_without_a_script_the_box_of_the_page_means_its_rows(app: Treadle, admin: Client) -> None:
    for place in range(3):
        app.enqueue("greet", {"name": f"n{place}"})
    app.enqueue("whatever", 1)
    text = post(admin, {"of": "rows", "action": "delete", "page": "1", "task": "greet"}).text
    assert "Delete 3 jobs?" in text
    assert "none is selected" in post(admin, {"of": "rows", "action": "delete", "task": "greet"}, 422).text


def test_a_delete_demands_a_reason(app: Treadle, admin: Client) -> None:
    failed(app)
    seen = fields(page(admin, state="failed", act="delete"))
    text = post(admin, {**seen, "reason": "  "}, 422).text
    assert "Say why" in text
    assert app.count()[State.FAILED] == 3
    post(admin, {**fields(text), "reason": "test data"}, 303)
    assert app.find().jobs == []
    assert {event.note for event in app.audit(kind="deleted")} == {"task send: test data"}


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ({}, 422, "nothing is named"),
        ({"text": "ada"}, 422, "no act goes by a text"),
        ({"state": "succeeded"}, 422, "cannot be retried"),
        ({"queue": "nowhere"}, 200, "Nothing to retry"),
    ],
    ids=str,
)
def test_an_act_that_cannot_be_says_why(
    app: Treadle, admin: Client, query: dict[str, str], status: int, words: str
) -> None:
    failed(app)
    text = page(admin, status, act="retry", **query)
    assert words in text
    assert ">Retry 3" not in text


def test_a_retry_says_that_a_pause_will_hold_the_jobs(app: Treadle, admin: Client) -> None:
    failed(app)
    app.pause(queue="mail")
    assert "they will wait: queue mail is paused" in page(admin, state="failed", queue="mail", act="retry")
    assert "is paused" not in page(admin, state="failed", queue="default", act="retry")


def test_who_may_only_read_sees_the_commands_and_no_buttons(app: Treadle, login: Login) -> None:
    failed(app)
    text = page(login("read"), state="failed", act="retry")
    assert "treadle jobs retry --state failed" in text
    assert 'id="plan"' not in text
    assert 'type="checkbox"' not in text
    assert "<button" not in text.split("<main")[1].split("</main>")[0].replace('<button class="b tiny"', "")


def test_a_token_of_queues_or_of_a_tenant_sees_and_touches_its_own_only(app: Treadle, login: Login) -> None:
    own = app.tasks["greet"].using(queue="a").enqueue("x").id
    other = app.tasks["greet"].using(queue="b").enqueue("x").id
    foreign = app.tasks["greet"].using(queue="c", tenant="acme").enqueue("x").id
    bound = login("read", "operate", queues=["a"])
    assert rows(page(bound)) == [own]
    assert rows(page(bound, 422, queue="b")) == []
    assert rows(page(login("read", tenant="acme"))) == [foreign]
    both = login("read", "operate", queues=["a", "b"])
    assert rows(page(both)) == [own]
    assert '<a href="/jobs?queue=b">b</a>' in page(both)
    assert rows(page(both, queue="b")) == [other]
    answer = post(bound, {"of": "rows", "action": "delete", "id": [own, other]}, 404)
    assert "there is no job" in answer.text
    text = page(bound, task="greet", act="delete")
    assert "Delete 1 job?" in text
    post(bound, {**fields(text), "reason": "mine"}, 303)
    assert sorted(job.id for job in app.find().jobs) == sorted([other, foreign])
