"""Promise 10 within one call: of several requests with one key the first is stored, and the others get that job."""

import random
from datetime import timedelta

import pytest

from tests.support.making import a_job
from treadle.engines.values import JobFilter
from treadle.model import Scope


def requests(clock, scope, keys):
    until = clock.now() + timedelta(hours=1) if scope is Scope.WINDOW else None
    return [a_job(clock.now(), key=key, key_scope=scope, key_until=until) for key in keys]


@pytest.mark.parametrize("scope", Scope)
def test_several_requests_with_one_key_in_one_call_make_one_job(engine, clock, scope):
    jobs = requests(clock, scope, ["k"] * 3)

    receipts = list(engine.enqueue(jobs))

    assert [receipt.created for receipt in receipts] == [True, False, False]
    assert {receipt.job.id for receipt in receipts} == {jobs[0].id}
    assert [job.id for job in engine.find(JobFilter(), limit=10).jobs] == [jobs[0].id]


def test_of_many_requests_in_one_call_the_first_of_each_key_is_stored(engine, clock):
    jobs = requests(clock, Scope.ACTIVE, [f"k{random.randrange(10)}" for _ in range(100)])
    first: dict[str, str] = {}
    for job in jobs:
        first.setdefault(job.key, job.id)

    receipts = engine.enqueue(jobs)

    assert [receipt.job.id for receipt in receipts] == [first[job.key] for job in jobs]
