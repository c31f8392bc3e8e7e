"""The chat server (000) as it would run: its profile, its table `jobs`, a real worker on PostgreSQL."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.support import processes, provision
from tests.support.making import claim
from tests.support.workbench import until, watched, working
from treadle import Retry, Treadle
from treadle.importers import own_table_sql
from treadle.profiles import chat_server

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
    app = Treadle(store_url, profile=chat_server.PROFILE)
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
        connection.execute(own_table_sql(chat_server.PROFILE))
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


# ----------------------------------------------------------------------------------------- jobs made by its router

ROUTER = """INSERT INTO jobs (user_id, job_type, input)
       VALUES (%s, 'email_processing', %s)"""


@pytest.mark.covers("000-R14.a")
def test_the_routers_own_insert_is_a_job_that_the_runner_runs(server: Treadle, table: Connection, ada: str) -> None:
    seen: list[dict[str, object]] = []

    async def handle_email_processing(job: dict) -> dict:
        seen.append(job)
        return {"output_preview": "three mails"}

    server.register("email_processing", handle_email_processing)
    table.execute(ROUTER, [ada, json.dumps({"connection_id": "7"})])
    [made] = table.execute("select id, status, max_retries from jobs").fetchall()
    assert (made["status"], made["max_retries"]) == ("pending", 3)
    with working(server, **AS_SET):
        until(lambda: row(table, made["id"])["status"] == "complete", "its run")
    assert [(job["user_id"], job["job_type"], job["input"]) for job in seen] == [
        (ada, "email_processing", {"connection_id": "7"})
    ]
    assert row(table, made["id"])["output"] == {"output_preview": "three mails"}


@pytest.mark.covers("000-R14.b")
def test_the_routers_insert_belongs_to_its_transaction(
    server: Treadle, table: Connection, ada: str, store_url: str
) -> None:
    with psycopg.connect(store_url, options="-c search_path=public") as router:
        router.execute(ROUTER, [ada, "{}"])
        assert table.execute("select id from jobs").fetchall() == []
        router.rollback()
    assert table.execute("select id from jobs").fetchall() == []
    assert claim(server.engine) == []


# ------------------------------------------------------------------------------------------------ its runner's loop


class Unusual(BaseException):
    """Not even an Exception."""


@pytest.mark.covers("000-AC-17.a", "000-AC-17.b", "000-AC-27.d", "000-R08.c", "000-AC-15.c")
def test_whatever_a_handler_raises_fails_its_job_with_that_text_and_the_runner_goes_on(
    server: Treadle, table: Connection, ada: str
) -> None:
    errors = [RuntimeError("the mailbox is locked"), SystemExit("bye"), KeyError("connection_id"), Unusual("odd")]

    @server.task
    async def flaky(number: int) -> None:
        raise errors[number]

    jobs = [flaky.using(tenant=ada).enqueue(number) for number in range(len(errors))]
    last = flaky.using(tenant=ada, retry=Retry(max_attempts=1)).enqueue(0)
    with working(server, **AS_SET) as worker:
        until(lambda: row(table, last.id)["status"] == "failed", "the last failure")
        assert worker.thread.is_alive()
        after = server.enqueue("greet", {"name": "Ada"}, tenant=ada)
        until(lambda: row(table, after.id)["status"] == "complete", "a job after all that")
    rows = [row(table, job.id) for job in jobs]
    assert [found["error"] for found in rows] == [str(error) for error in errors]
    assert {(found["status"], found["retry_count"]) for found in rows} == {("pending", 1)}
    for found in rows:
        waits = found["scheduled_for"] - found["updated_at"]  # type: ignore[operator]
        assert timedelta(seconds=29) < waits <= timedelta(seconds=30)
    assert row(table, last.id)["error"] == "the mailbox is locked"


@pytest.mark.covers("000-AC-15.d", "000-AC-27.c", "000-R08.a", "000-R15.g")
def test_a_type_is_failed_as_unknown_only_if_no_live_runner_registers_it(
    server: Treadle, table: Connection, ada: str, store_url: str
) -> None:
    here, other = (Treadle(store_url, profile=chat_server.PROFILE, heartbeat=0.1, poll=0.1) for _ in range(2))
    here.register("greet", lambda: None)
    release = threading.Event()

    @other.task
    def known(number: int) -> int:
        assert release.wait(60)
        return number

    with working(other, **AS_SET, name="other"):
        until(lambda: [one for one in other.workers() if one.name == "other"], "the runner that knows it")
        theirs = [known.using(tenant=ada, priority=9).enqueue(number) for number in range(3)]
        nobodys = here.enqueue("send_emial", {}, checked=False, tenant=ada)
        with working(here, **AS_SET, name="here"):
            until(lambda: row(table, nobodys.id)["status"] == "failed", "the verdict on what nobody knows")
        release.set()
        until(lambda: {row(table, job.id)["status"] for job in theirs} == {"complete"}, "the jobs of the other")
    for app in (here, other):
        app.close()
    failed = row(table, nobodys.id)
    assert str(failed["error"]).startswith("No handler registered for job_type: send_emial")
    assert failed["retry_count"] == 0
    assert {server.get(job.id).worker for job in theirs} == {"other"}


@pytest.mark.covers("000-R07.c")
def test_an_error_of_the_loop_itself_is_logged_with_its_traceback_and_the_loop_goes_on_after_a_pause(
    server: Treadle, table: Connection, ada: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine, tried = watched(server), []
    turn = engine.turn

    def failing_turn(*arguments: object, **named: object) -> object:
        tried.append(time.monotonic())
        return turn(*arguments, **named)

    engine.turn = failing_turn  # type: ignore[method-assign]
    engine.failing += [ZeroDivisionError("a bug of ours"), ZeroDivisionError("and again")]
    job = server.enqueue("greet", tenant=ada)
    with working(server, **AS_SET):
        until(lambda: row(table, job.id)["status"] == "complete", "its run after two errors")
    told = [record for record in caplog.records if record.exc_info and record.exc_info[0] is ZeroDivisionError]
    assert [record.levelname for record in told] == ["ERROR", "ERROR"]
    assert "ZeroDivisionError: a bug of ours" in caplog.text
    assert "in failing_turn" in caplog.text  # with where it came from
    first, second, third = tried[:3]
    assert second - first > 0.2  # half a second, by chance up to half of it less
    assert third - second > 0.4  # twice as long


# ------------------------------------------------------------------------------------------------- what it leaves off

ALONE = """
import json, socket, sys

def nothing_listens(*_):
    raise AssertionError("nothing of this has to be started")

socket.socket.listen = nothing_listens
from treadle.profiles import chat_server
from treadle import Treadle
app = Treadle(sys.argv[1], profile=chat_server.PROFILE)

@app.task
def greet(name: str = "nobody") -> str:
    return f"hello {name}"

job = greet.using(tenant="ada").enqueue()
app.run_worker(until_idle=True)
started = [name for name in sys.modules if name.partition(".")[0] in ("typer", "rich", "uvicorn", "starlette", "http")]
ours = [name for name in sys.modules if name.startswith(("treadle.cli", "treadle.server", "treadle.integrations"))]
print(json.dumps([app.get(job.id).state, app.get(job.id).result, started, ours]))
"""


@pytest.mark.covers("000-R22.a", "000-R22.b")
def test_one_process_with_one_worker_is_all_that_has_to_be_started(server: Treadle, store_url: str) -> None:
    """No alerts, no dashboard and no cancel API: nothing listens, and nothing of such a surface is even loaded."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE, store_url], cwd=processes.ROOT, env=processes.environment(),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["succeeded", "hello nobody", [], []]
    assert server.audit(limit=1)[0].kind == "succeeded"
