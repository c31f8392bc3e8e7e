"""What the tests of shell.run share: programs that say who they are, and whether they still run."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.workbench import until
from treadle import Job, Retry, Treadle
from treadle.builtin import shell_run
from treadle.testing import run_until_idle

PYTHON = sys.executable
AT_ONCE = Retry(max_attempts=2, base=0, cap=0, jitter=0)
FAMILY = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "300"])
with open(sys.argv[1] + ".new", "w") as file:
    file.write(f"{os.getpid()} {child.pid} {os.getppid()}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
child.wait()
"""  # a program that waits for another one, and says who they are
ALONE = """
with open(sys.argv[1] + ".new", "w") as file:
    file.write(f"{os.getpid()} {os.getpid()} {os.getppid()}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
"""  # says who it is, without a child
STUBBORN_ALONE = f"""
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
{ALONE}
while True: signal.pause()
"""
CAREFUL = f"""
import os, signal, sys, time
parent = os.getppid()
def close(*_):
    while os.getppid() == parent: pass
    time.sleep(0.3)
    open(sys.argv[1] + ".closed", "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, close)
{ALONE}
while True: signal.pause()
"""  # asked to end, it closes something after its parent is gone
ORPHAN = f"""
import os, signal, sys
if os.fork():
    while not os.path.exists(sys.argv[1]): pass
    os._exit(0)
child = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == child: pass
{ALONE}
signal.pause()
"""  # a grandchild, which says who its parent is when the child is gone
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);\n" + FAMILY


def script(text: str, *words: str) -> list[str]:
    return [PYTHON, "-I", "-S", "-c", text, *words]


def runs(pid: int) -> bool:
    """Whether there is such a process, other than a dead one that nobody has asked about."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wrapped(text: str, *words: str) -> list[str]:
    """A shell's script that runs this one, and goes on afterwards; with its arguments."""
    return ['"$@"; true', "sh", *script(text, *words)]


class Family:
    """The processes of FAMILY, once they run."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def pids(self) -> list[int]:
        until(self.file.exists, "the command")
        return [int(pid) for pid in self.file.read_text("utf-8").split()]

    def gone(self) -> bool:
        return bool(until(lambda: not any(map(runs, self.pids())), lambda: f"the end of {self.pids()}"))


@contextmanager
def family_of(file: Path) -> Iterator[Family]:
    """The processes that tell of themselves in this file; none is left afterwards."""
    made = Family(file)
    yield made
    for pid in made.pids():
        if runs(pid):
            os.kill(pid, signal.SIGKILL)


def result(app: Treadle, command: Any, **values: Any) -> Job:
    """The job of a command, after one attempt."""
    shell_run.register(app, {"it": command}, retry=Retry(base=60, jitter=0))
    job = app.enqueue("shell.run", {"command": "it", "values": values})
    run_until_idle(app)
    return app.get(job.id)
