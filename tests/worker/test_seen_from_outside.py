"""What operators see of a worker at work: that a job has begun, and that schedules come back with a new store."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.marks import any_store
from tests.support.workbench import ended, until, working
from treadle import State, Treadle


@pytest.fixture
def go() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@any_store
def test_a_job_that_runs_for_a_second_is_seen_running_and_not_only_claimed(app: Treadle, go: threading.Event) -> None:
    hold = app.register("hold", lambda: go.wait(30))
    job = hold.enqueue()
    with working(app, lease=60):  # its renewal comes after 20 s
        until(lambda: app.get(job.id).label(app.engine.now()) == "running", "its start is written", within=10)
        [reason] = app.why(job.id)
        assert "it starts when a slot is free" not in reason.text
        assert app.get(job.id).started_at <= app.engine.now()
        go.set()
        [done] = ended(app, job)
    assert done.state is State.SUCCEEDED


def test_declared_schedules_come_back_when_the_file_was_removed(tmp_path: Path) -> None:
    app = Treadle(f"sqlite:///{tmp_path}/jobs.db", heartbeat=0.1, schedule_interval=0.1)
    app.register("tick", lambda: None, every="1h")
    with working(app):
        until(lambda: [one.name for one in app.schedules.list()] == ["tick"], "the schedule is there")
        for file in tmp_path.glob("jobs.db*"):
            file.unlink()
        until(lambda: [one.name for one in app.schedules.list()] == ["tick"], "the schedule is there again")
    app.close()
