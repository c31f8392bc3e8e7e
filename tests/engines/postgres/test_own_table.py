"""`treadle own-table` with the profile chat_server: its table `jobs` as a view, with all that belonged to it."""

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import errors
from psycopg.rows import dict_row

from tests.support import provision
from tests.support.making import OUTCOMES, claim, claimed, current, every_outcome, settle, start, traces
from tests.support.provision import Cluster
from tests.support.stores import SECOND, missing
from tests.support.workbench import ended, in_state, until, working
from treadle import GiveUp, Job, Reason, Retry, State, Treadle, Unique
from treadle.engines.values import Lease, Renewal, Ruling
from treadle.importers import own_table_sql
from treadle.model import JobError
from treadle.model.lifecycle import Failed, FailedForGood, Snoozed, Succeeded
from treadle.profiles import chat_server
from treadle.testing import FakeClock

Row = dict[str, object]
Sql = Callable[..., list[tuple[object, ...]]]

DOCS = Path(__file__).resolve().parents[3] / "docs"
SERVICE, WEB, BOSS = "service_role", "web", "boss"
OWN_TABLE = (sys.executable, "-m", "treadle", "own-table", "--sql")
STALE = "Job timed out (stale claim)"
STATUSES = ("pending", "claimed", "running", "complete", "failed")
COLUMNS = {
    "id": "uuid", "user_id": "uuid", "job_type": "text", "status": "text", "input": "jsonb", "output": "jsonb",
    "error": "text", "priority": "integer", "retry_count": "integer", "max_retries": "integer",
    "scheduled_for": "timestamp with time zone", "expires_at": "timestamp with time zone",
    "claimed_at": "timestamp with time zone", "started_at": "timestamp with time zone",
    "completed_at": "timestamp with time zone", "created_at": "timestamp with time zone",
    "updated_at": "timestamp with time zone",
}  # fmt: skip
NEVER_NULL = (
    "id", "user_id", "job_type", "status", "input", "priority", "retry_count", "max_retries", "scheduled_for",
    "created_at", "updated_at",
)  # fmt: skip
OWNER = """
create function public.is_record_owner(record_user_id uuid) returns boolean language sql stable
return record_user_id::text = current_setting('chat.user', true)
"""


@pytest.fixture(scope="module", params=["postgres", *(kind for kind in SECOND if kind not in missing())])
def engine_kind(request: pytest.FixtureRequest) -> str:
    """Both servers, where both are to be had."""
    return request.param


@pytest.fixture(scope="module")
def cluster(engine_kind: str) -> Iterator[Cluster]:
    with Cluster(engine_kind.removeprefix("postgres") or provision.DEFAULT) as cluster:
        with psycopg.connect(cluster.url, autocommit=True) as connection:
            for role in (SERVICE, WEB, BOSS):
                connection.execute(f"create role {role} login")
        yield cluster


@pytest.fixture(scope="module")
def database(cluster: Cluster) -> str:
    url = provision.fresh_database(cluster.url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"alter database {connection.info.dbname} set search_path = public")  # we are called treadle
    return url


@pytest.fixture
def store_url(database: str) -> Iterator[str]:
    """The database as the application has it before: its users, and no treadle yet."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("create schema auth")
        connection.execute("create table auth.users (id uuid primary key)")
        connection.execute(OWNER)
    yield database
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("drop schema if exists auth, treadle, public cascade")
        connection.execute("create schema public authorization pg_database_owner")
        connection.execute("grant usage on schema public to public")


def as_role(url: str, role: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{role}@{parts.hostname}:{parts.port}"))


def run_script(url: str) -> list[str]:
    """Run it as any driver would; its notices."""
    said: list[str] = []
    with psycopg.connect(url, autocommit=True) as connection:
        connection.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
        connection.execute(own_table_sql(chat_server.PROFILE))
    return said


def block_of_the_page(words: str) -> str:
    """The block of SQL in docs/own-table.md that says so."""
    page = (DOCS / "own-table.md").read_text("utf-8")
    [block] = [block for block in re.findall(r"```sql\n(.*?)```", page, re.DOTALL) if words in block]
    return str(block)


@pytest.fixture
def app(store_url: str) -> Iterator[Treadle]:
    """The application's treadle, migrated, with the script run."""
    app = _with_tasks(Treadle(store_url, poll=0.05))
    app.migrate()
    run_script(store_url)
    yield app
    app.close()


def _with_tasks(app: Treadle) -> Treadle:
    app.register("greet", lambda name="nobody": f"hello {name}")
    return app


@pytest.fixture
def sql(store_url: str) -> Iterator[Sql]:
    """`sql(statement, *values)`: run it and commit; its rows."""
    with psycopg.connect(store_url, autocommit=True) as connection:

        def run(statement: str, *values: object) -> list[tuple[object, ...]]:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

        yield run


@pytest.fixture
def ada(store_url: str, sql: Sql) -> str:
    return a_user(sql)


def a_user(sql: Sql) -> str:
    [(user,)] = sql("insert into auth.users values (%s) returning id::text", uuid4())
    return str(user)


def inserted(sql: Sql, user: str, job_type: str = "greet") -> str:
    [(id,)] = sql("insert into jobs (user_id, job_type) values (%s, %s) returning id::text", user, job_type)
    return str(id)


def row_of(url: str, job: Job | str) -> Row:
    """The job as the view shows it."""
    id = job if isinstance(job, str) else job.id
    with psycopg.connect(url, row_factory=dict_row) as connection:
        [row] = connection.execute("select * from jobs where id = %s", [id]).fetchall()
    return row


def held(app: Treadle, user: str, *, begun: bool = False, **using: object) -> Job:
    """A job of this user that some worker has claimed, and maybe begun."""
    job = app.tasks["greet"].using(tenant=user, priority=9, **using).enqueue()
    [got] = claim(app.engine, 1)
    assert got.id == job.id
    return start(app.engine, got) if begun else got


def long_ago(sql: Sql, job: Job, minutes: int = 31) -> None:
    """As if it had been claimed so long ago."""
    sql(
        "update treadle.jobs set claimed_at = claimed_at - make_interval(mins => %s), "
        "started_at = started_at - make_interval(mins => %s), created_at = created_at - make_interval(mins => %s) "
        "where id = %s", minutes, minutes, minutes, job.id,
    )  # fmt: skip


def expire(sql: Sql) -> int:
    [(count,)] = sql("select expire_stale_jobs()")
    return count  # type: ignore[return-value]


# ------------------------------------------------------------------------------------------------- the script


def test_psql_runs_it_twice_and_the_schema_is_still_as_expected(
    app: Treadle, store_url: str, cluster: Cluster, sql: Sql, ada: str
) -> None:
    job = inserted(sql, ada)
    psql = provision.binaries()[cluster.label] / "psql"
    script = subprocess.run([*OWN_TABLE, "--profile", "chat_server"], capture_output=True, text=True, check=True).stdout
    for _ in range(2):
        command = [psql, "-X", "-v", "ON_ERROR_STOP=1", store_url]
        done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
        assert (done.returncode, "ERROR" in done.stderr) == (0, False), done.stderr
    assert row_of(store_url, job)["status"] == "pending"
    assert app.check_schema() == []
    assert [line for line in app.doctor(workers=False) if line.level == "error"] == []


def test_without_treadle_or_beside_the_old_table_it_says_what_to_do_first(store_url: str, sql: Sql, ada: str) -> None:
    with pytest.raises(errors.RaiseException, match="no treadle here") as refused:
        run_script(store_url)
    assert "treadle migrate" in str(refused.value.diag.message_hint)
    app = Treadle(store_url)
    app.migrate()
    columns = {name: f"{name} {kind}" for name, kind in COLUMNS.items()}
    columns |= {name: f"{columns[name]} not null default now()" for name in ("created_at", "updated_at")}
    columns["retry_count"] += " not null default 0"
    sql(f"create table jobs ({', '.join(columns.values())})")
    for status in ("pending", "complete"):
        sql(
            "insert into jobs (id, user_id, job_type, status, input, priority, max_retries, scheduled_for) values "
            """(gen_random_uuid(), %s, 'greet', %s, '{"name": "Ada"}', 5, 2, now() + interval '1 hour')""", ada, status,
        )  # fmt: skip
    with pytest.raises(errors.RaiseException, match="is a table") as refused:
        run_script(store_url)
    assert "rename" in str(refused.value.diag.message_hint)
    sql("alter table jobs rename to jobs_before")
    run_script(store_url)
    sql(block_of_the_page("from jobs_before"))
    asked = "select id, user_id, status, input, priority, max_retries, scheduled_for from"
    assert sorted(sql(f"{asked} jobs")) == sorted(sql(f"{asked} jobs_before"))
    [job] = app.find(state=State.PENDING).jobs
    assert (job.tenant, job.priority, job.max_attempts) == (ada, 5, 3)
    app.close()


def test_without_a_table_of_users_it_does_the_rest_and_says_so(store_url: str, sql: Sql) -> None:
    sql("drop schema auth cascade")
    app = Treadle(store_url)
    app.migrate()
    app.close()
    assert any("auth.users" in notice for notice in run_script(store_url))
    assert UUID(inserted(sql, str(uuid4())))


# ------------------------------------------------------------------------------------------------ the columns


@pytest.mark.covers("000-AC-01.a")
def test_every_column_has_its_name_its_type_and_its_default(app: Treadle, store_url: str, sql: Sql, ada: str) -> None:
    said = sql("select column_name, data_type from information_schema.columns where table_name = 'jobs' "
               "and table_schema = 'public' order by ordinal_position")  # fmt: skip
    assert dict(said) == COLUMNS
    row = row_of(store_url, inserted(sql, ada))
    assert (row["user_id"], row["job_type"]) == (UUID(ada), "greet")
    assert [row[name] for name in ("status", "input", "priority", "retry_count", "max_retries")] == [
        "pending", {}, 0, 0, 3,
    ]  # fmt: skip
    assert row["scheduled_for"] == row["created_at"] == row["updated_at"]
    assert sql("select abs(extract(epoch from now() - %s)) < 60", row["created_at"]) == [(True,)]
    for name in ("output", "error", "expires_at", "claimed_at", "started_at", "completed_at"):
        assert row[name] is None


@pytest.mark.covers("000-AC-01.a")
def test_a_column_that_is_never_null_refuses_null(app: Treadle, sql: Sql, ada: str) -> None:
    for column in NEVER_NULL:
        given = {"user_id": ada, "job_type": "greet"} | {column: None}
        names, marks = ", ".join(given), ", ".join(["%s"] * len(given))
        with pytest.raises(errors.NotNullViolation, match=column):
            sql(f"insert into jobs ({names}) values ({marks})", *given.values())
    assert sql("select count(*) from treadle.jobs") == [(0,)]


@pytest.mark.covers("000-AC-01.a")
def test_a_row_tells_the_whole_story_of_its_job(app: Treadle, store_url: str, ada: str) -> None:
    task = app.tasks["greet"].using(tenant=ada, priority=3, run_after="0s", expires_at="1h", retry=Retry(3, 0, 0, 0))
    task.enqueue("Ada")
    [job] = claim(app.engine, 1)
    settle(app.engine, start(app.engine, job), Failed(JobError("ValueError", "no mail", "Traceback", 1, "")))
    waiting = app.get(job.id)
    row = row_of(store_url, job)
    assert (row["status"], row["error"], row["retry_count"], row["max_retries"]) == ("pending", "no mail", 1, 2)
    [again] = claim(app.engine, 1)
    settle(app.engine, start(app.engine, again), Succeeded('"hello Ada"'))
    done = app.get(job.id)
    assert row_of(store_url, job) == {
        "id": UUID(job.id), "user_id": UUID(ada), "job_type": "greet", "status": "complete", "input": {"name": "Ada"},
        "output": "hello Ada", "error": None, "priority": 3, "retry_count": 1, "max_retries": 2,
        "scheduled_for": waiting.due_at, "expires_at": job.expires_at, "claimed_at": again.claimed_at,
        "started_at": done.started_at, "completed_at": done.finished_at, "created_at": job.created_at,
        "updated_at": done.finished_at,
    }  # fmt: skip


@pytest.mark.covers("000-AC-01.a")
def test_no_more_retries_are_counted_than_there_were(app: Treadle, store_url: str, ada: str) -> None:
    job = held(app, ada, retry=Retry(1, 0, 0, 0))
    settle(app.engine, job, Failed(JobError("ValueError", "no mail", "", 1, "")))
    row = row_of(store_url, job)
    assert (row["status"], row["retry_count"], row["max_retries"]) == ("failed", 0, 0)


def test_jobs_of_a_tenant_that_is_no_user_are_not_in_it_and_harm_nothing(app: Treadle, sql: Sql, ada: str) -> None:
    for tenant in ("default", ada.upper(), f"{ada} ", "' or true"):
        app.tasks["greet"].using(tenant=tenant).enqueue()
    ours = inserted(sql, ada)
    assert sql("select id::text from jobs") == [(ours,)]
    assert sql("select id::text from jobs where user_id = %s", ada) == [(ours,)]


# ------------------------------------------------------------------------------------------------- the status


@pytest.mark.covers("000-AC-01.b")
def test_a_status_is_one_of_five_and_claimed_is_a_running_job_that_has_not_begun(
    app: Treadle, sql: Sql, ada: str
) -> None:
    task = app.tasks["greet"].using(tenant=ada)
    done, given_up, stopped = held(app, ada), held(app, ada), task.using(run_after="1h").enqueue()
    settle(app.engine, done, Succeeded("null"))
    settle(app.engine, given_up, FailedForGood(Reason.PERMANENT, JobError("GiveUp", "no", "", 1, "")))
    app.cancel(stopped.id)
    jobs = {
        task.using(run_after="1h").enqueue().id: "pending",
        held(app, ada).id: "claimed",
        held(app, ada, begun=True).id: "running",
        done.id: "complete",
        given_up.id: "failed",
        stopped.id: "failed",
    }
    assert dict(sql("select id::text, status from jobs")) == jobs
    for status in STATUSES:
        found = {id for (id,) in sql("select id::text from jobs where status = %s", status)}
        assert found == {id for id, shown in jobs.items() if shown == status}
    assert sql("select output is null from jobs where id = %s", done.id) == [(True,)]


@pytest.mark.covers("000-AC-01.b")
def test_the_database_refuses_any_other_status(app: Treadle, sql: Sql, ada: str) -> None:
    id = inserted(sql, ada)
    before = traces(app.engine)
    with pytest.raises(errors.CheckViolation, match="'done' is none of pending, claimed, running, complete, failed"):
        sql("update jobs set status = 'done' where id = %s", id)
    with pytest.raises(errors.CheckViolation, match="'done' is none of"):
        sql("insert into jobs (user_id, job_type, status) values (%s, 'greet', 'done')", ada)
    with pytest.raises(errors.NotNullViolation, match="status"):
        sql("update jobs set status = null where id = %s", id)
    with pytest.raises(errors.CheckViolation):
        sql("update treadle.jobs set state = 'done' where id = %s", id)
    assert traces(app.engine) == before


def test_what_only_treadle_can_do_is_refused_with_the_way_to_do_it(app: Treadle, sql: Sql, ada: str) -> None:
    inserted(sql, ada)
    before = traces(app.engine)
    for statement in ("update jobs set status = 'complete'", "update jobs set priority = 5", "delete from jobs"):
        with pytest.raises(errors.FeatureNotSupported, match="changed by treadle") as refused:
            sql(statement)
        assert "treadle jobs cancel" in str(refused.value.diag.message_hint)
    assert traces(app.engine) == before


def test_a_new_job_has_no_past_unless_the_owner_of_the_tables_brings_it(
    app: Treadle, store_url: str, sql: Sql, ada: str
) -> None:
    past = {
        "status": "running", "retry_count": "1", "output": "{}", "error": "x", "claimed_at": "now",
        "started_at": "now", "completed_at": "now", "created_at": "yesterday", "updated_at": "yesterday",
    }  # fmt: skip
    sql(f"grant usage on schema treadle, auth to {WEB}")
    sql(f"grant select, insert on jobs, treadle.jobs, treadle.finished, treadle.keys, treadle.events to {WEB}")
    with psycopg.connect(as_role(store_url, WEB), autocommit=True) as connection:
        for column, value in past.items():
            with pytest.raises(errors.FeatureNotSupported, match="has no past") as refused:
                connection.execute(
                    f"insert into jobs (user_id, job_type, {column}) values (%s, 'greet', '{value}')", [ada]
                )
            assert column in str(refused.value.diag.message_hint)
        assert sql("select count(*) from jobs") == [(0,)]
        connection.execute("insert into jobs (user_id, job_type) values (%s, 'greet')", [ada])
    assert sql("select status from jobs") == [("pending",)]


# ------------------------------------------------------------------------------------------ jobs made with SQL


@pytest.mark.covers("000-AC-01.c")
def test_a_job_inserted_into_the_view_belongs_to_its_user_and_is_run_by_a_worker(
    app: Treadle, store_url: str, sql: Sql, ada: str
) -> None:
    [(id, status, due)] = sql(
        "insert into jobs (user_id, job_type, input, priority, max_retries, expires_at) "
        """values (%s, 'greet', '{"name": "Ada"}', 5, 1, now() + interval '1 hour') """
        "returning id::text, status, scheduled_for", ada,
    )  # fmt: skip
    job = app.get(str(id))
    assert (job.tenant, job.priority, job.retry, job.due_at) == (ada, 5, Retry(2, 30, 900, 0), due)
    assert (status, job.expires_at is None) == ("pending", False)
    with working(app):
        ended(app, job)
    row = row_of(store_url, job)
    assert (row["status"], row["output"], row["user_id"]) == ("complete", "hello Ada", UUID(ada))


@pytest.mark.covers("000-R14.b")
def test_a_job_for_later_waits_and_belongs_to_the_transaction_that_made_it(
    app: Treadle, store_url: str, sql: Sql, ada: str
) -> None:
    with psycopg.connect(store_url) as connection:
        connection.execute("insert into jobs (user_id, job_type) values (%s, 'greet')", [ada])
        connection.rollback()
    sql("insert into jobs (user_id, job_type, scheduled_for) values (%s, 'greet', now() + interval '1 hour')", ada)
    app.run_worker(until_idle=True)
    assert sql("select status from jobs") == [("pending",)]


def test_an_id_is_used_once(app: Treadle, sql: Sql, ada: str) -> None:
    waiting, done, another = inserted(sql, ada), held(app, ada), app.enqueue("greet")
    settle(app.engine, done, Succeeded())
    for taken in (waiting, done.id, another.id):
        with pytest.raises(errors.UniqueViolation, match=taken):
            sql("insert into jobs (id, user_id, job_type) values (%s, %s, 'greet')", taken, a_user(sql))
    fresh = uuid4()
    with pytest.raises(errors.UniqueViolation):
        sql("insert into jobs (id, user_id, job_type) select %s, %s, 'greet' from generate_series(1, 2)", fresh, ada)
    assert sql("select user_id::text from jobs") == [(ada,), (ada,)]


@pytest.mark.covers("000-AC-01.c")
def test_a_job_of_a_user_that_there_is_not_is_refused(app: Treadle, sql: Sql) -> None:
    nobody = uuid4()
    with pytest.raises(errors.ForeignKeyViolation, match=str(nobody)):
        sql("insert into jobs (user_id, job_type) values (%s, 'greet')", nobody)
    with pytest.raises(errors.NotNullViolation, match="user_id"):
        sql("insert into jobs (job_type) values ('greet')")


# ------------------------------------------------------------------------------------------ a user who is deleted


def test_a_user_is_not_deleted_by_who_cannot_see_all_its_jobs(app: Treadle, store_url: str, ada: str) -> None:
    with psycopg.connect(store_url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(errors.RaiseException, match="some of which this transaction cannot see"):
            connection.execute("delete from auth.users where id = %s", [ada])


@pytest.mark.covers("000-AC-01.c")
def test_all_of_a_user_is_gone_with_the_user_and_others_keep_theirs(
    app: Treadle, store_url: str, sql: Sql, ada: str
) -> None:
    bob = a_user(sql)
    for user in (ada, bob):
        settle(app.engine, held(app, user), Succeeded())
        settle(app.engine, held(app, user), Failed(JobError("ValueError", "no", "", 1, "")))
        held(app, user)
        app.tasks["greet"].using(tenant=user, key="k").enqueue()
        app.tenant(user).schedules.create("nightly", "greet", cron="0 2 * * *")
        app.tenant(user).pause(reason="a look around")
    app.pause(queue="mail", reason="all of it")
    app.seal_audit()
    tables = ("jobs", "finished", "keys", "events", "schedules", "pauses", "seals")

    def theirs(user: str) -> list[object]:
        return [sql(f"select count(*) from treadle.{table} where tenant = %s", user)[0][0] for table in tables]

    before = theirs(bob)
    assert all(before)
    assert theirs(ada) == before
    sql(f"grant usage on schema auth to {WEB}")
    sql(f"grant select, delete on auth.users to {WEB}")
    with psycopg.connect(as_role(store_url, WEB)) as connection:  # who deletes need not know of treadle
        connection.execute("delete from auth.users where id = %s", [ada])
    assert theirs(ada) == [0] * len(tables)
    assert theirs(bob) == before
    assert {user for (user,) in sql("select user_id::text from jobs")} == {bob}
    assert app.verify_audit().sound
    assert len(app.pauses()) == 2
    sql("delete from auth.users")
    assert sql("select count(*) from jobs") == [(0,)]


@pytest.mark.covers("000-AC-01.c")
def test_who_runs_a_job_of_a_deleted_user_finds_nothing_to_settle(app: Treadle, sql: Sql, ada: str) -> None:
    jobs = {outcome: held(app, ada, begun=True) for outcome in OUTCOMES}
    sql("delete from auth.users where id = %s", ada)
    for outcome, job in jobs.items():
        [renewed] = app.engine.extend([Lease(job.id, str(job.lease_token))], lease=30)
        assert renewed.renewal is Renewal.LOST
        verdict = settle(app.engine, job, every_outcome(app.engine.now())[outcome])
        assert (verdict.ruling, verdict.job) == (Ruling.LOST, None)
    assert traces(app.engine) == ([], [])
    assert sql("select count(*) from treadle.events") == [(0,)]


def test_a_worker_whose_user_is_deleted_under_it_goes_on_with_other_jobs(app: Treadle, sql: Sql, ada: str) -> None:
    @app.task
    def leave(user: str) -> None:
        sql("delete from auth.users where id = %s", user)

    left = leave.using(tenant=ada, priority=9).enqueue(ada)
    other = app.tasks["greet"].using(tenant=a_user(sql)).enqueue()
    with working(app, concurrency=1):
        assert ended(app, other)[0].state is State.SUCCEEDED
    assert app.engine.get([left.id]) == [None]
    assert sql("select count(*) from treadle.events where tenant = %s", ada) == [(0,)]


def test_who_deletes_a_user_waits_for_a_job_that_is_just_being_made(
    app: Treadle, store_url: str, sql: Sql, ada: str
) -> None:
    def delete() -> None:
        with psycopg.connect(f"{store_url}?application_name=deleting", autocommit=True) as connection:
            connection.execute("delete from auth.users where id = %s", [ada])

    deleting = threading.Thread(target=delete)
    with psycopg.connect(store_url) as connection:
        connection.execute("insert into jobs (user_id, job_type) values (%s, 'greet')", [ada])
        deleting.start()
        waits = "select 1 from pg_stat_activity where application_name = 'deleting' and wait_event_type = 'Lock'"
        until(lambda: sql(waits), "the delete waits")
    deleting.join(30)
    assert sql("select count(*) from treadle.jobs") == [(0,)]
    assert sql("select count(*) from auth.users") == [(0,)]


# --------------------------------------------------------------------------------------------------- the indexes

MANY = """
insert into treadle.jobs (task, tenant, state, lease_until, lease_token, claimed_at)
select 'task' || n %% 7, coalesce(%(user)s, gen_random_uuid()::text), state,
    case when state = 'running' then now() end, n, case when state = 'running' then now() end
from generate_series(1, %(many)s) n cross join lateral (
    select case when n %% 500 = 0 then 'running' else 'pending' end as state) s
"""
MANY_ENDED = """
insert into treadle.finished (id, task, payload, created_at, due_at, tenant, queue, lane, task_version, priority,
    max_attempts, retry_base, retry_jitter, state, attempt, failures, crashes, finished_at, cancel_requested,
    cost_micros, revision)
select treadle.new_id(), 'task' || n %% 7, '{}', now(), now(), coalesce(%(user)s, gen_random_uuid()::text), 'default',
    '', 1, 0, 5, 5, 1, case when n %% 500 = 0 then 'failed' else 'succeeded' end, 1, 0, 0,
    now() - n * interval '1 s', false, 0, 2
from generate_series(1, %(many)s) n
"""


@pytest.fixture
def crowded(app: Treadle, store_url: str, ada: str) -> str:
    """The store with many jobs of many users, and a few of Ada's."""
    with psycopg.connect(store_url, autocommit=True) as connection:
        for user, many in ((None, 20_000), (ada, 20)):
            for statement in (MANY, MANY_ENDED):
                connection.execute(statement, {"user": user, "many": many})
        connection.execute("vacuum analyze treadle.jobs, treadle.finished")
    return store_url


def plan(url: str, query: str, *values: object) -> str:
    with psycopg.connect(url) as connection:
        lines = connection.execute(f"explain {query}", values).fetchall()
    return "\n".join(line for (line,) in lines)


def read_by(url: str, query: str, *values: object) -> set[str]:
    """The indexes that a query reads, and the tables that it reads from end to end."""
    found = plan(url, query, *values)
    return {*re.findall(r"Index (?:Only )?Scan (?:using|on) (\w+)", found), *re.findall(r"Seq Scan on (\w+)", found)}


@pytest.mark.covers("000-R02.a", "000-AC-02.a")
def test_the_poll_is_served_by_one_index_over_pending_jobs_in_the_order_of_claims(crowded: str, sql: Sql) -> None:
    [(definition,)] = sql("select indexdef from pg_indexes where indexname = 'jobs_claim'")
    assert "(queue, lane, priority DESC, due_at, id) WHERE ((state = 'pending'::text) AND (NOT parked))" in definition
    poll = (
        "select id from treadle.jobs where state = 'pending' and not parked and queue = 'default' and lane = '' "
        "and due_at <= now() order by priority desc, due_at, id limit 1"
    )
    found = plan(crowded, poll)
    assert "using jobs_claim" in found
    assert "Sort" not in found


@pytest.mark.covers("000-AC-02.b")
def test_the_leases_of_running_jobs_have_a_partial_index_of_their_own(crowded: str, sql: Sql) -> None:
    [(definition,)] = sql("select indexdef from pg_indexes where indexname = 'jobs_lease'")
    assert "lease_until) WHERE (state = 'running'::text)" in definition
    expired = "select id from treadle.jobs where state = 'running' and lease_until <= now() order by lease_until"
    assert "using jobs_lease" in plan(crowded, expired)


@pytest.mark.covers("000-R02.a")
def test_jobs_of_a_type_and_status_are_read_by_an_index_and_only_where_such_jobs_lie(
    app: Treadle, crowded: str, sql: Sql, ada: str
) -> None:
    rare = app.register("rare", lambda: None).using(tenant=ada)
    first, _ = rare.using(priority=1).enqueue(), rare.enqueue()
    claimed(app.engine, first)
    sql("update treadle.finished set task = 'rare' where id = (select min(id::text)::uuid from treadle.finished)")
    sql("vacuum analyze treadle.jobs, treadle.finished")
    asked = "select id from jobs where job_type = 'rare' and status = "
    for word in ("failed", "complete"):
        assert read_by(crowded, f"{asked}'{word}'") == {"idx_jobs_type_status"}
    for word in ("claimed", "pending"):
        assert read_by(crowded, f"{asked}'{word}'") == {"idx_jobs_type_status_waiting"}
    assert [len(sql(f"{asked}'{word}'")) for word in ("failed", "complete", "claimed", "pending")] == [0, 1, 1, 1]


@pytest.mark.covers("000-AC-02.c", "000-R02.a")
def test_the_list_of_one_users_jobs_is_read_by_indexes_wherever_they_lie(
    app: Treadle, crowded: str, sql: Sql, ada: str
) -> None:
    found = read_by(crowded, "select id, status from jobs where user_id = %s", ada)
    assert {"idx_jobs_user", "idx_jobs_user_waiting"} <= found
    assert not {"jobs", "finished"} & found  # no table is read from end to end
    assert len(sql("select id from jobs where user_id = %s", ada)) == 40
    assert app.check_schema() == []


def test_who_does_not_want_the_indexes_over_waiting_jobs_drops_them_as_the_page_says(
    app: Treadle, crowded: str, sql: Sql, ada: str
) -> None:
    sql(block_of_the_page("drop index"))
    found = read_by(crowded, "select id, status from jobs where user_id = %s", ada)
    assert "idx_jobs_user" in found
    assert "idx_jobs_user_waiting" not in found
    assert app.check_schema() == []


# ------------------------------------------------------------------------------------- updated_at and the comments


@pytest.mark.covers("000-R02.b")
def test_every_change_of_a_job_moves_updated_at(store_url: str, sql: Sql, ada: str, clock: FakeClock) -> None:
    app = _with_tasks(Treadle(store_url, profile=chat_server.PROFILE, clock=clock))
    app.migrate()
    run_script(store_url)
    task = app.tasks["greet"].using(tenant=ada, key="k", retry=Retry(3, 0, 0, 0))
    job = task.enqueue()
    seen = [row_of(store_url, job)["updated_at"]]

    def now_held() -> Job:
        return claimed(app.engine, current(app.engine, job))

    changes: list[Callable[[], object]] = [
        lambda: task.using(unique=Unique("active", on_conflict="replace")).enqueue("Grace"),
        now_held,
        lambda: start(app.engine, current(app.engine, job)),
        lambda: settle(app.engine, current(app.engine, job), Snoozed(0)),
        now_held,
        lambda: settle(app.engine, current(app.engine, job), Failed(JobError("ValueError", "no", "", 1, ""))),
        now_held,
        lambda: app.cancel(job.id, actor="ada"),
        lambda: settle(app.engine, current(app.engine, job), every_outcome(app.engine.now())["stop"]),
        lambda: app.retry(job.id, actor="ada"),
        now_held,
        lambda: settle(app.engine, current(app.engine, job), Succeeded()),
    ]
    for change in changes:
        clock.advance(seconds=1)
        change()
        seen.append(row_of(store_url, job)["updated_at"])
    app.close()
    assert seen == sorted(set(seen))  # type: ignore[type-var]
    assert len(seen) == len(changes) + 1


def test_a_retry_moves_updated_at_at_every_audit_level_and_a_snooze_does_not(
    app: Treadle, store_url: str, ada: str
) -> None:
    job = held(app, ada, retry=Retry(3, 0, 0, 0))
    claimed_at = row_of(store_url, job)["updated_at"]
    settle(app.engine, job, Snoozed(0))
    assert row_of(store_url, job)["updated_at"] == claimed_at
    [again] = claim(app.engine, 1)
    settle(app.engine, again, Failed(JobError("ValueError", "no", "", 1, "")))
    assert row_of(store_url, job)["updated_at"] > again.claimed_at  # type: ignore[operator]


@pytest.mark.covers("000-R02.c")
def test_the_view_and_its_columns_carry_comments(app: Treadle, sql: Sql) -> None:
    said = dict(sql(
        "select coalesce(a.attname, ''), d.description from pg_description d left join pg_attribute a "
        "on a.attrelid = d.objoid and a.attnum = d.objsubid and a.attnum > 0 where d.objoid = 'public.jobs'::regclass"
    ))  # fmt: skip
    assert set(said) == {"", "job_type", "priority", "scheduled_for", "expires_at"}
    assert "Universal job queue" in str(said[""])
    assert all(len(str(text)) > 30 for text in said.values())


# ----------------------------------------------------------------------------------------------- who sees what


@pytest.fixture
def walled(app: Treadle, store_url: str, sql: Sql) -> Treadle:
    """The store behind walls: workers are the service role, the application is `web`."""
    app.rls(worker_role=SERVICE, app_role=WEB)
    run_script(store_url)
    sql(f"grant select, insert on jobs to {WEB}")
    return app


@pytest.mark.covers("000-R02.d")
def test_the_two_policies_exist_under_the_names_of_the_document(walled: Treadle, store_url: str, sql: Sql) -> None:
    run_script(store_url)  # again
    found = sql("select tablename, policyname, permissive, roles::text from pg_policies where policyname like '%% %%'")
    owner, service = "Enable full access for record owners on jobs", "Service role can access all jobs"
    for table in ("jobs", "finished"):
        assert (table, owner, "PERMISSIVE", "{public}") in found
        assert (table, service, "PERMISSIVE", f"{{{SERVICE}}}") in found
    assert walled.check_schema() == []
    assert [line.level for line in walled.doctor() if "row-level" in line.text] == ["warning"]  # a superuser asks


@pytest.mark.covers("000-R02.d")
def test_an_owner_sees_and_makes_jobs_of_its_own_only_and_the_service_role_sees_all(
    walled: Treadle, store_url: str, sql: Sql, ada: str
) -> None:
    bob = a_user(sql)
    for user in (ada, bob):
        settle(walled.engine, held(walled, user), Failed(JobError("ValueError", "no", "", 1, "")))
    with psycopg.connect(as_role(store_url, WEB), autocommit=True) as connection:
        assert connection.execute("select count(*) from jobs").fetchall() == [(0,)]
        connection.execute("select set_config('chat.user', %s, false)", [ada])
        own = connection.execute("insert into jobs (user_id, job_type) values (%s, 'greet') returning id", [ada])
        assert own.rowcount == 1
        rows = connection.execute("select user_id::text, claimed_at < updated_at from jobs order by id").fetchall()
        assert rows == [(ada, True), (ada, None)]
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute("insert into jobs (user_id, job_type) values (%s, 'greet')", [bob])
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute("select expire_stale_jobs()")
    with psycopg.connect(as_role(store_url, SERVICE), autocommit=True) as connection:
        count = connection.execute("select user_id::text, count(*) from jobs group by 1").fetchall()
        assert dict(count) == {ada: 2, bob: 1}
        connection.execute("insert into jobs (user_id, job_type) values (%s, 'greet')", [bob])
        assert connection.execute("select expire_stale_jobs()").fetchall() == [(0,)]
        for statement in (
            "update jobs set priority = 5",
            "delete from jobs",
        ):  # its policy would let it; the view does not
            with pytest.raises(errors.InsufficientPrivilege):
                connection.execute(statement)


def test_without_the_role_or_the_owner_function_the_policy_is_left_out_and_the_script_says_so(
    walled: Treadle, store_url: str, sql: Sql
) -> None:
    sql("drop function is_record_owner cascade")
    assert [said for said in run_script(store_url) if "no policy" in said] == [
        "there is no function public.is_record_owner(uuid): no policy for owners"
    ]
    sql(f"alter role {SERVICE} rename to somebody")
    try:
        assert "there is no role service_role: no policy for it" in run_script(store_url)
    finally:
        sql(f"alter role somebody rename to {SERVICE}")


def test_functions_that_walls_would_blind_are_refused_or_handed_to_the_workers_role(
    app: Treadle, store_url: str, sql: Sql, ada: str
) -> None:
    app.rls(worker_role=SERVICE, app_role=WEB)
    for statement in (
        f"grant create on schema public to {BOSS}",
        f"grant all on schema auth, treadle to {BOSS}",
        f"grant all on all tables in schema auth, treadle to {BOSS} with grant option",
        f"grant usage on schema treadle to {BOSS} with grant option",
        "drop view jobs",
        "drop function jobs_tenant, jobs_known_user, jobs_insert, jobs_refuse, expire_stale_jobs cascade",
        "drop function jobs_forget_users cascade",
    ):
        sql(statement)
    for table in ("jobs", "finished", "keys", "events", "schedules", "pauses", "seals"):
        sql(f"alter table treadle.{table} owner to {BOSS}")
    with pytest.raises(errors.InsufficientPrivilege, match="hides jobs from boss") as refused:
        run_script(as_role(store_url, BOSS))
    assert "BYPASSRLS" in str(refused.value.diag.message_hint)
    sql(f"grant {SERVICE} to {BOSS}")
    sql(f"grant create on schema public to {SERVICE}")
    try:
        for _ in range(2):
            run_script(as_role(store_url, BOSS))
        job = held(app, ada)
        long_ago(sql, job)
        with psycopg.connect(as_role(store_url, SERVICE), autocommit=True) as connection:
            assert connection.execute("select expire_stale_jobs()").fetchall() == [(1,)]
        sql("delete from auth.users where id = %s", ada)
        assert sql("select count(*) from treadle.finished") == [(0,)]
    finally:
        sql(f"revoke {SERVICE} from {BOSS}")


# --------------------------------------------------------------------------------------------- jobs gone stale


@pytest.mark.covers("000-R03.a")
def test_the_function_is_plpgsql_runs_as_its_owner_and_looks_nowhere_else(app: Treadle, sql: Sql) -> None:
    [facts] = sql(
        "select l.lanname, p.prosecdef, p.proconfig, p.prorettype::regtype::text from pg_proc p "
        "join pg_language l on l.oid = p.prolang where p.oid = 'expire_stale_jobs()'::regprocedure"
    )
    assert facts == ("plpgsql", True, ["search_path=pg_catalog, pg_temp"], "integer")


@pytest.mark.covers("000-AC-03.d", "000-R03.b", "000-R03.c")
@pytest.mark.parametrize("begun", [False, True], ids=["claimed", "running"])
def test_what_was_claimed_over_half_an_hour_ago_is_failed_whatever_is_left_of_its_budget(
    app: Treadle, store_url: str, sql: Sql, ada: str, begun: bool
) -> None:
    stale, young = held(app, ada, begun=begun, retry=Retry(9)), held(app, ada, begun=begun)
    done, waiting, house = held(app, ada), app.tasks["greet"].using(tenant=ada).enqueue(), held(app, "default")
    settle(app.engine, done, Succeeded())
    long_ago(sql, stale)
    long_ago(sql, young, 29)
    long_ago(sql, house)
    sql("update treadle.finished set claimed_at = claimed_at - interval '1 hour'")
    sql("update treadle.jobs set claimed_at = now() - interval '1 hour' where id = %s", waiting.id)  # an attempt before
    before = {job.id: current(app.engine, job) for job in (stale, young, waiting, done, house)}
    assert expire(sql) == 1
    row = row_of(store_url, stale)
    assert (row["status"], row["error"], row["retry_count"]) == ("failed", STALE, 0)
    assert row["completed_at"] == row["updated_at"]
    assert sql("select %s between now() - interval '1 minute' and now()", row["completed_at"]) == [(True,)]
    for job in (young, waiting, done, house):
        assert current(app.engine, job) == before[job.id]
    assert expire(sql) == 0


@pytest.mark.covers("000-R03.b")
def test_a_job_without_claimed_at_is_judged_by_started_at_or_else_by_updated_at(
    app: Treadle, sql: Sql, ada: str
) -> None:
    begun, noted, bare, young = (held(app, ada, begun=True) for _ in range(4))
    sql("update treadle.jobs set claimed_at = null, created_at = now() - interval '2 hours'")
    sql("update treadle.jobs set started_at = null where id = any (%s::uuid[])", [noted.id, bare.id])
    sql("update treadle.jobs set started_at = now() - interval '31 minutes' where id = %s", begun.id)
    app.cancel(noted.id)  # a line of just now
    assert expire(sql) == 2
    assert [current(app.engine, job).state for job in (begun, bare)] == [State.FAILED] * 2
    assert [current(app.engine, job).state for job in (noted, young)] == [State.RUNNING] * 2
    sql("update treadle.events set at = at - interval '31 minutes'")
    assert expire(sql) == 1


@pytest.mark.covers("000-R03.c", "000-AC-03.d")
def test_what_it_writes_is_what_treadles_own_recovery_writes(app: Treadle, sql: Sql, ada: str) -> None:
    held(
        app, ada, begun=True, key="k", unique="active", expires_at="1h", timeout="5m", lane="l", retry=Retry(7, 1, 2, 3)
    )
    sql('update treadle.jobs set progress = \'{"fraction": 0.5, "note": "half"}\', cost_micros = 7, schedule = \'s\'')
    sql("update treadle.jobs set claimed_at = claimed_at - interval '1 hour'")
    [before] = app.find(state=State.RUNNING).jobs
    assert expire(sql) == 1
    after = current(app.engine, before)
    assert after.error is not None
    assert after.finished_at is not None
    assert after == before.evolve(
        state=State.FAILED, reason=Reason.CRASHED, lease_until=None, lease_token=None, crashes=1,
        revision=before.revision + 1, finished_at=after.finished_at,
        error=JobError("Crashed", STALE, "", before.attempt, after.finished_at.isoformat()),
    )  # fmt: skip
    [line] = app.events(before.id)
    assert (line.kind, line.actor, line.note, line.tenant) == ("failed", "expire_stale_jobs", STALE, ada)
    assert (line.revision, line.at) == (after.revision, after.finished_at)
    assert sql("select count(*) from treadle.keys") == [(0,)]
    assert app.retry(before.id, actor="ada").state is State.PENDING


@pytest.mark.covers("000-AC-03.d")
def test_a_worker_that_comes_back_to_a_job_failed_as_stale_has_lost_it(app: Treadle, sql: Sql, ada: str) -> None:
    jobs = {outcome: held(app, ada, retry=Retry(1)) for outcome in OUTCOMES}
    sql("update treadle.jobs set claimed_at = claimed_at - interval '1 hour'")
    assert expire(sql) == len(jobs)
    before = traces(app.engine)
    for outcome, job in jobs.items():
        assert settle(app.engine, job, every_outcome(app.engine.now())[outcome]).ruling is Ruling.LOST, outcome
        [renewed] = app.engine.extend([Lease(job.id, str(job.lease_token))], lease=30)
        assert renewed.renewal is Renewal.LOST
    assert traces(app.engine) == before


def test_a_real_worker_cannot_finish_what_was_failed_under_it_and_goes_on(app: Treadle, sql: Sql, ada: str) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.task
    def slow() -> str:
        begun.set()
        go_on.wait(30)
        return "too late"

    job = slow.using(tenant=ada).enqueue()
    with working(app):
        assert begun.wait(30)
        in_state(app, job, state=State.RUNNING)
        long_ago(sql, job)
        until(lambda: expire(sql), "it is failed")  # a renewal may hold its row for a moment
        go_on.set()
        ended(app, app.tasks["greet"].using(tenant=ada).enqueue())
    found = app.get(job.id)
    assert (found.state, found.result, found.error and found.error.message) == (State.FAILED, None, STALE)
    assert [line.kind for line in app.events(job.id)] == ["failed"]


def test_a_key_for_longer_than_its_job_stays_taken(app: Treadle, sql: Sql, ada: str) -> None:
    job = held(app, ada, key="k", unique="ever")
    long_ago(sql, job)
    assert expire(sql) == 1
    assert app.tasks["greet"].using(tenant=ada, key="k", unique="ever").enqueue().id == job.id


def test_a_job_that_somebody_is_writing_is_left_for_the_next_time(
    app: Treadle, store_url: str, sql: Sql, ada: str
) -> None:
    busy, free = held(app, ada), held(app, ada)
    for job in (busy, free):
        long_ago(sql, job)
    with psycopg.connect(store_url) as connection:
        connection.execute("select 1 from treadle.jobs where id = %s for update", [busy.id])
        assert expire(sql) == 1
        assert current(app.engine, free).state is State.FAILED
    assert expire(sql) == 1


def test_a_stale_job_that_was_asked_to_stop_ends_cancelled(app: Treadle, store_url: str, sql: Sql, ada: str) -> None:
    job = held(app, ada)
    app.cancel(job.id, actor="ada")
    long_ago(sql, job)
    assert expire(sql) == 1
    found = app.get(job.id)
    assert (found.state, found.reason) == (State.CANCELLED, Reason.BY_REQUEST)
    assert [line.kind for line in app.events(job.id)] == ["cancel_requested", "cancelled"]
    assert row_of(store_url, job)["status"] == "failed"


def test_what_is_to_follow_a_failure_follows_this_one_too(app: Treadle, sql: Sql, ada: str) -> None:
    told: list[dict[str, object]] = []

    @app.task(queue="ops", priority=4, retry=Retry(2, 1, None, 0))
    def on_call(job_id: str, reason: str, error: str) -> None:
        told.append({"job_id": job_id, "reason": reason, "error": error})

    @app.task(on_failed=on_call, audit={"failed": "MAIL_LOST"})
    def send() -> None:
        raise GiveUp("never")

    @app.task(audit={"succeeded": "MAIL_SENT"})
    def post() -> None: ...

    job = send.using(tenant=ada).enqueue()
    post.using(tenant=ada).enqueue()
    for each in claim(app.engine, 2):
        long_ago(sql, each)
    assert expire(sql) == 2
    [line] = app.events(job.id)
    assert line.note == f"MAIL_LOST: {STALE}"
    [follow] = app.find(state=State.PENDING).jobs
    assert (follow.task, follow.queue, follow.priority, follow.tenant) == ("on_call", "ops", 4, ada)
    assert (follow.retry, follow.timeout) == (Retry(2, 1, None, 0), None)
    app.run_worker(until_idle=True, queues=["ops"])
    assert told == [{"job_id": job.id, "reason": "crashed", "error": STALE}]
