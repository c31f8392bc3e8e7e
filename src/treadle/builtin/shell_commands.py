"""The commands that `shell.run` may run: a list of words with placeholders, and how they are filled."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from treadle.errors import ConfigError, InvalidTiming
from treadle.model.clock import Duration, seconds
from treadle.tasks.context import OnAmbiguous

LONGEST_VALUE = 10_000  # characters
LONGEST_TIMEOUT = 30 * 86_400.0  # seconds
LONGEST_KILL_AFTER = 20.0  # seconds: less than the 30 s that a worker waits for a handler that is to stop

_PLACEHOLDER = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|\{([A-Za-z_]\w*)\}")
_SHELLS = {"sh", "bash", "dash", "zsh", "ksh"}
_SCRIPT_FOLLOWS = re.compile(r"-[A-Za-z]*c[A-Za-z]*")  # -c, also among other letters
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class ShellCommand:
    """A program and its arguments; `{name}` in an argument is filled from the job, `{{name}}` stands for itself.

    `env` are variables beside the few that every command gets, `inherit` the names of those it gets from the worker:
    their values are taken out of its output. `patterns` are regular expressions that values must match as a whole.
    `timeout` is for one run, `kill_after` what it gets to end by itself. An exit code of `give_up` ends the job
    without a retry. With `once` it is not run again while nobody knows how far it came; see `ctx.once`.
    """

    words: Sequence[str]
    timeout: Duration | None = None
    kill_after: Duration = "5s"
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    inherit: Iterable[str] = ()
    cwd: str | os.PathLike[str] | None = None
    patterns: Mapping[str, str] = field(default_factory=dict)
    allow_dash: bool = False
    give_up: Iterable[int] = ()
    once: bool = False
    on_ambiguous: OnAmbiguous = "park"


class AllowedCommand:
    """A command that was checked, under its name."""

    def __init__(self, name: str, given: "ShellCommand | Sequence[str]") -> None:
        self.name = name
        self.given = command = given if isinstance(given, ShellCommand) else ShellCommand(given)
        words = command.words
        if isinstance(words, str) or not isinstance(words, Sequence) or not words:
            raise self._wrong('write a list of words, such as ["pg_dump", "--file", "{target}"]; there is no shell')
        if not all(isinstance(word, str) and "\0" not in word for word in words) or not words[0]:
            raise self._wrong("each word must be text without NUL, and the first one a program")
        self.words = tuple(words)
        self.placeholders = {name for word in self.words for _, name in _PLACEHOLDER.findall(word) if name}
        if _filled(self.words[0]):
            raise self._wrong("the program cannot be a placeholder; allow a command for each program")
        self._check_scripts()
        timeout = command.timeout
        self.timeout = None if timeout is None else self._duration("timeout", timeout, LONGEST_TIMEOUT)
        self.kill_after = self._duration("kill_after", command.kill_after, LONGEST_KILL_AFTER)
        self.patterns = self._patterns(command.patterns)
        self.inherit = self._variables("inherit", command.inherit)
        self.env = self._environment(command.env)
        self.give_up = frozenset(command.give_up)
        self.cwd = None if command.cwd is None else os.path.abspath(command.cwd)
        if command.on_ambiguous not in get_args(OnAmbiguous):
            raise self._wrong(f"on_ambiguous: {command.on_ambiguous!r} must be 'park', 'send' or 'skip'")

    def filled(self, values: Mapping[str, Any]) -> list[str]:
        """The words with these values; ValueError for one that is missing, not known, or not allowed."""
        if missing := sorted(self.placeholders - values.keys()):
            raise ValueError(f"values: {', '.join(missing)} must be given for the command {self.name!r}")
        if unknown := sorted(values.keys() - self.placeholders):
            known = ", ".join(sorted(self.placeholders)) or "none"
            raise ValueError(f"values: the command {self.name!r} has no {', '.join(unknown)[:200]}; it has {known}")
        texts = {name: self._text(name, value) for name, value in values.items()}
        return [self._fill(word, texts) for word in self.words]

    def environment(self) -> dict[str, str]:
        """The variables that it gets, and no others."""
        usual = {name: os.environ[name] for name in USUAL_VARIABLES if name in os.environ}
        inherited = {name: os.environ[name] for name in self.inherit if name in os.environ}
        return {"PATH": os.defpath, **usual, **inherited, **self.env}

    def secrets(self) -> list[str]:
        """What must not be seen in its output: the longest first."""
        return sorted(filter(None, (os.environ.get(name, "") for name in self.inherit)), key=len, reverse=True)

    def _fill(self, word: str, texts: Mapping[str, str]) -> str:
        filled = _PLACEHOLDER.sub(lambda found: texts[found[2]] if found[2] else f"{{{found[1]}}}", word)
        first = _PLACEHOLDER.match(word)
        if first is not None and first[2] and filled.startswith("-") and not self.given.allow_dash:
            raise ValueError(
                f"values: {first[2]} must not begin with '-': the program would take it for an option; "
                "allow_dash=True allows it"
            )
        return filled

    def _text(self, name: str, value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"values: {name} must be text or a number")
        text = str(value)
        if not text and name not in self.patterns:
            raise ValueError(f"values: {name} must not be empty; a pattern that fits an empty text allows it")
        if "\0" in text or len(text) > LONGEST_VALUE:
            raise ValueError(f"values: {name} must have at most {LONGEST_VALUE:,} characters, and no NUL")
        pattern = self.patterns.get(name)
        if pattern is not None and not pattern.fullmatch(text):
            raise ValueError(f"values: {name} must match {pattern.pattern}")
        return text

    def _check_scripts(self) -> None:
        """Refuse a value inside a shell's script, where it would be read as commands."""
        for at, word in enumerate(self.words):
            if os.path.basename(word) in _SHELLS and _filled(_script_of(self.words[at + 1 :])):
                example = f'["{word}", "-c", \'tar -cf "$1" .\', "{word}", "{{name}}"]'
                raise self._wrong(
                    f"the script of {word} cannot have a placeholder: it would run what a job writes there; "
                    f"give it the value as an argument: {example}"
                )

    def _patterns(self, given: Mapping[str, str]) -> dict[str, re.Pattern[str]]:
        if unknown := sorted(given.keys() - self.placeholders):
            raise self._wrong(f"patterns: there is no placeholder {', '.join(unknown)}")
        try:
            return {name: re.compile(pattern) for name, pattern in given.items()}
        except re.error as error:
            raise self._wrong(f"patterns: {error.pattern!r} is not a regular expression: {error}") from None

    def _environment(self, given: Mapping[str, str]) -> dict[str, str]:
        names = self._variables("env", given)
        for name in names:
            if not isinstance(given[name], str) or "\0" in given[name]:
                raise self._wrong(f"env: the value of {name} must be text without NUL")
        return dict(given)

    def _variables(self, what: str, names: Iterable[str]) -> list[str]:
        listed = [names] if isinstance(names, str) else [*names]
        for name in listed:
            if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
                raise self._wrong(f"{what}: {name!r} is not the name of a variable")
        return listed

    def _duration(self, what: str, given: Duration, most: float) -> float:
        found = seconds(given, f"command {self.name!r}: {what}")
        if not 0 < found <= most:
            raise InvalidTiming(f"command {self.name!r}: {what}: must be more than 0 and at most {most:g} s")
        return found

    def _wrong(self, problem: str) -> ConfigError:
        return ConfigError(f"command {self.name!r}: {problem}")


def _script_of(arguments: Sequence[str]) -> str:
    """The text that a shell with these arguments runs as its script; empty if it runs none."""
    follows, of_option = False, False
    for word in arguments:
        if of_option:
            of_option = False
        elif word[:1] in ("-", "+"):
            follows = follows or _SCRIPT_FOLLOWS.fullmatch(word) is not None
            of_option = word in ("-o", "+o", "-O", "+O")
        else:
            return word if follows else ""
    return ""


def _filled(word: str) -> bool:
    """Whether a word has a placeholder."""
    return any(name for _, name in _PLACEHOLDER.findall(word))


USUAL_VARIABLES = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
)  # fmt: skip


def found_program(word: str, path: str, cwd: str | None) -> str | None:
    """The file of a program, found as a shell finds it; None if there is none that can be run."""
    places = (
        [Path(cwd or os.curdir)] if os.sep in word else [Path(place or os.curdir) for place in path.split(os.pathsep)]
    )
    for place in places:
        file = os.path.abspath(place / word)
        if os.path.isfile(file) and os.access(file, os.X_OK):
            return file
    return None
