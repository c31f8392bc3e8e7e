"""How long to wait before the next try: a little longer each time, up to a limit."""

import random
from collections.abc import Iterator
from typing import NamedTuple


class Backoff(NamedTuple):
    """Waits that double from `first` to `longest`, in seconds."""

    first: float
    longest: float

    def delay(self, failures: int) -> float:
        """The wait after this many failures, counted from 0."""
        return min(self.longest, self.first * 2.0 ** min(failures, 60))

    def spread(self, failures: int) -> float:
        """The same with jitter, half of it to all of it, so that many clients do not come back at once."""
        return self.delay(failures) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter

    def delays(self, tries: int) -> Iterator[float]:
        """The waits of this many tries, the first one first."""
        return (self.delay(failures) for failures in range(tries))


def lock_waits() -> Iterator[float]:
    """The waits for a row that somebody's open transaction holds: 20 tries, about four seconds in all."""
    return Backoff(0.01, 0.25).delays(20)
