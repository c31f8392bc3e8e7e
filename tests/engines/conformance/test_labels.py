"""How many of the jobs that wait are scheduled, and how many were tried before: counted in one look at them all."""

from datetime import timedelta

import pytest

from tests.support.making import an_error, claim, ended, enqueued, running, settle
from treadle.engines.values import JobFilter
from treadle.model import State
from treadle.model.lifecycle import Failed, Snoozed

HOUR = timedelta(hours=1)


def retrying(engine, **fields):
    """A job that has failed and waits for its next attempt."""
    job = running(engine, **fields)
    settle(engine, job, Failed(an_error(engine.now()), 60.0))


def scheduled(engine, **fields):
    enqueued(engine, due_at=engine.now() + HOUR, **fields)


def labels(count):
    return tuple(count.of([label]) for label in ("pending", "scheduled", "retrying"))


def pending(engine, where=JobFilter(), **options):  # noqa: B008 - a NamedTuple
    return engine.count(where, **options)[State.PENDING]


@pytest.mark.parametrize("limit", [None, 10])
def test_the_labels_of_pending_jobs_add_up_to_their_number(engine, limit):
    for _ in range(2):
        retrying(engine)
    for _ in range(3):
        scheduled(engine)
    snoozed = running(engine)
    settle(engine, snoozed, Snoozed(600.0))
    running(engine)
    for state in (state for state in State if state.final):
        ended(engine, state)
    enqueued(engine)

    found = pending(engine, limit=limit)

    assert (found, found.exact) == (7, True)
    assert labels(found) == labels(pending(engine, JobFilter(State.PENDING), limit=limit)) == (1, 4, 2)
    assert (found.of(["pending", "retrying"]), found.of(["retrying"]).exact) == (3, True)
    others = engine.count(JobFilter(), limit=limit)
    assert {labels(others[state]) for state in State if state is not State.PENDING} == {(0, 0, 0)}


@pytest.mark.parametrize("limit", [None, 10])
def test_a_job_is_scheduled_until_it_is_due_and_retrying_until_it_is_claimed(engine, limit):
    scheduled(engine)
    retrying(engine)
    later = engine.now() + HOUR + timedelta(seconds=1)

    assert labels(pending(engine, limit=limit)) == (0, 1, 1)
    assert labels(pending(engine, limit=limit, now=later)) == (1, 0, 1)
    assert len(claim(engine, now=later)) == 2
    assert State.PENDING not in engine.count(JobFilter(), limit=limit)


@pytest.mark.parametrize("limit", [None, 10])
@pytest.mark.parametrize("field", ["tenant", "queue", "task", "lane"])
def test_the_labels_are_those_of_the_jobs_that_match(engine, field, limit):
    for value, number in (("mine", 1), ("other", 2)):
        for _ in range(number):
            scheduled(engine, **{field: value})
            retrying(engine, **{field: value})

    assert labels(pending(engine, JobFilter(**{field: "mine"}), limit=limit)) == (0, 1, 1)
    assert labels(pending(engine, JobFilter(**{field: "other"}), limit=limit)) == (0, 2, 2)
    assert engine.count(JobFilter(**{field: "nobody's"}), limit=limit) == {}


@pytest.mark.parametrize("make", [scheduled, retrying])
def test_beyond_the_limit_there_are_at_least_so_many(engine, make):
    for _ in range(4):
        make(engine, tenant="acme")
    label = make.__name__

    for where in (JobFilter(), JobFilter(tenant="acme")):
        assert (pending(engine, where, limit=4).of([label]), pending(engine, where, limit=4).exact) == (4, True)
        beyond = pending(engine, where, limit=2).of([label])
        assert (beyond, beyond.exact) == (2, False)
