"""What reaches the terminal: results on stdout, errors and logs on stderr, and nothing of a job's data raw.

Tables are aligned columns: cut to fit in a terminal, as wide as they need to be in a pipe.
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Any

from rich.console import Console
from rich.text import Text

from treadle.model.clock import span
from treadle.model.text import printable

Cell = str | Text

INTERRUPTED = 130  # the exit code after Ctrl-C
IDS = ("id", "job", "last job")  # columns that are never cut
ID_AND_MORE = 36 + 3  # cells: no line is cut to fewer, for an id stands at its start
SMALLEST = 9  # cells of a column that was cut

_PASSWORD = re.compile(r"(?P<start>\w://[^\s:/@'\"]*:)[^\s'\"]+(?=@)")
_URL = re.compile(r"[a-z][\w+.-]*://\S*\Z", re.IGNORECASE)
_OWN_PASSWORD = re.compile(r"\A(?P<start>[^:]+://[^\s:/@]*:).+(?=@)")
_NAMES_OF_SECRETS = "password|passwd|pwd|secret|token|key|sslpassword"
_SECRET = re.compile(rf"(?P<start>[?&](?:{_NAMES_OF_SECRETS})=)[^&\s'\"]*", re.IGNORECASE)
_OWN_SECRET = re.compile(rf"(?P<start>[?&](?:{_NAMES_OF_SECRETS})=)[^&]*", re.IGNORECASE)
_STYLES = {
    "succeeded": "green",
    "failed": "red",
    "dead": "bold red",
    "cancelled": "yellow",
    "expired": "yellow",
    "retrying": "magenta",
    "running": "blue",
    "claimed": "blue",
    "scheduled": "cyan",
    "ok": "green",
    "warning": "yellow",
    "error": "bold red",
    "on": "green",
    "off": "yellow",
}


def console(*, stderr: bool = False) -> Console:
    """A console that takes text as it is: no markup, no emoji codes, no guessed highlights."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def safe(text: object, *, lines: bool = False) -> str:
    """Text with everything a terminal would act on written out, such as \\x1b; `lines` keeps line ends and tabs."""
    return printable(text, lines=lines)


def preview(text: str, width: int = 60) -> str:
    """The text on one line, cut where it gets too long."""
    line = safe(" ".join(text.split()))
    return line if len(line) <= width else line[: width - 1] + "…"


def masked(text: str) -> str:
    """The text without the passwords of any URL in it."""
    if _URL.match(text):  # nothing but a URL: then its password may hold quotes too
        text = _OWN_SECRET.sub(r"\g<start>***", _OWN_PASSWORD.sub(r"\g<start>***", text))
    return _SECRET.sub(r"\g<start>***", _PASSWORD.sub(r"\g<start>***", text))


def coloured(word: str, text: str | None = None) -> Text:
    """A state, label or level in its colour."""
    return Text(safe(word if text is None else text), _STYLES.get(word, ""))


def age(moment: datetime, now: datetime) -> str:
    """How far a moment is from now, in the largest unit that says enough: `5m ago`, `in 2h`."""
    span = (now - moment).total_seconds()
    size, unit = abs(span), "s"
    for seconds, name in ((86400 * 2, "d"), (3600 * 2, "h"), (120, "m")):
        if size >= seconds:
            size, unit = size / {"d": 86400, "h": 3600, "m": 60}[name], name
            break
    words = f"{int(size)}{unit}"
    if span < 0:
        return f"in {words}"
    return f"{words} ago"


def lasted(duration: timedelta) -> str:
    """How long something took, as short as it can be said: `12ms`, `3.4s`, `5m12s`."""
    seconds = max(0.0, duration.total_seconds())
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    return f"{seconds:.1f}s" if seconds < 60 else span(int(seconds))


def clock(moment: datetime) -> str:
    """A moment to the second, in UTC."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def document(value: Any) -> None:
    """One JSON document on stdout: ASCII only, so that no terminal and no pipe can stumble over it."""
    sys.stdout.write(json.dumps(value, indent=2).replace("\x7f", "\\u007f") + "\n")


def json_line(value: Any) -> None:
    """One JSON value on one line of stdout, at once: a line of NDJSON."""
    sys.stdout.write(one_line(value) + "\n")
    sys.stdout.flush()


def one_line(value: Any) -> str:
    """A JSON value on one line: ASCII only."""
    return json.dumps(value).replace("\x7f", "\\u007f")


def say(*parts: Cell, stderr: bool = False) -> None:
    """One line, never wrapped or cut, for what people copy must stay in one piece."""
    console(stderr=stderr).print(Text.assemble(*parts), soft_wrap=True)


def width() -> int | None:
    """How many cells a line of the terminal has; None in a pipe, where lines may be as long as they like."""
    out = console()
    return out.width if out.is_terminal else None


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    right: Sequence[str] = (),
    indent: int = 0,
    notes: Sequence[Cell] = (),
) -> None:
    """A table of one line a row; in a terminal text is cut to fit, but never an id. Columns in `right` are numbers.

    Each row may have a note, a line below it: red, unless it has a style of its own.
    """
    out = console()
    margin, room = (" " * indent, out.width - indent) if out.is_terminal else ("", None)
    below: list[Cell] = ["", *notes] if notes else []
    for line, note in zip_longest(table_lines(headers, rows, room, right=right), below, fillvalue=""):
        out.print(Text.assemble(margin, line), soft_wrap=True)
        if note:
            text = note if isinstance(note, Text) else Text(note, "red")
            out.print(Text.assemble(margin, "  ", text), soft_wrap=True)


def table_lines(
    headers: Sequence[str], rows: Iterable[Sequence[Cell]], room: int | None, *, right: Sequence[str] = ()
) -> list[Text]:
    """The lines of a table, the headers first; cut to this many cells, if a number is given."""
    cells = [[Text(header, "dim") for header in headers]]
    cells += [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    widths = [max(cell.cell_len for cell in column) for column in zip(*cells, strict=True)]
    if room is not None:
        _squeeze(widths, [header in IDS for header in headers], room)
    numeric = [header in right for header in headers]
    lines = []
    for row in cells:
        line = Text()
        for cell, size, number in zip(row, widths, numeric, strict=True):
            line.append_text(_fitted(cell, size, number)).append("  ")
        line.rstrip()
        if room is not None:
            line.truncate(max(room, ID_AND_MORE), overflow="ellipsis")
        lines.append(line)
    return lines


def _squeeze(widths: list[int], fixed: Sequence[bool], room: int) -> None:
    """Take from the widest column that is not fixed until all fit, or are as small as they can be."""
    free = [place for place, is_fixed in enumerate(fixed) if not is_fixed]
    while free and sum(widths) + 2 * (len(widths) - 1) > room:
        widest = max(free, key=lambda place: widths[place])
        if widths[widest] <= SMALLEST:
            return
        widths[widest] -= 1


def _fitted(cell: Text, size: int, right: bool) -> Text:
    fitted = cell.copy()
    fitted.truncate(size, overflow="ellipsis")
    blank = Text(" " * (size - fitted.cell_len))
    return blank.append_text(fitted) if right else fitted.append_text(blank)
