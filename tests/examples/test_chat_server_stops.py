"""examples/chat_server: its runner ends whenever it is told to, and loses no result."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.examples.chat_server import AGE, Chat, Row, importable, in_loop, new_user, sql
from tests.support import provision
from tests.support.proxy import Proxy

AGENT = '{"agent_name": "briefing", "prompt": "What is new?"}'
LIMIT = 20  # seconds, for what ends in a moment


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    url = provision.fresh_database(provision.shared_postgres())
    with importable():
        from chatServer.database.migrate import migrate

        migrate(url)
        yield url
    provision.drop_database(url)


@pytest.fixture
def user(database: str) -> str:
    sql(database, "delete from auth.users")
    return new_user(database)


@pytest.fixture
def at_work(database: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.setenv("DATABASE_URL", database)
    monkeypatch.setenv("SUPABASE_JWT_SECRET", "a secret of this test")

    def run(do: Callable[[Any], Awaitable[None]], url: str = database) -> None:
        asyncio.run(in_loop(url, do))

    return run


@pytest.fixture
def proxy(database: str) -> Iterator[Proxy]:
    url = urlsplit(database)
    with Proxy(url.hostname or "", url.port or 0) as proxy:
        yield proxy


async def ends(task: asyncio.Task[None]) -> bool:
    """Whether it has ended in time."""
    done, _ = await asyncio.wait([task], timeout=LIMIT)
    task.cancel()
    return bool(done)


async def seen(database: str, job_id: str, **wanted: object) -> Row:
    """The job, once it is as it should be."""
    async with asyncio.timeout(LIMIT):
        while True:
            [row] = await asyncio.to_thread(sql, database, "select * from jobs where id = %s::uuid", job_id)
            if wanted.items() <= row.items():
                return row
            await asyncio.sleep(0.02)


async def endless(_: Row) -> None:
    await asyncio.Event().wait()


# ------------------------------------------------------------------------------------------------- the stop


def test_a_stop_ends_the_runner_although_its_job_is_no_longer_its_own(
    at_work: Callable[..., None], database: str, user: str
) -> None:
    async def do(chat: Any) -> None:
        chat.runner.register_handler("endless", endless)
        job_id = await chat.service.create("endless", {}, user)
        running = asyncio.create_task(chat.runner.run())
        await seen(database, job_id, status="running")
        sql(database, AGE, job_id)
        await chat.service.expire_stale()
        running.cancel()
        assert await ends(running)
        assert running.cancelled()

    at_work(do)


def test_a_stop_ends_all_loops_and_threads_while_the_database_refuses_connections(
    at_work: Callable[..., None], database: str, user: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def do(chat: Any) -> None:
        from chatServer.database import lending
        from chatServer.database.connection import get_database_manager
        from chatServer.services import job_service

        monkeypatch.setattr(lending, "WAIT", 0.3)
        monkeypatch.setattr(job_service, "GRACE", 0.2)
        chat.runner.register_handler("endless", endless)
        job_id = await chat.service.create("endless", {}, user)
        before = asyncio.all_tasks()
        chat.background.start_background_tasks()
        await seen(database, job_id, status="running")
        proxy.refuse()
        proxy.reset()
        stopping = asyncio.create_task(chat.background.stop_background_tasks())
        assert await ends(stopping)
        await get_database_manager().close()
        assert await ends(asyncio.create_task(chat.service.close()))
        assert {task for task in asyncio.all_tasks() - before if not task.done()} == set()

    at_work(do, proxy.url(database))
    [row] = sql(database, "select status from jobs")
    assert row == {"status": "running"}  # until its half hour is over


def test_a_claim_that_fails_after_the_stop_does_not_take_its_place(
    at_work: Callable[..., None], database: str, user: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def do(chat: Any) -> None:
        from chatServer.database import lending

        monkeypatch.setattr(lending, "WAIT", 0.3)
        proxy.refuse()
        proxy.reset()
        running = asyncio.create_task(chat.runner.run())
        async with asyncio.timeout(LIMIT):
            while not chat.pool.get_stats()["requests_waiting"]:
                await asyncio.sleep(0.01)
        running.cancel()
        assert await ends(running)
        assert running.cancelled()

    at_work(do, proxy.url(database))


def test_a_handler_that_swallows_the_stop_ends_its_job_and_the_runner(
    at_work: Callable[..., None], database: str, user: str
) -> None:
    async def stubborn(_: Row) -> Row:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return {"stopped": True}
        return {}

    async def do(chat: Any) -> None:
        chat.runner.register_handler("stubborn", stubborn)
        job_id = await chat.service.create("stubborn", {}, user)
        running = asyncio.create_task(chat.runner.run())
        await seen(database, job_id, status="running")
        running.cancel()
        assert await ends(running)
        assert (await seen(database, job_id, status="complete"))["output"] == {"stopped": True}

    at_work(do)


@pytest.mark.parametrize(
    ("call", "status", "retries"), [("complete", "complete", 0), ("fail", "pending", 1), ("mark_running", "pending", 0)]
)
def test_what_is_being_written_at_the_stop_is_written_before_the_runner_ends(
    at_work: Callable[..., None], database: str, user: str, call: str, status: str, retries: int
) -> None:
    async def handle(_: Row) -> None:
        if call == "fail":
            raise ValueError("no")

    async def do(chat: Any) -> None:
        begun, write = asyncio.Event(), getattr(chat.service, call)

        async def told(*args: object) -> None:
            begun.set()
            await write(*args)

        setattr(chat.service, call, told)
        chat.runner.register_handler("a", handle)
        job_id = await chat.service.create("a", {}, user)
        running = asyncio.create_task(chat.runner.run())
        await begun.wait()
        running.cancel()
        assert await ends(running)
        assert running.cancelled()
        [row] = sql(database, "select * from jobs where id = %s::uuid", job_id)
        assert (row["status"], row["retry_count"]) == (status, retries)

    at_work(do)


# ------------------------------------------------------------------------------------------------ the result


def test_an_output_that_cannot_be_stored_fails_its_job_at_once_with_the_reason(
    at_work: Callable[..., None], database: str, user: str
) -> None:
    outputs: list[object] = [
        {"x": object()}, {"x": "a\0b"}, {"x": float("nan")}, {"x": "\ud800"}, {"x": "x" * 2_000_000},
    ]  # fmt: skip

    async def handle(job: Row) -> Any:
        return outputs[job["input"]["number"]]

    async def do(chat: Any) -> None:
        chat.runner.register_handler("bad", handle)
        job_ids = [await chat.service.create("bad", {"number": number}, user) for number in range(len(outputs))]
        running = asyncio.create_task(chat.runner.run())
        for job_id in job_ids:
            row = await seen(database, job_id, status="pending", retry_count=1)
            assert row["error"].startswith("the output of the handler cannot be stored: result: ")
        assert chat.service._held == {}
        running.cancel()
        assert await ends(running)

    at_work(do)


def test_a_result_is_written_when_the_database_is_back_and_its_work_is_not_done_again(
    at_work: Callable[..., None],
    database: str,
    user: str,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("treadle.app.claimed.lock_waits", lambda: iter([0.0, 0.0]))
    calls = []

    async def do(chat: Any) -> None:
        from chatServer.database import lending

        async def handle(_: Row) -> Row:
            calls.append(1)
            monkeypatch.setattr(lending, "WAIT", 0.05)
            proxy.refuse()
            proxy.reset()
            return {"done": True}

        chat.runner.register_handler("a", handle)
        job_id = await chat.service.create("a", {}, user)
        running = asyncio.create_task(chat.runner.run())
        async with asyncio.timeout(LIMIT):
            while "has ended, which is not written yet" not in caplog.text:
                await asyncio.sleep(0.01)
        monkeypatch.setattr(lending, "WAIT", 5)
        proxy.refuse(False)
        assert (await seen(database, job_id, status="complete"))["output"] == {"done": True}
        running.cancel()
        assert await ends(running)

    at_work(do, proxy.url(database))
    assert calls == [1]


def test_a_job_that_was_lost_is_forgotten(at_work: Callable[..., None], database: str, user: str) -> None:
    async def do(chat: Any) -> None:
        from chatServer.services.job_service import JobNotHeld

        from treadle import LeaseLost

        for call in (chat.service.mark_running, lambda job_id: chat.service.complete(job_id, {})):
            job_id = await chat.service.create("a", {}, user, max_retries=0)
            await chat.service.claim_next()
            sql(database, AGE, job_id)
            await chat.service.expire_stale()
            with pytest.raises(LeaseLost):
                await call(job_id)
            with pytest.raises(JobNotHeld):
                await call(job_id)

    at_work(do)


# ------------------------------------------------------------------------------------------------- its loops


def test_a_handler_that_is_cancelled_by_itself_fails_its_job_and_the_runner_goes_on(
    at_work: Callable[..., None], database: str, user: str
) -> None:
    async def confused(_: Row) -> None:
        raise asyncio.CancelledError

    async def fine(_: Row) -> None: ...

    async def do(chat: Any) -> None:
        chat.runner.register_handler("confused", confused)
        chat.runner.register_handler("fine", fine)
        job_ids = [await chat.service.create(name, {}, user) for name in ("confused", "fine")]
        running = asyncio.create_task(chat.runner.run())
        await seen(database, job_ids[0], status="pending", retry_count=1, error="the handler was cancelled")
        await seen(database, job_ids[1], status="complete")
        assert not running.done()
        running.cancel()
        assert await ends(running)

    at_work(do)


def test_a_loop_that_ends_before_the_stop_is_logged_and_one_that_is_stopped_is_not(
    at_work: Callable[..., None], user: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def do(chat: Any) -> None:
        before = asyncio.all_tasks()
        chat.background.start_background_tasks()
        [runner] = [task for task in asyncio.all_tasks() - before if task.get_name() == "job_runner"]
        runner.cancel()
        assert await ends(runner)
        await chat.background.stop_background_tasks()

    at_work(do)
    assert [record.getMessage() for record in caplog.records] == ["job_runner has ended: its work is no longer done"]


# --------------------------------------------------------------------------------------- the pool's connections


def test_a_burst_of_calls_after_a_restart_of_a_server_with_a_name_is_served(
    at_work: Callable[..., None], database: str, user: str
) -> None:
    async def do(chat: Any) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))  # it also resolves names
        await asyncio.gather(*(chat.service.create("a", {}, user) for _ in range(10)))
        sql(
            database,
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()",
        )
        async with asyncio.timeout(LIMIT):
            await asyncio.gather(*(chat.service.create("a", {}, user) for _ in range(20)))

    at_work(do, database.replace("127.0.0.1", "localhost"))
    assert sql(database, "select count(*) as number from jobs") == [{"number": 30}]


def test_a_blocking_call_in_the_thread_of_the_loop_is_refused(at_work: Callable[..., None], user: str) -> None:
    async def do(chat: Any) -> None:
        with pytest.raises(RuntimeError, match=r"in the thread of the event loop .* call treadle in another thread"):
            chat.service._app.enqueue("a", {}, checked=False, tenant=user)

    at_work(do)


# ----------------------------------------------------------------------------------------------- the process


@pytest.mark.slow
def test_sigterm_ends_the_server_while_a_handler_runs_and_the_database_refuses_connections(
    database: str, user: str, proxy: Proxy, tmp_path: Path
) -> None:
    chat = Chat(proxy.url(database), tmp_path)
    try:
        chat.start()
        chat.llm.delay_next(60)
        sql(database, "insert into jobs (user_id, job_type, input) values (%s, 'agent_invocation', %s)", user, AGENT)
        chat.llm.wait_until(lambda: chat.llm.calls != [])
        proxy.refuse()
        proxy.reset()
        assert "chat: stopped" in chat.process.end(signal.SIGTERM)
    finally:
        chat.close()
