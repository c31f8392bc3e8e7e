"""Tens of thousands of random acts on an engine and on the reference: no answer may differ."""

from collections import Counter

import pytest
from walk import REACHED, table, walk

SEEDS = range(1, 28)
STEPS = 2_000  # a seed; every seed has a store of its own
OFTEN_ENOUGH = 10


@pytest.mark.slow
def test_a_random_walk_gets_the_answers_of_the_reference(engine_kind, capsys):
    met: Counter[str] = Counter()
    for seed in SEEDS:
        met += walk(engine_kind, seed, STEPS)

    with capsys.disabled():
        print(f"\n{len(SEEDS) * STEPS:,} steps on {engine_kind}, no difference:\n{table(met)}")
    assert {name: met[name] for name in REACHED if met[name] < OFTEN_ENOUGH} == {}
