"""Forks the processes of a run, signals them and buries them.

It is a process of its own that never opens the store: a child forked beside open database connections would inherit
them. It alone signals, and only children it has not yet buried, so a signal can never meet a stranger with a used pid.
"""

import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

GLANCE = 0.01  # seconds between two looks at the children
YOUNG = 0.5  # seconds: a process that dies younger by itself is not replaced at once
KILLED = -signal.SIGKILL


class Death(NamedTuple):
    """The end of a process: its exit code, or minus the signal that ended it."""

    name: str
    at: float
    code: int
    ours: bool  # whether the run killed it


class Nursery:
    """The way to the nursery process. `roles`: what the process in each place does, given its name.

    Names are place.generation. A process that ends is replaced at once, unless it ends well (code 0).
    """

    def __init__(self, roles: Mapping[str, Callable[[str], None]], folder: Path, *, longest_stop: float) -> None:
        self._line, far_end = Pipe()
        self._pid = os.fork()
        if self._pid == 0:
            self._line.close()
            live(lambda: _Nurse(roles, folder, longest_stop).serve(far_end), folder)
        far_end.close()

    def alive(self) -> list[str]:
        """The names of the living, stopped ones too."""
        return self._ask("alive")

    def deaths(self) -> list[Death]:
        """Who has died since the last call."""
        return self._ask("deaths")

    def kill(self, name: str) -> Death | None:
        """SIGKILL; its death, once it is dead, or None if it was gone before."""
        return self._ask("kill", name)

    def stop(self, name: str) -> bool:
        """SIGSTOP; True once it stands still, False if it was gone before. It goes on by itself after a while."""
        return self._ask("stop", name)

    def resume(self, name: str) -> bool:
        """SIGCONT; False if it no longer stood still."""
        return self._ask("resume", name)

    def retire(self, patience: float) -> dict[str, int | None]:
        """SIGTERM to all; their exit codes, None for one that had to be killed. The nursery ends too."""
        codes = self._ask("retire", patience)
        self.close()
        return codes

    def close(self) -> None:
        """End the nursery and whoever still lives in it."""
        self._line.close()
        if self._pid:
            os.waitpid(self._pid, 0)
            self._pid = 0

    def _ask(self, *question: Any) -> Any:
        self._line.send(question)
        return self._line.recv()


class _Nurse:
    """The nursery process itself."""

    def __init__(self, roles: Mapping[str, Callable[[str], None]], folder: Path, longest_stop: float) -> None:
        self._roles = roles
        self._folder = folder
        self._longest_stop = longest_stop
        self._generation = dict.fromkeys(roles, 0)
        self._empty = dict.fromkeys(roles, 0.0)  # place -> when it may be filled
        self._pids: dict[str, int] = {}
        self._born: dict[str, float] = {}
        self._stopped: dict[str, float] = {}  # name -> when it goes on by itself
        self._deaths: list[Death] = []

    def serve(self, line: Connection) -> None:
        os.setsid()  # Ctrl-C is for the run, which then closes the line
        gc.freeze()
        retired = False
        while not retired:
            self._look_around(line)
            if line.poll(GLANCE):
                try:
                    act, *arguments = line.recv()
                except (EOFError, OSError):  # the run is over, or gone
                    break
                line.send(getattr(self, act)(*arguments))
                retired = act == "retire"
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)

    def alive(self) -> list[str]:
        return list(self._pids)

    def deaths(self) -> list[Death]:
        told, self._deaths = self._deaths, []
        return told

    def kill(self, name: str) -> Death | None:
        self._bury()
        if name not in self._pids:
            return None
        os.kill(self._pids[name], signal.SIGKILL)
        _, status = os.waitpid(self._pids[name], 0)
        return self._gone(name, status, ours=True)

    def stop(self, name: str) -> bool:
        self._bury()
        if name not in self._pids:
            return False
        os.kill(self._pids[name], signal.SIGSTOP)
        _, status = os.waitpid(self._pids[name], os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            self._gone(name, status)
            return False
        self._stopped[name] = time.monotonic() + self._longest_stop
        return True

    def resume(self, name: str) -> bool:
        if self._stopped.pop(name, None) is None:
            return False
        os.kill(self._pids[name], signal.SIGCONT)
        return True

    def retire(self, patience: float) -> dict[str, int | None]:
        self._bury()
        leaving = list(self._pids)
        for name in leaving:
            os.kill(self._pids[name], signal.SIGTERM)
        deadline = time.monotonic() + patience
        while self._pids and time.monotonic() < deadline:
            time.sleep(GLANCE)
            self._bury()
        codes = {death.name: death.code for death in self._deaths}
        return {name: codes.get(name) for name in leaving}

    def _look_around(self, line: Connection) -> None:
        now = time.monotonic()
        for name in [name for name, until in self._stopped.items() if until < now]:
            self.resume(name)
        self._bury()
        for place in [place for place, at in self._empty.items() if at <= now]:
            self._bear(place, line)

    def _bury(self) -> None:
        for name, pid in tuple(self._pids.items()):
            buried, status = os.waitpid(pid, os.WNOHANG)
            if buried:
                self._gone(name, status)

    def _bear(self, place: str, line: Connection) -> None:
        name = f"{place}.{self._generation[place]}"
        self._generation[place] += 1
        del self._empty[place]
        pid = os.fork()
        if pid == 0:
            line.close()
            live(lambda: self._roles[place](name), self._folder)
        self._pids[name] = pid
        self._born[name] = time.monotonic()

    def _gone(self, name: str, status: int, *, ours: bool = False) -> Death:
        code = os.waitstatus_to_exitcode(status)
        death = Death(name, time.time(), code, ours)
        self._deaths.append(death)
        del self._pids[name]
        self._stopped.pop(name, None)
        if code != 0:
            age = time.monotonic() - self._born[name]
            self._empty[name.partition(".")[0]] = time.monotonic() + (YOUNG if age < YOUNG and not ours else 0.0)
        return death


def live(life: Callable[[], None], folder: Path) -> None:
    """All a forked process does: it dies with its parent, and nothing of the parent's goes on in it."""
    code = 1
    try:
        _die_with_parent()
        errors = os.open(folder / "stderr.txt", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        life()
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        import ctypes

        parent_death_signal = 1
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)
