"""A claim that has not looked everywhere says so, and one that must look everywhere does: so "nothing" is a proof."""

import pytest

from tests.support.making import LEASE, enqueued
from treadle.engines import connect
from treadle.engines.dynamodb import claim as dynamodb_claim
from treadle.engines.dynamodb import scan as dynamodb_scan
from treadle.engines.postgres import claim as postgres_claim
from treadle.engines.postgres import cursors as postgres_cursors
from treadle.engines.postgres import turn as postgres_turn
from treadle.engines.sqlite import claim as sqlite_claim
from treadle.engines.values import Claim
from treadle.model import new_id

BOUNDS = [
    (sqlite_claim, "MAX_SCANS", 1),
    (sqlite_claim, "MAX_PARKED", 5),
    (postgres_claim, "FILL_TIMEOUT", 0.0),
    (postgres_turn, "PATIENCE", -1.0),
    (postgres_turn, "MAX_PARKED", 5),
    (dynamodb_claim, "MAX_SCANS", 1),
    (dynamodb_claim, "MAX_UNPARKED", 1),
    (dynamodb_scan, "MAX_SKIPPED", 5),
]


def wish(limit: int, **fields: object) -> Claim:
    return Claim(new_id(), "w", limit, LEASE, **fields)


def test_a_claim_among_jobs_it_may_not_take_says_that_there_may_be_more_until_it_has_seen_all(engine, monkeypatch):
    for module, name, bound in BOUNDS:
        monkeypatch.setattr(module, name, bound)
    for _ in range(30):
        enqueued(engine, task="unknown")
    ours = enqueued(engine, task="ours")
    turns = [engine.turn([], wish(3, tasks=["ours"]))]
    while turns[-1].more:
        assert len(turns) < 100
        turns.append(engine.turn([], wish(3, tasks=["ours"])))
    assert [job.id for turn in turns for job in turn.jobs] == [ours.id]
    assert len(turns) > 1, "it was not cut short, so this proves nothing"


def test_a_claim_that_gets_all_there_is_was_not_cut_short(engine):
    jobs = {enqueued(engine).id for _ in range(3)}
    turn = engine.turn([], wish(10))
    assert ({job.id for job in turn.jobs}, turn.more) == (jobs, False)
    assert not engine.turn([], wish(10)).more


def test_a_claim_that_is_repeated_answers_for_what_it_holds_and_not_for_the_rest(engine):
    enqueued(engine)
    claim = wish(10)
    [job] = engine.turn([], claim).jobs
    enqueued(engine)
    again = engine.turn([], claim)
    assert ([one.id for one in again.jobs], again.more) == ([job.id], True)


@pytest.fixture
def hasty(store_url, monkeypatch):
    """An engine to which every claim is a slow one: for a second, an ordinary claim may continue where it ended."""
    monkeypatch.setattr(postgres_cursors, "SLOW_LOOK", -10.0)
    monkeypatch.setattr(postgres_cursors, "SLOW_LOOKS", 1)
    monkeypatch.setattr(dynamodb_scan, "MAX_RUNNING_HEAD", 0)
    engine = connect(store_url)
    engine.open()
    yield engine
    engine.close()


def test_a_thorough_claim_does_not_begin_where_the_last_one_ended(hasty):
    """An ordinary claim that continues there would not see the other priority."""
    urgent, other = enqueued(hasty, priority=9), enqueued(hasty, priority=5)
    [first] = hasty.turn([], wish(1)).jobs
    assert first.id == urgent.id
    [second] = hasty.turn([], wish(1, thorough=True)).jobs
    assert second.id == other.id


def test_a_thorough_claim_takes_the_most_urgent_job_and_not_the_next_one_of_the_last_claim(hasty):
    first, _ = enqueued(hasty, priority=5), enqueued(hasty, priority=5)
    assert [job.id for job in hasty.turn([], wish(1)).jobs] == [first.id]
    urgent = enqueued(hasty, priority=9)

    assert [job.id for job in hasty.turn([], wish(1, thorough=True)).jobs] == [urgent.id]
