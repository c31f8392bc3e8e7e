"""examples/chat_server: what a user cannot do with what is another user's, nor with the queue itself."""

from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.examples.chat_server import Row, as_role, importable, new_user, sql
from tests.support import provision

ENQUEUE = "select treadle.enqueue(task => 'a', payload => '{}'::jsonb, tenant => %s)"


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


@pytest.fixture
def ada(database: str) -> str:
    return new_user(database)


@pytest.fixture
def bob(database: str) -> str:
    return new_user(database)


def a_connection(database: str, user: str) -> str:
    statement = (
        "insert into external_api_connections (user_id, provider, address, refresh_token)"
        " values (%s, 'gmail', 'ada@example.org', 't') returning id::text"
    )
    return str(sql(database, statement, user)[0]["id"])


def a_reminder(database: str, user: str, follows: str | None = None) -> str:
    statement = (
        "insert into reminders (user_id, title, remind_at, follows) values (%s, 'x', now(), %s) returning id::text"
    )
    return str(sql(database, statement, user, follows)[0]["id"])


# ---------------------------------------------------------------------------------- what is known of a user


def test_nobody_can_be_the_first_to_write_the_profile_of_anothers_mailbox(database: str, ada: str, bob: str) -> None:
    connection = a_connection(database, ada)
    profile = "insert into email_profiles (connection_id, user_id, summary, mails) values (%s, %s, '', 0)"
    for user in (ada, bob):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            as_role(database, "authenticated", user, profile, connection, user)
    with pytest.raises(psycopg.errors.ForeignKeyViolation):  # not even by a mistake of the server's own
        sql(database, profile, connection, bob)
    sql(database, profile, connection, ada)
    look = "select user_id::text from email_profiles"
    assert as_role(database, "authenticated", ada, look) == [{"user_id": ada}]
    assert as_role(database, "authenticated", bob, look) == []


def test_a_reminder_follows_one_of_its_own_user(database: str, ada: str, bob: str) -> None:
    first = a_reminder(database, ada)
    taken = "insert into reminders (user_id, title, remind_at, follows) values (%s, 'x', now(), %s)"
    with pytest.raises(psycopg.errors.ForeignKeyViolation):  # or the one that follows would never be made
        as_role(database, "authenticated", bob, taken, bob, first)
    second = a_reminder(database, ada, first)
    sql(database, "delete from reminders where id = %s", first)
    assert sql(database, "select user_id::text, follows from reminders where id = %s", second) == [
        {"user_id": ada, "follows": None}
    ]


# --------------------------------------------------------------------------------------------- the queue itself


@pytest.fixture
def job(database: str, ada: str) -> Row:
    return sql(database, "insert into jobs (user_id, job_type) values (%s, 'a') returning *", ada)[0]


@pytest.mark.parametrize(
    ("statement", "with_user"),
    [
        ("insert into jobs (user_id, job_type) values (%s, 'a')", True),
        (ENQUEUE, True),
        ("insert into treadle.jobs (task, payload, tenant) values ('a', '{}', %s)", True),
        ("update treadle.jobs set priority = 100", False),
        ("delete from treadle.jobs", False),
        ("delete from treadle.finished", False),
        ("insert into treadle.schedules default values", False),
        ("select * from treadle.memos", False),
    ],
)
def test_a_user_writes_no_jobs_although_they_are_the_users_own(
    database: str, ada: str, job: Row, statement: str, with_user: bool
) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        as_role(database, "authenticated", ada, statement, *([ada] if with_user else []))


def test_a_user_who_names_another_as_the_tenant_sees_no_more(database: str, ada: str, bob: str, job: Row) -> None:
    look = "select count(*) as number from jobs, set_config('treadle.tenant', %s, true) as tenant where tenant <> ''"
    assert as_role(database, "authenticated", bob, look, ada) == [{"number": 0}]
    assert as_role(database, "authenticated", ada, look, ada) == [{"number": 1}]


def test_the_rights_that_an_older_server_gave_to_users_are_taken_back(
    database: str, ada: str, job: Row, migrate: Callable[[str], None]
) -> None:
    sql(database, "grant insert, update, delete on all tables in schema treadle to authenticated")
    migrate(database)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        as_role(database, "authenticated", ada, ENQUEUE, ada)
    assert as_role(database, "authenticated", ada, "select id from jobs where user_id = %s", ada) == [{"id": job["id"]}]
    assert as_role(database, "service_role", ada, "select id from jobs where id = %s", job["id"]) != []


def test_the_app_role_of_the_queue_cannot_log_in_and_no_user_is_a_member_of_it(database: str) -> None:
    facts = "select rolcanlogin, rolsuper from pg_roles where rolname = 'treadle_app'"
    assert sql(database, facts) == [{"rolcanlogin": False, "rolsuper": False}]
    members = (
        "select 1 from pg_auth_members where roleid = 'treadle_app'::regrole and member = 'authenticated'::regrole"
    )
    assert sql(database, members) == []
