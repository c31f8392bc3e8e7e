"""`treadle jobs retry`, `cancel`, `delete`, `edit` and `run-now`: act on one job, on several, or on all that fit."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from treadle.app.bulk import BulkReport
from treadle.app.reading import past_from, soon_from
from treadle.app.treadle import Treadle
from treadle.cli import options
from treadle.cli.discovery import find_ready_store
from treadle.cli.jobs import (
    Before,
    Id,
    OfError,
    OfKey,
    OfQueue,
    OfState,
    OfTask,
    Since,
    actor,
    check_id,
    resolved,
)  # fmt: skip
from treadle.cli.terminal import clock, console, document, safe, say
from treadle.errors import ConfigError
from treadle.model import Job, State

INTERRUPTED = 130

Ids = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="Ids, or their first digits.", show_default=False)
]
Why = Annotated[str, typer.Option("--reason", help="Why, for the audit trail.", show_default=False)]
Everything = Annotated[bool, typer.Option("--all", help="All of them, whatever they are.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count them, and name the first few.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

Act = Callable[..., BulkReport]


def retry(
    ids: Ids = None,
    app: options.App = None,
    url: options.Url = None,
    state: OfState = None,
    task: OfTask = None,
    queue: OfQueue = None,
    tenant: options.OfTenant = None,
    key: OfKey = None,
    error: OfError = None,
    since: Since = None,
    before: Before = None,
    everything: Everything = False,
    keep_attempts: Annotated[bool, typer.Option("--keep-attempts", help="Once more, not with a fresh budget.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    reason: Why = "",
    as_json: options.Json = False,
) -> None:
    """Run failed or cancelled jobs again: these ids, or all that fit.

    Filters must all fit. Without --state they mean failed jobs; --state cancelled runs those again. It asks before it
    acts on what fits, unless --yes. Interrupted, it says how far it came, and the same command goes on.
    """
    which = _which(ids, everything, state, task, queue, tenant, key, error, since, before)
    with closing(find_ready_store(app, url)) as store:
        if one := _only(store, ids, dry_run):
            job = store.retry(one, keep_attempts=keep_attempts, actor=actor(), reason=reason)
            _done(store, job, "waits to be run again", as_json)
            return

        def act(**options: Any) -> BulkReport:
            return store.retry_many(**options, keep_attempts=keep_attempts, actor=actor(), reason=reason)

        _act_on_many(store, act, which, ("retry", "retried"), dry_run, yes or bool(ids), as_json)


def cancel(
    ids: Ids = None,
    app: options.App = None,
    url: options.Url = None,
    state: OfState = None,
    task: OfTask = None,
    queue: OfQueue = None,
    tenant: options.OfTenant = None,
    key: OfKey = None,
    error: OfError = None,
    since: Since = None,
    before: Before = None,
    everything: Everything = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    reason: Why = "",
    as_json: options.Json = False,
) -> None:
    """Cancel waiting jobs, or ask running ones to stop: these ids, or all that fit.

    Filters must all fit; without --state they mean both. It asks before it acts on what fits, unless --yes.
    """
    which = _which(ids, everything, state, task, queue, tenant, key, error, since, before)
    with closing(find_ready_store(app, url)) as store:
        if one := _only(store, ids, dry_run):
            job = store.cancel(one, actor=actor(), reason=reason)
            asked = f"was asked to stop; it runs on {job.worker}"
            _done(store, job, asked if job.state is State.RUNNING else "is cancelled", as_json)
            return

        def act(**options: Any) -> BulkReport:
            return store.cancel_many(**options, actor=actor(), reason=reason)

        _act_on_many(store, act, which, ("cancel", "cancelled"), dry_run, yes or bool(ids), as_json)


def delete(
    ids: Ids = None,
    app: options.App = None,
    url: options.Url = None,
    state: OfState = None,
    task: OfTask = None,
    queue: OfQueue = None,
    tenant: options.OfTenant = None,
    key: OfKey = None,
    error: OfError = None,
    since: Since = None,
    before: Before = None,
    everything: Everything = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    reason: Why = "",
    as_json: options.Json = False,
) -> None:
    """Delete jobs with their payloads, for good: these ids, or all that fit. Running jobs are left alone.

    The audit trail keeps who deleted them, when and why, and what it had noted before, error messages included. It asks
    first, unless --yes.
    """
    which = _which(ids, everything, state, task, queue, tenant, key, error, since, before)
    with closing(find_ready_store(app, url)) as store:

        def act(**options: Any) -> BulkReport:
            return store.delete_many(**options, actor=actor(), reason=reason)

        _act_on_many(store, act, which, ("delete", "deleted"), dry_run, yes, as_json)


def edit(
    id: Id,
    app: options.App = None,
    url: options.Url = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="To this queue.")] = None,
    lane: Annotated[str | None, typer.Option("--lane", help="To this lane; '' for none.")] = None,
    priority: Annotated[int | None, typer.Option("--priority", help="To this priority; higher runs first.")] = None,
    run_after: Annotated[
        str | None, typer.Option("--run-after", metavar="TIME", help="Due in 5m, or at 2030-01-31T12:00Z.")
    ] = None,
    reason: Why = "",
    as_json: options.Json = False,
) -> None:
    """Give a waiting job another queue, lane, priority or due time."""
    check_id(id)
    due = soon_from(run_after, "--run-after")
    if (queue, lane, priority, due) == (None, None, None, None):
        raise ConfigError("what? Give --queue, --lane, --priority or --run-after")
    with closing(find_ready_store(app, url)) as store:
        known = resolved(store, id)
        fields: dict[str, Any] = {"queue": queue, "lane": lane, "priority": priority, "run_after": due}
        job = store.edit(known, **fields, actor=actor(), reason=reason)
        lane_words = f", lane {job.lane}" if job.lane else ""
        words = f"is on queue {job.queue}{lane_words}, priority {job.priority}, due {clock(job.due_at)}"
        _done(store, job, words, as_json)


def run_now(
    id: Id, app: options.App = None, url: options.Url = None, reason: Why = "", as_json: options.Json = False
) -> None:
    """Let a job run now that is due later, or waits for its next attempt."""
    check_id(id)
    with closing(find_ready_store(app, url)) as store:
        job = store.run_now(resolved(store, id), actor=actor(), reason=reason)
        _done(store, job, "is due now", as_json)


# ------------------------------------------------------------------------------------------------ which jobs


def _which(
    ids: list[str] | None,
    everything: bool,
    state: str | None,
    task: str | None,
    queue: str | None,
    tenant: str | None,
    key: str | None,
    error: str | None,
    since: str | None,
    before: str | None,
) -> dict[str, Any]:
    """What was named, for `app.retry_many` and the like; checked before a store is opened."""
    given = {"state": state, "task": task, "queue": queue, "tenant": tenant, "key": key, "error": error}
    times = {"since": past_from(since, "--since"), "before": past_from(before, "--before")}
    named = {field: value for field, value in {**given, **times}.items() if value is not None}
    for id in ids or ():
        check_id(id)
    if ids and (named or everything):
        raise ConfigError(f"ids or a filter: leave out --{next(iter(named), 'all')}, or the ids")
    if not ids and not named and not everything:
        raise ConfigError("which jobs? Give ids, or a filter such as --state failed --task greet, or --all")
    return {"ids": ids} if ids else {**named, "everything": everything}


def _only(store: Treadle, ids: list[str] | None, dry_run: bool) -> str | None:
    """The one job that is named, if it is one."""
    return resolved(store, ids[0]) if ids and len(ids) == 1 and not dry_run else None


# ------------------------------------------------------------------------------------------------ many of them


def _act_on_many(
    store: Treadle, act: Act, which: dict[str, Any], verb: tuple[str, str], dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Count what is meant, ask, act with a progress bar, and say what became of it; exit code 1 if not all was done."""
    if "ids" in which:
        which = {"ids": [store.resolve_id(id) for id in which["ids"]]}
    found = act(**which, dry_run=True)
    if dry_run:
        _say_found(found, verb[0], as_json)
        return
    if not yes and found.found:
        _ask(found, verb[0], as_json)
    with _steps(found.found, verb[0], as_json) as progress:
        try:
            report = act(**which, progress=progress)
        except KeyboardInterrupt:
            report = progress.report
            _say_done(report, verb[1], as_json, interrupted=found.found)
            raise typer.Exit(INTERRUPTED) from None
    _say_done(report, verb[1], as_json)
    if report.not_possible:
        raise typer.Exit(1)


def _ask(found: BulkReport, verb: str, as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        raise ConfigError(f"this would {verb} {_jobs(found.found)}; --yes does it, --dry-run shows which")
    if not typer.confirm(f"{verb} {_jobs(found.found)}?", err=True):
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
def _steps(total: int, verb: str, as_json: bool) -> Iterator[Steps]:
    out = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, disable=as_json or not out.is_terminal, transient=True) as bar:
        row = bar.add_task(verb, total=total)
        steps = Steps(lambda done: bar.update(row, completed=done))
        before = signal.signal(signal.SIGINT, steps.stop)
        try:
            yield steps
        finally:
            signal.signal(signal.SIGINT, before)


def _say_found(found: BulkReport, verb: str, as_json: bool) -> None:
    if as_json:
        document({"dry_run": True, **_report_view(found)})
        return
    say(f"would {verb} {_jobs(found.found)}{':' if found.first else ''}")
    for id in found.first:
        say(f"  {id}")
    if found.found > len(found.first):
        say(f"  and {found.found - len(found.first):,} more")
    _say_problems(found)


def _say_done(report: BulkReport, done: str, as_json: bool, interrupted: int | None = None) -> None:
    if as_json:
        document({"dry_run": False, "interrupted": interrupted is not None, **_report_view(report)})
        return
    if interrupted is not None:
        of = f"{report.done:,} of {_jobs(interrupted)} {'was' if report.done == 1 else 'were'} {done}"
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


def _report_view(report: BulkReport) -> dict[str, Any]:
    return {**report._asdict(), "problems": [problem._asdict() for problem in report.problems]}


def _jobs(number: int) -> str:
    return f"{number:,} job{'s' * (number != 1)}"


def _done(store: Treadle, job: Job, words: str, as_json: bool) -> None:
    if as_json:
        document({"job": store.view(job)})
    else:
        say(f"{job.id}  {safe(job.task)} {safe(words)}")
