"""A stand-in as a program: `python -m treadle.testing.fakes`."""

import re
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import IO

import httpx2
import pytest

from treadle import ConfigError
from treadle.testing import fakes
from treadle.testing.fakes import RunningClock
from treadle.testing.fakes.__main__ import CLIENTS, MAKERS

PROGRAM = (sys.executable, "-m", "treadle.testing.fakes")


def test_a_stand_in_runs_in_its_own_process_and_tells_what_comes(http: httpx2.Client) -> None:
    with subprocess.Popen((*PROGRAM, "webhook"), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        out: IO[str] = process.stdout
        found = re.fullmatch(r"webhook listens on (http://127.0.0.1:[0-9]+); Ctrl-C ends it\n", out.readline())
        assert found is not None
        http.post(f"{found[1]}/hook")
        assert out.readline() == "POST /hook\n"
        process.send_signal(signal.SIGINT)
        assert (process.wait(10), out.read()) == (0, "")


def test_a_program_prints_what_its_client_needs_and_slack_has_members(http: httpx2.Client) -> None:
    command = (*PROGRAM, "slack", "--user", "Ada=Asia/Tokyo")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        api, token, channel = (line.strip().partition(": ")[2] for line in lines[1:])
        asked = {"Authorization": f"Bearer {token}"}
        *_, ada = http.post(f"{api}users.list", headers=asked).json()["members"]
        assert (ada["profile"]["real_name"], ada["tz"]) == ("Ada", "Asia/Tokyo")
        posted = http.post(f"{api}chat.postMessage", headers=asked, json={"channel": channel, "text": "good morning"})
        assert posted.json()["ok"] is True
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_members_of_another_stand_in_are_refused() -> None:
    done = subprocess.run((*PROGRAM, "llm", "--user", "Ada"), capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "--user: llm has no members; slack has" in done.stderr


@pytest.mark.parametrize("name", CLIENTS)
def test_what_a_client_needs_is_there(name: str) -> None:
    with MAKERS[name]() as server:
        assert all(CLIENTS[name](server).values())


def test_every_stand_in_can_be_a_program() -> None:
    assert set(MAKERS) == {name for name in fakes.__all__ if name.islower()}


def test_a_port_that_is_taken_is_told_in_one_line() -> None:
    with fakes.smtp() as server:
        command = (*PROGRAM, "slack", "--port", str(server.port))
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert f"port: cannot listen on 127.0.0.1:{server.port}" in done.stderr
    with pytest.raises(ConfigError, match="take another port, or 0"):
        fakes.webhook(port=70_000).start()


def test_a_clock_goes_by_itself_and_can_be_moved() -> None:
    clock = RunningClock()
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=5)
    before = clock.now()
    clock.advance(hours=1)
    assert timedelta(hours=1) <= clock.now() - before < timedelta(hours=1, seconds=5)
