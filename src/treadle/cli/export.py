"""`treadle export`: jobs as NDJSON, a line a job, however many there are."""

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from treadle.app.queries import LARGEST_PAGE, MOST_COUNTED
from treadle.app.reading import past_from
from treadle.app.treadle import Treadle
from treadle.app.views import attempts_view, event_view
from treadle.cli import options
from treadle.cli.discovery import Target, find_target
from treadle.cli.jobs import Before, OfError, OfFingerprint, OfKey, OfLane, OfQueue, OfState, OfTask, Since
from treadle.cli.near import near_names
from treadle.cli.progress import bar, has_bar
from treadle.cli.terminal import document, one_line, safe, say
from treadle.errors import JobNotFound, NotPossible
from treadle.model import Event, Job

STDOUT = "-"
COUNTABLE = ("state", "task", "queue", "tenant", "lane")  # filters that a store can count by


def export(
    app: options.App = None,
    url: options.Url = None,
    state: OfState = None,
    task: OfTask = None,
    queue: OfQueue = None,
    tenant: options.OfTenant = None,
    key: OfKey = None,
    lane: OfLane = None,
    error: OfError = None,
    fingerprint: OfFingerprint = None,
    text: Annotated[str | None, typer.Option("--text", help="Only with this in the payload.")] = None,
    since: Since = None,
    before: Before = None,
    events: Annotated[bool, typer.Option("--events", help="With the audit events and attempts of each job.")] = False,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where to; - is stdout.", show_default=False)
    ] = STDOUT,
    as_json: Annotated[bool, typer.Option("--json", help="With --output: say what was written as JSON.")] = False,
) -> None:
    """Write jobs as NDJSON, newest first: a line a job, as `treadle jobs show --json` prints it.

    Filters must all fit. It holds 500 jobs in memory at a time. A file appears under its name when it is whole, and
    not at all if the command is interrupted. A job that is stored or ends meanwhile may be in it or not.
    """
    times = {"since": past_from(since, "--since"), "before": past_from(before, "--before")}
    named = {"state": state, "task": task, "queue": queue, "tenant": tenant, "key": key, "lane": lane, **times}
    named |= {"error": error, "fingerprint": fingerprint, "text": text}
    which = {name: value for name, value in named.items() if value is not None}
    with closing(find_target(app, url)) as store, _target(output) as file:
        quiet = as_json or (output == STDOUT and sys.stdout.isatty())  # there the lines themselves can be seen
        number, total = 0, None if quiet else _total(store, which)
        with bar("export", total, as_json=quiet) as progress:
            for jobs in _pages(store, which):
                file.writelines(f"{one_line(line)}\n" for line in _lines(store, jobs, events))
                number += len(jobs)
                progress(number)
        hint = near_names(store, task=task, queue=queue) if not number else ""
    if hint:
        say(safe(hint), stderr=True)
    if output == STDOUT:
        return
    if as_json:
        document({"exported": number, "output": output})
    else:
        say(f"exported {number:,} job{'s' * (number != 1)} to {safe(output)}")


def _pages(store: Target, which: dict[str, Any]) -> Iterator[list[Job]]:
    cursor = None
    while True:
        page = store.find(**which, limit=LARGEST_PAGE, cursor=cursor)
        yield list(page.jobs)
        if (cursor := page.cursor) is None:
            return


def _lines(store: Target, jobs: list[Job], events: bool) -> Iterator[dict[str, Any]]:
    for job, view in zip(jobs, store.views(jobs), strict=True):
        line: dict[str, Any] = {"job": view}
        if events:
            found: list[Event] = []
            with suppress(JobNotFound):  # deleted meanwhile
                found = store.masked_events(job, store.events(job.id))
            attempts = attempts_view(store.masked(job), found)
            line |= {"events": [event_view(event) for event in found], "attempts": attempts}
        yield line


def _total(store: Target, which: dict[str, Any]) -> int | None:
    """How many it will be, if somebody sees the bar and the store is here and can count them quickly."""
    if not isinstance(store, Treadle) or not has_bar() or not which.keys() <= {*COUNTABLE}:
        return None
    counts = store.count(**which, limit=MOST_COUNTED).values()
    return sum(counts) if all(count.exact for count in counts) else None


@contextmanager
def _target(output: str) -> Iterator[IO[str]]:
    """Where the lines go: a file gets its name at the end; stdout, and what is not a regular file, is written to."""
    if output == STDOUT:
        yield sys.stdout
        return
    path = Path(output)
    try:
        if path.exists() and not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
            with path.open("w", encoding="utf-8") as file:
                yield file
            return
        with _renamed(path.resolve()) as file:
            yield file
    except (OSError, ValueError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        why = getattr(error, "strerror", None) or error
        raise NotPossible(f"--output: {output!r} cannot be written: {why}") from None


@contextmanager
def _renamed(path: Path) -> Iterator[IO[str]]:
    if path.is_dir():
        raise IsADirectoryError(0, "it is a directory", str(path))
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(_mode(path))
        Path(temporary).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise


def _mode(path: Path) -> int:
    """The mode of the file that is replaced, else that of any new file."""
    if path.exists():
        return stat.S_IMODE(path.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
