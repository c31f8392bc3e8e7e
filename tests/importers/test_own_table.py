"""One generator writes the views of three applications, which take rows with a past from the owner of the tables."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import errors
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from tests.support.making import claim, settle, start
from treadle import ConfigError, Profile, Treadle
from treadle.importers import own_table_sql
from treadle.model import JobError, Reason, State
from treadle.model.lifecycle import Failed, FailedForGood, Succeeded
from treadle.profiles import backend, chat_server, companion, tenant_ops
from treadle.testing import FakeClock, run_until_idle

Row = dict[str, Any]
Sql = Callable[..., list[Row]]
MINUTE = timedelta(minutes=1)
ADA, BOB = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"


@pytest.fixture
def engine_kind() -> str:
    """Only this engine: the others have no such views."""
    return "postgres"


@pytest.fixture
def schema(store_url: str) -> str:
    return store_url.partition("?schema=")[2]


@pytest.fixture
def into(schema: str) -> str:
    """The schema of the application, where its view is."""
    return f"{schema}_own"


@pytest.fixture
def sql(store_url: str, into: str) -> Iterator[Sql]:
    """`sql(statement, *values)` by the owner of the tables; its rows."""
    with _connected(store_url, into) as connection:
        connection.execute(f"create schema {into}")

        def run(statement: str, *values: object) -> list[Row]:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

        yield run
        connection.execute("rollback")
        connection.execute(f"drop schema {into} cascade")


def _connected(store_url: str, into: str) -> psycopg.Connection[Row]:
    server = store_url.partition("?schema=")[0]
    return psycopg.connect(server, autocommit=True, row_factory=dict_row, options=f"-c search_path={into}")


@pytest.fixture
def open_view(make_app: Callable[..., Treadle], sql: Sql, schema: str, into: str) -> Callable[..., Treadle]:
    """The app of a profile, by the clock of the server, with its view."""

    def open_one(profile: Profile) -> Treadle:
        app = make_app(profile=profile, clock=None)
        app.register("greet", lambda payload: None)
        app.migrate()
        for _ in range(2):  # it may be run again
            sql(own_table_sql(profile, schema=schema, into=into))
        return app

    return open_one


# ------------------------------------------------------------------------------------- the mails of a chat server

OLD_TABLES = """
create table email_processing_jobs (
    id uuid primary key, user_id uuid not null, connection_id uuid not null, status text not null, result_summary jsonb,
    error_message text, created_at timestamptz not null, started_at timestamptz, completed_at timestamptz,
    updated_at timestamptz not null);
create table email_digest_batches (id uuid primary key);
"""
# As the document has it, but for the two drops.
MIGRATION = """
INSERT INTO jobs (id, user_id, job_type, status, input, error, created_at, started_at, completed_at, updated_at)
SELECT
    id,
    user_id,
    'email_processing',
    CASE status
        WHEN 'processing' THEN 'running'
        ELSE status
    END,
    jsonb_build_object('connection_id', connection_id::text)
        || COALESCE(result_summary, '{}'::jsonb),
    error_message,
    created_at,
    started_at,
    completed_at,
    updated_at
FROM email_processing_jobs;
"""


def old_mail(number: int, now: datetime) -> Row:
    """A row of the old table: its status goes round, and so does what it has."""
    status = ("pending", "processing", "complete", "failed")[number % 4]
    made = now - timedelta(minutes=5 + number)
    ended = status in ("complete", "failed")
    return {
        "id": uuid4(),
        "user_id": UUID(ADA if number % 3 else BOB),
        "connection_id": uuid4(),
        "status": status,
        "result_summary": (None, Jsonb({"mails": number}), Jsonb({"connection_id": "its own"}))[number % 3],
        "error_message": f"no mailbox {number}; it's gone" if status == "failed" else None,
        "created_at": made,
        "started_at": made + MINUTE if status != "pending" else None,
        "completed_at": made + 2 * MINUTE if ended else None,
        "updated_at": made + (2 * MINUTE if ended else MINUTE + timedelta(seconds=number)),
    }


@pytest.fixture
def mails(sql: Sql, open_view: Callable[..., Treadle]) -> tuple[Treadle, list[Row]]:
    app = open_view(chat_server.PROFILE)
    sql(OLD_TABLES)
    now = datetime.now(UTC).replace(microsecond=123456)
    rows = [old_mail(number, now) for number in range(200)]
    for row in rows:
        marks = ", ".join(["%s"] * len(row))
        sql(f"insert into email_processing_jobs ({', '.join(row)}) values ({marks})", *row.values())
    sql(MIGRATION)
    return app, rows


@pytest.mark.covers("000-AC-05.a", "000-AC-05.b", "000-R04.a", "000-R04.b", "000-R04.c", "000-R04.d")
def test_the_documents_own_migration_brings_every_row_with_its_id_its_times_and_its_words(
    mails: tuple[Treadle, list[Row]], sql: Sql
) -> None:
    app, rows = mails
    found = {row["id"]: row for row in sql("select * from jobs")}
    assert len(found) == 200
    for old in rows:
        summary = old["result_summary"].obj if old["result_summary"] else {}
        new = found[old["id"]]
        assert new["input"] == {"connection_id": str(old["connection_id"])} | summary
        assert new["status"] == {"processing": "running"}.get(old["status"], old["status"])
        assert (new["job_type"], new["user_id"]) == ("email_processing", old["user_id"])
        assert new["error"] == old["error_message"]
        for name in ("created_at", "started_at", "completed_at", "updated_at"):
            assert new[name] == old[name], name
        assert (new["retry_count"], new["max_retries"], new["priority"], new["output"]) == (0, 3, 0, None)
    counts = {state: number for state, number in app.count().items() if number}
    assert counts == {State.PENDING: 50, State.RUNNING: 50, State.SUCCEEDED: 50, State.FAILED: 50}


@pytest.mark.covers("000-R20.a")
def test_a_running_row_is_claimed_since_it_started_or_else_since_it_was_changed(
    sql: Sql, open_view: Callable[..., Treadle]
) -> None:
    app = open_view(chat_server.PROFILE)
    now = datetime.now(UTC)
    times = {"created_at": now - 50 * MINUTE, "started_at": now - 40 * MINUTE, "updated_at": now - 35 * MINUTE}
    for names, claimed in ((list(times), "started_at"), (["created_at", "updated_at"], "updated_at")):
        given = {"id": uuid4(), "user_id": ADA, "job_type": "email_processing", "status": "running"}
        given |= {name: times[name] for name in names}
        marks = ", ".join(["%s"] * len(given))
        [row] = sql(f"insert into jobs ({', '.join(given)}) values ({marks}) returning *", *given.values())
        assert (row["status"], row["claimed_at"], row["updated_at"]) == ("running", times[claimed], times["updated_at"])
        job = app.get(str(row["id"]))
        assert job.lease_until == times[claimed] + 30 * MINUTE
        assert job.lease_token
        assert [event.kind for event in app.events(job.id)] == ["imported"]


@pytest.mark.covers("000-R20.b")
@pytest.mark.parametrize("sweep", ["the worker's", "expire_stale_jobs()"])
def test_what_has_run_for_over_half_an_hour_is_caught_and_the_young_ones_are_left(
    mails: tuple[Treadle, list[Row]], sql: Sql, sweep: str
) -> None:
    app, rows = mails
    limit = datetime.now(UTC) - 30 * MINUTE
    running = [row for row in rows if row["status"] == "processing"]
    stale = {str(row["id"]) for row in running if row["started_at"] < limit}
    assert 0 < len(stale) < len(running)
    if sweep == "the worker's":
        assert app.recover() == len(stale)
    else:
        assert sql("select expire_stale_jobs() as number") == [{"number": len(stale)}]
    left = {str(row["id"]) for row in sql("select id from jobs where status = 'running'")}
    assert left == {str(row["id"]) for row in running} - stale
    caught = sql("select status, error from jobs where id::text = any (%s)", list(stale))
    word = "pending" if sweep == "the worker's" else "failed"
    assert {(row["status"], row["error"]) for row in caught} == {(word, "Job timed out (stale claim)")}


def test_workers_run_what_waited_in_the_old_table(mails: tuple[Treadle, list[Row]], sql: Sql) -> None:
    app, rows = mails
    done = []

    @app.task(name="email_processing")
    def process(payload: dict[str, Any]) -> None:
        done.append(payload["connection_id"])

    app.run_worker(until_idle=True)
    limit = datetime.now(UTC) - 30 * MINUTE
    stale = [row for row in rows if row["status"] == "processing" and row["started_at"] < limit]
    assert len(done) == sum(row["status"] == "pending" for row in rows) + len(stale)
    assert sql("select count(*) as number from jobs where status = 'pending'") == [{"number": 0}]


def test_a_second_run_of_the_migration_is_refused_and_changes_nothing(
    mails: tuple[Treadle, list[Row]], sql: Sql
) -> None:
    before = sql("select * from jobs order by id")
    with pytest.raises(errors.UniqueViolation, match="there is a job"):
        sql(MIGRATION)
    assert sql("select * from jobs order by id") == before


# ---------------------------------------------------------------------------------------------- every application

ERROR = {"message": "no", "attemptedAt": "2026-03-01T12:00:00.000000+00:00"}
PAST = {
    "chat_server": (
        {"user_id": ADA, "job_type": "greet", "max_retries": 2},
        {
            "pending": {"retry_count": 1, "error": "no mail"},
            "claimed": {"retry_count": 2, "claimed_at": 9},
            "running": {"retry_count": 1, "claimed_at": 9, "started_at": 8, "error": "before"},
            "complete": {"output": {"sent": 7}, "claimed_at": 9, "started_at": 8, "completed_at": 7, "retry_count": 1},
            "failed": {"retry_count": 2, "error": "no mail", "claimed_at": 9, "started_at": 8, "completed_at": 7},
        },
    ),
    "backend": (
        {"type": "greet", "max_attempts": 3},
        {
            "queued": {"attempts": 1, "last_error": "no mail", "last_run_at": 9},
            "running": {"attempts": 2, "last_run_at": 9, "worker_id": "w1", "lease_until": 4, "idempotency_key": "k"},
            "completed": {"attempts": 1, "last_run_at": 9, "completed_at": 8},
            "failed": {"attempts": 3, "last_run_at": 9, "last_error": "no mail"},
            "canceled": {"canceled_at": 8},
        },
    ),
    "tenant_ops": (
        {"tenant_id": ADA, "job_type": "greet", "maxRetries": 2},
        {
            "queued": {"retryCount": 1, "nextRetryAt": 2, "error": ERROR},
            "running": {"retryCount": 1, "startedAt": 9},
            "succeeded": {"output": {"sent": 7}, "startedAt": 9, "finishedAt": 8, "costCents": 12},
            "failed": {"retryCount": 2, "error": ERROR, "startedAt": 9, "finishedAt": 8},
        },
    ),
}
"""By profile: what every row has, and by its word what such a row has; a number is a time, so many minutes ago."""
CASES = [(name, word) for name, (_, rows) in PAST.items() for word in rows]
PROFILES = {"chat_server": chat_server.PROFILE, "backend": backend.PROFILE, "tenant_ops": tenant_ops.PROFILE}


def names(profile: str) -> tuple[str, str, str]:
    """The view, and its columns for the state and for the time it was made."""
    fields = PROFILES[profile].fields
    by_field = {source: name for name, source in fields.items() if isinstance(source, str)}
    return PROFILES[profile].table.name, by_field["state"], by_field["created_at"]


def past_row(profile: str, word: str, now: datetime) -> Row:
    every, rows = PAST[profile]
    _, state, created = names(profile)
    row = {"id": uuid4(), **every, state: word, created: 10, **rows[word]}
    counts = ("max", "retry", "attempts", "costCents")

    def value(name: str, given: object) -> object:
        if isinstance(given, dict):
            return Jsonb(given)
        if isinstance(given, int) and not name.startswith(counts):
            return now - given * MINUTE
        return given

    return {name: value(name, given) for name, given in row.items()}


def insert(sql: Sql, view: str, row: Row) -> Row:
    columns, marks = ", ".join(f'"{name}"' for name in row), ", ".join(["%s"] * len(row))
    [made] = sql(f"insert into {view} ({columns}) values ({marks}) returning *", *row.values())
    return made


def as_printed(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    return str(value) if isinstance(value, UUID) else value


@pytest.mark.parametrize(("name", "word"), CASES)
def test_a_row_with_a_past_is_in_the_view_as_it_was_inserted_and_as_the_profile_prints_it(
    open_view: Callable[..., Treadle], sql: Sql, name: str, word: str
) -> None:
    app = open_view(PROFILES[name])
    view, state, _ = names(name)
    sql("set timezone = 'Asia/Kolkata'")
    now = datetime.now(UTC).replace(microsecond=120_000)
    given = past_row(name, word, now)
    given = {
        column: value.replace(tzinfo=None) if isinstance(value, datetime) and name == "tenant_ops" else value
        for column, value in given.items()
    }

    made = insert(sql, view, given)

    assert sql(f"select * from {view} where {state} = %s", word) == [made]
    for column, value in given.items():
        assert made[column] == (value.obj if isinstance(value, Jsonb) else UUID(value) if value == ADA else value), (
            column
        )
    printed = app.view(app.get(str(given["id"])))
    for column, value in made.items():
        if column not in ("updated_at", "output", "error"):
            assert printed[column] == as_printed(value), column
    assert [event.kind for event in app.events(str(given["id"]))] == ["imported"]


@pytest.mark.parametrize(("name", "word"), CASES)
def test_a_role_that_does_not_own_the_tables_makes_new_rows_only(
    open_view: Callable[..., Treadle], sql: Sql, store_url: str, schema: str, into: str, name: str, word: str
) -> None:
    open_view(PROFILES[name])
    view, _, _ = names(name)
    role = f"web_{schema}"[:60]
    sql(f"create role {role}")
    try:
        sql(f"grant usage on schema {schema}, {into} to {role}")
        sql(f"grant select, insert on all tables in schema {schema}, {into} to {role}")
        with _connected(store_url, into) as connection:
            connection.execute(f"set role {role}")

            def as_web(statement: str, *values: object) -> list[Row]:
                return connection.execute(statement, values or None).fetchall()

            with pytest.raises(errors.FeatureNotSupported, match="has no past") as refused:
                insert(as_web, view, past_row(name, word, datetime.now(UTC)))
            assert "owns the tables" in str(refused.value.diag.message_hint)
            assert sql(f"select * from {view}") == []
            made = insert(as_web, view, PAST[name][0])
        assert sql(f"select id from {view}") == [{"id": made["id"]}]
    finally:
        sql(f"drop owned by {role}")
        sql(f"drop role {role}")


def test_a_key_of_a_row_with_a_past_is_held_for_ever(open_view: Callable[..., Treadle], sql: Sql) -> None:
    app = open_view(backend.PROFILE)
    now = datetime.now(UTC)
    insert(sql, "_ayb_jobs", {**past_row("backend", "completed", now), "idempotency_key": "k-1"})
    for again in ({"type": "greet"}, past_row("backend", "failed", now)):
        with pytest.raises(errors.UniqueViolation, match="idempotency_key"):
            insert(sql, "_ayb_jobs", {**again, "idempotency_key": "k-1"})
    assert sum(app.count().values()) == 1


def test_a_row_with_a_past_names_its_schedule(open_view: Callable[..., Treadle], sql: Sql) -> None:
    app = open_view(backend.PROFILE)
    schedule = app.schedules.create("hourly", "greet", cron="0 * * * *")
    later = datetime.now(UTC) + timedelta(seconds=5)
    row = {**past_row("backend", "failed", later + 20 * MINUTE), "schedule_id": schedule.id}
    assert str(insert(sql, "_ayb_jobs", row)["schedule_id"]) == schedule.id
    with pytest.raises(errors.ForeignKeyViolation, match="schedule_id"):
        insert(sql, "_ayb_jobs", {**past_row("backend", "failed", later), "schedule_id": uuid4()})


# ----------------------------------------------------------------------------------------------- a table of Prisma

CREATE = """
insert into "{schema}"."jobs" ("id", "tenant_id", "status", "job_type", "priority", "input", "output", "error",
    "costCents", "retryCount", "maxRetries", "createdAt")
values (%s, %s, cast(%s::text as "{schema}"."job_status"), %s, %s, %s, %s, %s, %s, %s, %s, %s)
returning "{schema}"."jobs"."id", "{schema}"."jobs"."status"::text, "{schema}"."jobs"."createdAt"
"""
FIND_MANY = """
select "id" from "{schema}"."jobs" where ("status" = cast(%s::text as "{schema}"."job_status") and "job_type" in (%s)
    and ("nextRetryAt" is null or "nextRetryAt" <= %s)) order by "priority" desc, "createdAt" asc limit 10
"""


def test_a_client_that_writes_down_every_default_by_its_own_clock_makes_a_job(
    open_view: Callable[..., Treadle], sql: Sql, into: str
) -> None:
    app = open_view(tenant_ops.PROFILE)
    app.register("EMAIL_SEND", lambda payload: {"sent": payload["to"]})
    given, now = {"to": "ada@example.org"}, datetime.now(UTC).replace(tzinfo=None)
    values = (
        uuid4(), ADA, "queued", "EMAIL_SEND", 0, Jsonb(given), Jsonb({}), Jsonb({}), 0, 0, 3,
        now - timedelta(seconds=2),
    )  # fmt: skip
    [made] = sql(CREATE.format(schema=into), *values)
    assert (made["id"], made["status"]) == (values[0], "queued")
    found = sql(FIND_MANY.format(schema=into), "queued", "EMAIL_SEND", now)
    assert found == [{"id": values[0]}]
    app.run_worker(until_idle=True)
    [row] = sql("select * from jobs")
    assert (row["status"], row["output"], row["input"], row["error"]) == ("succeeded", {"sent": given["to"]}, given, {})


def test_the_columns_of_the_prisma_table_have_its_names_types_and_defaults(
    open_view: Callable[..., Treadle], sql: Sql, into: str
) -> None:
    open_view(tenant_ops.PROFILE)
    stamp = ("timestamp without time zone", 3)
    found = sql(
        "select column_name as name, case data_type when 'USER-DEFINED' then udt_name else data_type end as type, "
        "datetime_precision as precision from information_schema.columns where table_schema = %s "
        "and table_name = 'jobs' order by ordinal_position", into,
    )  # fmt: skip
    assert {row["name"]: (row["type"], row["precision"]) for row in found} == {
        "id": ("uuid", None), "tenant_id": ("uuid", None), "status": ("job_status", None), "job_type": ("text", None),
        "priority": ("integer", None), "input": ("jsonb", None), "output": ("jsonb", None), "error": ("jsonb", None),
        "costCents": ("integer", None), "retryCount": ("integer", None), "maxRetries": ("integer", None),
        "nextRetryAt": stamp, "startedAt": stamp, "finishedAt": stamp, "createdAt": stamp,
    }  # fmt: skip
    row = insert(sql, "jobs", {"tenant_id": ADA, "job_type": "EMAIL_SEND"})
    assert [row[name] for name in ("status", "priority", "input", "output", "error", "costCents", "retryCount")] == [
        "queued", 0, {}, {}, {}, 0, 0,
    ]  # fmt: skip
    assert (row["maxRetries"], row["nextRetryAt"], row["startedAt"], row["finishedAt"]) == (3, None, None, None)
    assert abs(row["createdAt"] - datetime.now(UTC).replace(tzinfo=None)) < MINUTE


def test_a_job_of_the_tenant_system_is_shown_as_its_profile_prints_it(
    make_app: Callable[..., Treadle], sql: Sql, schema: str, into: str, clock: FakeClock
) -> None:
    app = make_app(profile=tenant_ops.PROFILE)
    app.migrate()
    sql(own_table_sql(tenant_ops.PROFILE, schema=schema, into=into))
    task = app.register("ENGINE_RUN", lambda payload: {"steps": payload}).using(tenant=ADA)
    for outcome in (
        Succeeded('{"steps":3}'),
        Failed(JobError("E", "boom", "Traceback", 1, clock.now().isoformat())),
        FailedForGood(Reason.PERMANENT, JobError("E", "no", "", 1, clock.now().isoformat())),
    ):
        task.enqueue(1)
        [job] = claim(app.engine, 1)
        settle(app.engine, start(app.engine, job), outcome)
    task.using(run_after="1h").enqueue(2)
    for row in sql('select * from jobs order by "createdAt"'):
        printed = app.view(app.get(str(row["id"])))
        shown = {
            column: value.replace(tzinfo=UTC).isoformat() if isinstance(value, datetime) else value
            for column, value in {**row, "id": str(row["id"]), "tenant_id": str(row["tenant_id"])}.items()
        }
        assert shown == printed
    assert run_until_idle(app) is not None


def test_a_table_may_have_any_name(open_view: Callable[..., Treadle], sql: Sql, schema: str, into: str) -> None:
    open_view(tenant_ops.PROFILE)
    for name in ("Job", 'My "own" jobs', "select"):
        sql(own_table_sql(tenant_ops.PROFILE, schema=schema, into=into, table=name))
        view = '"' + name.replace('"', '""') + '"'
        insert(sql, view, {"tenant_id": ADA, "job_type": "greet"})
        with pytest.raises(errors.FeatureNotSupported, match="changed by treadle"):
            sql(f"delete from {view}")
    assert len(sql('select * from "Job"')) == 3


# ----------------------------------------------------------------------------------------------- what it refuses


def test_a_profile_that_cannot_be_a_view_is_refused_with_what_it_lacks() -> None:
    whole = tenant_ops.PROFILE
    fields, table = dict(whole.fields), whole.table
    wrong = {
        "has no table": companion.PROFILE,
        "none of them is 'task'": whole._replace(
            fields={name: what for name, what in fields.items() if what != "task"}
        ),
        "'nope' is not one of its fields": whole._replace(table=table._replace(types={"nope": "text"})),
        "'progress', which a view cannot show": whole._replace(fields={**fields, "progress": "progress"}),
        "'open' is not one of its words": whole._replace(table=table._replace(words=("queued", "open"))),
    }
    for message, profile in wrong.items():
        with pytest.raises(ConfigError, match=message):
            own_table_sql(profile)
    for name in ("", "x" * 51):
        with pytest.raises(ConfigError, match="table"):
            own_table_sql(whole, table=name)
    with pytest.raises(ConfigError, match="'jobs' has a script of its own"):
        own_table_sql(chat_server.PROFILE, table="tasks")
