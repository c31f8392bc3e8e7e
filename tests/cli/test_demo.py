"""The demo: what a person sees of treadle first."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pytest

from treadle.cli.terminal import console
from treadle.demo.crew import Crew
from treadle.demo.show import Picture
from treadle.demo.story import Ending, HeldJob, Killed, Moment, Report, ending, problems
from treadle.model import Job, Reason, State, new_id

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DEMO = [sys.executable, "-m", "treadle", "demo"]


def job(state: State = State.SUCCEEDED, reason: Reason | None = None, attempt: int = 1) -> Job:
    return Job(new_id(), "send_mail", "{}", NOW, NOW, state=state, reason=reason, attempt=attempt)


def report(**fields: object) -> Report:
    held = HeldJob(new_id(), "send_mail", 1, 2, "succeeded", 2.1)
    made = Report(
        seconds=8.0,
        attempts=3,
        expected=Counter({Ending.SUCCEEDED: 2}),
        found=Counter({"succeeded": 2}),
        problems=[],
        killed=Killed("worker-2", 7, NOW, [job()]),
        held=[held],
        waits={"urgent": 0.1, "ordinary": 2.0},
        url="sqlite:////tmp/demo.db",
        kept=False,
        example=new_id(),
    )
    return made._replace(**fields)


def told(monkeypatch: pytest.MonkeyPatch, report: Report) -> None:
    """Let the demo end at once, with this report."""

    class Played:
        dashboard = None

        def run(self, keep: bool) -> Report:
            return report._replace(kept=keep)

    monkeypatch.setattr("treadle.demo.show.prepared", lambda show, **options: nullcontext(Played()))


def in_folder(folder: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder)}


@pytest.mark.slow
def test_the_demo_loses_nothing_and_tidies_up(project):
    (project / "treadle.toml").write_text("nonsense = 1")  # settings of yours play no part
    done = subprocess.run(
        [*DEMO, "--json"], capture_output=True, text=True, env=in_folder(project), timeout=90, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["ok"] is True
    assert told["problems"] == []
    assert told["found"] == told["expected"]
    assert told["expected"] == {
        "succeeded": 270, "gave_up": 8, "attempts_spent": 6, "cancelled_waiting": 10, "cancelled_running": 1,
        "expired": 5,
    }  # fmt: skip
    assert told["jobs"] == 300
    assert told["killed"]["held"]
    for held in told["killed"]["held"]:
        assert held["attempt"] > held["killed_at_attempt"]
        assert held["recovered_after"] > 0
    assert not list(project.glob("treadle-demo-*"))


def test_an_interrupted_demo_leaves_no_process_and_no_file(project):
    process = subprocess.Popen(DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=in_folder(project))
    pids: list[int] = []
    while not pids:
        line = process.stdout.readline()
        assert line
        pids = [int(pid) for pid in re.findall(r"\d+", line.partition("pids ")[2].partition(")")[0])]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert len(pids) == 3
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not list(project.glob("treadle-demo-*"))


def test_jobs_as_expected_are_no_problem():
    good, bad = job(), job(State.FAILED, Reason.PERMANENT)
    assert problems({good.id: Ending.SUCCEEDED, bad.id: Ending.GAVE_UP}, [good, bad]) == []


def test_lost_strange_and_wrong_jobs_are_problems():
    lost, stranger, stuck = job(), job(), job(State.RUNNING)
    said = problems({lost.id: Ending.SUCCEEDED, stuck.id: Ending.SUCCEEDED}, [stranger, stuck])
    assert said == [
        f"1 jobs are lost: {lost.id}",
        f"1 jobs appeared that nobody stored: {stranger.id}",
        f"job {stuck.id} (send_mail) should have ended succeeded but is running",
    ]


def test_many_wrong_jobs_are_summed_up():
    jobs = [job(State.PENDING) for _ in range(9)]
    said = problems({one.id: Ending.SUCCEEDED for one in jobs}, jobs)
    assert len(said) == 6
    assert said[-1] == "and 4 more like that"


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (job(), "succeeded"),
        (job(State.FAILED, Reason.PERMANENT), "gave_up"),
        (job(State.FAILED, Reason.EXHAUSTED), "attempts_spent"),
        (job(State.FAILED, Reason.CRASHED), "failed (crashed)"),
        (job(State.CANCELLED, Reason.BY_REQUEST), "cancelled_running"),
        (job(State.CANCELLED, Reason.BY_REQUEST, attempt=0), "cancelled_waiting"),
        (job(State.CANCELLED, Reason.EXPIRED), "expired"),
        (job(State.PENDING), "pending"),
    ],
)
def test_an_ending_is_read_from_the_job(one, said):
    assert ending(one) == said


def test_a_demo_that_went_wrong_fails_and_says_why(call, monkeypatch):
    wrong = report(found=Counter({"succeeded": 1, "pending": 1}), problems=["2 jobs are lost: x, y", "and more"])
    told(monkeypatch, wrong)
    shown = call("demo")
    assert shown.code == 1
    assert shown.err == "error: the demo went wrong: 2 jobs are lost: x, y (and 1 more)\n"
    assert "✗ succeeded" in shown.out
    assert "Nothing was lost" not in shown.out
    machine = call("demo", "--json")
    assert (machine.code, machine.json["ok"], machine.json["found"]["pending"]) == (1, False, 1)


def test_the_summary_of_a_good_demo_reads_well_in_a_pipe(call, monkeypatch):
    good = report()
    told(monkeypatch, good)
    shown = call("demo")
    assert shown.code == 0
    assert "Nothing was lost." in shown.out
    assert re.search(rf"{good.held[0].id}  send_mail +1 → 2 +2.1 s  ✓ succeeded\n", shown.out)
    assert "demo --keep" in shown.out
    assert "demo --serve" in shown.out
    kept = call("demo", "--keep")
    assert f"export TREADLE_URL={good.url}\n" in kept.out
    assert f"jobs show {good.example}" in kept.out


def test_the_picture_shows_outcomes_workers_and_the_story(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    crew = Crew(tmp_path, "")
    crew.processes["worker-1"] = subprocess.Popen([sys.executable, "-c", ""])
    crew.processes["worker-1"].wait()
    running = job(State.RUNNING).evolve(worker="worker-1")
    jobs = [job(), running]
    with Picture(console()) as picture:
        picture.link("the dashboard is at http://127.0.0.1:40000/login?code=" + "x" * 60)
        picture.tell(0.5, "killed worker-1 [red]")
        picture.look(Moment(1.0, jobs, crew, {one.id: Ending.SUCCEEDED for one in jobs}))
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().out)
    for words in (
        "?code=" + "x" * 60 + "\n",
        "treadle demo",
        "1 of 2",
        "worker-1",
        "■",
        "0.5 s  killed worker-1 [red]",
    ):
        assert words in shown
