"""Tens of thousands of random acts on an engine and on the reference: no answer may differ."""

from collections import Counter

import pytest

from tests.engines.conformance.walk import REACHED, table, walk
from tests.support.sizes import size

# A server takes its time: longer walks by command.
SEEDS = {
    "sqlite": range(1, size(3, long=6)),
    "postgres": range(1, 2),
    "postgres15": range(7, 8),
    "dynamodb": range(4, 5),
    "ministack": range(9, 10),
}
STEPS = {
    "sqlite": 2_000,
    "postgres": size(1_000, long=2_000),
    "postgres15": size(500, long=2_000),
    "dynamodb": size(400, long=1_000),
    "ministack": 200,
}  # a store
OFTEN_ENOUGH = {"sqlite": size(0, long=1), "postgres": 0, "postgres15": 0, "dynamodb": 0, "ministack": 0}


@pytest.mark.slow
def test_a_random_walk_gets_the_answers_of_the_reference(engine_kind, capsys):
    met: Counter[str] = Counter()
    for seed in SEEDS[engine_kind]:
        met += walk(engine_kind, seed, STEPS[engine_kind])

    with capsys.disabled():
        print(
            f"\n{len(SEEDS[engine_kind]) * STEPS[engine_kind]:,} steps on {engine_kind}, no difference:\n{table(met)}"
        )
    assert {name: met[name] for name in REACHED if met[name] < OFTEN_ENOUGH[engine_kind]} == {}
