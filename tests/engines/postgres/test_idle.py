"""A claim that must not overlook anything, beside a claim that parks what it does not know."""

from concurrent.futures import ThreadPoolExecutor, wait

import psycopg

from tests.support.making import LEASE, enqueued
from treadle.engines.postgres.engine import PostgresEngine
from treadle.engines.postgres.schema import named
from treadle.engines.postgres.turn import TURN, parameters, request
from treadle.engines.values import Claim
from treadle.model import new_id


def test_nothing_is_said_to_be_due_before_a_claim_that_parks_is_over(near: PostgresEngine, store_url: str) -> None:
    """The other claim has locked the jobs: they are neither where they were nor parked yet."""
    jobs = {enqueued(near).id for _ in range(5)}
    other = Claim(new_id(), "w2", 10, LEASE, tasks=("other",))
    mine = Claim(new_id(), "w1", 10, LEASE, tasks=("greet",), thorough=True)
    with psycopg.connect(store_url.partition("?")[0]) as stranger, ThreadPoolExecutor(1) as pool:
        values = parameters([], [], request(other, audit_all=False), None)
        psycopg.RawCursor(stranger).execute(named(TURN, near.schema), values)

        answer = pool.submit(near.turn, [], mine)
        wait([answer], timeout=1.0)
        stranger.commit()

        assert {job.id for job in answer.result().jobs} == jobs
