"""The benchmarks of this repository: they run, refuse what is wrong, and fill the page from what they found."""

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import against, measures, pages, plots, scenarios, stores
from benchmarks.run import Session, main, options, summary
from tests.support import processes
from tests.support.processes import ROOT
from tests.support.sizes import size

PAGE = (ROOT / "docs" / "performance.md").read_text("utf-8")


def told(store: str, plot: str, sides: dict[str, float]) -> dict[str, object]:
    found = {
        name: {"figures": {"jobs_per_second": {"median": rate, "least": rate, "most": rate}}, "ratio": None}
        for name, rate in sides.items()
    }
    return {"store": store, "plot": plot, "sides": found, "jobs": 10, "crowd": 0}


def test_every_scenario_has_a_name_of_its_own_and_something_that_measures_it():
    every = [*scenarios.scenarios()]
    assert len({scenario.name for scenario in every}) == len(every)
    for scenario in every:
        assert callable(getattr(measures, scenario.measure))
        for side in scenario.sides.values():
            assert side.get("crowd") in (None, *scenarios.CROWDS)


def test_every_scenario_stands_in_some_table_of_the_page():
    patterns = [pattern for pattern, _ in pages.TABLES.values()]
    for scenario in scenarios.scenarios():
        assert any(re.fullmatch(pattern, scenario.name) for pattern in patterns), scenario.name


def test_every_block_of_the_page_is_one_that_is_filled():
    named = {name for _, name, _ in pages.BLOCK.findall(PAGE)}
    assert named == {"about", *pages.TABLES}


def test_a_page_is_filled_and_a_block_without_results_says_so():
    results = {"3.11": {"versions": {"python": "3.11"}, "scenarios": {"sqlite-drain": told("sqlite", "", {"bare": 9})}}}
    filled = pages.filled(PAGE, results)
    assert "| sqlite-drain: 10 jobs | bare |  | 9 |" in filled
    assert filled.count(pages.NOT_MEASURED) == len(pages.TABLES) - 1
    assert pages.filled(filled, results) == filled


def test_without_results_the_page_is_left_alone(tmp_path, capsys):
    assert pages.write(tmp_path) == 2
    assert "there are no results" in capsys.readouterr().err


def test_plots_are_sound_and_drawn_from_what_was_measured():
    found = {
        "sqlite-lanes": told("sqlite", "lanes", {"no lane": 1000.0, "10 lanes": 900.0}),
        "postgres-lanes": told("postgres", "lanes", {"no lane": 500.0, "10 lanes": 400.0}),
    }
    [(name, svg)] = pages.drawn(found)
    assert name == "lanes"
    ElementTree.fromstring(svg)  # noqa: S314 - our own text
    assert svg.count("<circle") == 4


@pytest.mark.parametrize(("value", "top"), [(0.0, 1.0), (9.0, 10.0), (12.5, 16.0), (43_000.0, 50_000.0)])
def test_an_axis_ends_at_a_round_number(value, top):
    assert plots.nice(value) == pytest.approx(top)


def test_a_side_is_compared_with_the_first_one_pair_by_pair():
    scenario = next(scenarios.scenarios())
    found = {"bare": [{"x": 10.0}, {"x": 20.0}, {"x": 40.0}], "treadle": [{"x": 5.0}, {"x": 5.0}, {"x": 20.0}]}
    sides = summary(scenario, found, "x")["sides"]
    assert sides["treadle"]["ratio"] == {"median": 0.5, "least": 0.25, "most": 0.5}
    assert sides["bare"]["figures"]["x"]["median"] == 20.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "warp"], "--only: no scenario has 'warp' in its name"),
        (["--rounds", "0"], "--rounds: 0 must be 1 or more"),
        (["--quick", "--full"], "not allowed with argument"),
    ],
)
def test_what_is_wrong_is_said(arguments, message, capsys):
    with pytest.raises(SystemExit):
        options(arguments)
    assert message in capsys.readouterr().err


def test_a_commit_that_does_not_exist_is_said(capsys):
    with pytest.raises(SystemExit, match="--against nowhere"), against.other_tree("nowhere"):
        pass


def test_cpu_of_processes_that_came_and_went_is_counted_by_process():
    before, after = {"cpu 1": 5.0, "cpu 2": 3.0, "wal": 10.0}, {"cpu 1": 6.0, "cpu 3": 2.0, "wal": 30.0}
    assert stores.spent(before, after) == {"server_cpu": 3.0, "wal": 20.0}


@pytest.mark.parametrize("crowd", scenarios.CROWDS)
def test_a_crowd_is_stored_beside_the_jobs_on_sqlite(crowd):
    place = stores.Stores().place("sqlite")
    try:
        row = scenarios.CROWDS[crowd]
        place.fill(20, row)
        place.fill(10)
        table = place.qualified(row.get("table", "jobs"))
        [(number,)] = place.execute(f"select count(*) from {table}")
        assert number >= 20
        assert place.app.find(state="pending", limit=500).jobs
    finally:
        place.close()


@pytest.mark.slow
@pytest.mark.server
def test_a_small_scenario_runs_on_both_stores_and_leaves_its_results(tmp_path):
    out = tmp_path / "results-x.json"
    chosen = ["sqlite-drain", "postgres-bulk"][: size(1, long=2)]
    command = processes.module("benchmarks.run", "--quick", *(f"--only={name}" for name in chosen), "--out", str(out))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert set(found["scenarios"]) == {*chosen}
    assert found["scenarios"]["sqlite-drain"]["sides"]["treadle"]["figures"]["worker_cpu_us"]["median"] > 0
    assert found["versions"]["treadle"]


def test_the_list_of_scenarios_is_told(capsys):
    assert main(["--list"]) == 0
    assert "postgres-drain\n" in capsys.readouterr().out


def test_peers_report_with_nothing_but_the_standard_library():
    meter = ROOT / "src" / "treadle" / "bench" / "meter.py"
    imported = set(re.findall(r"^(?:import|from) (\w+)", meter.read_text("utf-8"), re.MULTILINE))
    assert imported <= sys.stdlib_module_names


def test_a_session_chooses_by_name_and_set(tmp_path):
    asked = options(["--only", "postgres-soak", "--full", "--out", str(tmp_path / "results-x.json")])
    assert [scenario.name for scenario in Session(stores.Stores(), asked).chosen()] == ["postgres-soak"]
    assert Path(asked.out).parent == tmp_path
