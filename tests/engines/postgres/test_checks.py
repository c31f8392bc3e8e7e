"""What triggers ask of a job, whoever writes it: bad values are refused, and future jobs of lanes are marked."""

from collections.abc import Callable, Iterator
from datetime import timedelta

import psycopg
import pytest
from psycopg import errors

from tests.support.making import a_job, claim, enqueued
from treadle.engines.postgres.engine import PostgresEngine
from treadle.engines.postgres.schema import named
from treadle.model import new_id

DAY = timedelta(days=1)

Sql = Callable[[str], list[tuple[object, ...]]]

BAD = [
    ("task", "''"),
    ("task", "repeat('x', 201)"),
    ("created_at", "'infinity'"),
    ("created_at", "'0044-03-15 BC'"),
    ("due_at", "'infinity'"),
    ("due_at", "'20000-01-01'"),
    ("tenant", "''"),
    ("tenant", "repeat('x', 201)"),
    ("queue", "''"),
    ("queue", "repeat('x', 201)"),
    ("lane", "repeat('x', 201)"),
    ("max_attempts", "0"),
    ("max_attempts", "10001"),
    ("retry_base", "-1"),
    ("retry_base", "'NaN'"),
    ("retry_base", "'infinity'"),
    ("retry_cap", "-1"),
    ("retry_cap", "'NaN'"),
    ("retry_cap", "'infinity'"),
    ("retry_jitter", "-1"),
    ("retry_jitter", "'NaN'"),
    ("retry_jitter", "'infinity'"),
    ("timeout", "0"),
    ("timeout", "'NaN'"),
    ("timeout", "'infinity'"),
    ("expires_at", "'infinity'"),
    ("expires_at", "'-infinity'"),
    ("key_until", "'infinity'"),
    ("key_until", "'0044-03-15 BC'"),
    ("on_end", "'[]'"),
    ("on_end", """'{"cancelled": {}}'"""),
    ("on_end", """'{"failed": 1}'"""),
]
KEYS = [
    ({"key": "''", "key_scope": "'active'"}, "jobs_key_check"),
    ({"key": "repeat('x', 1001)", "key_scope": "'active'"}, "jobs_key_check"),
    ({"key": "'k'", "key_scope": "'daily'"}, "jobs_key_scope_check"),
    ({"key": "'k'"}, "jobs_key_and_scope"),
    ({"key_scope": "'active'"}, "jobs_key_and_scope"),
]
REFUSED = [*(({column: value}, f"jobs_{column}_check") for column, value in BAD), *KEYS]
IDS = [f"{constraint}-{'-'.join(fields.values())[:20]}" for fields, constraint in REFUSED]


@pytest.fixture
def engine(open_engine: Callable[..., PostgresEngine], store_url: str) -> PostgresEngine:
    engine = open_engine(store_url)
    engine.open()
    return engine


@pytest.fixture
def sql(engine: PostgresEngine, store_url: str) -> Iterator[Sql]:
    """Runs a statement of somebody who knows only SQL, and commits it; its rows."""
    with psycopg.connect(store_url.partition("?")[0], autocommit=True) as connection:

        def run(statement: str) -> list[tuple[object, ...]]:
            cursor = connection.execute(named(statement, engine.schema))
            return cursor.fetchall() if cursor.description else []

        yield run


def refusal(sql: Sql, statement: str) -> tuple[str | None, str | None, str | None]:
    """The code, the constraint and the table that the error names."""
    with pytest.raises(errors.CheckViolation) as refused:
        sql(statement)
    diagnostic = refused.value.diag
    return diagnostic.sqlstate, diagnostic.constraint_name, diagnostic.table_name


# ------------------------------------------------------------------------------------------------ bad values


@pytest.mark.parametrize(("fields", "constraint"), REFUSED, ids=IDS)
def test_a_bad_value_in_an_insert_is_refused_by_the_name_of_its_check(
    sql: Sql, fields: dict[str, str], constraint: str
) -> None:
    row = {"task": "'greet'", **fields}

    said = refusal(sql, f"insert into @.jobs ({', '.join(row)}) values ({', '.join(row.values())})")

    assert said == ("23514", constraint, "jobs")
    assert sql("select id from @.jobs") == []


@pytest.mark.parametrize(("fields", "constraint"), REFUSED, ids=IDS)
def test_a_bad_value_in_an_update_is_refused_by_the_name_of_its_check(
    sql: Sql, engine: PostgresEngine, fields: dict[str, str], constraint: str
) -> None:
    job = enqueued(engine)

    said = refusal(sql, f"update @.jobs set {', '.join(f'{name} = {value}' for name, value in fields.items())}")

    assert said == ("23514", constraint, "jobs")
    assert engine.get([job.id]) == [job]


def test_one_bad_row_among_many_refuses_the_insert(sql: Sql) -> None:
    said = refusal(
        sql, "insert into @.jobs (task) select case n when 50 then '' else 'greet' end from generate_series(1, 99) n"
    )

    assert said == ("23514", "jobs_task_check", "jobs")
    assert sql("select id from @.jobs") == []


@pytest.mark.parametrize("shape", ["alone", "beside another", "beside one alike"])
@pytest.mark.parametrize("field", ["task", "tenant", "queue", "lane"])
def test_a_bad_value_in_an_enqueue_is_refused_by_the_name_of_its_check(
    engine: PostgresEngine, field: str, shape: str
) -> None:
    """The functions that store our own jobs ask for themselves: no trigger is behind them."""
    bad = a_job(engine.now(), **{field: "x" * 201})
    beside = {"alone": [], "beside another": [a_job(engine.now())], "beside one alike": [bad.evolve(id=new_id())]}[
        shape
    ]

    receipts = engine.enqueue([bad, *beside])

    good = [job.id for job in beside if shape == "beside another"]
    assert f"jobs_{field}_check" in receipts[0].refused
    assert [receipt.job.id for receipt in receipts if receipt.created] == good
    assert [job.id for job in claim(engine)] == good


def test_a_copy_is_asked_like_an_insert(engine: PostgresEngine, store_url: str) -> None:
    copying = f"copy {engine.schema}.jobs (task, max_attempts) from stdin"
    with (
        pytest.raises(errors.CheckViolation) as refused,
        psycopg.connect(store_url.partition("?")[0]) as connection,
        connection.cursor().copy(copying) as copy,
    ):
        copy.write_row(("greet", 0))
    assert refused.value.diag.constraint_name == "jobs_max_attempts_check"


def test_what_an_upsert_updates_is_asked_too(sql: Sql, engine: PostgresEngine) -> None:
    job = enqueued(engine)

    said = refusal(
        sql,
        f"insert into @.jobs (id, task) values ('{job.id}', 'greet') on conflict (id) do update set max_attempts = 0",
    )

    assert said == ("23514", "jobs_max_attempts_check", "jobs")


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [("state = 'done'", "jobs_state_check"), ("state = 'running'", "jobs_lease_while_running")],
)
def test_what_a_claim_writes_is_still_a_constraint(
    sql: Sql, engine: PostgresEngine, fields: str, constraint: str
) -> None:
    enqueued(engine)

    assert refusal(sql, f"update @.jobs set {fields}") == ("23514", constraint, "jobs")


# ------------------------------------------------------------------------------------------ jobs of lanes, later


def marks(sql: Sql) -> list[object]:
    return [later for (later,) in sql("select later from @.jobs order by id")]


@pytest.mark.parametrize(
    ("fields", "later"),
    [
        ({"lane": "'a'", "due_at": "now() + interval '1 day'"}, True),
        ({"lane": "'a'", "due_at": "now()"}, False),
        ({"lane": "''", "due_at": "now() + interval '1 day'"}, False),
    ],
    ids=["of a lane, in the future", "of a lane, due", "of no lane"],
)
def test_a_future_job_of_a_lane_is_marked_whoever_inserts_it(sql: Sql, fields: dict[str, str], later: bool) -> None:
    row = {"task": "'greet'", **fields}

    sql(f"insert into @.jobs ({', '.join(row)}) values ({', '.join(row.values())})")

    assert marks(sql) == [later]


def test_of_many_rows_in_one_insert_the_future_ones_of_lanes_are_marked(sql: Sql) -> None:
    sql(
        "insert into @.jobs (id, task, lane, due_at) select @.new_id(), 'greet', case when n > 2 then 'a' else '' end,"
        " now() + (n % 2) * interval '1 day' from generate_series(1, 4) n"
    )

    assert sorted(sql("select lane, due_at > now(), later from @.jobs")) == [
        ("", False, False), ("", True, False), ("a", False, False), ("a", True, True)
    ]  # fmt: skip


def test_a_future_job_of_a_lane_by_the_sql_function_and_by_python_is_marked(sql: Sql, engine: PostgresEngine) -> None:
    sql("select @.enqueue('greet', lane => 'a', run_after => now() + interval '1 day')")
    now = engine.now()
    engine.enqueue([a_job(now, lane="a", due_at=now + DAY)])
    engine.enqueue([a_job(now, lane="a", due_at=now + DAY), a_job(now, lane="a", priority=1, due_at=now + DAY)])

    assert marks(sql) == [True] * 4


@pytest.mark.parametrize("lane", ["", "a"])
def test_a_due_job_that_somebody_marked_is_claimed(sql: Sql, engine: PostgresEngine, lane: str) -> None:
    job = enqueued(engine, lane=lane)
    sql("update @.jobs set later = true")

    assert [each.id for each in claim(engine, 1)] == [job.id]
    assert marks(sql) == [False]


@pytest.mark.parametrize("lanes", [None, ["a"]], ids=["any lane", "its lane"])
def test_a_due_job_that_somebody_marked_is_claimed_behind_others_of_its_lane_too(
    sql: Sql, engine: PostgresEngine, lanes: list[str] | None
) -> None:
    jobs = [enqueued(engine, lane="a") for _ in range(3)]
    sql(f"update @.jobs set later = true where id = '{jobs[1].id}'")

    assert [each.id for each in claim(engine, 3, lanes=lanes)] == [job.id for job in jobs]


def test_a_future_job_of_a_lane_that_somebody_unmarked_is_claimed_when_it_is_due_and_not_before(
    sql: Sql, engine: PostgresEngine
) -> None:
    job, now = enqueued(engine, lane="a", due_at=engine.now() + DAY), engine.now()
    due = enqueued(engine, lane="b")
    sql("update @.jobs set later = false")

    assert [each.id for each in claim(engine, 2)] == [due.id]
    assert claim(engine, 2) == []
    sql(f"update @.jobs set due_at = '{now.isoformat()}' where id = '{job.id}'")
    assert [each.id for each in claim(engine, 2)] == [job.id]


def test_a_marked_job_whose_time_somebody_moved_to_now_is_claimed(sql: Sql, engine: PostgresEngine) -> None:
    job = enqueued(engine, lane="a", due_at=engine.now() + DAY)
    assert marks(sql) == [True]

    sql("update @.jobs set due_at = now()")

    assert [each.id for each in claim(engine, 1)] == [job.id]


def test_a_due_job_whose_time_and_lane_somebody_changed_is_found_by_its_new_lane(
    sql: Sql, engine: PostgresEngine
) -> None:
    job = enqueued(engine)

    sql("update @.jobs set lane = 'a', due_at = now() - interval '1 minute'")

    assert [each.id for each in claim(engine, 1)] == [job.id]
