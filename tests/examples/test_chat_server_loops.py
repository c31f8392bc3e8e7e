"""examples/chat_server: its four loops and the runner, in one event loop of this process."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from tests.examples.chat_server import FOLDER, SECRET, Row, importable, in_loop, new_user, settings_for, sql
from tests.support import provision
from treadle.profiles import chat_server
from treadle.testing import fakes

LOOPS = {
    "deactivate_stale_chat_session_instances", "evict_inactive_executors", "run_scheduled_agents",
    "check_due_reminders",
}  # fmt: skip
NOON = datetime(2026, 7, 6, 12, 0, tzinfo=UTC)  # a Monday


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
def at_work(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """`at_work(do)` runs an async function of the parts of the server, on a pool and settings of this test."""
    with fakes.gmail() as gmail, fakes.llm() as llm, fakes.webhook() as receiver:
        for name, value in settings_for(database, gmail, llm, receiver).items():
            monkeypatch.setenv(name, value)

        def run(do: Callable[[Any], Awaitable[None]]) -> None:
            asyncio.run(in_loop(database, do, llm=llm, receiver=receiver))

        yield run


def jobs(database: str) -> list[Row]:
    return sql(database, "select * from jobs order by created_at")


def a_schedule(database: str, user: str, cron: str, *, active: bool = True, **more: object) -> str:
    given = {"user_id": user, "agent_name": "briefing", "schedule_cron": cron, "active": active, **more}
    names, marks = ", ".join(given), ", ".join(["%s"] * len(given))
    statement = f"insert into agent_schedules ({names}) values ({marks}) returning id::text"
    return str(sql(database, statement, *given.values())[0]["id"])


# --------------------------------------------------------------------------------------------------- agents


@pytest.mark.covers("000-AC-21.a", "000-R12.a")
def test_each_schedule_that_is_due_makes_one_job_and_nothing_is_executed(
    at_work: Callable[..., None], database: str, user: str
) -> None:
    bare = a_schedule(database, user, "* * * * *")
    full = a_schedule(database, user, "*/1 * * * *", prompt="What is new?", config='{"system": "Be brief."}')
    a_schedule(database, user, "* * * * *", active=False)
    a_schedule(database, user, "0 0 30 2 *")  # never
    for bad in ("every minute", "61 * * * *", "* * * *"):
        a_schedule(database, user, bad)

    async def do(chat: Any) -> None:
        now = datetime.now(UTC)
        await chat.background.run_scheduled_agents()
        await chat.background.run_scheduled_agents()
        again = 2 if datetime.now(UTC).minute != now.minute else 1  # a minute may have begun
        made = {job["input"]["id"]: job["input"] for job in jobs(database)}
        assert made == {
            bare: {
                "id": bare, "schedule_id": bare, "user_id": user, "agent_name": "briefing", "prompt": "", "config": {},
            },
            full: {
                "id": full, "schedule_id": full, "user_id": user, "agent_name": "briefing", "prompt": "What is new?",
                "config": {"system": "Be brief."},
            },
        }  # fmt: skip
        assert len(jobs(database)) in (2, 2 * again)
        assert {(job["job_type"], job["status"], str(job["user_id"])) for job in jobs(database)} == {
            ("agent_invocation", "pending", user)
        }
        assert chat.llm.calls == []

    at_work(do)


@pytest.mark.covers("000-AC-21.b")
def test_the_service_itself_still_decides_what_is_due(at_work: Callable[..., None], database: str, user: str) -> None:
    schedule = a_schedule(database, user, "0 12 * * 1")

    async def do(chat: Any) -> None:
        background = chat.background
        await background._reload_agent_schedules()
        [one] = background._schedules
        assert str(one["id"]) == schedule
        times = (NOON, NOON + timedelta(seconds=59), NOON + timedelta(minutes=1), NOON + timedelta(days=1))
        assert [background._should_run_now(one, at) for at in times] == [True, True, False, False]
        background._last_run[schedule] = NOON
        again = (NOON + timedelta(seconds=30), NOON + timedelta(days=7))
        assert [background._should_run_now(one, at) for at in again] == [False, True]
        sql(database, "delete from agent_schedules")
        await background._reload_agent_schedules()
        assert background._schedules == []

    at_work(do)


# ------------------------------------------------------------------------------------------------ reminders


@pytest.mark.covers("000-AC-22.a", "000-R12.b")
def test_each_due_reminder_makes_one_job_however_often_the_loop_looks_and_nothing_is_delivered(
    at_work: Callable[..., None], database: str, user: str
) -> None:
    due = "insert into reminders (user_id, title, remind_at, status) values (%s, 'x', now() + %s::interval, %s)"
    for when, status in (("-1 minute", "pending"), ("-1 day", "pending"), ("1 minute", "pending"), ("-1 day", "sent")):
        sql(database, due, user, when, status)

    async def do(chat: Any) -> None:
        for _ in range(3):
            await chat.background.check_due_reminders()
        wanted = sql(database, "select id::text from reminders where remind_at < now() and status = 'pending'")
        made = jobs(database)
        assert {(job["job_type"], job["status"]) for job in made} == {("reminder_delivery", "pending")}
        inputs = [job["input"] for job in sorted(made, key=lambda job: job["input"]["reminder_id"])]
        assert inputs == [{"reminder_id": one, "user_id": user} for one in sorted(row["id"] for row in wanted)]
        assert (len(inputs), chat.receiver.received) == (2, [])
        assert sql(database, "select 1 from notifications") == []

    at_work(do)


# ------------------------------------------------------------------------------------------------- neighbours


@pytest.fixture
def refused(database: str, user: str) -> Iterator[str]:
    """Another user, for whom no job can be made."""
    other = new_user(database)
    known = "create or replace function public.jobs_known_user(user_id uuid) returns void language plpgsql as $$ begin"
    sql(database, f"{known} if user_id = '{other}' then raise exception 'not this one'; end if; end $$")
    yield other
    sql(database, (FOLDER / "supabase" / "migrations" / "20260225000001_create_jobs_table.sql").read_text("utf-8"))


def test_a_row_that_makes_no_job_is_logged_and_tried_again_and_those_of_others_make_theirs(
    at_work: Callable[..., None], database: str, user: str, refused: str, caplog: pytest.LogCaptureFixture
) -> None:
    due = "insert into reminders (user_id, title, remind_at) values (%s, 'x', now() - %s::interval) returning id::text"
    [bad] = sql(database, due, refused, "1 day")
    sql(database, due, user, "1 minute")
    bad_schedule = a_schedule(database, refused, "* * * * *", id=uuid.UUID(int=0))
    too_large = a_schedule(database, refused, "* * * * *", id=uuid.UUID(int=1), prompt="x" * 1_100_000)
    good_schedule = a_schedule(database, user, "* * * * *")

    async def do(chat: Any) -> None:
        await chat.background.run_scheduled_agents()
        await chat.background.check_due_reminders()
        assert {(job["job_type"], str(job["user_id"])) for job in jobs(database)} == {
            ("agent_invocation", user), ("reminder_delivery", user),
        }  # fmt: skip
        assert set(chat.background._last_run) == {good_schedule}

    at_work(do)
    for row in (f"agent_schedules {bad_schedule}", f"agent_schedules {too_large}", f"reminders {bad['id']}"):
        assert f"{row}: no job was made: " in caplog.text


def test_an_outage_ends_the_turn_and_what_was_due_is_tried_again(
    at_work: Callable[..., None], database: str, user: str
) -> None:
    schedules = [a_schedule(database, user, "* * * * *") for _ in range(2)]

    async def do(chat: Any) -> None:
        create, calls = chat.service.create, []

        async def away(**job: object) -> str:
            calls.append(job)
            await sql_in(chat.pool, "select pg_terminate_backend(pg_backend_pid())")
            return str(await create(**job))

        chat.service.create = away
        with pytest.raises(psycopg.OperationalError):
            await chat.background.run_scheduled_agents()
        assert (len(calls), chat.background._last_run) == (1, {})
        chat.service.create = create
        await chat.background.run_scheduled_agents()
        assert set(chat.background._last_run) == set(schedules)

    at_work(do)


async def sql_in(pool: Any, statement: str) -> None:
    async with pool.connection() as connection:
        await connection.execute(statement)


# ---------------------------------------------------------------------------------------- start, stop, tidy up


def test_the_runner_looks_as_often_as_the_profile_says(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from chatServer.config import ChatSettings

    monkeypatch.setenv("DATABASE_URL", database)
    monkeypatch.setenv("SUPABASE_JWT_SECRET", SECRET)
    settings, profile = ChatSettings(), chat_server.PROFILE.settings
    assert settings.runner_poll_seconds == profile["poll"]
    assert (settings.expiry_seconds, profile["sweep"]) == (300, "5m")
    assert SECRET not in repr(settings)
    assert database not in repr(settings)


@pytest.mark.covers("000-AC-24.a", "000-AC-24.b", "000-R13.a", "000-AC-23.a")
def test_four_loops_and_one_runner_start_and_none_is_left_after_the_stop(
    at_work: Callable[..., None], database: str, user: str
) -> None:
    async def do(chat: Any) -> None:
        before = asyncio.all_tasks()
        chat.background.start_background_tasks()
        tasks = {task.get_name(): task for task in asyncio.all_tasks() - before}
        assert set(tasks) == LOOPS | {"job_runner"}
        assert tasks["job_runner"].get_coro().__qualname__ == "JobRunnerService.run"
        assert not hasattr(chat.background, "check_email_processing_jobs")
        job_id = await chat.service.create("nobody_knows_this", {}, user)
        async with asyncio.timeout(20):
            while sql(database, "select status from jobs where id::text = %s", job_id) != [{"status": "failed"}]:
                await asyncio.wait(tasks.values(), timeout=0.02)
        assert not any(task.done() for task in tasks.values())
        await chat.background.stop_background_tasks()
        assert all(task.cancelled() for task in tasks.values())
        assert asyncio.all_tasks() == before

    at_work(do)


@pytest.mark.covers("000-AC-23.a")
def test_no_module_of_the_application_knows_the_old_table() -> None:
    package = (FOLDER / "chatServer").rglob("*.py")
    words = ("check_email_processing_jobs", "email_processing_jobs", "email_processing_task")
    assert [path.name for path in package if any(word in path.read_text("utf-8") for word in words)] == []


def test_a_turn_that_fails_is_logged_and_the_next_one_comes(
    at_work: Callable[..., None], user: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def do(chat: Any) -> None:
        from chatServer.services.background_tasks import _repeat

        turns = []

        async def turn() -> None:
            turns.append(1)
            if len(turns) == 1:
                raise OSError("the database went away")
            if len(turns) == 2:
                raise asyncio.CancelledError  # of its own: nobody wants the loop to end
            looping.cancel()

        looping = asyncio.create_task(_repeat(turn, 0.001))
        async with asyncio.timeout(20):
            await asyncio.wait([looping])
        assert (looping.cancelled(), len(turns)) == (True, 3)

    at_work(do)
    assert "the database went away" in caplog.text


def test_sessions_and_executors_that_nobody_uses_are_put_away(
    at_work: Callable[..., None], database: str, user: str
) -> None:
    for age in ("29 minutes", "31 minutes"):
        sql(
            database,
            "insert into chat_session_instances (user_id, updated_at) values (%s, now() - %s::interval)", user, age,
        )  # fmt: skip

    async def do(chat: Any) -> None:
        await chat.background.deactivate_stale_chat_session_instances()
        executors = chat.background.executors
        executors.keep("ada", object())
        await chat.background.evict_inactive_executors()
        assert executors.get("ada") is not None
        executors.evict(idle_seconds=-1)
        assert (len(executors), executors.get("ada")) == (0, None)

    at_work(do)
    rows = sql(database, "select active from chat_session_instances order by updated_at")
    assert [row["active"] for row in rows] == [False, True]
