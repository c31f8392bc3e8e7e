"""What a worker holds: the attempts whose jobs it has claimed and not yet settled."""

import threading
from collections.abc import Iterable

from treadle.model import Job
from treadle.worker.attempt import Attempt


class Holdings:
    """The attempts of one worker by job id; every thread of the worker may read and write it."""

    def __init__(self) -> None:
        self._attempts: dict[str, Attempt] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._attempts)

    def __contains__(self, attempt: Attempt) -> bool:
        return self._attempts.get(attempt.id) is attempt

    def attempts(self) -> list[Attempt]:
        """All of them, as they are now."""
        with self._lock:
            return list(self._attempts.values())

    def add(self, attempts: Iterable[Attempt]) -> list[Attempt]:
        """Hold these; the attempts whose jobs they have taken over."""
        replaced = []
        with self._lock:
            for attempt in attempts:
                if (old := self._attempts.get(attempt.id)) is not None:
                    replaced.append(old)
                self._attempts[attempt.id] = attempt
        return replaced

    def forget(self, *attempts: Attempt) -> None:
        """Hold these no longer; a later attempt may hold the same job by now, and keeps it."""
        with self._lock:
            for attempt in attempts:
                if self._attempts.get(attempt.id) is attempt:
                    del self._attempts[attempt.id]

    def holds(self, job: Job) -> bool:
        """Whether this worker holds this very lease: what it runs has not crashed, whatever the clock says."""
        attempt = self._attempts.get(job.id)
        return attempt is not None and attempt.claimed.token == job.lease_token

    def has_isolated(self) -> bool:
        """Whether an isolated job waits or runs here: the next one would have to wait."""
        return any(one.isolated and not one.ended for one in self.attempts())

    def has_unwritten_isolated(self) -> bool:
        """Whether an isolated job has ended and the store does not know it yet."""
        return any(one.isolated and one.ended and one.started_at for one in self.attempts())
