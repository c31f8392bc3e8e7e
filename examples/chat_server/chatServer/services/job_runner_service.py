"""One loop for every type of job."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from chatServer.services.job_service import JobService
from treadle import LeaseLost

logger = logging.getLogger(__name__)

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any] | None]]


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
        while True:
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
                await asyncio.sleep(self._poll)

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
        job_type = job["job_type"]
        handler = self._handlers.get(job_type)
        if handler is None:
            unknown = f"No handler registered for job_type: {job_type}"
            await self._job_service.fail(job["id"], unknown, should_retry=False)
            return
        try:
            await self._job_service.mark_running(job["id"])
            result = await handler(job)
            await self._job_service.complete(job["id"], result or {})
        except asyncio.CancelledError:
            await self._job_service.give_back(job["id"])
            raise
        except LeaseLost:
            self._job_service.forget(job["id"])
            logger.warning("Job %s (%s) took over half an hour: it is no longer ours", job["id"], job_type)
        except Exception as error:
            logger.exception("Job %s (%s) failed", job["id"], job_type)
            await self._job_service.fail(job["id"], str(error))
