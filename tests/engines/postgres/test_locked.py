"""No statement over several jobs waits for a row lock: what an open transaction holds is stepped over, or busy."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.support.making import LEASE, a_job, claim, current, ended, enqueued, running, write
from treadle.engines.contract import Engine
from treadle.engines.postgres import schema
from treadle.engines.postgres.engine import PostgresEngine
from treadle.engines.scripts import drive
from treadle.engines.values import Claim, Lease, Renewal, Retention, Ruling
from treadle.model import Change, Job, Scope, State, lifecycle, new_id
from treadle.model.lifecycle import Succeeded
from treadle.testing import FakeClock

Locked = Callable[..., AbstractContextManager[None]]


@pytest.fixture(autouse=True)
def _short_timeout(answer_timeout: Callable[[float], None]) -> None:
    answer_timeout(3.0)  # who waits for a lock is told so in time


@pytest.fixture
def locked(engine: PostgresEngine, store_url: str) -> Locked:
    """`with locked(job):` somebody's open transaction holds the job's row."""

    @contextmanager
    def lock(*jobs: Job) -> Iterator[None]:
        with psycopg.connect(store_url.partition("?")[0]) as stranger:
            for table in ("jobs", "finished"):
                sql = schema.named(f"select id from @.{table} where id = any (%s::uuid[]) for update", engine.schema)
                stranger.execute(sql, [[job.id for job in jobs]])
            yield
            stranger.rollback()

    return lock


@pytest.mark.parametrize("claims", [False, True], ids=["settle", "settle and claim"])
def test_a_settle_of_a_locked_job_is_busy_and_its_neighbours_are_written(
    engine: PostgresEngine, clock: FakeClock, locked: Locked, claims: bool
) -> None:
    held, other = running(engine), running(engine)
    changes = [lifecycle.settle(job, Succeeded("1"), clock.now()) for job in (held, other)]
    wish = Claim(new_id(), "w2", 5, LEASE) if claims else None

    with locked(held):
        turn = engine.turn(changes, wish)
        assert [verdict.ruling for verdict in turn.verdicts] == [Ruling.BUSY, Ruling.APPLIED]
        assert turn.verdicts[0].job == held

    assert write(engine, changes[0]).ruling is Ruling.APPLIED


def test_a_lease_of_a_locked_job_is_busy_and_the_others_are_renewed(
    engine: PostgresEngine, clock: FakeClock, locked: Locked
) -> None:
    held, other = running(engine), running(engine)
    holds = [Lease(job.id, job.lease_token or "") for job in (held, other)]
    clock.advance(seconds=10)

    with locked(held):
        answers = engine.extend([*holds, Lease(held.id, "somebody else's")], lease=LEASE)

    assert [answer.renewal for answer in answers] == [Renewal.BUSY, Renewal.RENEWED, Renewal.LOST]
    assert current(engine, held) == held


@pytest.mark.parametrize("met", [False, True], ids=["fresh", "met by a stranger"])
def test_a_claim_steps_over_locked_jobs(engine: PostgresEngine, locked: Locked, met: bool) -> None:
    jobs = [enqueued(engine) for _ in range(4)]
    if met:
        assert claim(engine, tasks=["another"]) == []

    with locked(jobs[0], jobs[2]):
        assert [job.id for job in claim(engine, 4)] == [jobs[1].id, jobs[3].id]

    assert [job.id for job in claim(engine, 4)] == [jobs[0].id, jobs[2].id]


def cancel(engine: Engine, clock: FakeClock) -> Change:
    return lifecycle.cancel(enqueued(engine), clock.now(), actor="ann")


def request(engine: Engine, clock: FakeClock) -> Change:
    return lifecycle.cancel(running(engine), clock.now(), actor="ann")


def replace(engine: Engine, clock: FakeClock) -> Change:
    return lifecycle.replace(enqueued(engine), a_job(clock.now(), priority=7), clock.now(), actor="ann")


def retry(engine: Engine, clock: FakeClock) -> Change:
    return lifecycle.retry(ended(engine, State.FAILED), clock.now(), actor="ann")


def retry_with_a_key(engine: Engine, clock: FakeClock) -> Change:
    job = ended(engine, State.FAILED, key="k", key_scope=Scope.ACTIVE)
    return lifecycle.retry(job, clock.now(), actor="ann")


def recovery(engine: Engine, clock: FakeClock) -> Change:
    job = running(engine)
    clock.advance(seconds=LEASE)
    return lifecycle.crash(job, clock.now(), actor="reaper")


@pytest.mark.parametrize("act", [cancel, request, replace, retry, retry_with_a_key, recovery])
def test_an_act_on_a_locked_job_is_busy(
    engine: PostgresEngine, clock: FakeClock, locked: Locked, act: Callable[[Engine, FakeClock], Change]
) -> None:
    change = act(engine, clock)

    with locked(change.before):
        verdict = write(engine, change)
        assert (verdict.ruling, verdict.job) == (Ruling.BUSY, change.before)

    assert write(engine, change).ruling is Ruling.APPLIED


def test_pruning_steps_over_locked_jobs(engine: PostgresEngine, clock: FakeClock, locked: Locked) -> None:
    held, other = ended(engine, State.FAILED), ended(engine, State.FAILED)
    clock.advance(days=2)

    with locked(held):
        assert engine.prune(Retention({State.FAILED: timedelta(days=1)}), limit=10) == 1

    assert engine.get([held.id, other.id]) == [held, None]


def test_an_enqueue_of_an_id_that_is_just_being_finished_waits_for_nobody_and_makes_no_second_job(
    engine: PostgresEngine, clock: FakeClock, store_url: str
) -> None:
    job = running(engine)
    with psycopg.connect(store_url.partition("?")[0]) as holder, ThreadPoolExecutor(1) as pool:
        script = engine.settle_script(lifecycle.settle(job, Succeeded("1"), clock.now()))
        assert drive(script, lambda sql, text: raw(holder, sql, text)).ruling is Ruling.APPLIED
        [receipt] = pool.submit(engine.enqueue, [a_job(clock.now(), id=job.id)]).result(20)
        holder.commit()

    assert (receipt.created, receipt.job.state) == (False, State.RUNNING)
    assert claim(engine) == []


def raw(connection: psycopg.Connection[Any], sql: str, text: str) -> list[tuple[Any, ...]]:
    cursor = psycopg.RawCursor(connection)
    cursor.execute(sql, [text])
    return cursor.fetchall() if cursor.description else []
