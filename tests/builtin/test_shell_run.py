"""shell.run: words and no shell, and commands that end with their attempt, with all that they have started."""

import os
import shutil
import signal
import subprocess
import sys
import time
from ast import literal_eval
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import forks, processes
from tests.support.workbench import ended, in_state, until, working
from treadle import ConfigError, InvalidPayload, Job, Reason, Retry, State, Treadle
from treadle.builtin import shell_process, shell_run
from treadle.builtin.shell_commands import USUAL_VARIABLES
from treadle.builtin.shell_run import ShellCommand
from treadle.model.memo import MemoState
from treadle.testing import run_until_idle

PYTHON = sys.executable
AT_ONCE = Retry(max_attempts=2, base=0, cap=0, jitter=0)
FAMILY = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "300"])
with open(sys.argv[1] + ".new", "w") as file:
    file.write(f"{os.getpid()} {child.pid} {os.getppid()}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
child.wait()
"""  # a program that waits for another one, and says who they are
ALONE = """
with open(sys.argv[1] + ".new", "w") as file:
    file.write(f"{os.getpid()} {os.getpid()} {os.getppid()}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
"""  # says who it is, without a child
STUBBORN_ALONE = f"""
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
{ALONE}
while True: signal.pause()
"""
CAREFUL = f"""
import os, signal, sys, time
parent = os.getppid()
def close(*_):
    while os.getppid() == parent: pass
    time.sleep(0.3)
    open(sys.argv[1] + ".closed", "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, close)
{ALONE}
while True: signal.pause()
"""  # asked to end, it closes something after its parent is gone
ORPHAN = f"""
import os, signal, sys
if os.fork():
    while not os.path.exists(sys.argv[1]): pass
    os._exit(0)
child = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == child: pass
{ALONE}
signal.pause()
"""  # a grandchild, which says who its parent is when the child is gone
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);\n" + FAMILY


def script(text: str, *words: str) -> list[str]:
    return [PYTHON, "-I", "-S", "-c", text, *words]


def runs(pid: int) -> bool:
    """Whether there is such a process, other than a dead one that nobody has asked about."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wrapped(text: str, *words: str) -> list[str]:
    """A shell's script that runs this one, and goes on afterwards; with its arguments."""
    return ['"$@"; true', "sh", *script(text, *words)]


class Family:
    """The processes of FAMILY, once they run."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def pids(self) -> list[int]:
        until(self.file.exists, "the command")
        return [int(pid) for pid in self.file.read_text("utf-8").split()]

    def gone(self) -> bool:
        return bool(until(lambda: not any(map(runs, self.pids())), lambda: f"the end of {self.pids()}"))


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    made = Family(tmp_path / "family")
    yield made
    for pid in made.pids():
        if runs(pid):
            os.kill(pid, signal.SIGKILL)


def result(app: Treadle, command: Any, **values: Any) -> Job:
    """The job of a command, after one attempt."""
    shell_run.register(app, {"it": command}, retry=Retry(base=60, jitter=0))
    job = app.enqueue("shell.run", {"command": "it", "values": values})
    run_until_idle(app)
    return app.get(job.id)


# ---------------------------------------------------------------------------------------------- words and values


def test_a_command_gets_its_words_as_they_are_and_no_shell_reads_them(app: Treadle) -> None:
    show = script(
        "import sys; print(sys.argv[1:])", "--to={a}{b}", "{a}", "{{a}}", "$HOME; *", '{"x": {"y": 1}}', "{c}"
    )
    job = result(app, ShellCommand(show, patterns={"c": ".*"}), a="$(id) 'x' \"é\n", b=2.5, c="")
    told = ["--to=$(id) 'x' \"é\n2.5", "$(id) 'x' \"é\n", "{a}", "$HOME; *", '{"x": {"y": 1}}', ""]
    assert (job.state, job.result["code"], job.result["output"]) == (State.SUCCEEDED, 0, f"{told}\n")
    assert job.result["ms"] >= 0


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({"command": "rm"}, r"command: 'rm' is not allowed here; known: echo"),
        ({"command": "echo"}, r"values: name, what must be given for the command 'echo'"),
        ({"command": "echo", "values": {"what": 1, "name": "a", "x": 1}}, r"has no x; it has name, what"),
        ({"command": "echo", "values": {"what": "-n", "name": "a"}}, r"what must not begin with '-'.*allow_dash"),
        ({"command": "echo", "values": {"what": -1, "name": "a"}}, r"what must not begin with '-'"),
        ({"command": "echo", "values": {"what": True, "name": "a"}}, r"what must be text or a number"),
        ({"command": "echo", "values": {"what": ["a"], "name": "a"}}, r"what must be text or a number"),
        ({"command": "echo", "values": {"what": None, "name": "a"}}, r"what must be text or a number"),
        ({"command": "echo", "values": {"what": "a" * 10_001, "name": "a"}}, r"at most 10,000 characters"),
        ({"command": "echo", "values": {"what": "", "name": "a"}}, r"what must not be empty; a pattern"),
        ({"command": "echo", "values": {"what": "a", "name": ""}}, r"name must match"),
        ({"command": "echo", "values": {"what": "a", "name": "../a"}}, r"name must match \[a-z\]\+"),
        ({"command": "echo", "values": {"what": "a", "name": "a\n"}}, r"name must match"),
        ({"command": "echo", "words": []}, r"words"),
        ({}, r"command"),
    ],
)
def test_a_payload_that_does_not_fit_is_refused_by_its_field(payload: Any, words: str, app: Treadle) -> None:
    command = ShellCommand(["echo", "{what}", "--name={name}"], patterns={"name": "[a-z]+"})
    task = shell_run.register(app, {"echo": command})
    with pytest.raises(InvalidPayload, match=words):
        task.enqueue_payload(payload)
    with pytest.raises(InvalidPayload):
        task.enqueue_payload({"command": "echo", "values": {"what": "a\0b", "name": "a"}})


def test_a_value_may_begin_with_a_dash_behind_other_text_or_where_it_is_allowed(app: Treadle) -> None:
    shell_run.register(app, {"a": ["echo", "x{v}"], "b": ShellCommand(["echo", "{v}"], allow_dash=True)})
    jobs = [app.enqueue("shell.run", {"command": name, "values": {"v": "-e"}}) for name in "ab"]
    run_until_idle(app)
    assert [app.get(job.id).result["output"] for job in jobs] == ["x-e\n", "\n"]


def test_a_job_that_is_no_longer_allowed_ends_without_a_run(app: Treadle, make_app: Callable[..., Treadle]) -> None:
    shell_run.register(make_app(), {"old": ["echo"]}).enqueue_payload({"command": "old"})
    shell_run.register(app, {"new": ["echo"]})
    [ran] = run_until_idle(app)
    assert (ran.state, ran.reason) == (State.FAILED, Reason.INVALID_PAYLOAD)
    assert "'old' is not allowed here; known: new" in ran.error.message


@pytest.mark.parametrize(
    ("commands", "words"),
    [
        ({}, "no command is allowed"),
        ({"a": "ls -l"}, "command 'a': write a list of words"),
        ({"a": []}, "write a list of words"),
        ({"a": ["ls", 5]}, "each word must be text"),
        ({"a": ["ls", "a\0b"]}, "without NUL"),
        ({"a": ["{program}"]}, "the program cannot be a placeholder"),
        ({"a": ShellCommand(["ls"], timeout="soon")}, "command 'a': timeout"),
        ({"a": ShellCommand(["ls"], timeout=-1)}, "timeout"),
        ({"a": ShellCommand(["ls"], kill_after="1h")}, "kill_after: must be more than 0 and at most 20 s"),
        ({"a": ShellCommand(["ls"], timeout=0)}, "timeout: must be more than 0"),
        ({"a": ["sh", "-c", "echo {x}"]}, r"the script of sh cannot have a placeholder.*\"-c\", 'tar -cf \"\$1\" "),
        ({"a": ["env", "A=b", "/bin/bash", "-o", "pipefail", "-ec", "--", "a | {x}"]}, "the script of /bin/bash"),
        ({"a": ShellCommand(["ls"], env={"A B": "x"})}, "env: 'A B' is not the name of a variable"),
        ({"a": ShellCommand(["ls"], env={"A": 5})}, "env: the value of A must be text"),
        ({"a": ShellCommand(["ls"], inherit=["A="])}, "inherit: 'A=' is not the name"),
        ({"a": ShellCommand(["ls"], patterns={"x": "a"})}, "patterns: there is no placeholder x"),
        ({"a": ShellCommand(["ls", "{x}"], patterns={"x": "["})}, "is not a regular expression"),
        ({"a": ShellCommand(["ls"], on_ambiguous="maybe")}, "on_ambiguous: 'maybe' must be"),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_registered(commands: Any, words: str, app: Treadle) -> None:
    with pytest.raises(ConfigError, match=words):
        shell_run.register(app, commands)
    assert "shell.run" not in app.tasks


# ------------------------------------------------------------------------------------------- how a command ends


def test_another_exit_code_than_zero_is_a_failed_attempt_with_its_last_lines(app: Treadle) -> None:
    job = result(app, script("import sys; print('begun', flush=True); sys.exit('no space left')"))
    assert (job.state, job.failures) == (State.PENDING, 1)
    assert job.error.message == "command 'it': exit code 1: begun\nno space left"
    assert job.error.type.endswith("CommandFailed")


def test_a_code_of_give_up_ends_the_job_and_a_signal_is_named(app: Treadle) -> None:
    job = result(app, ShellCommand(script("import sys; sys.exit(2)"), give_up=(2,)))
    assert (job.state, job.reason, job.error.message) == (State.FAILED, Reason.PERMANENT, "command 'it': exit code 2")


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "PIPE", "KILL"])
def test_a_signal_that_ended_it_is_named_and_none_is_ignored_from_the_start(app: Treadle, name: str) -> None:
    job = result(app, ["sh", "-c", "kill -s $1 $$; echo it goes on", "sh", "{name}"], name=name)
    assert (job.state, job.error and job.error.message) == (State.PENDING, f"command 'it': ended by SIG{name}")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["no-such-program"], "there is no program 'no-such-program'; install it"),
        (["/etc/passwd"], "there is no program '/etc/passwd'"),
        (ShellCommand(["ls"], cwd="/no/such/place"), "cwd: there is no directory /no/such/place"),
    ],
)
def test_a_program_or_folder_that_is_not_there_ends_the_job_by_its_name(command: Any, words: str, app: Treadle) -> None:
    job = result(app, command)
    assert (job.state, job.reason) == (State.FAILED, Reason.PERMANENT)
    assert words in job.error.message


def test_a_file_that_is_no_program_says_so(app: Treadle, tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("no program")
    (tmp_path / "tool").chmod(0o755)
    job = result(app, ShellCommand(["./tool"], cwd=tmp_path))
    assert (job.reason, job.error.message.rpartition(": ")[2]) == (Reason.PERMANENT, "Exec format error")


def test_a_program_that_is_being_written_is_tried_again(app: Treadle, tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    shutil.copy(os.path.realpath(PYTHON), tool)
    with tool.open("r+b"):
        job = result(app, [str(tool)])
    assert (job.state, job.error.message) == (
        State.PENDING,
        f"command 'it': {tool} cannot be run for now: Text file busy",
    )


def test_the_last_64_kilobytes_are_kept_as_text_that_can_be_stored(app: Treadle) -> None:
    writes = r"import os; [os.write(1, b'x' * 999 + b'\n') for _ in range(3000)]; os.write(2, b'\xff\0 end')"
    job = result(app, script(writes))
    output = job.result["output"]
    assert len(output.encode()) <= 64 * 1024
    assert len(output) > 65_000
    assert output.endswith("x\n\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER} end")


def test_what_it_leaves_behind_ends_with_it_and_does_not_keep_the_job(app: Treadle, family: Family) -> None:
    leaves = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-I', '-S', '-c', sys.argv[2], sys.argv[1]])\n"
    leaves += "import os\nwhile not os.path.exists(sys.argv[1]): pass\n"
    job = result(app, script(leaves, str(family.file), FAMILY))
    assert job.state is State.SUCCEEDED
    assert family.gone()


def test_a_process_that_left_the_group_and_holds_the_output_does_not_keep_the_job(app: Treadle, family: Family) -> None:
    away = "import os\nos.setsid()\n" + FAMILY
    leaves = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-I', '-S', '-c', sys.argv[2], sys.argv[1]])\n"
    leaves += "import os\nwhile not os.path.exists(sys.argv[1]): pass\n"
    job = result(app, script(leaves, str(family.file), away))
    assert job.state is State.SUCCEEDED
    assert all(map(runs, family.pids()[:2]))  # as the page says: nobody finds it


# -------------------------------------------------------------------------------------------------- environment


def test_a_command_gets_a_few_variables_what_it_was_given_and_nothing_of_the_worker(
    app: Treadle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "hush-hush-hush")
    monkeypatch.setenv("PGPASSWORD", "whisper-whisper")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    show = "import os; print(sorted(os.environ)); print(os.getcwd(), os.environ['A'], os.environ['PGPASSWORD'])"
    command = ShellCommand(script(show), env={"A": "b"}, inherit=["PGPASSWORD", "ABSENT"], cwd=tmp_path)
    job = result(app, command)
    names, values = job.result["output"].splitlines()
    assert {"A", "PATH", "PGPASSWORD"} <= {*literal_eval(names)} <= {"A", "PGPASSWORD", "LC_CTYPE", *USUAL_VARIABLES}
    assert values == f"{tmp_path} b ***"  # what it has from the worker is not shown


def test_the_process_that_watches_has_no_variables_and_adds_none(app: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "hush-hush-hush")
    for name in ("LANG", "LC_ALL", "LC_CTYPE"):
        monkeypatch.delenv(name, raising=False)
    command = ShellCommand(["sh", "-c", "env; cat /proc/$PPID/environ"], env={"LD_PRELOAD": "/no/such.so"})
    output = result(app, command).result["output"]
    assert "LC_CTYPE" not in output.partition("PWD=")[0]
    assert "hush" not in output
    assert output.count("LD_PRELOAD=") == 1


def test_a_value_from_the_worker_is_not_in_errors_and_none_is_in_the_text_of_a_command(
    app: Treadle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PGPASSWORD", "whisper-whisper")
    fails = script("import os, sys; sys.exit(os.environ['PGPASSWORD'])")
    command = ShellCommand(fails, inherit=["PGPASSWORD"], env={"KEY": "hush-hush"})
    job = result(app, command)
    assert job.error.message == "command 'it': exit code 1: ***"
    assert "hush-hush" not in repr(command)
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"whisper-whisper" not in stored
    assert b"hush-hush" not in stored


# ------------------------------------------------------------------------------------------------ stopped in time


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
    began = time.monotonic()
    job = result(app, ShellCommand(script(leaves, str(family.file)), timeout="1s", kill_after="200ms"))
    assert job.state is State.PENDING
    assert family.gone()
    assert time.monotonic() - began < 4  # sooner than anybody would have given it up


def test_a_command_that_cannot_be_killed_is_said_to_run_on_and_is_not_run_beside_itself(
    app: Treadle, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell_process, "TOLD_OF_END", 0.2)
    stops_its_killer = "import os, signal; os.kill(os.getppid(), signal.SIGSTOP)\n" + STUBBORN_ALONE
    job = result(app, ShellCommand(script(stops_its_killer, str(family.file)), timeout="500ms", kill_after="100ms"))
    assert (job.state, job.reason) == (State.FAILED, Reason.PERMANENT)
    assert job.error.message.endswith("its timeout of 0.5 s and could not be killed: it may still run")
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
from treadle.builtin import shell_run
from treadle.builtin.shell_run import ShellCommand

app = Treadle(sys.argv[1])
once = sys.argv[2] == "once"
shell_run.register(app, {"it": ShellCommand(sys.argv[3:], kill_after="200ms", once=once)})


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
        assert family.gone()
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
    assert "nobody knows whether it has happened" in first.error.message
    assert (second.reason, second.attempt, (tmp_path / "ran").read_text()) == (Reason.EXHAUSTED, 2, "xx")
    assert (third.state, third.result["output"]) == (State.SUCCEEDED, "\n")


def test_what_a_command_for_once_has_written_is_remembered_whatever_its_characters(app: Treadle) -> None:
    job = result(app, ShellCommand(script(r"print('\x01' * 70_000, end='the end')"), once=True))
    assert job.state is State.SUCCEEDED
    assert job.result["output"].endswith("\x01\x01the end")
    assert len(job.result["output"]) > 30_000
