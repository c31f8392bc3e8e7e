"""Starts Python programs as real processes, in a twentieth of the time: a process that has imported treadle is forked.

    with forks.Popen([sys.executable, "-m", "treadle", "worker"], cwd=folder, env=place, stdout=subprocess.PIPE) as it:
        it.send_signal(signal.SIGKILL)

A drop-in for subprocess.Popen and subprocess.run: pid, signals, pipes and exit code are those of the program. Programs
of Django and runs of pytest are forked from a process that has imported these, and in each Python from one of its own.
A test that is about starting Python, its options or what is imported uses subprocess itself.
"""

import atexit
import builtins
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support import processes

TREADLE = (
    "treadle.cli.commands", "treadle.testing", "treadle.app.treadle", "treadle.app.settings", "treadle.worker.worker",
    "treadle.engines.sqlite.engine", "treadle.engines.postgres.engine",
)  # fmt: skip
IMPORTED = {
    "treadle": (*TREADLE, "treadle.engines.dynamodb.engine", "fastapi", "sqlalchemy", "uvicorn"),  # of the examples
    "django": (
        *TREADLE, "django.contrib.messages.middleware", "django.contrib.sessions.middleware",
        "django.core.management.commands.makemigrations", "django.core.management.commands.migrate",
        "django.core.management.commands.runserver", "django.core.management.commands.shell",
        "django.core.management.commands.startproject", "django.core.management.commands.test",
        "django.db.backends.postgresql.base", "django.db.backends.sqlite3.base", "django.forms", "django.test",
        "django.views.generic",
    ),
    "pytest": (*TREADLE, "pytest"),  # and no plugin: pytest complains of one whose assertions it cannot rewrite
}  # fmt: skip
"""What a process has imported before it is forked, by the programs that need it; none of it asks for settings."""
LIMIT = 1 << 20  # bytes of a request: words and environment


class Popen(subprocess.Popen):
    """A program of this Python, forked instead of started."""

    _report: socket.socket

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *others) -> None:
        """What the standard library calls to start the program; the streams are descriptors, -1 for one of ours."""
        streams = others[3:9]  # stdin: theirs, ours; stdout and stderr: ours, theirs
        theirs = [own if stream == -1 else stream for own, stream in enumerate((streams[0], streams[3], streams[5]))]
        python, strict, words = _parsed(args)
        place = {"cwd": os.fspath(cwd or os.getcwd()), "env": dict(env or os.environ)}
        request = {"words": words, "strict": strict, **place, "session": others[14]}
        mother = _mother(python, _needs(words, place["env"]))
        self._report, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far_end:
            socket.send_fds(mother, [json.dumps(request).encode()], [*theirs, far_end.fileno()])
        self.pid = int(self._report.recv(20))
        self._child_created = True
        self._close_pipe_fds(*streams)

    def _internal_poll(self, *_: object, **__: object) -> int | None:
        if self.returncode is None and select.select([self._report], [], [], 0)[0]:
            self._wait(None)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            if not select.select([self._report], [], [], timeout if timeout is None else max(timeout, 0))[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._report.recv(20))
            self._report.close()
        return self.returncode


def _parsed(command: list[str]) -> tuple[str, bool, list[str]]:
    """The Python, whether a warning is an error to it, and its program with arguments."""
    python, *words = [os.fspath(word) for word in command]
    strict = words[:2] == ["-W", "error"]
    words = words[2:] if strict else words
    if not Path(python).name.startswith("python") or (words[0].startswith("-") and words[0] not in ("-c", "-m")):
        raise ValueError(f"{[python, words[0]]}: only Python, without options but -W error, is forked; use subprocess")
    return python, strict, words


def _needs(words: list[str], env: dict[str, str]) -> str:
    """What this program should find imported: a key of IMPORTED."""
    if words[:2] == ["-m", "pytest"]:
        return "pytest"
    of_django = Path(words[0]).name == "manage.py" or words[:2] == ["-m", "django"] or "DJANGO_SETTINGS_MODULE" in env
    return "django" if of_django else "treadle"


def run(command: list[str], *, input: str = "", timeout: float = 60, **place: Any) -> subprocess.CompletedProcess[str]:
    """subprocess.run with its output captured, as text."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, text=True, **pipes, **place) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@functools.cache
def _mother(python: str, needs: str) -> socket.socket:
    """The way to the process that is forked; it ends when nobody holds this end any more."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LIMIT)
    _, *words = processes.module("tests.support.forks", theirs.fileno(), needs)
    env = processes.environment()
    if python != sys.executable:
        env["PYTHONPATH"] += f"{os.pathsep}{processes.ROOT / 'src'}"  # treadle is installed in this Python alone
    with theirs:
        process = subprocess.Popen([python, *words], env=env, pass_fds=[theirs.fileno()])

    def end() -> None:
        ours.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:  # a process that was forked from ours, and not started, holds this end too
            process.kill()
            process.wait()

    atexit.register(end)
    return ours


# ------------------------------------------------------------------------------------ in the process that is forked


def main(place: str, needs: str) -> None:
    """Fork on request, until there is nobody to ask. In a fork, run its program as Python itself would."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the test run, and it tells us
    codes: list[int] = []
    atexit.register(leave, codes)  # the first of all, so it is called last
    for name in IMPORTED[needs]:
        importlib.import_module(name)
    sys.modules["treadle.cli.commands"].command()
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(place)) as requests:
        request = serve(requests)
    if request is None:
        return
    settle_in(request)
    try:
        become(request["words"])
        codes.append(0)
    except SystemExit as end:
        codes.append(end.code & 255 if isinstance(end.code, int) else int(end.code is not None))
        raise
    except KeyboardInterrupt:  # to Python this is the end by a signal
        raise
    except BaseException:
        codes.append(1)
        raise


def leave(codes: list[int]) -> None:
    """End as Python is about to, but leave the modules as they are if all threads have ended.

    To take apart what was imported before the fork would touch and so copy each page of it: eight times the rest.
    """
    if not codes or threading.active_count() > 1:
        return
    del sys.modules["__main__"]
    gc.collect()
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except (OSError, ValueError):  # Python tells of it, in its own way
        return
    os._exit(codes[0])


def serve(requests: socket.socket) -> dict[str, Any] | None:
    """Answer requests; in a fork, what was asked for."""
    reports: dict[int, socket.socket] = {}
    wake, woken = socket.socketpair()
    with wake, woken:
        woken.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken.fileno())
        while True:
            ready, _, _ = select.select([requests, wake], [], [])
            if wake in ready:
                wake.recv(1000)
                report_ends(reports)
            if requests not in ready:
                continue
            data, places, _, _ = socket.recv_fds(requests, LIMIT, 4)
            if not data:
                return None
            *streams, report = places
            pid = os.fork()
            if pid == 0:
                break
            for stream in streams:
                os.close(stream)
            reports[pid] = socket.socket(fileno=report)
            reports[pid].send(str(pid).encode())
        signal.set_wakeup_fd(-1)
    for other in reports.values():
        other.close()
    os.close(report)
    return {**json.loads(data), "streams": streams}


def report_ends(reports: dict[int, socket.socket]) -> None:
    """Tell of each fork that has ended how it did."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with reports.pop(ended[0]) as report, contextlib.suppress(OSError):
                report.send(str(os.waitstatus_to_exitcode(ended[1])).encode())


def settle_in(request: dict[str, Any]) -> None:
    """Take the place of the program: its signals, streams, folder, environment and where it imports from."""
    if request["session"]:
        os.setsid()
    if request["strict"]:
        sys.warnoptions[:] = ["error"]
        warnings.simplefilter("error")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for own, stream in enumerate(request["streams"]):
        os.dup2(stream, own)
    for stream in {*request["streams"]} - {0, 1, 2}:
        os.close(stream)
    ours = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    theirs = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [*filter(None, theirs), *(place for place in sys.path[1:] if place not in ours)]
    by_line = 1 if os.environ.get("PYTHONUNBUFFERED") else -1
    as_ = os.environ.get("PYTHONIOENCODING")
    sys.stdin = sys.__stdin__ = open(0, encoding=as_, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", by_line, as_, closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, as_, "backslashreplace", closefd=False)  # noqa: SIM115


def become(words: list[str]) -> None:
    """Run `-c code`, `-m module` or a file, with the rest as its arguments."""
    kind, *rest = words if words[0] in ("-c", "-m") else ("", *words)
    program = sys.modules["__main__"] = ModuleType("__main__")
    program.__dict__["__builtins__"] = builtins
    sys.argv = [kind, *rest[1:]] if kind else rest
    if kind == "-m":
        sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]  # what `python -m` calls
        return
    if kind:
        sys.path.insert(0, "")
        code = compile(rest[0], "<string>", "exec")
    else:
        sys.path.insert(0, str(Path(rest[0]).resolve().parent))
        program.__file__ = rest[0]
        code = compile(Path(rest[0]).read_text("utf-8"), rest[0], "exec")
    exec(code, program.__dict__)  # noqa: S102 - it is what we were asked for


if __name__ == "__main__":
    main(*sys.argv[1:])
