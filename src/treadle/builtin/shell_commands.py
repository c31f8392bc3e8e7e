"""The commands that `shell.run` may run: a list of words with placeholders, and how they are filled."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from treadle.builtin.arguments import checked_seconds, errors_of, listed
from treadle.errors import ConfigError, GiveUp
from treadle.model.clock import Duration, seconds
from treadle.tasks.context import OnAmbiguous, check_on_ambiguous

LONGEST_VALUE = 10_000  # characters
LONGEST_TIMEOUT = 30 * 86_400.0  # seconds
LONGEST_KILL_AFTER = 20.0  # seconds: less than the 30 s that a worker waits for a handler that is to stop
HIGHEST_CODE = 255

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

    argv: Sequence[str]
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

    def __post_init__(self) -> None:
        with errors_of("ShellCommand"):
            self._check()

    @property
    def placeholders(self) -> set[str]:
        """The names of the values that it needs."""
        return {name for word in self.argv for _, name in _PLACEHOLDER.findall(word) if name}

    @property
    def timeout_seconds(self) -> float:
        """How long one run may take; infinite if nothing was said."""
        return float("inf") if self.timeout is None else seconds(self.timeout, "timeout")

    @property
    def kill_after_seconds(self) -> float:
        """How long it gets to end by itself."""
        return seconds(self.kill_after, "kill_after")

    def filled(self, values: Mapping[str, Any]) -> list[str]:
        """The words with these values; ValueError for one that is missing, not known, or not allowed."""
        placeholders = self.placeholders
        if missing := sorted(placeholders - values.keys()):
            raise ValueError(f"values: {', '.join(missing)} must be given")
        if unknown := sorted(values.keys() - placeholders):
            known = ", ".join(sorted(placeholders)) or "none"
            raise ValueError(f"values: it has no {', '.join(unknown)[:200]}; it has {known}")
        texts = {name: self._text(name, value) for name, value in values.items()}
        return [self._fill(word, texts) for word in self.argv]

    def environment(self) -> dict[str, str]:
        """The variables that it gets, and no others."""
        usual = {name: os.environ[name] for name in USUAL_VARIABLES if name in os.environ}
        inherited = {name: os.environ[name] for name in self.inherit if name in os.environ}
        return {"PATH": os.defpath, **usual, **inherited, **self.env}

    def secrets(self) -> list[str]:
        """What must not be seen in its output: the longest first."""
        return sorted(filter(None, (os.environ.get(name, "") for name in self.inherit)), key=len, reverse=True)

    def _check(self) -> None:
        self._keep("argv", _checked_argv(self.argv))
        self._keep("inherit", _checked_variables("inherit", listed("inherit", self.inherit, '["PGPASSWORD"]')))
        self._keep("env", _checked_environment(self.env))
        self._keep("give_up", _checked_codes(self.give_up))
        self._keep("patterns", _checked_patterns(self.patterns, self.placeholders))
        if self.cwd is not None:
            self._keep("cwd", _checked_folder(self.cwd))
        if self.timeout is not None:
            checked_seconds("timeout", self.timeout, LONGEST_TIMEOUT)
        checked_seconds("kill_after", self.kill_after, LONGEST_KILL_AFTER)
        for name in ("allow_dash", "once"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}: {getattr(self, name)!r} must be True or False")
        check_on_ambiguous(self.on_ambiguous)
        if self.on_ambiguous != "park" and not self.once:
            raise ConfigError(f"on_ambiguous: {self.on_ambiguous!r} needs once=True; without it each attempt runs it")

    def _keep(self, name: str, value: object) -> None:
        """Replace what was given, which its owner may change, by what was checked."""
        object.__setattr__(self, name, value)

    def _fill(self, word: str, texts: Mapping[str, str]) -> str:
        filled = _PLACEHOLDER.sub(lambda found: texts[found[2]] if found[2] else f"{{{found[1]}}}", word)
        first = _PLACEHOLDER.match(word)
        if first is not None and first[2] and filled.startswith("-") and not self.allow_dash:
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
        if pattern is not None and not re.fullmatch(pattern, text):
            raise ValueError(f"values: {name} must match {pattern}")
        return text


def _checked_argv(given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str | bytes) or not isinstance(given, Sequence) or not given:
        raise ConfigError('write a list of words, such as ["pg_dump", "--file", "{target}"]; there is no shell')
    if not all(isinstance(word, str) and "\0" not in word for word in given) or not given[0]:
        raise ConfigError("each word must be text without NUL, and the first one a program")
    if _has_placeholder(given[0]):
        raise ConfigError("the program cannot be a placeholder; allow a command for each program")
    for at, word in enumerate(given):  # a value inside a shell's script would be read as commands
        if os.path.basename(word) in _SHELLS and _has_placeholder(_script_of(given[at + 1 :])):
            example = f'["{word}", "-c", \'tar -cf "$1" .\', "{word}", "{{name}}"]'
            raise ConfigError(
                f"the script of {word} cannot have a placeholder: it would run what a job writes there; "
                f"give it the value as an argument: {example}"
            )
    return tuple(given)


def _checked_variables(field: str, names: tuple[Any, ...]) -> tuple[str, ...]:
    for name in names:
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise ConfigError(f"{field}: {name!r} is not the name of a variable")
    return names


def _checked_environment(given: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(given, Mapping):  # it is not shown: it may hold a password
        raise ConfigError('env: must be values by the names of variables, such as {"LANG": "C.UTF-8"}')
    for name in _checked_variables("env", tuple(given)):
        if not isinstance(given[name], str) or "\0" in given[name]:
            raise ConfigError(f"env: the value of {name} must be text without NUL")
    return dict(given)


def _checked_codes(given: Iterable[int]) -> frozenset[int]:
    codes = listed("give_up", given, "[2]" if isinstance(given, bool) or not isinstance(given, int) else f"[{given}]")
    for code in codes:
        if isinstance(code, bool) or not isinstance(code, int) or not 1 <= code <= HIGHEST_CODE:
            raise ConfigError(f"give_up: {code!r} must be an exit code: a whole number from 1 to {HIGHEST_CODE}")
    return frozenset(codes)


def _checked_patterns(given: Mapping[str, str], placeholders: set[str]) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise ConfigError(f'patterns: {given!r} must be patterns by placeholder, such as {{"shop": "[a-z]+"}}')
    for name, pattern in given.items():
        if name not in placeholders:
            raise ConfigError(f"patterns: there is no placeholder {name}")
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ConfigError(f"patterns: {pattern!r} is not a regular expression: {error}") from None
        if not isinstance(pattern, str):
            raise ConfigError(f"patterns: {pattern!r} is not a regular expression; write it as text")
    return dict(given)


def _checked_folder(given: object) -> str:
    if not isinstance(given, str | os.PathLike) or not isinstance(path := os.fspath(given), str) or "\0" in path:
        raise ConfigError(f"cwd: {given!r} must be the path of a directory")
    return os.path.abspath(path)


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


def _has_placeholder(word: str) -> bool:
    return any(name for _, name in _PLACEHOLDER.findall(word))


USUAL_VARIABLES = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
)  # fmt: skip


def found_program(word: str, path: str, cwd: str | os.PathLike[str] | None) -> str:
    """The file of a program, found as a shell finds it; GiveUp if there is none that can be run."""
    places = (
        [Path(cwd or os.curdir)] if os.sep in word else [Path(place or os.curdir) for place in path.split(os.pathsep)]
    )
    files = [os.path.abspath(place / word) for place in places]
    for file in files:
        if os.path.isfile(file) and os.access(file, os.X_OK):
            return file
    for file in filter(os.path.isfile, files):
        raise GiveUp(f"{file} is not executable by this worker; make it so with chmod +x, or allow another program")
    way_out = "install it on this worker, or name its file where the task is registered"
    raise GiveUp(f"there is no program {word!r}; {way_out}")
