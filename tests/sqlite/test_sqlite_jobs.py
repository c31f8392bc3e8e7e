"""What the five older queues asked of SQLite by name."""

from datetime import timedelta

import pytest

from making import a_job, an_error, claim, current, enqueued, settle
from treadle.engines.contract import Engine
from treadle.engines.values import JobFilter, Ruling
from treadle.model import Scope, State, lifecycle
from treadle.model.lifecycle import Failed, Succeeded
from treadle.model.retry import Retry
from treadle.testing import FakeClock

PAYLOAD = '{"text":"grüße, 世界 🧵 \\"quoted\\"","n":[1,2.5,-3,1e300,null,true],"deep":{"a":{"b":[]}}}'


@pytest.mark.covers("001-R20")
def test_a_job_comes_back_from_the_file_as_it_was_put_in(engine: Engine, clock: FakeClock) -> None:
    now = clock.now()
    given = a_job(
        now,
        task="send_digest",
        payload_json=PAYLOAD,
        tenant="user-1",
        queue="mail",
        lane="eu",
        task_version=3,
        priority=-(2**31),
        retry=Retry(max_attempts=7, base=0.5, cap=None, jitter=0.25),
        timeout=1.5,
        due_at=now + timedelta(microseconds=1),
        expires_at=now + timedelta(days=40_000, microseconds=999_999),
        key="thread:9",
        key_scope=Scope.WINDOW,
        key_until=now + timedelta(days=1),
    )
    [receipt] = engine.enqueue([given])
    assert receipt.job == given
    assert current(engine, given) == given


@pytest.mark.covers("001-R20")
def test_what_became_of_a_job_comes_back_from_the_file_too(engine: Engine, clock: FakeClock) -> None:
    enqueued(engine, tenant="user-1", payload_json=PAYLOAD, retry=Retry(max_attempts=2, base=0))
    for attempt in (1, 2):
        clock.advance(seconds=1)
        [job] = claim(engine)
        assert (job.state, job.attempt, job.failures) == (State.RUNNING, attempt, attempt - 1)
        change = lifecycle.settle(job, Failed(an_error(clock.now(), "no route to host", attempt)), clock.now())
        assert engine.turn([change]).verdicts[0].ruling is Ruling.APPLIED
        assert current(engine, job) == change.after
    ended = current(engine, job)
    assert (ended.state, ended.attempt, ended.failures, ended.max_attempts) == (State.FAILED, 2, 2, 2)
    assert ended.error is not None
    assert ended.error.message == "no route to host"
    assert ended.finished_at == clock.now()
    assert ended.payload_json == PAYLOAD
    assert engine.find(JobFilter(state=State.FAILED), limit=10).jobs == [ended]


@pytest.mark.covers("001-R22.b")
def test_a_pending_job_can_be_claimed_however_often_it_was_before(engine: Engine, clock: FakeClock) -> None:
    job = enqueued(engine, retry=Retry(max_attempts=3, base=0))
    for attempt in range(1, 8):  # given back by stopping workers: no failure, though more attempts than allowed
        [held] = claim(engine)
        assert (held.id, held.attempt) == (job.id, attempt)
        settle(engine, held, lifecycle.Released())
    for failures in range(1, 4):
        [held] = claim(engine)
        settle(engine, held, Failed(an_error(clock.now())))
        assert current(engine, job).failures == failures
    assert current(engine, job).state is State.FAILED
    assert claim(engine) == []


@pytest.mark.covers("001-R22.c")
def test_jobs_of_one_priority_are_claimed_oldest_first_and_by_id_within_an_instant(
    engine: Engine, clock: FakeClock
) -> None:
    oldest = enqueued(engine)
    clock.advance(seconds=1)
    of_one_instant = [a_job(clock.now()) for _ in range(20)]
    engine.enqueue(list(reversed(of_one_instant)))
    clock.advance(seconds=1)
    youngest = enqueued(engine)
    expected = [job.id for job in (oldest, *of_one_instant, youngest)]
    assert [job.id for _ in expected for job in claim(engine, 1)] == expected


def test_a_result_survives_as_text(engine: Engine) -> None:
    enqueued(engine)
    [job] = claim(engine)
    settle(engine, job, Succeeded(PAYLOAD))
    assert current(engine, job).result_json == PAYLOAD
