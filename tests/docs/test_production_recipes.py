"""What the files in deploy/ and the image of docs/production.md start works, and so does what they ask."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from tests.support import forks

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "production.md").read_text("utf-8")
BIN = Path(sys.executable).parent
SHOP = """
from treadle import Treadle

app = Treadle()


@app.task
def ping() -> str:
    return "pong"
"""


def unit() -> dict[str, str]:
    parser = ConfigParser(interpolation=None)
    parser.optionxform = str  # systemd minds the case
    parser.read(ROOT / "deploy" / "systemd" / "treadle-worker@.service")
    return dict(parser["Service"])


def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "deploy" / "compose" / "compose.yaml").read_text())["services"]


def container() -> dict[str, Any]:
    deployment = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "worker.yaml").read_text())
    [found] = deployment["spec"]["template"]["spec"]["containers"]
    return found


def image_command() -> list[str]:
    return json.loads(re.search(r"^CMD (.*)$", PAGE, re.MULTILINE)[1])


def as_systemd_runs(line: str) -> list[str]:
    return shlex.split(line.replace("%H-%i", "host-1").replace("909%i", "0").replace("/srv/shop/.venv/bin/", ""))


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A directory with the program of the page, and a store for it."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "jobs.py").write_text(SHOP)
    run(["treadle", "migrate", "--app", "shop.jobs:app"], tmp_path)
    return tmp_path


def surroundings(place: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TREADLE_")}
    return clean | {"TREADLE_URL": f"sqlite:///{place}/shop.db", "PYTHONPATH": str(place)}


def run(command: list[str], place: Path, **changed: str) -> subprocess.CompletedProcess[str]:
    assert command[0] == "treadle"
    return forks.run([sys.executable, "-m", *command], cwd=place, env=surroundings(place) | changed)


@pytest.mark.slow
def test_the_commands_of_the_unit_the_image_and_the_compose_file_start_a_worker(shop: Path) -> None:
    of_compose = [word.replace("9090", "0") for word in compose()["worker"]["command"]]
    for command in (as_systemd_runs(unit()["ExecStart"]), image_command(), of_compose):
        done = run([*command, "--until-idle"], shop, TREADLE_APP=compose()["worker"]["environment"]["TREADLE_APP"])
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_unit_and_the_compose_file_see_to_the_schema_first(shop: Path) -> None:
    check = as_systemd_runs(unit()["ExecStartPre"])
    app = compose()["migrate"]["environment"]["TREADLE_APP"]
    assert run(compose()["migrate"]["command"], shop, TREADLE_APP=app).returncode == 0
    assert run(check, shop).returncode == 0
    assert run(check, shop, TREADLE_URL=f"sqlite:///{shop}/other.db").returncode == 1


@pytest.mark.slow
def test_the_worker_of_the_deployment_answers_its_probe_and_stops_at_sigterm(shop: Path) -> None:
    words = [word.replace("$(POD_NAME)", "pod-1").replace("port=9090", "port=0") for word in container()["args"]]
    env = surroundings(shop)
    with forks.Popen([sys.executable, "-m", *words], cwd=shop, env=env, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        port = next(filter(None, (re.search(r"http://[\d.]+:(\d+)", line) for line in worker.stderr)))[1]
        with urlopen(f"http://127.0.0.1:{port}{container()['livenessProbe']['httpGet']['path']}", timeout=30) as answer:
            assert b"treadle_process_slots 20" in answer.read()
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=60)
    assert worker.returncode == 0
