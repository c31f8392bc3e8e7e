"""examples/nightly_report: a schedule, run by hand, over missed nights and over a kill."""

import re
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from tests.examples.conftest import Example
from tests.support.workbench import until
from treadle import Job, State, Treadle

SHOP = "python report.py"
WORKER = "treadle worker --app report:app"
SLOW_WORKER = "SECONDS=5 treadle worker --app report:app --lease 3s"
RUN_NOW = "treadle schedules run nightly_report --app report:app"
REHEARSAL = "python rehearse.py"
REGISTERED = "nightly_report: brought up to date with the code"


@pytest.fixture
def report(example: Callable[[str], Example]) -> Example:
    return example("nightly_report")


@pytest.fixture
def app(report: Example) -> Iterator[Treadle]:
    """The store of the example, as another process sees it."""
    with closing(Treadle(f"sqlite:///{report.folder}/shop.db")) as app:
        yield app


def done(app: Treadle) -> list[Job]:
    """The three customers' jobs, once they have all succeeded."""

    def look() -> list[Job]:
        found = app.find(task="nightly_report", state=State.SUCCEEDED).jobs
        return found if len(found) == 3 else []

    return until(look, lambda: f"three reports, but {app.find().jobs}")


def undated(printed: str) -> str:
    return re.sub(r"^\d{4}-\d\d-\d\d", "DATE", printed, flags=re.MULTILINE)


@pytest.mark.slow
def test_the_schedule_run_by_hand_reports_on_every_customer(report: Example, app: Treadle) -> None:
    expected, _ = report.outputs
    assert report.run(SHOP) == ""
    report.start(WORKER).says(REGISTERED)
    report.run(RUN_NOW)
    jobs = done(app)
    assert undated(report.run(SHOP)) == undated(expected)
    today = {job.tick.astimezone(ZoneInfo("Europe/Berlin")).date().isoformat() for job in jobs}
    assert {job.result["night"] for job in jobs} == today
    assert {(job.progress.fraction, job.progress.note) for job in jobs} == {(1.0, "order 3 of 3")}


@pytest.mark.slow
def test_the_schedule_is_registered_for_half_past_two_in_berlin(report: Example, app: Treadle) -> None:
    report.run(SHOP)
    report.start(WORKER).says(REGISTERED)
    schedule = app.schedules.get("nightly_report")
    first = schedule.next_at.astimezone(ZoneInfo("Europe/Berlin"))
    assert (first.hour, first.minute) in ((2, 30), (3, 0))  # 03:00 on the night on which 02:30 is leapt over
    assert first - datetime.now(first.tzinfo) <= timedelta(days=1, hours=1)


@pytest.mark.slow
def test_the_rehearsal_makes_up_for_every_missed_night(report: Example) -> None:
    _, expected = report.outputs
    assert report.run(REHEARSAL) == expected
    assert not [*report.folder.glob("*.db")]


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_leaves_no_part_of_a_report_and_another_one_writes_all(
    report: Example, app: Treadle
) -> None:
    report.run(SHOP)
    doomed = report.start(SLOW_WORKER)
    doomed.says(REGISTERED)
    report.run(RUN_NOW)
    doomed.says(r"order 1 of 3")
    doomed.end(signal.SIGKILL)
    held = app.find(task="nightly_report", state=State.RUNNING).jobs
    assert held
    assert report.run(SHOP) == ""
    report.start(WORKER)
    assert {job.attempt for job in done(app) if job.id in {one.id for one in held}} == {2}
    with closing(sqlite3.connect(report.folder / "shop.db")) as shop:
        assert shop.execute("select customer, cents from reports order by customer").fetchall() == [
            ("acme", 2100),
            ("birch", 1250),
            ("cedar", 1100),
        ]
