"""`treadle top`: one screen, what needs attention first."""

import fcntl
import os
import pty
import select
import signal
import sqlite3
import struct
import sys
import termios
import time
from contextlib import closing, suppress

import pytest

from tests.cli.test_status import alive
from tests.support import forks
from tests.support.marks import any_store
from treadle import InvalidJob, Treadle
from treadle.app.top import overview
from treadle.cli.top import screen

STORE = "sqlite:///treadle.db"
KEYS = {
    "ok", "at", "headline", "problems", "warnings", "total", "queues", "rate", "rates", "minutes", "running", "workers",
    "pauses", "schedules", "errors",
}  # fmt: skip


@pytest.fixture
def night(ready, work):
    """A failure on mail, a job that waits, a pause, a schedule; nobody works."""
    ready("enqueue", "boom", '{"text": "one"}')
    work()
    ready("enqueue", "greet", '{"name": "Ada"}')
    ready("pause", "--queue", "mail", "--reason", "\x1b[31moutage")
    ready("schedules", "create", "hourly", "--task", "greet", "--payload", '{"name": "x"}', "--cron", "@hourly")
    return ready


def test_what_needs_attention_comes_first(night):
    shown = night("top")  # no terminal: once
    assert (shown.code, shown.err) == (0, "")
    lines = shown.out.splitlines()
    assert lines[0].startswith("treadle top  ")
    assert lines[1] == "✗ 1 job is due and no worker is alive; start one with `treadle worker`"
    assert lines[2].startswith("! queue mail is paused by ")
    assert lines[2].endswith(": \\x1b[31moutage")
    assert lines[3] == "! 1 job failed in the last hour with RuntimeError"
    assert lines[5].split() == ["queue", "waiting", "due", "oldest", "running", "ended/min", "failed/min"]
    assert lines[6].split()[:3] == ["default", "1", "1"]
    assert any(line.split()[:2] == ["hourly", "greet"] for line in lines)
    assert night("top", "--once").out.splitlines()[1:4] == lines[1:4]


def test_the_document_has_stable_keys(night):
    found = night("top", "--once", "--json").json
    assert set(found) == KEYS
    assert (found["ok"], len(found["minutes"]), found["schedules"][0]["name"]) == (False, 10, "hourly")
    assert set(found["rate"]) == {"queue", "ended", "failed", "retrying", "wait", "done", "bad", "failing_since"}


def test_a_quiet_store_needs_no_attention(ready):
    assert "✓ nothing needs attention" in ready("top", "--once").out


@pytest.fixture
def busy(ready):
    """A running job at 40 percent, a worker without a free slot, rates, and a job that has waited for an hour."""
    app = Treadle(STORE)
    job = app.enqueue("greet", {"name": "a"}, checked=False)
    app.enqueue("greet", {"name": "b"}, checked=False)
    now = app.engine.now()
    app.close()
    micros = int(now.timestamp() * 1e6)
    began, ends = micros - 10_000_000, micros + 600_000_000
    with closing(sqlite3.connect("treadle.db")) as file, file:
        file.execute(
            "update treadle_jobs set state = 'running', worker = 'w1', claimed_at = ?, started_at = ?, lease_until = ?,"
            " progress = ? where id = ?",
            (began, began, ends, '{"fraction": 0.4, "note": "half"}', job.id),
        )
        file.execute("update treadle_jobs set due_at = due_at - 3600000000 where state = 'pending'")
    alive(running=10)
    return ready


def test_running_jobs_rates_and_full_workers_are_shown(busy):
    app = Treadle(STORE)
    found = overview(app)
    assert [job.task for job in found.running] == ["greet"]
    assert found.warnings == ["jobs wait for 1h on queue default: all 10 slots of its workers are busy"]
    wide = "\n".join(line.plain for line in screen(found, 140, 40))
    assert "━━━━┄┄┄┄┄┄  40% half" in wide
    assert "w1      10/10  default, mail" in wide
    app.close()


def test_rates_are_what_workers_have_counted(ready):
    for name in "ab":
        ready("enqueue", "greet", f'{{"name": "{name}"}}')
    ready("enqueue", "give_up", '{"text": "no"}')
    ready("worker", "--until-idle")
    found = ready("top", "--json").json
    [rate] = found["rates"]
    assert [rate[name] for name in ("queue", "ended", "failed", "retrying")] == ["default", 0.3, 0.1, 0.0]
    assert [len(rate["done"]), sum(rate["done"]), sum(rate["bad"])] == [30, 2, 1]
    assert (found["rate"]["ended"], sum(found["minutes"])) == (0.3, 3)
    assert "0.3 ended/min" in ready("top").out


@any_store
def test_the_schedules_that_run_next_are_found_without_reading_all(app: Treadle) -> None:
    app.register("tick", lambda: None)
    for number in range(4):
        app.schedules.create(f"in {4 - number}h", "tick", every=f"{4 - number}h")
    app.schedules.create("off", "tick", every="10m", enabled=False)
    app.tenant("acme").schedules.create("own", "tick", every="3h")
    assert [one.name for one in app.schedules.upcoming(2)] == ["in 1h", "in 2h"]
    assert [one.name for one in app.schedules.upcoming(9, within="90m")] == ["in 1h"]
    assert [one.name for one in app.tenant("acme").schedules.upcoming()] == ["own"]
    with pytest.raises(InvalidJob, match="n: 0 must be from 1 to 1,000"):
        app.schedules.upcoming(0)


@pytest.mark.parametrize("size", [(80, 24), (80, 8), (40, 5), (20, 2), (140, 60)])
def test_it_fits_every_terminal(busy, night, size):
    app = Treadle(STORE)
    found, (width, height) = overview(app), size
    many = found._replace(running=[*found.running] * 50, warnings=["x" * 300] * 30)
    for one in (found, many):
        lines = screen(one, width, height)
        assert len(lines) <= height
        assert all(line.cell_len <= max(width, 39) for line in lines)
    assert lines[0].plain.startswith("treadle top")
    app.close()


@pytest.mark.parametrize(("end", "code"), [(b"q", 0), (signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_a_terminal_has_it_on_a_screen_of_its_own_and_gets_its_own_back(night, end, code):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(theirs)
    command = [sys.executable, "-m", "treadle", "top", "--interval", "0.2s"]
    environment = {**os.environ, "TERM": "xterm"}
    with forks.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    ) as it:
        seen = read_until(ours, "hourly")
        night("enqueue", "greet", '{"name": "b"}')
        seen += read_until(ours, "2 due")
        os.write(ours, end) if isinstance(end, bytes) else it.send_signal(end)
        seen += read_until(ours, "\x1b[?1049l")
        assert it.wait(20) == code
    assert termios.tcgetattr(theirs) == before
    assert "\x1b[?1049h" in seen
    os.close(ours)
    os.close(theirs)


def read_until(number: int, text: str) -> str:
    seen, end = "", time.monotonic() + 30
    while text not in seen:
        assert time.monotonic() < end, f"no {text!r} in {seen!r}"
        if select.select([number], [], [], 0.1)[0]:
            with suppress(OSError):
                seen += os.read(number, 65536).decode(errors="replace")
    return seen
