"""examples/chat_server: what its migrations make of the tables before them, and who sees which rows afterwards."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.examples.chat_server import FOLDER, OLD_TABLES, Row, as_role, importable, new_user, sql
from tests.support import provision
from treadle.importers import own_table_sql
from treadle.profiles import chat_server

MIGRATIONS = FOLDER / "supabase" / "migrations"
MINUTE = timedelta(minutes=1)
OLD = ("email_processing_jobs", "email_digest_batches")


@pytest.fixture(scope="module")
def migrate() -> Iterator[Callable[[str], None]]:
    with importable():
        from chatServer.database.migrate import migrate

        yield migrate


@pytest.fixture(scope="module")
def database(migrate: Callable[[str], None]) -> Iterator[str]:
    url = provision.fresh_database(provision.shared_postgres())
    migrate(url)
    yield url
    provision.drop_database(url)


def old_mail(number: int, user: str, now: datetime) -> Row:
    """A row of the old table: its status goes round, and so does what it has."""
    status = ("pending", "processing", "complete", "failed")[number % 4]
    made = now - timedelta(minutes=5 + number)
    over = status in ("complete", "failed")
    return {
        "id": uuid4(),
        "user_id": user,
        "connection_id": uuid4(),
        "status": status,
        "result_summary": (None, Jsonb({"mails": number}), Jsonb({"connection_id": "its own"}))[number % 3],
        "error_message": f"no mailbox {number}; it's gone" if status == "failed" else None,
        "created_at": made,
        "started_at": made + MINUTE if status != "pending" else None,
        "completed_at": made + 2 * MINUTE if over else None,
        "updated_at": made + (2 * MINUTE if over else MINUTE + timedelta(seconds=number)),
    }


@pytest.mark.covers("000-AC-05.a", "000-AC-05.b", "000-R04.a", "000-R04.b", "000-R04.c", "000-R04.d")
def test_every_row_of_the_old_table_becomes_a_job_with_its_past(migrate: Callable[[str], None], database: str) -> None:
    sql(database, OLD_TABLES)
    users, now = [new_user(database) for _ in range(3)], datetime.now(UTC)
    old = [old_mail(number, users[number % 3], now) for number in range(60)]
    with psycopg.connect(database) as connection, connection.cursor() as cursor:
        marks = ", ".join(["%s"] * len(old[0]))
        statement = f"insert into public.email_processing_jobs ({', '.join(old[0])}) values ({marks})"
        cursor.executemany(statement, [list(row.values()) for row in old])
    migrate(database)
    of_users = "select * from jobs where user_id = any (%s::uuid[])"
    jobs = {row["id"]: row for row in sql(database, of_users, users)}
    assert len(jobs) == len(old)
    for row in old:
        job, summary = jobs[row["id"]], row["result_summary"]
        assert job["input"] == {"connection_id": str(row["connection_id"])} | (summary.obj if summary else {})
        assert job["status"] == {"processing": "running"}.get(row["status"], row["status"])
        assert (job["job_type"], str(job["user_id"])) == ("email_processing", row["user_id"])
        assert job["error"] == row["error_message"]
        for name in ("created_at", "started_at", "completed_at", "updated_at"):
            assert job[name] == row[name], name
    migrate(database)
    assert {
        row["id"]: row for row in sql(database, "select * from jobs where user_id = any (%s::uuid[])", users)
    } == jobs


@pytest.mark.covers("000-R04.e", "000-AC-04.a", "000-AC-05.c")
@pytest.mark.parametrize("there", [OLD, OLD[:1], OLD[1:], ()], ids=["both", "mails", "batches", "none"])
def test_the_migration_succeeds_whichever_old_tables_there_are(database: str, there: tuple[str, ...]) -> None:
    for statement, name in zip(OLD_TABLES.split(";\n"), OLD, strict=True):
        if name in there:
            sql(database, statement)
    before = sql(database, "select count(*) as number from jobs")
    for _ in range(2):
        sql(database, (MIGRATIONS / "20260225000002_migrate_email_jobs.sql").read_text("utf-8"))
        assert sql(database, "select relname from pg_class where relname = any (%s)", list(OLD)) == []
    assert sql(database, "select count(*) as number from jobs") == before


def test_a_row_that_does_not_fit_leaves_both_tables_as_they_were(migrate: Callable[[str], None], database: str) -> None:
    sql(database, OLD_TABLES)
    sql(database, "insert into email_processing_jobs (user_id, connection_id) values (%s, %s)", uuid4(), uuid4())
    with pytest.raises(psycopg.errors.ForeignKeyViolation, match="user_id: there is no user"):
        migrate(database)
    assert sql(database, "select count(*) as number from email_processing_jobs") == [{"number": 1}]
    sql(database, "delete from email_processing_jobs")
    migrate(database)


def test_the_table_jobs_is_what_treadle_prints_for_this_profile() -> None:
    text = (MIGRATIONS / "20260225000001_create_jobs_table.sql").read_text("utf-8")
    assert own_table_sql(chat_server.PROFILE) in text, (
        "print it anew with `treadle own-table --sql --profile chat_server`; what the application adds is at the end"
    )


# ------------------------------------------------------------------------------------------- who sees what


@pytest.fixture
def neighbours(database: str) -> tuple[str, str]:
    users = new_user(database), new_user(database)
    for user in users:
        sql(database, "insert into jobs (user_id, job_type) values (%s, 'a')", user)
        sql(database, "insert into reminders (user_id, title, remind_at) values (%s, 'a', now())", user)
    return users


@pytest.mark.parametrize("table", ["jobs", "reminders"])
def test_a_user_sees_the_users_own_rows_and_the_service_sees_all(
    database: str, neighbours: tuple[str, str], table: str
) -> None:
    ada, bob = neighbours
    look = f"select user_id::text from {table} where user_id = any ('{{{ada},{bob}}}') order by created_at"
    for user in neighbours:
        assert as_role(database, "authenticated", user, look) == [{"user_id": user}]
    assert as_role(database, "service_role", ada, look) == [{"user_id": ada}, {"user_id": bob}]


@pytest.mark.covers("000-AC-06.a")
def test_jobs_is_a_user_scoped_table_whose_layer_returns_the_users_own_jobs_alone(
    database: str, neighbours: tuple[str, str], migrate: Callable[[str], None]
) -> None:
    from chatServer.database import user_scoped_tables as scoped

    ada, bob = neighbours

    async def look(pool: Any) -> list[Row]:
        own = [row for user in neighbours for row in await scoped.own_rows(pool, "jobs", user)]
        with pytest.raises(scoped.NotUserScoped, match=r"users.*the tables that have are .*jobs"):
            await scoped.own_rows(pool, "users", ada)
        async with pool.connection() as connection:  # nothing of a user's role is left in the pool
            assert await (await connection.execute("select current_user = session_user")).fetchone() == (True,)
        return own

    async def look_without_policies(pool: Any) -> list[Row]:
        return await scoped.own_rows(pool, "reminders", ada)

    assert "jobs" in scoped.USER_SCOPED_TABLES
    sql(database, "alter table reminders disable row level security")
    try:
        assert [str(row["user_id"]) for row in with_pool(database, look_without_policies)] == [ada]
    finally:
        sql(database, "alter table reminders enable row level security")
    assert [str(row["user_id"]) for row in with_pool(database, look)] == [ada, bob]


def with_pool(database: str, work: Callable[[Any], Coroutine[Any, Any, list[Row]]]) -> list[Row]:
    from chatServer.database.connection import get_database_manager

    async def run() -> list[Row]:
        pool = await get_database_manager().open(database)
        try:
            return await work(pool)
        finally:
            await get_database_manager().close()

    return asyncio.run(run())
