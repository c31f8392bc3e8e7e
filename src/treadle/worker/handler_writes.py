"""What a handler writes itself while it runs: what its job remembers, and its success in a transaction of its own."""

import time
from datetime import datetime
from typing import Any

from treadle.engines.contract import JobStore
from treadle.engines.values import Lease, Renewal
from treadle.errors import EngineUnavailable, LeaseLost
from treadle.model.backoff import Backoff
from treadle.model.memo import Memo
from treadle.worker.attempt import Attempt
from treadle.worker.settle_in_transaction import asettle_in, settle_in

RETRIES = Backoff(0.01, 0.5)


class HandlerWrites:
    """The writes of one attempt's handler; each is fenced by the attempt's lease of `lease` seconds."""

    def __init__(self, engine: JobStore, attempt: Attempt, lease: float) -> None:
        self._engine = engine
        self._attempt = attempt
        self._lease = lease

    def now(self) -> datetime:
        return self._engine.now()

    def settle(self, tx: Any, result: Any) -> None:
        settle_in(self._engine, self._attempt, tx, result)

    async def asettle(self, tx: Any, result: Any) -> None:
        await asettle_in(self._engine, self._attempt, tx, result)

    def recall(self) -> list[Memo]:
        """What earlier attempts remembered; the first one has none."""
        return [] if self._attempt.claimed.attempt == 1 else self._engine.memos(self._attempt.id)

    def remember(self, memo: Memo) -> None:
        """Write it with a renewal of the lease, again and again while the store is out of reach and the lease lasts.

        Nobody but us writes this name while the lease is ours, so that a write may be repeated.
        """
        attempt = self._attempt
        lease = Lease(attempt.id, attempt.claimed.token, attempt.started_at, memos=[memo])
        trouble: EngineUnavailable | None = None
        start, failures = time.monotonic(), 0
        while True:
            asked = time.monotonic()
            try:
                [answer] = self._engine.extend([lease], lease=self._lease)
            except EngineUnavailable as error:
                trouble = error
            else:
                if answer.renewal is Renewal.RENEWED:
                    attempt.lease_ends = max(attempt.lease_ends, asked + self._lease)
                    return
                if answer.renewal is Renewal.LOST:
                    raise LeaseLost(f"job {attempt.id} is no longer yours: {memo.name!r} was not written down")
            wait, failures = RETRIES.spread(failures), failures + 1
            if time.monotonic() + wait > min(attempt.lease_ends, start + self._lease):
                raise trouble or EngineUnavailable(f"job {attempt.id} stays locked: {memo.name!r} was not written down")
            time.sleep(wait)
