"""Bad inputs for the command line, made by a grammar: every command, option and setting, given what it cannot take.

    python3 dev.py badinputs --number 10000
    python3 dev.py badinputs --only 4711      one of them, and what it says

The same number is always the same input. Each is run in this process. It must be refused with exit code 1 or 2 and one
line on stderr, that is neither a traceback nor "unexpected". What a shell would not pass on (NUL) comes by other ways:
Python's own `main(arguments)`, a file, another program.
"""

import argparse
import io
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, NamedTuple

from tests.support import stores
from treadle.app.settings import Settings
from treadle.app.settings_reference import kind_of
from treadle.cli.commands import command, run

TASKS = """
from treadle import Treadle

app = Treadle()
not_an_app = "a string"


@app.task
def greet(name: str) -> str:
    return f"hello {name}"
"""
MODULES = {
    "tasks.py": TASKS, "broken.py": "def (", "raises.py": "1 / 0", "exits.py": "import sys; sys.exit(4)",
    "shadow.py": "import nothing_of_this_name",
}  # fmt: skip
LIMIT = 60  # seconds that one of them may take: some import a web server, maybe on a busy machine
NOBODY = "0199e0c5-6f3b-7d41-9c1e-2b7f5f0a8c11"

BASE: Mapping[str, tuple[str, ...]] = {
    "init": ("new",),
    "worker": ("--until-idle",),
    "enqueue": ("greet", '{"name": "Ada"}'),
    "tail": ("--no-follow",),
    "top": ("--once",),
    "why": (NOBODY,),
    "pause": ("--all",),
    "resume": ("--all",),
    "rls": ("--worker-role", "w", "--app-role", "a", "--sql"),
    "completion": ("bash",),
    "jobs show": (NOBODY,),
    "jobs retry": ("--all", "--dry-run"),
    "jobs cancel": ("--all", "--dry-run"),
    "jobs delete": ("--all", "--dry-run"),
    "jobs edit": (NOBODY,),
    "jobs run-now": (NOBODY,),
    "schedules show": ("nobody",),
    "schedules create": ("nightly", "--task", "greet", "--payload", '{"name": "Ada"}'),
    "schedules update": ("nobody",),
    "schedules enable": ("nobody",),
    "schedules disable": ("nobody",),
    "schedules delete": ("nobody",),
    "schedules run": ("nobody",),
    "schedules explain": ("@daily",),
    "config get": ("lease",),
    "config set": ("lease", "1m"),
    "tokens create": ("grafana", "--scope", "read"),
    "tokens revoke": ("nobody",),
    "import": ("--from", "jobs", "--profile", "chat_server"),
    "own-table": ("--sql", "--profile", "chat_server"),
    "bench drain": ("--url", "sqlite:///treadle.db"),
    "bench enqueue": ("--url", "sqlite:///treadle.db"),
    "bench latency": ("--url", "sqlite:///treadle.db"),
}
"""What makes a command right, so that one thing is wrong with it."""

Make = Callable[[Random], str]


class BadInput(NamedTuple):
    """One input: the words, variables of the environment, and files."""

    words: list[str]
    environment: Mapping[str, str] = {}
    files: Mapping[str, bytes] = {}

    def __str__(self) -> str:
        parts = [f"treadle {' '.join(repr(word)[:200] for word in self.words)}"]
        parts += [f"{name}={value[:200]!r}" for name, value in self.environment.items()]
        parts += [f"{name}: {text[:200]!r}" for name, text in self.files.items()]
        return "  ".join(parts)


class Refusal(NamedTuple):
    """What became of an input; `fault` is what is wrong with that, if anything."""

    code: int
    err: str
    fault: str


# ----------------------------------------------------------------------------------------------- wrong words


def letters(random: Random, least: int = 3, most: int = 12) -> str:
    return "".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(least, most)))


def number(random: Random) -> str:
    return str(random.randint(1, 10 ** random.randint(1, 9)))


def control(random: Random) -> str:
    """A word with a character in it that no name has."""
    odd = random.choice(["\0", "\x1b[31m", "\n", "\x07", "\x1f", "\udc80", "\ud800"])
    return f"{letters(random)}{odd}{letters(random)}"


def one_of(*makers: Make | str) -> Make:
    def make(random: Random) -> str:
        maker = random.choice(makers)
        return maker if isinstance(maker, str) else maker(random)

    return make


bad_duration = one_of(
    lambda random: f"{letters(random)}!", lambda random: f"-{number(random)}s", lambda random: f"{number(random)}x",
    lambda random: f"{number(random)}{letters(random)}q", lambda random: "9" * random.randint(30, 400) + "d", control,
    "", " ", "nan", "inf", "-inf", "1e999", "1h-5m", "P1D", "1:30", "--", "h", "5 minutes ago", "0x10",
)  # fmt: skip
bad_number = one_of(
    letters, lambda random: f"{number(random)}.5", lambda random: f"{number(random)}x", control,
    lambda random: "9" * random.randint(4400, 6000), lambda random: f"0x{number(random)}", "", " ", "nan", "1e3", "--",
    "one", "1 2", "1,000",
)  # fmt: skip
too_large = one_of(bad_number, lambda random: "9" * random.randint(12, 4000), lambda random: f"-{number(random)}")
bad_json = one_of(
    lambda random: "{" * random.randint(1, 50), lambda random: "[" * random.randint(100, 100_000), number, letters,
    lambda random: f'{{"{letters(random)}": 1}}', lambda random: f'{{"name": {"9" * random.randint(4400, 5000)}}}',
    lambda random: '{"name": ' * random.randint(2000, 20_000) + "1" + "}" * 3, control,
    lambda random: f'{{"name": "{chr(random.randint(0, 31))}"}}', lambda random: f'"{letters(random)}"',
    lambda random: f'{{"name": "{letters(random)}", "name": "x"}}', "", " ", "null", "true", "[]", "NaN", "{'name': 1}",
    '{"name": NaN}', '{"name": Infinity}', '{"name": 1e999}', '{"name": "\\ud800"}', '{"name": "\\u0000"}', "{,}",
    '{"name": 12}', '{"name": null}', '{"name": ["a"]}', "\ufeff{}", '{"name": "x"} {}', '{"name": "x",}', "{}",
)  # fmt: skip
bad_cron = one_of(
    lambda random: " ".join(letters(random) for _ in range(5)), lambda random: "* " * random.choice([1, 2, 3, 4, 7, 9]),
    lambda random: f"{random.randint(60, 9999)} * * * *", lambda random: f"* {random.randint(24, 9999)} * * *",
    lambda random: f"* * {random.randint(32, 9999)} * *", lambda random: f"* * * {random.randint(13, 9999)} *",
    lambda random: f"* * * * {random.randint(8, 9999)}", lambda random: f"*/{'0' * random.randint(1, 9)} * * * *",
    lambda random: f"@{letters(random)}x", lambda random: "1," * random.randint(1, 9) + " * * * *", control,
    lambda random: "9" * random.randint(30, 5000) + " * * * *", "", " ", "0 0 31 2 *", "0 0 30 FEB *", "- * * * *",
    "*/ * * * *", "1- * * * *", "1//2 * * * *", "0 0 * * MON#9", "0 0 L-99 * *", "\u0661 * * * *",
)  # fmt: skip
bad_zone = one_of(
    lambda random: f"{letters(random).title()}/{letters(random).title()}", control, "../../../../../etc/passwd",
    lambda random: "x" * random.randint(300, 5000), "", " ", "Europe/", "/etc/localtime", "Europe/Berln", "UTC+25",
    "\udc80", "Europe", ".", "posixrules/..",
)  # fmt: skip
bad_name = one_of(control, lambda random: "x" * random.randint(201, 5000), "")
bad_id = one_of(
    lambda random: f"{letters(random)}g", lambda random: f"{NOBODY}{number(random)}", control, "", " ", "'; drop table",
    lambda random: "".join(random.choices("0123456789abcdef", k=random.randint(4, 31))), "{}", "urn:uuid:", "-" * 36,
    "%", "\u0661" * 8, "0199",
)  # fmt: skip
bad_app = one_of(
    "tasks", "tasks:", ":app", "tasks:nothing", "tasks:not_an_app", "no.such.module:app", "tasks.py:app", "1:2", "",
    " ", "broken:app", "raises:app", "exits:app", "shadow:app", "tasks:app.a.b", "tasks:app:app", "tasks:app()",
    "..:app", control,
    lambda random: f"{letters(random)}_:{letters(random)}", lambda random: f"tasks:{letters(random)}_",
)  # fmt: skip
bad_url = one_of(
    "", " ", "treadle.db", "oracle://scott:tiger@host/db", "://", "http://localhost", "sqlite:/", "sqlite://host/x.db",
    "sqlite:///tasks.py", "sqlite:///.", "sqlite:////nowhere/at/all.db", "postgresql://[::1", "dynamodb://", control,
    "postgresql://host:port/db", "dynamodb://a b", "dynamodb://a/b/c", lambda random: f"{letters(random)}://",
    lambda random: f"sqlite:///{letters(random)}\0", lambda random: f"sqlite:///{'x' * random.randint(300, 5000)}",
    lambda random: f"postgresql://localhost:{random.randint(65536, 10**9)}/db",
)  # fmt: skip
bad_state = one_of(letters, control, "", "PENDING", "failed,cancelled", "faild", "*")
bad_cursor = one_of(letters, control, "//", "failed/x/y", "9" * 500, "a_b_c", "2026-01-01T00:00:00_x", "\udc80")
bad_truth = one_of(letters, number, control, "", "yes", "1", "on", "truee")
bad_choice = one_of(letters, number, control, "", "ALLOW", "skip,once")
bad_day = one_of(
    letters, control, "", "2026-02-30", "2026-13-01", "26-1-1", "0000-01-01", "9999-12-31", "yesterday", "1e3",
    lambda random: "9" * random.randint(9, 400), lambda random: f"{random.randint(1, 1969):04}-01-01",
)  # fmt: skip
bad_path = one_of("no/such/folder/x", "tasks.py/x", "a\0b", "x" * 300, "/proc/x/y", "\ud800")
bad_host = one_of("", " ", "a\0b", "x" * 300, "[::1", "::1::", "a..b", "\udc80", "127.0.0.1:80")
bad_moment = one_of(
    "soon", "", " ", "2026-13-01", "2026-01-01T25:00", "2026-01-01T12:00", "99999-01-01T00:00Z", "2026-02-30T00:00Z",
    "-5m", "nan", "inf", control, lambda random: f"{letters(random)}!", lambda random: "9" * random.randint(30, 400),
)  # fmt: skip

NO_NAME = one_of(letters, control, "")

KINDS: Mapping[str, Make] = {
    **dict.fromkeys(("--interval", "--lease", "--grace", "--poll", "--timeout", "--every", "--span"), bad_duration),
    **dict.fromkeys(("--jitter", "--misfire-age"), bad_duration),
    **dict.fromkeys(("--since", "--before", "--until", "--run-after", "--expires"), bad_moment),
    **dict.fromkeys(("--concurrency", "--max-attempts", "--misfire-limit", "--limit", "-n", "--days"), too_large),
    **dict.fromkeys(("--port", "--jobs", "--metrics-port", "--expect", "--batch"), too_large),
    "--revision": bad_number,
    "--priority": bad_number,
    "--payload": bad_json,
    "--cron": bad_cron,
    "--tz": bad_zone,
    "--state": bad_state,
    "--cursor": bad_cursor,
    "--enabled": bad_truth,
    **dict.fromkeys(("--misfire", "--overlap", "--on-conflict", "--scope", "--unique"), bad_choice),
    "--day": bad_day,
    "--job": bad_id,
    "--id": one_of(letters, control, "", NOBODY[:-1], f"{NOBODY}0"),
    "--app": bad_app,
    "--url": bad_url,
    "--output": bad_path,
    "--host": bad_host,
    "--name": bad_name,
    "--schema": one_of(letters, control, "", "gret"),
    **dict.fromkeys(("--into", "--table"), bad_name),
    "--map": one_of(bad_path, "tasks.py", "treadle.db", "."),
    "--profile": one_of(letters, control, "", "tasks:", "no_such:P", "tasks:not_an_app", "raises:P", "broken:P"),
    "--from": bad_name,
    "--from-url": bad_url,
    "--log-format": bad_choice,
    "--for-each": one_of(letters, control, ""),
    "--fingerprint": one_of(control, "", "zz"),
    "--after": bad_moment,
}
NAMING = ("enqueue", "worker", "pause", "jobs edit", "schedules create", "tokens create")
"""Commands in which a queue, a lane or a tenant is not a filter: there a name must be one."""
FOLLOW = {"--tz": ("--cron", "@daily"), "--unique": ("--key", "k"), "--jitter": ("--every", "1h")}
TIMED = ("schedules create", "schedules update", "schedules preview")
ARGUMENTS: Mapping[str, Make] = {
    **dict.fromkeys(("why", "jobs show", "jobs edit", "jobs run-now"), one_of(bad_id, NOBODY.upper())),
    **dict.fromkeys(("jobs retry", "jobs cancel", "jobs delete"), bad_id),
    **dict.fromkeys([f"schedules {act}" for act in ("show", "enable", "disable", "delete", "run")], NO_NAME),
    "drain": NO_NAME,
    "enqueue": one_of(letters, control, "gret", ""),
    "schedules explain": bad_cron,
    "config get": one_of(letters, control, "", "leese", "TREADLE_LEASE"),
    "completion": bad_choice,
    "init": one_of("tasks.py/x", "a\0b", "x" * 300, "\ud800", lambda random: f"tasks.py/{letters(random)}"),
    "tokens create": bad_name,
    "tokens revoke": one_of(letters, control, ""),
}
LENIENT = {
    ("doctor", "--url"), ("config show", "--url"), ("config get", "--url"), ("config set", "--url"),
    ("config check", "--url"), ("config check", "--app"), ("config set", "--app"), ("config show", "--app"),
    ("config get", "--app"), ("migrate", "--url"), ("rls", "--url"), ("schedules preview", "--url"),
    ("schedules preview", "--app"), ("bench drain", "--url"), ("bench enqueue", "--url"), ("bench latency", "--url"),
    ("dev", "--app"), ("dev", "--url"), ("dev", "--log-format"), ("own-table", "--app"),
    ("tasks", "--url"),
}  # fmt: skip
"""Where what is wrong is a finding on stdout, plays no part, or may be right."""
READERS = (
    ("jobs", "list"), ("status",), ("worker", "--until-idle"), ("enqueue", "greet", '{"name": "Ada"}'), ("pauses",),
    ("schedules", "list"), ("prune",), ("tail", "--no-follow"), ("config", "show"), ("config", "get", "lease"),
)  # fmt: skip
"""Commands that read the settings; the last two show them, whatever the app is."""


# ------------------------------------------------------------------------------------------------ the grammar


@cache
def commands() -> list[tuple[str, Any]]:
    return sorted(leaves())


def leaves(at: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command, by its name."""
    at = at or command()
    if path and (not hasattr(at, "commands") or at.invoke_without_command):
        yield " ".join(path), at
    for name, sub in getattr(at, "commands", {}).items():
        yield from leaves(sub, (*path, name))


def made(seed: int) -> BadInput:
    """The input of this number: kinds of mistakes take turns, and so do commands."""
    random, every = Random(seed), commands()
    makers = (_option, _general, _option, _setting, _option, _argument, _file)
    name, meant = every[seed // len(makers) % len(every)]
    return makers[seed % len(makers)](random, name, meant)


def _option(random: Random, name: str, meant: Any) -> BadInput:
    """One option with a value that it cannot have."""
    makers = {
        param.opts[0]: maker
        for param in meant.params
        if param.param_type_name == "option" and (maker := _maker(name, param.opts[0])) is not None
    }
    if not makers:
        return _general(random, name, meant)
    option = random.choice(sorted(makers))
    given = [*BASE.get(name, ()), *FOLLOW.get(option, ())]
    if name in ("schedules create", "schedules update", "schedules preview") and not {"--cron", "--every"} & {
        *given,
        option,
    }:
        given += ["--cron", "@daily"]
    if option == "--url" and "--url" in given:
        given = given[: given.index("--url")]
    value = makers[option](random)
    return BadInput([*name.split(), *given, *([f"{option}={value}"] if option.startswith("--") else [option, value])])


def _maker(name: str, option: str) -> Make | None:
    if (name, option) in LENIENT:
        return None
    if (name, option) == ("own-table", "--schema"):
        return bad_name
    if option in ("--queue", "--lane", "--tenant") and name in NAMING:
        return one_of(control, lambda random: "x" * random.randint(201, 5000)) if option == "--lane" else bad_name
    return None if option == "--name" and name != "worker" else KINDS.get(option)


def _argument(random: Random, name: str, meant: Any) -> BadInput:
    if name not in ARGUMENTS:
        return _general(random, name, meant)
    rest = BASE[name][1:] if name in ("enqueue", "tokens create") else ()
    if name == "enqueue" and random.random() < 0.7:
        return BadInput(["enqueue", "--", "greet", bad_json(random)])
    return BadInput([*name.split(), *rest, "--", ARGUMENTS[name](random)])


def _general(random: Random, name: str, meant: Any) -> BadInput:
    """What is wrong with any command: a word that it does not know, or one that is missing."""
    words, given = name.split(), list(BASE.get(name, ()))
    valued = [param.opts[0] for param in meant.params if param.param_type_name == "option" and not param.is_flag]
    flags = [param.opts[0] for param in meant.params if param.param_type_name == "option" and param.is_flag]
    many = any(param.param_type_name == "argument" and param.nargs == -1 for param in meant.params)
    kinds: list[Callable[[], list[str]]] = [
        lambda: [*words, *given, f"--{letters(random)}zq"],
        lambda: [*words, *given, f"-{random.choice('XYZ')}{letters(random)}"],
        lambda: [*words, *given, f"--{control(random)}"],
        lambda: [*words[:-1], f"{words[-1]}{letters(random)}", *given],
        lambda: [*words[:-1], control(random)],
        lambda: [letters(random) + "zq", *words],
    ]
    if valued:
        kinds.append(lambda: [*words, *given, random.choice(valued)])
    if flags:
        kinds.append(lambda: [*words, *given, f"{random.choice(flags)}={letters(random)}"])
    if not many and not hasattr(meant, "commands"):
        kinds.append(lambda: [*words, *given, *([letters(random)] * 4)])
    return BadInput(random.choice(kinds)())


def _setting(random: Random, name: str, meant: Any) -> BadInput:
    """A variable of the environment that says nothing, or something wrong."""
    words = list(random.choice(READERS[:-2]))
    if random.random() < 0.1:
        return BadInput(words, {f"TREADLE_{letters(random).upper()}ZQ": letters(random)})
    setting = random.choice([one for one in Settings.model_fields if one in WRONG or kind_of(one) in BY_KIND])
    maker = WRONG.get(setting) or BY_KIND[kind_of(setting)]
    return BadInput(words, {f"TREADLE_{setting.upper()}": _passable(maker(random))})


def _passable(value: str) -> str:
    """What an environment can hold."""
    return value.replace("\0", "\x01").replace("\ud800", "\udc80")


BY_KIND: Mapping[str, Make] = {
    "duration": one_of(lambda random: f"{letters(random)}!", lambda random: f"-{number(random)}s", "nan", "1x", "[]"),
    "number": one_of(letters, lambda random: "9" * random.randint(12, 5000), "1.5", "-5", "[]", "{}"),
    "boolean": one_of(lambda random: f"{letters(random)}!", "2", "nein", "[]"),
    "word": one_of(lambda random: f"{letters(random)}!", "", "[]", control),
    "list": one_of(lambda random: f"[{number(random)}]", lambda random: f"[{letters(random)}", "{}", "[1", "1", '"a"'),
    "table": one_of(letters, "[]", "{", '{"x": "y"}', "1", '{"": {}}', lambda random: f'{{"{letters(random)}": []}}'),
}
WRONG: Mapping[str, Make] = {"app": bad_app, "url": bad_url}


def _file(random: Random, name: str, meant: Any) -> BadInput:
    """A treadle.toml or pyproject.toml that cannot be read, or says something of a wrong type."""
    words, kind = list(random.choice(READERS)), random.random()
    if kind < 0.15:
        text = random.choice(
            ["lease = ", "= 1", "[", "a = 1\na = 2", "lease = 1m", 'x = "', "\x00", "lease == 1", "[[x]"]
        )
        return BadInput(words, files={"treadle.toml": text.encode()})
    if kind < 0.2:
        return BadInput(words, files={"treadle.toml": bytes([random.randint(128, 255) for _ in range(9)])})
    if kind < 0.3:
        return BadInput(words, files={"treadle.toml": f"{letters(random)}_zq = 1".encode()})
    if kind < 0.4:
        return BadInput(words, files={"pyproject.toml": f"[tool.treadle]\n{letters(random)}_zq = 1".encode()})
    wrong = {
        "duration": ["true", '""', '"soon"', "-1", "[]", "{}", "nan", "1e999", "2020-01-01"],
        "number": ["true", '""', '"many"', "-1", "[1]", "{}", "1.5", "9" * 30, "2020-01-01T00:00:00Z"],
        "boolean": ['"maybe"', "3", "[]", "{}", "1.5"],
        "word": ["1", "true", '""', '"nonsense"', "[]", "{}"],
        "text": ["1", "true", "[]", "{}", "1.5"],
        "list": ["1", "true", '"api"', "{}", "[1]", "[[]]", "[{}]"],
        "table": ["1", "true", '"x"', "[]", '{x = "y"}', '{"" = {}}', "{x = []}"],
    }
    setting = random.choice([one for one in Settings.model_fields if one != "app"])  # TREADLE_APP wins over it
    line = f"{setting} = {random.choice(wrong[kind_of(setting)])}"
    file, head = random.choice([("treadle.toml", ""), ("pyproject.toml", "[tool.treadle]\n")])
    return BadInput(words, files={file: (head + line).encode()})


# ------------------------------------------------------------------------------------------------- running it


class Hung(BaseException):
    """It took too long: it may have been taken as right, and works."""


@contextmanager
def place() -> Iterator[Path]:
    """A folder with an app and a store, which is the current one; signals and logging are as before in the end."""
    before, path, modules = Path.cwd(), list(sys.path), {*sys.modules}
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    signals = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)}
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    with tempfile.TemporaryDirectory(prefix="treadle-bad-") as folder:
        for name, text in MODULES.items():
            Path(folder, name).write_text(text)
        shutil.copy(stores.migrated_file(), Path(folder, "treadle.db"))
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)
            sys.path[:], sys.dont_write_bytecode = path, bytecode
            root.handlers[:], root.level = handlers, level
            for name in {*sys.modules} - modules:
                if name in {one.removesuffix(".py") for one in MODULES}:
                    del sys.modules[name]
            for which, handler in signals.items():
                signal.signal(which, handler)


def tried(bad: BadInput, folder: Path) -> Refusal:
    """Run it in `place()`, and look at what comes out."""
    out, err = io.StringIO(), io.StringIO()
    for name, text in bad.files.items():
        (folder / name).write_bytes(text)
    environment = {"TREADLE_APP": "tasks:app", **bad.environment}
    before, stdin = dict(os.environ), sys.stdin
    os.environ.update(environment)
    sys.stdin = io.StringIO("{")
    for name in MODULES:
        sys.modules.pop(name.removesuffix(".py"), None)
    signal.signal(signal.SIGALRM, _hung)
    signal.alarm(LIMIT)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = run(list(bad.words))
    except Hung:
        return Refusal(0, err.getvalue(), f"took longer than {LIMIT} s")
    except BaseException as error:
        return Refusal(0, err.getvalue(), f"raised {error!r}")
    finally:
        signal.alarm(0)
        sys.stdin = stdin
        os.environ.clear()
        os.environ.update(before)
        for name in bad.files:
            (folder / name).unlink()
    return Refusal(code, err.getvalue(), _fault(code, err.getvalue()))


def _hung(number: int, frame: FrameType | None) -> None:
    raise Hung


def _fault(code: int, err: str) -> str:
    if code not in (1, 2):
        return f"exit code {code}"
    if err.count("\n") != 1 or not err.endswith("\n"):
        return f"{err.count(chr(10))} lines on stderr"
    if "Traceback" in err or "unexpected" in err.replace("Got unexpected extra argument", ""):  # Typer's words
        return "a bug of ours, not a refusal"
    if any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in err[:-1]):
        return "a control character on stderr"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="dev.py badinputs", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--number", type=int, default=10_000, metavar="N", help="how many")
    parser.add_argument("--only", type=int, metavar="N", help="only this one, and what it says")
    asked = parser.parse_args()
    began, codes, faults = time.monotonic(), Counter[int](), []
    with place() as folder:
        for seed in range(asked.number) if asked.only is None else [asked.only]:
            bad = made(seed)
            refusal = tried(bad, folder)
            codes[refusal.code] += 1
            if asked.only is not None:
                print(f"{bad}\n{refusal.err}")
            if refusal.fault:
                faults.append((seed, refusal.fault))
                print(f"{seed}: {refusal.fault}: {bad}\n    {refusal.err[:300]!r}", flush=True)
    counts = ", ".join(f"{number:,} with exit code {code}" for code, number in sorted(codes.items()))
    print(f"{codes.total():,} inputs in {time.monotonic() - began:.0f} s: {counts}; {len(faults):,} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
