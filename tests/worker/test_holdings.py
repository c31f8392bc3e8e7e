"""What a worker holds: attempts by job, known by their lease."""

from tests.support.making import a_job
from treadle.engines.values import ClaimedJob
from treadle.model import Job, lifecycle
from treadle.testing import FakeClock
from treadle.worker.attempt import Attempt
from treadle.worker.holdings import Holdings

NOW = FakeClock().now()


def claimed(job: Job, token: str) -> Job:
    return lifecycle.claim(job, NOW, worker="w1", token=token, lease=30.0).after


def an_attempt(job: Job, token: str) -> Attempt:
    return Attempt(ClaimedJob.of(claimed(job, token)), lease_ends=30.0, queued_at=0.0)


def test_a_later_attempt_at_the_same_job_takes_over_and_outlives_the_end_of_the_first() -> None:
    job, holdings = a_job(NOW), Holdings()
    first, second = an_attempt(job, "first"), an_attempt(job, "second")
    assert holdings.add([first]) == []
    assert holdings.add([second]) == [first]
    holdings.forget(first)
    assert (second in holdings, first in holdings, len(holdings)) == (True, False, 1)
    holdings.forget(second)
    assert len(holdings) == 0


def test_a_job_is_held_by_its_lease_not_by_its_id() -> None:
    job, holdings = a_job(NOW), Holdings()
    holdings.add([an_attempt(job, "second")])
    assert holdings.holds(claimed(job, "second"))
    assert not holdings.holds(claimed(job, "first"))
    assert not holdings.holds(claimed(a_job(NOW), "second"))


def test_an_isolated_job_that_ended_is_unwritten_until_it_is_forgotten() -> None:
    holdings = Holdings()
    isolated, plain = an_attempt(a_job(NOW, crashes=1), "t"), an_attempt(a_job(NOW), "t")
    holdings.add([isolated, plain])
    plain.started_at, plain.ended = NOW, True
    isolated.started_at = NOW
    assert holdings.has_isolated()
    assert not holdings.has_unwritten_isolated()
    isolated.ended = True
    assert not holdings.has_isolated()
    assert holdings.has_unwritten_isolated()
    holdings.forget(isolated)
    assert not holdings.has_unwritten_isolated()
