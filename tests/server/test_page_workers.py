"""The page of workers: who is alive, what each runs, what became of those that fell silent, and a drain."""

import re
from datetime import timedelta
from html import unescape
from typing import Any

from tests.server import reading
from tests.server.conftest import Client, Login
from tests.server.reading import FORM
from tests.support.marks import any_store
from treadle import Treadle
from treadle.engines.values import OVERWRITE, Claim
from treadle.model import new_id
from treadle.model.records import MEMORY, VERSION, WorkerInfo
from treadle.testing import FakeClock


def page(client: Client, expect: int = 200, **query: Any) -> str:
    return reading.page(client, "/workers", expect, **query)


def drain(client: Client, expect: int = 303, **fields: str) -> str:
    return str(reading.post(client, "/workers/drain", fields, expect).text)


def plain(text: str) -> str:
    return reading.text(text).replace(" .", ".").replace(" ,", ",")


def said(text: str) -> str:
    return plain(text.split('data-live="say">')[1].split("</p>", maxsplit=1)[0])


def row(text: str, name: str) -> str:
    return plain(text.split(f'id="worker-{name}"')[1].split("</tr>", maxsplit=1)[0].split(">", 1)[1])


def names(text: str) -> list[str]:
    return re.findall(r'data-row id="worker-([^"]+)"', text)


def worker(app: Treadle, name: str, *, version: str | None = "1.2.0", **fields: Any) -> WorkerInfo:
    now = app.engine.now()
    told = {} if version is None else {f"{VERSION}{version}": 1, MEMORY: 214 * 1024**2}
    given = {
        "name": name, "host": "box", "pid": 7, "queues": ["default", "mail"], "lanes": None,
        "tasks": {"greet": 1, "send": 1, **told}, "concurrency": 4, "running": 0, "stopping": False,
        "started_at": now - timedelta(hours=2), "seen_at": now, "period": 10.0,
    }  # fmt: skip
    info = WorkerInfo(**{**given, **fields})
    app.engine.save(info, before=OVERWRITE)
    return info


def claim(app: Treadle, name: str, number: int, lease: float = 600.0) -> None:
    app.engine.turn([], Claim(new_id(), name, number, lease, ["default"], tasks=["greet"]))


@any_store
def test_a_worker_is_told_with_all_that_it_says_of_itself(app: Treadle, admin: Client, clock: FakeClock) -> None:
    job = app.enqueue("greet", {"name": "Ada"}, timeout="1m")
    claim(app, "w1", 1)
    clock.advance(seconds=20)
    worker(app, "w1", running=1, lanes=["", "vip"])
    text = page(admin)
    assert said(text) == "1 worker alive with 1 of 4 slots busy. None was lost in the last day."
    shown = row(text, "w1")
    assert "w1 box, pid 7 default, mail (lanes, vip); 2 tasks working 1 of 4 greet for 20 s of 1 min" in shown
    assert "214 MiB 1.2.0 now up 2 h Drain…" in shown
    assert f'href="/jobs/{job.id}"' in text
    assert 'aria-label="1 of 4 slots busy"' in text


def test_those_who_take_no_jobs_stand_first_and_older_ones_are_marked(app: Treadle, admin: Client) -> None:
    now = app.engine.now()
    worker(app, "a", version="0.10.0", running=4)
    worker(app, "b", version="0.9.9")
    worker(app, "c", version=None)
    worker(app, "d", stopping=True)
    worker(app, "e", version="9.0", seen_at=now - timedelta(minutes=6))
    text = page(admin)
    assert names(text) == ["e", "d", "a", "b", "c"]
    assert said(text).startswith("4 workers alive with 4 of 16 slots busy. e has been silent since")
    assert "busy" in row(text, "a")
    assert [name for name in "abcde" if "older" in row(text, name)] == ["a", "b"]  # d is at 1.2.0; e is not alive
    assert "– –" in row(text, "c")
    assert [name for name in "abcde" if "Drain…" in row(text, name)] == ["a", "b", "c"]


def test_what_a_silent_worker_held_is_told_until_it_is_found(app: Treadle, admin: Client, clock: FakeClock) -> None:
    for _ in range(2):
        app.enqueue("greet", {"name": "Ada"})
    claim(app, "gone", 2, lease=300.0)
    worker(app, "gone", running=2)
    worker(app, "here", period=1e6)
    clock.advance(minutes=2)
    shown = row(page(admin), "gone")
    assert "silent of 4 2 jobs are still held by it: greet, greet. Another worker takes them over" in shown
    clock.advance(minutes=6)
    app.recover()
    shown = row(page(admin), "gone")
    assert "It holds no jobs. 2 jobs were recovered and returned to their queues." in shown


def test_nobody_alive_is_said_and_an_empty_store_teaches(app: Treadle, admin: Client) -> None:
    text = page(admin)
    assert said(text) == "No worker is alive. Jobs wait until one is."
    assert "A worker is a process that runs jobs" in text
    assert "treadle worker --app shop.tasks:app" in text


@any_store
def test_a_drain_is_looked_at_first_then_asked_for_and_told(app: Treadle, login: Login) -> None:
    client = login("read", "operate", label="ada")
    worker(app, "w1", running=6, queues=["default", "alone"])
    worker(app, "w2")
    preview = plain(page(client, act="drain", worker="w1"))
    assert "finishes the 4 that run, gives 2 jobs back that wait in it, and then ends" in preview
    assert "Nobody else serves alone" in preview
    assert "treadle drain w1" in preview
    assert app.drains() == []
    drain(client, worker="w1", reason="a <new> version")
    [asked] = app.drains()
    assert (asked.name, asked.actor, asked.reason) == ("w1", "token ada", "a <new> version")
    text = page(client)
    assert "draining asked by token ada now : a <new> version" in row(text, "w1")
    assert "<new>" not in text
    assert "Drain…" not in row(text, "w1")
    assert names(text) == ["w1", "w2"]


def test_a_worker_that_is_not_there_cannot_be_drained(app: Treadle, admin: Client) -> None:
    worker(app, "gone", seen_at=app.engine.now() - timedelta(hours=1))
    assert "it may have ended" in page(admin, act="drain", worker="w9")
    assert "there is nobody to ask" in page(admin, act="drain", worker="gone")
    text = unescape(drain(admin, 409, worker="w9", reason="x"))
    assert "No live worker is called 'w9'; alive: none" in text
    worker(app, "w1")
    text = drain(admin, 422, worker="w1", reason="x" * 3000)
    assert "2000 characters" in text
    assert re.search(r'name="reason"[^>]*aria-describedby="d-help d-err" aria-invalid="true"', text)
    assert app.drains() == []


def test_who_may_only_read_sees_commands_and_no_buttons(app: Treadle, login: Login) -> None:
    reader = login("read")
    worker(app, "w1")
    queries: list[dict[str, Any]] = [{}, {"act": "drain", "worker": "w1"}]
    for query in queries:
        text = page(reader, **query).split("<main")[1]
        assert "treadle drain w1" in text
        assert 'type="submit"' not in text
        assert "Drain…" not in text
    drain(reader, 403, worker="w1")


def test_who_is_bound_is_told_nothing_of_workers(app: Treadle, login: Login, secrets: list[str]) -> None:
    worker(app, "canary-worker")
    secrets += ["canary"]
    for bound in ({"tenant": "acme"}, {"queues": ["mail"]}):
        client = login("read", "operate", **bound)
        assert "Workers serve the whole store" in page(client, 403)
        answer = client.ask("POST", "//workers/drain", content="worker=w1", headers=FORM)
        assert answer.status_code == 403
        assert "Workers serve the whole store" in answer.text


def test_a_name_may_be_anything(app: Treadle, admin: Client) -> None:
    name = "a/b <c> #1"
    worker(app, name)
    text = page(admin)
    assert "<c>" not in text
    link = unescape(re.findall(r'href="(/workers\?act=drain[^"]*)', text)[0])
    shown = admin.ask("GET", f"/{link}").text
    [hidden] = re.findall(r'name="worker" value="([^"]*)"', shown)
    drain(admin, worker=unescape(hidden))
    assert [one.name for one in app.drains()] == [name]


def test_a_crowd_of_workers_has_a_page_of_a_bounded_size(app: Treadle, admin: Client) -> None:
    for _ in range(300):
        app.enqueue("greet", {"name": "Ada"})
    for place in range(150):
        worker(app, f"w{place:03}", running=2)
        claim(app, f"w{place:03}", 2)
    text = page(admin)
    assert len(names(text)) == 80
    assert "70 more workers are not shown" in text
    assert len(text.encode()) < 150_000
