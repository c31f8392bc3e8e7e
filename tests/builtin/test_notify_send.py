"""notify.send: every channel gets it once, over real HTTP; its row in the app; and no URL is seen anywhere."""

import json
import logging
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import apprise
import psycopg
import pytest
from pydantic import SecretStr

from tests.support import forks
from tests.support.marks import postgres_only, sql_stores
from tests.support.workbench import ended
from treadle import Cancelled, ConfigError, InvalidPayload, Job, NotDelivered, Parked, Reason, Retry, State, Treadle
from treadle.builtin import notify_apprise, notify_send
from treadle.builtin.notify_send import ChannelUrl, InApp, Notification
from treadle.testing import FakeClock, FakeContext, fakes, run_until_idle
from treadle.testing.fakes import WebhookReceiver

SECRET = "t0k3n-nobody-may-see"
AT_ONCE = Retry(max_attempts=3, base=0, jitter=0)


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with fakes.webhook() as server:
        yield server


@pytest.fixture
def address(receiver: WebhookReceiver) -> Callable[[str], str]:
    """A URL of Apprise that leads to a path of the receiver; it holds a secret."""
    return lambda path: f"{receiver.url.replace('http', 'json', 1)}/{path}/{SECRET}?+X-Key={SECRET}"


@pytest.fixture
def news(app: Treadle, address: Callable[[str], str]) -> Treadle:
    notify_send.register(app, {"ops": address("ops"), "ada": [address("ada"), address("phone")]}, retry=AT_ONCE)
    return app


def heard(receiver: WebhookReceiver) -> list[str]:
    """Which channels got a message, in the order in which they did."""
    return [request.path.split("/")[1] for request in receiver.received]


def effect(channel: str, url: str) -> str:
    """The name of its memo."""
    return ChannelUrl(channel, SecretStr(url), channel).effect


def sent(app: Treadle, **payload: object) -> Job:
    job = app.enqueue("notify.send", {"body": "The night job failed.", **payload})
    run_until_idle(app)
    return app.get(job.id)


def test_each_channel_that_is_chosen_gets_title_body_and_type(news: Treadle, receiver: WebhookReceiver) -> None:
    job = sent(news, channels=["ops", "ada", "ops"], title="Backup", type="failure")
    assert job.result == {"channels": ["ops", "ada"], "unconfirmed": [], "in_app": False}
    assert heard(receiver) == ["ops", "ada", "phone"]
    for request in receiver.received:
        body = request.json()
        assert (body["title"], body["message"], body["type"]) == ("Backup", "The night job failed.", "failure")
        assert request.headers["X-Key"] == SECRET
    sent(news, channels=["ops"])
    assert (receiver.received[-1].json()["title"], receiver.received[-1].json()["type"]) == ("", "info")


def test_a_channel_that_fails_gets_it_again_and_those_that_went_well_do_not(
    news: Treadle, receiver: WebhookReceiver, address: Callable[[str], str]
) -> None:
    receiver.fail_next(500, times=2, on="POST /ada/*")
    job = news.enqueue("notify.send", {"channels": ["ops", "ada"], "body": "x"})
    ends = run_until_idle(news)
    assert heard(receiver) == ["ops", "phone", "ada"]
    assert (news.get(job.id).state, news.get(job.id).failures) == (State.SUCCEEDED, 2)
    assert ends[-1].id == job.id
    names = {effect(channel, address(path)) for channel, path in (("ops", "ops"), ("ada", "ada"), ("ada", "phone"))}
    assert {memo.name for memo in news.memos(job)} == names


def test_a_channel_that_never_takes_it_is_named_and_fails_the_job_when_its_attempts_are_spent(
    news: Treadle, receiver: WebhookReceiver
) -> None:
    receiver.fail_next(500, times=9, on="POST /ops/*")
    job = sent(news, channels=["ops", "ada"])
    assert (job.state, job.reason, job.failures) == (State.FAILED, Reason.EXHAUSTED, 3)
    assert "notify.send: ops did not take the message; Apprise does not say why." in job.error.message
    assert heard(receiver) == ["ada", "phone"]


def test_an_answer_that_is_lost_counts_as_not_taken_so_that_channel_may_have_it_twice(
    news: Treadle, receiver: WebhookReceiver
) -> None:
    receiver.drop_next(on="POST /ops/*")
    assert sent(news, channels=["ops"]).state is State.SUCCEEDED
    assert heard(receiver) == ["ops", "ops"]


def test_a_notification_may_be_an_object(
    app: Treadle, receiver: WebhookReceiver, address: Callable[[str], str]
) -> None:
    task = notify_send.register(app, {"ops": address("ops")})
    job = task.enqueue(Notification(channels=["ops"], body="x", type="success"))
    run_until_idle(app)
    assert job.payload == {"channels": ["ops"], "title": "", "body": "x", "type": "success", "user": None}
    assert receiver.received[0].json()["type"] == "success"
    with pytest.raises(InvalidPayload, match=r"'nobody' is not a channel of notify\.send; there are 'ops'"):
        task.enqueue(Notification(channels=["nobody"], body="x"))


@pytest.mark.slow
def test_killed_between_two_channels_the_first_has_one_message(
    make_app: Callable[..., Treadle], store_url: str, receiver: WebhookReceiver, address: Any, tmp_path: Path
) -> None:
    channels = {"first": address("first"), "second": address("second")}
    (tmp_path / "news.py").write_text(
        "from treadle import Treadle\nfrom treadle.builtin import notify_send\n"
        f"app = Treadle({store_url!r})\nnotify_send.register(app, {channels!r})\n"
    )
    receiver.delay_next(60, on="POST /second/*", before=True)
    app = make_app(clock=None)
    job = app.enqueue("notify.send", {"channels": list(channels), "body": "x"}, checked=False)
    command = [sys.executable, "-m", "treadle", "worker", "--app", "news:app", "--lease", "1s"]
    workers = [forks.Popen(command, cwd=tmp_path)]
    try:
        receiver.wait_until(lambda: any(one.path.startswith("/second") for one in receiver.requests), timeout=30)
        workers[0].send_signal(signal.SIGKILL)
        workers[0].wait()
        assert heard(receiver) == ["first"]
        workers.append(forks.Popen(command, cwd=tmp_path))
        [done] = ended(app, job)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert (done.state, done.attempt, heard(receiver)) == (State.SUCCEEDED, 2, ["first", "second"])


@pytest.mark.parametrize(
    ("policy", "expected", "confirmed"), [("send", ["ops"], True), ("skip", [], False), ("park", [], False)]
)
def test_a_channel_that_an_earlier_attempt_began_is_treated_as_on_ambiguous_says(
    policy: Any, expected: list[str], confirmed: bool, app: Treadle, receiver: WebhookReceiver, address: Any
) -> None:
    task = notify_send.register(app, {"ops": address("ops")}, on_ambiguous=policy)
    message = {"channels": ["ops"], "body": "x"}
    ctx = FakeContext(task, message, attempt=2, begun=[effect("ops", address("ops"))])
    if policy == "park":
        with pytest.raises(Parked, match="nobody knows whether ops took the message"):
            task(ctx, Notification(**message))
    else:
        result = task(ctx, Notification(**message))
        named = {"channels": ["ops"], "unconfirmed": []} if confirmed else {"channels": [], "unconfirmed": ["ops"]}
        assert result == {**named, "in_app": False}
    assert heard(receiver) == expected


def test_a_channel_that_is_parked_or_fails_keeps_no_other_from_the_message(
    app: Treadle, receiver: WebhookReceiver, address: Callable[[str], str]
) -> None:
    channels = {name: address(name) for name in ("first", "second", "third")}
    task = notify_send.register(app, channels, on_ambiguous="park")
    message = {"channels": list(channels), "body": "x"}
    receiver.fail_next(500, on="POST /second/*")
    ctx = FakeContext(task, message, attempt=2, begun=[effect("first", address("first"))])
    with pytest.raises(Parked, match="sends it again to first, and to second, which did not take it"):
        task(ctx, Notification(**message))
    assert heard(receiver) == ["third"]


def test_urls_of_a_channel_may_change_places_and_grow_between_attempts(
    app: Treadle, make_app: Callable[..., Treadle], receiver: WebhookReceiver, address: Any, clock: FakeClock
) -> None:
    later = Retry(max_attempts=3, base=10, jitter=0)
    notify_send.register(app, {"ops": [address("a"), address("b")]}, retry=later)
    receiver.fail_next(500, on="POST /b/*")
    job = sent(app, channels=["ops"])
    assert (job.state, heard(receiver)) == (State.PENDING, ["a"])
    changed = make_app()
    notify_send.register(changed, {"ops": [address("c"), address("b"), address("a"), address("a")]}, retry=later)
    clock.advance(seconds=10)
    run_until_idle(changed)
    assert heard(receiver) == ["a", "c", "b"]


def test_a_service_that_does_not_come_to_an_end_is_left_and_nobody_knows_whether_it_took_the_message(
    app: Treadle, receiver: WebhookReceiver, address: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify_apprise, "LONGEST_SEND", 0.2)
    message = {"channels": ["ops"], "body": "x"}
    for policy, expected in (("send", NotDelivered), ("park", Parked), ("skip", None)):
        receiver.delay_next(60, on="POST /ops/*")
        task = notify_send.register(app, {"ops": address("ops")}, name=policy, on_ambiguous=policy)
        if expected is not None:
            with pytest.raises(expected, match="ops"):
                task(FakeContext(task, message), Notification(**message))
        else:
            assert task(FakeContext(task, message), Notification(**message))["unconfirmed"] == ["ops"]


def test_a_job_that_is_cancelled_stops_between_two_channels(news: Treadle, receiver: WebhookReceiver) -> None:
    ctx = FakeContext("notify.send", cancelled=True)
    with pytest.raises(Cancelled, match="before it was sent to 'ops'"):
        news.tasks["notify.send"](ctx, Notification(channels=["ops"], body="x"))
    assert receiver.requests == []


# --------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({"channels": ["nobody"]}, "'nobody' is not a channel of notify.send; there are 'ops', 'ada'"),
        ({"channels": ["ops"], "url": "slack://x"}, "url"),
        ({"channels": "ops"}, "channels"),
        ({"channels": ["ops"], "type": "alarm"}, "type"),
        ({"channels": ["ops"], "body": ""}, "body"),
        ({"channels": ["ops"], "body": "x" * 32_001}, "body"),
        ({"channels": ["ops"], "title": "x" * 251}, "title"),
        ({"channels": ["ops"] * 101}, "channels"),
        ({}, "nobody would get it: name channels"),
        ({"user": "ada"}, "no in-app table; leave user out"),
    ],
)
def test_a_payload_that_cannot_be_sent_is_refused_by_name(payload: Any, words: str, news: Treadle) -> None:
    with pytest.raises(InvalidPayload) as refused:
        news.enqueue("notify.send", {"body": "x", **payload})
    assert words in str(refused.value)
    assert SECRET not in str(refused.value)
    assert news.count()[State.PENDING] == 0


@pytest.mark.parametrize(
    ("channels", "options", "words"),
    [
        ({}, {}, "no channels are named"),
        ({"ops": []}, {}, "channel 'ops': give it a URL"),
        ({"ops": 7}, {}, "channel 'ops': give it a URL"),
        ({"ops": [None]}, {}, "channel 'ops': give it a URL"),
        ({"ops": b"json://localhost"}, {}, "channel 'ops': give it a URL"),
        ([f"json://localhost/{SECRET}"], {}, "channels: a list has no names"),
        ({"ops": f"json://localhost/a, json://localhost/{SECRET}"}, {}, "cannot read URL 1 of 1 as one URL"),
        ({"ops": f"hello json://localhost/{SECRET}"}, {}, "cannot read URL 1 of 1 as one URL"),
        ({"": "json://localhost"}, {}, "channel '': write a name"),
        ({"a#1": "json://localhost"}, {}, "channel 'a#1': write a name"),
        ({"a" * 200: "json://localhost"}, {}, "channel"),
        ({7: "json://localhost"}, {}, "channel 7: write a name"),
        ({"ops": ["json://localhost", f"nonsense://{SECRET}"]}, {}, "cannot read URL 2 of 2"),
        ({"ops": f"slack://{SECRET}"}, {}, "cannot read URL 1 of 1"),
        ({"ops": "json://localhost"}, {"on_ambiguous": "hope"}, "'send', 'park' or 'skip'"),
        ({"ops": "json://localhost"}, {"in_app": InApp("")}, "'' is not the name of a table"),
        ({"ops": "json://localhost"}, {"in_app": InApp("a", title="")}, "'' is not the name of a table or a column"),
        ({}, {"in_app": InApp("a", url="dynamodb://jobs")}, "in_app: url: 'dynamodb' has no tables"),
        ({}, {"in_app": InApp("a", url="sqlite:///:memory:")}, "in memory"),
        ({}, {"in_app": InApp("a", url=5)}, "in_app: url: a int is not a URL"),  # type: ignore[arg-type]
        ({}, {"in_app": "notifications"}, 'in_app: a str is not an InApp; write in_app=InApp("notifications")'),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_registered_and_no_url_is_shown(
    channels: Any, options: Any, words: str, app: Treadle, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(ConfigError) as refused:
        notify_send.register(app, channels, **options)
    assert words in str(refused.value)
    assert SECRET not in "".join(traceback.format_exception(refused.value)) + caplog.text
    assert "notify.send" not in app.tasks


def test_without_apprise_it_says_what_to_install(app: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(ConfigError, match=r"pip install 'treadle\[notify\]'"):
        notify_send.register(app, {"ops": "json://localhost"})


def test_an_in_app_table_needs_a_store_that_has_tables(clock: FakeClock) -> None:
    with (
        Treadle("dynamodb://jobs?region=eu-central-1", clock=clock) as app,
        pytest.raises(ConfigError, match=r"'dynamodb' has no tables.*leave in_app out"),
    ):
        notify_send.register(app, {}, in_app=InApp("notifications"))


# ---------------------------------------------------------------------------------------------------- secrets


def test_no_address_is_in_a_repr_a_log_an_error_a_result_or_the_store(
    app: Treadle,
    receiver: WebhookReceiver,
    address: Callable[[str], str],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    caplog.set_level(logging.DEBUG)
    task = notify_send.register(app, {"ops": SecretStr(address("ops")), "ada": address("ada")}, retry=AT_ONCE)
    receiver.fail_next(500, on="POST /ada/*")
    receiver.fail_next(200, on="POST /ada/*", error="x")
    receiver.drop_next(on="POST /ada/*")
    jobs = [sent(app, channels=["ops", "ada"]), sent(app, channels=["ada"])]
    seen = [repr(app.memos(job)) + repr(app.get(job.id)) + repr(app.events(job)) for job in jobs]
    seen += [repr(task), repr(task.definition)]
    seen += [repr(cell.cell_contents) for cell in task.definition.handler.__closure__ or ()]
    seen += [json.dumps(app.view(job), default=str) for job in jobs]
    assert SECRET not in "".join(seen)
    assert SECRET not in caplog.text
    stored = b"".join(file.read_bytes() for file in tmp_path.glob("treadle.db*"))
    assert b"notify.send" in stored
    assert SECRET.encode() not in stored


def test_what_the_application_says_through_apprise_itself_is_logged_as_before(
    news: Treadle, address: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    sent(news, channels=["ops"])
    assert not [record for record in caplog.records if record.name == "apprise"]
    own = apprise.Apprise()
    own.add(address("own"))
    assert own.notify("hello")
    assert [record for record in caplog.records if record.name == "apprise"]


def test_what_the_http_client_and_an_exception_of_a_plugin_say_of_a_url_is_not_logged(
    app: Treadle, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    @apprise.decorators.notify(on="odd", name="Odd")
    def odd(body: str, title: str, notify_type: str, meta: dict[str, Any], **_: object) -> None:
        for name in ("connection", "connectionpool", "poolmanager", "response", "util.retry"):
            logging.getLogger(f"urllib3.{name}").warning("a request to %s", meta["url"])
        raise SystemExit(meta["url"])

    notify_send.register(app, {"ops": f"odd://host/{SECRET}"}, retry=AT_ONCE)
    job = sent(app, channels=["ops"])
    assert (job.state, job.failures) == (State.FAILED, 3)
    assert SECRET not in caplog.text + repr(job)


def test_neither_an_event_nor_a_span_in_sentry_has_a_url(
    receiver: WebhookReceiver, address: Callable[[str], str], tmp_path: Path
) -> None:
    program = """
import json, sys, urllib.request
import sentry_sdk
from treadle import Retry, Treadle
from treadle.builtin import notify_send
from treadle.integrations.sentry import instrument
from treadle.testing import run_until_idle

dsn, url, own = json.load(sys.stdin)  # Sentry sends the arguments of a program
sentry_sdk.init(dsn, traces_sample_rate=1.0)
app = Treadle("sqlite:///:memory:")
instrument(app)
notify_send.register(app, {"ops": url}, retry=Retry(max_attempts=1))

@app.hooks.around_run
def traced(ctx):
    urllib.request.urlopen(own).close()
    with sentry_sdk.start_transaction(name="the job"):
        yield

app.enqueue("notify.send", {"channels": ["ops"], "body": "x"})
run_until_idle(app)
sentry_sdk.flush()
"""
    receiver.fail_next(500, on="POST /ops/*")
    with fakes.sentry() as ingest:
        given = json.dumps([ingest.dsn, address("ops"), f"{receiver.url}/seen"])
        done = forks.run([sys.executable, "-c", program], input=given, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        ingest.wait_until(lambda: bool(ingest.events))
        [event] = ingest.events
        sent_there = b"".join(ingest.raw).decode()
    assert event["exception"]["values"][0]["type"] == "NotDelivered"
    assert "/seen" in sent_there  # what the program itself asks for is noted as ever
    assert "the job" in sent_there
    assert SECRET not in sent_there


# ------------------------------------------------------------------------------------------------ in-app rows


class Inbox:
    """The application's own table of notifications, beside the jobs in its database."""

    def __init__(self, url: str) -> None:
        self.name = f"inbox {uuid4().hex} 100%"  # a name that must be quoted
        self._of_postgres = url.startswith("postgres")
        self._place = url.partition("?")[0].removeprefix("sqlite:///")
        key, time = ("uuid", "timestamptz") if self._of_postgres else ("text", "text")
        self.run(
            f"create table \"{self.name}\" (id {key} primary key, user_id text not null check (user_id <> 'nobody'), "
            f"type text not null, title text not null, body text not null, created_at {time} not null, seen_at {time})"
        )

    def rows(self, columns: str = "*") -> list[tuple[Any, ...]]:
        return self.run(f'select {columns} from "{self.name}"')

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        if self._of_postgres:
            with psycopg.connect(self._place, autocommit=True) as connection:
                cursor = connection.execute(statement)
                return cursor.fetchall() if cursor.description else []
        with closing(sqlite3.connect(self._place, isolation_level=None)) as file:
            return file.execute(statement).fetchall()


@pytest.fixture
def inbox(store_url: str) -> Iterator[Inbox]:
    made = Inbox(store_url)
    yield made
    made.run(f'drop table if exists "{made.name}"')


@sql_stores
def test_a_job_makes_one_row_however_often_it_runs(
    app: Treadle, inbox: Inbox, clock: FakeClock, receiver: WebhookReceiver, address: Callable[[str], str]
) -> None:
    notify_send.register(app, {"ops": address("ops")}, in_app=InApp(inbox.name), retry=AT_ONCE)
    receiver.fail_next(500, times=2)
    job = sent(app, channels=["ops"], user="ada", title="Backup", type="warning")
    assert (job.attempt, job.result) == (3, {"channels": ["ops"], "unconfirmed": [], "in_app": True})
    [row] = inbox.rows("id, user_id, type, title, body, seen_at")
    assert (str(row[0]), *row[1:]) == (job.id, "ada", "warning", "Backup", "The night job failed.", None)
    [(created,)] = inbox.rows("created_at")
    assert str(created) == str(clock.now())
    assert heard(receiver) == ["ops"]
    sent(app, channels=["ops"])  # nobody in the app is to see this one
    assert len(inbox.rows()) == 1


@sql_stores
def test_a_table_that_is_missing_or_has_other_columns_or_a_rule_fails_the_job_at_once(
    app: Treadle, inbox: Inbox
) -> None:
    cases = {
        "missing": (InApp("no_such_table"), "ada", "no_such_table"),
        "column": (InApp(inbox.name, title="headline"), "ada", "headline"),
        "key": (InApp(inbox.name, id="title", title="id"), "ada", ""),
        "rule": (InApp(inbox.name), "nobody", "check"),
    }
    for name, (in_app, user, words) in cases.items():
        notify_send.register(app, {}, in_app=in_app, name=name)
        job = app.enqueue(name, {"user": user, "body": "a body that nobody may see"})
        run_until_idle(app)
        failed = app.get(job.id)
        assert (failed.state, failed.reason, failed.attempt) == (State.FAILED, Reason.PERMANENT, 1), failed.error
        assert words in failed.error.message.lower()
        assert "docs/notify.md shows the table it needs" in failed.error.message
        assert "nobody may see" not in failed.error.message
    assert inbox.rows() == []


def test_another_database_can_be_named_and_the_names_of_columns_too(app: Treadle, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/site.db"
    in_app = InApp("alerts", id="job", user="who", type="kind", title="head", body="text", created_at="at", url=url)
    notify_send.register(app, {}, in_app=in_app)
    assert "there is no file" in sent(app, user="ada").error.message
    with closing(sqlite3.connect(tmp_path / "site.db", isolation_level=None)) as site:
        site.execute("create table alerts (job text primary key, who, kind, head, text, at)")
        job = sent(app, user="ada")
        assert site.execute("select job, who, kind, head, text from alerts").fetchall() == [
            (job.id, "ada", "info", "", "The night job failed.")
        ]


@postgres_only
def test_a_value_that_does_not_fit_its_column_is_not_in_the_error(app: Treadle, inbox: Inbox) -> None:
    notify_send.register(app, {}, in_app=InApp(inbox.name, title="seen_at"))
    job = sent(app, user="ada", title="a title that nobody may see")
    assert (job.state, job.reason) == (State.FAILED, Reason.PERMANENT)
    assert "a value does not fit its column (InvalidDatetimeFormat, 22007)" in job.error.message
    assert "nobody may see" not in json.dumps(job.error)


def test_the_table_of_the_app_is_shown_without_its_url() -> None:
    shown = repr(InApp("alerts", user="account", url=f"postgresql://ada:{SECRET}@localhost/site"))
    assert "table='alerts'" in shown
    assert "user='account'" in shown
    assert SECRET not in shown
