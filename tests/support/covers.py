"""A pytest plugin: @pytest.mark.covers("001-R20", "002-Q5.b") names what a test proves, checked and reported.

Loaded by `pytest_plugins = ["tests.support.covers"]`; `--covers-report=PATH` writes the JSON that requirements.py
reads (with the equals sign: pytest takes a separate PATH that exists for a place to collect from).
"""

from __future__ import annotations

import json
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.marks import engine_of
from tests.support.requirements import Line, Requirement, complaint, load


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--covers-report", type=Path, metavar="PATH", help="write what the tests cover, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "covers(*ids): requirement ids this test proves")
    path = config.getoption("--covers-report")
    controller = not hasattr(config, "workerinput")  # under xdist only the controller sees every test
    if path is not None and controller:
        config.pluginmanager.register(Report(path))


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    """Refuse unknown marks, and put the known ones where they travel with the test's reports."""
    made = yield  # here, inside a module's collection, because a later error is unreadable under xdist
    for item in made if isinstance(made, list) else []:
        marks = [mark for marker in item.iter_markers("covers") for mark in marker.args]
        for mark in marks:
            if said := complaint(mark, _requirements()):
                raise pytest.Collector.CollectError(f"{item.nodeid}: {said}")
        if marks:
            item.user_properties += [("covers", marks), ("covers-engine", engine_of(item))]
    return made


class Report:
    """Gathers the outcome of every marked test and writes it when the session ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[str, Line] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told: dict[str, Any] = dict(report.user_properties)
        if "covers" not in told:
            return
        new = Line(covers=told["covers"], outcome="unfinished", engine=told["covers-engine"])
        line = self.lines.setdefault(report.nodeid, new)
        if report.failed:
            line["outcome"] = "failed"
        elif report.skipped or hasattr(report, "wasxfail"):  # what is expected to fail proves nothing
            line["outcome"] = "skipped"
        elif report.when == "call" and report.passed:
            line["outcome"] = "passed"

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps(self.lines, indent=1), encoding="utf-8")


@cache
def _requirements() -> dict[str, Requirement]:
    return load()
