"""The file is removed or replaced under a program that has it open: what is there then counts."""

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.making import a_job, claim, enqueued
from tests.support.workbench import ended, working
from treadle import State, Treadle
from treadle.engines.contract import Engine
from treadle.engines.values import JobFilter


def remove(folder: Path) -> None:
    for file in folder.glob("treadle.db*"):
        file.unlink()


def test_a_worker_goes_on_with_the_file_that_came_in_place_of_the_removed_one(
    make_app: Callable[..., Treadle], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What one does to start afresh."""
    app, other = (make_app(clock=None) for _ in range(2))

    def greet() -> str:
        return "hello"

    task, theirs = (each.register("greet", greet) for each in (app, other))
    with working(app), caplog.at_level(logging.WARNING, "treadle.sqlite"):
        assert ended(app, task.enqueue())[0].state is State.SUCCEEDED
        remove(tmp_path)
        assert ended(other, theirs.enqueue())[0].result == "hello"
    assert "was removed or replaced" in caplog.text


def test_every_connection_opens_the_new_file(
    engine: Engine, make_engine: Callable[..., Engine], tmp_path: Path
) -> None:
    old = enqueued(engine)
    engine.wait(("default",), 0.01)  # the connection that peeks
    remove(tmp_path)

    new = enqueued(make_engine())

    assert engine.get([old.id, new.id]) == [None, new]
    assert engine.count(JobFilter()) == {State.PENDING: 1}
    assert [job.id for job in claim(engine)] == [new.id]


def test_a_file_that_is_gone_is_made_anew_with_its_tables(engine: Engine, tmp_path: Path) -> None:
    enqueued(engine)
    remove(tmp_path)
    [receipt] = engine.enqueue([a_job(engine.now())])
    assert receipt.created
    with sqlite3.connect(tmp_path / "treadle.db") as connection:
        assert connection.execute("select id from treadle_jobs").fetchall() == [(receipt.job.id,)]
    connection.close()
