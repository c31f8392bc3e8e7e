"""Draw the diagrams: every `*.txt` here becomes an SVG of the same name, and demo.ansi becomes ../demo.svg.

python3 docs/diagrams/make.py            writes the pictures
python3 docs/diagrams/make.py --check    says which ones are not up to date; exit code 1 if any

A description is a list of commands, one a line; `#` begins a comment. Points are `x,y` in pixels, styles are names from
STYLES, and text in quotes may be several lines, each in quotes. Text in `backticks` is code; a line in **asterisks** is
bold.

    size 820 300                                        first; width and height of the picture
    title "A lease in time"                             bold, at the top
    box 40,80 160x60 blue "Your app" "`enqueue()`"      a rounded box; its first line is bold
    bar 40,80 160x24 green "running"                    a flat box with one plain line
    text 40,60 left grey "claimed"                      left, middle or right of the point
    line 40,90 200,90 grey                              through any number of points; `dashed` after the style dashes it
    arrow 40,90 200,90 ink "enqueue"                    the same with a head; the label stands above its middle
    mark 200,90 cross red                               cross, dot, tick or a number in a circle

A picture whose texts overlap, leave their box, leave the picture or are crossed by a line is an error.
"""

import shlex
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

import terminal

HERE = Path(__file__).resolve().parent
DEMO = HERE / "demo.ansi"  # recorded by record_demo.py

SANS = "ui-sans-serif, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
SIZE = 14
CODE = 13
LINE = 19  # from one line of text to the next
MARGIN = 8


class Style(NamedTuple):
    """The colours of one style."""

    fill: str
    stroke: str
    text: str


STYLES = {
    "ink": Style("#ffffff", "#1f2328", "#1f2328"),
    "grey": Style("#f6f8fa", "#6e7781", "#57606a"),
    "blue": Style("#ddf4ff", "#0969da", "#0a3069"),
    "green": Style("#dafbe1", "#1a7f37", "#0f5323"),
    "orange": Style("#fff1e5", "#bc4c00", "#762c00"),
    "red": Style("#ffebe9", "#cf222e", "#82071e"),
    "purple": Style("#fbefff", "#8250df", "#512a97"),
    "yellow": Style("#fff8c5", "#9a6700", "#633c01"),
}

# How wide letters are, in parts of the font size: a little more than Helvetica's, since other fonts are wider.
NARROW, WIDE = set("iljtf.,:;'|!()[] "), set("mwMW@—…%")


class Trouble(Exception):
    """A description that cannot be drawn; the message names the line."""


class Point(NamedTuple):
    """A place in the picture, in pixels."""

    x: float
    y: float


class Area(NamedTuple):
    """Where a text lies, and which one it is."""

    left: float
    top: float
    right: float
    bottom: float
    words: str

    def meets(self, other: "Area") -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom

    def crossed(self, start: Point, end: Point) -> bool:
        """Whether a straight line passes through this text: looked at in small steps."""
        steps = 200
        for step in range(steps + 1):
            x, y = start.x + (end.x - start.x) * step / steps, start.y + (end.y - start.y) * step / steps
            if self.left < x < self.right and self.top < y < self.bottom:
                return True
        return False


def width_of(words: str, *, bold: bool = False) -> float:
    """About how wide a text is drawn, in pixels."""
    prose, code = words.split("`")[::2], words.split("`")[1::2]
    ems = sum(0.34 if c in NARROW else 0.92 if c in WIDE else 0.72 if c.isupper() else 0.58 for c in "".join(prose))
    return ems * SIZE * (1.06 if bold else 1.0) + len("".join(code)) * CODE * 0.61


def spans(words: str) -> str:
    """A text with its `code` in the font of code."""
    parts = [escape(part) for part in words.split("`")]
    code = f'<tspan font-family="{MONO}" font-size="{CODE}">'
    return "".join(f"{code}{part}</tspan>" if number % 2 else part for number, part in enumerate(parts))


class Picture:
    """Collects the parts of one drawing, and the places of its texts."""

    def __init__(self) -> None:
        self.size = Point(0, 0)
        self.parts: list[str] = []
        self.areas: list[Area] = []
        self.segments: list[tuple[Point, Point]] = []
        self.title_text = ""

    # ------------------------------------------------------------------------------------ commands

    def draw(self, command: str, words: list[str]) -> None:
        commands: dict[str, Callable[[list[str]], None]] = {
            "size": self.set_size,
            "title": self.title,
            "box": self.box,
            "bar": self.bar,
            "text": self.text,
            "line": self.line,
            "arrow": self.arrow,
            "mark": self.mark,
        }
        if command not in commands:
            raise Trouble(f"{command!r} is not a command; known: {', '.join(commands)}")
        commands[command](words)

    def set_size(self, words: list[str]) -> None:
        self.size = Point(float(words[0]), float(words[1]))

    def title(self, words: list[str]) -> None:
        self.title_text = words[0].replace("`", "")
        self._write(Point(24, 34), words[0], "left", STYLES["ink"], bold=True, size=17)

    def box(self, words: list[str]) -> None:
        corner, extent, style, lines = point(words[0]), size(words[1]), named(words[2]), words[3:]
        self._rectangle(corner, extent, style, radius=8)
        top = corner.y + (extent.y - LINE * len(lines)) / 2 + 14
        for number, line in enumerate(lines):
            self._inside(corner, extent, line, top + number * LINE, style, bold=number == 0)

    def bar(self, words: list[str]) -> None:
        corner, extent, style = point(words[0]), size(words[1]), named(words[2])
        self._rectangle(corner, extent, style, radius=3)
        for line in words[3:]:
            self._inside(corner, extent, line, corner.y + extent.y / 2 + 5, style)

    def text(self, words: list[str]) -> None:
        at, side, style = point(words[0]), words[1], named(words[2])
        for number, line in enumerate(words[3:]):
            self._write(Point(at.x, at.y + number * LINE), line, side, style)

    def line(self, words: list[str], head: str = "") -> None:
        points = [point(word) for word in words if is_point(word)]
        style, rest = named(words[len(points)]), words[len(points) + 1 :]
        dashes = ' stroke-dasharray="5 4"' if "dashed" in rest else ""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{style.stroke}" stroke-width="1.6"{dashes}{head}/>'
        )
        self.segments += pairwise(points)
        for label in (word for word in rest if word != "dashed"):
            middle = Point((points[0].x + points[1].x) / 2, min(points[0].y, points[1].y) - 8)
            self._write(middle, label, "middle", style)

    def arrow(self, words: list[str]) -> None:
        style = next(word for word in words if not is_point(word))
        self.line(words, f' marker-end="url(#{style})"')

    def mark(self, words: list[str]) -> None:
        at, kind, style = point(words[0]), words[1], named(words[2])
        x, y = at
        strokes = {
            "cross": f"M{x - 6:g} {y - 6:g} L{x + 6:g} {y + 6:g} M{x - 6:g} {y + 6:g} L{x + 6:g} {y - 6:g}",
            "tick": f"M{x - 6:g} {y:g} L{x - 2:g} {y + 5:g} L{x + 6:g} {y - 5:g}",
        }
        if kind in strokes:
            self.parts.append(f'<path d="{strokes[kind]}" fill="none" stroke="{style.stroke}" stroke-width="2.6"/>')
        elif kind == "dot":
            self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="5" fill="{style.stroke}"/>')
        else:
            self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="11" fill="{style.stroke}"/>')
            self._write(Point(x, y + 5), kind, "middle", Style("", "", "#ffffff"), bold=True)

    # --------------------------------------------------------------------------------------- parts

    def _rectangle(self, corner: Point, extent: Point, style: Style, radius: int) -> None:
        far = Point(corner.x + extent.x, corner.y + extent.y)
        corners = [corner, Point(far.x, corner.y), far, Point(corner.x, far.y), corner]
        self.segments += pairwise(corners)
        self.parts.append(
            f'<rect x="{corner.x:g}" y="{corner.y:g}" width="{extent.x:g}" height="{extent.y:g}" rx="{radius}"'
            f' fill="{style.fill}" stroke="{style.stroke}" stroke-width="1.4"/>'
        )

    def _inside(self, corner: Point, extent: Point, line: str, y: float, style: Style, *, bold: bool = False) -> None:
        if width_of(line, bold=bold) > extent.x - MARGIN:
            raise Trouble(f"{line!r} is about {width_of(line, bold=bold):.0f} wide and its box {extent.x:g}")
        self._write(Point(corner.x + extent.x / 2, y), line, "middle", style, bold=bold)

    def _write(self, at: Point, words: str, side: str, style: Style, *, bold: bool = False, size: int = SIZE) -> None:
        if words.startswith("**"):
            words, bold = words.strip("*"), True
        wide = width_of(words, bold=bold) * size / SIZE
        left = {"left": at.x, "middle": at.x - wide / 2, "right": at.x - wide}[side]
        area = Area(left, at.y - size * 0.8, left + wide, at.y + size * 0.25, words)
        for other in self.areas:
            if area.meets(other):
                raise Trouble(f"{words!r} and {other.words!r} overlap")
        if area.left < 2 or area.right > self.size.x - 2 or area.bottom > self.size.y - 2:
            raise Trouble(f"{words!r} leaves the picture: from {area.left:.0f} to {area.right:.0f}")
        self.areas.append(area)
        anchor = {"left": "start", "middle": "middle", "right": "end"}[side]
        look = ' font-weight="600"' if bold else ""
        look += f' font-size="{size}"' if size != SIZE else ""
        self.parts.append(
            f'<text x="{at.x:g}" y="{at.y:g}" text-anchor="{anchor}" fill="{style.text}"{look}>{spans(words)}</text>'
        )

    def svg(self) -> str:
        """The whole drawing, on a white card of its own: readable on a light page and on a dark one."""
        for area in self.areas:
            if any(area.crossed(start, end) for start, end in self.segments):
                raise Trouble(f"a line crosses {area.words!r}")
        wide, high = self.size
        heads = "".join(
            f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8"'
            f' orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="{style.stroke}"/></marker>\n'
            for name, style in STYLES.items()
            if any(f"url(#{name})" in part for part in self.parts)
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high:g}"'
            f' width="{wide:g}" height="{high:g}" font-family="{SANS}" font-size="{SIZE}"'
            f' role="img" aria-label="{escape(self.title_text)}">\n'
            f"<title>{escape(self.title_text)}</title>\n<defs>\n{heads}</defs>\n"
            f'<rect x="0.5" y="0.5" width="{wide - 1:g}" height="{high - 1:g}" rx="10"'
            ' fill="#ffffff" stroke="#d0d7de"/>\n' + "\n".join(self.parts) + "\n</svg>\n"
        )


def is_point(word: str) -> bool:
    return word.replace(",", "", 1).replace(".", "").isdigit() and "," in word


def point(word: str) -> Point:
    x, _, y = word.partition(",")
    return Point(float(x), float(y))


def size(word: str) -> Point:
    wide, _, high = word.partition("x")
    return Point(float(wide), float(high))


def named(word: str) -> Style:
    if word not in STYLES:
        raise Trouble(f"{word!r} is not a style; known: {', '.join(STYLES)}")
    return STYLES[word]


def draw(description: str) -> str:
    """The SVG of a description."""
    picture = Picture()
    for number, line in enumerate(description.splitlines(), 1):
        words = shlex.split(line, comments=True)
        if words:
            try:
                picture.draw(words[0], words[1:])
            except (Trouble, ValueError, IndexError) as error:
                raise Trouble(f"line {number}: {error}") from error
    return picture.svg()


def pictures() -> Iterator[tuple[Path, str]]:
    """Each picture's file, and what should be in it."""
    for description in sorted(HERE.glob("*.txt")):
        try:
            yield description.with_suffix(".svg"), draw(description.read_text("utf-8"))
        except Trouble as error:
            raise SystemExit(f"{description.name}: {error}") from error
    yield HERE.parent / "demo.svg", terminal.draw(DEMO.read_text("utf-8").splitlines(), "python3 dev.py demo")


def main(arguments: list[str]) -> int:
    old = [path for path, text in pictures() if not path.exists() or path.read_text("utf-8") != text]
    if "--check" in arguments:
        print("\n".join(f"{path.name} is not up to date" for path in old) or "every diagram is up to date")
        return int(bool(old))
    for path, text in pictures():
        path.write_text(text, "utf-8")
    print(f"{len(old)} diagrams have changed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
