"""`treadle status`: what waits, runs and fails, and whether anybody works on it."""

import time
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text

from treadle.app.status import ErrorGroup, Group, Status
from treadle.app.views import status_view
from treadle.cli import options
from treadle.cli.discovery import find_target
from treadle.cli.look import slots
from treadle.cli.store import MARKS
from treadle.cli.terminal import coloured, console, document, lasted, preview, safe, say, table
from treadle.errors import ConfigError
from treadle.model import State
from treadle.model.clock import seconds

COLUMNS = ("queue", "task", "waiting", "due", "oldest", "running", "ended", "failed")
NUMBERS = COLUMNS[2:]
ERRORS = ("error", "failed", "retrying")
MOST_TASKS = 20  # rows of one queue
MOST_ERRORS = 10
SHORTEST, LONGEST = 0.2, 3600.0  # seconds between two looks


def status(
    app: options.App = None,
    url: options.Url = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C.")] = False,
    interval: Annotated[str, typer.Option("--interval", metavar="TIME", help="With --watch: how often.")] = "2s",
    as_json: options.Json = False,
) -> None:
    """Show what waits, runs and failed by queue and task; exit code 1 if jobs are due that nobody works on.

    "waiting" has all pending jobs, "due" those that could run now, "oldest" how long the first of them is due; "ended"
    and "failed" are of the last hour. It reads at most 10,000 waiting jobs of a queue and the 10,000 latest ends of a
    state, and marks a number with + where there are more.
    """
    every = interval_from(interval)
    if watch and as_json:
        raise ConfigError("--watch and --json cannot be given together; ask again with --json")
    with closing(find_target(app, url)) as store:
        found = store.status()
        while watch:
            _redraw(found)
            time.sleep(every)
            found = store.status()
    if as_json:
        document(status_view(found))
    else:
        _draw(found)
    if found.problems:
        raise typer.Exit(1)


def interval_from(text: str) -> float:
    """The seconds between two looks."""
    every = seconds(text, "--interval")
    if every < SHORTEST:
        raise ConfigError(f"--interval: {text!r} is too short; {SHORTEST:g}s or more")
    if every > LONGEST:
        raise ConfigError(f"--interval: {text!r} is too long; 1h or less")
    return every


def _redraw(found: Status) -> None:
    out = console()
    if out.is_terminal:
        out.clear()
    _draw(found)


def _draw(found: Status) -> None:
    for problem in found.problems:
        say(coloured("error", f"{MARKS['error']} "), safe(problem))
    if found.queues:
        table(COLUMNS, _rows(found), right=NUMBERS)
    else:
        say("no jobs wait or run, and none ended in the last hour")
    say(Text(f"{_a_second(found.rate)} ended in the last hour{_cut(found.more)}", "dim"))
    if found.errors:
        rows = [_error_row(error) for error in found.errors[:MOST_ERRORS]]
        table(ERRORS, rows, right=ERRORS[1:])
        if len(found.errors) > MOST_ERRORS:
            say(Text(f"and {len(found.errors) - MOST_ERRORS:,} other types of errors", "dim"))
    for pause in found.pauses:
        say(coloured("warning", f"{MARKS['warning']} paused: "), safe(pause.scope))
    if found.workers:
        busy = ", ".join(f"{safe(worker.name)} {slots(worker)}" for worker in found.workers[:MOST_ERRORS])
        more = f" and {len(found.workers) - MOST_ERRORS:,} others" if len(found.workers) > MOST_ERRORS else ""
        say(f"{len(found.workers):,} live worker{'s' * (len(found.workers) > 1)}: {busy}{more}")
    else:
        say("no worker is alive")


def _rows(found: Status) -> list[tuple[str, ...]]:
    """A row a queue, and below it one a task, unless it has only one; the total at the end."""
    rows = []
    for queue in found.queues:
        tasks = [group for group in found.tasks if group.queue == queue.queue]
        if len(tasks) == 1:
            rows.append(_row(queue, safe(queue.queue), safe(tasks[0].task), found))
            continue
        rows.append(_row(queue, safe(queue.queue), f"{len(tasks)} tasks", found))
        tasks.sort(key=lambda group: (-group.failed, -group.due, -group.waiting, group.task))
        rows += [_row(task, "", f"  {safe(task.task)}", found) for task in tasks[:MOST_TASKS]]
        if len(tasks) > MOST_TASKS:
            rows.append(("", f"  and {len(tasks) - MOST_TASKS} others", *[""] * len(NUMBERS)))
    if len(found.queues) > 1:
        rows.append(_row(found.total, "total", "", found))
    return rows


def _row(group: Group, queue: str, task: str, found: Status) -> tuple[str, ...]:
    oldest = "" if group.oldest is None else _age(group.oldest, found.at)
    ended = group.succeeded + group.failed + group.cancelled
    return (
        queue,
        task,
        _number(group.waiting, group.more),
        _number(group.due, group.more),
        oldest,
        _number(group.running),
        _number(ended, bool(found.more)),
        _number(group.failed, State.FAILED in found.more),
    )


def _number(number: int, more: bool = False) -> str:
    return f"{number:,}{'+' * (more and number > 0)}" if number else "-"


def _age(since: datetime, now: datetime) -> str:
    return lasted(now - since)


def _a_second(rate: float) -> str:
    return f"{rate:,.1f} jobs a second" if rate >= 0.1 else f"{rate * 60:,.1f} jobs a minute"


def _cut(more: Sequence[State]) -> str:
    return f" (by the latest that are {', '.join(more)})" if more else ""


def _error_row(error: ErrorGroup) -> tuple[str, ...]:
    return preview(error.type or "no error was kept"), _number(error.failed), _number(error.retrying)
