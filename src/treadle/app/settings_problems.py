"""What is wrong with settings: the field, the value, the range and the source, in a sentence."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from treadle.app.settings import load, unknown_variables, values_model
from treadle.app.settings_reference import SECRET, kind_of, meant, range_of
from treadle.app.settings_sources import Source, readers, sources, variables_without_json
from treadle.engines import connect
from treadle.errors import ConfigError

Place = tuple[int | str, ...]
LONGEST_VALUE = 80  # characters of a value in a message


def refused(error: Exception, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> ConfigError:
    """The error of pydantic, of TOML or of pydantic-settings, as ours."""
    if isinstance(error, ValidationError):
        found = sources(given, defaults)
        texts = [_explained(item, found) for item in error.errors()]
    else:
        texts = _unreadable() or [str(error)]
    return ConfigError(f"settings: {'; '.join(texts)}")


def refused_values(error: ValidationError, values: Mapping[str, Any]) -> ConfigError:
    """The error of pydantic for values that somebody gave just now."""
    return ConfigError("; ".join(_problem(item, values) for item in error.errors()))


def unknown_variable(variable: str) -> ConfigError:
    return ConfigError(f"settings: {_unknown(variable)}")


def all_problems(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong in any source, also where another source wins; none means that all is well."""
    problems = [*variables_without_json(), *map(_unknown, unknown_variables())]
    for origin, label, read in readers(given, defaults):
        try:
            source = Source(origin, label, read())
            values_model().model_validate(dict(source.values))
        except ConfigError as error:
            problems.append(str(error))
        except ValidationError as error:
            problems += [_explained(item, [source]) for item in error.errors()]
    return problems or [*_together(given, defaults)]


def _together(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with settings that are right one by one."""
    try:
        settings = load(defaults, **given)
        connect(settings.url, listen_url=settings.listen_url).close()  # it opens nothing
    except ConfigError as error:
        yield str(error).removeprefix("settings: ")


def _unreadable() -> list[str]:
    """What is wrong with the sources that cannot be read at all."""
    problems = variables_without_json()
    for _, _, read in readers({}, {}):
        try:
            read()
        except ConfigError as error:
            problems.append(str(error))
    return problems


def _unknown(variable: str) -> str:
    return f"{variable} is not a setting{meant(variable.partition('_')[2].lower())}"


def _explained(item: Mapping[str, Any], found: list[Source]) -> str:
    """What pydantic found, and in which source: the first that names the setting, because that one counts."""
    place: Place = item["loc"]
    if not place:
        return _problem(item, {})
    naming = next((source for source in found if _names(source.values, place)), Source("profile", "the profile", {}))
    return f"{_problem(item, naming.values)} ({naming.where(place[0])})"


def _problem(item: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    place, message = item["loc"], str(item["msg"]).removeprefix("Value error, ")
    if not place:  # of several settings together: it names them
        return message
    name = str(place[0])
    if item["type"] == "extra_forbidden":
        return f"{name}: is not a setting{meant(name)}"
    key = place[-1] == "[key]"
    parts = place[:-1] if key else place
    value = _shown(name, parts[-1] if key else _value(values, place, item["input"]))
    if item["type"] == "value_error":
        what = message
    elif item["type"] in ("greater_than_equal", "less_than_equal", "too_short"):
        what = f"{value} is out of range"
    else:
        what = f"{value} is not valid"
    way_out = "" if item["type"] == "value_error" and kind_of(name) == "list" else f"; it must be {range_of(name)}"
    return f"{'.'.join(part for part in parts if isinstance(part, str))}: {what}{way_out}"


def _shown(name: str, value: object) -> str:
    """A value as a message may have it: short, and no secret."""
    if name in SECRET:
        return f"a value of type {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def _value(values: object, place: Place, otherwise: object) -> object:
    """What was written at this place; pydantic's own input is what a validator has made of it."""
    for part in place:
        try:
            values = values[part]  # type: ignore[index]
        except (TypeError, LookupError):
            return otherwise
    return values


def _names(values: object, place: Place) -> bool:
    """Whether these settings name what is at this place; tables of several sources are merged, entry by entry."""
    for part in place:
        if not isinstance(values, Mapping):
            break
        if part not in values:
            return False
        values = values[part]
    return True
