"""`treadle pause`, `resume` and `pauses`."""

import getpass
import re
import shlex
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from tests.cli.test_worker import until
from tests.support import forks
from tests.support.making import claim
from treadle import Treadle

STORE = "sqlite:///treadle.db"


def paused(treadle) -> list[dict]:
    return treadle("pauses", "--json").json["pauses"]


def test_a_pause_says_what_is_stopped_until_when_and_how_to_lift_it(ready):
    answer = ready("pause", "--queue", "mail", "--until", "2h", "--reason", "outage")
    moment = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    assert re.fullmatch(f"paused: queue mail until {moment}; `treadle resume --queue mail` lifts it\n", answer.out)
    [pause] = paused(ready)
    assert (pause["scope"], pause["queue"], pause["tenant"], pause["task"]) == ("queue mail", "mail", None, None)
    assert (pause["actor"], pause["reason"]) == (getpass.getuser(), "outage")
    left = datetime.fromisoformat(pause["until"]) - datetime.now(UTC)
    assert timedelta(minutes=118) < left <= timedelta(hours=2)


@pytest.mark.parametrize(
    ("words", "scope"),
    [
        (("--tenant", "acme"), "tenant acme"),
        (("--queue", "mail"), "queue mail"),
        (("--task", "greet"), "task greet"),
        (("--tenant", "acme", "--queue", "mail", "--task", "greet"), "tenant acme, queue mail, task greet"),
        (("--all",), "everything"),
        (("--queue", "a b"), "queue a b"),
    ],
    ids=lambda words: str(words[-1]),
)
def test_a_pause_of_any_scope_is_lifted_by_the_command_it_names(ready, words, scope):
    said = ready("pause", *words).out
    assert said.startswith(f"paused: {scope}; `treadle resume ")
    lifting = shlex.split(re.search("`treadle (.*)`", said)[1])
    assert ready(*lifting).out == f"resumed: {scope}\n"
    assert paused(ready) == []


def test_what_is_paused_is_not_run_and_what_is_resumed_is(ready, work):
    ready("enqueue", "greet", '{"name": "Ada"}')
    ready("pause", "--task", "greet")
    work()
    assert ready("jobs", "count", "--json").json["counts"]["pending"] == 1
    ready("resume", "--task", "greet")
    work()
    assert ready("jobs", "count", "--json").json["counts"]["succeeded"] == 1


def test_a_pause_may_end_at_a_moment(ready):
    pause = ready("pause", "--all", "--until", "2099-01-31T12:00+01:00", "--json").json["pause"]
    assert (pause["scope"], pause["until"]) == ("everything", "2099-01-31T11:00:00+00:00")


def test_to_pause_again_replaces_reason_and_end(ready):
    ready("pause", "--queue", "mail", "--reason", "outage", "--until", "1h")
    ready("pause", "--queue", "mail", "--reason", "still")
    [pause] = paused(ready)
    assert (pause["reason"], pause["until"]) == ("still", None)


def test_resume_lifts_one_pause_and_names_those_that_still_hold(ready):
    ready("pause", "--queue", "mail")
    ready("pause", "--tenant", "acme")
    ready("pause", "--all")
    assert ready("resume", "--all").out == "resumed: everything; still paused: queue mail; tenant acme\n"
    machine = ready("resume", "--queue", "mail", "--reason", "it is back", "--json").json
    assert machine["resumed"]["scope"] == "queue mail"
    assert [pause["scope"] for pause in machine["pauses"]] == ["tenant acme"]
    events = ready("audit", "--json").json["events"]
    assert (events[0]["kind"], events[0]["actor"], events[0]["note"]) == (
        "resumed", getpass.getuser(), "queue mail: it is back"
    )  # fmt: skip
    wrong = ready("resume", "--queue", "post")
    assert (wrong.code, wrong.out) == (1, "")
    assert "queue post is not paused by itself; paused: tenant acme" in wrong.err


def test_pauses_are_listed_with_who_when_and_why(ready):
    assert ready("pauses").out == "nothing is paused\n"
    ready("pause", "--queue", "mail", "--reason", "the server\nis down", "--until", "3h")
    ready("pause", "--tenant", "acme")
    header, *rows = [re.split(r" {2,}", line) for line in ready("pauses").out.splitlines()]
    assert header == ["paused", "by", "since", "until", "reason"]
    me = getpass.getuser()
    assert {(row[0], row[1], row[3], *row[4:]) for row in rows} == {
        ("queue mail", me, "in 2h", "the server is down"),
        ("tenant acme", me, "no end"),
    }


@pytest.mark.parametrize("columns", [80, 120])
def test_in_a_terminal_the_reason_fits_below_or_beside(ready, monkeypatch, columns):
    ready("pause", "--tenant", "acme", "--queue", "mail", "--reason", "the mail server is being mended; " * 9)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", ready("pauses").out).splitlines()
    assert len(lines) == (3 if columns < 110 else 2)
    assert all(len(line) <= columns for line in lines)
    assert "the mail server is being mended; the" in lines[-1]
    assert lines[-1].endswith("…")


def test_with_wait_a_pause_comes_back_when_nothing_of_it_runs(ready):
    ready("enqueue", "greet", '{"name": "Ada"}')
    app = Treadle(STORE)
    [job] = claim(app.engine, 1)
    app.close()
    late = ready("pause", "--queue", "default", "--wait", "--timeout", "0.2s")
    assert (late.code, late.out) == (1, "")
    assert f"queue default is paused, but job {job.id} and maybe others still run after 0.2 s" in late.err
    assert paused(ready)[0]["scope"] == "queue default"  # the pause stands
    done = ready("pause", "--queue", "mail", "--wait")
    assert done.out == "paused: queue mail; nothing of it runs; `treadle resume --queue mail` lifts it\n"


def test_an_interrupt_while_waiting_says_that_the_pause_stands(ready, project):
    ready("enqueue", "greet", '{"name": "Ada"}')
    app = Treadle(STORE)
    claim(app.engine, 1)
    words = [sys.executable, "-c", "from treadle.cli import main; main()", "pause", "--queue", "default", "--wait"]
    with forks.Popen(words, stderr=subprocess.PIPE, text=True, cwd=project) as process:
        until(app.pauses)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    app.close()
    assert (process.returncode, "`treadle pauses` shows what is paused" in said) == (130, True)
    assert "Traceback" not in said
