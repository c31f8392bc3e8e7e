"""An act on many jobs from the command line: counted, asked about, done with a progress bar, and told."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from treadle.app.bulk import BulkReport
from treadle.app.views import record_view
from treadle.cli.discovery import Target
from treadle.cli.near import near_names
from treadle.cli.progress import bar
from treadle.cli.terminal import INTERRUPTED, document, safe, say
from treadle.errors import ConfigError, NotPossible

Act = Callable[..., BulkReport]


def act_on_many(
    store: Target,
    act: Act,
    which: dict[str, Any],
    verb: tuple[str, str],
    dry_run: bool,
    yes: bool,
    as_json: bool,
    expect: int | None = None,
) -> None:
    """Count what is meant, ask, act with a progress bar, and say what became of it; exit code 1 if not all was done."""
    if "ids" in which:
        which = {"ids": [store.resolve_id(id) for id in which["ids"]]}
    found = act(**which, dry_run=True)
    if (
        not found.found
        and found.exact
        and (hint := near_names(store, task=which.get("task"), queue=which.get("queue")))
    ):
        say(safe(hint), stderr=True)
    if expect not in (None, found.found):
        raise NotPossible(f"{_jobs(found.found, found.exact)} fit now, not {expect:,}; nothing was done")
    if dry_run:
        _say_found(found, verb[0], as_json)
        return
    if not yes and (found.found or not found.exact):
        _ask(found, verb[0], as_json)
    with _steps(found.found if found.exact else None, verb[0], as_json) as progress:
        try:
            report = act(**which, progress=progress)
        except KeyboardInterrupt:
            report = progress.report
            _say_done(report, verb[1], as_json, interrupted=_jobs(found.found, found.exact))
            raise typer.Exit(INTERRUPTED) from None
    _say_done(report, verb[1], as_json)
    if report.not_possible:
        raise typer.Exit(1)


def _ask(found: BulkReport, verb: str, as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        raise ConfigError(f"this would {verb} {_jobs(found.found, found.exact)}; --yes does it, --dry-run shows which")
    if not typer.confirm(f"{verb} {_jobs(found.found, found.exact)}?", err=True):
        say("nothing was done", stderr=True)
        raise typer.Exit(1)


class Steps:
    """Takes reports between two batches: shows how far it is, and stops there if it was asked to."""

    def __init__(self, show: Callable[[int], None]) -> None:
        self.report = BulkReport()
        self.stopping = False
        self._show = show

    def __call__(self, report: BulkReport) -> None:
        self.report = report
        self._show(report.done + report.not_possible)
        if self.stopping:
            raise KeyboardInterrupt

    def stop(self, number: int, frame: object) -> None:
        """Ctrl-C: the batch that is being written is finished first; the second time, at once."""
        if self.stopping:
            signal.default_int_handler(number, frame)  # type: ignore[arg-type]
        self.stopping = True


@contextmanager
def _steps(total: int | None, verb: str, as_json: bool) -> Iterator[Steps]:
    with bar(verb, total, as_json=as_json) as show:
        steps = Steps(show)
        before = signal.signal(signal.SIGINT, steps.stop)
        try:
            yield steps
        finally:
            signal.signal(signal.SIGINT, before)


def _say_found(found: BulkReport, verb: str, as_json: bool) -> None:
    if as_json:
        document({"dry_run": True, **record_view(found)})
        return
    say(f"would {verb} {_jobs(found.found, found.exact)}{':' if found.first else ''}")
    for id in found.first:
        say(f"  {id}")
    if found.found > len(found.first):
        say(f"  and {found.found - len(found.first):,} more")
    _say_problems(found)


def _say_done(report: BulkReport, done: str, as_json: bool, interrupted: str | None = None) -> None:
    if as_json:
        document({"dry_run": False, "interrupted": interrupted is not None, **record_view(report)})
        return
    if interrupted is not None:
        of = f"{report.done:,} of {interrupted} {'was' if report.done == 1 else 'were'} {done}"
        say(f"interrupted: {of}; the same command goes on with the rest", stderr=True)
    else:
        say(_summary(report, done))
    _say_problems(report)


def _summary(report: BulkReport, done: str) -> str:
    """Of a cancellation, how many still run: these may yet succeed."""
    if not report.asked:
        return f"{done} {_jobs(report.done)}"
    ended = report.done - report.asked
    first = f"{done} {_jobs(ended)}; " if ended else ""
    return f"{first}asked {_jobs(report.asked)} to stop that still {'runs' if report.asked == 1 else 'run'}"


def _say_problems(report: BulkReport) -> None:
    if report.not_possible:
        say(f"not possible for {_jobs(report.not_possible)}:", stderr=True)
    for problem in report.problems:
        say(f"  {safe(problem.why)}", stderr=True)
    if report.not_possible > len(report.problems):
        say(f"  and {report.not_possible - len(report.problems):,} more", stderr=True)


def _jobs(number: int, exact: bool = True) -> str:
    return f"{'' if exact else 'at least '}{number:,} job{'s' * (number != 1)}"
