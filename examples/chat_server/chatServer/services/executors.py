"""The cache of executors: what an agent keeps ready between two messages of its user."""

import time
from typing import Any


class Executors:
    def __init__(self) -> None:
        self._kept: dict[str, tuple[Any, float]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, user_id: str, executor: Any) -> None:
        self._kept[user_id] = executor, time.monotonic()

    def get(self, user_id: str) -> Any:
        """The executor of this user, which counts as used just now; None if there is none."""
        if found := self._kept.get(user_id):
            self.keep(user_id, found[0])
        return found and found[0]

    def evict(self, idle_seconds: float) -> None:
        """Drop those that nobody has used for so long."""
        limit = time.monotonic() - idle_seconds
        self._kept = {user: kept for user, kept in self._kept.items() if kept[1] >= limit}
