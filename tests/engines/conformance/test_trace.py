"""The trace that a job belongs to: it stays with the job on all its ways, and jobs without one have none."""

import pytest

from tests.support.making import a_job, an_error, claim, claimed, current, enqueued, running, settle, write
from treadle.engines.values import JobFilter
from treadle.model import AlikeJobs, FollowUp, OnEnd, Reason, Retry, Scope, State, lifecycle, new_ids
from treadle.model.lifecycle import Failed, FailedForGood, Succeeded

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 vendor=1,other=a b"
OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
SOON = Retry(max_attempts=2, base=0, jitter=0)

CALLS = {
    "one": lambda now: [a_job(now, trace=TRACE)],
    "one with a key": lambda now: [a_job(now, trace=TRACE, key="k", key_scope=Scope.ACTIVE)],
    "several": lambda now: [a_job(now, trace=trace) for trace in (TRACE, None, OTHER, OTHER)],
    "alike": lambda now: AlikeJobs(a_job(now, trace=TRACE), new_ids(3), ["1", "2", "3"]),
    "none": lambda now: [a_job(now)],
}


@pytest.mark.parametrize("jobs", CALLS.values(), ids=CALLS)
def test_it_is_stored_claimed_and_kept_at_the_end(engine, jobs):
    made = jobs(engine.now())
    given = {job.id: job.trace for job in made}

    assert {receipt.job.id: receipt.job.trace for receipt in engine.enqueue(made)} == given
    got = claim(engine)
    assert {job.id: job.trace for job in got} == given
    for job in got:
        settle(engine, job, Succeeded("1"))
    assert {job.id: job.trace for job in engine.find(JobFilter(state=State.SUCCEEDED), limit=9).jobs} == given


def test_it_stays_through_a_failed_attempt_a_final_failure_and_an_operators_retry(engine):
    job = running(engine, trace=TRACE, retry=SOON)
    settle(engine, job, Failed(an_error(engine.now())))
    again = claimed(engine, job)
    assert (again.trace, again.attempt) == (TRACE, 2)

    settle(engine, again, FailedForGood(Reason.PERMANENT, an_error(engine.now())))
    failed = current(engine, job)
    assert (failed.trace, failed.state) == (TRACE, State.FAILED)

    write(engine, lifecycle.retry(failed, engine.now(), actor="ann"))
    assert claimed(engine, job).trace == TRACE


def test_what_follows_a_job_belongs_to_the_same_trace(engine):
    job = running(engine, trace=TRACE, on_end=OnEnd(succeeded=FollowUp(task="tell")))
    settle(engine, job, Succeeded("1"))

    [follow] = claim(engine, tasks=["tell"])
    assert follow.trace == TRACE


@pytest.mark.parametrize("newer", [OTHER, None])
def test_a_job_that_is_replaced_belongs_to_the_newer_request(engine, newer):
    job = enqueued(engine, trace=TRACE)
    write(engine, lifecycle.replace(job, a_job(engine.now(), trace=newer), engine.now(), actor="enqueue"))

    assert current(engine, job).trace == newer
    assert claimed(engine, job).trace == newer
