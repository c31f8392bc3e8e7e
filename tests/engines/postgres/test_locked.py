"""No statement over several jobs waits for a row lock: what an open transaction holds is stepped over, or busy."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.support.making import LEASE, a_job, claim, current, ended, enqueued, running, write
from tests.support.workbench import until
from treadle.engines.contract import Engine
from treadle.engines.postgres import enqueue, schema
from treadle.engines.postgres.engine import PostgresEngine
from treadle.engines.scripts import drive
from treadle.engines.values import Claim, JobFilter, Lease, Renewal, Retention, Ruling
from treadle.errors import EngineUnavailable
from treadle.model import Change, Job, Scope, State, lifecycle, new_id
from treadle.model.lifecycle import Succeeded, Success
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


@pytest.mark.parametrize("claims", [False, True], ids=["settle", "settle and claim"])
def test_a_success_of_a_locked_job_is_busy_and_its_neighbours_are_written(
    engine: PostgresEngine, clock: FakeClock, locked: Locked, claims: bool
) -> None:
    held, other = running(engine), running(engine)
    wish = Claim(new_id(), "w2", 5, LEASE) if claims else None

    with locked(held):
        turn = engine.turn([success(held, clock), success(other, clock)], wish)
        assert [verdict.ruling for verdict in turn.verdicts] == [Ruling.BUSY, Ruling.APPLIED]

    assert engine.turn([success(held, clock)]).verdicts[0].ruling is Ruling.APPLIED


def success(job: Job, clock: FakeClock) -> Success:
    return Success(job.id, job.lease_token or "", job.revision, clock.now(), "1", lambda: job)


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


@pytest.mark.parametrize("lanes", [("", ""), ("a", "b")], ids=["no lane", "two lanes"])
@pytest.mark.parametrize("met", [False, True], ids=["fresh", "met by a stranger"])
def test_a_claim_steps_over_locked_jobs(
    engine: PostgresEngine, locked: Locked, met: bool, lanes: tuple[str, str]
) -> None:
    jobs = [enqueued(engine, lane=lanes[number // 2]) for number in range(4)]
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


def test_parked_jobs_that_are_free_are_claimed_behind_locked_ones(
    engine: PostgresEngine, clock: FakeClock, locked: Locked
) -> None:
    """Else a worker says that it is idle while jobs are due."""
    jobs = sorted((enqueued(engine, task="late") for _ in range(6)), key=lambda job: (job.due_at, job.id))
    assert claim(engine, tasks=["other"]) == []  # all are parked

    with locked(*jobs[:5]):
        turn = engine.turn([], Claim(new_id(), "w1", 1, LEASE, tasks=["late"], thorough=True))

    assert [job.id for job in turn.jobs] == [jobs[5].id]


def in_a_transaction(engine: PostgresEngine, connection: psycopg.Connection[Any], job: Job) -> None:
    """Enqueue this job in the open transaction of this connection."""
    cursor = psycopg.RawCursor(connection)

    def run(sql: str, text: str) -> list[Any]:
        return cursor.execute(sql, [text]).fetchall()

    assert drive(engine.enqueue_script([job]), run)[0].created


def test_an_enqueue_that_gave_up_waiting_for_a_key_stores_nothing_later(
    near: PostgresEngine, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueue, "KEY_TIMEOUT", "500ms")
    monkeypatch.setattr(near.server, "retry_for", 0.0)
    with psycopg.connect(store_url.partition("?")[0]) as stranger:
        in_a_transaction(near, stranger, a_job(near.now(), key="k", key_scope=Scope.ACTIVE))
        with pytest.raises(EngineUnavailable, match="repeating is safe"):
            near.enqueue([a_job(near.now(), key="k", key_scope=Scope.ACTIVE)])
        waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like %s"
        assert stranger.execute(waiting, [f"%{near.schema}.add_jobs%"]).fetchall() == [(0,)]
        stranger.rollback()
    assert near.count(JobFilter()) == {}


def test_the_job_that_was_first_under_an_id_keeps_its_key(near: PostgresEngine, store_url: str) -> None:
    first = a_job(near.now(), key="first", key_scope=Scope.ACTIVE)
    with psycopg.connect(store_url.partition("?")[0]) as stranger, ThreadPoolExecutor(1) as pool:
        in_a_transaction(near, stranger, first)
        second = pool.submit(near.enqueue, [first.evolve(key="second")])
        blocked = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like %s"
        until(lambda: near.session.read(blocked, [f"%{near.schema}.add_jobs%"]), "the second enqueue waits")
        stranger.commit()
        [receipt] = second.result()

    assert (receipt.created, receipt.job.key) == (False, "first")
    assert near.session.read("select key from @.keys") == [("first",)]
