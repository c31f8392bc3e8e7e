"""Queues and lanes take turns also when a claim wants one job: a worker with slow handlers asks for one at a time."""

from collections import Counter

import pytest

from tests.engines.conformance.crowds import a_wish
from tests.support.making import a_job, claim


def served(engine, claims, limit, queues):
    """How many jobs of each queue and lane so many claims gave."""
    return Counter((job.queue, job.lane) for _ in range(claims) for job in claim(engine, limit, queues=queues))


def backlog(engine, clock, queues, lanes, each=60):
    engine.enqueue(
        [a_job(clock.now(), queue=queue, lane=lane) for queue in queues for lane in lanes for _ in range(each)]
    )


def test_claims_for_one_job_do_not_starve_a_queue_behind_a_full_one(engine, clock):
    backlog(engine, clock, ["a", "b", "c"], [""])

    given = served(engine, 30, 1, ["a", "b", "c"])

    assert {queue for queue, _ in given} == {"a", "b", "c"}


@pytest.mark.parametrize("lanes", [3, 9])
def test_claims_for_one_job_reach_every_lane_beside_a_backlog_without_a_lane(engine, clock, lanes):
    names = [f"lane{number}" for number in range(lanes)]
    backlog(engine, clock, ["a"], ["", *names])

    given = served(engine, 6 * lanes, 1, ["a"])

    assert {lane for _, lane in given} == {"", *names}


def test_claims_for_two_jobs_reach_every_lane_of_four_queues(engine, clock):
    queues, lanes = ["a", "b", "c", "d"], ["", "x", "y", "z"]
    backlog(engine, clock, queues, lanes, each=40)

    given = served(engine, 48, 2, queues)

    assert set(given) == {(queue, lane) for queue in queues for lane in lanes}


def test_a_claim_of_any_task_finds_parked_jobs_of_its_lane_behind_many_tasks_of_other_lanes(engine, clock):
    """A worker of some lanes that is to fail unknown tasks (fail_unknown) claims like this."""
    others = [a_job(clock.now(), task=f"task{number:03}", lane="other") for number in range(80)]
    ours = [a_job(clock.now(), task="zebra", lane="ours") for _ in range(3)]
    engine.enqueue([*others, *ours])
    for _ in range(5):
        assert claim(engine, 200, tasks=["known"]) == []  # all are parked

    given = [job.id for _ in range(5) for job in engine.turn([], a_wish(5, lanes=["ours"], unless=["known"])).jobs]

    assert sorted(given) == sorted(job.id for job in ours)
