"""The one queue of all background work, on the pool of the application."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

from psycopg.errors import ForeignKeyViolation

from chatServer.database.connection import Pool
from chatServer.database.lending import Lending, run
from treadle import Claimed, LeaseLost, Retry, Treadle, TreadleError
from treadle.profiles import chat_server

RETRY: Retry = chat_server.PROFILE.task["retry"]  # 30 s, doubled up to 15 minutes
THREADS = 4  # so many connections of the pool the queue has at most
GRACE = 5  # seconds in which a call that is cancelled may still end

T = TypeVar("T")


class JobNotHeld(LookupError):
    """A job that this service did not hand out, or that was settled since."""


class UnknownUser(LookupError):
    """A job for somebody who is not in auth.users, or not any more."""


class JobService:
    """Jobs by their bare ids. It keeps what says that a job is its own, so another process cannot settle it."""

    def __init__(self, db_pool: Pool) -> None:
        """Made inside the event loop, because every call borrows a connection of the pool there."""
        self._lending = Lending(db_pool, asyncio.get_running_loop())
        self._app = Treadle(str(db_pool.conninfo), profile=chat_server.PROFILE, lend=self._lending.lend)
        # Not the default threads: these wait for the loop, which needs one of those to look up the name of a host.
        self._threads = ThreadPoolExecutor(THREADS, "jobs")
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
        user = _user(user_id)
        using: dict[str, Any] = {"tenant": user, "priority": priority, "retry": retry}
        if scheduled_for is not None:
            using["run_after"] = scheduled_for
        if expires_at is not None:
            using["expires_at"] = expires_at
        if key is not None:
            using |= {"key": key, "unique": "active"}

        def store() -> str:
            with self._lending.transaction() as connection:
                run(connection, b"select public.jobs_known_user($1::uuid)", user)
                return self._app.enqueue(job_type, input, checked=False, **using).id

        try:
            return await self._call(store)
        except ForeignKeyViolation:
            raise UnknownUser(f"user_id: there is no user {user} in auth.users") from None

    async def claim_next(self, job_types: Sequence[str] | None = None) -> dict[str, Any] | None:
        """The next job that is due, of these types or of any, as the table `jobs` shows it; None if there is none."""
        claimed: list[Claimed] = []
        try:
            await self._call(lambda: claimed.extend(self._app.claim(tasks=job_types)))
        except asyncio.CancelledError:
            for held in claimed:  # nobody will work on it: it must not lie here until its lease ends
                self._held[held.job.id] = held
                with suppress(TreadleError, TimeoutError):  # they would take the place of the cancellation
                    await self.give_back(held.job.id)
            raise
        for held in claimed:
            self._held[held.job.id] = held
            return chat_server.PROFILE.view(held.job, datetime.now(UTC))
        return None

    async def mark_running(self, job_id: str | UUID) -> None:
        await self._write(job_id, Claimed.start, forget=False)

    async def complete(self, job_id: str | UUID, output: dict[str, Any]) -> None:
        await self._write(job_id, lambda held: held.succeed(output))

    async def fail(self, job_id: str | UUID, error: str, should_retry: bool = True) -> None:
        """Pending again, 30 s later and each time twice as long up to 15 minutes; or failed for good."""
        await self._write(job_id, lambda held: held.fail(error, retry=should_retry))

    async def give_back(self, job_id: str | UUID) -> None:
        """Pending again at once and as it was: the process that had it stops. TimeoutError if the database is away."""
        async with asyncio.timeout(GRACE):
            await self._write(job_id, Claimed.release, grace=0)

    async def expire_stale(self) -> int:
        """How many jobs were claimed half an hour ago and not settled; each is retried, or failed if none is left."""
        return await self._call(self._app.recover)

    async def close(self) -> None:
        """Call it after the pool was closed: then calls that wait for a connection give up, within seconds."""
        await asyncio.to_thread(self._threads.shutdown)

    async def _write(
        self,
        job_id: str | UUID,
        change: Callable[[Claimed], object],
        *,
        forget: bool = True,
        grace: float | None = None,
    ) -> None:
        """The job is ours until it is written how it ended, or until it turns out to be ours no longer."""
        if (held := self._held.get(str(job_id))) is None:
            raise JobNotHeld(
                f"job {job_id} is not held by this service: it was never claimed here, or was settled since; "
                "claim_next() hands out jobs"
            )

        def write() -> None:
            try:
                change(held)
            except LeaseLost:
                self._held.pop(held.job.id, None)
                raise
            if forget:
                self._held.pop(held.job.id, None)

        await self._call(write, grace)

    async def _call(self, work: Callable[[], T], grace: float | None = None) -> T:
        """What it answers, from a thread. A cancellation goes on once it has ended, so that nothing is half known."""
        working = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            await asyncio.wait([working], timeout=GRACE if grace is None else grace)
            raise


def _user(user_id: str | UUID) -> str:
    """As the view `jobs` writes it."""
    try:
        return str(UUID(str(user_id)))
    except ValueError:
        raise UnknownUser(f"user_id: {user_id!r:.100} is not the id of a user, a UUID") from None
