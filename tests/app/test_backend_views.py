"""`treadle own-table` with the profile backend: `_ayb_jobs` and `_ayb_job_schedules` as views over treadle's tables."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import Thread
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import errors
from psycopg.rows import dict_row

from tests.support.making import claim
from tests.support.scheduling import fire
from tests.support.workbench import until
from treadle import ConfigError, GiveUp, Treadle
from treadle.importers import own_table_sql
from treadle.profiles import backend
from treadle.testing import FakeClock, run_until_idle

Sql = Callable[..., list[dict[str, object]]]
WHEN = "timestamp with time zone"
TEXT = "character varying"
JOBS = {  # by column: type, whether it may be null, default; as migration 023 of the document has them
    "id": ("uuid", False, "gen_random_uuid()"), "type": (TEXT, False, None), "payload": ("jsonb", False, "'{}'"),
    "state": (TEXT, False, "'queued'"), "run_at": (WHEN, False, "now()"), "lease_until": (WHEN, True, None),
    "worker_id": (TEXT, True, None), "attempts": ("integer", False, "0"), "max_attempts": ("integer", False, "3"),
    "last_error": ("text", True, None), "last_run_at": (WHEN, True, None), "idempotency_key": (TEXT, True, None),
    "schedule_id": ("uuid", True, None), "created_at": (WHEN, False, "now()"), "updated_at": (WHEN, False, "now()"),
    "completed_at": (WHEN, True, None), "canceled_at": (WHEN, True, None),
}  # fmt: skip
SCHEDULES = {  # as migration 024
    "id": ("uuid", False, "gen_random_uuid()"), "name": (TEXT, False, None), "job_type": (TEXT, False, None),
    "payload": ("jsonb", False, "'{}'"), "cron_expr": (TEXT, False, None), "timezone": (TEXT, False, "'UTC'"),
    "enabled": ("boolean", False, "true"), "max_attempts": ("integer", False, "3"), "next_run_at": (WHEN, True, None),
    "last_run_at": (WHEN, True, None), "created_at": (WHEN, False, "now()"), "updated_at": (WHEN, False, "now()"),
}  # fmt: skip
NEW_JOB = {"type": "clean"}
NEW_SCHEDULE = {"name": "hourly", "job_type": "clean", "cron_expr": "0 * * * *"}


@pytest.fixture(params=["postgres"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    """Only this engine: the others have no views."""
    return request.param


@pytest.fixture
def app(make_app: Callable[..., Treadle]) -> Treadle:
    app = make_app(profile=backend.PROFILE)
    app.register("clean", lambda: None)

    @app.task
    def broken() -> None:
        raise GiveUp("no such table")

    return app


@pytest.fixture
def sql(app: Treadle, store_url: str) -> Iterator[Sql]:
    """`sql(statement, *values)` where the views are the nearest tables; its rows."""
    server, _, schema = store_url.partition("?schema=")
    with psycopg.connect(server, autocommit=True, row_factory=dict_row) as connection:
        connection.execute(own_table_sql(backend.PROFILE, schema=schema, into=schema))
        connection.execute(own_table_sql(backend.PROFILE, schema=schema, into=schema))  # it may be run again
        connection.execute(f"set search_path = {schema}")

        def run(statement: str, *values: object) -> list[dict[str, object]]:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

        yield run


def insert(sql: Sql, view: str, row: dict[str, object]) -> dict[str, object]:
    names, marks = ", ".join(row), ", ".join(["%s"] * len(row))
    [made] = sql(f"insert into {view} ({names}) values ({marks}) returning *", *row.values())
    return made


def described(sql: Sql, view: str) -> dict[str, tuple[object, object]]:
    rows = sql(
        "select column_name as name, data_type as type, split_part(column_default, '::', 1) as standard "
        "from information_schema.columns where table_schema = current_schema and table_name = %s "
        "order by ordinal_position", view,
    )  # fmt: skip
    return {str(row["name"]): (row["type"], row["standard"]) for row in rows}


@pytest.mark.covers("002-M1.a", "002-M3.a")
@pytest.mark.parametrize(
    ("view", "columns", "least"),
    [("_ayb_jobs", JOBS, NEW_JOB), ("_ayb_job_schedules", SCHEDULES, NEW_SCHEDULE)],
    ids=["jobs", "schedules"],
)
def test_every_column_has_its_type_its_default_and_refuses_null_where_it_did(
    sql: Sql, view: str, columns: dict[str, tuple[str, bool, str | None]], least: dict[str, object]
) -> None:
    assert described(sql, view) == {name: (kind, standard) for name, (kind, _, standard) in columns.items()}
    for name, (_, nullable, _) in columns.items():
        if not nullable:
            with pytest.raises(errors.NotNullViolation, match=rf"\b{name}\b"):
                insert(sql, view, {**least, name: None})
    row = insert(sql, view, least)
    assert {name for name, value in row.items() if value is None} == {
        name for name, (_, nullable, _) in columns.items() if nullable
    }
    assert isinstance(row["id"], UUID)
    assert (row["payload"], row["max_attempts"], row["created_at"] == row["updated_at"]) == ({}, 3, True)
    assert sql(f"select * from {view}") == [row]


@pytest.mark.covers("002-M1.a", "002-M1.b")
def test_a_job_of_each_state_is_in_it_as_the_api_prints_it(app: Treadle, sql: Sql, clock: FakeClock) -> None:
    made = {"completed": app.enqueue("clean"), "failed": app.enqueue("broken")}
    run_until_idle(app)
    made["canceled"] = app.cancel(app.enqueue("clean").id)
    made["running"] = app.enqueue("clean")
    claim(app.engine, 1)
    clock.advance(seconds=5)
    made["queued"] = app.tasks["clean"].using(key="k-1", run_after="1h").enqueue()
    expired = app.tasks["clean"].using(expires_at=clock.now() + timedelta(seconds=1)).enqueue()
    clock.advance(seconds=2)
    run_until_idle(app)
    app.tasks["clean"].using(tenant="acme").enqueue()  # nobody's here
    assert {str(row["id"]): row["state"] for row in sql("select id, state from _ayb_jobs")} == {
        **{job.id: word for word, job in made.items()},
        expired.id: "failed",
    }
    for word, job in made.items():
        [row] = sql("select * from _ayb_jobs where state = %s and id = %s", word, job.id)
        printed = app.view(app.get(job.id))
        shown = {
            name: value if value is None or not name.endswith(("_at", "_until")) else value.isoformat()
            for name, value in {**row, "id": str(row["id"])}.items()
        }
        assert {**shown, "updated_at": None} == {**printed, "updated_at": None}
        assert list(JOBS) == list(row)


@pytest.mark.covers("002-M1.a")
def test_an_insert_is_a_job_with_its_time_key_attempts_and_schedule(app: Treadle, sql: Sql) -> None:
    schedule = insert(sql, "_ayb_job_schedules", NEW_SCHEDULE)
    given = {"type": "clean", "idempotency_key": "k-1", "max_attempts": 7, "schedule_id": schedule["id"]}
    row = insert(sql, "_ayb_jobs", given)
    job = app.get(str(row["id"]))
    assert (job.task, job.key, job.key_scope, job.schedule, job.tenant) == ("clean", "k-1", "ever", "hourly", "default")
    assert (row["schedule_id"], row["max_attempts"], row["state"]) == (schedule["id"], 7, "queued")
    assert job.retry == (7, 5, 300, 1)
    with pytest.raises(errors.UniqueViolation, match="idempotency_key"):
        insert(sql, "_ayb_jobs", given)
    with pytest.raises(errors.UniqueViolation, match="id"):
        insert(sql, "_ayb_jobs", {"type": "clean", "id": row["id"]})
    with pytest.raises(errors.ForeignKeyViolation, match="schedule_id"):
        insert(sql, "_ayb_jobs", {"type": "clean", "schedule_id": uuid4()})
    with pytest.raises(errors.CheckViolation, match="max_attempts"):
        insert(sql, "_ayb_jobs", {"type": "clean", "max_attempts": 0})
    assert len(sql("select 1 from _ayb_jobs")) == 1
    sql("delete from _ayb_job_schedules where id = %s", schedule["id"])
    assert sql("select schedule_id from _ayb_jobs") == [{"schedule_id": None}]


@pytest.mark.covers("002-M1.b")
def test_other_writes_to_jobs_are_refused_with_the_way_out(app: Treadle, sql: Sql) -> None:
    insert(sql, "_ayb_jobs", NEW_JOB)
    for statement, error in (
        ("update _ayb_jobs set state = 'done'", errors.CheckViolation),
        ("insert into _ayb_jobs (type, state) values ('clean', 'pending')", errors.CheckViolation),
        ("update _ayb_jobs set state = 'canceled'", errors.FeatureNotSupported),
        ("delete from _ayb_jobs", errors.FeatureNotSupported),
    ):
        with pytest.raises(error) as refused:
            sql(statement)
        assert error is errors.CheckViolation or refused.value.diag.message_hint
    assert [job.state for job in app.find().jobs] == ["pending"]


@pytest.mark.covers("002-M3.a")
def test_a_schedule_can_be_made_changed_and_deleted_by_sql_and_is_the_apps(
    app: Treadle, sql: Sql, clock: FakeClock
) -> None:
    row = insert(sql, "_ayb_job_schedules", {**NEW_SCHEDULE, "timezone": "Asia/Kolkata"})
    made = app.schedules.get(str(row["id"]))
    assert (made.name, made.timezone, made.max_attempts, made.next_at) == ("hourly", "Asia/Kolkata", 3, None)
    fire(app)  # a worker computes its first time
    [row] = sql("select * from _ayb_job_schedules")
    assert row["next_run_at"] == app.schedules.get("hourly").next_at
    sql("update _ayb_job_schedules set enabled = false, payload = '{}'")
    sql("update _ayb_job_schedules set enabled = true")
    assert app.schedules.get("hourly").next_at is None
    sql("update _ayb_job_schedules set cron_expr = '*/5 * * * *', max_attempts = 9")
    changed = app.schedules.get("hourly")
    assert (changed.cron, changed.max_attempts, changed.revision > made.revision) == ("*/5 * * * *", 9, True)
    with pytest.raises(errors.UniqueViolation):
        insert(sql, "_ayb_job_schedules", NEW_SCHEDULE)
    with pytest.raises(errors.UniqueViolation):
        insert(sql, "_ayb_job_schedules", {**NEW_SCHEDULE, "name": "other", "id": row["id"]})
    for wrong in ({"cron_expr": "0 * * * * *"}, {"timezone": "Mars/Base"}, {"max_attempts": 0}):
        with pytest.raises(errors.CheckViolation):
            insert(sql, "_ayb_job_schedules", {**NEW_SCHEDULE, "name": "wrong", **wrong})
    with pytest.raises(errors.FeatureNotSupported):
        sql("update _ayb_job_schedules set name = 'other'")
    sql("delete from _ayb_job_schedules")
    assert list(app.schedules.list()) == []


def test_a_change_by_sql_leaves_what_others_change_meanwhile(app: Treadle, sql: Sql, store_url: str) -> None:
    insert(sql, "_ayb_job_schedules", NEW_SCHEDULE)
    server, _, schema = store_url.partition("?schema=")
    with psycopg.connect(server) as other:
        other.execute(f"update {schema}.schedules set enabled = false, cron = '0 5 * * *', revision = revision + 1")
        [[me]] = [row.values() for row in sql("select pg_backend_pid()")]
        changing = Thread(target=sql, args=("""update _ayb_job_schedules set payload = '{"x": 2}'""",))
        changing.start()
        until(
            lambda: other.execute("select 1 from pg_locks where pid = %s and not granted", [me]).fetchall(), "the wait"
        )
        other.commit()
        changing.join()
    stored = app.schedules.get("hourly")
    assert (stored.enabled, stored.cron, stored.payload, stored.revision) == (False, "0 5 * * *", {"x": 2}, 2)


def test_schedules_by_an_interval_and_of_other_tenants_are_not_in_it(app: Treadle, sql: Sql) -> None:
    app.schedules.create("often", "clean", every="1m")
    app.schedules.create("hourly", "clean", cron="0 * * * *", tenant="acme")
    ours = app.schedules.create("hourly", "clean", cron="0 * * * *")
    assert sql("select id::text, name from _ayb_job_schedules") == [{"id": ours.id, "name": "hourly"}]


def test_without_treadle_or_beside_a_table_the_script_says_what_to_do_first(app: Treadle, store_url: str) -> None:
    server, _, schema = store_url.partition("?schema=")
    app.schedules.list()
    with psycopg.connect(server, autocommit=True) as connection:
        with pytest.raises(errors.RaiseException, match="no treadle here"):
            connection.execute(own_table_sql(backend.PROFILE, schema="nowhere", into=schema))
        connection.rollback()
        connection.execute(f"create table {schema}._ayb_jobs (id uuid)")
        with pytest.raises(errors.RaiseException, match="is a table"):
            connection.execute(own_table_sql(backend.PROFILE, schema=schema, into=schema))
    for name in ("", "a.b", "x; drop", "Übel"):
        with pytest.raises(ConfigError, match="schema"):
            own_table_sql(backend.PROFILE, schema=name)
