"""A worker says which treadle it is and how much memory it holds, among its tasks and yet not as tasks."""

import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.marks import any_store
from treadle import Treadle, __version__
from treadle.app.views import worker_view
from treadle.client.values import worker_from
from treadle.engines.values import OVERWRITE
from treadle.model.records import MEMORY, VERSION, WorkerInfo
from treadle.worker.maintenance import presence
from treadle.worker.orphans import Orphans


@pytest.fixture
def worker(app: Treadle) -> WorkerInfo:
    @app.task
    def greet(name: str) -> None: ...

    app.worker(name="w1")._presence.beat()
    [worker] = app.workers()
    return worker


@any_store
def test_a_worker_says_its_version_and_its_memory(worker: WorkerInfo) -> None:
    assert worker.version == __version__
    assert worker.memory is not None
    assert 2**20 < worker.memory < 2**36


@any_store
def test_neither_is_taken_for_a_task(app: Treadle, worker: WorkerInfo) -> None:
    assert worker.task_names == ["greet"]
    assert worker_view(worker)["tasks"] == {"greet": 1}
    assert set(Orphans(app.engine, []).known()) == {"greet"}


@any_store
def test_a_worker_that_says_neither_is_read_all_the_same(app: Treadle, worker: WorkerInfo) -> None:
    """As older ones do."""
    app.engine.save(worker._replace(tasks={"greet": 1}), before=OVERWRITE)
    [older] = app.workers()
    assert (older.version, older.memory, older.task_names) == (None, None, ["greet"])
    assert worker_from(worker_view(older)) == older


@any_store
def test_a_client_reads_them_from_the_server(worker: WorkerInfo) -> None:
    assert worker_from(worker_view(worker)) == worker


def test_a_task_may_have_a_name_like_theirs() -> None:
    tasks = {"treadle.memory_of": 1, "treadle.version": 2}
    assert VERSION not in tasks
    assert MEMORY not in tasks
    now = datetime.now(UTC)
    assert WorkerInfo("w", "h", 1, [], None, tasks, 1, 0, False, now, now, 1.0).task_names == [*tasks]


def test_where_there_is_no_proc_the_most_memory_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(presence, "STATM", tmp_path / "statm")
    most = presence.memory()
    assert most is not None
    monkeypatch.setattr(sys, "platform", "darwin")  # where the system counts bytes
    told = presence.memory()
    assert told is not None
    assert 1000 < most / told < 1050


def test_a_platform_that_tells_nothing_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(presence, "STATM", tmp_path / "statm")
    monkeypatch.setitem(sys.modules, "resource", None)
    assert presence.memory() is None
