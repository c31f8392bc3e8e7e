"""Waiting for jobs to end, and following them while they run.

The store is asked again and again, a little less often each time: that works on every engine, from any process, and
whatever the worker is doing.
"""

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from treadle.app.handle import Handle
from treadle.edits import get_job, id_of
from treadle.errors import JobFailed, WaitTimeout
from treadle.model import Job, State
from treadle.model.clock import Duration, seconds
from treadle.tasks.faces import async_face

FIRST_LOOK, LONGEST_LOOK, GROWTH = 0.01, 0.25, 1.3  # seconds between two looks, and how they grow


class Results(Handle):
    """`stream` follows a job; whoever waits reads its last value."""

    def get(self, job_id: Job | str) -> Job:
        """The job of this id, finished ones too."""
        return get_job(self.engine, job_id, self._store.tenant)

    aget = async_face(get)

    def stream(self, job: Job | str, timeout: Duration | None = None) -> Iterator[Job]:
        """The job now, and again whenever its state, its attempt or its progress has changed, until it has ended.

        WaitTimeout if that takes longer than `timeout`; the job goes on.
        """
        job_id, seen = id_of(job), None
        for pause in _looks(timeout, job_id):
            now = self.get(job_id)
            if seen != (seen := _visible(now)):
                yield now
            if now.state.final:
                return
            time.sleep(pause)

    async def astream(self, job: Job | str, timeout: Duration | None = None) -> AsyncIterator[Job]:
        """`stream` for async code: `async for job in app.astream(job_id)`."""
        from asyncio import sleep  # noqa: PLC0415 - a process that only enqueues does not need it

        job_id, seen = id_of(job), None
        for pause in _looks(timeout, job_id):
            now = await self.aget(job_id)
            if seen != (seen := _visible(now)):
                yield now
            if now.state.final:
                return
            await sleep(pause)

    def wait_for(self, job: Job | str, timeout: Duration | None = None) -> Job:
        """Wait until the job has ended: succeeded, failed or cancelled; the job as it is then.

        WaitTimeout if that takes longer than `timeout`; the job goes on.
        """
        *_, last = self.stream(job, timeout)
        return last

    async def await_for(self, job: Job | str, timeout: Duration | None = None) -> Job:
        """`wait_for` for async code."""
        return [one async for one in self.astream(job, timeout)][-1]

    def result_of(self, job: Job | str, timeout: Duration | None = None) -> Any:
        """Wait for the job, and return what its handler returned; JobFailed if it failed or was cancelled."""
        return _result(self.wait_for(job, timeout))

    async def aresult_of(self, job: Job | str, timeout: Duration | None = None) -> Any:
        """`result_of` for async code."""
        return _result(await self.await_for(job, timeout))


def _looks(timeout: Duration | None, job_id: str) -> Iterator[float]:
    """The pause after each look; WaitTimeout when the time is over."""
    longest = float("inf") if timeout is None else seconds(timeout, "timeout")
    deadline, pause = time.monotonic() + longest, FIRST_LOOK
    while (left := deadline - time.monotonic()) > 0:
        yield min(pause, left)
        pause = min(pause * GROWTH, LONGEST_LOOK)
    yield 0.0  # a last look
    raise WaitTimeout(job_id, longest)


def _visible(job: Job) -> tuple[Any, ...]:
    return job.state, job.attempt, job.progress, job.cancel_requested


def _result(job: Job) -> Any:
    if job.state is not State.SUCCEEDED:
        raise JobFailed(job)
    return job.result
