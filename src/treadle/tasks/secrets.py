"""What is secret in a payload, and how it is hidden from people: in data by its path, in texts by its value.

A path is the keys that lead to it, such as ("card", "number"). "*" stands for any key, "**" for any number of them,
"[]" for the items of a list. A path that says nothing of lists goes through them.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from itertools import product, zip_longest
from typing import Any, NamedTuple

from treadle.errors import ConfigError, InvalidJob
from treadle.model.records import HIDES

MASK = "***"
ANY_KEY, ANY_DEPTH, ITEM = "*", "**", "[]"
SHORT = 4  # characters: a shorter value is hidden in a text only where it stands as a word
LONG = 24  # characters: of a longer value, texts may show the beginning and the end
EDGE = 10  # characters of such a beginning or end that tell it from other words

Path = tuple[str, ...]


class Secrets(NamedTuple):
    """The paths in a payload that nobody is shown."""

    paths: tuple[Path, ...] = ()

    def hidden(self, data: Any) -> Any:
        """The same data with MASK in the place of what is secret; what does not have the form of the paths, too."""
        return _hidden(data, self.paths) if self.paths else data

    def values(self, data: Any) -> list[str]:
        """The texts and numbers that are secret in this data, the longest first."""
        try:
            found = {_written(value) for value in _leaves(data, self.paths)} if self.paths else set()
        except RecursionError:  # what holds itself is never stored, and no error shows it
            return []
        return sorted((value for value in found if value.strip()), key=len, reverse=True)

    def restored(self, shown: Any, data: Any) -> Any:
        """What was hidden, where it still is; `data` is what it was hidden in.

        InvalidJob where nobody can say which secret stood there: MASK is never stored in the place of one.
        """
        whole = _restored(shown, data, self.paths)
        if _has_new_mask(whole, data):
            raise InvalidJob("payload", f"holds {MASK!r} where a secret was hidden; give the value itself")
        return whole

    def covers(self, place: Iterable[str | int]) -> bool:
        """Whether what lies there is secret."""
        paths: Sequence[Path] = self.paths
        for key in place:
            if () in paths:
                return True
            paths = _in_list(paths) if isinstance(key, int) else _below(paths, key)
        return () in paths

    def below(self, *keys: str) -> "Secrets":
        """The same where the payload lies within another one."""
        return Secrets(tuple((*keys, *path) for path in self.paths))


NO_SECRETS = Secrets()
EVERYTHING = Secrets(((),))


def holds_mask(data: Any) -> bool:
    """Whether something in this data was hidden."""
    if isinstance(data, dict | list):
        return any(map(holds_mask, data.values() if isinstance(data, dict) else data))
    return bool(data == MASK)


def hide(text: str, values: Sequence[str]) -> str:
    """The text without these values: as they are, as Python, JSON and URLs write them, and cut short."""
    for value in values:
        for form in _forms(value):
            if len(form) < SHORT:
                text = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", MASK, text)
            else:
                text = text.replace(form, MASK)
    for value in values:  # only now: the beginning of one value may be that of another, which is hidden whole
        if len(value) > LONG:
            text = _without_edges(text, value)
    return text


def stand_in(error: BaseException, conceal: Callable[[str], str], trace: str | None = None) -> BaseException:
    """An exception that a log prints as it would this one, without secrets. It has no frames, which hold variables."""
    import traceback  # noqa: PLC0415 - loaded where something has failed

    kind = type(error)
    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    try:
        words = str(error)
        trace = "".join(traceback.format_exception(error)) if trace is None else trace
    except Exception:  # one that cannot be printed
        words = ""
    made: BaseException = type(kind.__name__, (Exception,), named)(conceal(words))
    if trace:
        made.add_note(conceal(trace.rstrip()))
    return made


def revealed(data: Any, kept: Any) -> Any:
    """JSON data in which Pydantic has masked secrets, with their values; `kept` is the same with the secrets in it."""
    if hasattr(kept, "get_secret_value"):
        return _plain(kept.get_secret_value())
    if isinstance(data, dict) and isinstance(kept, Mapping) and len(data) == len(kept):
        return {key: revealed(*pair) for key, *pair in zip(data, data.values(), kept.values(), strict=True)}
    if isinstance(data, list) and isinstance(kept, list | tuple | set | frozenset) and len(data) == len(kept):
        return [revealed(*pair) for pair in zip(data, kept, strict=True)]
    return data


def paths_from(task: str, given: Any) -> tuple[Path, ...]:
    """The paths that the option `secret` of a task names, such as "card.number"."""
    example = 'write secret=["password", "card.number"]'
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(f"task {task!r}: secret: {type(given).__name__} is not a list of paths; {example}")
    paths = tuple(given)
    for path in paths:
        if not isinstance(path, str) or not all(part.strip() for part in path.split(".")):
            raise ConfigError(f"task {task!r}: secret: {path!r} is not a path; {example}")
    return tuple(tuple(path.split(".")) for path in paths)


def spelt(path: Path, aliases: Mapping[str, Iterable[str]]) -> list[Path]:
    """All ways to write a path whose keys may be names of fields or their aliases."""
    return list(product(*(sorted({part, *aliases.get(part, ())}) for part in path)))


# ------------------------------------------------------------------------------------ what workers say of it


def marks(task: str, secrets: Secrets) -> dict[str, int]:
    """What a worker says of the secrets of a task, for those who do not have its code."""
    return {f"{HIDES}{task}\x1f{json.dumps(path)}": 1 for path in secrets.paths}


def marked(tasks: Iterable[str], task: str) -> Secrets:
    """What a worker that says this of itself holds to be secret in the payloads of a task."""
    start = f"{HIDES}{task}\x1f"
    return Secrets(tuple(tuple(json.loads(name[len(start) :])) for name in tasks if name.startswith(start)))


# ------------------------------------------------------------------------------------------- by the path


def _hidden(data: Any, paths: Sequence[Path]) -> Any:
    if not paths or data is None:
        return data
    if () in paths:
        return MASK
    if isinstance(data, dict):
        return {key: _hidden(item, _below(paths, key)) for key, item in data.items()}
    if isinstance(data, list):
        return [_hidden(item, _in_list(paths)) for item in data]
    return data if isinstance(data, bool) else MASK


def _restored(shown: Any, data: Any, paths: Sequence[Path]) -> Any:
    if not paths or shown == data:
        return shown
    if shown == MASK:  # it was hidden, or is as wrong as what was there
        return data
    if () in paths:
        return shown
    if isinstance(shown, dict) and isinstance(data, dict):
        return {key: _restored(item, data.get(key, item), _below(paths, key)) for key, item in shown.items()}
    if isinstance(shown, list) and isinstance(data, list):
        return _restored_items(shown, data, _in_list(paths))
    return shown


def _restored_items(shown: list[Any], data: list[Any], paths: Sequence[Path]) -> list[Any]:
    """The items of a list, each with the secret that was at its place; InvalidJob if another may be there now."""
    if not holds_mask(shown):
        return shown
    pairs = list(zip(shown, data, strict=False))
    moved = any(holds_mask(item) and _hidden(item, paths) != _hidden(old, paths) for item, old in pairs)
    if moved or len(shown) != len(data):
        raise InvalidJob(
            "payload",
            f"holds {MASK!r} in a list that was changed, and whose secret is meant cannot be told; give the "
            "values themselves",
        )
    return [_restored(item, old, paths) for item, old in pairs]


def _has_new_mask(data: Any, before: Any) -> bool:
    """Whether MASK stands somewhere where it did not stand before."""
    if isinstance(data, dict):
        old = before if isinstance(before, dict) else {}
        return any(_has_new_mask(item, old.get(key)) for key, item in data.items())
    if isinstance(data, list):
        olds = before if isinstance(before, list) else []
        return any(_has_new_mask(item, old) for item, old in zip_longest(data, olds[: len(data)]))
    return bool(data == MASK and before != MASK)


def _leaves(data: Any, paths: Sequence[Path]) -> Iterator[Any]:
    """What `_hidden` would hide; of what is no data yet, the attributes."""
    if hasattr(data, "get_secret_value"):
        data = data.get_secret_value()
    if not paths or data is None or isinstance(data, bool):
        return
    whole = () in paths
    fields = hasattr(type(data), "model_fields") or (is_dataclass(data) and not isinstance(data, type))
    if fields or isinstance(data, Mapping):
        for key, item in (vars(data) if fields else data).items():
            yield from _leaves(item, [()] if whole else _below(paths, key))
    elif isinstance(data, list | tuple | set | frozenset):
        for item in data:
            yield from _leaves(item, [()] if whole else _in_list(paths))
    else:
        yield data


def _below(paths: Sequence[Path], key: Any) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path[0] == ANY_DEPTH:
            found += [path, *(_below([path[1:]], key) if path[1:] else [()])]
        elif path[0] in (ANY_KEY, ITEM, key):
            found.append(path[1:])
    return found


def _in_list(paths: Sequence[Path]) -> list[Path]:
    passing = [path for path in paths if path[0] != ITEM]
    return [*passing, *(path[1:] for path in paths if path[0] in (ANY_KEY, ITEM))]


def _written(value: Any) -> str:
    """A value as text; nothing for one that cannot be written, which no text shows either."""
    try:
        return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    except Exception:
        return ""


def _plain(value: Any) -> Any:
    """A secret as JSON holds it; bytes are text, as Pydantic reads them."""
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, bytes):
        return value.decode()
    from pydantic_core import to_jsonable_python  # noqa: PLC0415 - loaded by whoever has a secret

    return to_jsonable_python(value)


# ------------------------------------------------------------------------------------------ by the value


def _forms(value: str) -> list[str]:
    """How a value may stand in a text, the longest form first."""
    from urllib.parse import quote, quote_plus  # noqa: PLC0415 - loaded where something is hidden

    urls = (quote(value, errors="replace"), quote(value, "", errors="replace"), quote_plus(value, errors="replace"))
    quoted = (json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])
    written = (value, repr(value)[1:-1], ascii(value)[1:-1], *quoted, *urls)
    return sorted(set(written), key=len, reverse=True)


def _without_edges(text: str, value: str) -> str:
    """The text without the beginning or the end of a long value, as messages that cut it in the middle show them."""
    for edge, step in ((value[:EDGE], 1), (value[-EDGE:], -1)):
        at = text.find(edge)
        while at >= 0:
            first, last = _grown(text, at, value, step)
            text = f"{text[:first]}{MASK}{text[last:]}"
            at = text.find(edge, first + len(MASK))
    return text


def _grown(text: str, at: int, value: str, step: int) -> tuple[int, int]:
    """Where the piece of the value begins and ends of which an edge stands at this place."""
    first, last = at, at + EDGE
    if step > 0:
        while last < len(text) and last - first < len(value) and text[last] == value[last - first]:
            last += 1
    else:
        while first > 0 and last - first < len(value) and text[first - 1] == value[-(last - first) - 1]:
            first -= 1
    return first, last


def masked(data: Any, mask: str, path: str = "payload") -> str:
    """Where in this data the mask stands in place of a secret."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    found = [masked(item, mask, str(name)) for name, item in items]
    return next(filter(None, found), path if data == mask else "")
