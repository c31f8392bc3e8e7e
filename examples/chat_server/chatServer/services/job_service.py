"""The one queue of all background work, on the pool of the application."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from chatServer.database.connection import Pool
from chatServer.database.lending import lend_from
from treadle import Claimed, Retry, Treadle
from treadle.profiles import chat_server

RETRY: Retry = chat_server.PROFILE.task["retry"]  # 30 s, doubled up to 15 minutes


class JobNotHeld(LookupError):
    """A job that this service did not hand out, or that was settled since."""


class JobService:
    """Jobs by their bare ids. It keeps what says that a job is its own, so another process cannot settle it."""

    def __init__(self, db_pool: Pool) -> None:
        """Made inside the event loop, because every call borrows a connection of the pool there."""
        lend = lend_from(db_pool, asyncio.get_running_loop())
        self._app = Treadle(str(db_pool.conninfo), profile=chat_server.PROFILE, lend=lend)
        self._held: dict[str, Claimed] = {}

    async def create(
        self,
        job_type: str,
        input: dict[str, Any],
        user_id: str | UUID,
        priority: int = 0,
        max_retries: int = 3,
        scheduled_for: datetime | None = None,
        expires_at: datetime | None = None,
        *,
        key: str | None = None,
    ) -> str:
        """Store a pending job; its id. With a `key` that a job has that has not ended yet, that one's id."""
        retry = RETRY._replace(max_attempts=max_retries + 1)
        using: dict[str, Any] = {"tenant": str(user_id), "priority": priority, "retry": retry}
        if scheduled_for is not None:
            using["run_after"] = scheduled_for
        if expires_at is not None:
            using["expires_at"] = expires_at
        if key is not None:
            using |= {"key": key, "unique": "active"}
        job = await self._app.aenqueue(job_type, input, checked=False, **using)
        return job.id

    async def claim_next(self, job_types: Sequence[str] | None = None) -> dict[str, Any] | None:
        """The next job that is due, of these types or of any, as the table `jobs` shows it; None if there is none."""
        claiming = asyncio.ensure_future(self._app.aclaim(tasks=job_types))
        try:
            claimed = await asyncio.shield(claiming)
        except asyncio.CancelledError:  # its thread goes on: what it gets must not lie here until its lease ends
            for held in await claiming:
                await held.arelease()
            raise
        for held in claimed:
            self._held[held.job.id] = held
            return chat_server.PROFILE.view(held.job, datetime.now(UTC))
        return None

    async def mark_running(self, job_id: str | UUID) -> None:
        await self._holder(job_id).astart()

    async def complete(self, job_id: str | UUID, output: dict[str, Any]) -> None:
        await self._taken(job_id).asucceed(output)

    async def fail(self, job_id: str | UUID, error: str, should_retry: bool = True) -> None:
        """Pending again, 30 s later and each time twice as long up to 15 minutes; or failed for good."""
        await self._taken(job_id).afail(error, retry=should_retry)

    async def give_back(self, job_id: str | UUID) -> None:
        """Pending again at once and as it was: the process that had it stops."""
        await self._taken(job_id).arelease()

    async def expire_stale(self) -> int:
        """How many jobs were claimed half an hour ago and not settled; each is retried, or failed if none is left."""
        return await asyncio.to_thread(self._app.recover)

    def forget(self, job_id: str | UUID) -> None:
        """Its lease ran out: it is somebody else's, or nobody's."""
        self._held.pop(str(job_id), None)

    def _holder(self, job_id: str | UUID) -> Claimed:
        if held := self._held.get(str(job_id)):
            return held
        raise JobNotHeld(
            f"job {job_id} is not held by this service: it was never claimed here, or was settled since; "
            "claim_next() hands out jobs"
        )

    def _taken(self, job_id: str | UUID) -> Claimed:
        held = self._holder(job_id)
        del self._held[str(job_id)]
        return held
