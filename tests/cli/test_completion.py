"""`treadle completion`: asked as a shell asks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BASH = shutil.which("bash") or "bash"
ASK = """
eval "$(treadle completion bash)"
COMP_WORDS=({words}) COMP_CWORD={last}
_treadle_completion treadle
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completed(folder: Path, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    quoted = " ".join(f"'{word}'" for word in words)
    script = ASK.format(words=quoted, last=len(words) - 1)
    place = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([BASH, "-c", script], capture_output=True, text=True, env=place, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a `treadle` of this Python."""
    program = tmp_path / "treadle"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m treadle "$@"\n')
    program.chmod(0o755)
    return tmp_path


@pytest.mark.slow
def test_bash_completes_commands_and_options(folder):
    assert completed(folder, "treadle", "stat") == ["status", "stats"]
    assert completed(folder, "treadle", "jobs", "list", "--st") == ["--state"]


@pytest.mark.parametrize(("shell", "part"), [("bash", "complete -o"), ("zsh", "#compdef"), ("fish", "complete")])
def test_each_shell_has_its_script(call, shell, part):
    assert part in call("completion", shell).out
    assert call("completion", shell, "--json").json["shell"] == shell


def test_the_shell_is_answered_by_the_same_commands(call, monkeypatch, capsys):
    asked = {"COMP_WORDS": "treadle schedules d", "COMP_CWORD": "2", "_TREADLE_COMPLETE": "complete_bash"}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        call()
    assert capsys.readouterr().out.split() == ["disable", "delete"]


def test_help_has_no_options_for_it_and_an_unknown_shell_is_refused(call):
    assert "--install-completion" not in call("--help").out
    refused = call("completion", "tcsh")
    assert (refused.code, refused.out) == (2, "")
    assert "bash" in refused.err
