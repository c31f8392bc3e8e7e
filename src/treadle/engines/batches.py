"""What every engine does with a batch: one bad value falls alone, one change a job, a receipt each in order."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from treadle.engines.values import Receipt
from treadle.model import Change, Job

T = TypeVar("T")
Answer = TypeVar("Answer")


def write_halved(
    batch: Sequence[T],
    write: Callable[[Sequence[T]], list[Answer]],
    refuse: Callable[[T, Exception], Answer],
    errors: tuple[type[Exception], ...],
) -> list[Answer]:
    """Write a batch, an answer each in order; a refused batch is written in halves, so that a bad value falls alone.

    `refuse` makes the answer for that value; it raises the error again if it is not about a value at all.
    """
    try:
        return write(batch)
    except errors as error:
        refused = refuse(batch[0], error)
        if len(batch) == 1:
            return [refused]
    half = len(batch) // 2
    return [
        *write_halved(batch[:half], write, refuse, errors),
        *write_halved(batch[half:], write, refuse, errors),
    ]


def check_one_each(changes: Sequence[Change]) -> None:
    """Refuse a turn with two changes for one job: the second was decided on what the first replaces."""
    if len({change.before.id for change in changes}) != len(changes):
        raise ValueError("a turn takes at most one change a job")


def receipts_of(
    jobs: Sequence[Job], stored: Mapping[str, Job], created: set[str], first: Mapping[str, Job]
) -> list[Receipt]:
    """A receipt for each job in order: what was `stored`, or the job that was `first` under its id or key.

    Of two requests with one id the second finds the first.
    """
    fresh, receipts = set(created), []
    for job in jobs:
        if job.id in fresh:
            fresh.discard(job.id)
            receipts.append(Receipt(stored[job.id], created=True))
        else:
            receipts.append(Receipt(first.get(job.id, stored[job.id]), created=False))
    return receipts
