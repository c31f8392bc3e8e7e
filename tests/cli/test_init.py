"""`treadle init`: two files, and two commands that work."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forks
from tests.support.workbench import until
from treadle import Treadle


def test_the_commands_that_init_prints_work(call, spawn, project):
    made = call("init", "shop")
    assert made.code == 0
    assert made.out.startswith("created shop/app.py and shop/treadle.toml. Next:\n")
    folder, enqueue, worker = (shlex.split(line) for line in made.out.splitlines()[1:])
    assert folder == ["cd", "shop"]
    stored = run(enqueue, project / "shop")
    assert stored.returncode == 0, stored.stderr
    with Treadle(f"sqlite:///{project}/shop/treadle.db") as store, started(worker, project / "shop") as process:
        until(lambda: [job.result for job in store.find(task="greet").jobs] == ["hello Ada"], "the job ran")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert [schedule.name for schedule in store.schedules.list()] == ["tidy_up"]


def test_init_works_in_the_current_directory_too(call, project):
    made = call("init", "--json")
    assert made.json["created"] == ["app.py", "treadle.toml"]
    assert made.json["next"] == ["""treadle enqueue greet '{"name": "Ada"}'""", "treadle worker"]
    assert call("config", "check").code == 0
    assert call("config", "get", "app").out == "app:app\n"


@pytest.mark.parametrize("name", ["app.py", "treadle.toml"])
def test_init_never_overwrites(call, project, name):
    (project / name).write_text("mine")
    refused = call("init")
    assert refused.code == 1
    assert f"{name} exists already; nothing was written" in refused.err
    assert {path.name for path in project.iterdir()} == {"tasks.py", name}
    assert (project / name).read_text() == "mine"


def test_a_link_that_leads_nowhere_is_not_followed(call, project):
    (project / "app.py").symlink_to("elsewhere.py")
    assert call("init").code == 1
    assert not (project / "elsewhere.py").exists()


def test_a_place_that_is_not_a_directory_is_refused(call, project):
    refused = call("init", "tasks.py")
    assert refused.code == 1
    assert "tasks.py: cannot be written" in refused.err


def test_a_directory_with_a_blank_is_quoted(call, project):
    assert "cd 'my shop'" in call("init", "my shop").out


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return forks.run([sys.executable, "-m", *command], cwd=folder, env=dict(os.environ))


def started(command: list[str], folder: Path) -> forks.Popen:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return forks.Popen([sys.executable, "-m", *command], cwd=folder, env=dict(os.environ), **quiet)
