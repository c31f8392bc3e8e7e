"""The programs of examples/, copied to an empty folder and run by the commands of their READMEs."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import forks, processes, provision

EXAMPLES = processes.ROOT / "examples"
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(r"^```output\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(readme: str) -> list[str]:
    """The commands that a README tells its reader to type."""
    return [line.removeprefix("$ ") for block in CONSOLE.findall(readme) for line in block.splitlines()]


class Running:
    """A program at work, its output read line by line."""

    def __init__(self, words: list[str], folder: Path, environment: dict[str, str]) -> None:
        self._process = forks.Popen(
            words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def says(self, pattern: str) -> str:
        """Wait for a line that matches; its first group, or the match."""
        seen = []
        for line in self._process.stdout or ():
            seen.append(line)
            if found := re.search(pattern, line):
                return found[1 if found.re.groups else 0]
        raise AssertionError(f"it ended with {self._process.wait()} and never said {pattern!r}:\n{''.join(seen)}")

    def end(self, number: int) -> str:
        """Send a signal; what it still said until its end."""
        self.signal(number)
        return self.rest()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def rest(self) -> str:
        """What it still said until its end."""
        said = self._process.stdout.read()  # not communicate: it would miss what was read ahead of the last line
        self._process.wait()
        return said

    def clear_away(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


class Example:
    """One program, in a folder where it may leave its files."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = Path(shutil.copytree(EXAMPLES / name, folder / name))
        readme = (self.folder / "README.md").read_text("utf-8")
        self.commands = commands(readme)
        self.outputs: list[str] = OUTPUT.findall(readme)
        self.environment = {"COLUMNS": "200", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
        self.python = sys.executable  # or another one, that has what the example needs
        self._started: list[Running] = []

    def run(self, command: str) -> str:
        """Run a command of the README to its good end; what it printed."""
        words, environment = self._parsed(command)
        done = forks.run(words, cwd=self.folder, env=environment, timeout=120)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, command: str, *more: str) -> Running:
        """Start a command of the README, with more options than it has there."""
        words, environment = self._parsed(command)
        self._started.append(Running([*words, *more], self.folder, environment))
        return self._started[-1]

    def words(self, command: str) -> list[str]:
        """The words of a command, which the README must name."""
        assert command in self.commands, f"the README does not tell its reader to run {command!r}"
        return shlex.split(command)

    def clear_away(self) -> None:
        for running in self._started:
            running.clear_away()

    def _parsed(self, command: str) -> tuple[list[str], dict[str, str]]:
        """Its words, for this Python, and its environment: ours, the example's, and what the command sets."""
        words, sets = self.words(command), {}
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            sets[name] = value
        program = [self.python] if words[0] == "python" else [self.python, "-m", words[0]]
        return [*program, *words[1:]], {**os.environ, **self.environment, **sets}


@pytest.fixture
def example(tmp_path: Path) -> Iterator[Callable[[str], Example]]:
    """Opens examples by name; what they have started ends with the test."""
    opened: list[Example] = []

    def open_example(name: str) -> Example:
        opened.append(Example(name, tmp_path))
        return opened[-1]

    yield open_example
    for one in opened:
        one.clear_away()


@pytest.fixture
def database() -> Iterator[str]:
    """The URL of an empty PostgreSQL database, which goes with the test."""
    url = provision.fresh_database(provision.shared_postgres())
    yield url
    provision.drop_database(url)
