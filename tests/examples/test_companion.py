"""examples/companion: workers of its own on DynamoDB, killed and raced, beside a Slack and a Sentry that look on."""

import importlib
import json
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.examples.conftest import EXAMPLES, Example, Running
from tests.support.marks import dynamodb_only
from tests.support.workbench import until
from treadle import GiveUp, State, Treadle
from treadle.profiles.companion import PROFILE
from treadle.testing import FakeClock, FakeContext, fakes, run_until_idle
from treadle.testing.fakes import SentryServer, SlackServer

MORNINGS = "python mornings.py"
WORKER = "treadle worker --app companion:app"
PLAN = "treadle schedules run user_sync --app companion:app"
PLANNED = "treadle jobs list --task daily_summary --app companion:app"
DEAD = "treadle jobs list --state dead_letter --app companion:app"
AGAIN = "treadle jobs retry --task daily_summary --state dead_letter --since 1d --yes --app companion:app"

QUICK = {"TREADLE_LEASE": "3", "TREADLE_SWEEP": "0.2", "TREADLE_POLL": "0.1", "TREADLE_SCHEDULE_INTERVAL": "0.2"}
DOCS = EXAMPLES.parent / "docs"
ZONES = ["America/New_York", "Asia/Tokyo", "Europe/Berlin"]
POST = "POST /api/chat.postMessage"


@pytest.fixture
def workspace() -> Iterator[SlackServer]:
    with fakes.slack(clock=fakes.RunningClock()) as server:
        yield server


@pytest.fixture
def ingest() -> Iterator[SentryServer]:
    with fakes.sentry() as server:
        yield server


@pytest.fixture
def companion(
    example: Callable[[str], Example], store_url: str, workspace: SlackServer, ingest: SentryServer
) -> Example:
    opened = example("companion")
    opened.environment |= {
        "COMPANION_STORE": store_url, "SLACK_URL": workspace.base_url, "SLACK_TOKEN": workspace.token,
        "SLACK_CHANNEL": "general", "SENTRY_DSN": ingest.dsn, **QUICK,
    }  # fmt: skip
    return opened


@pytest.fixture
def seen(store_url: str) -> Iterator[Treadle]:
    """The store of the companion, as another program sees it."""
    with closing(Treadle(store_url, profile=PROFILE)) as app:
        yield app


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a file of the example, as its own programs would."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "companion"))
    for name in ("slack", "jobs"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module


def payload(user: str, **other: str) -> dict[str, str]:
    return {"user_id": user, "real_name": "Ada Lovelace", "day": "2026-01-02", "tz": "Asia/Tokyo", **other}


def due_now(seen: Treadle, user: str) -> str:
    """A summary that is due, as `user_sync` would have planned it; its id."""
    return seen.enqueue("daily_summary", payload(user), checked=False).id


def ended(seen: Treadle, id: str, state: State) -> Any:
    return until(lambda: (job := seen.get(id)).state is state and job, lambda: f"{state}, but {seen.get(id)}")


def stopped(*workers: Running) -> str:
    return "".join(worker.end(signal.SIGTERM) for worker in workers)


def test_two_mornings_are_printed_as_the_readme_says(example: Callable[[str], Example]) -> None:
    opened = example("companion")
    assert opened.run(MORNINGS) == opened.outputs[0]


# ------------------------------------------------------------------------------------- processes, from outside


@dynamodb_only
@pytest.mark.slow
@pytest.mark.covers("003-S21.a")
def test_a_worker_killed_after_its_post_leaves_one_message_and_so_does_a_second_job(
    companion: Example, workspace: SlackServer, seen: Treadle
) -> None:
    user = workspace.add_user("Ada", tz="Asia/Tokyo")
    first = companion.start(WORKER)
    first.says("treadle")  # it lives
    workspace.delay_next(60, on=POST)
    job = due_now(seen, user)
    workspace.wait_until(lambda: bool(workspace.messages), timeout=30)
    first.end(signal.SIGKILL)
    assert seen.get(job).state is State.RUNNING
    second = companion.start(WORKER)
    done = ended(seen, job, State.SUCCEEDED)
    [message] = workspace.messages
    assert (done.attempt, done.crashes, done.result) == (2, 1, {"ts": message["ts"]})
    assert message["metadata"]["event_payload"] == {"token": f"{user}#2026-01-02"}
    again = due_now(seen, user)  # somebody enqueues it by hand, without the key
    assert again != job
    ended(seen, again, State.SUCCEEDED)
    assert len(workspace.messages) == 1
    stopped(second)


@dynamodb_only
@pytest.mark.slow
@pytest.mark.covers("003-S17.a")
def test_two_schedulers_and_a_crowd_of_syncs_plan_one_summary_a_user_in_the_users_own_zone(
    companion: Example, workspace: SlackServer, seen: Treadle
) -> None:
    awake = [tz for tz in ZONES if datetime.now(ZoneInfo(tz)).hour not in (6, 7)]  # no morning comes meanwhile
    zones = {workspace.add_user(name, tz=tz): tz for name, tz in zip(("Ada", "Bo"), awake, strict=False)}
    workers = [companion.start(WORKER), companion.start(WORKER)]
    until(lambda: len(seen.workers()) == 2 and seen.schedules.list(), "both workers, and the schedule")
    assert {task for worker in seen.workers() for task in worker.tasks} >= {"daily_summary", "user_sync"}
    with ThreadPoolExecutor(4) as crowd:
        list(crowd.map(lambda _: companion.run(PLAN), range(2)))
        jobs = [
            crowd.submit(seen.enqueue, "user_sync", {"user_id": user, "real_name": "Ada", "tz": tz}, checked=False)
            for user, tz in zones.items()
            for _ in "123"
        ]
    for job in [one.result() for one in jobs]:
        ended(seen, job.id, State.SUCCEEDED)
    until(lambda: seen.count(task="user_sync")[State.SUCCEEDED] >= 10, lambda: f"{seen.count(task='user_sync')}")
    planned = seen.find(task="daily_summary").jobs
    assert sorted(job.payload["user_id"] for job in planned) == sorted(zones)
    for job in planned:
        local = job.due_at.astimezone(ZoneInfo(zones[job.payload["user_id"]]))
        assert (local.time().isoformat(), job.payload["day"]) == ("07:00:00", local.date().isoformat())
        assert timedelta() < job.due_at - job.created_at <= timedelta(days=1, hours=1)
    assert companion.run(PLANNED).count("daily_summary") == 2
    stopped(*workers)
    assert workspace.messages == []


@dynamodb_only
@pytest.mark.slow
@pytest.mark.covers("003-S19.a", "003-S19.b")
def test_a_dead_letter_is_listed_and_sentry_has_its_context_and_no_name_and_no_token(
    companion: Example, workspace: SlackServer, ingest: SentryServer, seen: Treadle
) -> None:
    companion.environment["SLACK_TOKEN"] += "\n"  # as a file that holds it ends
    worker = companion.start(WORKER)
    user = workspace.add_user("Ada Lovelace", tz="Asia/Tokyo")
    workspace.fail_next(200, error="user_not_found", on="POST /api/users.info")
    job = due_now(seen, user)
    assert "user_not_found; nobody in the workspace has this id" in ended(seen, job, State.FAILED).error.message
    ingest.wait_until(lambda: bool(ingest.events), timeout=30)
    listed = companion.run(DEAD)
    assert job in listed
    assert "dead_letter" in listed
    companion.run(AGAIN)
    ended(seen, job, State.SUCCEEDED)
    assert len(workspace.messages) == 1
    said = stopped(worker)
    [event] = ingest.events
    context, [error] = event["contexts"]["job"], event["exception"]["values"]
    assert (context["job_id"], context["task"], context["state"]) == (job, "daily_summary", "failed")
    assert context["payload"] == payload(user, real_name="***")
    assert error["type"] == "GiveUp"
    assert [frame["function"] for frame in error["stacktrace"]["frames"]][-3:] == ["post", "check_morning", "call"]
    for secret in ("Ada Lovelace", "Lovelace", workspace.token):
        assert not [body for body in ingest.raw if secret.encode() in body]
    assert workspace.token not in said


def test_a_setting_that_is_missing_is_named_in_one_line(example: Callable[[str], Example]) -> None:
    opened = example("companion")
    opened.environment |= {"COMPANION_STORE": "sqlite:///:memory:", "SLACK_CHANNEL": "general"}
    said = opened.start(WORKER).rest()
    assert "SLACK_TOKEN is not set; write for example SLACK_TOKEN=xoxb-" in said
    assert "Traceback" not in said


def test_a_token_that_no_header_can_hold_is_refused_by_name_and_not_shown(example: Callable[[str], Example]) -> None:
    opened = example("companion")
    opened.environment |= {"COMPANION_STORE": "sqlite:///:memory:", "SLACK_CHANNEL": "general"}
    for token in ("xoxb-se…cret", "xoxb-se\ncret"):
        opened.environment["SLACK_TOKEN"] = token
        said = opened.start(WORKER).rest()
        assert "SLACK_TOKEN holds a character that is not printable ASCII; copy it again" in said
        assert "Traceback" not in said
        assert "cret" not in said


# ------------------------------------------------------------------------------------- with a clock that is moved


class Morning:
    """The companion's tasks on DynamoDB, with a Slack of the same clock."""

    def __init__(self, app: Treadle, modules: Callable[[str], ModuleType], clock: FakeClock) -> None:
        self.app, self.clock = app, clock
        self.workspace = fakes.slack(clock=clock)
        self.workspace.start()
        self.modules = modules
        self.use()

    def asked(self, method: str) -> int:
        """How often this method of Slack was called."""
        return sum(request.path == f"/api/{method}" for request in self.workspace.requests)

    def ends(self, day: str, user: str, **other: str) -> Any:
        """A summary that is due now, after its first run."""
        job = self.app.enqueue("daily_summary", payload(user, day=day, **other))
        run_until_idle(self.app)
        return self.app.get(job.id)

    def use(self, token: str = "", channel: str = "general") -> None:
        slack = self.modules("slack").Slack(self.workspace.base_url, token or self.workspace.token)
        self.modules("jobs").register(self.app, slack, channel)

    def sync(self, user: str) -> Any:
        [row] = [one for one in self.workspace._users.values() if one["id"] == user]
        given = {"user_id": user, "real_name": row["profile"]["real_name"], "tz": row["tz"]}
        job = self.app.enqueue("user_sync", given)
        run_until_idle(self.app)
        return self.app.get(job.id)

    def go(self, to: str) -> None:
        self.clock.advance(seconds=(datetime.fromisoformat(to) - self.clock.now()).total_seconds())
        run_until_idle(self.app)


@pytest.fixture
def morning(
    make_app: Callable[..., Treadle], modules: Callable[[str], ModuleType], clock: FakeClock
) -> Iterator[Morning]:
    opened = Morning(make_app(profile=PROFILE, schedules=False), modules, clock)
    yield opened
    opened.workspace.close()


@dynamodb_only
def test_a_user_who_moves_gets_the_next_summary_at_the_new_time_and_one_a_date(morning: Morning) -> None:
    clock, workspace = morning.clock, morning.workspace
    morning.go("2026-03-07T12:00-05:00")
    user = workspace.add_user("Ada", tz="America/New_York")
    assert morning.sync(user).result == {"tz": "America/New_York", "next": "2026-03-08T07:00:00-04:00"}
    workspace._users[user]["tz"] = "Asia/Tokyo"
    morning.sync(user)
    [job] = morning.app.find(task="daily_summary", state=State.PENDING).jobs
    assert job.due_at == datetime.fromisoformat("2026-03-08T07:00+09:00")
    morning.go("2026-03-08T07:00+09:00")
    assert len(workspace.messages) == 1
    workspace._users[user]["tz"] = "America/New_York"
    morning.sync(user)  # there it is still the 7th: the summary of the 8th was posted, and is not posted again
    morning.go("2026-03-08T12:00-04:00")
    assert [job.state for job in morning.app.find(task="daily_summary").jobs] == [State.SUCCEEDED]
    assert len(workspace.messages) == 1
    assert clock.now() == datetime.fromisoformat("2026-03-08T12:00-04:00")


@dynamodb_only
def test_each_date_has_a_summary_of_the_day_before_which_may_have_23_hours(morning: Morning) -> None:
    workspace = morning.workspace
    morning.go("2026-03-07T06:30-05:00")  # in the night to the 8th the clocks of New York go forward
    users = {workspace.add_user("Ada", tz="America/New_York"): "Ada", workspace.add_user("Bo", tz="Asia/Tokyo"): "Bo"}
    slack = morning.modules("slack").Slack(workspace.base_url, workspace.token)
    for hour in range(74):
        slack.call("chat.postMessage", channel="general", text=f"note {hour}")
        for user in users if hour % 6 == 0 else ():
            morning.sync(user)
        morning.go((morning.clock.now() + timedelta(hours=1)).isoformat())
    posted = [message for message in workspace.messages if "metadata" in message]
    said = [message["text"].splitlines()[0].removeprefix("Good morning, ") for message in posted]
    assert [line for line in said if line.startswith("Ada")] == [
        "Ada. On Friday, 06 March there were 0 messages.",
        "Ada. On Saturday, 07 March there were 18 messages.",
        "Ada. On Sunday, 08 March there were 23 messages.",
        "Ada. On Monday, 09 March there were 24 messages.",
    ]
    assert [line for line in said if line.startswith("Bo")] == [
        "Bo. On Saturday, 07 March there were 4 messages.",
        "Bo. On Sunday, 08 March there were 24 messages.",
        "Bo. On Monday, 09 March there were 24 messages.",
    ]
    tokens = [message["metadata"]["event_payload"]["token"] for message in posted]
    assert len(set(tokens)) == len(tokens) == 7
    assert posted[-1]["text"].endswith("• note 63\n• note 64")  # in the order in which they were written


@pytest.mark.parametrize(
    ("now", "tz", "due"),
    [
        ("2026-03-08T06:59:59-04:00", "America/New_York", "2026-03-08T07:00:00-04:00"),
        ("2026-03-08T07:00:00-04:00", "America/New_York", "2026-03-09T07:00:00-04:00"),
        ("2026-03-07T07:00:00-05:00", "America/New_York", "2026-03-08T07:00:00-04:00"),  # in 23 hours
        ("2026-10-31T07:00:00-04:00", "America/New_York", "2026-11-01T07:00:00-05:00"),  # in 25 hours
        ("2026-01-01T22:30:00+00:00", "Asia/Kathmandu", "2026-01-02T07:00:00+05:45"),
    ],
)
def test_the_next_morning_is_seven_by_the_users_clock(
    now: str, tz: str, due: str, modules: Callable[[str], ModuleType]
) -> None:
    found = modules("jobs").next_morning(datetime.fromisoformat(now).astimezone(UTC), tz)
    assert found.isoformat() == due


@dynamodb_only
def test_an_unknown_user_a_missing_channel_and_a_refused_token_end_clearly(
    morning: Morning, make_app: Callable[..., Treadle]
) -> None:
    user = morning.workspace.add_user("Ada Lovelace", tz="Asia/Tokyo")
    cases = [(morning.ends("2026-01-01", "U0NOBODY"), "user_not_found; nobody in the workspace")]
    for options, words in (
        ({"channel": "nowhere"}, "conversations.history: channel_not_found; set SLACK_CHANNEL"),
        ({"token": "xoxb-wrong-and-secret"}, "invalid_auth; set SLACK_TOKEN"),
    ):
        morning.app = make_app(profile=PROFILE, schedules=False)
        morning.use(**options)
        cases.append((morning.ends("2026-01-01", user), words))
    for ended_job, words in cases:
        assert (ended_job.state, ended_job.attempt) == (State.FAILED, 1)
        assert words in ended_job.error.message
        assert "wrong-and-secret" not in json.dumps(ended_job.error)
    assert morning.workspace.messages == []


@dynamodb_only
def test_an_answer_that_does_not_come_costs_an_attempt_and_no_second_message(morning: Morning) -> None:
    workspace, app = morning.workspace, morning.app
    user = workspace.add_user("Ada", tz="Asia/Tokyo")
    workspace.drop_next(on=POST)
    dropped = morning.ends("2026-01-01", user)
    assert (dropped.state, len(workspace.messages)) == (State.PENDING, 1)
    morning.clock.advance(minutes=2)
    run_until_idle(app)
    assert app.get(dropped.id).result == {"ts": workspace.messages[0]["ts"]}
    assert len(workspace.messages) == 1
    workspace.fail_next(200, error="fatal_error", on=POST)
    other = morning.ends("2025-12-31", user)
    morning.clock.advance(minutes=1)
    run_until_idle(app)
    assert (app.get(other.id).state, app.get(other.id).attempt) == (State.SUCCEEDED, 2)
    assert len(workspace.messages) == 2


@dynamodb_only
def test_a_slack_that_is_busy_costs_time_and_no_attempt(morning: Morning) -> None:
    workspace, clock = morning.workspace, morning.clock
    user = workspace.add_user("Ada", tz="Asia/Tokyo")
    workspace.fail_next(429, times=6, on=POST, headers={"Retry-After": "7"})
    job = morning.ends("2026-01-01", user)
    assert job.due_at - clock.now() == timedelta(seconds=7)
    for _ in range(6):
        morning.clock.advance(seconds=7)
        run_until_idle(morning.app)
    for day, code in (
        ("2025-12-31", "ratelimited"), ("2025-12-30", "rate_limited"), ("2025-12-29", "message_limit_exceeded"),
    ):  # fmt: skip
        workspace.fail_next(200, error=code, on=POST)
        assert morning.ends(day, user).due_at - clock.now() == timedelta(minutes=1)
        morning.clock.advance(minutes=1)
        run_until_idle(morning.app)
    jobs = morning.app.find(task="daily_summary").jobs
    assert [(one.state, one.failures) for one in jobs] == [(State.SUCCEEDED, 0)] * 4
    assert len(workspace.messages) == 4


@dynamodb_only
def test_the_users_of_one_zone_cost_one_reading_of_the_channel(morning: Morning) -> None:
    users = [morning.workspace.add_user(f"user {number}", tz="Asia/Tokyo") for number in range(20)]
    for user in users:
        morning.app.enqueue("daily_summary", payload(user, day="2026-01-01"))
    run_until_idle(morning.app)
    assert len(morning.workspace.messages) == len(users)
    read = [one.form() for one in morning.workspace.requests if one.path == "/api/conversations.history"]
    assert [one["channel"] for one in read].count("general") == 1


@dynamodb_only
def test_the_zones_of_all_users_come_from_one_list_without_those_who_have_none(
    make_app: Callable[..., Treadle], modules: Callable[[str], ModuleType], clock: FakeClock
) -> None:
    morning = Morning(make_app(profile=PROFILE), modules, clock)
    with closing(morning.workspace):
        users = {(morning.workspace.add_user(tz, tz=tz), tz) for tz in ZONES}
        morning.workspace.add_user("Nowhere", tz="")
        run_until_idle(morning.app)
        for _ in range(3):
            clock.advance(hours=1)
            run_until_idle(morning.app)
        planned = morning.app.find(task="daily_summary").jobs
        assert {(job.payload["user_id"], job.payload["tz"]) for job in planned} == users
        assert {job.payload["user_id"] for job in morning.app.find(task="user_sync").jobs} == {id for id, _ in users}
        assert {job.state for job in morning.app.find(task="user_sync").jobs} == {State.SUCCEEDED}
        assert (morning.asked("users.list"), morning.asked("users.info")) == (3, 0)


@dynamodb_only
def test_a_user_who_moves_after_the_summary_was_planned_gets_it_in_a_morning_or_not_at_all(morning: Morning) -> None:
    workspace = morning.workspace
    morning.go("2026-03-07T12:00-05:00")
    east = workspace.add_user("Ada", tz="America/New_York")
    west = workspace.add_user("Grace", tz="America/New_York")
    for user in (east, west):
        morning.sync(user)
    workspace._users[east]["tz"], workspace._users[west]["tz"] = "Asia/Tokyo", "America/Los_Angeles"
    morning.go("2026-03-08T07:00-04:00")  # in Tokyo it is evening, and in Los Angeles it is four
    jobs = {job.payload["user_id"]: job for job in morning.app.find(task="daily_summary").jobs}
    assert jobs[east].state is State.CANCELLED
    assert "has moved to Asia/Tokyo, where the morning of this day is over" in str(morning.app.events(jobs[east]))
    assert jobs[west].due_at == datetime.fromisoformat("2026-03-08T07:00-07:00")
    assert workspace.messages == []
    morning.go("2026-03-08T07:00-07:00")
    assert [message["text"].split(".")[0] for message in workspace.messages] == ["Good morning, Grace"]


@dynamodb_only
def test_a_summary_of_long_and_many_messages_is_shortened_and_says_how_many_are_left_out(morning: Morning) -> None:
    workspace = morning.workspace
    user = workspace.add_user("Ada", tz="Asia/Tokyo")
    slack = morning.modules("slack").Slack(workspace.base_url, workspace.token)
    morning.go("2026-01-02T12:00+09:00")
    for number in range(43):
        slack.call("chat.postMessage", channel="general", text=f"{number}\n" + "x" * 2_000)
    morning.go("2026-01-03T07:00+09:00")
    assert morning.ends("2026-01-03", user).state is State.SUCCEEDED
    lines = workspace.messages[-1]["text"].splitlines()
    assert lines[0].endswith("there were 43 messages.")
    assert lines[1].startswith("• 0 xxx")
    assert (len(lines), max(map(len, lines)), lines[-1]) == (42, 203, "… and 3 more")


@dynamodb_only
def test_a_message_that_was_posted_is_not_asked_for_again(morning: Morning) -> None:
    task, user = morning.app.tasks["daily_summary"], morning.workspace.add_user("Ada", tz="Asia/Tokyo")
    given = payload(user, day="2026-01-01")
    ctx = FakeContext(task, given, attempt=2, done={"post": "1.000001"})
    assert task(ctx, morning.modules("jobs").Summary(**given)) == {"ts": "1.000001"}
    assert morning.workspace.requests == []


@pytest.mark.covers("003-S21.b")
def test_the_documentation_says_that_idempotency_is_the_handlers_task() -> None:
    promises, recipes = ((DOCS / name).read_text("utf-8") for name in ("promises.md", "idempotent-handlers.md"))
    assert "your side effect may have happened twice. Make handlers idempotent" in promises
    assert "[recipes](idempotent-handlers.md)" in promises
    assert "This page shows how\nto write handlers for which that does no harm" in recipes
    readme = (EXAMPLES / "companion" / "README.md").read_text("utf-8")
    assert "idempotent-handlers.md#what-must-not-repeat-once" in readme


def test_slack_is_read_page_by_page(modules: Callable[[str], ModuleType]) -> None:
    with fakes.slack() as workspace:
        slack = modules("slack").Slack(workspace.base_url, workspace.token)
        assert workspace.token not in repr(slack)
        for number in range(401):
            workspace._messages.append({"ts": f"{number + 1}.0", "channel": "C0FAKE001", "text": str(number)})
        assert len(list(slack.pages("conversations.history", "messages", channel="general"))) == 401
        with pytest.raises(GiveUp, match="may answer"):
            slack.call("no.such.method")
