"""Plots as SVG, drawn with nothing but text."""

import math
from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 84, 170, 52, 52
COLOURS = ("#1f6feb", "#d9730d", "#2da44e", "#8250df", "#bf3989", "#57606a")
FONT = 'font-family="system-ui, sans-serif" font-size="13"'


def lines(title: str, series: Mapping[str, Points], *, x: str, y: str, logarithmic: bool = False) -> str:
    """Lines through points. Axes begin at zero, but for a logarithmic one."""
    points = [point for line in series.values() for point in line]
    xs, ys = [point[0] for point in points], [point[1] for point in points]
    low, high = (min(xs), max(xs)) if logarithmic else (0.0, max(xs))
    top = nice(max(ys))

    def across(value: float) -> float:
        share = _share(value, low, high, logarithmic)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def up(value: float) -> float:
        return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)

    parts = [_text(LEFT, 26, title, weight="600", size=15)]
    for step in range(5):
        value = top * step / 4
        parts.append(f'<path d="M{LEFT} {up(value):.1f}H{WIDTH - RIGHT}" stroke="#d0d7de"/>')
        parts.append(_text(LEFT - 8, up(value) + 4, number(value), anchor="end"))
    for value in sorted(set(xs)) if logarithmic or len(set(xs)) < 9 else [high * step / 4 for step in range(5)]:
        parts.append(_text(across(value), HEIGHT - BOTTOM + 20, number(value), anchor="middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x, anchor="middle"))
    parts.append(_text(LEFT - 8, TOP - 12, y, anchor="end"))
    for place, (name, line) in enumerate(series.items()):
        colour = COLOURS[place % len(COLOURS)]
        path = "L".join(f"{across(point[0]):.1f} {up(point[1]):.1f}" for point in sorted(line))
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{across(a):.1f}" cy="{up(b):.1f}" r="3" fill="{colour}"/>' for a, b in line]
        at = TOP + 8 + place * 20
        parts.append(f'<path d="M{WIDTH - RIGHT + 14} {at - 4}h16" stroke="{colour}" stroke-width="2.5"/>')
        parts.append(_text(WIDTH - RIGHT + 36, at, name))
    return _svg(title, parts)


def nice(value: float) -> float:
    """A round number that is not below the value."""
    if value <= 0:
        return 1.0
    size = 10 ** math.floor(math.log10(value))
    return next(size * step for step in (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10) if size * step >= value)


def number(value: float) -> str:
    """A number for an axis: 1.5k, 20k, 1M."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _share(value: float, low: float, high: float, logarithmic: bool) -> float:
    if low == high:
        return 0.5
    if logarithmic:
        return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
    return (value - low) / (high - low)


def _text(x: float, y: float, words: str, *, anchor: str = "start", weight: str = "400", size: int = 13) -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}" font-size="{size}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style} fill="#24292f">{escape(words)}</text>'


def _svg(title: str, parts: Sequence[str]) -> str:
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {FONT} role="img"><title>{escape(title)}</title>'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>', *parts, "</svg>\n"])
