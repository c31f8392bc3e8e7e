"""`treadle tail`: events as they come."""

import json
import select
import signal
import subprocess
import sys

import pytest

from tests.support import forks

NOBODY = "0199e0c5-6f3b-7d41-9c1e-2b7f5f0a8c11"


@pytest.fixture
def everything(ready, monkeypatch):
    monkeypatch.setenv("TREADLE_AUDIT", "everything")
    return ready


def kinds(text: str) -> list[tuple[str, str | None]]:
    return [(line["kind"], line["task"]) for line in map(json.loads, text.splitlines())]


def test_it_begins_with_the_latest_or_with_a_time(everything, work):
    job = everything("enqueue", "greet", '{"name": "Ada"}', "--json").json["job"]["id"]
    work()
    everything("pause", "--queue", "mail", "--reason", "\x1b[31mred")
    whole = everything("tail", "--no-follow", "--json")
    assert kinds(whole.out) == [("enqueued", "greet"), ("claimed", "greet"), ("succeeded", "greet"), ("paused", None)]
    assert set(json.loads(whole.out.splitlines()[0])) == {
        "job", "tenant", "revision", "at", "kind", "actor", "note", "task", "queue",
    }  # fmt: skip
    assert kinds(everything("tail", "--no-follow", "--json", "-n", "1").out) == [("paused", None)]
    assert kinds(everything("tail", "--no-follow", "--json", "--job", job[:23], "--kind", "claimed").out) == [
        ("claimed", "greet")
    ]
    assert everything("tail", "--no-follow", "--since", "1h", "--queue", "mail").out == ""
    shown = everything("tail", "--no-follow", "--since", "1h").out
    assert f"succeeded         greet {job} by " in shown
    assert "\\x1b[31mred" in shown
    cut = everything("tail", "--no-follow", "--since", "1h", "-n", "2")
    assert (len(cut.out.splitlines()), "more came before these 2" in cut.err) == (2, True)


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ("-n -1", 2, "-n: -1 must be from 0 to 10,000"),
        ("--since yore", 2, "--since: 'yore' is no time"),
        ("--interval 1ms", 2, "too short"),
        ("--interval 9d", 2, "too long"),
        ("--job xyz", 2, "'xyz' is neither a job id"),
        ("--no-follow --kind faild", 0, "--kind: 'faild' is not a known kind; did you mean failed"),
        (f"--no-follow --job {NOBODY}", 0, ""),
    ],
)
def test_what_cannot_be_meant_is_said(ready, options, code, says):
    answer = ready("tail", *options.split())
    assert (answer.code, answer.out) == (code, "")
    assert says in answer.err


def test_it_follows_until_it_is_interrupted(everything):
    command = [sys.executable, "-m", "treadle", "tail", "--json", "-n", "0", "--interval", "0.2s"]
    with forks.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            while not select.select([process.stdout], [], [], 0.05)[0]:  # what came before it looked is not shown
                assert everything("enqueue", "greet", '{"name": "Ada"}').code == 0
            first = process.stdout.readline()
        finally:
            process.send_signal(signal.SIGINT)
            rest, complaints = process.communicate(timeout=20)
    assert process.returncode == 130
    assert complaints == ""
    keys = [(line["job"], line["revision"], line["at"]) for line in map(json.loads, [first, *rest.splitlines()])]
    assert len(keys) == len(set(keys))
