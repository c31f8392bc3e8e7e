"""`treadle top`: the whole queue on one screen, drawn anew every two seconds."""

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Annotated, Any

import typer
from rich.console import Group as Lines
from rich.live import Live
from rich.text import Text

from treadle.app.top import Overview, overview, overview_view
from treadle.app.treadle import Treadle
from treadle.cli import options
from treadle.cli.discovery import Target, find_target
from treadle.cli.jobs import NARROW, took
from treadle.cli.look import slots
from treadle.cli.status import interval_from
from treadle.cli.store import MARKS
from treadle.cli.terminal import age, coloured, console, document, lasted, preview, safe, say, table_lines
from treadle.errors import EngineUnavailable
from treadle.model import Progress
from treadle.model.records import Schedule

QUEUES = ("queue", "waiting", "due", "oldest", "running", "ended/min", "failed/min")
RUNNING = ("job", "task", "ran", "progress", "worker")
WORKERS = ("worker", "slots", "queues", "seen")
SCHEDULES = ("schedule", "task", "next")
BARS = " ▁▂▃▄▅▆▇█"
FEWEST = 3  # lines of a section, its title included, that are shown at all
QUIT = ("q", "Q", "\x04")  # Ctrl-D
CELLS = 10  # of a bar of progress
PIPE_WIDTH = 120  # cells, where there is no terminal


def top(
    app: options.App = None,
    url: options.Url = None,
    once: Annotated[bool, typer.Option("--once", help="Print it once, and end.")] = False,
    interval: Annotated[str, typer.Option("--interval", metavar="TIME", help="How often to look.")] = "2s",
    as_json: Annotated[bool, typer.Option("--json", help="With --once: one JSON document on stdout.")] = False,
) -> None:
    """Watch queues, rates, running jobs, workers and schedules on one screen, what needs attention first; q ends it.

    Rates are of the last ten minutes, as workers count them. Where stdout is not a terminal, or with --json, it prints
    them once. It reads a bounded part of the store, as `treadle status` does.
    """
    every = interval_from(interval)
    with closing(find_target(app, url)) as store:
        if as_json:
            document(overview_view(_look(store), store))
        elif once or not console().is_terminal:
            out = console()
            width = out.width if out.is_terminal else PIPE_WIDTH
            for line in screen(_look(store), width, None):
                say(line)
        else:
            _watch(lambda: _look(store), every)


def _look(store: Target) -> Overview:
    return overview(store) if isinstance(store, Treadle) else store.overview()


def _watch(look: Callable[[], Overview], every: float) -> None:
    out = console()
    with _keys() as pressed, _ended_by_sigterm(), Live(console=out, screen=True, auto_refresh=False) as live:
        found, trouble = look(), ""
        while True:
            lines = screen(found, out.width, out.height - bool(trouble))
            shown = [*([coloured("error", trouble)] if trouble else []), *lines]
            live.update(Lines(*shown), refresh=True)
            if pressed(every) in QUIT:
                return
            try:
                found, trouble = look(), ""
            except EngineUnavailable as error:  # it may come back: the last look stays
                trouble = preview(str(error), out.width)


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits for a key; where stdin is not a terminal, it only waits."""
    if not sys.stdin.isatty():

        def wait_only(wait: float) -> str:
            time.sleep(wait)
            return ""

        yield wait_only
        return
    import termios  # noqa: PLC0415 - not on Windows, where there is no such terminal
    import tty  # noqa: PLC0415

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)

    def pressed(wait: float) -> str:
        ready, _, _ = select.select([number], [], [], wait)
        return os.read(number, 1).decode(errors="replace") or "q" if ready else ""

    try:
        tty.setcbreak(number)
        yield pressed
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(number, termios.TCSADRAIN, before)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM is Ctrl-C: the terminal gets its screen back."""

    def end(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# ------------------------------------------------------------------------------------------------- the screen


def screen(found: Overview, width: int, height: int | None) -> list[Text]:
    """The lines of one screen; with a height no more than that, and each section gets its share."""
    sections = [one for one in (_queues(found, width), _running(found, width)) if one]
    sections += [one for one in (_workers(found, width), _schedules(found, width)) if one]
    head = [_title(found, width), *_attention(found, width)]
    if height is None:
        return [line for section in (head, *sections) for line in (*section, Text())][:-1]
    head = head[: max(1, height // 3)]
    lines, room = head, height - len(head)
    for place, section in enumerate(sections):
        share = room // (len(sections) - place) - 1
        if share < FEWEST and len(section) > share:
            continue
        lines = [*lines, Text(), *_cut(section, share)]
        room = height - len(lines)
    return lines[:height]


def _cut(section: list[Text], share: int) -> list[Text]:
    if len(section) <= share:
        return section
    more = len(section) - share + 1
    return [*section[: share - 1], Text(f"and {more:,} more", "dim")]


def _title(found: Overview, width: int) -> Text:
    total = found.status.total
    bars = "".join(BARS[_height(number, max(found.minutes))] for number in found.minutes)
    words = f"{total.due:,} due  {total.running:,} running  {found.rate.ended:,.1f} ended/min "
    line = Text.assemble(("treadle top  ", "bold"), f"{found.at:%H:%M:%S} UTC  ", words, (bars, "green"))
    line.truncate(width, overflow="ellipsis")
    return line


def _height(number: int, most: int) -> int:
    return 0 if not number else max(1, round(number / most * (len(BARS) - 1)))


def _attention(found: Overview, width: int) -> list[Text]:
    lines = [coloured("error", f"{MARKS['error']} {problem}") for problem in found.problems]
    lines += [coloured("warning", f"{MARKS['warning']} {warning}") for warning in found.warnings]
    lines = lines or [coloured("ok", f"{MARKS['ok']} nothing needs attention")]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _queues(found: Overview, width: int) -> list[Text]:
    """Those with most due jobs first."""
    rates = {rate.queue: rate for rate in found.rates}
    rows = []
    for group in sorted(found.status.queues, key=lambda group: (-group.due, -group.waiting, group.queue)):
        rate = rates.get(group.queue)
        more = "+" * group.more
        rows.append(
            (
                safe(group.queue),
                f"{group.waiting:,}{more}",
                f"{group.due:,}{more}",
                "" if group.oldest is None else lasted(found.at - group.oldest),
                f"{group.running:,}",
                "" if rate is None else f"{rate.ended:,.1f}",
                "" if rate is None else f"{rate.failed:,.1f}",
            )
        )
    return table_lines(QUEUES, rows, width, right=QUEUES[1:]) if rows else []


def _running(found: Overview, width: int) -> list[Text]:
    """With whole ids, because people copy them; in a narrow terminal without the worker, nor what a handler says."""
    narrow = width < NARROW
    rows = [
        (job.id, safe(job.task), took(job, found.at), _progress(job.progress, narrow), safe(job.worker or ""))
        for job in found.running
    ]
    cut = len(RUNNING) - narrow
    return table_lines(RUNNING[:cut], [row[:cut] for row in rows], width, right=["ran"]) if rows else []


def _progress(progress: Progress | None, narrow: bool) -> str:
    if progress is None:
        return ""
    full = round(progress.fraction * CELLS)
    note = "" if narrow else preview(progress.note, 30)
    return f"{'━' * full}{'┄' * (CELLS - full)} {progress.fraction:4.0%} {note}".rstrip()


def _workers(found: Overview, width: int) -> list[Text]:
    rows = [
        (
            safe(one.name),
            f"{slots(one)}{' stopping' * one.stopping}",
            safe(", ".join(one.queues)),
            age(one.seen_at, found.at),
        )
        for one in found.status.workers
    ]
    return table_lines(WORKERS, rows, width) if rows else []


def _schedules(found: Overview, width: int) -> list[Text]:
    rows = [(safe(one.name), safe(one.task), _next(one, found)) for one in found.schedules]
    return table_lines(SCHEDULES, rows, width) if rows else []


def _next(schedule: Schedule, found: Overview) -> str:
    if schedule.next_at is None:
        return "a worker will say"
    return age(schedule.next_at, found.at)
