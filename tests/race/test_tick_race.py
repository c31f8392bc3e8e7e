"""Promise 9 on real processes; timekeeping.py says how, and runs it longer."""

import pytest

from tests.race.timekeeping import race
from tests.support.marks import any_store

pytestmark = any_store

TICKS = {"sqlite": 1000, "postgres": 1000, "dynamodb": 1000}


@pytest.mark.slow
@pytest.mark.covers("002-C2.a", "002-C3.a")
def test_eight_schedulers_that_are_killed_make_exactly_one_job_of_every_tick(store_url, engine_kind):
    found = race(store_url, TICKS[engine_kind], kills=10)

    assert found.problems == []
    assert len(found.made) >= TICKS[engine_kind]
    assert found.killed >= 1
