"""Promise 3, for a claim that serves several lanes at once: what binds a claim of one lane binds it too."""

from datetime import timedelta

from tests.support.making import claim, enqueued

LANES = ("", "a", "b")


def in_each(engine, **fields):
    """The ids of new jobs, one in each lane."""
    return {enqueued(engine, lane=lane, **fields).id for lane in LANES}


def given(engine, **wish):
    return {job.id for job in claim(engine, **wish)}


def test_a_claim_of_several_lanes_leaves_jobs_of_a_newer_version(engine):
    newer, older = in_each(engine, task_version=2), in_each(engine, task_version=1)

    assert given(engine, versions={"greet": 1}) == older
    assert given(engine, versions={"greet": 1}) == set()
    assert given(engine, versions={"greet": 2}) == newer


def test_a_claim_of_several_lanes_leaves_tasks_that_it_does_not_know(engine):
    unknown, known = in_each(engine, task="render"), in_each(engine)

    assert given(engine, tasks=["greet"]) == known
    assert given(engine, tasks=["greet"]) == set()
    assert given(engine) == unknown


def test_a_claim_of_several_lanes_leaves_jobs_that_are_due_later(engine, clock):
    later = in_each(engine, due_at=clock.now() + timedelta(minutes=5))
    due = in_each(engine)

    assert given(engine) == due
    clock.advance(minutes=5)
    assert given(engine) == later


def test_a_claim_of_several_lanes_leaves_expired_jobs(engine, clock):
    in_each(engine, expires_at=clock.now() + timedelta(minutes=5))
    lasting = in_each(engine)
    clock.advance(minutes=5)

    assert given(engine) == lasting
