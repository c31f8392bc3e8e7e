"""Draw lines of a terminal, with their colours, as a picture of a window."""

import re
from collections.abc import Iterator
from typing import NamedTuple
from xml.sax.saxutils import escape

MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
LETTER = 7.8  # pixels a column; every run of text is stretched to it, so columns align in any font
LINE = 18
TOP = 44  # of the window's bar
EDGE = 16

ESCAPE = "␛"  # stands for the real one, so that a recording can be read and compared as text
CODES = re.compile(ESCAPE + r"\[([0-9;]*)m")

PAPER, INK, DIM = "#0d1117", "#e6edf3", "#8b949e"
COLOURS = {
    "31": "#ff7b72",
    "32": "#3fb950",
    "33": "#d29922",
    "34": "#58a6ff",
    "36": "#39c5cf",
    "38;5;237": "#30363d",
}


class Run(NamedTuple):
    """Some letters of a line that look the same."""

    column: int
    text: str
    codes: frozenset[str]

    @property
    def look(self) -> str:
        colour = next((COLOURS[code] for code in self.codes if code in COLOURS), DIM if "2" in self.codes else INK)
        bold = ' font-weight="700"' if "1" in self.codes else ""
        struck = ' text-decoration="line-through"' if "9" in self.codes else ""
        return f'fill="{colour}"{bold}{struck}'


def runs(line: str) -> Iterator[Run]:
    """The runs of one line; two blanks or more lie between runs, since a browser may join them."""
    column, codes = 0, frozenset[str]()
    for number, part in enumerate(CODES.split(line)):
        if number % 2:
            codes = frozenset() if part in ("", "0") else codes | frozenset(_split(part))
            continue
        for words in re.finditer(r"\S+(?: \S+)*", part):
            yield Run(column + words.start(), words[0], codes)
        column += len(part)


def _split(codes: str) -> list[str]:
    """The parts of `1;31`, but a colour out of 256 in one piece."""
    return re.findall(r"38;5;\d+|\d+", codes)


def width_of(line: str) -> int:
    return len(CODES.sub("", line).rstrip())


def draw(lines: list[str], title: str) -> str:
    """The SVG of these lines, in a window with this title."""
    wide = max(map(width_of, lines)) * LETTER + 2 * EDGE
    high = TOP + len(lines) * LINE + EDGE
    texts = [
        f'<text x="{EDGE + run.column * LETTER:.1f}" y="{TOP + row * LINE + 13}" {run.look}'
        f' textLength="{len(run.text) * LETTER:.1f}" lengthAdjust="spacingAndGlyphs">{escape(run.text)}</text>'
        for row, line in enumerate(lines)
        for run in runs(line)
    ]
    lights = "".join(
        f'<circle cx="{20 + 18 * number}" cy="18" r="5.5" fill="{colour}"/>'
        for number, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high}" width="{wide:.0f}" height="{high}"'
        f' font-family="{MONO}" font-size="13" role="img" aria-label="{escape(title)}">\n'
        f"<title>{escape(title)}</title>\n"
        f'<rect x="0.5" y="0.5" width="{wide - 1:.0f}" height="{high - 1}" rx="9" fill="{PAPER}" stroke="#30363d"/>\n'
        f'{lights}<text x="{wide / 2:.0f}" y="22" text-anchor="middle" fill="{DIM}">{escape(title)}</text>\n'
        + "\n".join(texts)
        + "\n</svg>\n"
    )
