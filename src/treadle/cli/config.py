"""`treadle config`: what the settings are, where they come from, and a way to change them."""

import json
import re
from typing import Annotated, Any

import typer

from treadle.app.settings import TOML
from treadle.app.settings_file import known_setting, write_setting
from treadle.app.settings_problems import all_problems
from treadle.app.settings_reference import SECRET, as_written, reference
from treadle.app.settings_sources import InForce, arguments_of, in_force, sources
from treadle.app.treadle import Treadle
from treadle.cli import options
from treadle.cli.discovery import find_configured
from treadle.cli.terminal import document, masked, safe, say, table
from treadle.errors import ConfigError

Name = Annotated[str, typer.Argument(metavar="NAME", help="The setting: lease, url.", show_default=False)]
Value = Annotated[
    str,
    typer.Argument(
        metavar="VALUE", help="""Its value: 30s, 4, true; lists and tables as '["mail"]'.""", show_default=False
    ),
]


def show(app: options.App = None, as_json: options.Json = False) -> None:
    """Print every setting with its value and where that comes from; passwords are masked."""
    found = _in_force(app)
    if as_json:
        document({"settings": [_view(one) for one in found]})
        return
    table(("setting", "value", "from"), [(one.name, _shown(one) or "–", safe(one.where)) for one in found])


def get(name: Name, app: options.App = None, as_json: options.Json = False) -> None:
    """Print the value of one setting, or an empty line if it is not set; passwords are masked."""
    known_setting(name)
    one = next(one for one in _in_force(app) if one.name == name)
    if as_json:
        document({**_view(one), **reference(name)._asdict()})
    else:
        say(_shown(one))


def set_value(name: Name, value: Value, as_json: options.Json = False) -> None:
    """Write a setting to treadle.toml; comments, order and everything else in the file stay.

    A value that cannot be used is refused, and nothing is written.
    """
    done = write_setting(name, value)
    if as_json:
        document(
            {
                "name": name,
                "value": _masked(name, done.value),
                "before": _masked(name, done.before),
                "file": str(TOML),
                "hidden_by": done.hidden_by,
            }
        )
        return
    before = "" if done.before is None else f" (it was {_text(name, done.before)})"
    say(f"{TOML}: {name} = {_text(name, done.value)}{before}")
    if done.hidden_by is not None:
        say(f"note: {done.hidden_by} is set, and wins over {TOML}", stderr=True)


def check(app: options.App = None, as_json: options.Json = False) -> None:
    """Say whether every source of the settings is valid; exit code 1 with the problems if not.

    It looks at each source, also where another one wins, and at the URL. Nothing is opened.
    """
    problems = [masked(problem) for problem in _problems(app)]
    if as_json:
        document({"ok": not problems, "problems": problems})
    else:
        for problem in problems or ["the settings are valid, from every source"]:
            say(safe(problem))
    if problems:
        raise typer.Exit(1)


def _problems(spec: str | None) -> list[str]:
    """What is wrong with files and variables; if nothing, with what the app itself says."""
    if problems := all_problems({}, {}):
        return problems
    try:
        return all_problems(*arguments_of(find_configured(spec, None)))
    except ConfigError as error:
        return [str(error)]


def _in_force(spec: str | None) -> list[InForce]:
    app = _app(spec)
    return in_force(app.settings, sources(*arguments_of(app)))


def _app(spec: str | None) -> Treadle:
    """The app, whose arguments and profile are sources too; without one, or if it cannot be imported, a bare one."""
    try:
        return find_configured(spec, None)
    except ConfigError as error:
        if spec is not None:
            raise
        bare = Treadle()
        bare.settings  # noqa: B018 - if these are wrong, that is the error
        say(f"note: {safe(masked(str(error)))}; its arguments and its profile are left out", stderr=True)
        return bare


def _view(one: InForce) -> dict[str, Any]:
    written = as_written(one.name, one.value)
    return {"name": one.name, "value": _masked(one.name, written), "source": one.source, "from": one.where}


def _shown(one: InForce) -> str:
    written = as_written(one.name, one.value)
    return "" if written is None else _text(one.name, written)


def _text(name: str, value: Any) -> str:
    """A value as people read it: text as it is, all else as JSON, which TOML has too."""
    value = _masked(name, value)
    return safe(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _masked(name: str, value: Any) -> Any:
    if name == "token" and value:
        return "***"
    if name in SECRET:
        value = re.sub(r"\s", "%20", value) if isinstance(value, str) else value  # a password may hold blanks
    return masked(value) if isinstance(value, str) else value
