"""examples/backend: driven from outside by requests, SQL and signals, on one PostgreSQL, by one server or two."""

import importlib
import json
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from http.client import HTTPConnection
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest

from tests.examples.conftest import EXAMPLES, Example
from tests.support.workbench import until
from treadle import State, Treadle
from treadle.testing import FakeClock, run_until_idle

START = "python ayb.py start"
ENABLE = "python ayb.py config set jobs.enabled true"
LOOK = "python ayb.py config get jobs.enabled"
TOKEN = "treadle tokens create ops --scope admin --app admin:app"
SCHEDULES = "treadle schedules list --app admin:app"

DEFAULTS = {
    "enabled": False, "worker_concurrency": 4, "poll_interval_ms": 1000, "lease_duration_s": 300,
    "max_retries_default": 3, "scheduler_enabled": True, "scheduler_tick_s": 15,
}  # fmt: skip
RANGES = {
    "worker_concurrency": (1, 64), "poll_interval_ms": (100, 60_000), "lease_duration_s": (30, 3600),
    "max_retries_default": (0, 100), "scheduler_tick_s": (5, 3600),
}  # fmt: skip
CRONS = {
    "stale_session_cleanup": "0 * * * *", "webhook_delivery_prune": "0 3 * * *", "expired_oauth_cleanup": "0 4 * * *",
    "expired_auth_cleanup": "0 5 * * *",
}  # fmt: skip
PRUNE = "webhook_delivery_prune_daily"


@pytest.fixture
def backend(example: Callable[[str], Example], database: str) -> Example:
    opened = example("backend")
    opened.environment["DATABASE_URL"] = database
    return opened


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], ModuleType]:
    """Imports a file of the example, as its own programs would; ayb.toml lies in the working directory."""
    (tmp_path / "ayb.toml").write_bytes((EXAMPLES / "backend" / "ayb.toml").read_bytes())
    monkeypatch.syspath_prepend(str(EXAMPLES / "backend"))
    for name in ("config", "cleanups", "server"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module


@pytest.fixture
def app(database: str) -> Iterator[Treadle]:
    """The store of the example, as another process sees it."""
    with closing(Treadle(database, auto_migrate=True)) as app:
        yield app


class Server:
    """A server of the example, on a free port."""

    def __init__(self, backend: Example, **jobs: object) -> None:
        variables = {f"AYB_JOBS_{name.upper()}": str(value) for name, value in jobs.items()}
        before = dict(backend.environment)
        backend.environment.update(variables)
        self.process = backend.start(START, "--port", "0", "--prune-every", "0.1")
        backend.environment = before
        self.token = ""

    def up(self) -> "Server":
        self.port = int(self.process.says(r"ayb: serving http://127.0.0.1:(\d+)"))
        return self

    def signed_in(self, token: str) -> "Server":
        self.token = token
        return self

    def ask(self, method: str, path: str, **body: object) -> tuple[int, Any]:
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or "null")


def sql(database: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(database, autocommit=True) as connection:
        cursor = connection.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []


def deliveries(database: str) -> list[int]:
    """The ages of the deliveries that are left, in days."""
    return [
        age
        for (age,) in sql(database, "select (now()::date - created_at::date) from _ayb_webhook_deliveries order by 1")
    ]


def deliver(database: str, *days: int) -> None:
    for age in days:
        sql(
            database, "insert into _ayb_webhook_deliveries (created_at) values (now() - make_interval(days => %s))", age
        )


# ------------------------------------------------------------------------------------------------- settings


@pytest.mark.covers("002-G1.a", "002-G1.b")
def test_the_template_holds_the_seven_keys_with_their_defaults_and_a_comment_each(
    modules: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    template = (EXAMPLES / "backend" / "ayb.toml").read_text("utf-8")
    assert tomllib.loads(template) == {"jobs": DEFAULTS}
    lines = template.splitlines()
    for name in DEFAULTS:
        comment = lines[next(number for number, line in enumerate(lines) if line.startswith(f"{name} =")) - 1]
        assert comment.startswith("# ")
        assert all(str(limit) in comment for limit in RANGES.get(name, ()))
    (tmp_path / "ayb.toml").unlink()
    assert modules("config").load().model_dump() == DEFAULTS


@pytest.mark.covers("002-G2.a", "002-G3.b")
def test_each_variable_sets_its_setting_and_the_queue_uses_it(
    modules: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, server = modules("config"), modules("server")
    monkeypatch.setenv("DATABASE_URL", "postgresql://localhost/ayb")
    given = {
        "enabled": True, "worker_concurrency": 64, "poll_interval_ms": 250, "lease_duration_s": 31,
        "max_retries_default": 7, "scheduler_enabled": False, "scheduler_tick_s": 6,
    }  # fmt: skip
    for name, value in given.items():
        with monkeypatch.context() as alone:
            alone.setenv(f"AYB_JOBS_{name.upper()}", str(value).lower())
            assert config.load().model_dump() == {**DEFAULTS, name: value}
    app = server.service(config.JobsConfig(**given))
    used = app.settings
    assert (used.concurrency, used.poll, used.lease, used.schedules, used.schedule_interval) == (64, 0.25, 31, False, 6)
    assert [server.service(config.JobsConfig(scheduler_tick_s=tick)).settings.sweep for tick in (6, 3600)] == [6, 15]
    attempts = {retries: server.service(config.JobsConfig(max_retries_default=retries)) for retries in (0, 1, 7)}
    assert [app.register("t", print).options.retry.max_attempts for app in attempts.values()] == [1, 1, 7]


@pytest.mark.covers("002-G3.a", "002-G4.a")
@pytest.mark.parametrize("name", RANGES)
def test_the_bounds_of_a_range_are_taken_and_what_is_outside_is_refused_with_it(
    name: str, modules: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    config, file, (least, most) = modules("config"), tmp_path / "ayb.toml", RANGES[name]
    for value in (least, most):
        config.set_value(f"jobs.{name}", str(value))
        assert tomllib.loads(file.read_text("utf-8")) == {"jobs": {**DEFAULTS, name: value}}  # a number, not text
    before = file.read_text("utf-8")
    assert before.count("#") == (EXAMPLES / "backend" / "ayb.toml").read_text("utf-8").count("#")
    for value in (str(least - 1), str(most + 1), "many", "1.5", ""):
        with pytest.raises(config.BadConfig) as refused:
            config.set_value(f"jobs.{name}", value)
        assert all(word in str(refused.value) for word in (f"jobs.{name}", repr(value), f"from {least} to {most}"))
    assert file.read_text("utf-8") == before


@pytest.mark.covers("002-G4.a")
def test_the_command_writes_true_as_true_and_refuses_what_is_no_key(
    backend: Example, modules: Callable[[str], ModuleType]
) -> None:
    assert backend.run(ENABLE) + backend.run(LOOK) == backend.outputs[0]
    assert tomllib.loads((backend.folder / "ayb.toml").read_text("utf-8"))["jobs"]["enabled"] is True
    config = modules("config")
    for key, value, words in (
        ("jobs.enabled", "maybe", "true or false"),
        ("jobs.enable", "true", "there is no such key"),
        ("auth.enabled", "true", "jobs.scheduler_tick_s"),
    ):
        with pytest.raises(config.BadConfig, match=words):
            config.set_value(key, value)


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("[a]\nenabled = true\n[jobs]\nenabled = true # on\n", "[a]\nenabled = true\n[jobs]\nenabled = false # on\n"),
        ("[jobs] # the queue\n[auth]\nenabled = true", "[jobs] # the queue\nenabled = false\n[auth]\nenabled = true"),
        ("[auth]\nenabled = true\n", "[auth]\nenabled = true\n\n[jobs]\nenabled = false\n"),
    ],
)  # fmt: skip
def test_a_key_is_written_into_its_own_table_and_nothing_else_changes(
    text: str, after: str, modules: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    file = tmp_path / "ayb.toml"
    file.write_text(text, "utf-8")
    modules("config").set_value("jobs.enabled", "false")
    assert file.read_text("utf-8") == after
    assert [found.name for found in tmp_path.iterdir()] == ["ayb.toml"]


# ------------------------------------------------------------------------------------------------ clean-ups

MICRO, HOUR, DAY = timedelta(microseconds=1), timedelta(hours=1), timedelta(days=1)


@pytest.mark.covers("002-B2", "002-B3", "002-B4", "002-B5", "002-T1.k", "002-O2.e")
def test_each_clean_up_deletes_exactly_what_has_expired(
    modules: Callable[[str], ModuleType], database: str, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    monkeypatch.setenv("DATABASE_URL", database)
    server, cleanups = modules("server"), modules("cleanups")
    sql(database, server.TABLES)
    now = clock.now()
    with server.service(modules("config").load()).override(clock=clock) as app:
        cleanups.register(app)

        def left(job: str, table: str, *columns: str, rows: list[tuple[Any, ...]], **payload: object) -> list[int]:
            """Which rows, by their number, are there after a job of this name."""
            sql(database, f"truncate {table}")
            marks, names = ", ".join(["%s"] * len(columns)), ", ".join(columns)
            ids = [
                sql(database, f"insert into {table} ({names}) values ({marks}) returning id", *row)[0][0]
                for row in rows
            ]
            made = app.enqueue(job, payload)
            run_until_idle(app)
            ended = app.get(made.id)
            assert ended.state is State.SUCCEEDED, ended.error
            kept = {id_ for (id_,) in sql(database, f"select id from {table}")}
            assert ended.result["deleted"] == len(rows) - len(kept)
            return [number for number, id_ in enumerate(ids) if id_ in kept]

        at_now = [(now - MICRO,), (now,), (now + MICRO,)]
        assert left("stale_session_cleanup", "_ayb_sessions", "expires_at", rows=at_now) == [1, 2]
        week = now - 168 * HOUR
        hooks = ("webhook_delivery_prune", "_ayb_webhook_deliveries", "created_at")
        assert left(*hooks, rows=[(week - MICRO,), (week,), (week + MICRO,)]) == [1, 2]
        short = now - 2 * HOUR
        assert left(*hooks, rows=[(short - MICRO,), (short,), (short + MICRO,)], retention_hours=2) == [1, 2]
        ago, soon = now - DAY, now + DAY
        pairs = [
            (ago - MICRO, None), (ago, None), (ago + MICRO, None),
            (soon, ago - MICRO), (soon, ago), (soon, ago + MICRO), (soon, None),
        ]  # fmt: skip
        for name in ("expired_oauth_cleanup", "expired_oauth_token_cleanup"):
            tokens = left(name, "_ayb_oauth_tokens", "expires_at", "revoked_at", rows=pairs)
            assert tokens == [1, 2, 4, 5, 6]
        codes = [(now - MICRO, None), (now, None), *pairs[3:]]
        table = ("_ayb_oauth_authorization_codes", "expires_at", "used_at")
        assert left("expired_oauth_cleanup", *table, rows=codes) == [1, 3, 4, 5]
        for name in ("expired_auth_cleanup", "expired_magic_link_cleanup", "expired_password_reset_cleanup"):
            for table in ("_ayb_magic_links", "_ayb_password_resets"):
                assert left(name, table, "expires_at", rows=at_now) == [1, 2]


# ------------------------------------------------------------------------------------------------- the server


@pytest.mark.slow
@pytest.mark.covers("002-B7.b", "002-O2.g")
def test_while_jobs_are_disabled_the_timer_prunes_and_no_worker_starts(
    backend: Example, database: str, app: Treadle
) -> None:
    server = Server(backend).up()  # as the template has it
    deliver(database, 1, 8)
    until(lambda: deliveries(database) == [1], "the timer prunes")
    deliver(database, 30)
    until(lambda: deliveries(database) == [1], "the timer prunes again")
    assert (app.workers(), app.schedules.list(), app.find().jobs) == ([], [], [])
    assert "ayb: stopped" in server.process.end(signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.covers("002-B6", "002-B7.a", "002-W1.a", "002-O2.f")
def test_two_servers_make_the_schedules_once_keep_what_is_edited_and_make_one_job_of_a_tick(
    backend: Example, database: str, app: Treadle
) -> None:
    backend.run(ENABLE)
    servers = [Server(backend), Server(backend)]
    for server in servers:
        for step in ("the database", "the job service", "the built-in jobs .*stale_session_cleanup", "4 workers"):
            server.process.says(f"start: {step}")
        server.process.says("start: the default schedules; no timer")
        server.up()
    made = {schedule.task: schedule for schedule in app.schedules.list()}
    assert {task: schedule.cron for task, schedule in made.items()} == CRONS
    until(lambda: len(app.workers()) == 2, "a worker in each server")
    deliver(database, 1, 8)
    token = backend.run(TOKEN).strip().splitlines()[-1]
    first, second = (server.signed_in(token) for server in servers)
    hourly, auth = made["stale_session_cleanup"].id, made["expired_auth_cleanup"].id
    status, changed = first.ask("PUT", f"/api/admin/schedules/{hourly}", cron_expr="30 * * * *")
    assert (status, changed["schedule"]["cron_expr"]) == (200, "30 * * * *")
    listed = [server.ask("GET", "/api/admin/schedules")[1]["schedules"] for server in (first, second)]
    assert listed[0] == listed[1]
    assert [one["cron_expr"] for one in listed[1] if one["id"] == hourly] == ["30 * * * *"]
    assert second.ask("POST", f"/api/admin/schedules/{auth}/disable")[0] == 200
    for server in servers:
        assert "ayb: stopped" in server.process.end(signal.SIGTERM)
    assert deliveries(database) == [1, 8]  # no timer has pruned
    before = app.schedules.list()
    sql(database, "update treadle.schedules set next_at = next_at - interval '1 day' where name = %s", PRUNE)

    again = [Server(backend), Server(backend)]
    until(lambda: deliveries(database) == [1], "the job of the schedule prunes")
    for server in again:
        server.up()
    [job] = app.find(task="webhook_delivery_prune").jobs
    until(lambda: app.get(job.id).state is State.SUCCEEDED, "the job ends")
    after = app.schedules.list()
    kept = ("name", "cron", "enabled", "payload", "created_at")
    assert [[getattr(one, field) for field in kept] for one in after] == [
        [getattr(one, field) for field in kept] for one in before
    ]
    assert [one.name for one in after if not one.enabled] == ["expired_auth_cleanup_daily"]
    assert "session_cleanup_hourly" in backend.run(SCHEDULES)
    for server in again:
        server.process.end(signal.SIGTERM)
    assert len(app.find(task="webhook_delivery_prune").jobs) == 1


@pytest.mark.slow
@pytest.mark.covers("002-G4.b", "002-Q13.c")
def test_without_its_scheduler_nothing_fires_and_a_stop_ends_jobs_before_http(
    backend: Example, database: str, app: Treadle, modules: Callable[[str], ModuleType]
) -> None:
    cleanups = modules("cleanups")
    cleanups.register(app)
    cleanups.add_default_schedules(app)
    sql(database, "update treadle.schedules set next_at = next_at - interval '1 day' where name = %s", PRUNE)
    [due] = [schedule for schedule in app.schedules.list() if schedule.name == PRUNE]
    token = app.tokens.create("ops", scopes=["admin"]).secret
    server = Server(backend, enabled=True, scheduler_enabled=False, poll_interval_ms=100).up().signed_in(token)
    with psycopg.connect(database) as other:
        other.execute("lock table _ayb_sessions in access exclusive mode")  # the clean-up has to wait
        made = app.enqueue("stale_session_cleanup").id
        until(lambda: app.get(made).state is State.RUNNING, "the job runs")
        server.process.signal(signal.SIGTERM)
        until(lambda: server.ask("GET", "/readyz")[0] == 503, "the server stops")
        assert server.ask("GET", f"/api/admin/jobs/{made}")[1]["job"]["state"] == "running"
    assert "ayb: stopped" in server.process.rest()
    assert app.get(made).state is State.SUCCEEDED
    with pytest.raises(ConnectionRefusedError):
        server.ask("GET", "/healthz")
    assert app.schedules.get(PRUNE) == due
    assert [job.task for job in app.find().jobs] == ["stale_session_cleanup"]


@pytest.mark.slow
@pytest.mark.covers("002-O2.a")
def test_the_job_of_a_killed_server_is_done_by_the_other_one(backend: Example, database: str, app: Treadle) -> None:
    app.open()
    servers = [Server(backend, enabled=True, poll_interval_ms=100, scheduler_tick_s=5).up() for _ in range(2)]
    [token] = [app.tokens.create("ops", scopes=["admin"]).secret]
    with psycopg.connect(database) as other:
        other.execute("lock table _ayb_sessions in access exclusive mode")  # the clean-up has to wait
        made = app.enqueue("stale_session_cleanup", checked=False).id
        until(lambda: app.get(made).state is State.RUNNING, "the job runs")
        held = app.get(made)
        [killed] = [server for server in servers if f":{server.process.pid}:" in f"{held.worker}"]
        [left] = [server.signed_in(token) for server in servers if server is not killed]
        killed.process.end(signal.SIGKILL)
    sql(database, "update treadle.jobs set lease_until = now() - interval '1 second' where id = %s", made)
    until(lambda: app.get(made).state is State.SUCCEEDED, "the other server does it")
    done = app.get(made)
    assert (done.attempt, done.crashes, f":{left.process.pid}:" in f"{done.worker}") == (2, 1, True)
    status, answer = left.ask("GET", f"/api/admin/jobs/{made}")
    assert (status, answer["job"]["state"]) == (200, "completed")
    assert "ayb: stopped" in left.process.end(signal.SIGTERM)
