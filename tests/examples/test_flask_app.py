"""examples/flask_app: real requests to Flask's server, and a worker among Flask's commands."""

import json
import re
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from tests.examples.conftest import Example
from tests.support.workbench import until
from treadle import State, Treadle

MIGRATE = "flask --app newsletter treadle migrate"
WEB = "FLASK_MOST_READERS=1 flask --app newsletter run"
WORKER = "flask --app newsletter treadle worker"
ADA = """curl localhost:5000/readers --json '{"address": "ada@example.org"}'"""
BOB = """curl localhost:5000/readers --json '{"address": "bob@example.org"}'"""
JOBS = "flask --app newsletter treadle jobs list"


@pytest.fixture
def newsletter(example: Callable[[str], Example]) -> Example:
    opened = example("flask_app")
    opened.run(MIGRATE)
    return opened


class FlaskServer:
    """The app behind `flask run`, on a free port."""

    def __init__(self, newsletter: Example) -> None:
        self._newsletter = newsletter
        self._port = int(newsletter.start(WEB, "--port", "0").says(r"Running on http://127.0.0.1:(\d+)"))

    def curl(self, command: str) -> tuple[int, str]:
        """Do as `curl URL --json DATA` of the README would; status and body."""
        _, url, _, data = self._newsletter.words(command)
        return self.ask("POST", urlsplit(f"//{url}").path, data)

    def ask(self, method: str, path: str, data: str | None = None) -> tuple[int, str]:
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=60)) as connection:
            connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode().strip()


def alike(printed: str) -> list[str]:
    """The lines without what differs from run to run: ids, ages, and the width of columns."""
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", printed)
    return [re.sub(" +", " ", re.sub(r"\d\S* ago|[\d.]+m?s\b", "AGE", line)).strip() for line in text.splitlines()]


@pytest.mark.slow
def test_a_reader_is_welcomed_and_the_refused_one_left_nothing(newsletter: Example) -> None:
    answers, ended = newsletter.outputs
    web = FlaskServer(newsletter)
    worker = newsletter.start(WORKER)
    (accepted, good), (refused, _) = web.curl(ADA), web.curl(BOB)
    assert (accepted, refused) == (201, 409)
    job = json.loads(good)["job"]
    until(lambda: "succeeded" in web.ask("GET", f"/jobs/{job}")[1], "the welcome")
    assert web.ask("GET", f"/jobs/{job}") == (200, ended.strip())
    assert alike(f"{good}\n{newsletter.run(JOBS)}") == alike(answers)
    with closing(sqlite3.connect(newsletter.folder / "newsletter.db")) as db:
        assert db.execute("select address from readers").fetchall() == [("ada@example.org",)]
    status, body = web.ask("GET", "/jobs/nobody")
    assert (status, json.loads(body)["error"]) == (404, "JobNotFound")
    assert "stopped" in worker.end(signal.SIGTERM)


@pytest.mark.slow
def test_a_job_waits_for_a_worker_that_is_started_later(newsletter: Example) -> None:
    _, body = FlaskServer(newsletter).curl(ADA)
    with Treadle(f"sqlite:///{newsletter.folder}/newsletter.db") as app:
        job = json.loads(body)["job"]
        assert app.get(job).state is State.PENDING
        newsletter.start(WORKER)
        until(lambda: app.get(job).state is State.SUCCEEDED, lambda: f"the welcome: {app.get(job)}")
