"""A real server in a thread, on a SQLite file, and the command line: on that file, and over the server."""

import logging
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvicorn

from tests.cli.conftest import Result
from tests.support import stores
from tests.support.server import wait_until
from treadle import Context, GiveUp, Profile, Retry, Treadle, WorkerInfo
from treadle.cli.commands import run
from treadle.engines.values import OVERWRITE
from treadle.model.records import MEMORY, VERSION, Minute
from treadle.model.stats import Counts, hour_of
from treadle.server import asgi
from treadle.server.api import Server
from treadle.testing import run_until_idle

NO_LIMIT = {"rate": 1e9, "burst": 10**9}


def make_app(url: str, profile: Profile | None = None) -> Treadle:
    """An app with tasks of all kinds."""
    app = Treadle(url, profile=profile, audit="everything")

    @app.task
    def greet(name: str) -> str:
        return f"hello {name}"

    @app.task(queue="mail", retry=Retry(max_attempts=1), on_failed="clean_up")
    def send(to: str) -> None:
        raise ConnectionError(f"{to} does not answer \x1b[31m")

    @app.task
    def clean_up(job_id: str) -> None:
        return None

    @app.task
    def give_up(why: str) -> None:
        raise GiveUp(why)

    @app.task
    def cost(ctx: Context, micros: int) -> None:
        ctx.add_cost(micros)

    @app.task(cron="30 2 * * *", tz="Europe/Berlin", payload={"name": "Ada"}, name="nightly_greet")
    def nightly_greet(name: str) -> None:
        return None

    return app


def fill(app: Treadle) -> None:
    """Jobs in every state, schedules, pauses and tokens."""
    for name in ("Ada", "Grace", "Zoë \u2028"):
        app.enqueue("greet", {"name": name})
    app.enqueue("greet", {"name": "Alan"}, tenant="acme", key="k", unique="ever", priority=3, lane="left")
    app.enqueue("send", {"to": "ada@example.com"})
    app.enqueue("give_up", {"why": "no"})
    app.enqueue("cost", {"micros": 1_234_567})
    run_until_idle(app, queues=("default", "mail"))
    app.enqueue("greet", {"name": "later"}, run_after="30d", timeout="1m", expires_at="60d")
    gone = app.enqueue("greet", {"name": "cancelled"}, run_after="30d")
    app.cancel(gone.id, actor="ada", reason="a mistake")
    app.schedules.create("hourly", "greet", {"name": "Ada"}, every="1h", jitter="5s", overlap="skip", actor="ada")
    app.schedules.create("other", "greet", {"name": "Ada"}, cron="0 9 * * MON#2", tenant="acme", enabled=False)
    app.schedules.create("removed", "send", {"to": "x"}, every="1d")
    app.schedules.delete("removed", reason="too many")
    hourly, now = app.schedules.get("hourly"), app.engine.now()
    app.engine.save(hourly.evolve(declared="digest shop.tasks gone", revision=hourly.revision + 1), before=hourly)
    tasks = {"greet": 1, "send": 2, f"{VERSION}0.9.0": 1, MEMORY: 96 * 1024**2}
    worker = WorkerInfo("host:1", "host", 1, ["default", "mail"], ["", "left"], tasks, 2, 5, True, now, now, 3600.0)
    app.engine.save(worker, before=OVERWRITE)
    app.engine.save(worker._replace(name="host:2", period=10.0, seen_at=now - timedelta(hours=1)), before=OVERWRITE)
    app.drain("host:1", actor="ada", reason="a deploy")
    counts, lately = Counts(), now - timedelta(minutes=5)
    for kind in ("succeeded", "succeeded", "retrying"):
        counts.note(kind, 0.3, 12.5)
    settled = {"default": {"greet": counts.data()}, "mail": {"send": counts.data()}}
    app.engine.save(Minute(hour_of(lately), lately.minute, "host:1", settled), before=OVERWRITE)
    app.pause(queue="slow", tenant="acme", reason="an outage", until="10d", actor="ada")
    app.tokens.create("grafana", expires="90d", queues=["mail"])


class Served(NamedTuple):
    """A store, the server in front of it, and a token of it."""

    app: Treadle
    url: str
    token: str
    server: Server
    file: Path


@contextmanager
def served(server: Server) -> Iterator[str]:
    """Serve it in a thread; its address."""
    listening = socket.create_server(("127.0.0.1", 0))
    web = uvicorn.Server(uvicorn.Config(server, log_config=None, lifespan="off", timeout_graceful_shutdown=5))
    thread = threading.Thread(target=web.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        wait_until(lambda: web.started, "it serves")
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        web.should_exit = True
        thread.join()
        listening.close()


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A filled store behind a server."""
    file = tmp_path_factory.mktemp("served") / "treadle.db"
    shutil.copy(stores.migrated_file(), file)
    app = make_app(f"sqlite:///{file}")
    fill(app)
    server = asgi(app, **NO_LIMIT)
    token = app.tokens.create("ops", scopes=["admin"]).secret
    with served(server) as url:
        yield Served(app, url, token, server, file)
    app.close()


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings but those that a test gives, and no log lines between what a command prints."""
    monkeypatch.chdir(tmp_path)
    for name in ("TREADLE_SERVER", "TREADLE_TOKEN", "TREADLE_URL", "TREADLE_APP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(logging.getLogger("treadle"), "disabled", True)


Call = Callable[..., Result]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command in this process."""

    def call(*arguments: str) -> Result:
        capsys.readouterr()
        code = run(list(arguments))
        return Result(code, *capsys.readouterr())

    return call


@pytest.fixture
def remote(call: Call, there: Served, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run a command over the server; no output ever holds the token."""
    monkeypatch.setenv("TREADLE_TOKEN", there.token)

    def remote(*arguments: str) -> Result:
        done = call("--server", there.url, *arguments)
        assert there.token not in done.out + done.err
        return done

    return remote


@pytest.fixture
def local(call: Call, there: Served) -> Call:
    """Run the same command on the file itself."""

    def local(*arguments: str, file: Path | None = None) -> Result:
        return call(*arguments, "--url", f"sqlite:///{file or there.file}")

    return local


def ids(app: Treadle, **which: Any) -> list[str]:
    return [job.id for job in app.find(**which).jobs]
