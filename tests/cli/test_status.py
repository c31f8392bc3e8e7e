"""`treadle status`, and what `doctor` says of jobs that nobody works on."""

import re
import signal
import subprocess
import sys
from datetime import timedelta

import pytest

from tests.support import forks
from treadle import Treadle
from treadle.engines.values import OVERWRITE
from treadle.model.records import WorkerInfo

STORE = "sqlite:///treadle.db"


def alive(name: str = "w1", **fields: object) -> None:
    """A worker that has just said that it is there."""
    app = Treadle(STORE)
    now = app.engine.now()
    info = WorkerInfo(name, "box", 7, ["default", "mail"], None, {"greet": 1}, 10, 0, False, now, now, 30.0)
    app.engine.save(info._replace(**fields), before=OVERWRITE)
    app.close()


@pytest.fixture
def night(ready, work):
    """Failures on mail, a success, and two jobs that wait on default; nobody works."""
    for text in ("one", "two"):
        ready("enqueue", "boom", f'{{"text": "{text}"}}')
    ready("enqueue", "give_up", '{"text": "no"}')
    work()
    ready("enqueue", "greet", '{"name": "Ada"}')
    ready("enqueue", "greet", '{"name": "Bob"}', "--run-after", "1h")
    return ready


def test_an_empty_store_is_well(ready):
    shown = ready("status")
    assert shown.code == 0
    assert "no jobs wait or run, and none ended in the last hour" in shown.out
    assert "no worker is alive" in shown.out


def test_the_overview_shows_depth_age_and_failures_by_queue_and_task(night):
    alive(running=17)
    shown = night("status")
    assert shown.code == 0
    rows = [re.split(r" {2,}", line.strip()) for line in shown.out.splitlines()]
    assert rows[0] == ["queue", "task", "waiting", "due", "oldest", "running", "ended", "failed"]
    assert rows[1][:4] == ["default", "2 tasks", "2", "1"]
    assert re.fullmatch(r"\d+ms|\d+\.\ds", rows[1][4])
    assert rows[1][5:] == ["-", "1", "1"]
    assert ["give_up", "-", "-", "-", "1", "1"] in rows
    assert ["mail", "boom", "-", "-", "-", "2", "2"] in rows
    assert ["error", "failed", "retrying"] in rows
    assert ["RuntimeError", "2", "-"] in rows
    assert "1 live worker: w1 10/10 +7" in shown.out


def test_jobs_that_are_due_and_no_worker_is_exit_code_1(night):
    shown = night("status")
    assert shown.code == 1
    assert "✗ 1 job is due and no worker is alive; start one with `treadle worker`" in shown.out
    machine = night("status", "--json")
    assert machine.code == 1
    assert (machine.json["ok"], machine.json["total"]["due"], machine.json["workers"]) == (False, 1, [])
    assert [error["type"] for error in machine.json["errors"]] == ["RuntimeError", "treadle.errors.GiveUp"]
    assert machine.json["rate"] == pytest.approx(3 / 3600)


def test_a_worker_of_another_queue_does_not_help(night):
    alive(queues=["mail"])
    shown = night("status")
    assert (shown.code, "1 job is due on queue default, which no live worker serves" in shown.out) == (1, True)
    alive(stopping=True)
    assert night("status").code == 1
    alive(seen_at=Treadle(STORE).engine.now() - timedelta(hours=1))
    assert "no worker is alive" in night("status").out


def test_pauses_are_shown(night):
    alive()
    night("pause", "--queue", "mail")
    assert "! paused: queue mail" in night("status").out


def test_doctor_says_that_nobody_works_with_the_exit_code_of_status(night):
    answer = night("doctor")
    assert (answer.code, answer.err) == (1, "")
    assert "✗ error   1 job is due and no worker is alive; start one with `treadle worker`" in answer.out
    machine = night("doctor", "--json")
    assert (machine.code, machine.json["ok"]) == (1, False)
    assert machine.json["findings"][-1]["level"] == "error"
    alive(queues=["mail"])
    assert (night("doctor").code, night("status").code) == (1, 1)
    alive()
    answer = night("doctor")
    assert (answer.code, "due" in answer.out) == (0, False)
    assert "jobs are due which no live worker serves" in " ".join(night("doctor", "--help").out.split())


def test_a_worker_that_starts_is_not_told_that_nobody_works(night):
    answer = night("worker", "--until-idle")
    assert answer.code == 0
    assert "no worker is alive" not in answer.err
    assert night("doctor").code == 0  # what was due is done


def test_numbers_that_were_cut_are_marked(ready, monkeypatch):
    monkeypatch.setattr("treadle.app.status.status.__kwdefaults__", {"limit": 3})
    for _ in range(5):
        ready("enqueue", "greet", '{"name": "Ada"}')
    ready("enqueue", "greet", '{"name": "Ada"}', "--queue", "mail")
    rows = [re.split(r" {2,}", line.strip()) for line in ready("status").out.splitlines()]
    assert rows[2][2:4] == ["3+", "3+"]
    assert rows[3][2:4] == ["1", "1"]
    assert "4+ jobs are due" in rows[0][0]


def test_watch_looks_again_until_it_is_interrupted(night, project):
    command = [sys.executable, "-m", "treadle", "status", "--watch", "--interval", "200ms"]
    with forks.Popen([*command, "--url", STORE], cwd=project, stdout=subprocess.PIPE, text=True) as process:
        looks = 0
        for line in process.stdout:
            looks += line.startswith("queue ")
            if looks == 3:
                break
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(30) == 130
