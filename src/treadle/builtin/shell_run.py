"""`shell.run`: runs one of the commands that were allowed where it is registered; never a shell.

    shell_run.register(app, {"backup": ["pg_dump", "--file", "{target}"]})
    app.enqueue("shell.run", {"command": "backup", "values": {"target": "/backup/shop.sql"}})

A command ends with its attempt, with all that it has started: at its timeout, when the job is cancelled, and when its
worker stops or dies.
"""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from treadle.app.treadle import Treadle
from treadle.builtin.shell_commands import AllowedCommand, ShellCommand, found_program
from treadle.errors import Ambiguous, Cancelled, ConfigError, GiveUp, TreadleError
from treadle.tasks.context import Context
from treadle.tasks.secrets import hide
from treadle.tasks.task import Task

__all__ = ["NAME", "CommandFailed", "Ran", "ShellCommand", "register"]

NAME = "shell.run"
MOST_OUTPUT = 64 * 1024  # bytes, the last ones
SHOWN = 2_000  # characters of the output, in an error
LOOK = 0.1  # seconds between two looks whether to stop
WATCH = Path(__file__).with_name("shell_watch.py")
DRAINED = 32  # reads of what a command that has ended still had in its pipe
TOLD_OF_END = 30.0  # seconds that the end of a killed command may take to be told


class CommandFailed(TreadleError):
    """The command ended with another code than 0, or was stopped; the attempt has failed."""


class Ran(TypedDict):
    """How a command ended, and the last 64 KB of what it wrote to stdout and stderr."""

    code: int
    output: str
    ms: int


class End(NamedTuple):
    """How it ended: the exit code, or less the signal; why it was stopped, if it was; why it could not be started."""

    code: int
    output: bytes
    stopped: str = ""
    error: str = ""


def register(
    app: Treadle, commands: Mapping[str, ShellCommand | Sequence[str]], *, name: str = NAME, **options: Any
) -> Task[..., Ran]:
    """Register a task that runs these commands by their names; `options` are those of `app.register`.

    Its payload is `command`, one of the names, and `values` for the placeholders.
    """
    if os.name != "posix":
        raise ConfigError(f"{name}: commands are run on POSIX systems only, such as Linux")
    if not isinstance(commands, Mapping) or not commands:
        raise ConfigError(f'{name}: no command is allowed; give it {{"backup": ["pg_dump", "shop"]}}')
    allowed = {own: AllowedCommand(own, given) for own, given in commands.items()}

    class ShellRequest(BaseModel):
        model_config = ConfigDict(extra="forbid")
        command: str
        values: dict[str, JsonValue] = Field(default_factory=dict)

        @model_validator(mode="after")
        def _fits(self) -> "ShellRequest":
            if self.command not in allowed:
                raise ValueError(f"command: {self.command[:100]!r} is not allowed here; known: {', '.join(allowed)}")
            allowed[self.command].filled(self.values)
            return self

    def shell_run(ctx: Context, request: ShellRequest) -> Ran:
        command = allowed[request.command]
        words = command.filled(request.values)
        if not command.given.once:
            return run(ctx, command, words)
        ran: Ran = ctx.once("run", run, ctx, command, words, on_ambiguous=command.given.on_ambiguous)
        return ran

    return app.register(name, shell_run, **options)


def run(ctx: Context, command: AllowedCommand, words: list[str]) -> Ran:
    """Run it to its end; an error says what becomes of the attempt."""
    environment = command.environment()
    program = found_program(words[0], environment["PATH"], command.cwd)
    if command.cwd is not None and not os.path.isdir(command.cwd):
        raise GiveUp(f"command {command.name!r}: cwd: there is no directory {command.cwd}")
    if program is None:
        way_out = "install it on this worker, or name its file where the task is registered"
        raise GiveUp(f"command {command.name!r}: there is no program {words[0]!r}; {way_out}")
    began = time.monotonic()
    end = _run(ctx, command, [program, *words[1:]], environment)
    output = _text(end.output, command.secrets())
    tail = f": {shown}" if (shown := output.strip()[-SHOWN:]) else ""
    if end.error:
        raise GiveUp(f"command {command.name!r}: {program} cannot be run: {end.error}")
    if end.stopped:
        raise _stopped(ctx, command, end.stopped + tail)
    if end.code == 0:
        return {"code": 0, "output": output, "ms": round((time.monotonic() - began) * 1000)}
    how = f"exit code {end.code}" if end.code > 0 else f"ended by {_signal_name(-end.code)}"
    if end.code in command.give_up:
        raise GiveUp(f"command {command.name!r}: {how}{tail}")
    if end.code < 0 and command.given.once:
        raise Ambiguous(f"command {command.name!r}: {how}{tail}")
    raise CommandFailed(f"command {command.name!r}: {how}{tail}")


def _stopped(ctx: Context, command: AllowedCommand, why: str) -> Exception:
    """What a run that was stopped means: it may have done its work, and one that runs once must not be repeated."""
    words = f"command {command.name!r}: {why}"
    if command.given.once:
        return Ambiguous(words)
    return Cancelled(words) if ctx.cancelled else CommandFailed(words)


def _run(ctx: Context, command: AllowedCommand, words: list[str], environment: dict[str, str]) -> End:
    watch = [sys.executable, "-I", "-S", str(WATCH), str(command.kill_after), *words]
    process = subprocess.Popen(  # noqa: S603 - a list of words, of a command that was allowed
        watch,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=command.cwd,
        start_new_session=True,  # so that a Ctrl-C, or a signal to the worker's group, leaves it to us
    )
    try:
        return RunningCommand(process).to_its_end(ctx, command)
    finally:
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()  # type: ignore[union-attr] # with stdin the command is asked to end, if it still runs
        with suppress(subprocess.TimeoutExpired):  # one that cannot be killed: the kernel holds it
            process.wait(command.kill_after + 1)


class RunningCommand:
    """A command at work, behind the process that watches it."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._output, self._report = bytearray(), bytearray()
        self._streams = selectors.DefaultSelector()
        for stream, kept in ((process.stdout, self._output), (process.stderr, self._report)):
            os.set_blocking(stream.fileno(), False)  # type: ignore[union-attr] # a pipe
            self._streams.register(stream, selectors.EVENT_READ, kept)  # type: ignore[arg-type]

    def to_its_end(self, ctx: Context, command: AllowedCommand) -> End:
        """Read what it writes until it has ended; ask it to end when it must."""
        limit = time.monotonic() + (command.timeout or float("inf"))
        stopped, give_up_at = "", float("inf")
        with self._streams:
            while self._read():
                if not stopped and (ctx.cancelled or time.monotonic() >= limit):
                    late = f"ran longer than its timeout of {command.timeout:g} s" if not ctx.cancelled else ""
                    stopped = late or "was stopped before it had ended"
                    give_up_at = time.monotonic() + command.kill_after + TOLD_OF_END
                    with suppress(BrokenPipeError):  # it has ended in this moment
                        os.write(self._process.stdin.fileno(), b"stop\n")  # type: ignore[union-attr] # a pipe
                if time.monotonic() >= give_up_at:  # a kill that the system does not carry out
                    return End(-signal.SIGKILL, bytes(self._output), stopped)
        return self._reported(stopped)

    def _reported(self, stopped: str) -> End:
        """Its end, as the process that watched it says; if that one was killed, the command must not stay."""
        report = dict(line.partition(" ")[::2] for line in self._report.decode("utf-8", "replace").splitlines())
        output = bytes(self._output)
        if "exit" in report:
            return End(int(report["exit"]), output, stopped)
        if "error" in report:
            return End(1, b"", error=report["error"])
        if "pid" in report:
            with suppress(ProcessLookupError):
                os.killpg(int(report["pid"]), signal.SIGKILL)
        why = self._report.decode("utf-8", "replace").strip()[-SHOWN:]
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


def _chunk(descriptor: int) -> bytes | None:
    """What can be read; None if there is nothing now, empty at the end."""
    try:
        return os.read(descriptor, MOST_OUTPUT)
    except BlockingIOError:
        return None


def _text(output: bytes, secrets: list[str]) -> str:
    """The last of the output as text that can be stored, without what is secret."""
    text = output.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
    return hide(text, secrets).encode()[-MOST_OUTPUT:].decode("utf-8", "ignore")


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
