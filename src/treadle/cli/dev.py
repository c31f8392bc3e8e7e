"""`treadle dev`: `treadle serve`, started anew whenever a file of the project is saved."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from treadle.app.settings import load
from treadle.cli import options
from treadle.cli.discovery import DJANGO_SETTINGS, NO_APP, check_spec, find_store
from treadle.cli.serve import check_parts, check_web
from treadle.cli.terminal import coloured, safe, say
from treadle.errors import ConfigError

CHILD = "treadle.cli.dev_child"
BROKEN = 3  # its exit code when the app or its settings cannot be used as they are: a save may mend them
SETTINGS = ("treadle.toml", "pyproject.toml")
SKIPPED = {"__pycache__", "node_modules", "site-packages"}
MOST_FILES = 20_000
LOOK = 0.25  # seconds between two looks at the files
SETTLED = 0.05  # seconds without another change: an editor may write a file in two steps
GRACE = 3.0  # seconds that running jobs have to end, before they are given back
KILL = 10.0  # seconds after which a server that does not end is killed

Files = Mapping[str, tuple[int, int]]


def dev(
    app: options.App = None,
    url: options.Url = None,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8787,
    allow_host: options.AllowHost = None,
    worker: options.WithWorker = True,
    schedules: options.WithSchedules = None,
    as_json: Annotated[bool, typer.Option("--json", help="Log JSON lines.")] = False,
    log_format: options.LogFormat = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log everything.")] = False,
) -> None:
    """Serve dashboard and API with a worker, as `treadle serve` does; start anew when a file of the project is saved.

    It watches the Python files below the current directory, treadle.toml and pyproject.toml. Jobs that run have three
    seconds to end, and are given back otherwise. Code that cannot be imported is shown, until the next save mends it.
    """
    _check(app, url)
    check_parts(worker=worker, schedules=schedules)
    arguments = ["--host", host, "--port", str(_port(host, port)), "--worker" if worker else "--no-worker"]
    arguments += [f"--app={app}"] * (app is not None) + [f"--url={url}"] * (url is not None)
    arguments += [f"--allow-host={name}" for name in allow_host or ()]
    arguments += [] if schedules is None else ["--schedules" if schedules else "--no-schedules"]
    arguments += [f"--log-format={log_format}"] * (log_format is not None)
    arguments += ["--json"] * as_json + ["--verbose"] * verbose
    raise typer.Exit(Reloading(arguments, Path.cwd()).run())


def _check(app: str | None, url: str | None) -> None:
    """What no save of a file would mend."""
    check_web("treadle dev")
    if app is not None:
        check_spec(app, "--app")
    elif not os.environ.get(DJANGO_SETTINGS) and load(url=url).app is None:
        raise ConfigError(NO_APP)
    if url is not None:
        find_store(None, url).engine.close()  # it opens nothing


def _port(host: str, port: int) -> int:
    """The port, if it can be listened on; of 0 a free one, which is the same after each start."""
    from treadle.server import run  # noqa: PLC0415 - FastAPI is heavy, and few commands need it

    with run.bind(run.Address(host, port)) as found:
        return int(found.getsockname()[1])


class Reloading:
    """A server in a process of its own, and the files it was made of."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        self._arguments = arguments
        self._folder = folder
        self._signals = 0

    def run(self) -> int:
        """Until Ctrl-C or SIGTERM, or until the server ends by itself; the exit code."""
        before = {number: signal.signal(number, self._signalled) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            return self._run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _signalled(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._signals += 1

    def _run(self) -> int:
        first = True
        while True:
            files = look(self._folder)
            with self._started() as child:
                try:
                    changed = self._until_changed(child, files, first=first)
                finally:
                    self._stop(child)
            if changed is None:
                return 0 if self._signals else child.returncode
            say(coloured("scheduled", f"{changed} changed: starting anew"), stderr=True)
            first = False

    def _started(self) -> "subprocess.Popen[bytes]":
        """A session of its own: Ctrl-C comes to us, and we stop it. It ends when its stdin does: with us, at last."""
        command = [sys.executable, "-m", CHILD, *self._arguments]
        # Bytecode is told from older by the second: a file that is saved twice in one would run as it was.
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True)

    def _until_changed(self, child: "subprocess.Popen[bytes]", files: Files, *, first: bool) -> str | None:
        """The file that was saved; None when it shall end, or has ended for a reason that no save mends."""
        waiting = False
        while not self._signals:
            if child.poll() is not None and not waiting:
                if child.returncode == 0 or (first and child.returncode != BROKEN):
                    return None
                waiting = True
                say(coloured("warning", f"waiting for the next save in {safe(self._folder)}"), stderr=True)
            time.sleep(LOOK)
            now = look(self._folder)
            if now != files:
                return self._settled(files, now)
        return None

    def _settled(self, before: Files, now: Files) -> str:
        while True:
            time.sleep(SETTLED)
            then, now = now, look(self._folder)
            if then == now:
                break
        names = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
        if not names:  # changed, and changed back
            return "a file"
        return f"{os.path.relpath(names[0], self._folder)}{f' and {len(names) - 1:,} more' * (len(names) > 1)}"

    def _stop(self, child: "subprocess.Popen[bytes]") -> None:
        """SIGTERM; after a grace time again, which gives back what still runs; at last it is killed."""
        asked = self._signals
        for number, wait in ((signal.SIGTERM, GRACE), (signal.SIGTERM, KILL), (signal.SIGKILL, KILL)):
            if child.poll() is not None:
                return
            child.send_signal(number)
            end = time.monotonic() + wait
            while child.poll() is None and time.monotonic() < end:
                if self._signals > asked + 1:  # Ctrl-C again: do not wait
                    asked = self._signals
                    break
                time.sleep(0.02)
        child.wait()


def look(folder: Path) -> Files:
    """The files that a server is made of, with the time and size by which a change is seen."""
    found: dict[str, tuple[int, int]] = {}
    for path in _watched(folder):
        try:
            facts = os.stat(path)
        except OSError:  # gone, or being replaced
            continue
        found[path] = (facts.st_mtime_ns, facts.st_size)
        if len(found) > MOST_FILES:
            raise ConfigError(f"{folder} has more than {MOST_FILES:,} Python files; start it in your project's folder")
    return found


def _watched(folder: Path) -> Iterator[str]:
    yield from (os.path.join(folder, name) for name in SETTINGS)
    for here, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _skipped(here, name)]
        yield from (os.path.join(here, name) for name in files if name.endswith(".py"))


def _skipped(here: str, name: str) -> bool:
    """Hidden folders, those of other programs, and virtual environments."""
    venv = os.path.join(here, name, "pyvenv.cfg")
    return name.startswith(".") or name in SKIPPED or os.path.exists(venv)
