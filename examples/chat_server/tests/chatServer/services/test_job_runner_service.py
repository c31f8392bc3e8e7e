"""JobRunnerService, with the JobService of a real database."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from chat_fixtures import Sql
from chatServer.services.job_runner_service import JobRunnerService
from chatServer.services.job_service import JobService

Job = dict[str, Any]


@asynccontextmanager
async def at_work(runner: JobRunnerService) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(runner.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def runner(service: JobService) -> JobRunnerService:
    return JobRunnerService(service, poll=0.05)


@pytest.fixture
def ended(sql: Sql) -> Callable[..., Any]:
    """Waits until a job has this status; its row."""

    async def wait(job_id: str, status: str = "complete") -> Job:
        async with asyncio.timeout(20):
            while True:
                [row] = await sql("select * from jobs where id = %s::uuid", job_id)
                if row["status"] == status:
                    return row
                await asyncio.sleep(0.02)

    return wait


async def test_ac_14_a_registered_handler_is_called_once_run_is_going(
    service: JobService, runner: JobRunnerService, user: str, ended: Callable[..., Any]
) -> None:
    async def greet(job: Job) -> Job:
        return {"hello": job["input"]["name"]}

    runner.register_handler("greet", greet)
    job_id = await service.create("greet", {"name": "Ada"}, user)
    async with at_work(runner):
        assert (await ended(job_id))["output"] == {"hello": "Ada"}


async def test_ac_15_runner_poll_and_dispatch(
    service: JobService, runner: JobRunnerService, user: str, sql: Sql, ended: Callable[..., Any]
) -> None:
    seen = []

    async def look(job: Job) -> None:  # what returns nothing has the output {}
        [row] = await sql("select status, started_at from jobs where id = %s::uuid", job["id"])
        seen.append((row["status"], row["started_at"] is not None, job["input"]["n"]))

    runner.register_handler("look", look)
    async with at_work(runner):
        await asyncio.sleep(0)  # it polls; nothing is there
        job_ids = [await service.create("look", {"n": n}, user) for n in range(2)]
        assert [(await ended(job_id))["output"] for job_id in job_ids] == [{}, {}]
    assert seen == [("running", True, 0), ("running", True, 1)]


async def test_ac_15_a_type_without_a_handler_fails_and_is_not_retried(
    service: JobService, runner: JobRunnerService, user: str, ended: Callable[..., Any]
) -> None:
    async def nothing(_: Job) -> None: ...

    runner.register_handler("known", nothing)
    unknown, known = await service.create("calendar_sync", {}, user), await service.create("known", {}, user)
    async with at_work(runner):
        row = await ended(unknown, "failed")
        await ended(known)
    assert (row["error"], row["retry_count"]) == ("No handler registered for job_type: calendar_sync", 0)


async def test_ac_16_run_expires_what_is_stale(
    service: JobService, runner: JobRunnerService, user: str, sql: Sql, ended: Callable[..., Any]
) -> None:
    job_id = await service.create("lost", {}, user, max_retries=0)
    await service.claim_next()
    await sql(
        "update treadle.jobs set claimed_at = claimed_at - interval '31 minutes',"
        " lease_until = lease_until - interval '31 minutes' where id = %s::uuid",
        job_id,
    )
    async with at_work(runner):
        assert (await ended(job_id, "failed"))["error"] == "Job timed out (stale claim)"


async def test_ac_17_handler_exception_isolated(
    service: JobService, runner: JobRunnerService, user: str, ended: Callable[..., Any]
) -> None:
    async def careless(job: Job) -> Job:
        raise ValueError(f"cannot do {job['input']['x']}")

    async def careful(_: Job) -> Job:
        return {"done": True}

    runner.register_handler("careless", careless)
    runner.register_handler("careful", careful)
    bad, good = await service.create("careless", {"x": 7}, user), await service.create("careful", {}, user)
    async with at_work(runner) as running:
        assert (await ended(good))["output"] == {"done": True}
        row = await ended(bad, "pending")
        assert (row["error"], row["retry_count"]) == ("cannot do 7", 1)
        assert not running.done()


async def test_a_runner_that_is_stopped_gives_back_what_it_was_doing(
    service: JobService, runner: JobRunnerService, user: str, sql: Sql
) -> None:
    begun = asyncio.Event()

    async def endless(_: Job) -> None:
        begun.set()
        await asyncio.Event().wait()

    runner.register_handler("endless", endless)
    job_id = await service.create("endless", {}, user)
    async with at_work(runner) as running:
        await begun.wait()
    assert running.cancelled()
    [row] = await sql("select status, retry_count, error from jobs where id = %s::uuid", job_id)
    assert row == {"status": "pending", "retry_count": 0, "error": None}
