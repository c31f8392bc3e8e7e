"""`treadle dev`, as the process it is: files are saved, and what it serves changes."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import forks
from tests.support.server import listens, wait_until
from treadle import Job, Treadle
from treadle.cli.dev import look

CODE = """
import time
from pathlib import Path
from treadle import Treadle

app = Treadle()


@app.task
def greet() -> str:
    {body}
"""
SLOW = 'Path("started").touch(); time.sleep(60)'


class Dev:
    """The process, and what it and its servers have written."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "treadle", "dev", "--port", "0", *arguments]
        environment = {**os.environ, "TREADLE_APP": "tasks:app"}
        self.process = forks.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.lines: list[str] = []
        threading.Thread(target=lambda: self.lines.extend(iter(self.process.stderr.readline, "")), daemon=True).start()

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def says(self, text: str, times: int = 1) -> None:
        wait_until(lambda: self.output.count(text) >= times or self.process.poll() is not None, text)
        assert self.output.count(text) >= times, self.output

    @property
    def port(self) -> int:
        return int(re.findall(r"serving http://127.0.0.1:(\d+);", self.output)[-1])


@pytest.fixture
def dev(project: Path) -> Iterator[Dev]:
    write(project, SLOW)
    dev = Dev()
    yield dev
    dev.process.kill()
    dev.process.wait()
    wait_until(lambda: "serving" not in dev.output or not listens(dev.port), "its server has ended with it")
    dev.process.stderr.close()


def write(project: Path, body: str) -> None:
    (project / "tasks.py").write_text(CODE.format(body=body))


def ended(store: Treadle, job: Job) -> Job:
    wait_until(lambda: store.get(job.id).state.final, "the job has ended")
    return store.get(job.id)


@pytest.mark.slow
def test_what_is_saved_is_what_runs_and_what_cannot_be_imported_is_shown_until_it_is_mended(dev, project):
    dev.says("sign in http://")
    with Treadle("sqlite:///treadle.db") as store:
        job = store.enqueue("greet", checked=False)
        wait_until((project / "started").exists, "the first handler runs")
        port = dev.port
        write(project, 'return "two"')
        done = ended(store, job)
        assert (done.result, done.crashes) == ("two", 0)  # it was given back, and did not wait for a lease
        dev.says("tasks.py changed: starting anew")

        write(project, "return (")
        dev.says("waiting for the next save")
        block = dev.output.partition("the app cannot be used")[2]
        assert "SyntaxError: '(' was never closed" in block
        assert f'File "{project / "tasks.py"}", line 11' in block
        assert "Traceback" not in block
        assert "discovery.py" not in block

        write(project, 'return "three"')
        assert ended(store, store.enqueue("greet", checked=False)).result == "three"
        dev.says("sign in http://", times=3)
        assert dev.port == port
    dev.process.send_signal(signal.SIGINT)
    assert dev.process.wait(30) == 0
    wait_until(lambda: not listens(port), "nobody listens")


@pytest.mark.slow
def test_it_is_asked_by_the_names_allowed_logs_as_told_and_leaves_schedules_to_others(project):
    write(project, 'return "done"')
    with Treadle("sqlite:///treadle.db") as store:
        due_schedule(store, {})
        token = store.tokens.create("tests").secret
        process = Dev("--no-schedules", "--allow-host", "jobs.test", "--log-format", "json")
        try:
            process.says('"message": "server starts"')
            [banner] = [json.loads(line) for line in process.lines if "server starts" in line]
            assert (banner["worker"], banner["schedules"]) == (True, False)
            port = int(banner["url"].rpartition(":")[2])
            assert [answered(port, token, host) for host in ("jobs.test", "other.test")] == [200, 421]
            assert ended(store, store.enqueue("greet", checked=False)).result == "done"
            assert store.schedules.get("due").last_at is None
        finally:
            process.process.send_signal(signal.SIGINT)
            assert process.process.wait(30) == 0
            process.process.stderr.close()


def due_schedule(store: Treadle, payload: dict[str, str]) -> None:
    """A schedule that the first worker fires as it starts, if it fires any."""
    made = store.schedules.create("due", "greet", payload, every="1h", checked=False)
    store.engine.save(made.evolve(next_at=made.created_at, revision=made.revision + 1), before=made)


def answered(port: int, token: str, host: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/api/v1/status", headers={"Authorization": f"Bearer {token}", "Host": host})
    status = connection.getresponse().status
    connection.close()
    return status


def test_what_no_save_would_mend_ends_it(call):
    refused = call("dev")
    assert (refused.code, refused.err.startswith("error: which app?")) == (2, True)
    assert call("dev", "--port", "70000").code == 2


def test_the_files_of_the_project_are_watched_and_those_of_others_are_not(tmp_path):
    for name in ("a.py", "pack/b.py", "treadle.toml", "notes.txt", ".hidden/c.py", "__pycache__/d.py", "env/e.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "env" / "pyvenv.cfg").touch()
    before = look(tmp_path)
    assert {Path(name).relative_to(tmp_path).as_posix() for name in before} == {"a.py", "pack/b.py", "treadle.toml"}
    (tmp_path / "a.py").write_text("x = 1")
    (tmp_path / "pack" / "b.py").unlink()
    after = look(tmp_path)
    assert before != after
    assert len(after) == 2
