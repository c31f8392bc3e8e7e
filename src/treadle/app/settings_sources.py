"""Where the settings come from: which source names which setting, and what it says."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic_settings import EnvSettingsSource

from treadle.app.settings import PYPROJECT, TOML, Settings, read_project, read_toml
from treadle.app.settings_reference import kind_of, variable_of

if TYPE_CHECKING:
    from treadle.app.treadle import Treadle

Origin = Literal["argument", "variable", "file", "profile", "default"]


class Source(NamedTuple):
    """One place that may name settings, and what it says."""

    origin: Origin
    label: str
    values: Mapping[str, Any]

    def where(self, name: object) -> str:
        """How people find what it says of this setting."""
        return variable_of(str(name)) if self.origin == "variable" else self.label


class InForce(NamedTuple):
    """A setting that holds: its value, and where that comes from."""

    name: str
    value: Any
    source: Origin
    where: str


Reader = tuple[Origin, str, Callable[[], Mapping[str, Any]]]


def readers(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[Reader]:
    """Every source, the one that wins first; the call that reads it raises ConfigError if it cannot."""
    return [
        ("argument", "an argument", lambda: {name: value for name, value in given.items() if value is not None}),
        ("variable", "TREADLE_*", _variables),
        ("file", str(TOML), lambda: read_toml(TOML)),
        ("file", f"[tool.treadle] in {PYPROJECT}", read_project),
        ("profile", "the profile", lambda: defaults),
    ]


def sources(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[Source]:
    """Every source with what it says, the one that wins first."""
    return [Source(origin, label, read()) for origin, label, read in readers(given, defaults)]


def arguments_of(app: "Treadle | None") -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """What the program itself says: the arguments of its app, and the settings of its profile."""
    return ({}, {}) if app is None else app._store.named_settings


def in_force(settings: Settings, found: list[Source]) -> list[InForce]:
    """Every setting with its value and its source; a table may have several, which are merged."""
    return [_one(name, getattr(settings, name), found) for name in Settings.model_fields]


def _one(name: str, value: Any, found: list[Source]) -> InForce:
    named = [source for source in found if name in source.values]
    if not named:
        return InForce(name, value, "default", "default")
    merged = [source for source in named if source.origin != "profile" or len(named) == 1]
    shown = merged if kind_of(name) == "table" else named[:1]
    return InForce(name, value, named[0].origin, " and ".join(source.where(name) for source in shown))


def _variables() -> Mapping[str, Any]:
    """What variables say of settings; those that should hold JSON and do not are left out."""
    source = EnvSettingsSource(Settings)
    broken = {variable.lower() for variable, _ in _without_json()}
    source.env_vars = {name: value for name, value in source.env_vars.items() if name.lower() not in broken}
    return source()


def variables_without_json() -> list[str]:
    """What is wrong with variables that should hold a list or a table as JSON."""
    return [
        f"{variable} is not valid JSON; write it like {variable}='{example}'" for variable, example in _without_json()
    ]


def _without_json() -> Iterator[tuple[str, str]]:
    given = {name.upper(): value for name, value in os.environ.items()}
    for name, field in Settings.model_fields.items():
        variable = variable_of(name)
        if kind_of(name) in ("list", "table") and variable in given:
            try:
                json.loads(given[variable])
            except (ValueError, RecursionError):
                yield variable, json.dumps((field.examples or [None])[0])
