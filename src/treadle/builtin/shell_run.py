"""`shell.run`: runs one of the commands that were allowed where it is registered; never a shell.

    shell_run.register(app, {"backup": ["pg_dump", "--file", "{target}"]})
    app.enqueue("shell.run", {"command": "backup", "values": {"target": "/backup/shop.sql"}})

A command ends with its attempt, with all that it has started: at its timeout, when the job is cancelled, and when its
worker stops or dies.
"""

import errno
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypedDict

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from treadle.app.treadle import Treadle
from treadle.builtin.shell_commands import AllowedCommand, ShellCommand, found_program
from treadle.builtin.shell_process import MOST_OUTPUT, End, run_to_its_end
from treadle.errors import Ambiguous, Cancelled, ConfigError, GiveUp, TreadleError
from treadle.model.memo import MEMO_CAP
from treadle.tasks.context import Context
from treadle.tasks.secrets import hide
from treadle.tasks.task import Task

__all__ = ["NAME", "CommandFailed", "Ran", "ShellCommand", "register"]

NAME = "shell.run"
SHOWN = 2_000  # characters of the output, in an error
MOST_REMEMBERED = MEMO_CAP - 1_000  # bytes of the output as JSON, where control characters take six each
NO_PROGRAM = {errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.ELOOP, errno.EISDIR}  # tomorrow, too


class CommandFailed(TreadleError):
    """The command ended with another code than 0, or was stopped; the attempt has failed."""


class Ran(TypedDict):
    """How a command ended, and the last 64 KB of what it wrote to stdout and stderr."""

    code: int
    output: str
    ms: int


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
    end = run_to_its_end(ctx, command, [program, *words[1:]], environment)
    output = _text(end.output, command.secrets())
    tail = f": {shown}" if (shown := output.strip()[-SHOWN:]) else ""
    if end.error:
        raise _not_started(command, program, end)
    if end.stopped and end.runs_on:
        raise _runs_on(command, end.stopped + " and could not be killed: it may still run" + tail)
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


def _not_started(command: AllowedCommand, program: str, end: End) -> Exception:
    """A file that is no program will not be one at the next attempt; one that is being written, or too many, may."""
    if end.errno in NO_PROGRAM:
        return GiveUp(f"command {command.name!r}: {program} cannot be run: {end.error}")
    return CommandFailed(f"command {command.name!r}: {program} cannot be run for now: {end.error}")


def _runs_on(command: AllowedCommand, why: str) -> Exception:
    """A second run beside the first would be worse than none."""
    words = f"command {command.name!r}: {why}"
    return Ambiguous(words) if command.given.once else GiveUp(words)


def _stopped(ctx: Context, command: AllowedCommand, why: str) -> Exception:
    """What a run that was stopped means: it may have done its work, and one that runs once must not be repeated."""
    words = f"command {command.name!r}: {why}"
    if command.given.once:
        return Ambiguous(words)
    return Cancelled(words) if ctx.cancelled else CommandFailed(words)


def _text(output: bytes, secrets: list[str]) -> str:
    """The last of the output as text that can be stored, without what is secret."""
    text = output.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
    kept = hide(text, secrets).encode()[-MOST_OUTPUT:].decode("utf-8", "ignore")
    while len(json.dumps(kept)) > MOST_REMEMBERED:
        kept = kept[len(kept) // 8 :]
    return kept


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
