"""A job in a lane that is due later is marked, however it came to wait: so a claim does not read its lane."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest

from tests.support import provision
from tests.support.making import a_job, an_error, claim, enqueued, running, settle, write
from treadle.engines.postgres import schema
from treadle.engines.postgres.engine import PostgresEngine
from treadle.engines.values import Ruling
from treadle.model import lifecycle
from treadle.model.lifecycle import Failed, Released, Snoozed
from treadle.testing import FakeClock

HOUR = timedelta(hours=1)


@pytest.fixture
def store_url(fresh_store_url: str) -> str:
    return fresh_store_url


def marked(engine: PostgresEngine) -> dict[str, bool]:
    """By task: whether its job is marked."""
    return dict(engine.session.read(schema.named("select task, later from @.jobs", engine.schema), []))


def by_enqueue(engine: PostgresEngine) -> None:
    engine.enqueue([a_job(engine.now(), task="t", lane="l", due_at=engine.now() + HOUR)])


def by_a_mixed_bulk(engine: PostgresEngine) -> None:
    others = [a_job(engine.now(), task="now", lane="l"), a_job(engine.now(), task="other", due_at=engine.now() + HOUR)]
    engine.enqueue([*others, a_job(engine.now(), task="t", lane="l", due_at=engine.now() + HOUR)])


def by_plain_sql(engine: PostgresEngine) -> None:
    insert = "insert into @.jobs (task, lane, due_at) values ('t', 'l', now() + interval '1 hour') returning id"
    engine.session.read(schema.named(insert, engine.schema), [])


def by_snooze(engine: PostgresEngine) -> None:
    settle(engine, running(engine, task="t", lane="l"), Snoozed(3600.0))


def by_failure(engine: PostgresEngine) -> None:
    settle(engine, running(engine, task="t", lane="l"), Failed(an_error(engine.now()), 3600.0))


def by_replace(engine: PostgresEngine) -> None:
    job = enqueued(engine, task="t", lane="l")
    new = a_job(engine.now(), task="t", lane="l", due_at=engine.now() + HOUR)
    assert write(engine, lifecycle.replace(job, new, engine.now(), actor="ann")).ruling is Ruling.APPLIED


WAYS = [by_enqueue, by_a_mixed_bulk, by_plain_sql, by_snooze, by_failure, by_replace]


@pytest.mark.parametrize("stock", WAYS)
def test_a_job_in_a_lane_that_is_due_later_is_marked(
    near: PostgresEngine, stock: Callable[[PostgresEngine], None]
) -> None:
    stock(near)

    assert [task for task, later in marked(near).items() if later] == ["t"]


@pytest.mark.parametrize("stock", WAYS)
def test_a_claim_before_its_time_leaves_the_mark(near: PostgresEngine, stock: Callable[[PostgresEngine], None]) -> None:
    stock(near)

    assert [job.task for job in claim(near)] in ([], ["now"])

    assert marked(near)["t"]


@pytest.mark.parametrize("stock", [by_enqueue, by_a_mixed_bulk])
def test_an_enqueue_writes_the_mark_with_the_row(near: PostgresEngine, stock: Callable[[PostgresEngine], None]) -> None:
    """A second write of each row would cost a bulk as much as the first."""
    stock(near)

    [(rows, places)] = near.session.read(
        schema.named("select count(*), max(((ctid::text)::point)[1]) from @.jobs", near.schema), []
    )
    assert places == rows


def by_enqueue_now(engine: PostgresEngine) -> None:
    enqueued(engine, task="t", lane="l")


def by_no_lane(engine: PostgresEngine) -> None:
    enqueued(engine, task="t", due_at=engine.now() + HOUR)


def by_release(engine: PostgresEngine) -> None:
    settle(engine, running(engine, task="t", lane="l"), Released())


def by_replace_with_now(engine: PostgresEngine) -> None:
    job = enqueued(engine, task="t", lane="l", due_at=engine.now() + HOUR)
    new = a_job(engine.now(), task="t", lane="l")
    assert write(engine, lifecycle.replace(job, new, engine.now(), actor="ann")).ruling is Ruling.APPLIED


@pytest.mark.parametrize("stock", [by_enqueue_now, by_no_lane, by_release, by_replace_with_now])
def test_a_job_that_is_due_or_has_no_lane_is_not_marked(
    near: PostgresEngine, stock: Callable[[PostgresEngine], None]
) -> None:
    stock(near)

    assert marked(near) == {"t": False}


def test_the_first_claim_after_its_time_takes_the_mark_away(engine: PostgresEngine, clock: FakeClock) -> None:
    by_enqueue(engine)
    clock.advance(hours=1)

    assert [job.task for job in claim(engine)] == ["t"]

    assert marked(engine) == {"t": False}


def test_the_claim_that_takes_a_mark_away_leaves_those_of_jobs_due_later_still(
    engine: PostgresEngine, clock: FakeClock
) -> None:
    enqueued(engine, task="t", lane="l", due_at=clock.now() + HOUR)
    enqueued(engine, task="later", lane="m", due_at=clock.now() + 2 * HOUR)
    clock.advance(hours=1)

    assert [job.task for job in claim(engine)] == ["t"]

    assert marked(engine) == {"t": False, "later": True}


@pytest.mark.parametrize("lanes", [None, ["l"]], ids=["any lane", "named lanes"])
def test_a_job_that_is_parked_is_not_marked(engine: PostgresEngine, clock: FakeClock, lanes: list[str] | None) -> None:
    by_enqueue(engine)
    clock.advance(hours=1)

    assert claim(engine, tasks=["another"], lanes=lanes) == []

    assert marked(engine) == {"t": False}


# ------------------------------------------------------------------------------------- a store without marks

BEFORE = 5  # migrations before the marks


@pytest.fixture
def old(open_engine: Callable[..., PostgresEngine]) -> Iterator[PostgresEngine]:
    """A store from before the marks, with jobs, opened by this treadle."""
    server, name = provision.shared_postgres(), f"b{uuid4().hex[:20]}"
    jobs = """
        insert into @.jobs (task, lane, due_at) values ('t', 'l', now() + interval '1 hour'), ('now', 'l', now()),
            ('no lane', '', now() + interval '1 hour')"""
    steps = [sql for step in schema.migrations()[:BEFORE] for sql in (step.sql, step.record)]
    with psycopg.connect(server, autocommit=True) as connection:
        for statement in [schema.SCHEMA, schema.LEDGER, *steps, jobs]:
            connection.execute(statement.replace("@", name))
        engine = open_engine(f"{server}?schema={name}", auto_migrate=True)
        engine.open()
        yield engine
        engine.close()
        connection.execute(f"drop schema {name} cascade")


def test_jobs_from_before_the_marks_are_marked(old: PostgresEngine) -> None:
    assert marked(old) == {"t": True, "now": False, "no lane": False}
