"""A command at work, seen from the worker: what it writes, when it is asked to end, and how it ended."""

import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from treadle.builtin.shell_commands import ShellCommand
from treadle.tasks.context import Context, StopReason, stop_reason

MOST_OUTPUT = 64 * 1024  # bytes, the last ones
LOOK = 0.1  # seconds between two looks whether to stop
AT_ONCE = 0.5  # seconds to end where another worker may soon begin: less than the 1 s that a stopping worker waits
ALONE = 5.0  # seconds to end when the worker is dead: less than what is usually left of its lease
REPORTED_WITHIN = 5.0  # seconds that the end of a killed command may take to be reported
DRAINED = 32  # reads of what a command that has ended still had in its pipe
MOST_REPORTED = 2_000  # characters of what a process that watched says last
WATCH = Path(__file__).with_name("shell_watch.py")
OF_THE_LOADER = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # without these, some Pythons do not start


class End(NamedTuple):
    """How it ended: the exit code, or less the signal; why it was stopped; why it could not be started."""

    code: int
    output: bytes
    stopped: str = ""
    error: str = ""
    errno: int = 0
    runs_on: bool = False  # it, or something of it, could not be killed


def run_to_its_end(ctx: Context, command: ShellCommand, argv: list[str], environment: dict[str, str]) -> End:
    """Run this with these variables only; end them when the attempt must end."""
    watch = [sys.executable, "-I", "-S", str(WATCH), str(os.getpid()), str(min(command.kill_after_seconds, ALONE))]
    process = subprocess.Popen(  # noqa: S603 - our own program
        watch,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={name: os.environ[name] for name in OF_THE_LOADER if name in os.environ},
        cwd=command.cwd,
        start_new_session=True,  # so that a Ctrl-C, or a signal to the worker's group, leaves it to us
    )
    longest_wait = ALONE + REPORTED_WITHIN
    try:
        running = RunningCommand(process)
        running.write(_order(argv, environment))
        end = running.to_its_end(ctx, command)
        if end.runs_on:
            longest_wait = 0.0
        return end
    finally:
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()  # type: ignore[union-attr] # with stdin the command is asked to end, if it still runs
        try:
            process.wait(longest_wait)
        except subprocess.TimeoutExpired:  # somebody must wait for it, or it stays as a zombie
            threading.Thread(target=process.wait, name="treadle-shell", daemon=True).start()


def _order(argv: list[str], environment: dict[str, str]) -> bytes:
    """What to run, as the process that watches reads it; so the variables are the command's, and not that process's."""
    variables = [f"{name}={value}" for name, value in environment.items()]
    given = b"".join(b"\0" + os.fsencode(one) for one in (*argv, *variables))
    return b"%10d%10d" % (len(argv), len(given)) + given


class RunningCommand:
    """A command at work, behind the process that watches it."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._output, self._report = bytearray(), bytearray()
        self._streams = selectors.DefaultSelector()
        for stream, kept in ((process.stdout, self._output), (process.stderr, self._report)):
            os.set_blocking(stream.fileno(), False)  # type: ignore[union-attr] # a pipe
            self._streams.register(stream, selectors.EVENT_READ, kept)  # type: ignore[arg-type]

    def write(self, data: bytes) -> None:
        """Write to the process that watches it."""
        with suppress(BrokenPipeError):  # it has ended in this moment
            while data:
                data = data[os.write(self._process.stdin.fileno(), data) :]  # type: ignore[union-attr] # a pipe

    def to_its_end(self, ctx: Context, command: ShellCommand) -> End:
        """Read what it writes until it has ended; ask it to end when it must."""
        limit = time.monotonic() + command.timeout_seconds
        stopped, given, give_up_at = "", float("inf"), float("inf")
        with self._streams:
            while self._read():
                late = time.monotonic() >= limit
                if ctx.cancelled or late:
                    seconds = _time_to_end(ctx, command)
                    if seconds < given:
                        given, give_up_at = seconds, time.monotonic() + seconds + REPORTED_WITHIN
                        self.write(b"%f\n" % seconds)
                    stopped = stopped or _why(ctx, command)
                if time.monotonic() >= give_up_at:  # a kill that the system does not carry out
                    return End(-signal.SIGKILL, bytes(self._output), stopped, runs_on=True)
        return self._reported(stopped)

    def _reported(self, stopped: str) -> End:
        """Its end, as the process that watched it says; if that one was killed, the command must not stay."""
        text = self._report.decode("utf-8", "replace")
        report = dict(line.partition(" ")[::2] for line in text.splitlines())
        output = bytes(self._output)
        if "exit" in report:
            return End(int(report["exit"]), output, stopped, runs_on="left" in report)
        if "error" in report:
            number, _, error = report["error"].partition(" ")
            return End(1, b"", error=error, errno=int(number))
        if "pid" in report:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(int(report["pid"]), signal.SIGKILL)
        why = text.strip()[-MOST_REPORTED:]
        return End(-signal.SIGKILL, output, stopped or f"the process that watched it was killed: {why}")

    def _read(self) -> bool:
        """Wait a moment for what it writes; False when the process that watches it has ended."""
        for key, _ in self._streams.select(LOOK):
            chunk = _chunk(key.fd)
            key.data.extend(chunk or b"")
            del key.data[: -2 * MOST_OUTPUT]
            if chunk == b"":
                self._streams.unregister(key.fileobj)
        if self._process.stderr in {key.fileobj for key in self._streams.get_map().values()}:
            return True
        for _ in range(DRAINED):  # not until its end: a process that has left the group may hold it
            if not (chunk := _chunk(self._process.stdout.fileno())):  # type: ignore[union-attr] # a pipe
                break
            self._output.extend(chunk)
        return False


def _time_to_end(ctx: Context, command: ShellCommand) -> float:
    """How long it gets: its own time only while its worker keeps the job so long."""
    if stop_reason(ctx) in (StopReason.SHUTDOWN, StopReason.LOST):
        return min(command.kill_after_seconds, AT_ONCE)
    return command.kill_after_seconds


def _why(ctx: Context, command: ShellCommand) -> str:
    if ctx.cancelled or command.timeout is None:
        return "was stopped before it had ended"
    return f"ran longer than its timeout of {command.timeout_seconds:g} s"


def _chunk(descriptor: int) -> bytes | None:
    """What can be read; None if there is nothing now, empty at the end."""
    try:
        return os.read(descriptor, MOST_OUTPUT)
    except BlockingIOError:
        return None
