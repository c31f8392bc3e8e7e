"""Several ends in one transaction: each job gets the verdict that it would have got alone."""

import pytest

from tests.support.making import a_job, claim, current, recover, settle
from treadle.engines.values import Ruling
from treadle.errors import EngineUnavailable
from treadle.model import State, lifecycle
from treadle.model.lifecycle import Succeeded


def held(engine, clock, number=10):
    engine.enqueue([a_job(clock.now()) for _ in range(number)])
    return claim(engine, number)


def ends(jobs, clock, result="1"):
    return [lifecycle.settle(job, Succeeded(result), clock.now()) for job in jobs]


def rulings(turn):
    return [verdict.ruling for verdict in turn.verdicts]


@pytest.fixture
def far(open_engine, far_url, clock):
    return open_engine(far_url, clock=clock.now)


def test_ten_ends_are_one_call(far, layer, clock):
    jobs = held(far, clock, 25)
    layer.forget()
    assert rulings(far.turn(ends(jobs, clock))) == [Ruling.APPLIED] * 25
    assert [exchange.operation for exchange in layer.log] == ["TransactWriteItems"] * 3
    assert {current(far, job).state for job in jobs} == {State.SUCCEEDED}


def test_a_job_that_was_lost_does_not_keep_the_others_from_their_end(engine, clock):
    jobs = held(engine, clock)
    clock.advance(hours=1)
    recover(engine, jobs[3])
    expected = [Ruling.LOST if number == 3 else Ruling.APPLIED for number in range(10)]
    assert rulings(engine.turn(ends(jobs, clock))) == expected
    assert current(engine, jobs[3]).state is State.PENDING
    assert {current(engine, job).state for job in jobs if job is not jobs[3]} == {State.SUCCEEDED}


def test_a_value_that_the_store_refuses_falls_alone(engine, clock):
    jobs = held(engine, clock)
    changes = [*ends(jobs[:4], clock), *ends(jobs[4:5], clock, '"\ud800"'), *ends(jobs[5:], clock)]
    expected = [Ruling.REFUSED if number == 4 else Ruling.APPLIED for number in range(10)]
    assert rulings(engine.turn(changes)) == expected


def test_a_conflict_with_one_of_them_is_met_by_each_alone(far, layer, clock):
    jobs = held(far, clock)
    layer.conflict("TransactWriteItems", times=1)
    assert rulings(far.turn(ends(jobs, clock))) == [Ruling.APPLIED] * 10


def test_an_answer_that_was_lost_is_asked_for_again_and_every_end_counts_once(far, layer, clock):
    jobs = held(far, clock)
    layer.lose("TransactWriteItems", times=1)
    assert rulings(far.turn(ends(jobs, clock))) == [Ruling.APPLIED] * 10
    assert {current(far, job).state for job in jobs} == {State.SUCCEEDED}


def test_ends_whose_answer_never_came_are_already_written_when_they_are_repeated(far, layer, clock, monkeypatch):
    monkeypatch.setattr("treadle.engines.dynamodb.settle.SHORT_RETRY", 0.05)
    jobs = held(far, clock)
    layer.lose("TransactWriteItems")
    with pytest.raises(EngineUnavailable):
        far.turn(ends(jobs, clock))
    layer.calm()
    assert rulings(far.turn(ends(jobs, clock))) == [Ruling.ALREADY] * 10


def test_large_results_and_single_ends_are_written_as_ever(engine, clock):
    jobs = held(engine, clock, 3)
    large = f'"{"x" * 5_000}"'
    assert rulings(engine.turn(ends(jobs[:2], clock, large))) == [Ruling.APPLIED] * 2
    assert current(engine, jobs[0]).result_json == large
    assert settle(engine, jobs[2], Succeeded("1")).ruling is Ruling.APPLIED
