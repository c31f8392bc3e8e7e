"""`treadle worker`, as the process it is."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def start(project: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start workers of tasks:app; whoever still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "treadle", "worker", "--app", "tasks:app", "--poll", "0.1", *options]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def until(met: Callable[[], object], patience: float = 20.0) -> None:
    deadline = time.monotonic() + patience
    while not met():
        assert time.monotonic() < deadline, "that took too long"
        time.sleep(0.05)


def test_a_worker_runs_jobs_and_stops_cleanly_on_sigterm(treadle, start):
    treadle("enqueue", "greet", '{"name": "Ada"}')
    treadle("enqueue", "boom", '{"text": "x"}')
    process = start("--queue", "default", "-q", "mail", "-c", "3", "--name", "w1", "--lease", "10s")
    until(lambda: treadle("jobs", "count", "--json").json["counts"] | {"cancelled": 0} == {
        "pending": 0, "running": 0, "succeeded": 1, "failed": 1, "cancelled": 0})  # fmt: skip
    process.terminate()
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "")
    for words in ("worker w1", "sqlite:///treadle.db", "default, mail", "boom, give_up, greet", "3, lease 10 s"):
        assert words in err
    assert "INFO    worker w1 stopped" in err
    assert treadle("jobs", "list", "--state", "succeeded", "--json").json["jobs"][0]["worker"] == "w1"


def test_json_logs_are_lines_of_json_and_the_end_is_a_document(treadle, start, project):
    mark = project / "started"
    treadle("enqueue", "long", json.dumps({"path": str(mark)}))
    process = start("--json", "--verbose", "--name", "w1", "--grace", "0")
    until(mark.exists)
    process.terminate()
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert json.loads(out) == {"worker": "w1", "exhausted": False}
    lines = [json.loads(line) for line in err.splitlines()]
    assert all(line.keys() >= {"time", "level", "logger", "message"} for line in lines)
    [banner] = [line for line in lines if line["message"] == "worker starts"]
    assert (banner["worker"], banner["queues"], banner["slots"]) == ("w1", ["default"], 10)
    [told] = [line for line in lines if line["message"].startswith("started")]
    assert told["task"] == "long"
    assert "\x1b" not in err


def test_a_second_signal_does_not_wait_for_what_runs(treadle, start, project):
    mark = project / "started"
    treadle("enqueue", "long", json.dumps({"path": str(mark)}))
    process = start("--grace", "50s")
    until(mark.exists)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None  # it waits for the job
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "second signal" in err
    [job] = treadle("jobs", "list", "--json").json["jobs"]
    assert (job["state"], job["failures"], job["crashes"]) == ("pending", 0, 0)


def test_a_signal_before_the_worker_listens_is_a_clean_stop_too(start):
    process = start()
    time.sleep(0.35)
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode in (0, -signal.SIGTERM)  # the latter while Python itself was still starting


def test_a_worker_that_stopped_by_itself_exits_with_1(treadle, monkeypatch):
    monkeypatch.setattr("treadle.worker.Worker.run", lambda self, **_: setattr(self, "exhausted", True))
    stopped = treadle("worker")
    assert stopped.code == 1
    assert stopped.err.splitlines()[-1].startswith("error: the worker stopped by itself")


def test_an_app_with_its_own_logging_keeps_it(treadle, start, project):
    (project / "tasks.py").write_text(
        "import logging, sys\nlogging.basicConfig(level=logging.INFO, format='OWN %(message)s')\n"
        + (project / "tasks.py").read_text()
    )
    process = start("--name", "w1")
    line = ""
    while "OWN worker w1" not in line:
        line = process.stderr.readline()
        assert line
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 0
