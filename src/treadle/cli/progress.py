"""A bar that shows how far long work is: on stderr, in a terminal, and nowhere else."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from treadle.cli.terminal import console


def has_bar(as_json: bool = False) -> bool:
    """Whether somebody would see a bar."""
    return not as_json and console(stderr=True).is_terminal


@contextmanager
def bar(verb: str, total: int | None, *, as_json: bool = False) -> Iterator[Callable[[int], None]]:
    """A function that takes how many are done. Without a total the bar only moves."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    out = console(stderr=True)
    with Progress(*columns, console=out, disable=not has_bar(as_json), transient=True) as shown:
        row = shown.add_task(verb, total=total)
        yield lambda done: shown.update(row, completed=done)
