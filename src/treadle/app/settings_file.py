"""`treadle config set`: one setting, checked and written to treadle.toml."""

import json
import os
import re
import tempfile
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from treadle.app.settings import TOML, Settings, load, read_toml, values_model
from treadle.app.settings_problems import all_problems, refused_values
from treadle.app.settings_reference import kind_of, meant
from treadle.app.settings_sources import sources
from treadle.app.toml_text import with_value
from treadle.engines import connect, libpq_url
from treadle.errors import ConfigError, NotPossible


class Written(NamedTuple):
    """What is in treadle.toml now; `before` is None if the file did not name it, `hidden_by` the source that wins."""

    name: str
    value: Any
    before: Any
    hidden_by: str | None


def known_setting(name: str) -> str:
    """The name itself; ConfigError if it is not a setting."""
    if name not in Settings.model_fields:
        raise ConfigError(f"{name!r} is not a setting{meant(name)}")
    return name


def write_setting(name: str, text: str, path: Path = TOML) -> Written:
    """Give a setting a value in treadle.toml. What cannot be used is refused before anything is written."""
    value = _checked(known_setting(name), text)
    before = read_toml(path).get(name)
    _check_together(name, value)
    old = _content(path)
    try:
        new = with_value(old.decode(), name, value).encode()
    except ConfigError as error:
        raise NotPossible(f"{path}: {error}") from None
    if new != old:
        _replace(path, old, new)
    above = sources({}, {})[1]  # what variables say; arguments are known only to the program that has them
    return Written(name, value, before, above.where(name) if name in above.values else None)


def _checked(name: str, text: str) -> Any:
    """The value as treadle.toml has it, which its field accepts."""
    value = _read(name, text)
    try:
        text.encode()
        accepted = getattr(values_model().model_validate({name: value}), name)
    except UnicodeEncodeError:
        raise ConfigError(f"{name}: the value holds half a character (a lone surrogate)") from None
    except ValidationError as error:
        raise refused_values(error, {name: value}) from None
    if name == "keep_tasks":
        return {task: {state: _as_text(age) for state, age in kept.items()} for task, kept in value.items()}
    return _as_text(value) if kind_of(name) == "duration" else accepted


def _read(name: str, text: str) -> Any:
    """Lists and tables as data, whether they are written as JSON or as TOML; all else as the text it is."""
    if kind_of(name) not in ("list", "table"):
        return text if kind_of(name) in ("text", "word") else text.strip()
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    with suppress(ValueError, RecursionError):
        if (found := tomllib.loads(f"value = {text}")).keys() == {"value"}:
            return found["value"]
    example = json.dumps((Settings.model_fields[name].examples or [None])[0])
    raise ConfigError(f"{name}: {text!r} is not a {kind_of(name)}; write it like '{example}', or as TOML")


def _as_text(age: Any) -> str:
    """A duration with its unit, as it was written if it had one."""
    if age is None:
        return "forever"
    text = str(age).strip()
    return f"{text}s" if re.fullmatch(r"\d+(\.\d+)?", text) else text


def _check_together(name: str, value: Any) -> None:
    """ConfigError if this value does not go with the others; if these are wrong already, it may be the cure."""
    if name == "url":
        connect(value).close()  # it opens nothing
    if name == "listen_url":
        libpq_url(value, name)
    try:
        load(**{name: value})
    except ConfigError:
        if not all_problems({}, {}):
            raise


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise NotPossible(f"{path} cannot be read: {error.strerror}") from None


def _replace(path: Path, old: bytes, new: bytes) -> None:
    """Write the file as a whole: another process reads the old content or the new, and a crash leaves one of them."""
    place = path.resolve()  # a link stays a link
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    except OSError as error:
        raise NotPossible(f"{path} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(new)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(place.stat().st_mode & 0o777 if place.exists() else 0o666 & ~_umask())
        if _content(path) != old:
            raise NotPossible(f"{path} was changed by somebody else at this moment; nothing was written, try again")
        Path(temporary).replace(place)
    except OSError as error:
        raise NotPossible(f"{path} cannot be written: {error.strerror}") from None
    finally:
        with suppress(FileNotFoundError):
            Path(temporary).unlink()


def _umask() -> int:
    """What the user keeps from others; it can be read only by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
