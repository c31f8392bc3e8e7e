"""`treadle worker`, as the process it is."""

import json
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import forks


@pytest.fixture
def start(project: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start workers of tasks:app; whoever still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "treadle", "worker", "--app", "tasks:app", "--poll", "0.1", *options]
        process = forks.Popen(
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


def told(process: subprocess.Popen[str], words: str) -> None:
    """Wait until the worker has written a line with these words on stderr."""
    for line in process.stderr:
        if words in line:
            return
    pytest.fail(f"it never said {words!r}")


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


@pytest.mark.parametrize("way", ["option", "setting"])
def test_the_log_is_json_where_the_option_or_the_setting_says_so(ready, monkeypatch, way):
    if way == "setting":
        monkeypatch.setenv("TREADLE_LOG_FORMAT", "json")
    done = ready("worker", "--until-idle", *(["--log-format", "json"] if way == "option" else []))
    assert done.out == ""
    assert "worker starts" in [json.loads(line)["message"] for line in done.err.splitlines()]
    bad = ready("worker", "--until-idle", "--log-format", "xml")
    assert (bad.code, bad.out) == (2, "")
    assert "log_format: 'xml'" in bad.err
    assert "it must be text or json" in bad.err


def test_a_worker_tells_where_its_metrics_are_and_which_port_it_cannot_take(ready):
    done = ready("worker", "--until-idle", "--metrics-port", "0")
    assert done.code == 0
    assert "  metrics http://127.0.0.1:" in done.err
    refused = ready("worker", "--until-idle", "--metrics-port", "0", "--metrics-host", "192.0.2.1")
    assert (refused.code, refused.out) == (2, "")
    assert "metrics_port: cannot listen on 192.0.2.1:0" in refused.err


@pytest.fixture
def old_sqlite(monkeypatch):
    """As if this SQLite were one with the WAL-reset bug, as the stock one of Debian is."""
    monkeypatch.setattr("treadle.engines.sqlite.schema.WAL_RESET_FIXED", (999,))


def test_a_worker_on_an_old_sqlite_starts_with_one_calm_line_and_doctor_tells_more(ready, old_sqlite):
    started = ready("worker", "--until-idle")
    assert started.code == 0
    [line] = [line for line in started.err.splitlines() if "SQLite" in line]
    assert line == (
        f"  note    SQLite {sqlite3.sqlite_version}: back the file up if several processes write to it; "
        "`treadle doctor` says why"
    )
    assert not re.search("warning|damage|bug", started.err)
    told = ready("doctor")
    assert told.code == 0
    assert f"! warning SQLite {sqlite3.sqlite_version} has the WAL-reset bug (fixed in 3.51.3)" in told.out
    assert {one.keys() == {"level", "text"} for one in ready("doctor", "--json").json["findings"]} == {True}


def test_in_json_logs_the_line_about_an_old_sqlite_is_information(ready, old_sqlite):
    lines = [json.loads(line) for line in ready("worker", "--until-idle", "--json").err.splitlines()]
    [line] = [line for line in lines if "SQLite" in line["message"]]
    assert (line["level"], line["message"].startswith("SQLite")) == ("info", True)
    assert "warning" not in {line["level"] for line in lines}


def test_other_warnings_are_still_warnings_at_the_start(ready, monkeypatch):
    monkeypatch.setenv("TREADLE_URL", "sqlite:///treadle.db?synchronous=normal")
    assert "warning: synchronous=normal: a power cut may undo" in ready("worker", "--until-idle").err


def test_a_second_signal_does_not_wait_for_what_runs(treadle, start, project):
    mark = project / "started"
    treadle("enqueue", "long", json.dumps({"path": str(mark)}))
    process = start("--grace", "50s")
    until(mark.exists)
    process.send_signal(signal.SIGINT)
    told(process, "INFO    stopping: jobs at work (1) may run for 50 s more")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)  # it waits for the job
    process.send_signal(signal.SIGINT)
    told(process, "second signal")
    process.communicate(timeout=20)
    assert process.returncode == 0
    [job] = treadle("jobs", "list", "--json").json["jobs"]
    assert (job["state"], job["failures"], job["crashes"]) == ("pending", 0, 0)


SLOW_IMPORT = """
import os, sys, time
print("importing", file=sys.stderr, flush=True)
try:
    while not os.path.exists("go"):
        time.sleep(0.01)
except BaseException as error:
    print("the import saw", repr(error), file=sys.stderr, flush=True)
print("imported", file=sys.stderr, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_app_is_imported_is_a_clean_stop_that_the_app_does_not_see(start, project, number):
    (project / "tasks.py").write_text(SLOW_IMPORT + (project / "tasks.py").read_text())
    process = start("--json", "--name", "w1")
    told(process, "importing")
    process.send_signal(number)
    (project / "go").touch()
    rest = process.stderr.read()
    assert (process.wait(20), rest) == (0, "imported\n")  # not even a banner
    assert json.loads(process.stdout.read()) == {"worker": "w1", "exhausted": False}
    assert not (project / "treadle.db").exists()


def test_a_second_signal_ends_an_import_that_hangs(start, project):
    (project / "tasks.py").write_text(SLOW_IMPORT)
    process = start()
    told(process, "importing")

    def gone() -> bool:
        process.terminate()
        return process.poll() is not None

    until(gone)
    assert process.returncode == -signal.SIGTERM


def test_a_signal_after_the_import_stops_the_worker_before_it_runs(treadle, monkeypatch):
    monkeypatch.setattr("treadle.app.treadle.Treadle.doctor", lambda *_, **__: signal.raise_signal(15) or [])
    monkeypatch.setattr("treadle.worker.worker.Worker.run", lambda self, **_: pytest.fail("it ran"))
    assert treadle("worker").code == 0


def test_a_signal_just_before_the_worker_listens_is_not_lost(treadle, monkeypatch):
    from treadle.worker.worker import Worker

    run = Worker.run
    monkeypatch.setattr(Worker, "run", lambda self, **how: signal.raise_signal(signal.SIGTERM) or run(self, **how))
    stopped = treadle("worker", "--name", "w1", "--json")
    assert stopped.code == 0
    assert "worker w1 stopped" in stopped.err


def test_a_worker_that_stopped_by_itself_exits_with_1(treadle, monkeypatch):
    monkeypatch.setattr("treadle.worker.worker.Worker.run", lambda self, **_: setattr(self, "exhausted", True))
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
