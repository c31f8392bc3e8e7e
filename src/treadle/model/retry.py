"""When a failed job runs again: one function, and the policy that feeds it."""

from typing import NamedTuple

LARGEST_EXPONENT = 62  # so that 2**k cannot overflow
LONGEST_DELAY = 10 * 365 * 86400.0  # so that a backoff without a cap stays within the calendar


class Retry(NamedTuple):
    """A retry budget and its backoff, kept in the job's row so that any worker can settle it.

    `max_attempts` runs in all; `base`, `cap` and `jitter` are seconds, `cap=None` is no cap.
    """

    max_attempts: int = 5
    base: float = 5.0
    cap: float | None = 300.0
    jitter: float = 1.0

    def delay(self, failures: int, noise: float) -> float:
        """Seconds to wait after the `failures`-th failure; `noise` in [0, 1) places it inside the jitter.

        >>> [Retry(base=30, cap=900, jitter=0).delay(k, 0) for k in (1, 2, 3, 6)]
        [30.0, 60.0, 120.0, 900.0]
        """
        exponent = min(max(failures, 1) - 1, LARGEST_EXPONENT)
        wait = self.base * 2.0**exponent
        if self.cap is not None:
            wait = min(wait, self.cap)
        return min(wait + self.jitter * noise, LONGEST_DELAY)
