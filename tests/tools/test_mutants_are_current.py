"""The lists of mutants must keep up with the source, or `dev.py mutants` would prove nothing."""

import pytest

from tests.mutants import run


@pytest.mark.parametrize("mutant", run.mutants(), ids=lambda mutant: mutant.name)
def test_the_text_of_a_mutant_stands_in_the_source_once(mutant):
    assert mutant.problem() == ""


def test_there_are_enough_mutants_and_half_are_by_strangers():
    found = run.mutants()
    assert len(found) >= 24
    assert sum(mutant.planted_by != "ours" for mutant in found) * 2 >= len(found)
    assert len({mutant.name for mutant in found}) == len(found)


@pytest.mark.parametrize("engine", run.SELECT)
def test_every_engine_has_mutants_and_they_are_looked_for_on_it(engine):
    run_on = [mutant.engine for mutant in run.mutants() if mutant.file.startswith(f"engines/{engine}/")]
    assert len(run_on) >= 15
    assert set(run_on) == {engine}
