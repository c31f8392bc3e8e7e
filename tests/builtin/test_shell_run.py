"""shell.run: words and no shell, what a command gets, and how it ends."""

import os
import shutil
from ast import literal_eval
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builtin.commands import FAMILY, PYTHON, Family, family_of, result, runs, script
from treadle import ConfigError, InvalidPayload, Reason, State, Treadle
from treadle.builtin import shell_run
from treadle.builtin.shell_commands import USUAL_VARIABLES
from treadle.builtin.shell_run import ShellCommand, ShellRequest
from treadle.testing import run_until_idle


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    with family_of(tmp_path / "family") as made:
        yield made


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
        ({"command": "echo"}, r"command 'echo': values: name, what must be given"),
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
        (
            [("a", ["ls"])],
            r'shell.run: commands: must be a dict of commands by name: \{"backup": \["pg_dump", "shop"\]\}',
        ),
        ({"": ["ls"]}, "shell.run: command: '' is not a valid name"),
        ({5: ["ls"]}, "shell.run: command: 5 is not a valid name"),
        ({"a": "ls -l"}, "command 'a': ShellCommand: write a list of words"),
        ({"a": []}, "write a list of words"),
        ({"a": ["ls", 5]}, "each word must be text"),
        ({"a": ["ls", "a\0b"]}, "without NUL"),
        ({"a": ["{program}"]}, "the program cannot be a placeholder"),
        ({"a": ["sh", "-c", "echo {x}"]}, r"the script of sh cannot have a placeholder.*\"-c\", 'tar -cf \"\$1\" "),
        ({"a": ["env", "A=b", "/bin/bash", "-o", "pipefail", "-ec", "--", "a | {x}"]}, "the script of /bin/bash"),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_registered(commands: Any, words: str, app: Treadle) -> None:
    with pytest.raises(ConfigError, match=words):
        shell_run.register(app, commands)
    assert "shell.run" not in app.tasks


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"timeout": "soon"}, "timeout: 'soon' is not a valid duration"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": 0}, "timeout: 0 must be more than 0"),
        ({"kill_after": "1h"}, "kill_after: '1h' must be more than 0 and at most 20 s"),
        ({"env": {"A B": "x"}}, "env: 'A B' is not the name of a variable"),
        ({"env": {"A": 5}}, "env: the value of A must be text"),
        ({"env": "A=b"}, "env: must be values by the names of variables"),
        ({"inherit": ["A="]}, "inherit: 'A=' is not the name"),
        ({"inherit": "PGPASSWORD"}, r"inherit: 'PGPASSWORD' is not a list; write inherit=\[\"PGPASSWORD\"\]"),
        ({"give_up": 3}, r"give_up: 3 is not a list; write give_up=\[3\]"),
        ({"give_up": ["3"]}, "give_up: '3' must be an exit code: a whole number from 1 to 255"),
        ({"give_up": [0]}, "give_up: 0 must be an exit code"),
        ({"patterns": {"y": "a"}}, "patterns: there is no placeholder y"),
        ({"patterns": {"x": "["}}, "patterns: .* is not a regular expression"),
        ({"patterns": {"x": 5}}, "patterns: 5 is not a regular expression"),
        ({"patterns": "a"}, "patterns: 'a' must be patterns by placeholder"),
        ({"cwd": 5}, "cwd: 5 must be the path of a directory"),
        ({"once": "yes"}, "once: 'yes' must be True or False"),
        ({"once": True, "on_ambiguous": "maybe"}, "on_ambiguous: 'maybe' must be 'park', 'send' or 'skip'"),
        ({"on_ambiguous": "skip"}, "on_ambiguous: 'skip' needs once=True"),
    ],
)
def test_a_command_that_cannot_work_is_refused_where_it_is_made(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"ShellCommand: {words}"):
        ShellCommand(["ls", "{x}"], **fields)


def test_a_command_does_not_change_with_what_it_was_made_from(app: Treadle) -> None:
    argv, variables = ["sh", "-c", "echo $A"], {"A": "first"}
    command = ShellCommand(argv, env=variables)
    argv.append("{x}")
    variables["A"] = "second"
    assert result(app, command).result["output"] == "first\n"


def test_a_payload_may_be_a_shell_request(app: Treadle) -> None:
    task = shell_run.register(app, {"echo": ["echo", "{what}"]})
    job = task.enqueue(ShellRequest(command="echo", values={"what": "hello"}))
    run_until_idle(app)
    assert app.get(job.id).result["output"] == "hello\n"
    with pytest.raises(InvalidPayload, match="command: 'rm' is not allowed here; known: echo"):
        task.enqueue(ShellRequest(command="rm"))


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
        (["/etc/passwd"], "command 'it': /etc/passwd is not executable by this worker"),
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


def test_what_a_command_for_once_has_written_is_remembered_whatever_its_characters(app: Treadle) -> None:
    job = result(app, ShellCommand(script(r"print('\x01' * 70_000, end='the end')"), once=True))
    assert job.state is State.SUCCEEDED
    assert job.result["output"].endswith("\x01\x01the end")
    assert len(job.result["output"]) > 30_000
