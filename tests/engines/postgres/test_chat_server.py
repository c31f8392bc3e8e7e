"""The chat server (000) as it would run: its profile, its table `jobs`, a real worker on PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.support import provision
from tests.support.making import claim
from tests.support.seed_profiles import CHAT_SERVER
from tests.support.workbench import until, working
from treadle import Treadle

SCRIPT = Path(__file__).resolve().parents[3] / "docs" / "own-table.sql"
STALE = "Job timed out (stale claim)"
AS_SET = {"lease": None, "poll": None, "concurrency": None}  # by the profile, not by the workbench
INSERT = "insert into jobs (user_id, job_type, max_retries) values (%s, 'greet', %s) returning id::text"

Connection = psycopg.Connection[dict[str, object]]


@pytest.fixture
def store_url() -> Iterator[str]:
    """A database of its own, so that the schemas have the names that the application knows."""
    url = provision.fresh_database(provision.shared_postgres())
    yield url
    provision.drop_database(url)


@pytest.fixture
def server(store_url: str) -> Iterator[Treadle]:
    app = Treadle(store_url, profile=CHAT_SERVER)
    app.register("greet", lambda name="nobody": f"hello {name}")
    app.migrate()
    yield app
    app.close()


@pytest.fixture
def table(server: Treadle, store_url: str) -> Iterator[Connection]:
    """The application's own connection, where it has its table `jobs`."""
    with psycopg.connect(store_url, autocommit=True, row_factory=dict_row) as connection:
        connection.execute("set search_path = public")  # our user is called treadle, as our schema is
        connection.execute("create schema auth")
        connection.execute("create table auth.users (id uuid primary key)")
        connection.execute(SCRIPT.read_text("utf-8"))
        yield connection


@pytest.fixture
def ada(table: Connection) -> str:
    return str(table.execute("insert into auth.users values (%s) returning id::text", [uuid4()]).fetchall()[0]["id"])


def row(table: Connection, id: object) -> dict[str, object]:
    [found] = table.execute("select * from jobs where id = %s", [id]).fetchall()
    return found


def claimed(server: Treadle, table: Connection, ada: str, max_retries: int, minutes: int) -> object:
    """A job that a runner claimed so many minutes ago, for half an hour, and was never heard of again."""
    [made] = table.execute(INSERT, [ada, max_retries]).fetchall()
    [job] = claim(server.engine, 1, lease=1800.0)
    assert job.id == made["id"]
    table.execute(
        "update treadle.jobs set claimed_at = claimed_at - make_interval(mins => %s), "
        "lease_until = lease_until - make_interval(mins => %s) where id = %s",
        [minutes, minutes, job.id],
    )
    return job.id


@pytest.mark.covers("000-AC-16.a", "000-AC-03.b", "000-AC-13.a", "000-AC-32.a", "000-R18.a", "000-R18.b")
def test_the_runner_itself_fails_a_stale_claim_with_the_documents_text_and_retries_what_may_be_retried(
    server: Treadle, table: Connection, ada: str
) -> None:
    spent = claimed(server, table, ada, max_retries=0, minutes=31)
    left = claimed(server, table, ada, max_retries=3, minutes=31)
    young = claimed(server, table, ada, max_retries=0, minutes=29)
    assert {row(table, id)["status"] for id in (spent, left, young)} == {"claimed"}
    with working(server, **AS_SET):
        until(lambda: row(table, spent)["status"] == "failed", "the sweep")
        until(lambda: row(table, left)["status"] == "complete", "its retry")
        failed, retried, waits = (row(table, id) for id in (spent, left, young))
    assert (failed["error"], failed["completed_at"], failed["output"]) == (STALE, failed["updated_at"], None)
    assert (retried["retry_count"], retried["output"], retried["error"]) == (1, "hello nobody", None)
    assert (waits["status"], waits["error"], waits["retry_count"]) == ("claimed", None, 0)
    swept = table.execute("select note from treadle.events where job = %s and kind = 'crashed'", [left]).fetchall()
    assert [event["note"] for event in swept] == [STALE]
