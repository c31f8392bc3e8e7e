"""The page of queues: which needs somebody and why, what is paused, and pauses, each looked at before it is made."""

import re
from html import unescape
from typing import Any

import pytest

from tests.server import reading
from tests.server.conftest import Client, Login
from tests.support.marks import any_store
from treadle import Treadle
from treadle.engines.values import OVERWRITE
from treadle.model import EventKind
from treadle.model.records import Minute, WorkerInfo
from treadle.model.stats import Counts, hour_of
from treadle.testing import FakeClock

ALL = ("read", "operate")


def page(client: Client, expect: int = 200, **query: Any) -> str:
    return reading.page(client, "/queues", expect, **query)


def post(client: Client, act: str, expect: int = 303, **fields: Any) -> str:
    return str(reading.post(client, f"/queues/{act}", fields, expect).text)


def words(text: str, part: str = "say") -> str:
    """What people read of a part of the page."""
    found = text.split(f'data-live="{part}"')[1].split(">", 1)[1]
    found = found.split("</p>" if part == "say" else "</section>", maxsplit=1)[0]
    return reading.text(found).replace(" .", ".").replace(" ,", ",")


def queues(text: str) -> list[str]:
    return re.findall(r'<tr role="row" data-row id="queue-([^"]+)"', text)


def row(text: str, queue: str) -> str:
    return reading.text(text.split(f'id="queue-{queue}"')[1].split("</tr>", maxsplit=1)[0])


def form(text: str) -> str:
    return unescape(text.split('id="pause"')[1].split("</form>", maxsplit=1)[0])


def minute(app: Treadle, clock: FakeClock, queue: str, *, ago: int = 0, **ends: int) -> None:
    """What a worker has counted in a minute."""
    counts = Counts()
    for kind, number in ends.items():
        for _ in range(number):
            counts.note(kind, 0.2, 0.1)
    at = clock.now().replace(second=0, microsecond=0)
    at = at.fromtimestamp(at.timestamp() - 60 * ago, at.tzinfo)
    record = Minute(hour_of(at), at.minute, f"w1 {queue}", {queue: {"send": counts.data()}})
    app.engine.save(record, before=OVERWRITE)


def worker(app: Treadle, *names: str) -> None:
    now = app.engine.now()
    info = WorkerInfo("loom-1", "box", 1, list(names), None, dict.fromkeys(app.tasks, 1), 4, 1, False, now, now, 1e6)
    app.engine.save(info, before=OVERWRITE)


def busy(app: Treadle, clock: FakeClock) -> None:
    """A queue of each state; their names are in the wrong order."""
    worker(app, "a-well", "b-paused", "c-late", "d-failing")
    for queue in ("b-paused", "c-late"):
        app.enqueue("greet", {"name": "Ada"}, queue=queue)
    clock.advance(minutes=3)
    for queue in ("a-well", "d-failing"):
        app.enqueue("greet", {"name": "Ada"}, queue=queue)
    for ago in range(40):
        minute(app, clock, "a-well", ago=ago, succeeded=5, failed=1)
        minute(app, clock, "d-failing", ago=ago, **({"retrying": 3} if ago < 7 else {"succeeded": 3}))
    app.pause(queue="b-paused", reason="the disk is <full>", actor="grace", until="2h")


def test_what_needs_somebody_is_said_first_and_stands_first(app: Treadle, admin: Client, clock: FakeClock) -> None:
    busy(app, clock)
    text = page(admin)
    assert queues(text) == ["d-failing", "c-late", "b-paused", "a-well"]
    said = words(text)
    began = clock.now().timestamp() - 60 * 6
    since = clock.now().fromtimestamp(began, clock.now().tzinfo).replace(second=0)
    assert said.startswith(f"d-failing has been failing since {since:%H:%M}:00")
    assert "c-late is late: its oldest job waits for 3 min" in said
    assert "b-paused is paused by grace until" in said
    assert "the disk is <full>" in said
    assert said.endswith("The other is on time.")
    assert "<full>" not in text
    assert "a-well loom-1 on time 1 0 ms 0 5" in row(text, "a-well")
    assert "150 jobs done and 30 attempts failed in 30 minutes" in text


def test_without_a_worker_a_queue_is_late_at_once(app: Treadle, admin: Client) -> None:
    worker(app, "default")
    app.enqueue("send", {"to": "Ada"})
    text = page(admin)
    assert words(text) == "mail is late: its oldest job waits for 0 ms, and no live worker serves it."
    assert "no live worker" in row(text, "mail")


def test_all_is_well_in_one_sentence(app: Treadle, admin: Client) -> None:
    worker(app, "default", "mail")
    app.enqueue("greet", {"name": "Ada"})
    assert words(page(admin)) == "The one queue is on time."
    app.enqueue("send", {"to": "Ada"})
    assert words(page(admin)) == "All 2 queues are on time."


def test_an_empty_store_teaches_what_a_queue_and_a_pause_are(admin: Client) -> None:
    text = page(admin)
    assert "A queue is there as soon as a job is on it" in text
    assert "treadle worker --queue mail" in text
    assert "Nothing is paused. A pause lets no job" in text


@any_store
def test_a_pause_says_what_it_means_before_it_is_made(app: Treadle, admin: Client) -> None:
    for place in range(3):
        app.enqueue("send", {"to": "Ada"}, run_after="1h" if place == 0 else None)
    app.enqueue("greet", {"name": "Ada"}, tenant="acme")
    shown = form(page(admin, act="pause", queue="mail", until="1h", reason="a b"))
    assert "Pause queue mail" in shown
    assert "2 due jobs</b> wait behind it" in shown
    assert "1 job are" not in shown
    assert "1 job is due later" in shown
    assert "treadle pause --queue mail --until 1h --reason 'a b'" in shown
    assert "It ends by itself" in shown
    assert "1 job</b> waits behind it" in form(page(admin, act="pause", tenant="acme"))
    assert "3 jobs</b> wait behind it" in form(page(admin, act="pause", task="send"))
    assert "3 due jobs</b> wait behind it" in form(page(admin, act="pause", everything="1"))
    assert "treadle pause --all" in form(page(admin, act="pause", everything="1"))
    assert "Name a queue, a task or a tenant" in form(page(admin, act="pause"))
    assert app.pauses() == []


@any_store
def test_a_pause_is_made_with_its_reason_and_lifted_again(app: Treadle, login: Login) -> None:
    client = login(*ALL, label="ada")
    app.enqueue("send", {"to": "Ada"})
    post(client, "pause", queue="mail", until="2h", reason="the relay is away", task="", tenant="")
    [made] = app.pauses()
    assert (made.queue, made.reason, made.actor) == ("mail", "the relay is away", "token ada")
    text = page(client)
    assert "paused by token ada until" in row(text, "mail")
    assert "queue mail token ada" in words(text, "pauses")
    assert "act=resume&amp;queue=mail" in text
    preview = page(client, act="resume", queue="mail")
    assert "1 due job</b> starts" in preview
    assert "treadle resume --queue mail" in preview
    post(client, "resume", queue="mail", reason="it is back")
    assert app.pauses() == []
    [lifted] = [event for event in app.audit() if event.kind is EventKind.RESUMED]
    assert (lifted.actor, lifted.note) == ("token ada", "queue mail: it is back")


@any_store
@pytest.mark.parametrize(
    "scope", [{"tenant": "acme"}, {"task": "send"}, {"queue": "mail", "tenant": "acme"}, {"everything": "1"}]
)
def test_pauses_of_every_scope_are_made_listed_and_lifted(app: Treadle, admin: Client, scope: dict[str, Any]) -> None:
    post(admin, "pause", **scope, reason="why not")
    [made] = app.pauses()
    text = page(admin)
    assert made.scope in words(text, "pauses")
    link = unescape(re.findall(r'href="(/queues\?act=resume[^"#]*)', text)[0])
    shown = admin.ask("GET", f"/{link}").text
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', shown.split('id="resume"')[1]))
    post(admin, "resume", **hidden)
    assert app.pauses() == []


BAD = [
    ({"queue": "mail", "until": "2020-01-01T00:00Z"}, "until", "2020-01-01 00:00:00 UTC is past"),
    ({"queue": "mail", "until": "tomorrow"}, "until", "'tomorrow' is no time; write 2030-01-31T12:00Z"),
    ({"queue": "mail", "until": "2030-01-01T00:00"}, "until", "has no time zone"),
    ({"everything": "1"}, "reason", "say why: this stops everything"),
    ({"queue": "x" * 300}, "queue", "200 characters"),
]


@pytest.mark.parametrize(("fields", "field", "said"), BAD)
def test_bad_input_is_told_at_its_field_and_what_was_typed_stays(
    app: Treadle, admin: Client, fields: dict[str, str], field: str, said: str
) -> None:
    text = form(post(admin, "pause", 422, **fields))
    [told] = re.findall(rf'<span class="err" id="{field}-err" role="alert">.*?</svg>(.*?)</span>', text)
    assert said in told
    assert not told.startswith(f"{field}:")  # it stands at that field
    for value in fields.values():
        assert f'value="{value}"' in text
    assert app.pauses() == []


def test_a_pause_of_nothing_and_of_more_than_everything_are_refused(app: Treadle, admin: Client) -> None:
    assert "nothing is named" in post(admin, "pause", 422, reason="x")
    assert "Everything: is more than queue" in post(admin, "pause", 422, queue="mail", everything="1", reason="x")
    assert app.pauses() == []


def test_a_form_is_checked_and_nothing_is_done(app: Treadle, admin: Client) -> None:
    text = form(post(admin, "check", 200, queue="mail", until="30m", reason="<x>"))
    assert "Pause queue mail" in text
    assert "treadle pause --queue mail --until 30m --reason '<x>'" in text
    assert "is past" in post(admin, "check", 200, queue="mail", until="2020-01-01T00:00Z")
    assert app.pauses() == []


def test_a_pause_that_is_over_cannot_be_resumed(app: Treadle, admin: Client) -> None:
    assert "This pause is over" in page(admin, act="resume", queue="mail")
    assert "Queue mail is not paused by itself" in post(admin, "resume", 409, queue="mail")


def test_who_may_only_read_sees_commands_and_no_buttons(app: Treadle, login: Login) -> None:
    reader = login("read")
    app.enqueue("send", {"to": "Ada"})
    app.pause(tenant="acme", actor="grace", reason="why")
    queries: list[dict[str, Any]] = [{}, {"act": "pause", "queue": "mail"}, {"act": "resume", "tenant": "acme"}]
    for query in queries:
        text = page(reader, **query).split("<main")[1]
        assert "treadle pause" in text
        assert 'type="submit"' not in text
        assert "Pause…" not in text
        assert "Resume…" not in text
    assert "grace" in text
    for act in ("pause", "resume", "check"):
        post(reader, act, 403, queue="mail")
    assert len(app.pauses()) == 1


def test_a_tenant_sees_and_pauses_only_what_is_its_own(app: Treadle, login: Login, secrets: list[str]) -> None:
    client = login(*ALL, tenant="acme", label="theirs")
    worker(app, "canary", "mail")
    app.enqueue("greet", {"name": "Ada"}, queue="canary", tenant="birch")
    app.enqueue("send", {"to": "Ada"}, tenant="acme")
    app.pause(queue="canary", reason="canary-reason")
    app.pause(tenant="acme", task="greet", reason="unpaid")
    secrets += ["canary", "loom-1"]
    text = page(client)
    assert queues(text) == ["mail"]
    assert "Done, 1 h" in text  # rates are of the whole store
    assert "only operators lift it" in words(text, "pauses")
    post(client, "pause", queue="mail", reason="ours")
    assert [one[:3] for one in app.pauses() if one.reason == "ours"] == [("acme", "mail", "*")]
    text = page(client)
    assert "paused" in row(text, "mail")
    post(client, "resume", tenant="acme", queue="mail")
    post(client, "pause", everything="1", reason="ours")
    assert [one[:3] for one in app.pauses() if one.reason == "ours"] == [("acme", "*", "*")]
    post(client, "resume", 409, tenant="acme", task="greet")


def test_a_token_of_a_queue_sees_and_pauses_only_that(app: Treadle, login: Login, secrets: list[str]) -> None:
    client = login(*ALL, queues=["mail", "slow"], label="bound")
    app.enqueue("greet", {"name": "Ada"}, queue="canary")
    app.enqueue("send", {"to": "Ada"})
    app.pause(queue="canary", reason="canary-reason")
    secrets += ["canary-reason"]
    text = page(client)
    assert queues(text) == ["mail"]
    assert "Everything, instead" not in page(client, act="pause")
    for queue in ("canary", ""):
        assert "your token is bound to them" in post(client, "pause", 422, queue=queue, task="greet")
    post(client, "pause", queue="mail", reason="ours")
    assert "paused" in row(page(client), "mail")
    post(client, "resume", queue="mail")
    app.pause(everything=True, actor="grace")
    assert "only operators lift it" in words(page(client), "pauses")


def test_a_store_of_many_queues_has_a_page_of_a_bounded_size(app: Treadle, admin: Client, clock: FakeClock) -> None:
    worker(app, *(f"q{place}" for place in range(150)))
    for place in range(150):
        app.enqueue("greet", {"name": "Ada"}, queue=f"q{place}")
    for ago in range(30):
        for place in range(0, 150, 2):
            minute(app, clock, f"q{place}", ago=ago, succeeded=ago, failed=1)
    clock.advance(minutes=5)
    app.enqueue("greet", {"name": "Ada"}, queue="q999-late")
    text = page(admin)
    assert len(queues(text)) == 60
    assert "91 more queues are not shown" in text
    assert len(text.encode()) < 150_000
