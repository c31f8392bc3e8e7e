"""Promises 2 to 6 on real processes: a short run of the chaos harness; `python3 dev.py chaos` runs longer ones."""

import subprocess

import pytest

from tests.support import processes
from tests.support.sizes import size

TOLD = ("kills:", "pauses:", "server:", "recovery:", "zombies:")
SAMPLES = {
    "sqlite": {"kills": size(6, long=15), "pauses": size(6, long=15)},
    "postgres": {
        "kills": size(5, long=12),
        "pauses": size(5, long=12),
        "restarts": 1,
        "terminations": size(5, long=15),
    },
    "dynamodb": {"kills": size(3, long=8), "pauses": size(3, long=6), "troubles": size(1, long=3)},
}
BESIDE_OTHERS = 15.0  # seconds that a recovery may take here; 2, when a run has the machine to itself


@pytest.mark.slow
@pytest.mark.parametrize("engine_kind", SAMPLES)
def test_jobs_survive_kills_and_pauses_of_the_processes_that_hold_them_and_a_server_that_comes_and_goes(
    engine_kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # A process of its own: the harness forks, and pytest may have threads.
    faults = [word for name, number in SAMPLES[engine_kind].items() for word in (f"--{name}", str(number))]
    options = ["--engine", engine_kind, *faults, "--minutes", "3", "--bound", str(BESIDE_OTHERS)]
    command, place = processes.module("tests.chaos.run", *options), processes.environment()
    done = subprocess.run(command, env=place, capture_output=True, text=True, timeout=280, check=False)
    lines = done.stdout.splitlines()
    with capsys.disabled():
        print()
        for line in lines:
            if line.startswith(TOLD):
                print(f"  {engine_kind} {line}")
    assert lines, done.stderr
    assert (done.returncode, lines[-1]) == (0, "verdict: PASS"), done.stdout + done.stderr
