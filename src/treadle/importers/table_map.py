"""What of an application's table is what of a job: columns, words of states, and what no column says."""

import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from treadle.app.profile import LABELS, Profile
from treadle.app.toml_text import toml_value
from treadle.errors import ConfigError, InvalidJob
from treadle.importers.words import labels_of
from treadle.model.clock import seconds
from treadle.model.retry import Retry
from treadle.tasks.options import Unique

FIELDS = (
    "id", "task", "tenant", "state", "payload", "queue", "lane", "priority", "task_version", "timeout", "key",
    "created_at", "updated_at", "due_at", "retry_at", "expires_at", "claimed_at", "started_at", "finished_at",
    "succeeded_at", "cancelled_at", "lease_until", "worker", "result", "error_text", "error_type", "error_traceback",
    "error_at", "attempt", "failures", "retries", "max_attempts", "max_retries", "cost_cents", "cost_micros",
)  # fmt: skip
"""What a column may be."""
REQUIRED = ("id", "task", "state")
TEXTS = ("task", "tenant", "state", "queue", "lane", "key_scope", "lease")
NUMBERS = ("priority", "task_version", "max_attempts", "retry_base", "retry_cap", "retry_jitter", "timeout")
SCOPES = ("pending", "active", "ever")
_LABELS = tuple(label for labels in LABELS.values() for label in labels)
_HEADINGS = {
    "columns": 'What is in your columns; ["error", "message"] is a member of a JSON column.',
    "states": "What your words mean.",
    "defaults": "What no column says.",
}


class TableMap(NamedTuple):
    """How rows of a table become jobs. `columns` go from a field to a column, and the way within its JSON value."""

    columns: Mapping[str, tuple[str, ...]]
    states: Mapping[str, str]
    defaults: Mapping[str, Any]

    @property
    def lease(self) -> float:
        return seconds(self.defaults.get("lease", "30s"), "lease")

    @property
    def retry(self) -> Retry:
        """The policy of each job, but for its attempts where a column has them."""
        usual = Retry()
        given = {name: self.defaults.get(f"retry_{name}", getattr(usual, name)) for name in ("base", "cap", "jitter")}
        cap = given["cap"] if given["cap"] != float("inf") else None
        return Retry(self.defaults.get("max_attempts", usual.max_attempts), given["base"], cap, given["jitter"])

    def column(self, field: str) -> str:
        """How people find what says this: the column, or the default."""
        return ".".join(self.columns[field]) if field in self.columns else f"defaults.{field}"


def read_map(path: str) -> TableMap:
    """The map in a TOML file; ConfigError names the key that is wrong."""
    try:
        document = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"--map: {path!r} cannot be read: {why}") from None
    return checked_map(document, path)


def checked_map(document: Mapping[str, Any], where: str) -> TableMap:
    """The map in this document; ConfigError names the key that is wrong."""
    for name, section in document.items():
        if name not in _HEADINGS:
            raise ConfigError(f"{where}: {name}: is not a section{_meant(name, tuple(_HEADINGS))}")
        if not isinstance(section, dict):
            raise ConfigError(f"{where}: {name}: must be a table, written [{name}]")
    columns = {
        field: _column_path(value, f"{where}: columns.{field}") for field, value in document.get("columns", {}).items()
    }
    for field in columns:
        if field not in FIELDS:
            raise ConfigError(f"{where}: columns.{field}: is not a field of a job{_meant(field, FIELDS)}")
    states = document.get("states", {})
    for word, label in states.items():
        if label not in _LABELS:
            raise ConfigError(f"{where}: states.{word}: {label!r} is not a state{_meant(str(label), _LABELS)}")
    defaults = document.get("defaults", {})
    _check_defaults(defaults, where)
    for field in REQUIRED:
        if field not in columns and (field == "id" or field not in defaults):
            also = "" if field == "id" else f", or defaults.{field}"
            raise ConfigError(f"{where}: columns.{field}: is required{also}")
    if "state" in columns and not states:
        raise ConfigError(f"{where}: states: is required; say of each word what it means")
    table_map = TableMap(columns, states, defaults)
    try:
        table_map.retry.checked()
    except InvalidJob as error:
        name = error.field if error.field == "max_attempts" else f"retry_{error.field}"
        raise ConfigError(f"{where}: defaults.{name}: {str(error).removeprefix(f'{error.field}: ')}") from None
    return table_map


def _column_path(value: object, where: str) -> tuple[str, ...]:
    path = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else ()
    if not path or not all(isinstance(name, str) and name and "\0" not in name for name in path):
        raise ConfigError(f'{where}: must be the name of a column, or a list such as ["error", "message"]')
    return path


def _check_defaults(defaults: Mapping[str, Any], where: str) -> None:
    for name, value in defaults.items():
        if name not in (*TEXTS, *NUMBERS):
            raise ConfigError(f"{where}: defaults.{name}: is not known{_meant(name, (*TEXTS, *NUMBERS))}")
        if name in NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ConfigError(f"{where}: defaults.{name}: {value!r} must be a number")
        if name in ("priority", "task_version", "max_attempts") and not isinstance(value, int):
            raise ConfigError(f"{where}: defaults.{name}: {value!r} must be a whole number")
        if name in TEXTS and not isinstance(value, str):
            raise ConfigError(f"{where}: defaults.{name}: {value!r} must be a text")
    if (state := defaults.get("state")) is not None and state not in _LABELS:
        raise ConfigError(f"{where}: defaults.state: {state!r} is not a state{_meant(state, _LABELS)}")
    if (scope := defaults.get("key_scope")) is not None and scope not in SCOPES:
        raise ConfigError(f"{where}: defaults.key_scope: {scope!r} must be one of {', '.join(SCOPES)}")
    if "lease" in defaults:
        seconds(defaults["lease"], f"{where}: defaults.lease")


def _meant(name: str, known: tuple[str, ...]) -> str:
    near = get_close_matches(name, known, 1)
    return f", did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"


# ------------------------------------------------------------------------------------------ from a profile


def map_of(profile: Profile) -> TableMap:
    """The map for the table of an application that has this profile."""
    if profile.fields is None:
        raise ConfigError("profile: it has no fields, so nothing says what is in which column; write a map")
    columns = dict(_columns(profile.fields))
    retry: Retry = profile.task.get("retry", Retry())
    unique = profile.task.get("unique", Unique())
    scope = unique if isinstance(unique, str) else unique.scope
    defaults = {
        "max_attempts": retry.max_attempts,
        "retry_base": retry.base,
        "retry_cap": float("inf") if retry.cap is None else retry.cap,
        "retry_jitter": retry.jitter,
        "key_scope": scope if scope in SCOPES else "active",
        "lease": profile.settings.get("lease", "30s"),
    }
    return TableMap(columns, labels_of(profile), defaults)


def _columns(fields: Mapping[str, Any], *outer: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, source in fields.items():
        if isinstance(source, Mapping):
            yield from _columns(source, *outer, name)
        elif source in FIELDS:
            yield source, (*outer, name)


def as_toml(table_map: TableMap) -> str:
    """The map as a file, to be edited."""
    parts: list[str] = []
    columns = {field: path[0] if len(path) == 1 else list(path) for field, path in table_map.columns.items()}
    for name, values in (("columns", columns), ("states", table_map.states), ("defaults", table_map.defaults)):
        lines = [f"{_key(key)} = {toml_value(value)}" for key, value in values.items()]
        parts.append("\n".join([f"[{name}]  # {_HEADINGS[name]}", *lines]))
    return "\n\n".join(parts) + "\n"


def _key(name: str) -> str:
    return name if name.isascii() and name.replace("_", "").replace("-", "").isalnum() else toml_value(name)
