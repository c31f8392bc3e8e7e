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
from typing import Annotated, Any, TypedDict

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

from treadle.app.treadle import Treadle
from treadle.builtin.arguments import add_task, errors_of
from treadle.builtin.shell_commands import ShellCommand, found_program
from treadle.builtin.shell_process import MOST_OUTPUT, End, run_to_its_end
from treadle.errors import Ambiguous, Cancelled, ConfigError, GiveUp, TreadleError
from treadle.model import check_name
from treadle.model.memo import MEMO_CAP
from treadle.tasks.context import Context
from treadle.tasks.secrets import hide
from treadle.tasks.task import Task

__all__ = ["NAME", "CommandFailed", "Ran", "ShellCommand", "ShellRequest", "register"]

NAME = "shell.run"
SHOWN = 2_000  # characters of the output, in an error
MOST_REMEMBERED = MEMO_CAP - 1_000  # bytes of the output as JSON, where control characters take six each
NO_PROGRAM = {errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.ELOOP, errno.EISDIR}  # tomorrow, too


class CommandFailed(TreadleError):
    """The command ended with another code than 0, or was stopped; the attempt has failed."""


class Ran(TypedDict, total=False):
    """How a command ended, and the last 64 KB of what it wrote to stdout and stderr."""

    code: int
    output: str
    ms: int
    unconfirmed: bool
    """True, and nothing else: nobody knows whether it has run, and `on_ambiguous="skip"` took it as done."""


class ShellRequest(BaseModel):
    """A payload of `shell.run`: one of the commands that are allowed, and the values for its placeholders."""

    model_config = ConfigDict(extra="forbid")

    command: str
    values: dict[str, JsonValue] = Field(default_factory=dict)


def register(
    app: Treadle, commands: Mapping[str, ShellCommand | Sequence[str]], *, name: str = NAME, **options: Any
) -> Task[..., Ran]:
    """Register a task that runs these commands by their names; `options` are those of `app.register`.

    Its payload is a ShellRequest: `command`, one of the names, and `values` for the placeholders.
    """
    allowed = _allowed(commands, name)

    def check(request: ShellRequest) -> ShellRequest:
        if request.command not in allowed:
            raise ValueError(f"command: {request.command[:100]!r} is not allowed here; known: {', '.join(allowed)}")
        try:
            allowed[request.command].filled(request.values)
        except ValueError as error:
            raise ValueError(f"command {request.command!r}: {error}") from None
        return request

    def shell_run(ctx: Context, request: Annotated[ShellRequest, AfterValidator(check)]) -> Ran:
        command = allowed[request.command]
        try:
            return _run_as_allowed(ctx, command, command.filled(request.values))
        except (Ambiguous, Cancelled, CommandFailed, GiveUp) as error:
            raise type(error)(f"command {request.command!r}: {error}") from None

    return add_task(app, name, shell_run, register, options)


def _allowed(commands: Mapping[str, ShellCommand | Sequence[str]], task: str) -> dict[str, ShellCommand]:
    """The commands by their names, each of them checked."""
    if os.name != "posix":
        raise ConfigError(f"{task}: commands are run on POSIX systems only, such as Linux")
    if not isinstance(commands, Mapping):
        raise ConfigError(f'{task}: commands: must be a dict of commands by name: {{"backup": ["pg_dump", "shop"]}}')
    if not commands:
        raise ConfigError(f'{task}: no command is allowed; give it {{"backup": ["pg_dump", "shop"]}}')
    allowed: dict[str, ShellCommand] = {}
    for name, given in commands.items():
        with errors_of(task):
            check_name("command", name)
        with errors_of(f"command {name!r}"):
            allowed[name] = given if isinstance(given, ShellCommand) else ShellCommand(given)
    return allowed


def _run_as_allowed(ctx: Context, command: ShellCommand, argv: list[str]) -> Ran:
    """Run it, at each attempt or once; Parked says that nobody knows whether it has run."""
    if not command.once:
        return run(ctx, command, argv)
    ran: Ran | None = ctx.once("run", run, ctx, command, argv, on_ambiguous=command.on_ambiguous)
    return {"unconfirmed": True} if ran is None else ran


def run(ctx: Context, command: ShellCommand, argv: list[str]) -> Ran:
    """Run it to its end; an error says what becomes of the attempt."""
    environment = command.environment()
    if command.cwd is not None and not os.path.isdir(command.cwd):
        raise GiveUp(f"cwd: there is no directory {command.cwd}")
    program = found_program(argv[0], environment["PATH"], command.cwd)
    began = time.monotonic()
    end = run_to_its_end(ctx, command, [program, *argv[1:]], environment)
    output = _text(end.output, command.secrets())
    tail = f": {shown}" if (shown := output.strip()[-SHOWN:]) else ""
    if end.error:
        raise _not_started(program, end)
    if end.stopped and end.runs_on:
        raise _runs_on(command, end.stopped + " and could not be killed: it may still run" + tail)
    if end.stopped:
        raise _stopped(ctx, command, end.stopped + tail)
    if end.code == 0:
        return {"code": 0, "output": output, "ms": round((time.monotonic() - began) * 1000)}
    how = f"exit code {end.code}" if end.code > 0 else f"ended by {_signal_name(-end.code)}"
    if end.code in command.give_up:
        raise GiveUp(f"{how}{tail}")
    if end.code < 0 and command.once:
        raise Ambiguous(f"{how}{tail}")
    raise CommandFailed(f"{how}{tail}")


def _not_started(program: str, end: End) -> Exception:
    """A file that is no program will not be one at the next attempt; one that is being written, or too many, may."""
    if end.errno in NO_PROGRAM:
        return GiveUp(f"{program} cannot be run: {end.error}")
    return CommandFailed(f"{program} cannot be run for now: {end.error}")


def _runs_on(command: ShellCommand, why: str) -> Exception:
    """A second run beside the first would be worse than none."""
    return Ambiguous(why) if command.once else GiveUp(why)


def _stopped(ctx: Context, command: ShellCommand, why: str) -> Exception:
    """What a run that was stopped means: it may have done its work, and one that runs once must not be repeated."""
    if command.once:
        return Ambiguous(why)
    return Cancelled(why) if ctx.cancelled else CommandFailed(why)


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
