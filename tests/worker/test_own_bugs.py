"""A bug in the worker itself: no job is held for ever by a thread that is gone, and the process does not pretend."""

import logging

import pytest

from tests.support.workbench import ended, working
from treadle import Reason, State, Treadle
from treadle.engines.values import Turn
from treadle.errors import EngineUnavailable
from treadle.model import lifecycle
from treadle.worker import turns


@pytest.fixture
def greet(app: Treadle):
    @app.task
    def greet() -> str:
        return "hello"

    return greet


def test_an_answer_that_cannot_be_read_is_asked_for_again_and_the_worker_goes_on(
    app: Treadle, greet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "BUG_WAIT", 0.01)
    take_turn, spoiled = app.engine.turn, []

    def no_verdict(changes, *words, **named):
        if changes and not spoiled:
            spoiled.append(1)
            return Turn([], [], app.engine.now())
        return take_turn(changes, *words, **named)

    monkeypatch.setattr(app.engine, "turn", no_verdict)
    with working(app):
        ended(app, greet.enqueue())
        ended(app, greet.enqueue())
    assert spoiled


def test_a_worker_whose_steps_fail_again_and_again_stops_and_says_why(
    app: Treadle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(turns, "BUG_WAIT", 0.0)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(turns, "next_step", broken)
    with caplog.at_level(logging.CRITICAL), pytest.raises(RuntimeError, match="failed 10 times in a row"):
        app.run_worker()
    assert "the worker stops" in caplog.text


def test_an_outcome_that_cannot_be_settled_is_a_failure_and_not_a_lease_for_ever(
    app: Treadle, greet, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = lifecycle.settle

    def once(job, outcome, *words, **named):
        if isinstance(outcome, lifecycle.Succeeded):
            raise OverflowError("date value out of range")
        return settle(job, outcome, *words, **named)

    monkeypatch.setattr(turns.lifecycle, "settle", once)
    with working(app):
        [job] = ended(app, greet.using(key="k").enqueue())  # a plain success needs no decision
    assert (job.state, job.reason) == (State.FAILED, Reason.INVALID_RESULT)
    assert "date value out of range" in job.error.message


def test_a_claim_whose_answer_was_lost_before_a_stop_is_asked_for_and_given_back(
    app: Treadle, greet, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = greet.enqueue()
    take_turn, lost = app.engine.turn, []

    def loses_the_answer(changes, claim=None, **named):
        turn = take_turn(changes, claim, **named)
        if turn.jobs and not lost:
            lost.append(1)
            worker.stop()
            raise EngineUnavailable("the answer was lost")
        return turn

    worker = app.worker()
    monkeypatch.setattr(app.engine, "turn", loses_the_answer)
    worker.run()
    job = app.get(job.id)
    assert (job.state, job.lease_until, job.failures, job.crashes) == (State.PENDING, None, 0, 0)
