"""How tests start modules of theirs as processes, from whatever directory they work in."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def module(name: str, *arguments: object) -> list[str]:
    """The command that runs a module, such as tests.chaos.run, in this Python."""
    return [sys.executable, "-m", name, *map(str, arguments)]


def environment() -> dict[str, str]:
    """Ours, with the package `tests` to be found; what was on PYTHONPATH stays there, a mutant for one."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
