"""What every engine does with a batch: one bad value falls alone, one change a job, a receipt each in order."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, TypeVar, overload

from treadle.engines.values import Receipt, Tally
from treadle.model import Change, Job
from treadle.model.lifecycle import Success

T = TypeVar("T")
Answer = TypeVar("Answer")
Answers = TypeVar("Answers", bound=Sequence[Any])

NO_OTHERS: Mapping[int, Receipt] = MappingProxyType({})
MOST_QUEUES = 200  # that a tally looks at
LOOK = 1000  # receipts made at a time for whoever looks at all of them


def write_halved(
    batch: Sequence[T],
    write: Callable[[Sequence[T]], Answers],
    refuse: Callable[[T, Exception], Answer],
    errors: tuple[type[Exception], ...],
) -> Answers | list[Answer]:
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


def check_one_each(changes: Sequence[Change | Success]) -> None:
    """Refuse a turn with two changes for one job: the second was decided on what the first replaces."""
    if len({change.id for change in changes}) != len(changes):
        raise ValueError("a turn takes at most one change a job")


def merged_tallies(tallies: Iterable[Tally]) -> list[Tally]:
    """One tally a group: jobs of one may lie in several places."""
    found: dict[tuple[Any, ...], Tally] = {}
    for tally in tallies:
        other = found.get(tally[:4], tally._replace(number=0, due=0))
        sums = (other.number + tally.number, other.due + tally.due)
        found[tally[:4]] = tally._replace(number=sums[0], due=sums[1], oldest=min(other.oldest, tally.oldest))
    return [found[group] for group in sorted(found)]


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


def first_created(receipts: Sequence[Receipt]) -> Receipt | None:
    """The first receipt of a job that was created, if there is one; of lazy receipts no others are made."""
    if isinstance(receipts, LazyReceipts):
        places = (place for place in range(len(receipts)) if place not in receipts.others)
        return next((receipts[place] for place in places), None)
    return next((receipt for receipt in receipts if receipt.created), None)


class LazyReceipts(Sequence[Receipt]):
    """Receipts in order that are made when somebody looks at them; equal to a list of the same ones."""

    def __init__(self, others: Mapping[int, Receipt]) -> None:
        """`others` are the receipts of the jobs that were not created, by their places."""
        self.others = others

    def made(self, places: Sequence[int]) -> list[Receipt]:
        """The receipts of jobs that were created, at these places."""
        raise NotImplementedError

    @overload
    def __getitem__(self, place: int) -> Receipt: ...
    @overload
    def __getitem__(self, place: slice) -> list[Receipt]: ...
    def __getitem__(self, place: int | slice) -> Receipt | list[Receipt]:
        places = range(len(self))[place]
        return self._at([places])[0] if isinstance(places, int) else self._at(places)

    def __iter__(self) -> Iterator[Receipt]:
        for start in range(0, len(self), LOOK):
            yield from self[start : start + LOOK]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | LazyReceipts):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment] # as a list

    def __repr__(self) -> str:
        return f"<{len(self)} receipts>"

    def _at(self, places: Sequence[int]) -> list[Receipt]:
        others = self.others
        if not others:
            return self.made(places)
        made = iter(self.made([place for place in places if place not in others]))
        return [others[place] if place in others else next(made) for place in places]


class Receipts(LazyReceipts):
    """The receipts of jobs that were stored at `now`, but for the `others`."""

    def __init__(self, jobs: Sequence[Job], now: datetime, others: Mapping[int, Receipt] = NO_OTHERS) -> None:
        super().__init__(others)
        self._jobs = jobs
        self._now = now

    def __len__(self) -> int:
        return len(self._jobs)

    def made(self, places: Sequence[int]) -> list[Receipt]:
        return [Receipt(self._jobs[place].stored_at(self._now), created=True) for place in places]
