"""The process that `treadle dev` starts anew: it shows an app that cannot be imported in one block, else it serves."""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator

from treadle.cli import commands
from treadle.cli.dev import BROKEN
from treadle.cli.discovery import find_app, machinery
from treadle.cli.terminal import console, masked, safe
from treadle.errors import ConfigError


def main(arguments: list[str]) -> int:
    """Serve, if the app can be imported; the exit code."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    named = dict(word[2:].split("=", 1) for word in arguments if word.startswith(("--app=", "--url=")))
    try:
        find_app(named.get("app"), named.get("url"))
    except ConfigError as error:
        _show(error)
        return BROKEN
    return commands.run(["serve", *arguments])


def _end_with_parent() -> None:
    """Our stdin is a pipe that nobody writes to: it ends when `treadle dev` does, however that came."""
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def _show(error: ConfigError) -> None:
    out = console(stderr=True)
    out.rule("the app cannot be used", style="red")
    for line in _lines(error):
        out.print(safe(masked(line.rstrip("\n")), lines=True), soft_wrap=True)
    out.rule(style="red")


def _lines(error: ConfigError) -> Iterator[str]:
    """What Python says of the user's own code, without our part of it; of another error its sentence."""
    cause = error.__cause__
    if cause is None:
        yield str(error)
        return
    frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if not machinery(frame.filename)]
    if not isinstance(cause, SyntaxError):
        yield from traceback.format_list(frames)
    yield from traceback.format_exception_only(cause)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
