"""JobService, on a real PostgreSQL."""

import asyncio
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from chat_fixtures import Sql
from chatServer.database.connection import Pool
from chatServer.services.job_service import JobNotHeld, JobService, UnknownUser

from treadle import LeaseLost, TreadleError

AGE = (
    "update treadle.jobs set claimed_at = claimed_at - interval '31 minutes',"
    " lease_until = lease_until - interval '31 minutes' where id = any (%s)"
)
DUE = "update treadle.jobs set due_at = now() where id = %s"


async def the_job(sql: Sql, job_id: str) -> dict[str, Any]:
    [row] = await sql("select * from jobs where id = %s", UUID(job_id))
    return row


async def test_ac_07_every_call_does_its_work_through_the_pool(
    pool: Pool, service: JobService, user: str, sql: Sql
) -> None:
    lent = 0

    def borrowed() -> int:
        nonlocal lent
        before, lent = lent, pool.get_stats()["requests_num"]
        return lent - before

    job_ids = []
    for number in range(3):
        borrowed()
        job_ids.append(await service.create("a", {"number": number}, user))
        assert borrowed() >= 1
    for job_id in job_ids:
        await service.claim_next()
        assert borrowed() >= 1
        await service.mark_running(job_id)
        assert borrowed() >= 1
    ends: list[Awaitable[object]] = [
        service.complete(job_ids[0], {"done": True}), service.fail(job_ids[1], "no"), service.give_back(job_ids[2]),
        service.expire_stale(),
    ]  # fmt: skip
    for call in ends:
        await call
        assert borrowed() >= 1
    connected = {row["pid"] for row in await sql("select pid from pg_stat_activity where datname = current_database()")}
    ours = {connection.info.backend_pid for connection in pool._pool}
    assert connected == ours  # nobody else has a connection to this database


async def test_ac_08_create_job_returns_id(service: JobService, user: str, sql: Sql) -> None:
    job_id = await service.create("email_processing", {"connection_id": "7"}, user)
    row = await the_job(sql, job_id)
    assert (row["status"], row["job_type"], row["input"]) == ("pending", "email_processing", {"connection_id": "7"})
    assert (row["user_id"], row["priority"], row["retry_count"], row["max_retries"]) == (UUID(user), 0, 0, 3)
    assert row["scheduled_for"] == row["created_at"]
    assert (row["expires_at"], row["output"], row["error"]) == (None, None, None)


async def test_ac_08_a_job_scheduled_for_later_is_not_claimed_before_its_time(
    service: JobService, user: str, sql: Sql
) -> None:
    later, end = datetime.now(UTC) + timedelta(hours=1), datetime.now(UTC) + timedelta(hours=2)
    job_id = await service.create("a", {}, user, 7, 0, later, end)
    row = await the_job(sql, job_id)
    assert (row["priority"], row["max_retries"], row["scheduled_for"], row["expires_at"]) == (7, 0, later, end)
    assert await service.claim_next() is None
    await sql(DUE, UUID(job_id))
    assert (await service.claim_next() or {})["id"] == job_id


async def test_ac_09_claim_next_takes_the_first_by_priority_then_time_of_the_types_asked_for(
    service: JobService, user: str, sql: Sql
) -> None:
    now = datetime.now(UTC)
    for name, priority, minutes in (("late", 0, 20), ("early", 0, 10), ("urgent", 5, 30), ("other", 9, 10)):
        type_ = "b" if name == "other" else "a"
        await service.create(type_, {"name": name}, user, priority, scheduled_for=now + timedelta(minutes=minutes))
    await sql("update treadle.jobs set due_at = due_at - interval '1 hour'")
    gone = await service.create("a", {"name": "expired"}, user, 9, expires_at=now + timedelta(hours=1))
    await sql("update treadle.jobs set expires_at = now() - interval '1 second' where id = %s", UUID(gone))
    claimed = [await service.claim_next(["a"]) for _ in range(4)]
    assert [job and job["input"]["name"] for job in claimed] == ["urgent", "early", "late", None]
    [row] = await sql("select status, claimed_at, started_at from jobs where input ->> 'name' = 'urgent'")
    assert (row["status"], row["claimed_at"] is not None, row["started_at"]) == ("claimed", True, None)


@pytest.mark.parametrize("jobs", [1, 2])
async def test_ac_09_claim_next_skip_locked(pool: Pool, user: str, jobs: int) -> None:
    services = [JobService(pool), JobService(pool)]
    made = {await services[0].create("a", {}, user) for _ in range(jobs)}
    claimed = await asyncio.gather(*(one.claim_next() for one in services))
    assert {job["id"] for job in claimed if job} == made
    assert len([job for job in claimed if job]) == jobs


async def test_ac_10_mark_running_transition(service: JobService, user: str, sql: Sql) -> None:
    job_id = await service.create("a", {}, user)
    await service.claim_next()
    await service.mark_running(job_id)
    row = await the_job(sql, job_id)
    assert row["status"] == "running"
    assert row["started_at"] is not None


async def test_ac_11_complete_with_output(service: JobService, user: str, sql: Sql) -> None:
    job_id = await service.create("a", {}, user)
    await service.claim_next()
    await service.mark_running(job_id)
    await service.complete(job_id, {"answer": 42})
    row = await the_job(sql, job_id)
    assert (row["status"], row["output"], row["error"]) == ("complete", {"answer": 42}, None)
    assert row["completed_at"] is not None


async def test_ac_12_fail_with_retry(service: JobService, user: str, sql: Sql) -> None:
    job_id = await service.create("a", {}, user, max_retries=6)
    for retry, seconds in enumerate((30, 60, 120, 240, 480, 900)):
        await service.claim_next()
        await service.mark_running(job_id)
        await service.fail(job_id, f"error {retry}")
        row = await the_job(sql, job_id)
        assert (row["status"], row["retry_count"], row["error"]) == ("pending", retry + 1, f"error {retry}")
        assert (row["scheduled_for"] - row["updated_at"]).total_seconds() == pytest.approx(seconds, abs=1)
        await sql(DUE, UUID(job_id))


async def test_ac_12_fail_exhausted(service: JobService, user: str, sql: Sql) -> None:
    for retries, should_retry in ((0, True), (3, False)):
        job_id = await service.create("a", {}, user, max_retries=retries)
        await service.claim_next()
        await service.fail(job_id, "for good", should_retry=should_retry)
        row = await the_job(sql, job_id)
        assert (row["status"], row["error"]) == ("failed", "for good")
        assert row["completed_at"] is not None


async def test_ac_13_expire_stale_service(service: JobService, user: str, sql: Sql) -> None:
    stale, spent, young = [await service.create("a", {}, user, max_retries=retries) for retries in (3, 0, 0)]
    for _ in range(3):
        await service.claim_next()
    await sql(AGE, [UUID(stale), UUID(spent)])
    assert await service.expire_stale() == 2
    found = {job_id: await the_job(sql, job_id) for job_id in (stale, spent, young)}
    assert [row["status"] for row in found.values()] == ["pending", "failed", "claimed"]
    assert [row["error"] for row in found.values()] == ["Job timed out (stale claim)"] * 2 + [None]
    assert await service.expire_stale() == 0
    with pytest.raises(LeaseLost):
        await service.complete(stale, {})  # who comes back too late changes nothing


async def test_ac_28_create_claim_running_complete(service: JobService, user: str, sql: Sql) -> None:
    job_id = await service.create("a", {"x": 1}, user)
    seen = [(await the_job(sql, job_id))["status"]]
    claimed = await service.claim_next(["a"])
    assert claimed is not None
    assert (claimed["id"], claimed["user_id"], claimed["status"]) == (job_id, user, "claimed")
    assert claimed["input"] == {"x": 1}
    seen.append((await the_job(sql, job_id))["status"])
    await service.mark_running(job_id)
    seen.append((await the_job(sql, job_id))["status"])
    await service.complete(job_id, {})
    seen.append((await the_job(sql, job_id))["status"])
    assert seen == ["pending", "claimed", "running", "complete"]


async def test_ac_31_a_job_that_failed_at_max_retries_stays_failed(service: JobService, user: str, sql: Sql) -> None:
    job_id = await service.create("a", {}, user, max_retries=1)
    for _ in range(2):
        await service.claim_next()
        await service.fail(job_id, "no")
        await sql(DUE, UUID(job_id))
    assert (await the_job(sql, job_id))["status"] == "failed"
    assert await service.claim_next() is None


async def test_a_job_that_the_service_does_not_hold_is_refused(pool: Pool, service: JobService, user: str) -> None:
    job_id = await JobService(pool).create("a", {}, user)
    await JobService(pool).claim_next()  # another process has it
    for call in (service.mark_running(job_id), service.complete(job_id, {}), service.fail(uuid4(), "no")):
        with pytest.raises(JobNotHeld, match="is not held by this service"):
            await call


async def test_a_claim_that_is_cancelled_leaves_its_job_pending(service: JobService, user: str, sql: Sql) -> None:
    job_id = await service.create("a", {}, user)
    before = asyncio.all_tasks()
    claiming = asyncio.create_task(service.claim_next())
    await asyncio.sleep(0)  # it has begun
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    if left := asyncio.all_tasks() - before:
        await asyncio.wait(left)
    assert (await the_job(sql, job_id))["status"] == "pending"
    assert (await service.claim_next() or {})["id"] == job_id


async def test_what_is_no_input_and_no_number_of_retries_is_refused_by_name(service: JobService, user: str) -> None:
    with pytest.raises(TreadleError, match="payload"):
        await service.create("a", {"x": object()}, user)
    with pytest.raises(TreadleError, match="max_attempts"):
        await service.create("a", {}, user, max_retries=-1)
    with pytest.raises(TreadleError, match="task"):
        await service.create("", {}, user)


async def test_a_job_belongs_to_a_user_however_the_id_is_written(service: JobService, user: str, sql: Sql) -> None:
    job_id = await service.create("a", {}, user.upper())
    assert (await the_job(sql, job_id))["user_id"] == UUID(user)
    for stranger, problem in ((str(uuid4()), "there is no user"), ("Ada", "is not the id of a user")):
        with pytest.raises(UnknownUser, match=f"^user_id: .*{problem}"):
            await service.create("a", {}, stranger)
    assert await sql("select count(*) as number from treadle.jobs") == [{"number": 1}]
