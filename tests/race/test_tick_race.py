"""Promise 9 on real processes; timekeeping.py says how, and runs it longer."""

import pytest

from tests.race.timekeeping import race
from tests.support.marks import any_store
from tests.support.sizes import size

pytestmark = any_store

TICKS = size(250, long=1000)


@pytest.mark.slow
@pytest.mark.covers("002-C2.a", "002-C3.a")
def test_eight_schedulers_that_are_killed_make_exactly_one_job_of_every_tick(store_url):
    found = race(store_url, TICKS, kills=10)

    assert found.problems == []
    assert len(found.made) >= TICKS
    assert found.killed >= 1
