"""The process between a worker and a command: it ends the command, and all that the command has started, in time.

    python -I -S shell_watch.py WORKER ALONE

The worker holds the other end of stdin. It first writes what to run. A line that it writes later is a number of
seconds: the command's process group is asked to end, and killed when they are over. If the worker, which is the process
WORKER, is gone, the group gets ALONE seconds.

The command writes to stdout; stderr tells the worker which process it is, and how it ended. This file imports nothing
of treadle, so that it starts at once.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress

IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # the worker, not whoever stops it, tells us to end
USUAL = (*IGNORED, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)  # as a command expects to find them
NEVER = float("inf")
LOOK = 1.0  # seconds between two looks whether the worker lives
LOOK_AT_REST = 0.02  # seconds between two looks at what a command has left behind
KILLED_WITHIN = 1.0  # seconds that this may take to be gone, once it was killed
BECOME_SUBREAPER = 36  # of prctl


def main(worker: int, alone: float) -> None:
    """Run a command in a process group of its own; say how it ended."""
    woken = _signals()
    _adopt_orphans()
    argv, variables = _order()
    try:
        pid = os.posix_spawn(
            argv[0],
            argv,
            variables,
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, 1, 2)],
            setpgroup=0,
            setsigmask=(),
            setsigdef=USUAL,
        )
    except OSError as error:
        _report(f"error {error.errno} {error.strerror}")
        return
    _report(f"pid {pid}")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the output ends when nobody else can write to it
    group = CommandGroup(pid)
    _watch(group, woken, worker, alone)
    if group.out_of_reach:
        _report("left")
    _report(f"exit {group.code}")


class CommandGroup:
    """A command and what it has started, but for what has left its process group."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None  # of the command, when it has ended
        self.kill_at = NEVER
        self.killed_at = NEVER
        self.out_of_reach = False  # whether there is a process left that we may not kill

    def end_within(self, seconds: float) -> None:
        """Ask it to end, if that was not done, and kill it then; never later than it was told before."""
        if self.kill_at == NEVER:
            self._signal(signal.SIGTERM)
        self.kill_at = min(self.kill_at, time.monotonic() + seconds)

    def look(self) -> None:
        """Take note of what has ended, and kill it when its time is over."""
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self.pid:
                    self.code = os.waitstatus_to_exitcode(found[1])
        now = time.monotonic()
        if self.code is not None and self.kill_at == NEVER:  # nobody has asked it: what it has left behind ends now
            self.kill_at = now
        if now >= self.kill_at and self.killed_at == NEVER:
            self._signal(signal.SIGKILL)
            self.killed_at = now

    def is_over(self) -> bool:
        """Whether the command and all of its group are gone, or the rest is more than can be waited for."""
        if self.code is None:
            return False
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            self.out_of_reach = time.monotonic() >= self.killed_at + KILLED_WITHIN
        return time.monotonic() >= self.killed_at + KILLED_WITHIN

    def next_look(self) -> float:
        """Seconds until it is to be looked at again, although nothing is heard of it."""
        if self.code is not None:
            return LOOK_AT_REST
        left = NEVER if self.killed_at < NEVER else self.kill_at - time.monotonic()
        return max(0.0, min(LOOK, left))

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
        if self.code is None:  # it may have left its own group
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)


def _watch(group: CommandGroup, woken: int, worker: int, alone: float) -> None:
    """Wait for its end, or bring it about."""
    listening = [0]
    while not group.is_over():
        ready, _, _ = select.select([woken, *listening], [], [], group.next_look())
        if woken in ready:
            os.read(woken, 4096)
        message = os.read(0, 4096) if 0 in ready else None
        if message:
            group.end_within(float(message.split()[-1]))
        elif message is not None or (listening and os.getppid() != worker):  # a child of the worker may hold the pipe
            listening = []
            group.end_within(alone)
        group.look()


def _order() -> tuple[list[bytes], dict[bytes, bytes]]:
    """What to run, with which variables: how many words, how many bytes, and then all of it, each behind a NUL."""
    count, size = int(_read(10)), int(_read(10))
    given = _read(size).split(b"\0")[1:]
    variables = dict(one.partition(b"=")[::2] for one in given[count:])
    return given[:count], variables


def _read(size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(0, size - len(data))
        if not more:  # the worker is gone, and nothing has begun
            sys.exit()
        data += more
    return data


def _report(line: str) -> None:
    with suppress(BrokenPipeError):  # the worker is gone
        os.write(2, f"{line}\n".encode())


def _adopt_orphans() -> None:
    """Become the parent of those that lose theirs: in a container without an init nobody else sees them end."""
    if sys.platform == "linux":
        with suppress(ImportError, OSError, AttributeError):
            import ctypes  # noqa: PLC0415 - elsewhere it is not needed

            ctypes.CDLL(None).prctl(BECOME_SUBREAPER, 1, 0, 0, 0)


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
    main(int(sys.argv[1]), float(sys.argv[2]))
