"""Server processes for the tests, of whatever kind: a folder, a port, a log, and an end that cannot be missed.

No server outlives the tests, not even killed ones. Linux can signal a child when its parent ends (PR_SET_PDEATHSIG),
but means the parent *thread*, and tests start servers in threads that come and go. So each server gets a guard of its
own, this same file run as a small process: it has one thread, which is the server's parent, and looks five times a
second whether the tests' process is still its own. If not, it stops the server and removes its folder. A server that
does not heed its stop signal is killed with its process group.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

PATIENCE = 30.0  # seconds for anything that takes less than one on an idle machine


class Server:
    """A folder and at most one server process in it, which never outlives us.

    Entering it starts the server; leaving it stops the server and removes the folder.
    """

    stop_signal = signal.SIGKILL  # ends it at once, and for good
    grace = 10.0  # seconds to heed any other signal before it is killed
    refuses_root = False  # then it runs as nobody special where we are root

    def __init__(self) -> None:
        self.port = _free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="treadle-server-"))
        if who := self._user():
            os.chown(self.folder, who["user"], who["group"])
        self._owner = os.getpid()
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        log = self.folder / "log"
        return log.read_text(errors="replace") if log.exists() else ""

    @property
    def is_running(self) -> bool:
        return self._guard is not None and self._guard.poll() is None

    def start(self) -> None:
        """Return once the server takes connections."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop the server at once and remove its folder."""
        if os.getpid() != self._owner:
            return  # a forked child that ends must not take its parent's server with it
        try:
            self._stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, command: list[str | Path]) -> None:
        """Run a command to its end as the server's user."""
        place: dict[str, Any] = {"cwd": self.folder, "env": self._environment()}
        done = subprocess.run(command, **place, **self._user(), capture_output=True, text=True, check=False)
        if done.returncode:
            name = Path(command[0]).name
            raise ServerTrouble(f"{name} failed with code {done.returncode}", done.stdout + done.stderr)

    def _start(self, command: list[str | Path], *, is_ready: Callable[[], bool]) -> None:
        name = Path(command[0]).name
        if os.environ.get("TREADLE_TEST_SERVERS") == "none":
            raise ServerTrouble(f"{name} is not started where tests need no server; mark the test: pytest.mark.server")
        if self.is_running:
            raise ServerTrouble(f"{name} is running already")
        guard: list[str | Path] = [sys.executable, "-I", "-S", __file__, str(os.getpid()), self.folder]
        guard += [str(int(self.stop_signal)), str(self.grace), "unprivileged" if self.refuses_root else "ourselves"]
        with (self.folder / "log").open("ab") as log:
            self._guard = subprocess.Popen(
                [*guard, *command],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            wait_until(lambda: is_ready() or not self.is_running, f"{name} has started")
        except BaseException:
            self._stop()
            raise
        if not self.is_running:
            raise ServerTrouble(f"{name} did not start", self.log)

    def _stop(self) -> None:
        if self._guard is not None and self.is_running:
            self._guard.send_signal(signal.SIGTERM)
            self._wait()

    def _wait(self) -> None:
        """Wait until the server has ended; should it not, end its guard, whose death it will not survive."""
        if self._guard is None:
            return
        try:
            self._guard.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
            raise ServerTrouble(f"the server did not stop within {PATIENCE:.0f} s", self.log) from None

    def _environment(self) -> dict[str, str]:
        return os.environ | {"LC_ALL": "C", "TZ": "UTC", "HOME": str(self.folder)}

    def _user(self) -> dict[str, Any]:
        return unprivileged() if self.refuses_root else {}


class ServerTrouble(Exception):
    """A server did not do what we asked; the end of its log says more."""

    def __init__(self, situation: str, log: str = "") -> None:
        super().__init__("\n".join([situation, *log.splitlines()[-30:]]))


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            raise ServerTrouble(f"waited {PATIENCE:.0f} s in vain until {what}")
        time.sleep(0.01)


def _guard(parent: int, folder: str, stop_signal: int, grace: float, user: str, command: list[str]) -> int:
    """Run the server until it ends by itself, we are told to stop it, or the tests' process is gone."""
    prepare = _preparation(stop_signal)  # loaded while we may still read the standard library
    who = unprivileged() if user == "unprivileged" else {}
    server = subprocess.Popen(command, preexec_fn=prepare, process_group=0, **who)  # noqa: PLW1509 - no threads here
    deadline = math.inf

    def stop(*_: object) -> None:
        nonlocal deadline
        deadline = min(deadline, time.monotonic() + grace)
        server.send_signal(stop_signal)
        server.send_signal(signal.SIGCONT)  # a test may have paused it

    def look(*_: object) -> None:
        if os.getppid() != parent:
            stop()
        if time.monotonic() > deadline:
            os.killpg(server.pid, signal.SIGKILL)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
    code: int = server.wait()
    if os.getppid() != parent:
        shutil.rmtree(folder, ignore_errors=True)
    return code


def _preparation(stop_signal: int) -> Callable[[], None]:
    """What the server's process does before it starts; a change of user after it would undo the death signal."""
    set_death_signal = _death_signal_setter(stop_signal)

    def prepare() -> None:
        heed_signals()
        set_death_signal()

    return prepare


def heed_signals() -> None:
    """Undo what a shell did that started us in the background: there SIGINT and SIGQUIT are ignored, and a child
    inherits that. PgBouncer 1.18 has no handler for SIGQUIT, so it could not be stopped there."""
    for number, way in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, way)


def _death_signal_setter(stop_signal: int) -> Callable[[], object]:
    """Lets the server be signalled should the guard be killed."""
    if sys.platform != "linux":
        return lambda: None
    import ctypes

    set_death_signal = 1
    return functools.partial(ctypes.CDLL(None).prctl, set_death_signal, stop_signal)


def unprivileged() -> dict[str, Any]:
    """For subprocess: whom to run a server as, should it refuse root."""
    if not is_root():
        return {}
    import pwd

    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise ServerTrouble("This server refuses root, and there is neither a user postgres nor nobody.")


def is_root() -> bool:
    return os.geteuid() == 0


def _free_port() -> int:
    """Below the range of outgoing connections: one of those could take the port while its server is down, and a
    client retrying a port in that range can even connect to itself. Not `random`, which tests seed alike."""
    for _ in range(100):
        port = 15_000 + secrets.randbelow(17_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ServerTrouble("no free port between 15000 and 32000")


if __name__ == "__main__":
    _, parent, folder, stop_signal, grace, user, *command = sys.argv
    sys.exit(_guard(int(parent), folder, int(stop_signal), float(grace), user, command))
