"""What each process of a run writes down, line by line, so that its word outlives it: one file a process."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Line = list[Any]
"""[what, when, ...]; see crew.py for what follows each."""


class Notebook:
    """An append-only file: a line is in the kernel's hands when `note` returns, and survives a SIGKILL."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)

    def note(self, *line: Any) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


def read(folder: Path) -> Iterator[tuple[str, list[Line]]]:
    """The lines of each process, by its name; a line that a kill cut short was never said."""
    for path in sorted(folder.glob("*.jsonl")):
        whole = path.read_text().rpartition("\n")[0]
        yield path.stem, [json.loads(line) for line in whole.splitlines()]
