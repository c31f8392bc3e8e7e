"""The times of a job agree with each other: whoever's clock was ahead, a job never ends before it started."""

from datetime import timedelta

import pytest

from tests.support.making import LEASE, a_job, an_error, claimed, current, recover, running, settle, write
from treadle.engines.values import Claim, Lease, Ruling
from treadle.model import AlikeJobs, Reason, Retry, lifecycle, new_id, new_ids
from treadle.model.lifecycle import Failed, FailedForGood, Released, Stopped, Succeeded, TimedOut

AHEAD = timedelta(seconds=5)  # a worker's idea of the store's time may be off by so much
ONCE = Retry(max_attempts=1)


def started_ahead(engine, **fields):
    """A job whose worker says that it started a little after now."""
    job = running(engine, **fields)
    engine.extend([Lease(job.id, job.lease_token, started_at=engine.now() + AHEAD)], lease=LEASE)
    return current(engine, job)


@pytest.mark.parametrize(
    "outcome", [Succeeded, Failed, TimedOut, FailedForGood, Stopped], ids=lambda kind: kind.__name__
)
def test_an_attempt_never_ends_before_it_started(engine, clock, outcome):
    job = started_ahead(engine, retry=ONCE)
    error = an_error(clock.now())
    given = {Succeeded: (), FailedForGood: (Reason.PERMANENT, error), Stopped: ("enough",)}.get(outcome, (error,))

    assert settle(engine, job, outcome(*given)).ruling is Ruling.APPLIED

    end = current(engine, job)
    assert end.started_at == clock.now() + AHEAD
    assert end.finished_at == end.started_at


def test_an_attempt_that_started_in_time_ends_when_it_is_written(engine, clock):
    job = started_ahead(engine)
    clock.advance(seconds=6)

    settle(engine, job, Succeeded())

    assert current(engine, job).finished_at == clock.now() == job.started_at + timedelta(seconds=1)


def test_a_job_given_up_after_a_crash_never_ends_before_it_started(engine, clock):
    job = running(engine, retry=ONCE)
    ahead = clock.now() + timedelta(seconds=LEASE) + AHEAD
    engine.extend([Lease(job.id, job.lease_token, started_at=ahead)], lease=LEASE)
    clock.advance(seconds=LEASE)

    assert recover(engine, current(engine, job)).ruling is Ruling.APPLIED

    end = current(engine, job)
    assert end.state.final
    assert end.finished_at == end.started_at == ahead


def test_a_job_cancelled_between_two_attempts_never_ends_before_the_first_one_started(engine, clock):
    job = started_ahead(engine)
    settle(engine, job, Released())
    waiting = current(engine, job)

    write(engine, lifecycle.cancel(waiting, clock.now(), actor="ann"))

    end = current(engine, job)
    assert end.started_at is None or end.finished_at >= end.started_at


def test_a_turn_that_settles_and_claims_writes_no_end_before_the_start(engine, clock):
    job = started_ahead(engine)

    engine.turn([lifecycle.settle(job, Succeeded(), clock.now())], Claim(new_id(), "w1", 1, LEASE))

    end = current(engine, job)
    assert end.finished_at == end.started_at == clock.now() + AHEAD


def test_the_next_attempt_has_its_own_start(engine, clock):
    job = started_ahead(engine)
    settle(engine, job, Released())

    assert claimed(engine, job).started_at is None


@pytest.mark.parametrize("number", [1, 3])
def test_new_jobs_are_made_and_due_by_the_clock_of_the_store(engine, clock, number):
    before = clock.now() - timedelta(minutes=5)
    later = clock.now() + timedelta(minutes=5)
    like = a_job(before)
    prompt = AlikeJobs(like, new_ids(number), ["{}"] * number)
    put_off = AlikeJobs(like.evolve(due_at=later), new_ids(number), ["{}"] * number)

    for jobs, due in ((prompt, clock.now()), ([a_job(before) for _ in range(number)], clock.now()), (put_off, later)):
        for receipt in engine.enqueue(jobs):
            stored = current(engine, receipt.job)
            assert (stored.created_at, stored.due_at) == (clock.now(), due)
            assert receipt.job == stored
