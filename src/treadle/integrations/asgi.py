"""The lifespan of an ASGI app: the store is opened and closed with it, and a worker may run inside."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from typing import Any, TypedDict

from treadle.app.treadle import Treadle
from treadle.errors import EngineUnavailable, TreadleError
from treadle.model.clock import Duration

log = logging.getLogger("treadle.integrations")

START_TIMEOUT = 2.0
"""Seconds that the start of a web app waits for the store. A store that comes later is used when it is there."""

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


class WorkerOptions(TypedDict, total=False):
    """The options of `app.worker`."""

    queues: Sequence[str]
    lanes: Sequence[str]
    concurrency: int
    lease: Duration
    grace: Duration
    poll: Duration
    name: str


def lifespan(jobs: Treadle, own: Lifespan | None = None, *, worker: bool | WorkerOptions = False) -> Lifespan:
    """A lifespan for Starlette, FastAPI and others: `FastAPI(lifespan=lifespan(jobs, worker=True))`.

    `own` is your own lifespan. It starts before the worker and ends after it, so handlers can use what it opens; the
    state that it yields is passed on. `worker` may hold the options of `app.worker`, such as `{"concurrency": 5}`.
    """

    @asynccontextmanager
    async def both(host: Any) -> AsyncIterator[Any]:
        async with nullcontext() if own is None else own(host) as state, running(jobs, worker=worker):
            yield state

    return both


@asynccontextmanager
async def running(jobs: Treadle, *, worker: bool | WorkerOptions = False) -> AsyncIterator[None]:
    """The store open, and with `worker` a worker on this event loop, for the time of the block.

    A store that does not answer is waited for as long as START_TIMEOUT says, and then in the background. One whose
    schema does not fit is an error. At the end running jobs have the worker's grace time; then they are released.
    """
    try:
        await _open(jobs)
        async with nullcontext() if worker is False else _worker(jobs, WorkerOptions() if worker is True else worker):
            yield
    finally:
        await asyncio.to_thread(jobs.close)


async def _open(jobs: Treadle) -> None:
    try:
        await asyncio.wait_for(asyncio.to_thread(jobs.open), START_TIMEOUT)
    except EngineUnavailable as error:
        log.warning("the job store is not there yet: %s", error)
    except TimeoutError:
        log.warning("the job store is not there yet: no answer within %g s", START_TIMEOUT)


@asynccontextmanager
async def _worker(jobs: Treadle, options: WorkerOptions) -> AsyncIterator[None]:
    """A worker that starts in the background: it waits for the store, and the web app does not."""
    worker, started, stop = jobs.worker(**options), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            async with worker:
                started.set()
                await stop.wait()
        except TreadleError as error:
            log.critical("no worker runs in this process: %s", error)

    task = asyncio.create_task(work(), name="treadle-worker")
    try:
        yield
    finally:
        stop.set()
        if not started.is_set():
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task
