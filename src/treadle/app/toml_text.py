"""One value of a TOML file changed in its text: comments, order and all else stay as they are.

Python's own parser says where a statement ends, which part of it is the key and what is a comment: a guess is tried,
and it holds if the parser reads the same. At the end the whole text is parsed again, and must say what was asked for.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from treadle.errors import ConfigError

Path = tuple[str, ...]
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


def toml_value(value: Any) -> str:
    """A value as TOML has it: text, a number, true or false, a list, a table in one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return _quoted(value)
        case list() | tuple():
            return f"[{', '.join(map(toml_value, value))}]"
        case Mapping():
            entries = ", ".join(f"{_key((str(name),))} = {toml_value(entry)}" for name, entry in value.items())
            return f"{{ {entries} }}" if entries else "{}"
        case _:
            raise TypeError(f"TOML has no value of type {type(value).__name__}")


def with_value(text: str, name: str, value: Any) -> str:
    """The text with `name = value` at its top level, in the place of the value before; ConfigError if it cannot be."""
    wanted = {**tomllib.loads(text), name: value}
    edited = _edited([*_statements(text)], name, value, "\r\n" if "\r\n" in text else "\n")
    if not _alike(_parsed(edited), wanted):
        raise ConfigError(f"{name} is written in a way that cannot be changed here; change it in an editor")
    return edited


class Statement(NamedTuple):
    """Some lines of the file: `key = value`, the [header] of a table, a comment, or nothing."""

    text: str
    path: Path = ()  # the whole name of a key or a table, () for a comment
    header: bool = False
    value_at: int = 0  # where the text after its = begins


def _statements(text: str) -> Iterator[Statement]:
    table: Path = ()
    lines = ""
    for line in _LINE.findall(text):
        lines += line
        if _parsed(lines) is None:  # an array or a text goes on
            continue
        if lines.lstrip().startswith("["):
            table = _path(_parsed(lines))
            yield Statement(lines, table, header=True)
        elif (equals := _equals(lines)) is not None:
            yield Statement(lines, (*table, *_path(_parsed(f"{lines[:equals]}=0"))), value_at=equals + 1)
        else:
            yield Statement(lines)
        lines = ""


def _edited(statements: list[Statement], name: str, value: Any, end: str) -> str:
    kept: list[Statement] = []
    for one in statements:
        part = value if one.path[:1] == (name,) else None
        for step in one.path[1:]:
            part = part[step] if isinstance(part, Mapping) and step in part else None
        if one.path[:1] != (name,) or (one.header and isinstance(part, Mapping)):
            kept.append(one)
        elif part is not None and not one.header:
            kept.append(_with_value(one, part, end))
    written = [one for one in kept if one.path[:1] == (name,)]
    for path, part in _entries((name,), value, written):
        _insert(kept, path, part, end)
    return "".join(one.text for one in kept)


def _with_value(statement: Statement, value: Any, end: str) -> Statement:
    """The statement with another value; comments between its lines move above it, the one behind it stays there."""
    text, start = statement.text, statement.value_at
    before = _parsed(text)
    if _alike(_parsed(f"value ={text[start:]}"), {"value": value}):
        return statement
    above, behind, bare = "", "", ""
    lines = _LINE.findall(text)
    for number, line in enumerate(lines):
        content, rest = line.rstrip("\r\n"), "".join(lines[number + 1 :])
        signs = [at for at, sign in enumerate(content) if sign == "#"]
        comment = next((at for at in signs if _parsed(f"{bare}{content[:at]}\n{rest}") == before), len(content))
        bare += content[:comment] + "\n"
        if rest:
            above += content[comment:] and content[comment:] + end
        else:
            behind = content[len(content[:comment].rstrip()) :] if comment < len(content) else ""
    gap = text[start : len(text) - len(text[start:].lstrip(" \t"))]
    line_end = text[len(text.rstrip("\r\n")) :]
    return statement._replace(text=f"{above}{text[:start]}{gap}{toml_value(value)}{behind}{line_end}")


def _entries(path: Path, value: Any, written: list[Statement]) -> Iterator[tuple[Path, Any]]:
    """What is not in the file yet; of a table that has a header or an entry there, entry by entry."""
    if any(one.path == path and not one.header for one in written):
        return
    if isinstance(value, Mapping) and any(one.path[: len(path)] == path for one in written):
        for name, entry in value.items():
            yield from _entries((*path, name), entry, written)
    else:
        yield path, value


def _insert(statements: list[Statement], path: Path, value: Any, end: str) -> None:
    """Put `path = value` under the nearest header, else in a new table at the end, or above all tables."""
    headers = [one.path for one in statements if one.header]
    above = [header for header in headers if header == path[: len(header)]]
    if above:
        nearest = max(above, key=len)
        first = next(number for number, one in enumerate(statements) if one.header and one.path == nearest)
        place, line = _end_of(statements, first + 1), f"{_key(path[len(nearest) :])} = {toml_value(value)}{end}"
    elif isinstance(value, Mapping) and value and any(header[0] == path[0] for header in headers):
        entries = "".join(f"{_key((name,))} = {toml_value(entry)}{end}" for name, entry in value.items())
        place, line = len(statements), f"{end}[{_key(path)}]{end}{entries}"
    else:
        place, line = _end_of(statements, 0), f"{_key(path)} = {toml_value(value)}{end}"
    if place and not statements[place - 1].text.endswith("\n"):
        statements[place - 1] = statements[place - 1]._replace(text=statements[place - 1].text + end)
    statements.insert(place, Statement(line, path))


def _end_of(statements: list[Statement], start: int) -> int:
    """Behind the last key of the part that begins here; if it has none, before the comment of the next header."""
    stop = next((number for number in range(start, len(statements)) if statements[number].header), len(statements))
    keys = [number for number in range(start, stop) if statements[number].path]
    if keys:
        return keys[-1] + 1
    if start or stop == len(statements):
        return start or stop
    while stop and statements[stop - 1].text.lstrip().startswith("#"):
        stop -= 1
    return stop


def _equals(text: str) -> int | None:
    """Where the = behind the key is."""
    return next((at for at, sign in enumerate(text) if sign == "=" and _parsed(f"{text[:at]}=0")), None)


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _path(data: Any) -> Path:
    """The names in a statement that was parsed: of a key, or of a table that is empty yet."""
    path: Path = ()
    while isinstance(data, dict) and data:
        [(name, data)] = data.items()
        path = (*path, name)
    return path


def _alike(one: Any, other: Any) -> bool:
    """Equal, and of the same types: in Python 1 is true."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[name], other[name]) for name in one)
    return repr(one) == repr(other)


def _key(path: Path) -> str:
    return ".".join(part if _BARE_KEY.fullmatch(part) else _quoted(part) for part in path)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
