"""How pages say things: numbers, times, states, and the command that does the same."""

import json
import shlex
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

MINUTE, HOUR, DAY = 60, 3600, 86400

Row = dict[str, Any]
"""What the API tells of one thing, or a page of it."""

SHAPES = {  # a state of a job, a queue or a worker, or what an event did, and the shape that stands for it
    **{name: name for name in ("pending", "scheduled", "running", "retrying", "succeeded", "failed", "cancelled")},
    **{name: name for name in ("paused", "silent")},
    "claimed": "running",
    "snoozed": "scheduled",
    "dead": "failed",
    "crashed": "failed",
    "expired": "cancelled",
    "superseded": "cancelled",
    "cancel_requested": "cancelled",
    "on time": "succeeded",
    "failing": "failed",
    "late": "scheduled",
}
COLOURS = {"late": "retrying"}  # of a word that has not the colour of its shape

DID = {  # what an event did to something
    "enqueued": "enqueued {}",
    "claimed": "began to run {}",
    "succeeded": "finished {}",
    "snoozed": "put {} off",
    "released": "gave {} back",
    "replaced": "replaced {}",
    "retrying": "failed an attempt of {}",
    "crashed": "lost {}",
    "failed": "gave up on {}",
    "cancelled": "cancelled {}",
    "expired": "let {} expire",
    "superseded": "superseded {}",
    "cancel_requested": "asked {} to stop",
    "retried": "retried {}",
    "changed": "changed {}",
    "deleted": "deleted {}",
    "created": "created {}",
    "enabled": "switched {} on",
    "disabled": "switched {} off",
    "run_requested": "ran {} at once",
    "paused": "paused {}",
    "resumed": "resumed {}",
    "revoked": "revoked {}",
    "imported": "imported {}",
}


def number(value: float | None) -> str:
    """A number as people read it: 1,284; large ones are shortened by nobody, so that they can be compared."""
    if value is None:
        return "–"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:,.1f}" if abs(value) >= 1 else f"{value:.2g}"
    return f"{int(value):,}"


def duration(seconds: float | None) -> str:
    """A span in two units at most: 84 ms, 2.1 s, 31 min, 2 h 12 min, 3 d 4 h."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < MINUTE:
        return f"{seconds:.1f} s" if seconds < 10 and seconds % 1 else f"{seconds:.0f} s"
    if seconds < HOUR:
        rest = int(seconds % MINUTE)
        return f"{int(seconds // MINUTE)} min" + (f" {rest} s" if rest and seconds < 10 * MINUTE else "")
    large, small, size, part = ("h", "min", HOUR, MINUTE) if seconds < DAY else ("d", "h", DAY, HOUR)
    rest = int(seconds % size // part)
    return f"{int(seconds // size)} {large}" + (f" {rest} {small}" if rest else "")


def moment(value: datetime | str | None) -> datetime | None:
    """A moment of the API's answers."""
    if value is None or value == "":
        return None
    found = datetime.fromisoformat(value) if isinstance(value, str) else value
    return found.astimezone(UTC)


def ago(value: datetime | str | None, now: datetime | str | None = None) -> Markup:
    """A moment, as people say it: 3 min ago, in 2 h, or its date; the exact instant is its title."""
    at = moment(value)
    if at is None:
        return Markup("–")
    seconds = ((moment(now) or datetime.now(UTC)) - at).total_seconds()
    if abs(seconds) >= DAY:
        text = f"{at:%-d %b %Y}"
    elif seconds < 0:
        text = f"in {duration(max(1.0, float(round(-seconds))))}"
    else:
        text = f"{duration(float(round(seconds)))} ago" if seconds >= 1 else "now"
    return _time(at, text, "ago")


def clock(value: datetime | str | None, now: datetime | str | None = None) -> Markup:
    """A moment by the clock: 02:41:07, with its date unless it is today."""
    at = moment(value)
    if at is None:
        return Markup("–")
    today = (moment(now) or datetime.now(UTC)).date()
    return _time(at, f"{at:%H:%M:%S}" if at.date() == today else f"{at:%Y-%m-%d %H:%M}", "clock")


def since(value: datetime | str | None, now: datetime | str | None = None) -> str:
    """How long it is from a moment until now."""
    at = moment(value)
    if at is None:
        return "–"
    seconds = max(0.0, ((moment(now) or datetime.now(UTC)) - at).total_seconds())
    return duration(float(round(seconds)) if seconds >= 10 else seconds)


def _time(at: datetime, text: str, kind: str) -> Markup:
    exact = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time datetime="{}" title="{}" data-t="{}">{}</time>').format(
        at.isoformat().replace("+00:00", "Z"), exact, kind, text
    )


def icon(name: str, css: str = "i") -> Markup:
    """A shape of the sprite that the frame holds."""
    return Markup('<svg class="{}" aria-hidden="true"><use href="#{}"/></svg>').format(css, name)


def state(word: str, text: str | None = None) -> Markup:
    """A state by its shape and its word."""
    shape = shape_of(word)
    return Markup('<span class="st {}">{}{}</span>').format(COLOURS.get(word, shape), icon(f"s-{shape}"), text or word)


def shape_of(word: str) -> str:
    """The shape that stands for a state, or for what an event did."""
    return SHAPES.get(word, "pending")


def did(kind: str, what: str = "") -> str:
    """What an event did: asked it to stop; without `what`, the words to put before its name."""
    return " ".join(DID.get(kind, f"{kind.replace('_', ' ')} {{}}").format(what).split())


def cli(*parts: object) -> Markup:
    """The command that does the same, to be copied: `treadle …`, each part quoted for a shell."""
    text = shlex.join(["treadle", *(str(part) for part in parts if part not in (None, ""))])
    return Markup(
        '<div class="cli"><code>{}</code><button class="b tiny" type="button" data-copy>Copy</button></div>'
    ).format(text)


def plural(count: int, one: str, many: str | None = None) -> str:
    """1 job, 2 jobs."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def capital(text: str) -> str:
    """A text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    """A text as a sentence: with a capital letter, and a full stop."""
    return f"{capital(text)}{'' if text.endswith(('.', '?', '!')) else '.'}"


def pretty(value: Any) -> str:
    """A value as JSON that people read."""
    return json.dumps(value, indent=2, ensure_ascii=False)


FILTERS = {
    "number": number,
    "duration": duration,
    "ago": ago,
    "clock": clock,
    "since": since,
    "pretty": pretty,
    "plural": plural,
    "did": did,
    "capital": capital,
    "sentence": sentence,
}
GLOBALS = {"icon": icon, "state": state, "cli": cli, "moment": moment}
