"""What people type to find jobs: `queue:mail` is a filter, an id leads to its job, the rest is looked for as text."""

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import NamedTuple

from treadle.errors import InvalidInput

FIELDS = ("state", "task", "queue", "tenant", "lane", "key", "error", "fingerprint", "since", "before", "text")
"""The filters of a list of jobs, in the order in which they are shown."""

ALSO = {"status": "state", "type": "task", "after": "since", "until": "before", "kind": "fingerprint"}
EMPTY = ("lane",)  # filters that may be empty: jobs of no lane
EXAMPLES = {
    "state": "failed", "task": "send", "queue": "mail", "tenant": "acme", "lane": "vip", "key": "order:7",
    "error": "TimeoutError", "fingerprint": "3f2a9c04d1e7", "since": "1h", "before": "7d", "text": '"ada@example.org"',
}  # fmt: skip

_WORDS = re.compile(r'(?:[^\s"]|"(?:[^"\\]|\\.)*")+|\S')
_FILTER = re.compile(r"([A-Za-z_]+):(.*)", re.DOTALL)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ID = re.compile(r"[0-9a-fA-F](-?[0-9a-fA-F]){3,31}")


class Misread(InvalidInput):
    """Words that mean nothing here; `instead` are those that may be meant, each to be asked for with one click."""

    def __init__(self, field: str, problem: str, *instead: str) -> None:
        super().__init__(field, problem)
        self.instead = instead


class Reading(NamedTuple):
    """What was typed: filters, or the id of one job or its first digits."""

    filters: Mapping[str, str] = {}
    job: str | None = None


def read(text: str, *, states: Collection[str] = (), tasks: Collection[str] = ()) -> Reading:
    """Read it. A word by itself is a state or a task if there is one of this name, else it is looked for as text.

    Misread says which word means nothing, or has no value, and what to write instead.
    """
    filters: dict[str, str] = {}
    loose: list[str] = []
    for word in _words(text):
        named = None if word.startswith('"') else _FILTER.fullmatch(word)
        if named is None:
            loose.append(word)
            continue
        name, value = _named(word, named[1], named[2])
        if name in filters:
            raise Misread(name, f"is there twice; a job has one {name}: keep the one that is meant")
        filters[name] = value
    if len(loose) == 1 and not filters and loose[0] not in (*states, *tasks) and _ID.fullmatch(loose[0]):
        return Reading(job=loose[0])
    rest = []
    for word in loose:
        kind = "state" if word in states else "task" if word in tasks else "text"
        if kind == "text" or kind in filters:
            rest.append(_plain(word))
        else:
            filters[kind] = word
    if rest and "text" in filters:
        raise Misread("text", f"is there twice; put all of it in quotes: {written('text', ' '.join(rest))}")
    return Reading({**filters, "text": " ".join(rest)} if rest else filters)


def written(name: str, value: str) -> str:
    """A filter as it is typed: `queue:mail`, `text:"two words"`."""
    plain = value and not re.search(r'[\s"]', value)
    return f"{name}:{value if plain else _in_quotes(value)}"


def in_words(filters: Mapping[str, str]) -> str:
    """Which jobs are meant: failed jobs of queue mail, with error TimeoutError, since 1h."""
    ways = {
        "task": "of task {}", "queue": "of queue {}", "tenant": "of tenant {}", "lane": "of lane {}",
        "key": "with key {}", "error": "with error {}", "fingerprint": "with failure {}",
        "text": "with {} in the payload",
    }  # fmt: skip
    words = [ways[name].format(value) for name, value in _ordered(filters) if name in ways and value]
    if filters.get("lane") == "":
        words.append("of no lane")
    first = " ".join(filter(None, [filters.get("state"), "jobs", *words]))
    return ", ".join([first, *(f"{name} {filters[name]}" for name in ("since", "before") if name in filters)])


def options(filters: Mapping[str, str]) -> list[str]:
    """The same as options of `treadle jobs list`, `retry`, `cancel` and `delete`."""
    found: list[str] = []
    for name, value in _ordered(filters):
        found += [f"--{name}={value}"] if value.startswith("-") or not value else [f"--{name}", value]
    return found


def _ordered(filters: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, filters[name]) for name in FIELDS if name in filters]


def _words(text: str) -> list[str]:
    words = _WORDS.findall(text)
    if '"' in words:
        raise Misread("q", 'has a quote that is open; close it: text:"two words"')
    return words


def _named(word: str, given: str, value: str) -> tuple[str, str]:
    """A filter and its value."""
    name = ALSO.get(given.lower(), given.lower())
    if name not in FIELDS:
        near = get_close_matches(name, [*FIELDS, *ALSO], 1)
        hint = f"did you mean {near[0]}:? " if near else ""
        meant = [written(ALSO.get(near[0], near[0]), _plain(value))] if near and value else []
        known = " ".join(f"{one}:" for one in FIELDS)
        raise Misread(given, f"is no filter; {hint}there are {known}", *meant, written("text", word))
    text = _plain(value)
    if not text and not (name in EMPTY and value == '""'):
        raise Misread(name, f"has no value; write it behind the colon, without a space: {name}:{EXAMPLES[name]}")
    return name, text


def _plain(word: str) -> str:
    return _QUOTED.sub(lambda found: re.sub(r"\\(.)", r"\1", found[1]), word)


def _in_quotes(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
