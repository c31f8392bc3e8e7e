"""Promises 2 to 6 on real processes: a short run of the chaos harness; `python3 dev.py chaos` runs longer ones."""

import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parent.parent / "chaos" / "run.py"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sqlite"])
def test_jobs_survive_fifty_kills_and_fifty_pauses_of_the_processes_that_hold_them(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # A process of its own: the harness forks, and pytest may have threads.
    command = [sys.executable, RUN, "--engine", engine, "--kills", "50", "--pauses", "50", "--minutes", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    lines = done.stdout.splitlines()
    with capsys.disabled():
        print()
        for line in lines:
            if line.startswith(("kills:", "pauses:", "recovery:", "zombies:")):
                print(f"  {engine} {line}")
    assert lines, done.stderr
    assert (done.returncode, lines[-1]) == (0, "verdict: PASS"), done.stdout + done.stderr
