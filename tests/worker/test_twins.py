"""Two workers of one name: both are listed, and the second one says so when it starts."""

import logging
from datetime import timedelta

import pytest

from tests.support.marks import any_store
from treadle import Treadle
from treadle.engines.values import OVERWRITE
from treadle.model.records import WorkerInfo, twin_name
from treadle.worker.config import WorkerConfig
from treadle.worker.maintenance.presence import Presence


def other(app: Treadle, **fields: object) -> WorkerInfo:
    """A live worker of another process that is called w1."""
    now = app.engine.now()
    info = WorkerInfo("w1", "box", 7, ["default"], None, {}, 10, 0, False, now, now, 10.0)
    info = info._replace(**fields)  # type: ignore[arg-type]
    app.engine.save(info, before=OVERWRITE)
    return info


def presence(app: Treadle) -> Presence:
    return app.worker(name="w1")._presence


@any_store
def test_a_second_worker_of_a_name_is_listed_beside_the_first_and_warns(
    app: Treadle, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = other(app), presence(app)
    with caplog.at_level(logging.WARNING):
        second.beat()
        second.beat()
    [warning] = caplog.records
    assert "another worker is called w1 (box, process 7, seen 0 s ago)" in warning.getMessage()
    listed = app.workers()
    assert [one.given_name for one in listed] == ["w1", "w1"]
    assert first in listed
    second.leave()
    assert app.workers() == [first]


@any_store
def test_a_worker_that_was_killed_and_started_again_gets_its_name_back(app: Treadle) -> None:
    other(app)
    again = presence(app)
    again.beat()
    other(app, seen_at=app.engine.now() - timedelta(minutes=1))  # nobody has renewed that row for a minute
    again.beat()
    [listed] = app.workers()
    assert listed.name == "w1"
    assert [one.name for one in app.engine.records(WorkerInfo)] == ["w1"]


def test_a_worker_alone_under_its_name_says_nothing(app: Treadle, caplog: pytest.LogCaptureFixture) -> None:
    other(app, seen_at=app.engine.now() - timedelta(hours=1))
    with caplog.at_level(logging.WARNING):
        presence(app).beat()
        presence(app).beat()  # started again in the same container: the same host and process id
    assert caplog.records == []
    assert [one.name for one in app.workers()] == ["w1"]


def test_two_that_started_at_once_and_share_a_row_are_told_apart_at_the_next_heartbeat(app: Treadle) -> None:
    config = WorkerConfig(name="w", heartbeat=5.0)
    one = Presence(app.engine, config, dict, lambda: 0)
    one.beat()
    mine = app.workers()[0]
    app.engine.save(mine._replace(pid=mine.pid + 1), before=OVERWRITE)  # the other one looked before we had written
    one.beat()
    assert {(worker.name, worker.pid) for worker in app.workers()} == {
        ("w", mine.pid + 1),
        (twin_name("w", mine.pid), mine.pid),
    }
    one.beat()
    assert len(app.workers()) == 2
