"""shell.run: a command ends with its attempt, with all that it has started."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builtin.commands import (
    AT_ONCE,
    CAREFUL,
    FAMILY,
    ORPHAN,
    PYTHON,
    STUBBORN,
    STUBBORN_ALONE,
    Family,
    family_of,
    result,
    runs,
    script,
    wrapped,
)
from tests.support import forks, processes
from tests.support.workbench import ended, in_state, until, working
from treadle import Reason, Retry, State, Treadle
from treadle.builtin import shell_process, shell_run
from treadle.builtin.shell_run import ShellCommand
from treadle.model.memo import MemoState
from treadle.testing import run_until_idle


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    with family_of(tmp_path / "family") as made:
        yield made


def test_at_its_timeout_it_is_ended_with_its_children_and_the_attempt_has_failed(app: Treadle, family: Family) -> None:
    job = result(app, ShellCommand(script(FAMILY, str(family.file)), timeout="1s"))
    assert (job.state, job.error.message) == (State.PENDING, "command 'it': ran longer than its timeout of 1 s")
    assert family.gone()


def test_one_that_does_not_heed_is_killed(app: Treadle, family: Family) -> None:
    began = time.monotonic()
    job = result(app, ShellCommand(script(STUBBORN, str(family.file)), timeout="1s", kill_after="200ms"))
    assert job.state is State.PENDING
    assert family.gone()
    assert time.monotonic() - began < 20


def test_what_a_command_has_started_gets_its_time_to_end_although_the_command_is_gone(
    app: Treadle, family: Family, tmp_path: Path
) -> None:
    job = result(app, ShellCommand(["sh", "-c", *wrapped(CAREFUL, str(family.file))], timeout="1s", kill_after="20s"))
    assert job.state is State.PENDING
    assert family.gone()
    assert Path(f"{family.file}.closed").exists()


def test_a_command_that_leaves_its_group_is_killed_too(app: Treadle, family: Family) -> None:
    leaves = "import os; os.setpgid(0, os.getpgid(os.getppid()))\n" + STUBBORN_ALONE
    job = result(app, ShellCommand(script(leaves, str(family.file)), timeout="1s", kill_after="200ms"))
    assert job.error.message == "command 'it': ran longer than its timeout of 1 s"
    assert family.gone()


def test_a_command_that_cannot_be_killed_is_said_to_run_on_and_is_not_run_beside_itself(
    app: Treadle, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell_process, "REPORTED_WITHIN", 0.2)
    stops_its_killer = "import os, signal; os.kill(os.getppid(), signal.SIGSTOP)\n" + STUBBORN_ALONE
    job = result(app, ShellCommand(script(stops_its_killer, str(family.file)), timeout="1s", kill_after="100ms"))
    assert (job.state, job.reason) == (State.FAILED, Reason.PERMANENT)
    assert job.error.message.endswith("its timeout of 1 s and could not be killed: it may still run")
    assert runs(family.pids()[0])


def test_orphans_of_a_command_come_to_the_process_that_watches_and_leave_no_zombie(family: Family) -> None:
    words = [PYTHON, "-I", "-S", "-c", ORPHAN, str(family.file)]
    given = b"".join(b"\0" + word.encode() for word in words)
    watch = [PYTHON, "-I", "-S", str(shell_process.WATCH), str(os.getpid()), "5"]
    with subprocess.Popen(watch, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdin.write(b"%10d%10d" % (len(words), len(given)) + given)
        process.stdin.flush()
        orphan, _, parent = family.pids()
        assert parent == process.pid
        assert process.stderr.read().endswith(b"exit 0\n")
    assert not Path(f"/proc/{orphan}").exists()  # nor is it a zombie


def test_cancelling_the_job_ends_the_command(make_app: Callable[..., Treadle], family: Family) -> None:
    app = make_app(clock=None, watch=0.05)
    shell_run.register(app, {"it": script(FAMILY, str(family.file))})
    with working(app):
        job = app.enqueue("shell.run", {"command": "it"})
        pids = family.pids()
        app.cancel(job.id)
        in_state(app, job, state=State.CANCELLED)
        assert not any(map(runs, pids[:2]))  # it had ended before the job had


def test_a_worker_that_stops_ends_the_command_and_gives_the_job_back(
    make_app: Callable[..., Treadle], family: Family
) -> None:
    app = make_app(clock=None)
    shell_run.register(app, {"it": ShellCommand(script(STUBBORN, str(family.file)), kill_after="20s")})
    with working(app, grace=0.1) as worker:
        job = app.enqueue("shell.run", {"command": "it"})
        family.pids()
        worker.stop()
        began = time.monotonic()
    assert (app.get(job.id).state, app.get(job.id).failures) == (State.PENDING, 0)
    assert family.gone()
    assert time.monotonic() - began < 10  # a worker that stops does not wait for its 20 s


def test_the_command_ends_although_the_process_that_watches_it_is_killed(
    make_app: Callable[..., Treadle], family: Family
) -> None:
    app = make_app(clock=None)
    shell_run.register(app, {"it": script(FAMILY, str(family.file))}, retry=Retry(max_attempts=1))
    with working(app):
        job = app.enqueue("shell.run", {"command": "it"})
        os.kill(family.pids()[2], signal.SIGKILL)
        [job] = ended(app, job)
    assert "the process that watched it was killed" in job.error.message
    assert family.gone()


WORKER = """
import os, signal, sys
from treadle import Treadle
from treadle.builtin import shell_process, shell_run
from treadle.builtin.shell_run import ShellCommand

shell_process.ALONE = 0.2
app = Treadle(sys.argv[1])
once = sys.argv[2] == "once"
shell_run.register(app, {"it": ShellCommand(sys.argv[3:], kill_after="20s", once=once)})


@app.task
def fork(file):  # a child that has all that its parent has
    if os.fork() == 0:
        with open(file + ".new", "w") as told:
            told.write(str(os.getpid()))
        os.rename(file + ".new", file)
        signal.pause()


app.run_worker(lease=1.0, poll=0.05)
"""


@pytest.fixture
def doomed(store_url: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a worker of WORKER in a process."""
    started: list[subprocess.Popen[bytes]] = []

    def start(once: str, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", WORKER, store_url, once, *words]
        started.append(forks.Popen(command, env=processes.environment(), stderr=subprocess.DEVNULL))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("once", ["once", "again"])
def test_a_worker_that_is_killed_leaves_no_command_and_the_next_attempt_runs_it_again_unless_it_is_for_once(
    once: str, make_app: Callable[..., Treadle], doomed: Any, family: Family
) -> None:
    app = make_app(clock=None)
    shell_run.register(app, {"it": ShellCommand(["echo", "again"], once=once == "once")}, retry=AT_ONCE)
    process = doomed(once, *script(STUBBORN, str(family.file)))
    job = app.enqueue("shell.run", {"command": "it"})
    family.pids()
    process.send_signal(signal.SIGKILL)
    assert family.gone()  # the command that heeds no SIGTERM, its child, and the process that watched them
    with working(app, lease=1.0):
        [job] = ended(app, job)
    if once == "once":
        assert (job.state, job.reason, job.error.type) == (State.FAILED, Reason.PERMANENT, "treadle.errors.Parked")
        assert [memo.state for memo in app.memos(job)] == [MemoState.PARKED]
    else:
        assert (job.state, job.attempt, job.result["output"]) == (State.SUCCEEDED, 2, "again\n")


def test_a_command_ends_with_its_worker_although_a_child_of_the_worker_lives_on(
    make_app: Callable[..., Treadle], doomed: Any, family: Family, tmp_path: Path
) -> None:
    app = make_app(clock=None)
    shell_run.register(app, {"it": ["echo"]})
    process = doomed("again", *script(STUBBORN, str(family.file)))
    app.enqueue("shell.run", {"command": "it"})
    family.pids()
    app.enqueue("fork", {"file": str(tmp_path / "child")}, checked=False)
    child = int(until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text(), "the child"))
    try:
        process.send_signal(signal.SIGKILL)
        began = time.monotonic()
        assert family.gone()
        assert time.monotonic() - began < 15  # nobody waits for the 20 s of the command when its worker is dead
        assert runs(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_command_for_once_that_was_cut_off_waits_for_a_person_and_one_that_failed_is_run_again(
    app: Treadle, tmp_path: Path
) -> None:
    slow = ShellCommand(["sleep", "300"], timeout="300ms", once=True)
    fails = ShellCommand(script(f"import sys; open({str(tmp_path / 'ran')!r}, 'a').write('x'); sys.exit(3)"), once=True)
    shell_run.register(app, {"slow": slow, "fails": fails, "good": ShellCommand(["echo"], once=True)}, retry=AT_ONCE)
    jobs = [app.enqueue("shell.run", {"command": name}) for name in ("slow", "fails", "good")]
    run_until_idle(app)
    first, second, third = (app.get(job.id) for job in jobs)
    assert (first.reason, first.attempt) == (Reason.PERMANENT, 1)
    assert first.error.message.startswith("command 'slow': once 'run': nobody knows whether it has happened")
    assert (second.reason, second.attempt, (tmp_path / "ran").read_text()) == (Reason.EXHAUSTED, 2, "xx")
    assert (third.state, third.result["output"]) == (State.SUCCEEDED, "\n")


@pytest.mark.parametrize(
    ("on_ambiguous", "attempts", "result"), [("skip", 1, {"unconfirmed": True}), ("send", 2, None)]
)
def test_a_command_for_once_that_was_cut_off_counts_as_done_or_runs_again_as_it_was_said(
    app: Treadle, on_ambiguous: Any, attempts: int, result: Any
) -> None:
    slow = ShellCommand(["sleep", "300"], timeout="300ms", once=True, on_ambiguous=on_ambiguous)
    shell_run.register(app, {"slow": slow}, retry=AT_ONCE)
    job = app.enqueue("shell.run", {"command": "slow"})
    run_until_idle(app)
    assert (app.get(job.id).attempt, app.get(job.id).result) == (attempts, result)
