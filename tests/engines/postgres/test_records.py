"""The rows beside the jobs on PostgreSQL: written by plain SQL too, held by open transactions, upgraded from before."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.support.making import a_job, claim, current, enqueued
from treadle.engines.postgres import audit
from treadle.engines.postgres.engine import PostgresEngine
from treadle.engines.rows import on_end_from, on_end_text
from treadle.engines.values import JobFilter, Retention, Ruling, Saved
from treadle.errors import EngineError
from treadle.model import Event, EventKind, FollowUp, Job, OnEnd, Scope, State, lifecycle, new_id
from treadle.model.lifecycle import Succeeded
from treadle.model.records import Pause, Schedule, Seal, subject
from treadle.testing import FakeClock

Sql = Callable[..., list[tuple[Any, ...]]]
Session = Callable[[], psycopg.Connection[Any]]


@pytest.fixture(autouse=True)
def _short_timeout(answer_timeout: Callable[[float], None]) -> None:
    answer_timeout(5.0)  # who waits for a lock is told so in time


@pytest.fixture
def session(store_url: str) -> Iterator[Session]:
    """Opens connections of people who are not treadle, each in a transaction that ends with the test."""
    opened: list[psycopg.Connection[Any]] = []

    def open_one() -> psycopg.Connection[Any]:
        opened.append(psycopg.connect(store_url.partition("?")[0]))
        return opened[-1]

    yield open_one
    for connection in opened:
        connection.close()


@pytest.fixture
def sql(engine: PostgresEngine, session: Session) -> Sql:
    """Runs a statement as somebody else, and commits it; @ is the schema."""

    def run(statement: str, *values: Any) -> list[tuple[Any, ...]]:
        connection = session()
        cursor = connection.execute(statement.replace("@.", f"{engine.schema}."), values)
        rows = cursor.fetchall() if cursor.description else []
        connection.commit()
        return rows

    return run


def a_schedule(now: Any, **fields: Any) -> Schedule:
    return Schedule(**{"name": "tick", "task": "greet", "created_at": now, "every": 60.0, "next_at": now, **fields})


def fired(schedule: Schedule, job: Job) -> Schedule:
    """The schedule after it made this job."""
    return schedule.evolve(
        next_at=schedule.next_at + timedelta(seconds=60), last_job=job.id, revision=schedule.revision + 1
    )


# --------------------------------------------------------------------------------------------- by plain SQL


@pytest.mark.parametrize(
    ("values", "fields"),
    [
        ("(name, task, cron) values ('report', 'greet', '@daily')", {"cron": "@daily"}),
        ("(name, task, every) values ('report', 'greet', 90)", {"every": 90.0}),
        (
            "(name, task, cron, timezone, tenant, payload) values"
            " ('report', 'greet', '0 6 * * 1-5', 'Europe/Berlin', 'acme', '{\"name\": \"Ada\"}')",
            {"cron": "0 6 * * 1-5", "timezone": "Europe/Berlin", "tenant": "acme", "payload": {"name": "Ada"}},
        ),
    ],
)
def test_a_schedule_may_be_inserted_with_plain_sql_and_is_what_python_would_make(
    engine: PostgresEngine, sql: Sql, values: str, fields: dict[str, Any]
) -> None:
    [(created_at,)] = sql(f"insert into @.schedules {values} returning created_at")

    made = Schedule(name="report", task="greet", created_at=created_at, **fields)
    [stored] = engine.records(Schedule)
    assert stored == made.evolve(own_id=stored.id)
    assert engine.due(limit=10) == [stored], "a worker computes its first time"


def test_a_schedule_that_somebody_disabled_with_sql_since_it_was_read_does_not_fire(
    engine: PostgresEngine, clock: FakeClock, sql: Sql
) -> None:
    schedule = a_schedule(clock.now())
    engine.save(schedule, before=None)
    [read] = engine.due(limit=1)
    sql("update @.schedules set enabled = false")
    job = a_job(clock.now())

    assert engine.save(fired(read, job), before=read, job=job) == Saved(done=False)
    assert engine.get([job.id]) == [None]
    assert engine.records(Schedule) == [schedule.evolve(enabled=False)]
    assert engine.due(limit=1) == []


def test_a_schedule_whose_next_time_somebody_took_away_with_sql_is_computed_anew(
    engine: PostgresEngine, clock: FakeClock, sql: Sql
) -> None:
    schedule = a_schedule(clock.now() + timedelta(days=1))
    engine.save(schedule, before=None)
    assert engine.due(limit=1) == []
    sql("update @.schedules set cron = '@hourly', every = null, next_at = null")

    [found] = engine.due(limit=1)
    assert (found.cron, found.every, found.next_at) == ("@hourly", None, None)
    job = a_job(clock.now())
    assert not engine.save(fired(schedule, job), before=schedule, job=job).done


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        ("name, task", "'x', 'greet'"),
        ("name, task, cron, every", "'x', 'greet', '@daily', 60"),
        ("name, task, every", "'x', 'greet', 0"),
        ("name, task, every", "'x', 'greet', 'infinity'"),
        ("name, task, every", "'x', 'greet', 'nan'"),
        ("name, task, every", "'', 'greet', 60"),
        ("name, task, every", "repeat('x', 201), 'greet', 60"),
        ("name, task, every, misfire", "'x', 'greet', 60, 'sometimes'"),
        ("name, task, every, overlap", "'x', 'greet', 60, 'maybe'"),
        ("name, task, every, max_attempts", "'x', 'greet', 60, 0"),
        ("name, task, every, timeout", "'x', 'greet', 60, 0"),
        ("name, task, every, next_at", "'x', 'greet', 60, 'infinity'"),
        ("name, task, every, created_at", "'x', 'greet', 60, '-infinity'"),
    ],
)
def test_a_schedule_that_no_worker_could_read_or_fire_is_refused_by_the_database(
    engine: PostgresEngine, sql: Sql, columns: str, values: str
) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        sql(f"insert into @.schedules ({columns}) values ({values})")


ENDS = {
    '{"succeeded": {"event": "SENT"}}': True,
    on_end_text(OnEnd(FollowUp("SENT", "thank"), FollowUp())): True,
    "{}": True,
    '{"afterwards": null}': False,
    '{"failed": "thank"}': False,
    '["thank"]': False,
    "null": False,
}


@pytest.mark.parametrize(("on_end", "good"), ENDS.items(), ids=ENDS)
@pytest.mark.parametrize("table", ["jobs (task, on_end)", "schedules (name, task, every, on_end)"])
def test_what_follows_may_be_written_with_plain_sql_and_is_refused_where_no_worker_could_read_it(
    engine: PostgresEngine, clock: FakeClock, sql: Sql, table: str, on_end: str, good: bool
) -> None:
    names = "'greet'" if table.startswith("jobs") else "'tick', 'greet', 60"
    insert = f"insert into @.{table} values ({names}, %s)"
    if not good:
        with pytest.raises(psycopg.errors.CheckViolation):
            sql(insert, on_end)
        return
    sql(insert, on_end)
    clock.advance(days=3650)  # the database has gone by its own time
    [found] = claim(engine) or engine.due(limit=1)
    assert found.on_end == on_end_from(on_end)


@pytest.mark.parametrize("moment", ["infinity", "-infinity", "0001-01-01 00:00+00", "10000-01-01 00:00+00"])
def test_a_pause_that_no_worker_could_read_is_refused_by_the_database(
    engine: PostgresEngine, sql: Sql, moment: str
) -> None:
    for column in ("at", "until"):
        with pytest.raises(psycopg.errors.CheckViolation):
            sql(f"insert into @.pauses ({column}) values (%s)", moment)


# ------------------------------------------------------------------------------------- held by open transactions


@pytest.mark.parametrize("act", ["update @.schedules set enabled = false", "delete from @.schedules"])
def test_a_schedule_that_an_open_transaction_holds_does_not_fire_and_keeps_no_other_from_it(
    engine: PostgresEngine, clock: FakeClock, session: Session, act: str
) -> None:
    held, other = a_schedule(clock.now(), name="held"), a_schedule(clock.now(), name="other")
    for schedule in (held, other):
        engine.save(schedule, before=None)
    jobs = {schedule.name: a_job(clock.now()) for schedule in (held, other)}
    stranger = session()
    stranger.execute(f"{act.replace('@', engine.schema)} where name = 'held'")

    for schedule, done in ((held, False), (other, True)):
        job = jobs[schedule.name]
        assert engine.save(fired(schedule, job), before=schedule, job=job).done is done
    assert not engine.drop(held)
    stranger.rollback()
    assert engine.save(fired(held, jobs["held"]), before=held, job=jobs["held"]).done


def test_a_schedule_whose_key_an_open_transaction_is_taking_fires_when_that_is_over(
    engine: PostgresEngine, clock: FakeClock, session: Session
) -> None:
    schedule = a_schedule(clock.now())
    engine.save(schedule, before=None)
    job = a_job(clock.now(), key="tick", key_scope=Scope.ACTIVE)
    stranger = session()
    stranger.execute(f"select {engine.schema}.enqueue('greet', key => 'tick')")

    assert engine.save(fired(schedule, job), before=schedule, job=job) == Saved(done=False)
    assert engine.records(Schedule) == [schedule]
    stranger.commit()
    saved = engine.save(fired(schedule, job), before=schedule, job=job)
    assert (saved.done, saved.receipt.created) == (True, False)


# --------------------------------------------------------------------------------------------------- one atom


def test_a_job_that_the_database_refuses_does_not_undo_the_save(engine: PostgresEngine, clock: FakeClock) -> None:
    schedule = a_schedule(clock.now())
    engine.save(schedule, before=None)
    job = a_job(clock.now(), task="x" * 201)
    line = Event(subject(schedule), 1, clock.now(), EventKind.CHANGED, "w1", "", "default")

    saved = engine.save(fired(schedule, job), before=schedule, job=job, event=line)

    assert saved.done
    assert (saved.receipt.created, "jobs_task_check" in saved.receipt.refused) == (False, True)
    assert engine.records(Schedule) == [fired(schedule, job)]
    assert engine.events(subject(schedule)) == [line]
    assert engine.count(JobFilter()) == {}


def test_a_record_whose_audit_line_cannot_be_written_is_not_written_either(
    engine: PostgresEngine, clock: FakeClock
) -> None:
    schedule, job = a_schedule(clock.now()), a_job(clock.now())
    line = Event(subject(schedule), 0, clock.now(), EventKind.CREATED, "ann", "", "default")
    engine.save(Pause(), before=None, event=line)

    with pytest.raises(EngineError, match="events_pkey"):
        engine.save(schedule, before=None, event=line, job=job)
    with pytest.raises(EngineError, match="events_pkey"):
        engine.drop(Pause(), event=line)
    assert (engine.records(Schedule), engine.records(Pause)) == ([], [Pause()])
    assert engine.get([job.id]) == [None]


def test_no_line_is_sealed_while_an_open_transaction_holds_one_of_them(
    engine: PostgresEngine, clock: FakeClock, session: Session
) -> None:
    lines = [Event(new_id(), 1, clock.now(), EventKind.FAILED, "w1", "", "acme") for _ in range(3)]
    for line in lines:
        engine.save(Pause(), before=None, event=line)
        engine.drop(Pause())
    lines = engine.unsealed(limit=10)
    seal = Seal("acme", 1, 3, clock.now(), clock.now(), "d", "", "h", clock.now())
    stranger = session()
    stranger.execute(f"select 1 from {engine.schema}.events where job = %s for update", [lines[1].job_id])

    assert not engine.seal(seal, lines)
    assert (engine.records(Seal), engine.unsealed(limit=10)) == ([], lines)
    stranger.rollback()
    assert engine.seal(seal, lines)


def test_a_sealer_that_finds_the_oldest_line_taken_takes_none_of_the_others(
    engine: PostgresEngine, clock: FakeClock, session: Session
) -> None:
    """All sealers begin with the oldest: so one of them is done, however the rest of what they saw may differ."""
    older_ids = [new_id() for _ in range(3)]
    for job_id in (new_id(), *older_ids):
        engine.save(Pause(), before=None, event=Event(job_id, 1, clock.now(), EventKind.FAILED, "w1", "", "acme"))
        engine.drop(Pause())
        clock.advance(seconds=1)
    lines = engine.unsealed(limit=10)
    held, sealer, stranger = session(), session(), session()
    held.execute(f"select 1 from {engine.schema}.events where job = %s for update", [lines[0].job_id])

    def query(statement: str, values: Any) -> list[tuple[Any, ...]]:
        return sealer.execute(statement.replace("@.", f"{engine.schema}."), values).fetchall()

    seal = Seal("acme", 1, 4, clock.now(), clock.now(), "d", "", "h", clock.now())
    assert not audit.seal(query, seal, lines)
    free = f"select job::text from {engine.schema}.events for update skip locked"
    assert {job for (job,) in stranger.execute(free)} == set(older_ids)


# ------------------------------------------------------------------------------------------------- follow-ups


def test_a_follow_up_that_cannot_be_stored_undoes_the_change_it_follows(
    engine: PostgresEngine, clock: FakeClock
) -> None:
    enqueued(engine)
    [job] = claim(engine)
    change = lifecycle.settle(job, Succeeded(), clock.now())._replace(follow=a_job(clock.now(), task="x" * 201))

    [verdict] = engine.turn([change]).verdicts

    assert verdict.ruling is Ruling.REFUSED
    assert current(engine, job) == job


# ------------------------------------------------------------------------------------------------ retention


def test_thousands_of_jobs_that_ended_in_one_moment_are_walked_over(
    engine: PostgresEngine, clock: FakeClock, sql: Sql
) -> None:
    crowd = """
    insert into @.finished (id, task, payload, created_at, due_at, tenant, queue, lane, task_version, priority,
        max_attempts, retry_base, retry_jitter, state, attempt, failures, crashes, finished_at, cancel_requested,
        cost_micros, revision)
    select @.new_id(), task, '{}', at, at, 'default', 'default', '', 1, 0, 5, 5, 1, 'failed', 1, 0, 0, at, false, 0, 2
    from (select 'kept' as task, %s::timestamptz as at from generate_series(1, 25000)
        union all select 'old', %s::timestamptz from generate_series(1, 7)) as job
    """
    sql(crowd, clock.now(), clock.now() + timedelta(seconds=1))
    clock.advance(days=2)
    day = timedelta(days=1)

    keep = Retention({State.FAILED: day}, {"kept": {State.FAILED: None}})
    assert engine.prune(keep, limit=100) == 0  # and the next call goes on from there
    assert engine.prune(keep, limit=100, to_the_end=True) == 7
    assert engine.count(JobFilter()) == {State.FAILED: 25_000}
