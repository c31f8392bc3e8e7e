"""Promise 8, the part that all engines show alike: a claim finds its job among thousands it must step over."""

from datetime import timedelta

import pytest

from making import a_job, claim, enqueued
from treadle.engines.values import Claim, JobFilter
from treadle.model import State, lifecycle, new_id
from treadle.model.lifecycle import Succeeded

CROWD = 1_500


@pytest.fixture
def crowded(engine, clock):
    """A store with thousands of jobs that no claim of queue `default` may take now."""
    now = clock.now()
    engine.enqueue([a_job(now) for _ in range(CROWD)])
    done = engine.turn([], Claim(token=new_id(), worker="w0", limit=CROWD, lease=60.0)).jobs
    engine.turn([lifecycle.settle(job, Succeeded(), now) for job in done])
    later = now + timedelta(days=1)
    engine.enqueue([a_job(now, priority=1 + number % 5, due_at=later) for number in range(CROWD)])
    engine.enqueue([a_job(now, priority=9, queue="other") for _ in range(CROWD)])
    assert engine.count(JobFilter()) == {State.SUCCEEDED: CROWD, State.PENDING: 2 * CROWD}
    return engine


def test_a_claim_among_thousands_it_may_not_take_takes_nothing(crowded):
    assert claim(crowded) == []


def test_a_claim_among_thousands_takes_the_right_jobs_first(crowded, clock):
    low = enqueued(crowded, priority=-1)
    jobs = [enqueued(crowded, priority=priority) for priority in (0, 3, 0)]
    later = enqueued(crowded, priority=10, due_at=clock.now() + timedelta(microseconds=1))

    one_by_one = [claim(crowded, 1)[0].id for _ in range(2)]

    assert one_by_one == [jobs[1].id, jobs[0].id]
    assert [job.id for job in claim(crowded)] == [jobs[2].id, low.id]
    clock.advance(microseconds=1)
    assert [job.id for job in claim(crowded)] == [later.id]


def test_the_thousands_are_claimed_in_order_once_their_time_has_come(crowded, clock):
    clock.advance(days=1)

    got = [job for _ in range(3) for job in claim(crowded, 500)]

    assert len({job.id for job in got}) == CROWD
    assert [job.priority for job in got] == sorted((job.priority for job in got), reverse=True)
    assert claim(crowded) == []
