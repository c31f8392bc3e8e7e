"""`treadle stats`: how many jobs ended, and how long they waited and ran."""

from contextlib import closing
from datetime import timedelta
from typing import Annotated

import typer
from rich.text import Text

from treadle.app.stats import Stats, Throughput, Times
from treadle.app.views import record_view
from treadle.cli import options
from treadle.cli.discovery import find_target
from treadle.cli.jobs import NARROW, OfQueue, OfTask
from treadle.cli.near import near_names
from treadle.cli.terminal import clock, document, lasted, safe, say, table, width

ENDS = ("succeeded", "failed", "cancelled", "retrying")
COLUMNS = ("queue", "task", *ENDS, "wait p50", "p95", "p99", "run p50", "p95", "p99")
NARROW_COLUMNS = ("queue", "task", "succeeded", "failed", "wait p95", "run p95")


def stats(
    app: options.App = None,
    url: options.Url = None,
    span: Annotated[str, typer.Option("--span", metavar="TIME", help="Of how long: from 1m to 7d.")] = "1h",
    queue: OfQueue = None,
    task: OfTask = None,
    as_json: options.Json = False,
) -> None:
    """Show how many jobs ended lately, by queue and task, and how long they waited and ran.

    "retrying" are attempts that failed and are tried again. "p95" is the time within which 95 of 100 began after they
    were due (wait), or ended after they began (run). Workers count what they settle; --json has each minute, too. In a
    narrow terminal it shows fewer columns.
    """
    with closing(find_target(app, url)) as store:
        found = store.stats(span, queue=queue, task=task)
        hint = "" if found.tasks else near_names(store, task=task, queue=queue)
    if as_json:
        document(record_view(found))
        return
    since = f"since {clock(found.since)}"
    if not found.tasks:
        say(f"no job ended {since}{f'; {safe(hint)}' if hint else ''}")
        return
    narrow = (room := width()) is not None and room < NARROW
    headers, row = (NARROW_COLUMNS, _narrow_row) if narrow else (COLUMNS, _row)
    table(headers, [row(one) for one in _lines(found)], right=headers[2:])
    say(Text(f"of what ended {since}, as workers have counted it", "dim"))


def _lines(found: Stats) -> list[Throughput]:
    """A line for each task, and the total below them."""
    total = found.total._replace(queue="total", task="")
    return [*found.tasks, total] if len(found.tasks) > 1 else [*found.tasks]


def _row(one: Throughput) -> tuple[str, ...]:
    ends = (_number(one.succeeded), _number(one.failed), _number(one.cancelled), _number(one.retrying))
    return safe(one.queue), safe(one.task), *ends, *_times(one.wait), *_times(one.run)


def _narrow_row(one: Throughput) -> tuple[str, ...]:
    numbers = (_number(one.succeeded), _number(one.failed), _time(one.wait.p95), _time(one.run.p95))
    return safe(one.queue), safe(one.task), *numbers


def _number(number: int) -> str:
    return f"{number:,}" if number else "-"


def _times(times: Times) -> tuple[str, ...]:
    return _time(times.p50), _time(times.p95), _time(times.p99)


def _time(length: float | None) -> str:
    return "-" if length is None else lasted(timedelta(seconds=length))
