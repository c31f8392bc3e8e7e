"""`treadle demo --serve`: the demo with its dashboard, as the processes they are."""

import http.client
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.cli.conftest import Call
from tests.support import forks
from tests.support.server import listens, wait_until

Start = Callable[..., "Demo"]


class Demo:
    """The process, and what it has written so far."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.lines = folder, list[str]()
        self.process = forks.Popen(
            [sys.executable, "-m", "treadle", "demo", "--serve", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "TMPDIR": str(folder), "NO_COLOR": "1", "DISPLAY": "", "WAYLAND_DISPLAY": ""},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        self.lines.extend(iter(self.process.stdout.readline, ""))  # type: ignore[union-attr]

    @property
    def said(self) -> str:
        return "".join(self.lines)

    def says(self, pattern: str) -> str:
        """Wait until it has said that; the first group of it."""
        wait_until(lambda: re.search(pattern, self.said) or self.process.poll() is not None, pattern)
        found = re.search(pattern, self.said)
        assert found, self.said
        return found[1]

    def stop(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        code = self.process.wait(30)
        self._reader.join(30)
        return code

    def processes(self) -> list[str]:
        """The command lines of processes that work on its store."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes()
            except OSError:  # it has ended
                continue
            if str(self.folder).encode() in words:
                found.append(words.replace(b"\0", b" ").decode())
        return found

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("treadle-demo-*/*"))


@pytest.fixture
def start(project: Path) -> Iterator[Start]:
    started: list[Demo] = []

    def start(*options: str) -> Demo:
        started.append(Demo(project, *options))
        return started[-1]

    yield start
    for demo in started:
        demo.process.kill()
        demo.process.wait()
        demo.process.stdout.close()  # type: ignore[union-attr]


def visit(link: str) -> str:
    """Follow the link as a browser does, and read the page that it leads to."""
    there = urlsplit(link)
    server = http.client.HTTPConnection(there.hostname or "", there.port, timeout=30)
    server.request("GET", f"{there.path}?{there.query}")
    answer = server.getresponse()
    answer.read()
    assert (answer.status, answer.getheader("location")) == (303, "/")
    server.request("GET", "/", headers={"Cookie": str(answer.getheader("set-cookie")).partition(";")[0]})
    page = server.getresponse()
    assert page.status == 200
    text = page.read().decode()
    server.close()
    return text


def test_the_dashboard_is_there_while_jobs_run_and_ctrl_c_ends_everything(start: Start) -> None:
    demo = start()
    link = demo.says(r"the dashboard is at (http://\S+)\n")
    port = urlsplit(link).port or 0
    assert "<h1>Overview</h1>" in visit(link)
    demo.says(r"started 3 (workers)")
    assert len(demo.processes()) == 4, demo.processes()
    assert demo.stop() == 130
    assert "interrupted: the workers are stopped, the files removed" in demo.said
    assert "Traceback" not in demo.said
    assert (demo.processes(), demo.files(), listens(port)) == ([], [], False)


def test_a_demo_that_is_killed_leaves_no_process(start: Start) -> None:
    demo = start()
    demo.says(r"started 3 (workers)")
    demo.process.kill()
    wait_until(lambda: not demo.processes(), "its processes have ended with it")


@pytest.mark.slow
def test_jobs_go_on_after_the_demo_until_ctrl_c(start: Start) -> None:
    demo = start("--keep")
    link = demo.says(r"Jobs go on until Ctrl-C\. The dashboard: (http://\S+) \(signs in once\)\n")
    assert "Nothing was lost." in demo.said
    page = visit(link)
    assert "remind-ada" in page  # a schedule that is made for the dashboard
    assert demo.stop() == 0
    assert demo.said.endswith("stopped: the workers and the dashboard\n")
    assert (demo.processes(), listens(urlsplit(link).port or 0)) == ([], False)
    assert "demo.db" in demo.files()


def test_what_goes_on_has_no_document(call: Call) -> None:
    shown = call("demo", "--serve", "--json")
    assert (shown.code, "cannot be combined with --json" in shown.err) == (2, True)
    assert shown.err.count("\n") == 1


def test_without_the_extra_it_says_what_to_install(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.cli.serve.importlib.util.find_spec", lambda name: None)
    shown = call("demo", "--serve")
    assert (
        shown.err == "error: treadle demo --serve needs FastAPI, Jinja and uvicorn; run: pip install 'treadle[web]'\n"
    )
