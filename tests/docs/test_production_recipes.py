"""The unit, the compose file and the Deployment on docs/production.md parse, and what they start and ask works."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from treadle.app.settings import Settings

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "production.md").read_text("utf-8")
BIN = Path(sys.executable).parent
SHOP = """
from treadle import Treadle

app = Treadle()


@app.task
def ping() -> str:
    return "pong"
"""
ENOUGH = Settings().grace + 10  # the last outcomes are still to be written when the grace time is over


def block(language: str, holding: str) -> str:
    [found] = [text for text in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if holding in text]
    return found


def unit() -> dict[str, str]:
    parser = ConfigParser(interpolation=None)
    parser.optionxform = str  # systemd minds the case
    parser.read_string(block("ini", "[Service]"))
    assert parser.sections() == ["Unit", "Service", "Install"]
    return dict(parser["Service"])


def compose() -> dict[str, Any]:
    return yaml.safe_load(block("yaml", "compose.yaml"))["services"]


def deployment() -> dict[str, Any]:
    return yaml.safe_load(block("yaml", "kind: Deployment"))["spec"]


def container() -> dict[str, Any]:
    [found] = deployment()["template"]["spec"]["containers"]
    return found


def image_command() -> list[str]:
    return json.loads(re.search(r"^CMD (.*)$", block("dockerfile", "CMD"), re.MULTILINE)[1])


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
    path = f"{BIN}{os.pathsep}{clean['PATH']}"
    url = f"sqlite:///{place}/shop.db"
    return clean | {"PATH": path, "TREADLE_URL": url, "PYTHONPATH": str(place), "HOSTNAME": "pod-1"}


def run(command: list[str], place: Path, **changed: str) -> subprocess.CompletedProcess[str]:
    env = surroundings(place) | changed
    return subprocess.run(command, cwd=place, env=env, text=True, capture_output=True, timeout=60, check=False)


@pytest.fixture
def worker(shop: Path) -> Iterator[Path]:
    """The directory of a worker that was started as the Deployment starts it, and has said that it is alive."""
    command = container()["command"]
    process = subprocess.Popen(command, cwd=shop, env=surroundings(shop), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any("slots" in line for line in process.stderr)  # its banner, or its first line in the log
    yield shop
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0, "no shell stands before the worker: SIGTERM stopped it cleanly"


def test_every_supervisor_waits_longer_than_the_grace_time() -> None:
    assert int(unit()["TimeoutStopSec"]) >= ENOUGH
    assert int(compose()["worker"]["stop_grace_period"].removesuffix("s")) >= ENOUGH
    assert deployment()["template"]["spec"]["terminationGracePeriodSeconds"] >= ENOUGH


def test_the_deployment_selects_its_own_pods() -> None:
    spec = deployment()
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert {service["image"] for service in compose().values()} == {container()["image"]}


@pytest.mark.slow
def test_the_command_of_the_unit_and_of_the_image_start_a_worker(shop: Path) -> None:
    of_the_unit = unit()["ExecStart"].replace("%H-%i", "host-1").replace("/srv/shop/.venv/bin/", "")
    of_the_image = image_command()
    for command in (shlex.split(of_the_unit), of_the_image):
        done = run([*command, "--until-idle"], shop)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_unit_and_the_compose_file_see_to_the_schema_first(shop: Path) -> None:
    check = shlex.split(unit()["ExecStartPre"].replace("/srv/shop/.venv/bin/", ""))
    assert run(compose()["migrate"]["command"], shop).returncode == 0
    assert run(check, shop).returncode == 0
    assert run(check, shop, TREADLE_URL=f"sqlite:///{shop}/other.db").returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe"])
def test_a_probe_finds_its_own_worker_and_no_other(worker: Path, probe: str) -> None:
    asked = container()[probe]["exec"]["command"]
    give_up_at = time.monotonic() + 30
    while run(asked, worker).returncode:  # its first heartbeat is under way
        assert time.monotonic() < give_up_at
    assert run(asked, worker, HOSTNAME="pod-2").returncode == 1


def test_a_database_that_is_away_for_minutes_restarts_no_pod() -> None:
    probe = container()["livenessProbe"]
    assert probe["periodSeconds"] * (probe["failureThreshold"] - 1) >= 240
    assert probe["timeoutSeconds"] >= 10
