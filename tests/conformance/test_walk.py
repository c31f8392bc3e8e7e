"""Tens of thousands of random acts on an engine and on the reference: no answer may differ."""

from collections import Counter

import pytest
from walk import REACHED, table, walk

# A server takes its time: longer walks by command.
SEEDS = {"sqlite": range(1, 28), "postgres": range(1, 4), "postgres15": range(7, 8)}
STEPS = 2_000  # a seed; every seed has a store of its own
OFTEN_ENOUGH = {"sqlite": 10, "postgres": 1, "postgres15": 0}


@pytest.mark.slow
def test_a_random_walk_gets_the_answers_of_the_reference(engine_kind, capsys):
    met: Counter[str] = Counter()
    for seed in SEEDS[engine_kind]:
        met += walk(engine_kind, seed, STEPS)

    with capsys.disabled():
        print(f"\n{len(SEEDS[engine_kind]) * STEPS:,} steps on {engine_kind}, no difference:\n{table(met)}")
    assert {name: met[name] for name in REACHED if met[name] < OFTEN_ENOUGH[engine_kind]} == {}
