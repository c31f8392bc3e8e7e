"""One loop for every type of job."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from chatServer.services.job_service import JobNotHeld, JobService
from treadle import EngineUnavailable, LeaseLost

logger = logging.getLogger(__name__)

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any] | None]]


def is_stopping() -> bool:
    """Whether somebody has cancelled this task. What it awaits may raise CancelledError for reasons of its own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class JobRunnerService:
    """Takes a job, calls the handler of its type, and says how it ended; one job at a time."""

    def __init__(self, job_service: JobService, *, poll: float = 5, expiry: float = 300) -> None:
        self._handlers: dict[str, Handler] = {}
        self._job_service = job_service
        self._poll, self._expiry = poll, expiry
        self._last_expiry_check: float | None = None

    def register_handler(self, job_type: str, handler: Handler) -> None:
        """All that a new type of job needs."""
        self._handlers[job_type] = handler

    async def run(self) -> None:
        """Poll, claim, dispatch, repeat, until it is cancelled."""
        while not is_stopping():  # a handler may have swallowed the cancellation
            try:
                await self._maybe_expire_stale()
                if job := await self._next():
                    await self._dispatch(job)
                else:
                    await asyncio.sleep(self._poll)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                logger.exception("JobRunner loop error: %s", error)
                await asyncio.sleep(0 if is_stopping() else self._poll)

    async def _maybe_expire_stale(self) -> None:
        now = time.monotonic()
        if self._last_expiry_check is None or now - self._last_expiry_check >= self._expiry:
            if expired := await self._job_service.expire_stale():
                logger.warning("%d stale jobs expired", expired)
            self._last_expiry_check = now

    async def _next(self) -> dict[str, Any] | None:
        """A job of a type that is handled here; if there is none, one of another type, which then fails."""
        job = await self._job_service.claim_next(job_types=list(self._handlers)) if self._handlers else None
        return job or await self._job_service.claim_next()

    async def _dispatch(self, job: dict[str, Any]) -> None:
        try:
            await self._work(job)
        except asyncio.CancelledError:
            await self._give_back(job)
            raise

    async def _work(self, job: dict[str, Any]) -> None:
        job_id, job_type = job["id"], job["job_type"]
        handler = self._handlers.get(job_type)
        if handler is None:
            await self._fail(job, f"No handler registered for job_type: {job_type}", should_retry=False)
            return
        try:
            await self._job_service.mark_running(job_id)
            result = await handler(job)
        except asyncio.CancelledError:
            if is_stopping():
                raise
            logger.exception("Job %s (%s) failed", job_id, job_type)
            await self._fail(job, "the handler was cancelled")
        except Exception as error:
            logger.exception("Job %s (%s) failed", job_id, job_type)
            await self._fail(job, str(error))
        else:
            try:
                await self._settle(job, lambda: self._job_service.complete(job_id, result or {}))
            except EngineUnavailable:
                raise
            except Exception as error:
                problem = f"the output of the handler cannot be stored: {error}"
                logger.error("Job %s (%s) failed: %s", job_id, job_type, problem)
                await self._fail(job, problem)

    async def _fail(self, job: dict[str, Any], error: str, should_retry: bool = True) -> None:
        await self._settle(job, lambda: self._job_service.fail(job["id"], error, should_retry))

    async def _settle(self, job: dict[str, Any], write: Callable[[], Awaitable[None]]) -> None:
        """Write how it ended, again and again while the database is away: the work is done."""
        while True:
            try:
                return await write()
            except EngineUnavailable as error:
                if is_stopping():
                    raise
                logger.warning("Job %s (%s) has ended, which is not written yet: %s", job["id"], job["job_type"], error)
                await asyncio.sleep(self._poll)
            except (LeaseLost, JobNotHeld):
                logger.warning("Job %s (%s) took over half an hour: it is no longer ours", job["id"], job["job_type"])
                return None

    async def _give_back(self, job: dict[str, Any]) -> None:
        """Unless it was settled. An error that came out would take the place of the cancellation: nothing would end."""
        try:
            await self._job_service.give_back(job["id"])
        except JobNotHeld:
            pass
        except Exception as error:
            logger.warning("Job %s is claimed until its half hour is over: it was not given back: %r", job["id"], error)
