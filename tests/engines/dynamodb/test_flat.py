"""A claim beside thousands of lanes, tasks or pauses costs what it costs beside ten."""

import pytest

from tests.engines.dynamodb.test_many_lanes import TOMORROW, lanes, paused, walked, wish
from tests.support.making import a_job, enqueued

FEW, MANY = 10, 3_000

pytestmark = pytest.mark.usefixtures("long_memory")


def beside_future_lanes(engine, number):
    engine.enqueue(lanes(number, engine.now(), due_at=engine.now() + TOMORROW))


def beside_lanes_of_an_unknown_task(engine, number):
    engine.enqueue(lanes(number, engine.now(), task="stranger"))


def beside_unknown_tasks(engine, number):
    engine.enqueue([a_job(engine.now(), task=f"stranger {n}") for n in range(number)])


def beside_lanes_paused_by_task(engine, number):
    paused(engine, task="slow")
    engine.enqueue(lanes(number, engine.now(), task="slow"))


def beside_lanes_paused_by_queue(engine, number):
    paused(engine, queue="slow")
    engine.enqueue(lanes(number, engine.now(), queue="slow"))


def beside_lanes_paused_by_tenant(engine, number):
    paused(engine, tenant="ada")
    engine.enqueue(lanes(number, engine.now(), tenant="ada"))


def beside_paused_tenants(engine, number):
    tenants = [f"tenant {n}" for n in range(min(number, 100))]
    for tenant in tenants:
        paused(engine, tenant=tenant)
    engine.enqueue([a_job(engine.now(), tenant=tenants[n % len(tenants)], lane=f"lane {n}") for n in range(number)])


CROWDS = [
    beside_future_lanes,
    beside_lanes_of_an_unknown_task,
    beside_unknown_tasks,
    beside_lanes_paused_by_task,
    beside_lanes_paused_by_queue,
    beside_lanes_paused_by_tenant,
    beside_paused_tenants,
]


def cost_of_a_claim(meter):
    """Of a job that is due beside the crowd, once claims have met the crowd: the second of three."""
    costs = []
    for _ in range(3):
        job = enqueued(meter.engine)
        with meter:
            turn = meter.engine.turn([], wish(1))
        assert [one.id for one in turn.claimed] == [job.id]
        costs.append(meter.last)
    return sorted(costs)[1]


@pytest.mark.parametrize("crowd", CROWDS)
def test_a_claim_costs_the_same_beside_ten_and_beside_thousands(meter, engine, clock, crowd):
    costs = []
    for number in (FEW, MANY):
        crowd(engine, number)
        assert walked(engine) == []
        walked(meter.engine)
        costs.append(cost_of_a_claim(meter))
    few, many = costs
    print(f"\n{crowd.__name__}: {few} {many}")
    assert many.writes == few.writes
    assert many.requests <= 1.3 * few.requests
    assert many.reads <= 1.3 * few.reads + 2


def test_a_claim_beside_backlogged_lanes_costs_the_same_beside_ten_and_beside_thousands(meter, engine, clock):
    costs = []
    for number in (FEW, MANY):
        engine.enqueue(lanes(number, clock.now()))
        with meter:
            assert len(meter.engine.turn([], wish(10)).claimed) == 10
        costs.append(meter.last)
    few, many = costs
    print(f"\nbacklogged: {few} {many}")
    assert many.requests <= 1.3 * few.requests
    assert many.reads <= 1.3 * few.reads + 2


def drain_requests(meter, jobs):
    """Requests a job, from the first claim to the last; every job comes once."""
    meter.engine.enqueue(jobs)
    with meter:
        got = walked(meter.engine, thorough=False)
    assert {job.id for job in got} == {job.id for job in jobs}
    assert len(got) == len(jobs)
    return meter.last.requests / len(jobs)


def test_a_drain_of_thousands_of_lanes_takes_hardly_more_requests_than_a_plain_one(meter, clock):
    plain = drain_requests(meter, [a_job(clock.now()) for _ in range(1_000)])
    many = drain_requests(meter, lanes(1_000, clock.now()))
    assert many <= 2.5 * plain
