"""What you see of the demo: a live picture in a terminal, plain lines elsewhere, and the summary."""

import shutil
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from treadle.cli.options import Json
from treadle.cli.terminal import console, document, say, table
from treadle.demo import tasks
from treadle.demo.story import Ending, Moment, Report, prepared
from treadle.errors import ConfigError, NotPossible
from treadle.model import State

COLOURS = {State.SUCCEEDED: "green", State.FAILED: "red", State.CANCELLED: "yellow"}
PLANNED = {State.SUCCEEDED: "", State.FAILED: "on purpose", State.CANCELLED: "on purpose"}
WORDS = {
    Ending.SUCCEEDED: "succeeded",
    Ending.GAVE_UP: "failed: gave up at once",
    Ending.SPENT: "failed: attempts spent",
    Ending.CANCELLED_WAITING: "cancelled before the start",
    Ending.CANCELLED_RUNNING: "cancelled while running",
    Ending.EXPIRED: "expired before the start",
}
LINES = 9  # of the story, kept on the screen
ROWS = 12  # of the killed worker's jobs


class Silence:
    """For --json: nothing but the summary."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def tell(self, seconds: float, text: str) -> None:
        pass

    def link(self, text: str) -> None:
        pass

    def look(self, moment: Moment) -> None:
        pass


class PlainLines(Silence):
    """For pipes and log files: a line when something happens, and every two seconds how far it is."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = 2.0

    def tell(self, seconds: float, text: str) -> None:
        self._console.print(f"{seconds:5.1f} s  {text}", soft_wrap=True)

    def link(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def look(self, moment: Moment) -> None:
        if moment.seconds >= self._next:
            self._next += 2.0
            counts = {state: sum(job.state is state for job in moment.jobs) for state in State}
            self.tell(moment.seconds, ", ".join(f"{count} {state}" for state, count in counts.items() if count))


class Picture:
    """For a terminal: bars for the outcomes, a line for each worker, and the story so far."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._story: deque[Text] = deque(maxlen=LINES)
        self._moment: Moment | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def tell(self, seconds: float, text: str) -> None:
        style = "bold red" if text.startswith("killed") else ""
        self._story.append(Text.assemble((f"{seconds:5.1f} s  ", "dim"), (text, style)))
        self._draw()

    def link(self, text: str) -> None:
        """Above the picture, in one piece, so that it can be followed."""
        self._live.console.print(Text(text), soft_wrap=True)

    def look(self, moment: Moment) -> None:
        self._moment = moment
        self._draw()

    def _draw(self) -> None:
        parts: list[RenderableType] = [Text()]
        if self._moment is not None:
            parts += [_header(self._moment), Text(), _bars(self._moment), Text(), _workers(self._moment), Text()]
        parts += self._story
        self._live.update(Padding(Group(*parts), (0, 2)), refresh=True)


def _header(moment: Moment) -> Text:
    waiting = [job for job in moment.jobs if job.state is State.PENDING]
    retrying = sum(job.failures > 0 for job in waiting)
    title = f"   {len(moment.jobs)} jobs, one SQLite file   "
    now = f"{len(waiting)} waiting" + (f", {retrying} to be retried" if retrying else "")
    return Text.assemble(("treadle demo", "bold"), title, (now, "cyan"), (f"   {moment.seconds:.1f} s", "dim"))


def _bars(moment: Moment) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=10)
    grid.add_column(width=44)
    grid.add_column(justify="right")
    grid.add_column()
    for state, colour in COLOURS.items():
        total = sum(ending.state is state for ending in moment.expected.values())
        count = sum(job.state is state for job in moment.jobs)
        bar = ProgressBar(total=total, completed=count, width=44, complete_style=colour, finished_style=colour)
        grid.add_row(Text(state, colour), bar, f"{count} of {total}", Text(PLANNED[state], "dim"))
    return grid


def _workers(moment: Moment) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=10)
    grid.add_column()
    grid.add_column()
    holding = moment.holding()
    for name, process in moment.crew.processes.items():
        held = holding[name]
        squares = "■" * min(held, 30)
        pid = Text(f"pid {process.pid}", "dim")
        if name in moment.crew.killed:
            words = Text(f"{squares} its {held} jobs wait for their leases to run out" if held else "killed", "red")
            grid.add_row(Text(name, "red strike"), pid, words)
        else:
            grid.add_row(name, pid, Text(squares or ("·" if process.poll() is None else "stopped"), "blue"))
    return grid


def show_summary(report: Report) -> None:
    """The end: expected against found, what the killed worker held, and what to try next."""
    indent = 2 if console().is_terminal else 0
    _title("What was expected, and what the store says", indent)
    table(("outcome", "expected", "found"), _outcomes(report), right=("expected", "found"), indent=indent)
    if report.killed is not None:
        _title(f"What {report.killed.worker} held when killed, after how long it was back, where it ended", indent)
        table(
            ("job", "task", "tries", "back", "end"),
            _held(report),
            right=("tries", "back"),
            indent=indent,
        )
        if len(report.held) > ROWS:
            say(" " * indent, f"and {len(report.held) - ROWS} more")
    say()
    for line in _remarks(report):
        say(" " * indent, line)
    _title("What to try next", indent)
    for line in _next(report):
        say(" " * indent, line)
    say()


def _title(text: str, indent: int) -> None:
    say()
    say(" " * indent, Text(text, "bold"))


def _outcomes(report: Report) -> Iterator[tuple[Text | str, ...]]:
    for ending in (*Ending, *(name for name in report.found if name not in set(Ending))):
        expected, found = report.expected.get(ending, 0), report.found.get(ending, 0)
        words = WORDS[ending] if isinstance(ending, Ending) else ending
        yield _marked(expected == found, words), str(expected), str(found)
    total, kept = sum(report.expected.values()), sum(report.found.values())
    yield _marked(total == kept, "all"), str(total), str(kept)


def _held(report: Report) -> Iterator[tuple[Text | str, ...]]:
    for job in report.held[:ROWS]:
        known = job.ended in set(Ending)
        found = "never" if job.recovered_after is None else f"{job.recovered_after:.1f} s"
        end = _marked(known, WORDS[Ending(job.ended)] if known else job.ended)
        yield job.id, job.task, f"{job.killed_at_attempt} → {job.attempt}", found, end


def _remarks(report: Report) -> Iterator[Text]:
    if not report.problems:
        yield Text("Nothing was lost.", "bold green")
    yield Text(f"{report.attempts} attempts at {sum(report.expected.values())} jobs in {report.seconds:.1f} s.")
    if report.slowest is not None:
        promise = f"the promise is lease + 2 s = {tasks.LEASE + 2:g} s"
        yield Text(f"The slowest recovery took {report.slowest:.1f} s; {promise}.")
    if {"urgent", "ordinary"} <= report.waits.keys():
        urgent, ordinary = report.waits["urgent"], report.waits["ordinary"]
        yield Text(f"Urgent jobs, stored last, waited {urgent:.1f} s for a worker, ordinary ones {ordinary:.1f} s.")


def _next(report: Report) -> Iterator[Text]:
    treadle = program()
    if report.kept:
        yield Text(f"export TREADLE_URL={report.url}", "cyan")
        tries = {
            f"{treadle} jobs list --state failed": "what failed",
            f"{treadle} jobs show {report.example}": "why",
            f"{treadle} jobs retry {report.example}": "once more",
            f"{treadle} worker --app {tasks.__name__}:app": "a worker to run it",
        }
    else:
        tries = {
            f"{treadle} demo --serve": "the same in the dashboard, and jobs that go on",
            f"{treadle} demo --keep": "the same, and look at its jobs afterwards",
            f"{treadle} --help": "every command, with an example",
            f"{treadle} worker --app tasks:app": "a worker for tasks of your own, in tasks.py",
        }
    width = 0 if report.kept else max(len(command) for command in tries)
    for command, words in tries.items():
        yield Text.assemble((command.ljust(width), "cyan"), "  ", (f"# {words}", "dim"))


def program() -> str:
    """How this command line can be called from here."""
    if shutil.which("treadle"):
        return "treadle"
    script = Path(sys.executable).with_name("treadle")
    called = script if script.exists() else Path(sys.executable)
    here = str(called.relative_to(Path.cwd())) if called.is_relative_to(Path.cwd()) else str(called)
    return here if script.exists() else f"{here} -m treadle"


def _marked(good: bool, words: str) -> Text:
    return Text.assemble(("✓ ", "green") if good else ("✗ ", "bold red"), words)


def as_dict(report: Report) -> dict[str, Any]:
    """The summary with stable keys."""
    killed = report.killed
    return {
        "ok": not report.problems,
        "seconds": round(report.seconds, 3),
        "jobs": sum(report.found.values()),
        "attempts": report.attempts,
        "expected": {ending.value: report.expected.get(ending, 0) for ending in Ending},
        "found": {ending.value: 0 for ending in Ending} | {str(name): count for name, count in report.found.items()},
        "problems": list(report.problems),
        "killed": killed
        and {"worker": killed.worker, "pid": killed.pid, "held": [job._asdict() for job in report.held]},
        "slowest_recovery": report.slowest,
        "lease": tasks.LEASE,
        "waits": dict(report.waits),
        "url": report.url if report.kept else None,
    }


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Keep the database file, and say where it is.")] = False,
    serve: Annotated[bool, typer.Option("--serve", help="Open the dashboard, and go on until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Watch 300 jobs and three workers, one of which is killed: about ten seconds, nothing to set up."""
    if serve and as_json:
        raise ConfigError("--serve: goes on until Ctrl-C, so it cannot be combined with --json")
    out = console()
    show = Silence() if as_json else Picture(out) if out.is_terminal else PlainLines(out)
    try:
        with prepared(show, keep=keep, serve=serve) as play:
            with show:
                report = play.run(keep)
            if as_json:
                document(as_dict(report))
            else:
                show_summary(report)
            if play.dashboard is not None and not report.problems:
                say()
                say(f"Jobs go on until Ctrl-C. The dashboard: {play.dashboard.link} (signs in once)")
                play.go_on()
        if play.dashboard is not None and not report.problems:
            say(f"stopped: the workers and the dashboard{'' if keep else '; the files are removed'}", stderr=True)
    except KeyboardInterrupt:
        say("interrupted: the workers are stopped, the files removed", stderr=True)
        raise
    if report.problems:
        more = f" (and {len(report.problems) - 1} more)" if len(report.problems) > 1 else ""
        raise NotPossible(f"the demo went wrong: {report.problems[0]}{more}")
