"""What reaches the terminal: results on stdout, errors and logs on stderr, and nothing of a job's data raw.

In a terminal tables are drawn by Rich; in a pipe they are aligned columns, as wide as they need to be.
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

Cell = str | Text

# C0 and C1 controls, DEL, lone surrogates, and what reorders or hides text: none of them is shown as it is.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_PASSWORD = re.compile(r"(?P<start>\w://[^\s:/@'\"]*:)[^\s'\"]+(?=@)")
_SECRET = re.compile(r"(?P<start>[?&](?:password|passwd|pwd|secret|token|key|sslpassword)=)[^&\s'\"]*", re.IGNORECASE)
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
}


def console(*, stderr: bool = False) -> Console:
    """A console that takes text as it is: no markup, no emoji codes, no guessed highlights."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def safe(text: object, *, lines: bool = False) -> str:
    """Text with everything a terminal would act on written out, such as \\x1b; `lines` keeps line ends and tabs."""
    kept = "\n\t" if lines else ""
    return _UNSAFE.sub(lambda found: found[0] if found[0] in kept else _written(found[0]), str(text))


def preview(text: str, width: int = 60) -> str:
    """The text on one line, cut where it gets too long."""
    line = safe(" ".join(text.split()))
    return line if len(line) <= width else line[: width - 1] + "…"


def masked(text: str) -> str:
    """The text without the passwords of any URL in it."""
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


def clock(moment: datetime) -> str:
    """A moment to the second, in UTC."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def document(value: Any) -> None:
    """One JSON document on stdout: ASCII only, so that no terminal and no pipe can stumble over it."""
    sys.stdout.write(json.dumps(value, indent=2).replace("\x7f", "\\u007f") + "\n")


def say(*parts: Cell, stderr: bool = False) -> None:
    """One line, never wrapped or cut, for what people copy must stay in one piece."""
    console(stderr=stderr).print(Text.assemble(*parts), soft_wrap=True)


def table(
    headers: Sequence[str], rows: Iterable[Sequence[Cell]], *, right: Sequence[str] = (), indent: int = 0
) -> None:
    """A table; an id in it is never cut or folded. The columns named in `right` are numbers."""
    out = console()
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    if not out.is_terminal:
        _columns([[Text(header) for header in headers], *cells], [header in right for header in headers])
        return
    drawn = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for header in headers:
        kept = header in ("id", "job")
        justify: Literal["left", "right"] = "right" if header in right else "left"
        drawn.add_column(header, no_wrap=kept, min_width=36 if kept else None, overflow="fold", justify=justify)
    for row in cells:
        drawn.add_row(*row)
    out.print(Padding(drawn, (0, 0, 0, indent)))


def _columns(rows: Sequence[Sequence[Text]], right: Sequence[bool]) -> None:
    widths = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        line = ""
        for cell, width, numeric in zip(row, widths, right, strict=True):
            blank = " " * (width - cell.cell_len)
            line += f"{blank}{cell.plain}  " if numeric else f"{cell.plain}{blank}  "
        sys.stdout.write(line.rstrip() + "\n")


def _written(character: str) -> str:
    code = ord(character)
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character, f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")
