"""The process between a worker and a command: it ends the command, and all that the command has started, in time.

    python -I -S shell_watch.py KILL_AFTER PROGRAM ARGUMENT...

The worker holds the other end of stdin. When it writes there, or is gone, the command's process group is asked to end,
and killed KILL_AFTER seconds later. The command writes to stdout; stderr tells the worker which process it is, and how
it ended. This file imports nothing of treadle, so that it starts at once.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress

IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # the worker, not whoever stops it, tells us to end
USUAL = (*IGNORED, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)  # as a command expects to find them


def main(kill_after: float, program: str, *arguments: str) -> None:
    """Run a command in a process group of its own; say how it ended."""
    woken = _signals()
    try:
        pid = os.posix_spawn(
            program,
            [program, *arguments],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, 1, 2)],
            setpgroup=0,
            setsigmask=(),
            setsigdef=USUAL,
        )
    except OSError as error:
        _report(f"error {error.strerror}")
        return
    _report(f"pid {pid}")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the output ends when nobody else can write to it
    _report(f"exit {_watched(pid, woken, kill_after)}")


def _report(line: str) -> None:
    with suppress(BrokenPipeError):  # the worker is gone
        os.write(2, f"{line}\n".encode())


def _watched(pid: int, woken: int, kill_after: float) -> int:
    """Wait for its end, or bring it about; all of the group ends with it."""
    asked, kill_at = False, float("inf")
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            _signal(pid, signal.SIGKILL)  # what it has left behind
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= kill_at:
            _signal(pid, signal.SIGKILL)
            kill_at = float("inf")
        left = None if kill_at == float("inf") else max(0.0, kill_at - time.monotonic())
        ready, _, _ = select.select([woken] if asked else [0, woken], [], [], left)
        if woken in ready:
            os.read(woken, 4096)
        if 0 in ready:
            asked, kill_at = True, time.monotonic() + kill_after
            _signal(pid, signal.SIGTERM)


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _signals() -> int:
    """What becomes readable when the command ends."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    return woken


if __name__ == "__main__":
    main(float(sys.argv[1]), *sys.argv[2:])
