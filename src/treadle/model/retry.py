"""When a failed job runs again: one function, and the policy that feeds it."""

import math
from typing import Any, NamedTuple, Self

from treadle.errors import InvalidJob
from treadle.model.clock import Duration, seconds

ATTEMPTS = range(1, 10_001)
LARGEST_EXPONENT = 62  # so that 2**k cannot overflow
USUAL_CAP = 300.0
LONGEST_DELAY = 10 * 365 * 86400.0  # so that a backoff without a cap stays within the calendar


class _Fields(NamedTuple):
    max_attempts: int
    base: float
    cap: float | None
    jitter: float


class Retry(_Fields):
    """A retry budget and its backoff, kept in the job's row so that any worker can settle it.

    `max_attempts` counts failures, not all runs: a snooze or a release spends none. `base`, `cap` and `jitter` are
    durations ("100ms", 5, "1h"), kept as seconds. With `cap=None` the backoff grows without a cap. The usual cap of
    5 minutes is never less than `base`. A policy that cannot be meant is refused; rows, which another program may have
    written, are read with `_make`.
    """

    __slots__ = ()

    def __new__(
        cls, max_attempts: int = 5, base: Duration = 5.0, cap: Duration | None = USUAL_CAP, jitter: Duration = 1.0
    ) -> Self:
        base, jitter = _seconds(base, "base"), _seconds(jitter, "jitter")
        cap = None if cap is None else _seconds(cap, "cap")
        if cap == USUAL_CAP and base > USUAL_CAP:  # who waits an hour at first does not mean five minutes
            cap = base
        return tuple.__new__(cls, (max_attempts, base, cap, jitter)).checked()

    def checked(self) -> Self:
        """The policy itself; InvalidJob for a budget or backoff that cannot be meant."""
        attempts = self.max_attempts
        if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts not in ATTEMPTS:
            raise InvalidJob("max_attempts", f"{attempts!r} must be from 1 to {ATTEMPTS[-1]:,}")
        for field in ("base", "cap", "jitter"):
            value = getattr(self, field)
            if not (value is None and field == "cap") and not 0 <= value < math.inf:
                raise InvalidJob(field, f"{value} must be 0 seconds or more")
        return self

    def _replace(self, **changes: Any) -> Self:
        return type(self)(**{**self._asdict(), **changes})

    def delay(self, failures: int, noise: float) -> float:
        """Seconds to wait after the `failures`-th failure; `noise` in [0, 1) places it inside the jitter.

        >>> [Retry(base=30, cap="15m", jitter=0).delay(k, 0) for k in (1, 2, 3, 6)]
        [30.0, 60.0, 120.0, 900.0]
        """
        exponent = min(max(failures, 1) - 1, LARGEST_EXPONENT)
        wait = self.base * 2.0**exponent
        if self.cap is not None:
            wait = min(wait, self.cap)
        return min(wait + self.jitter * noise, LONGEST_DELAY)


def _seconds(value: Duration, field: str) -> float:
    """A duration in seconds; a number stays as it is."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if number else seconds(value, field)  # type: ignore[return-value] # a number, as just seen
