"""`treadle serve`, as the process it is: started, asked over HTTP, signalled, and left without its store."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from tests.cli.conftest import Call
from tests.cli.test_dev import due_schedule
from tests.support import forks, provision, stores
from tests.support.server import listens, wait_until
from treadle import Treadle
from treadle.errors import ConfigError, NotPossible
from treadle.model import Job
from treadle.server.run import Address, check_safe, serve

TASKS = """
import time
from pathlib import Path
from treadle import Treadle

app = Treadle()


@app.task
def greet(name: str) -> str:
    return f"hello {name}"


@app.task
def wait(folder: str) -> str:
    Path(folder, "started").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.01)
    return "done"
"""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Served:
    """A server that runs in a process of its own, and what it has written so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        self.lines.extend(iter(self.process.stderr.readline, ""))  # type: ignore[union-attr]

    @property
    def said(self) -> str:
        return "".join(self.lines)

    def up(self) -> Self:
        """Wait until it says where it serves."""
        wait_until(lambda: "sign in" in self.said or "serving" in self.said or self.ended, "it serves, or has ended")
        found = re.search(r"serving http://(\S+):(\d+);", self.said)
        assert found, self.said
        self.host, self.port = found[1].strip("[]"), int(found[2])
        wait_until(lambda: listens(self.port), "it listens")
        return self

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def ask(self, method: str, path: str, token: str = "", body: Any = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)

    def end(self, timeout: float = 30.0) -> int:
        """Wait for its end; the exit code."""
        code = self.process.wait(timeout)
        self._reader.join(timeout)
        return code

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.end()


Start = Callable[..., Served]


@pytest.fixture
def start(project: Path) -> Iterator[Start]:
    """Start servers on a free port, of tasks:app unless options say otherwise; those that still run are killed."""
    (project / "tasks.py").write_text(TASKS)
    started: list[Served] = []

    def start(*options: str, **environment: str) -> Served:
        command = [sys.executable, "-m", "treadle", "serve", "--port", "0", *options]
        environ = {**os.environ, "TREADLE_POLL": "0.05", "NO_COLOR": "1", "COLUMNS": "200", **environment}
        process = forks.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(Served(process))
        return started[-1]

    yield start
    for served in started:
        if not served.ended:
            served.process.kill()
        served.end()
        served.process.stdout.close()  # type: ignore[union-attr]
        served.process.stderr.close()  # type: ignore[union-attr]


@pytest.fixture
def app(project: Path) -> Iterator[Treadle]:
    """The store that the server of this folder uses, with its tables."""
    app = Treadle("sqlite:///treadle.db")
    app.migrate()
    yield app
    app.close()


@pytest.fixture
def token(app: Treadle) -> str:
    return app.tokens.create("tests", scopes=["admin"]).secret


def waiting_job(server: Served, token: str, project: Path) -> str:
    """A job that runs until the file `go` is there."""
    body = {"task": "wait", "payload": {"folder": str(project)}}
    job = server.ask("POST", "/api/v1/jobs", token, body).json["job"]["id"]
    wait_until((project / "started").exists, "the job has started")
    return str(job)


def not_ready(server: Served) -> bool:
    return server.ask("GET", "/readyz").status == 503


# ------------------------------------------------------------------------------------------------------ it serves


def test_jobs_are_stored_over_http_and_run_in_the_same_process(start: Start, token: str, app: Treadle) -> None:
    server = start("--app", "tasks:app").up()
    assert server.ask("GET", "/healthz").json == server.ask("GET", "/readyz").json == {"ok": True}
    job = server.ask("POST", "/api/v1/jobs", token, {"task": "greet", "payload": {"name": "Ada"}}).json["job"]
    wait_until(lambda: app.get(job["id"]).state.final, "the job has ended")
    shown = server.ask("GET", f"/api/v1/jobs/{job['id']}", token)
    assert shown.json["job"]["result"] == "hello Ada"
    assert "server" not in shown.headers
    assert shown.headers["x-content-type-options"] == "nosniff"
    assert server.ask("GET", "/api/v1/jobs").status == 401
    assert server.stop() == 0
    for words in (f"serving http://127.0.0.1:{server.port}", "store   sqlite:///treadle.db", "tasks   greet, wait"):
        assert words in server.said
    assert server.said.splitlines()[-1].endswith("stopped")
    assert server.process.stdout.read() == ""  # type: ignore[union-attr]
    assert token not in server.said


def test_without_a_worker_jobs_wait_for_one_elsewhere(start: Start, token: str, app: Treadle) -> None:
    server = start("--app", "tasks:app", "--no-worker").up()
    job = server.ask("POST", "/api/v1/jobs", token, {"task": "greet", "payload": {"name": "Ada"}}).json["job"]
    assert server.ask("GET", "/api/v1/workers", token).json == {"workers": []}
    assert "tasks   run elsewhere: --no-worker" in server.said
    assert server.stop() == 0
    assert app.get(job["id"]).state == "pending"


@pytest.mark.parametrize(
    ("options", "environment", "fires"),
    [
        (["--no-schedules"], {}, False),
        ([], {"TREADLE_SCHEDULES": "false"}, False),
        (["--schedules"], {"TREADLE_SCHEDULES": "false"}, True),
        ([], {}, True),
    ],
    ids=["--no-schedules", "the setting", "--schedules wins over the setting", "neither"],
)
def test_a_worker_may_run_jobs_and_fire_no_schedules(
    start: Start, token: str, app: Treadle, options: list[str], environment: dict[str, str], fires: bool
) -> None:
    due_schedule(app, {"name": "Ada"})
    server = start("--app", "tasks:app", *options, **environment).up()
    job = server.ask("POST", "/api/v1/jobs", token, {"task": "greet", "payload": {"name": "Grace"}}).json["job"]
    wait_until(lambda: app.get(job["id"]).state.final, "the job has ended")
    if fires:
        wait_until(lambda: app.schedules.get("due").last_at is not None, "the schedule was fired")
    assert ("schedules are fired elsewhere" in server.said) is not fires
    assert server.stop() == 0
    assert (app.schedules.get("due").last_at is not None) is fires


def test_schedules_without_a_worker_are_refused(ready: Call) -> None:
    for command in ("serve", "dev"):
        refused = ready(command, "--app", "tasks:app", "--no-worker", "--schedules")
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert "--schedules: the worker fires them, and --no-worker leaves it out" in refused.err


def test_without_an_app_the_store_alone_is_served(start: Start, token: str) -> None:
    server = start("--url", "sqlite:///treadle.db").up()
    assert server.ask("GET", "/api/v1/tasks", token).json == {"tasks": []}
    made = server.ask("POST", "/api/v1/jobs", token, {"task": "elsewhere", "payload": {"a": 1}})
    assert made.json["job"]["task"] == "elsewhere"
    assert "none: no app is named" in server.said
    assert server.stop(signal.SIGINT) == 0


def test_the_link_signs_a_browser_in_once(start: Start, app: Treadle) -> None:
    server = start("--url", "sqlite:///treadle.db").up()
    wait_until(lambda: "sign in" in server.said, "the link is printed")
    [link] = re.findall(r"sign in http://127\.0\.0\.1:\d+(/login\?code=\S+) \(once, within 15 minutes\)", server.said)
    answer = server.ask("GET", link)
    assert (answer.status, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].partition(";")[0]
    assert server.ask("GET", "/api/v1/session", Cookie=cookie).json["actor"] == "console"
    assert server.ask("GET", link).status == 401


def test_json_logs_are_lines_of_json_without_the_link(start: Start, app: Treadle) -> None:
    server = start("--app", "tasks:app", "--json")
    wait_until(lambda: "server starts" in server.said or server.ended, "it serves")
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.lines]
    [banner] = [line for line in lines if line["message"] == "server starts"]
    assert (banner["store"], banner["tasks"]) == ("sqlite:///treadle.db", ["greet", "wait"])
    assert (banner["worker"], banner["schedules"]) == (True, True)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", banner["url"])
    assert "code=" not in server.said


# ------------------------------------------------------------------------------------------ where it may listen

OPEN = [
    "0.0.0.0", "::", "::0", "::ffff:0.0.0.0", "192.0.2.1",  # noqa: S104
    "10.0.0.1", "2001:db8::1", "169.254.1.1", "8.8.8.8", "0",
    "example.com", "jobs.internal", "localhost.example.com", "LOCALHOST.example", "ip6-all", "127.0.0.1.example.com",
    "::ffff:192.0.2.1", "fe80::1", "224.0.0.1", "127.1", "0x7f000001", "2130706433", " 127.0.0.1", "[::1]",
]  # fmt: skip


@pytest.mark.parametrize("host", OPEN)
def test_it_does_not_start_where_others_reach_it_and_nobody_could_sign_in(ready: Call, host: str) -> None:
    """A token that was revoked, or has expired, is none."""
    store = Treadle("sqlite:///treadle.db")
    refused = ready("serve", "--url", "sqlite:///treadle.db", "--host", host, "--port", "0")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err == (
        f"error: host: {host} can be reached from other machines, and there is no token yet that they could use; make "
        "one with `treadle tokens create NAME`, or serve on 127.0.0.1\n"
    ).replace("  ", " ")
    store.tokens.create("old")
    store.tokens.revoke("old")
    with pytest.raises(NotPossible, match="no token yet"):
        check_safe(store, Address(host, 0))
    store.tokens.create("ci", scopes=["read"])
    check_safe(store, Address(host, 0))
    store.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_on_this_machine_no_token_is_asked_for(app: Treadle, host: str) -> None:
    check_safe(app, Address(host, 0))


def test_with_a_token_it_listens_on_all_addresses(start: Start, token: str) -> None:
    server = start("--url", "sqlite:///treadle.db", "--host", "0.0.0.0", "--allow-host", "Jobs.Example").up()  # noqa: S104
    assert server.ask("GET", "/api/v1/session", token).json["actor"] == "token tests"
    assert server.ask("GET", "/healthz", Host=f"127.0.0.1:{server.port}").status == 200
    assert server.ask("GET", "/healthz", Host="jobs.example").status == 200
    assert server.ask("GET", "/healthz", Host="evil.example").status == 421
    assert "sign in" not in server.said  # the link is for who sits at this machine


def test_the_address_at_which_it_is_reached_is_answered_to(start: Start, token: str) -> None:
    """As Kubernetes asks: by the number of the pod."""
    server = start("--url", "sqlite:///treadle.db", "--host", "0.0.0.0").up()  # noqa: S104
    with socket.create_connection(("127.0.0.5", server.port), timeout=10) as connection:
        connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.5:8787\r\nConnection: close\r\n\r\n")
        assert connection.makefile("rb").readline().split()[1] == b"200"


def test_a_host_by_name_is_asked_by_that_name(start: Start, app: Treadle) -> None:
    server = start("--url", "sqlite:///treadle.db", "--host", "localhost").up()
    assert server.ask("GET", "/healthz", Host=f"localhost:{server.port}").status == 200


def test_a_port_in_use_is_one_clear_line(ready: Call) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = ready("serve", "--url", "sqlite:///treadle.db", "--port", str(port))
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == (
        f"error: port: cannot listen on http://127.0.0.1:{port}: Address already in use; choose another with --port\n"
    )


def test_a_host_that_is_none_is_one_clear_line(ready: Call) -> None:
    Treadle("sqlite:///treadle.db").tokens.create("ci")
    for host, words in (("nowhere.invalid", "is not an address"), ("192.0.2.1", "is not an address"), ("", "is empty")):
        refused = ready("serve", "--url", "sqlite:///treadle.db", "--host", host, "--port", "0")
        assert refused.code == 2
        [line] = refused.err.splitlines()
        assert line.startswith("error: host: ")
        assert words in line


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_a_port_that_cannot_be_is_refused(ready: Call, port: str) -> None:
    refused = ready("serve", "--port", port)
    assert refused.code == 2
    assert "--port" in refused.err


def test_an_app_that_is_not_there_is_refused(ready: Call) -> None:
    refused = ready("serve", "--app", "nothing:app", "--port", "0")
    assert (refused.code, "there is no module 'nothing'" in refused.err) == (2, True)


def test_a_store_that_is_not_there_is_refused(ready: Call) -> None:
    refused = ready("serve", "--url", "postgresql://shop:hunter2@127.0.0.1:1/shop?connect_timeout=1", "--port", "0")
    assert refused.code == 1
    assert "hunter2" not in refused.err
    assert len(refused.err.splitlines()) == 1


def test_without_the_extra_it_says_what_to_install(ready: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "uvicorn" else object())
    refused = ready("serve", "--port", "0")
    assert refused.code == 2
    assert "pip install 'treadle[web]'" in refused.err


def test_a_server_needs_a_host(app: Treadle) -> None:
    app.tokens.create("ci")
    with pytest.raises(ConfigError, match="host: is empty"):
        serve(app, Address("", 0))


# ---------------------------------------------------------------------------------------------------- how it ends


def test_at_sigterm_the_job_that_runs_is_finished_and_requests_are_answered(
    start: Start, token: str, app: Treadle, project: Path
) -> None:
    server = start("--app", "tasks:app").up()
    job = waiting_job(server, token, project)
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: not_ready(server), "it is not ready any more")
    assert server.ask("GET", "/readyz").json["detail"] == "the server is stopping"
    assert server.ask("GET", "/healthz").status == 200
    later = server.ask("POST", "/api/v1/jobs", token, {"task": "greet", "payload": {"name": "Ada"}}).json["job"]["id"]
    assert server.ask("GET", f"/api/v1/jobs/{job}", token).json["job"]["state"] == "running"
    (project / "go").touch()
    assert server.end() == 0
    assert (app.get(job).state, app.get(job).result) == ("succeeded", "done")
    assert app.get(later).state == "pending"  # it takes no more


def test_two_signals_at_once_count_once(start: Start, token: str, app: Treadle, project: Path) -> None:
    server = start("--app", "tasks:app").up()
    job = waiting_job(server, token, project)
    server.process.send_signal(signal.SIGTERM)
    server.process.send_signal(signal.SIGINT)
    wait_until(lambda: not_ready(server), "it stops")
    assert server.ask("GET", f"/api/v1/jobs/{job}", token).json["job"]["state"] == "running"
    (project / "go").touch()
    assert server.end() == 0
    assert app.get(job).state == "succeeded"


def test_a_second_signal_later_releases_what_runs(start: Start, token: str, app: Treadle, project: Path) -> None:
    server = start("--app", "tasks:app", TREADLE_GRACE="10m").up()
    job = waiting_job(server, token, project)
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: not_ready(server), "it stops")
    begun = time.monotonic()
    wait_until(lambda: time.monotonic() - begun > 0.3, "it is another signal")
    assert server.stop() == 0
    released = app.get(job)
    assert (released.state, released.failures, released.crashes) == ("pending", 0, 0)


def test_whoever_listens_to_events_does_not_keep_it(start: Start, token: str) -> None:
    server = start("--url", "sqlite:///treadle.db").up()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", "/api/v1/events", headers={"Authorization": f"Bearer {token}"})
    stream = connection.getresponse()
    assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert stream.readline() == b"id: 1\n"
    assert stream.readline() == b"event: status\n"
    server.process.send_signal(signal.SIGTERM)
    stream.read()
    connection.close()
    assert server.end() == 0


def test_a_server_whose_worker_is_drained_ends(start: Start, token: str) -> None:
    server = start("--app", "tasks:app", TREADLE_HEARTBEAT="0.2").up()
    wait_until(lambda: bool(server.ask("GET", "/api/v1/workers", token).json["workers"]), "the worker is there")
    [worker] = server.ask("GET", "/api/v1/workers", token).json["workers"]
    assert server.ask("POST", f"/api/v1/workers/{worker['name']}/drain", token, {}).status == 202
    assert server.end() == 0


SLOW_IMPORT = """
import os, sys, time
print("importing", file=sys.stderr, flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_app_is_imported_is_a_clean_stop(start: Start, project: Path, number: int) -> None:
    (project / "tasks.py").write_text(SLOW_IMPORT + TASKS)
    server = start("--app", "tasks:app")
    wait_until(lambda: "importing" in server.said, "the app is imported")
    server.process.send_signal(number)
    (project / "go").touch()
    assert (server.end(), server.said) == (0, "importing\n")
    assert not (project / "treadle.db").exists()


def test_a_signal_just_before_it_listens_to_them_is_not_lost(ready: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.server.run.check_safe", lambda *_: signal.raise_signal(signal.SIGTERM))
    stopped = ready("serve", "--url", "sqlite:///treadle.db", "--port", "0")
    assert (stopped.code, "serving" in stopped.err) == (0, False)


# --------------------------------------------------------------------------------------------- without its store


@pytest.fixture
def cluster() -> Iterator[provision.Cluster]:
    with provision.Cluster(synchronous_commit="on") as cluster:  # or the token is lost when it goes away at once
        yield cluster


def test_a_store_that_goes_away_is_a_503_until_it_is_back(start: Start, cluster: provision.Cluster) -> None:
    url = cluster.url.replace("treadle@", "treadle:hunter2@")
    app = Treadle(url)
    app.migrate()
    token = app.tokens.create("tests", scopes=["admin"]).secret
    app.close()
    server = start("--app", "tasks:app", "--url", url).up()
    found = server.ask("GET", "/api/v1/jobs", token).json
    assert (found["jobs"], found["cursor"]) == ([], None)
    cluster.stop("immediate")
    for path, way in (("/api/v1/jobs", "try again"), ("/readyz", "try again")):
        answer = server.ask("GET", path, token)
        assert (answer.status, answer.headers["content-type"]) == (503, "application/problem+json")
        assert answer.headers["retry-after"] == "1"
        assert answer.json["detail"] == f"the job store does not answer; {way}"
    assert server.ask("GET", "/healthz").json == {"ok": True}
    cluster.start()
    wait_until(lambda: server.ask("GET", "/readyz").status == 200, "it is ready again")
    stored = server.ask("POST", "/api/v1/jobs", token, {"task": "greet", "payload": {"name": "Ada"}})
    assert stored.status == 201, stored.json
    job = stored.json["job"]["id"]

    def state() -> str:
        return str(server.ask("GET", f"/api/v1/jobs/{job}", token).json["job"]["state"])

    wait_until(lambda: state() == "succeeded", "the job has run")
    assert server.stop() == 0
    assert "hunter2" not in server.said


# --------------------------------------------------------------------------------------- it is killed under load


class Producers:
    """Clients that store jobs over HTTP, each with a key of its own, and ask again until they have an answer."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._enough = threading.Event()
        self.stored: dict[str, str] = {}  # the id that was answered to each key
        self.unanswered = 0
        self._threads = [threading.Thread(target=self._store_jobs, args=[number], daemon=True) for number in range(4)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def _store_jobs(self, number: int) -> None:
        turn = 0
        while not self._enough.is_set():
            turn += 1
            key = f"{number}-{turn}"
            while (job := self._store(key)) is None:
                self.unanswered += 1
                self._enough.wait(0.02)
            self.stored[key] = job

    def _store(self, key: str) -> str | None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        body = json.dumps({"task": "greet", "payload": {"name": key}})
        try:
            connection.request("POST", "/api/v1/jobs", body, self._headers | {"Idempotency-Key": key})
            answer = connection.getresponse()
            said = json.loads(answer.read())
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        if answer.status == 429:  # four clients without a pause share one token
            return None
        assert answer.status in (200, 201), said
        return str(said["job"]["id"])


def every_job(app: Treadle) -> Iterator[Job]:
    page = app.find(limit=500)
    yield from page.jobs
    while page.cursor:
        page = app.find(limit=500, cursor=page.cursor)
        yield from page.jobs


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_server_killed_and_started_again_under_load_loses_and_doubles_nothing(
    start: Start, kind: str, tmp_path: Path
) -> None:
    with stores.fresh_store(kind, tmp_path) as url:
        app = Treadle(url)
        app.migrate()
        token = app.tokens.create("tests", scopes=["admin"]).secret
        quick = {"TREADLE_LEASE": "2"}
        server = start("--app", "tasks:app", "--url", url, **quick).up()
        with Producers(server.port, token) as producers:
            for _ in range(4):
                answered = len(producers.stored)
                wait_until(lambda answered=answered: len(producers.stored) > answered + 25, "jobs are stored")
                server.process.kill()
                server.end()
                server = start("--app", "tasks:app", "--url", url, "--port", str(server.port), **quick).up()
        wait_until(lambda: all(job.state.final for job in every_job(app)), "all of them have ended")
        assert producers.unanswered, "no client met a server that was gone"
        found = {job.id: job.result for job in every_job(app)}
        assert found == {job: f"hello {key}" for key, job in producers.stored.items()}
        assert server.stop() == 0
        app.close()
