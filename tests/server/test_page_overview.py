"""The first page: what is wrong and what to do, whose it is, and how far back it looks."""

import re
from datetime import timedelta

import pytest

from tests.server.conftest import Client, Login
from tests.server.reading import commands, page, text
from tests.support.commands import check_command
from tests.support.marks import any_store
from treadle import Retry, Treadle
from treadle.engines.values import OVERWRITE
from treadle.model.records import Minute, WorkerInfo
from treadle.model.stats import Counts, hour_of
from treadle.testing import FakeClock, run_until_idle


def part(shown: str, name: str) -> str:
    """What people read of a part of the page that is kept up to date."""
    return text(shown.split(f'data-live="{name}"')[1].split(">", 1)[1].split("</section>", maxsplit=1)[0])


def worker(app: Treadle, *queues: str) -> None:
    now = app.engine.now()
    tasks = dict.fromkeys(app.tasks, 1)
    info = WorkerInfo("loom-1", "box", 1, [*queues], None, tasks, 4, 1, False, now, now, 1e6)
    app.engine.save(info, before=OVERWRITE)


def ended(app: Treadle, ago: timedelta, number: int) -> None:
    """What a worker has counted in one minute."""
    counts = Counts()
    for _ in range(number):
        counts.note("succeeded", 0.2, 0.1)
    at = (app.engine.now() - ago).replace(second=0, microsecond=0)
    app.engine.save(Minute(hour_of(at), at.minute, "loom-1", {"mail": {"send": counts.data()}}), before=OVERWRITE)


@pytest.fixture
def failing(app: Treadle, clock: FakeClock) -> Treadle:
    """The relay of queue mail is away: one job has failed for good, one will be tried again."""

    @app.task(queue="mail", retry=Retry(max_attempts=2, base=3600, jitter=0))
    def remind(to: str) -> None:
        raise ConnectionError("the relay does not answer")

    worker(app, "default", "mail")
    for to in ("Grace", "Ada"):
        clock.advance(hours=1)
        app.enqueue("remind", {"to": to})
        run_until_idle(app, queues=["mail"])
    clock.advance(minutes=5)
    return app


@any_store
def test_what_is_wrong_is_said_first_with_since_when_and_what_to_do(failing: Treadle, admin: Client) -> None:
    shown = page(admin, "/")
    said = part(shown, "verdict")
    assert said.startswith("Queue mail has been failing for 5m What is wrong ConnectionError: ")
    assert "1 job failed for good, 1 job will be tried again, of remind." in said
    assert "Since 14:00:00 , which is 5 min ago ." in said
    assert 'data-key="p" href="/queues?act=pause&amp;queue=mail"' in shown
    assert "act=retry" in shown
    assert ["treadle", "pause", "--queue", "mail"] in commands(shown)


def test_who_may_only_read_sees_the_commands_and_no_button(failing: Treadle, admin: Client, login: Login) -> None:
    shown = page(login("read"), "/")
    assert commands(shown) == commands(page(admin, "/"))
    assert "act=" not in shown
    assert "data-key" not in shown
    assert "Pause mail, so that no more attempts are spent" in part(shown, "verdict")


def test_a_calm_store_says_that_nothing_needs_you(app: Treadle, admin: Client) -> None:
    worker(app, "default")
    app.enqueue("greet", {"name": "Ada"})
    run_until_idle(app)
    shown = page(admin, "/")
    assert part(shown, "verdict") == "Nothing needs you 1 job done in the last hour, 0 running, 0 waiting."
    assert 'data-live="also"' not in shown
    assert "1 of 4" in part(shown, "rest")


@pytest.mark.parametrize(("span", "done"), [("1h", 1), ("6h", 3), ("24h", 7), ("7d", 15)])
def test_a_span_reaches_as_far_back_as_it_says(app: Treadle, admin: Client, span: str, done: int) -> None:
    for ago, number in ((timedelta(minutes=30), 1), (timedelta(hours=5), 2), (timedelta(hours=20), 4)):
        ended(app, ago, number)
    ended(app, timedelta(days=6), 8)
    shown = page(admin, "/", span=span)
    assert re.findall(r'aria-label="([\d,]+) jobs done and 0 attempts failed from', shown) == [str(done)]
    assert re.findall(r'href="/\?span=(\w+)" aria-current', shown) == [span]
    assert re.findall(r'href="/\?span=(\w+)"', shown) == ["1h", "6h", "24h", "7d"]


def test_without_a_span_it_is_the_last_hour_and_another_one_is_refused(app: Treadle, admin: Client) -> None:
    ended(app, timedelta(hours=2), 3)
    assert "Throughput" not in page(admin, "/")  # in this hour nothing has ended
    assert "Workers have counted no end of a job in this time." not in page(admin, "/", span="6h")
    ended(app, timedelta(minutes=2), 3)
    assert 'href="/?span=1h" aria-current' in page(admin, "/")
    assert "1h" in page(admin, "/", 422, span="2h")


def test_a_token_of_a_tenant_sees_its_own_and_no_workers(
    failing: Treadle, login: Login, secrets: list[str], clock: FakeClock
) -> None:
    failing.enqueue("greet", {"name": "Ada"}, tenant="acme", queue="theirs")
    failing.schedules.create("canary-schedule", "greet", {"name": "Ada"}, every="1h")
    failing.tenant("acme").schedules.create("nightly", "greet", {"name": "Ada"}, every="1h")
    failing.pause(queue="canary-queue", actor="canary-actor", reason="canary-reason")
    ended(failing, timedelta(minutes=2), 77)
    secrets += ["canary", "loom-1", "does not answer", "remind", "77"]
    shown = page(login("read", "operate", tenant="acme"), "/")
    assert part(shown, "verdict").startswith("Nothing needs you 0 jobs done in the last hour")
    assert re.findall(r'data-row id="queue-([^"]+)"', shown) == ["theirs"]
    assert "Running" in part(shown, "facts")
    assert "Slots busy" not in shown
    assert "<h2>Workers</h2>" not in shown
    assert "Throughput" not in shown
    assert "nightly" in part(shown, "rest")


def test_a_token_of_a_queue_is_led_to_its_jobs(failing: Treadle, login: Login) -> None:
    answer = login("read", queues=["mail"]).ask("GET", "//")
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs")


def test_an_empty_store_teaches_what_to_do_first(admin: Client) -> None:
    shown = page(admin, "/")
    assert "No queue holds a job" in part(shown, "queues")
    assert "greet.enqueue(" in part(shown, "queues")
    assert ["treadle", "enqueue", "greet", '{"name": "Ada"}'] in commands(shown)
    assert ["treadle", "worker"] in commands(shown)
    assert "Throughput" not in shown


@pytest.mark.parametrize("story", ["empty", "failing", "late", "unserved"])
def test_the_commands_that_are_shown_exist(
    app: Treadle, admin: Client, clock: FakeClock, story: str, request: pytest.FixtureRequest
) -> None:
    if story == "failing":
        request.getfixturevalue("failing")
    if story == "unserved":
        worker(app, "default")
    if story in ("late", "unserved"):
        app.enqueue("send", {"to": "Ada"})
        clock.advance(minutes=10)
    shown = commands(page(admin, "/"))
    assert shown
    for words in shown:
        check_command(words)


def test_what_code_and_people_say_is_text(app: Treadle, admin: Client) -> None:
    worker(app, "mail", "<i>q")
    app.enqueue("send", {"to": "<script>alert(1)</script>"}, queue="<i>q")
    run_until_idle(app, queues=["<i>q"])
    app.pause(queue="mail", actor="<b>ada", reason="<img src=x>")
    shown = page(admin, "/")
    assert "&lt;script&gt;alert" in shown
    for tag in ("<script>alert", "<i>q", "<b>ada", "<img"):
        assert tag not in shown


def test_what_people_have_done_is_told_in_words_and_leads_to_what_it_was_done_to(app: Treadle, admin: Client) -> None:
    app.tenant("acme").schedules.create("nightly", "greet", {"name": "Ada"}, every="1h", actor="ada")
    app.schedules.create("hourly: all", "greet", {"name": "Ada"}, every="1h", actor="grace")
    app.schedules.run("hourly: all", actor="grace", reason="now: please")
    job = app.enqueue("greet", {"name": "Ada"})
    app.cancel(job.id, actor="ada", reason="sent by hand")
    shown = page(admin, "/")
    said = text(shown)
    assert f"ada cancelled job …{job.id[-6:]} sent by hand" in said
    assert "grace ran at once schedule hourly: all now: please" in said
    links = set(re.findall(r'href="(/schedules/[^"]+)"', shown))
    assert links == {"/schedules/nightly?tenant=acme", "/schedules/hourly%3A%20all"}
    for address in links:
        assert admin.ask("GET", f"/{address}").status_code == 200, address
