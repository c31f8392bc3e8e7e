"""A web server or a command in a process of its own: uvicorn, or Flask's, with an app that a test has written."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.request import urlopen

from tests.support import forks

PORT = r"[Rr]unning on http://127\.0\.0\.1:(\d+)"


class Server:
    """`with Server.uvicorn(folder, program) as server:`; what it says is read line by line."""

    def __init__(self, folder: Path, words: list[str], environment: Mapping[str, str] | None = None) -> None:
        place = {**os.environ, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", **(environment or {})}
        self._process = forks.Popen(
            [sys.executable, "-m", *words],
            cwd=folder,
            env=place,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @classmethod
    def uvicorn(cls, folder: Path, program: str) -> Self:
        """An ASGI app called `web` in this program."""
        (folder / "site_of_test.py").write_text(program, "utf-8")
        return cls(folder, ["uvicorn", "site_of_test:web", "--port", "0"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def says(self, pattern: str) -> str:
        """Wait for a line that matches; its first group, or the match."""
        seen = []
        for line in self._process.stdout or ():
            seen.append(line)
            if found := re.search(pattern, line):
                return found[1 if found.re.groups else 0]
        raise AssertionError(f"it ended with {self._process.wait()} and never said {pattern!r}:\n{''.join(seen)}")

    def get(self, path: str) -> str:
        if not hasattr(self, "_port"):
            self._port = self.says(PORT)
        with urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=60) as answer:
            return str(answer.read().decode())

    def stop(self, number: int) -> str:
        """Send a signal, and wait for the end; what it still said."""
        self._process.send_signal(number)
        said = self._process.stdout.read() if self._process.stdout else ""
        self._process.wait(60)
        return said

    def wait(self) -> int:
        """Wait for its end; the exit code."""
        if self._process.stdout:
            self._process.stdout.read()
        return int(self._process.wait(60))
