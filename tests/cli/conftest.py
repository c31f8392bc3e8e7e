"""A small project in a directory of its own, and two ways to call the command line on it."""

import importlib
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support import forks, stores
from treadle import Treadle
from treadle.cli.commands import run
from treadle.testing import run_until_idle

TASKS = """
import time
from treadle import Context, GiveUp, Retry, Treadle

app = Treadle()
second = Treadle()
not_an_app = "a string"


@app.task
def greet(name: str) -> str:
    return f"hello {name}"


@app.task(queue="mail", retry=Retry(max_attempts=2, base=0, jitter=0))
async def boom(text: str) -> None:
    raise RuntimeError(text)


@app.task
async def give_up(text: str) -> None:
    raise GiveUp(text)


@app.task
def whatever(payload):
    return payload


@app.task
def long(ctx: Context, path: str) -> None:
    ctx.log.info("started\\x1b[31m")
    open(path, "w").close()
    time.sleep(60)


@app.for_each
def users():
    yield {"name": "Ada"}
"""


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Call = Callable[..., Result]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory: tasks.py with tasks:app, no settings, no database yet."""
    (tmp_path / "tasks.py").write_text(TASKS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    signals = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield tmp_path
    root.handlers[:], root.level = handlers, level
    for number, handler in signals.items():
        signal.signal(number, handler)
    forget(tmp_path)


def forget(folder: Path) -> None:
    """Let the modules of the project be imported anew, as a new process would."""
    for name, module in [*sys.modules.items()]:
        if (getattr(module, "__file__", None) or "").startswith(f"{folder}{os.sep}"):
            del sys.modules[name]


@pytest.fixture
def call(project: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command in this process."""

    def call(*arguments: str) -> Result:
        forget(project)
        capsys.readouterr()
        code = run(list(arguments))
        return Result(code, *capsys.readouterr())

    return call


@pytest.fixture
def treadle(call: Call, monkeypatch: pytest.MonkeyPatch) -> Call:
    """`call`, with the app of tasks.py in TREADLE_APP."""
    monkeypatch.setenv("TREADLE_APP", "tasks:app")
    return call


@pytest.fixture
def ready(treadle: Call, project: Path) -> Call:
    """`treadle`, with a store that has its tables and no job."""
    shutil.copy(stores.migrated_file(), project / "treadle.db")
    return treadle


@pytest.fixture
def work(project: Path) -> Callable[[], None]:
    """Run what is due, in this process, as a worker would."""

    def work() -> None:
        app: Treadle = importlib.import_module("tasks").app
        run_until_idle(app, queues=("default", "mail"))
        app.close()

    return work


@pytest.fixture
def spawn(project: Path) -> Call:
    """Run a command as a process of its own."""

    def spawn(*arguments: str, stdin: str = "", **environment: str) -> Result:
        command = [sys.executable, "-m", "treadle", *arguments]
        done = forks.run(command, input=stdin, env={**os.environ, **environment})
        return Result(done.returncode, done.stdout, done.stderr)

    return spawn
